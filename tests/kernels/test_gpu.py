"""What the GPU back ends share, without a GPU: launches, times behind a gate, shared memory, what devices tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from commbench.errors import CommbenchError, UsageError
from commbench.kernels import _cupy, _gpu, _numba_cuda
from commbench.kernels._pattern import Access, Problem
from commbench.kernels.copy import PATTERNS
from tests.kernels.walks import problems

COPY = PATTERNS[0].of("float16")


@given(
    st.integers(1, 10**7), st.sampled_from([1, 2, 4, 8]), st.integers(1, 4), st.sampled_from([0, 320]), st.booleans()
)
def test_launches_take_every_element_once(total: int, vector: int, items: int, blocks: int, tensors: bool) -> None:
    problem = Problem(COPY, Access(vector=vector, items=items, blocks=blocks, tensors=tensors), total)
    found = _gpu.launches(problem, 256)
    assert [part.first for part in found] == [sum(each.count for each in found[:k]) for k in range(len(found))]
    assert sum(part.count for part in found) == problem.count
    for part in found:
        # One pass: the last block has work, unless all of it is behind the last whole vector.
        assert part.blocks == blocks or (part.blocks - 1) * 256 * items < max(1, part.count // vector)
        assert part.blocks == blocks or part.blocks * 256 * items >= part.count // vector


class Clock(_gpu.Gpu):
    """A device that is a clock: the host takes `host` seconds to enqueue, the device `device` seconds a launch."""

    def __init__(self, host: float, device: float) -> None:
        self.host, self.device = host, device
        self.now = self.free = 0.0  # the host's time; when the device is through
        self.gates: list[float] = []

    def _enqueue(self, host: float, device: float) -> float:
        self.now += host
        self.free = max(self.now, self.free) + device
        return self.free

    def gate(self, seconds: float) -> None:
        self.gates.append(seconds)
        self._enqueue(0, seconds)

    def launch(self) -> None:
        self._enqueue(self.host, self.device)

    def event(self) -> float:
        return self._enqueue(0, 0)

    def done(self, event: float) -> bool:
        return event <= self.now

    def wait(self, event: float) -> None:
        self.now = max(self.now, event)

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    @staticmethod
    def probe(device: str) -> str:
        return ""

    def allocate(self, nbytes: int) -> Any:
        raise NotImplementedError

    def put(self, memory: Any, values: NDArray[Any]) -> None:
        raise NotImplementedError

    def take(self, memory: Any, start: int, stop: int) -> NDArray[Any]:
        raise NotImplementedError

    def prepare(self, problem: Problem, arenas: Mapping[str, Any]) -> Callable[[], None]:
        raise NotImplementedError


@pytest.mark.parametrize("host", [1e-6, 1e-4, 1e-2])
def test_times_are_the_device_s_however_slow_the_host_is(host: float) -> None:
    clock = Clock(host, device=5e-6)
    assert clock.times(clock.launch, 100) == pytest.approx([5e-6] * 100)
    # Each gate was as long as all enqueuing behind it, or another twice as long followed.
    assert clock.gates[-1] >= host * (100 % _gpu.BATCH)


def test_a_host_that_never_keeps_up_is_an_error() -> None:
    clock = Clock(host=1.0, device=1e-6)
    with pytest.raises(CommbenchError, match=r"more than 4 s to enqueue 10 launches"):
        clock.times(clock.launch, 10)


def test_shared_memory_leaves_room_for_just_so_many_blocks() -> None:
    h100 = (233472, 1024, 232448)  # bytes of a multiprocessor, reserved for a block, of a block at most
    for resident in range(1, 17):
        block = _gpu.shared_memory(resident, *h100) + 1024
        assert 233472 // block == resident
    assert _gpu.shared_memory(0, *h100) == 0
    with pytest.raises(UsageError, match=r"at most 49152 bytes of shared memory here: resident is 2 or more"):
        _gpu.shared_memory(1, 65536, 0, 49152)


def test_walks_that_no_gpu_kernel_takes_are_refused() -> None:
    _gpu.check(Access(vector=4), 256)
    for access, threads, message in (
        (Access(vector=3), 256, "a power of two, not 3"),
        (Access(), 32, "64 to 1024 threads, a power of two, not 32"),
        (Access(layout="whole", inplace=False), 256, "inplace is true there"),
    ):
        with pytest.raises(UsageError, match=message):
            _gpu.check(access, threads)


def test_gpus_offer_every_level_but_those_of_cpus() -> None:
    assert "threads" not in _gpu.Gpu.factors
    assert {"vector", "layout", "whole", "resident", "blocks", "items", "hint"} <= _cupy.Backend.factors
    assert "resident" not in _numba_cuda.Backend.factors


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 3350),
        ("NVIDIA H200", 4800),
        ("NVIDIA L40S", 864),
        ("NVIDIA L4", 300),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA RTX A4000", None),
        ("Tesla X", None),
    ],
)
def test_the_data_sheet_is_found_by_the_longest_name(name: str, peak: float | None) -> None:
    assert _gpu.peak(name)[0] == peak


def test_a_cache_that_the_runtime_does_not_name_is_the_data_sheet_s() -> None:
    assert _gpu.cache("AMD Instinct MI300X", 4 << 20) == 256 << 20
    assert _gpu.cache("NVIDIA H100 80GB HBM3", 50 << 20) == 50 << 20


def test_what_nvidia_smi_tells_is_read_and_what_it_does_not_is_left_out() -> None:
    names = ["clock_mhz", "memory_clock_mhz", "temperature_c", "power_w"]
    assert _gpu.read_query(names, "1980, 2619, 41, 121.33\n") == dict(zip(names, [1980, 2619, 41, 121.33], strict=True))
    assert _gpu.read_query(names, "1980, [N/A], 41, [Not Supported]\n") == {"clock_mhz": 1980, "temperature_c": 41}
    assert _gpu.read_query(names, "") == {}


def test_what_amdgpu_tells_is_read_from_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "0000:c1:00.0" / "hwmon" / "hwmon3"
    folder.mkdir(parents=True)
    for file, text in {"freq1_input": "2100000000", "temp1_input": "45000", "power1_average": "138000000"}.items():
        (folder / file).write_text(f"{text}\n")
    found = _gpu.amd_health("0000:C1:00.0", tmp_path)
    assert found == {"clock_mhz": 2100, "temperature_c": 45, "power_w": 138}
    assert _gpu.amd_health("0000:ff:00.0", tmp_path) == {}


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is installed here")
def test_no_cupy_is_said_with_the_remedy() -> None:
    assert "pip install 'commbench[cuda12]'" in _cupy.Backend.probe("cuda")
    assert "pip install 'commbench[rocm]'" in _cupy.Backend.probe("rocm")


def test_a_library_that_finds_no_device_is_quoted() -> None:
    pytest.importorskip("numba_cuda", reason="no numba-cuda: pip install -c constraints.txt '.[test-kernels]'")
    from numba import cuda

    if cuda.is_available():
        pytest.skip("there is a GPU")
    assert "CUDA driver library cannot be found" in _numba_cuda.Backend.probe("cuda")


class Recorded:
    """A module of CuPy's whose kernels only note how they are launched."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.calls: list[tuple[str, tuple[int, ...], tuple[int, ...], tuple[Any, ...], int]] = []

    def get_function(self, name: str) -> Callable[..., None]:
        def kernel(grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...], shared_mem: int) -> None:
            self.calls.append((name, grid, block, arguments, shared_mem))

        return kernel


