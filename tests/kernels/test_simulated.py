"""The Numba CUDA kernels in Numba's simulator: right answers, and just the sectors that the model predicts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from commbench.kernels._traffic import AMD, NVIDIA, Memory, traffic
from tests.kernels.simulated import TOTAL, Bits, Log
from tests.kernels.simulated_backend import CHOSEN
from tests.kernels.walks import problems

PROBLEMS = problems(TOTAL)


@pytest.fixture(scope="module")
def simulated() -> dict[str, Any]:
    """What became of every problem."""
    pytest.importorskip("numba_cuda", reason="no numba-cuda: pip install -c constraints.txt '.[test-kernels]'")
    command = [sys.executable, "-m", "tests.kernels.simulated"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"})
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["problem"]: row for row in rows}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_kernel_touches_just_the_sectors_that_are_predicted(simulated: dict[str, Any], name: str) -> None:
    predicted = traffic(PROBLEMS[name], NVIDIA).sectors
    expected = {f"{arena} {direction}": list(counts) for (arena, direction), counts in predicted.items()}
    assert simulated[name]["sectors"] == expected


def test_every_answer_is_right_and_guards_are_untouched(simulated: dict[str, Any]) -> None:
    assert {name: row["wrong"] for name, row in simulated.items()} == dict.fromkeys(PROBLEMS, 0)


def test_an_access_that_is_not_aligned_ends_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that all of those above were: the log stands for the GPU, which would end the kernel."""
    monkeypatch.setattr(threading.current_thread(), "threadIdx", SimpleNamespace(x=0), raising=False)
    monkeypatch.setattr(threading.current_thread(), "blockIdx", SimpleNamespace(x=0), raising=False)
    log, bits = Log(), Bits(np.zeros(64, np.uint16), "a", 4096)

    def load(i: int, n: int) -> None:
        log.access(bits, i, n, "read")

    load(8, 8)
    with pytest.raises(AssertionError, match="an access of 16 bytes at 4104"):
        load(4, 8)


def test_the_back_end_carries_memory_there_and_back_and_launches_what_it_prepared() -> None:
    pytest.importorskip("numba_cuda", reason="no numba-cuda: pip install -c constraints.txt '.[test-kernels]'")
    command = [sys.executable, "-m", "tests.kernels.simulated_backend"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == dict.fromkeys(CHOSEN, 0)
    assert len(found["times"]) == 3
    assert found["name"] == "NVIDIA H100 80GB HBM3" and found["identity"] == "00000000:1B:00.0"


# The model by itself: the table of the reference, by the most literal count that there is.


def touched(addresses: list[int], width: int, sector: int) -> int:
    """Return the sectors of one request: one address a lane."""
    return len({(address + k) // sector for address in addresses for k in range(width)})


@pytest.mark.parametrize("memory", [NVIDIA, AMD], ids=["nvidia", "amd"])
@pytest.mark.parametrize("name", ["copy_float16", "copy_float16_stride_8", "copy_float16_layout_aos"])
def test_sectors_of_requests_are_those_of_a_literal_count(memory: Memory, name: str) -> None:
    problem = PROBLEMS[name]
    place, vector, lanes = problem.places[0], problem.access.vector, memory.lanes
    first = place.offset + place.pitch * np.arange(problem.count)
    whole = problem.count // vector * vector
    heads, rest = list(first[:whole:vector]), list(first[whole:])
    requests = [(heads[k : k + lanes], vector * place.itemsize) for k in range(0, len(heads), lanes)]
    requests += [(rest, place.itemsize)] if rest else []
    expected = sum(touched(addresses, width, memory.sector) for addresses, width in requests)
    assert traffic(problem, memory).sectors[place.arena, "read"][1] == expected
