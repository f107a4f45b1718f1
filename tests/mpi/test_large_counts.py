"""More elements than a 32-bit int counts: whole where the library has 64-bit counts, in chunks where it has not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mpi.launch import MPICH, OPEN_MPI, launch, library

MIB = 1 << 20
COUNT = 2100 * MIB  # above 2^31; int8, so as many bytes
RANKS = 2
# Blocks that a rank needs: its buffers, and what the library and the check take beside them.
DOORS = {"broadcast": 1.3, "allreduce": 3.3}


def available() -> int:
    """The bytes that the kernel says new processes can have."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_counts_above_two_to_the_31_are_right(door: str, tmp_path: Path) -> None:
    needed = int(RANKS * DOORS[door] * COUNT)
    if available() < needed:
        pytest.skip(f"needs {needed // MIB} MiB of memory, and {available() // MIB} are free")
    words = f"-b {COUNT} -e {COUNT} -d int8 --algo auto -n 1 --rounds 1 --format json --out run".split()
    reduction = ["-o", "max"] if door == "allreduce" else []

    done = launch(RANKS, f"commbench.{door}", *words, *reduction, timeout=400, cwd=tmp_path)

    assert done.code == 0, done.stderr
    (record,) = done.records
    assert record["status"] == "ok", record
    assert record["size"] == record["count"] == COUNT > 2**31
    assert record["wrong"] == 0 and record["time_us"] > 0
    # MPICH 5 counts in 64 bits; Open MPI 5 in 32, so that these go in chunks of 2^30 elements.
    assert record["calls"] == {MPICH: 1, OPEN_MPI: 3}[library()]