@pytest.mark.parametrize(
    ("name", "launched"),
    [
        ("weight_update_adamw_float16", ["update"]),
        ("copy_float16_gather_random", ["update"]),
        ("read_float16", ["update", "total"]),
        ("copy_float16_tensors_many_small", ["update"] * 9),  # eight tensors of a layer, and a part of the ninth
    ],
)
def test_cupy_is_given_what_the_source_takes(monkeypatch: pytest.MonkeyPatch, name: str, launched: list[str]) -> None:
    problem = problems(4_000_000)[name]
    modules: list[Recorded] = []

    def module(code: str) -> Recorded:
        modules.append(Recorded(code))
        return modules[-1]

    backend = object.__new__(_cupy.Backend)
    monkeypatch.setattr(backend, "_cupy", SimpleNamespace(RawModule=module), raising=False)
    monkeypatch.setattr(backend, "_hip", True, raising=False)  # without graphs
    monkeypatch.setattr(backend, "_hold_down", lambda *_: 1024)
    monkeypatch.setattr(backend, "allocate", lambda nbytes: np.zeros(nbytes, np.uint8))
    arenas = {arena: arena for arena in [*problem.arenas, "sum"]}
    backend.prepare(problem, arenas)()
    (made,) = modules
    assert [call[0] for call in made.calls] == launched
    parameters = re.findall(r"BOUNDS void update\((.*?)\) \{", made.code)[0].split(", ")
    kinds = {"int64": np.int64, "float": np.float32, "double": np.float64}
    position = 0
    for (_, grid, block, arguments, shared), part in zip(made.calls, _gpu.launches(problem, 256), strict=False):
        assert (grid, block, shared) == ((part.blocks,), (256,), 1024)
        assert len(arguments) == len(parameters)
        for parameter, argument in zip(parameters, arguments, strict=True):
            if "char" in parameter:
                assert argument == parameter.split()[-1].lstrip("*")
            elif "*" not in parameter:
                assert type(argument) is kinds[parameter.split()[0]]
        assert (arguments[len(problem.arenas)], arguments[len(problem.arenas) + 1]) == (position, part.count)
        position += part.count
    assert position == problem.count


def test_the_baseline_is_what_a_walk_is_compared_with() -> None:
    assert Access(vector=8) == COPY.baseline() == replace(COPY.baseline(), items=1)
