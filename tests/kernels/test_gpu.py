"""What the GPU back ends share, without a GPU: launches, times behind a gate, shared memory, what devices tell."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from commbench.errors import CommbenchError, UsageError
from commbench.kernels import _backend, _cupy, _gpu, _numba_cuda, _run
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
    """A device that is a clock: the host takes `host` seconds to enqueue, the device `device` seconds a launch.

    As with CUDA, the host waits where a thousand things are enqueued. With `cold`, kernels take twice as long until the
    device has been busy for so many seconds without a break of a millisecond.
    """

    def __init__(self, host: float, device: float, cold: float = 0.0) -> None:
        self.host, self.device, self.cold = host, device, cold
        self.now = self.free = 0.0  # the host's time; when the device is through
        self.busy = 0.0  # since the last break
        self.gates: list[float] = []
        self.queue: deque[float] = deque()  # when each thing that is enqueued ends

    def _enqueue(self, host: float, device: float) -> float:
        self.now += host
        while self.queue and self.queue[0] <= self.now:
            self.queue.popleft()
        if len(self.queue) >= 1000:
            self.now = self.queue.popleft()
        if self.now > self.free + 1e-3:
            self.busy = 0.0
        device *= 2 if self.busy < self.cold else 1
        self.busy += device
        self.free = max(self.now, self.free) + device
        self.queue.append(self.free)
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
    assert clock.times(clock.launch, 300) == pytest.approx([5e-6] * 300)
    # Each gate was as long as all enqueuing behind it, or another twice as long followed.
    assert clock.gates[-1] >= host * (300 % (_gpu.QUEUE // 2))


@pytest.mark.parametrize("kernels", [9, 300, 999, 2500])
def test_a_pass_of_many_launches_does_not_overfill_the_queue_behind_its_gate(kernels: int) -> None:
    clock = Clock(host=1e-6, device=5e-6)
    one = _gpu.Pass([clock.launch] * kernels, kernels)
    assert clock.times(one, 5) == pytest.approx([kernels * 5e-6] * 5)
    assert max(clock.gates) == _gpu.FIRST_GATE  # else the host waited for it


def test_launches_are_timed_when_clocks_have_risen() -> None:
    clock = Clock(host=1e-6, device=5e-6, cold=5e-3)
    for _ in range(2):
        assert clock.times(clock.launch, 10) == pytest.approx([5e-6] * 10)
        clock.now += 1.0  # the host is busy with something else


def test_a_host_that_never_keeps_up_is_an_error() -> None:
    clock = Clock(host=1.0, device=1e-6)
    with pytest.raises(CommbenchError, match=r"more than 4 s to enqueue 10 launches"):
        clock.times(clock.launch, 10)


def test_shared_memory_leaves_room_for_just_so_many_blocks() -> None:
    h100 = (233472, 1024, 232448)  # bytes of a multiprocessor, reserved for a block, of a block at most
    for resident in range(1, 17):
        block = _gpu.shared_memory(resident, *h100) + 1024
        assert 233472 // block == resident
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


NVML = """
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
    static int one;
    *device = &one;
    return strcmp(bus, "0000:1B:00.0") ? 6 /* NVML_ERROR_NOT_FOUND */ : 0;
}
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz) {
    *mhz = kind == 1 ? 1980 : kind == 2 ? 2619 : 0;
    return 0;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    *celsius = 41;
    return sensor ? 2 : 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
#ifdef NO_POWER
    return 3; /* NVML_ERROR_NOT_SUPPORTED */
#endif
    *milliwatts = 121330;
    return 0;
}
"""


@pytest.mark.parametrize("power", [True, False])
def test_what_nvml_tells_is_read_and_what_it_does_not_is_left_out(tmp_path: Path, power: bool) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler, which makes a library that answers as NVML does")
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "libnvidia-ml.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(tmp_path / "nvml.c")]
    subprocess.run([*command, *([] if power else ["-DNO_POWER"])], check=True)
    found = {"clock_mhz": 1980, "memory_clock_mhz": 2619, "temperature_c": 41}
    assert _gpu.nvidia_health("0000:1B:00.0", str(library)) == found | ({"power_w": 121.33} if power else {})
    assert _gpu.nvidia_health("0000:FF:00.0", str(library)) == {}


def test_no_nvml_tells_nothing(tmp_path: Path) -> None:
    assert _gpu.nvidia_health("0000:1B:00.0", str(tmp_path / "none.so")) == {}


def test_ranks_that_have_one_device_together_are_named() -> None:
    own = [["node0", "0000:1B:00.0", "a"], ["node0", "0000:1C:00.0", "b"], ["node1", "0000:1B:00.0", "c"]]
    parts = [["node0", "0000:1B:00.0", "part 1"], ["node0", "0000:1B:00.0", "part 2"]]
    nothing = [["node0", "0000:1B:00.0", "0" * 32], ["node0", "0000:1C:00.0", "0" * 32]]  # a UUID that tells nothing
    cpus = [["node0", "2 cores", ""], ["node0", "2 cores", ""]]
    for devices in (own, parts, nothing, cpus):
        assert _backend.shared(devices) == ""
    assert "ranks 0 and 3 both have 0000:1B:00.0 of node0" in _backend.shared([*own, own[0]])


def test_a_rank_that_is_shown_its_own_device_has_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """srun --gpus-per-task=1: each rank sees one device, as number 0."""
    taken: list[int] = []

    class Taken(Exception):
        pass

    def device(ordinal: int) -> None:
        taken.append(ordinal)
        raise Taken

    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    monkeypatch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(runtime=None))
    monkeypatch.setattr(_cupy, "CupyDevice", device)
    for there, node_rank in ((1, 3), (8, 3), (4, 5)):
        monkeypatch.setattr(_cupy, "count", lambda vendor, there=there: (there, ""))
        with pytest.raises(Taken):
            _cupy.Backend("cuda", node_rank)
    assert taken == [0, 3, 1]
    monkeypatch.setattr(_cupy, "count", lambda vendor: (0, "CuPy sees no device"))
    with pytest.raises(UsageError, match="CuPy sees no device"):
        _cupy.Backend("cuda", 0)


class Pair:
    """The world of one of two ranks on a node, whose other rank's device is `other`."""

    node_rank, node_size, cores = 1, 2, 2

    def __init__(self, other: list[str]) -> None:
        self.other = other

    def first_text(self, text: str) -> str:
        return text

    def gather(self, value: list[str]) -> list[list[str]]:
        return [[value[0], *self.other], value]

    def broadcast(self, value: str) -> str:
        return value


def test_two_ranks_on_one_device_end_before_they_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    class One(Clock):
        facts = SimpleNamespace(identity="0000:1B:00.0", uuid="a")  # type: ignore[assignment]

    monkeypatch.setattr(_run, "find", lambda device, library: lambda *_: One(1e-6, 1e-6))
    assert isinstance(_run._open(Pair(["0000:1C:00.0", "b"]), "cuda", None), One)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"ranks 0 and 1 both have 0000:1B:00\.0"):
        _run._open(Pair(["0000:1B:00.0", "a"]), "cuda", None)  # type: ignore[arg-type]


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
