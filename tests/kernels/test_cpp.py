"""The C++ source of every kernel, compiled for GPUs that are not here: its accesses are those that are declared."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from commbench.kernels import _cpp
from tests.kernels import isa
from tests.kernels.walks import problems

TOTAL, THREADS = 1 << 20, 256
PROBLEMS = problems(TOTAL)
SOURCE = _cpp.shared(THREADS) + "".join(_cpp.kernel(problem, name) for name, problem in PROBLEMS.items())


def nvdisasm() -> Path:
    """Return the disassembler of its wheel."""
    found = sorted(Path(sysconfig.get_paths()["purelib"], "nvidia").glob("*/bin/nvdisasm"))
    if not found:
        pytest.skip("no nvdisasm in this environment: pip install -c constraints.txt '.[test-kernels]'")
    return found[0]


@pytest.fixture(scope="module", params=["80", "90"])
def sass(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every kernel's machine code for one NVIDIA architecture."""
    reason = "NVRTC comes with CuPy and its wheel: pip install -c constraints.txt '.[test-kernels]'"
    nvrtc = pytest.importorskip("cupy", reason=reason).cuda.nvrtc
    program = nvrtc.createProgram(SOURCE, "kernels.cu", [], [])
    try:
        nvrtc.compileProgram(program, [f"-arch=sm_{request.param}", "-std=c++17"])
    finally:
        log = nvrtc.getProgramLog(program)
    assert log == ""  # no warning either
    # CuPy takes the size of the image for that of a text, and leaves out its last byte, a zero.
    file = tmp_path_factory.mktemp("sass") / "kernels.cubin"
    file.write_bytes(nvrtc.getCUBIN(program) + b"\0")
    done = subprocess.run([nvdisasm(), "-c", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return isa.sass_functions(done.stdout)


@pytest.fixture(scope="module", params=["gfx90a", "gfx942"])
def gcn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every kernel's assembly for one AMD architecture."""
    clang = shutil.which("clang-19")
    if clang is None:
        pytest.skip("no clang-19, which compiles for AMD GPUs without ROCm: apt-get install clang-19 (Debian)")
    folder = tmp_path_factory.mktemp("gcn")
    (folder / "kernels.hip").write_text(SOURCE)
    command = [clang, "-x", "hip", "--cuda-device-only", "-nogpulib", "-nogpuinc", "-std=c++17", "-O3", "-Wall"]
    command += ["-Werror", f"--offload-arch={request.param}", "-S", "-o", str(folder / "kernels.s")]
    done = subprocess.run([*command, str(folder / "kernels.hip")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return isa.gcn_functions((folder / "kernels.s").read_text())


def test_nvidia_code_has_the_accesses_that_are_declared_and_no_others(sass: dict[str, str]) -> None:
    found = {name: isa.in_sass(sass[name]) for name in PROBLEMS}
    expected = {name: isa.declared(problem) for name, problem in PROBLEMS.items()}
    # Of a word whose other half is overwritten ptxas loads a half: as many sectors.
    expected["sgd_momentum_mixed_bfloat16_layout_whole"].update({("load", 4): -1, ("load", 2): 1})
    assert found == expected


def test_nvidia_code_issues_all_loads_of_a_step_before_it_needs_one(sass: dict[str, str]) -> None:
    early = {name for name, problem in PROBLEMS.items() if isa.waits_in_sass(sass[name], problem)}
    # Of 24 loads ptxas puts off the last. A place in a list is a load itself, which others may overtake.
    assert early <= {"sgd_momentum_mixed_bfloat16_elements_8_vectors", "weight_update_adamw_float16_gather_duplicate"}


def test_nvidia_code_keeps_everything_in_registers(sass: dict[str, str]) -> None:
    assert [name for name in PROBLEMS if isa.NVIDIA_LOCAL.search(sass[name])] == []


def test_nvidia_code_goes_past_the_caches_where_it_is_told_to(sass: dict[str, str]) -> None:
    for name, problem in PROBLEMS.items():
        streaming = {".EF" in suffixes for _, suffixes in isa.NVIDIA.findall(sass[name])}
        assert streaming == {problem.access.hint == "streaming"}, name


def test_amd_code_has_the_accesses_that_are_declared_and_no_others(gcn: dict[str, str]) -> None:
    found = {name: isa.in_gcn(gcn[name]) for name in PROBLEMS}
    assert found == {name: isa.declared(problem) for name, problem in PROBLEMS.items()}


def test_amd_code_issues_all_loads_of_a_step_before_it_waits(gcn: dict[str, str]) -> None:
    assert [name for name, problem in PROBLEMS.items() if isa.waits_in_gcn(gcn[name], problem)] == []


def test_amd_threads_wait_for_their_own_writes_before_they_meet(gcn: dict[str, str]) -> None:
    """The barrier orders no memory: what was written to shared memory has to be there before it."""
    lines = [line.strip() for line in gcn["read_float16"].splitlines()]
    meetings = [k for k, line in enumerate(lines) if line == "s_barrier"]
    assert len(meetings) == 8  # 256 threads
    for k in meetings:
        last = max(j for j in range(k) if lines[j].startswith("ds_write"))
        assert any("lgkmcnt(0)" in line for line in lines[last:k])


def test_no_double_is_added_for_each_element(sass: dict[str, str], gcn: dict[str, str]) -> None:
    """Many GPUs have one FP64 unit for 64 of FP32: sums would be bound by it and not by memory."""
    for code, add in ((sass, "DADD"), (gcn, "v_add_f64")):
        assert add not in code["read_float16"] and add not in code["read_float32"]
        assert code["read_float16_blocks"].count(add) == 2 + 8  # a step's, one element's; halves of a block


def test_amd_code_keeps_everything_in_registers(gcn: dict[str, str]) -> None:
    assert [name for name in PROBLEMS if isa.AMD_LOCAL.search(gcn[name])] == []


def test_amd_code_goes_past_the_caches_where_it_is_told_to(gcn: dict[str, str]) -> None:
    for name, problem in PROBLEMS.items():
        # gfx90a has slc for it, gfx942 nt.
        streaming = {" slc" in rest or " nt" in rest for _, _, rest in isa.AMD.findall(gcn[name])}
        assert streaming == {problem.access.hint == "streaming"}, name


def test_a_load_that_is_waited_for_too_early_is_told() -> None:
    problem = PROBLEMS["weight_update_adamw_float16_stride_8"]
    loads = [f"LDG.E R{k}, desc[UR4][R{2 * k}.64]" for k in (20, 21, 22, 23)]
    assert isa.waits_in_sass("\n".join(loads), problem) == []
    early = ["IMAD R2, R20, R3, RZ", "LDG.E.64 R20, desc[UR4][R20.64]"]
    assert isa.waits_in_sass("\n".join([loads[0], early[0], *loads[1:]]), problem) == [early[0]]
    assert isa.waits_in_sass("\n".join([early[1], "IADD3 R1, R21, R3, RZ", *loads[1:]]), problem) == [
        "IADD3 R1, R21, R3, RZ"
    ]
    loads, wait = ["global_load_dword v1, v[2:3], off"] * 4, "s_waitcnt vmcnt(0) lgkmcnt(0)"
    assert isa.waits_in_gcn("\n".join([*loads, wait]), problem) == []
    assert isa.waits_in_gcn("\n".join([loads[0], wait, *loads[1:]]), problem) == [wait]


def test_a_wide_access_is_told_from_a_narrow_one() -> None:
    text = "LDG.E.128.CONSTANT R4\n STG.E.EF.64 [R2]\n LDG.E R1\n LDG.E.U16.CONSTANT R1\n LDG.E.EF R1"
    assert isa.in_sass(text) == {("load", 16): 1, ("store", 8): 1, ("load", 4): 2, ("load", 2): 1}
    text = "global_load_dwordx4 v[0:3], v[4:5], off nt\n global_store_short v0, v1, off\n global_load_dword v1"
    assert isa.in_gcn(text) == {("load", 16): 1, ("store", 2): 1, ("load", 4): 1}
