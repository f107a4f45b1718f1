"""Device memory by MPI: over a library that says it takes it and devices of host memory, and over one that says no."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mpi.launch import Done, launch

AWARE = ["--backend", "tests.mpi.device_aware"]
QUICK = ["-b", "8", "-e", "4K", "-f", "512", "-n", "2", "--rounds", "1", "--format", "json", "--out", "run"]
ON_ROOT = ("broadcast", "reduce", "gather", "scatter")


def check(done: Done, code: int = 0) -> None:
    assert done.code == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.left == 0


@pytest.mark.parametrize("door", ["allreduce", "allgather", "sendrecv", *ON_ROOT])
def test_a_door_is_right_on_device_memory_and_the_host_touches_none(door: str) -> None:
    root = ["-r", "1"] if door in ON_ROOT else []
    # Not all algorithms: Open MPI 5.0.11's all-gather `sparbit` in place is wrong wherever the memory is.
    words = ["--algo", "auto,ring", "--buffer", "all", "--inplace", "both", *root]
    done = launch(3, f"commbench.{door}", *AWARE, *words, *QUICK)

    check(done)
    kept = {
        buffer: [
            (record["size"], record["algorithm"], record["inplace"], record["status"])
            for record in done.records
            if record["buffer"] == buffer
        ]
        for buffer in ("host", "device")
    }
    assert kept["device"] == kept["host"]
    assert {record["status"] for record in done.records} <= {"ok", "not_applicable", "rejected"}
    assert "ok" in {status for *_, status in kept["device"]}


def test_the_compiled_loop_and_the_plain_one_take_addresses_of_the_device() -> None:
    loops = {
        (record["loop"], record["status"])
        for method in ("barrier", "loop", "clock")
        for record in launch(
            2, "commbench.allreduce", *AWARE, "--buffer", "device", "--algo", "auto", "--method", method, *QUICK
        ).records
    }
    assert {status for _, status in loops} == {"ok"}
    assert "plain" in {loop for loop, _ in loops}


def test_a_group_has_the_launchs_device_and_a_resumed_run_takes_one_again(tmp_path: Path) -> None:
    words = [*AWARE, "--algo", "auto", *QUICK[:-1], str(tmp_path / "run")]
    done = launch(3, "commbench.allreduce", *words, "--buffer", "device", "--ranks", "2,N")
    check(done)
    assert {record["status"] for record in done.records} == {"ok"}
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["library"]["device"]["index"] == 0
    check(launch(3, "commbench.allreduce", *words, "--resume"))


def test_the_average_is_not_for_device_memory() -> None:
    done = launch(2, "commbench.allreduce", *AWARE, "--buffer", "all", "-o", "avg", "--algo", "auto", *QUICK)

    check(done)
    statuses = {(record["buffer"], record["status"]) for record in done.records}
    assert statuses == {("host", "ok"), ("device", "not_applicable")}


def test_without_a_device_the_rows_say_so() -> None:
    done = launch(2, "commbench.allreduce", *AWARE, "--buffer", "all", "--algo", "auto", *QUICK, env={"DEVICES": "0"})

    check(done)
    reasons = {record["buffer"]: (record["status"], record["reason"]) for record in done.records}
    assert reasons == {"host": ("ok", ""), "device": ("not_applicable", "DEVICES is 0")}


def test_a_library_that_takes_no_device_memory_is_asked_and_quoted() -> None:
    """The MPI beside this interpreter, which a test machine has without a GPU in mind."""
    done = launch(2, "commbench.allreduce", "--backend", "mpi", "--buffer", "device", "--algo", "auto", *QUICK)

    check(done)
    for record in done.records:
        assert record["status"] == "not_applicable"
        assert "device memory" in record["reason"] or "takes no memory of" in record["reason"]
