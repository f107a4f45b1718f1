"""What is said of libraries, from what the probes of a machine's interpreter found."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from commbench.diagnose import libraries
from commbench.diagnose.system import System
from tests.diagnose.machines import Machine

OPEN_MPI = "echo 'mpirun (Open MPI) 5.0.11'"
HYDRA = "printf 'HYDRA build details:\\n    Version:                                 5.0.2\\n'"
INTEL = "echo 'Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005 (id: 74c4a23)'"
MPICH = '{"mpi4py": "4.1.2"}\n{"vendor": "MPICH", "version": "5.0.2", "file": "/opt/mpich/lib/libmpi.so.12"}'
NO_DRIVER = "unhandled cuda error: Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'"
WHEEL = "/venv/nvidia/nccl/lib/libnccl.so.2"
WHEELS = json.dumps({"files": [WHEEL], "wheels": {"nvidia-nccl-cu12": "2.32.3"}})
CUPY = '{"version": "14.2.0", "file": "/venv/cupy", "hip": false}\n{"nccl": null}\n{"devices": 8}'
BINDING = '{"version": "0.6.0", "file": "/venv/nccl/core/__init__.py"}'


def made(path: str, code: int = 23203) -> str:
    return f'{{"file": "{path}", "code": {code}}}\n{{"communicator": true}}'


@pytest.mark.parametrize("launcher", [HYDRA, INTEL])
def test_an_mpi_and_its_own_mpirun_fit(machine: Machine, launcher: str) -> None:
    file = machine.command("mpirun", launcher)
    found = libraries.mpi(machine.system(python=machine.children({"mpi": MPICH})))
    assert (found.ok, found.findings) == (True, ())
    assert found.text.startswith("MPICH 5.0.2, /opt/mpich/lib/libmpi.so.12; mpi4py 4.1.2; mpirun of ")
    assert found.text.endswith(f"({file})")


def test_an_mpirun_of_another_mpi_is_a_finding(machine: Machine) -> None:
    machine.command("mpirun", OPEN_MPI)
    found = libraries.mpi(machine.system(python=machine.children({"mpi": MPICH})))
    assert found.ok is False
    (finding,) = found.findings
    assert (finding.level, finding.value) == ("broken", "mpi4py loads MPICH 5.0.2, and mpirun is Open MPI's")
    assert found.facts["mpirun"][0]["version"] == "5.0.11"


def test_the_launcher_of_this_process_counts_before_an_mpirun_in_path(machine: Machine) -> None:
    machine.command("mpirun", HYDRA)
    started = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    found = libraries.mpi(machine.system(python=machine.children({"mpi": MPICH}), more=started))
    assert [finding.level for finding in found.findings] == ["broken"]


def test_an_mpirun_that_says_nothing_known_is_named_unknown(machine: Machine) -> None:
    machine.command("mpirun", "echo hello")
    found = libraries.mpi(machine.system(python=machine.children({"mpi": MPICH})))
    assert (found.ok, found.facts["mpirun"][0]["said"]) == (True, "hello")
    assert "mpirun of an unknown MPI" in found.text


def test_an_mpirun_that_fails_is_a_finding(machine: Machine) -> None:
    machine.command("mpirun", "echo 'mpirun: libprrte.so.3: not found' >&2; exit 127")
    found = libraries.mpi(machine.system(python=machine.children({"mpi": MPICH})))
    said = "mpirun failed with exit code 127: mpirun: libprrte.so.3: not found"
    assert (found.ok, [finding.value for finding in found.findings]) == (False, [said])


def test_without_mpirun_the_library_is_still_there(machine: Machine) -> None:
    found = libraries.mpi(machine.system(python=machine.children({"mpi": MPICH})))
    assert (found.ok, found.text.endswith("; no mpirun in PATH")) == (True, True)


def test_mpi4py_without_a_library_is_a_finding_and_no_mpi4py_is_none(machine: Machine) -> None:
    facts = '{"mpi4py": "4.1.2"}\n{"trouble": "RuntimeError: cannot load MPI library"}'
    found = libraries.mpi(machine.system(python=machine.children({"mpi": facts})))
    assert found.text == "mpi4py 4.1.2 loads no MPI library: RuntimeError: cannot load MPI library"
    assert [finding.level for finding in found.findings] == ["broken"]
    found = libraries.mpi(machine.system(python=machine.children({})))
    assert (found.ok, found.remedy, found.findings) == (False, "pip install mpi4py", ())


def test_nccl_that_makes_a_communicator_with_a_binding_and_a_device_can_be_used(machine: Machine) -> None:
    facts = {"nccl_wheels": WHEELS, f"communicator {WHEEL} 1": made(WHEEL), "cupy": CUPY}
    found = libraries.nccl(machine.system(python=machine.children({**facts, "nccl4py": BINDING})))
    assert (found.ok, found.findings) == (True, ())
    assert found.text == f"NCCL 2.32.3, {WHEEL} (wheel nvidia-nccl-cu12 2.32.3); binding nccl4py 0.6.0"
    without = libraries.nccl(machine.system(python=machine.children(facts)))
    assert (without.ok, "no binding imports" in without.text) == (False, True)


@pytest.mark.parametrize(
    ("cupy", "why"),
    [
        (None, "not installed"),
        (CUPY.replace("false", "true"), "this CuPy is built for AMD"),
        (CUPY.replace("8", "0"), "it sees none"),
        (CUPY.replace('"devices": 8', '"trouble": "CUDARuntimeError: no driver"'), "CUDARuntimeError: no driver"),
        ('{"trouble": "ImportError: libcudart.so.12: no such file"}', "ImportError: libcudart.so.12: no such file"),
    ],
)
def test_nccl_without_a_device_by_cupy_cannot_be_used(machine: Machine, cupy: str | None, why: str) -> None:
    facts = {"nccl_wheels": WHEELS, f"communicator {WHEEL} 1": made(WHEEL), "nccl4py": BINDING}
    facts |= {"cupy": cupy} if cupy else {}
    found = libraries.nccl(machine.system(python=machine.children(facts)))
    assert found.ok is False
    assert found.text.endswith(f"; binding nccl4py 0.6.0; no device by CuPy: {why}")
    assert "pip install 'commbench[cuda12]'" in found.remedy


@pytest.mark.parametrize(("cupy", "ok"), [("14.0.0", True), ("13.6.0", False)])
def test_cupys_own_binding_does_from_the_backends_version_on(machine: Machine, cupy: str, ok: bool) -> None:
    said = CUPY.replace("14.2.0", cupy).replace("null", "23203")
    facts = {"nccl_wheels": WHEELS, f"communicator {WHEEL} 1": made(WHEEL), "cupy": said}
    found = libraries.nccl(machine.system(python=machine.children(facts)))
    assert found.ok is ok
    assert ("trouble" in found.facts["bindings"]["cupy.cuda.nccl"]) is not ok


def test_an_nccl4py_that_is_too_old_is_no_binding_and_a_finding(machine: Machine) -> None:
    old = BINDING.replace("0.6.0", "0.1.1") + '\n{"trouble": "it is older than 0.6.0"}'
    facts = {"nccl_wheels": WHEELS, f"communicator {WHEEL} 1": made(WHEEL), "nccl4py": old, "cupy": CUPY}
    found = libraries.nccl(machine.system(python=machine.children(facts)))
    assert (found.ok, "no binding imports" in found.text) == (False, True)
    assert [(one.rule, one.value) for one in found.findings] == [("nccl4py can be used", "it is older than 0.6.0")]


@pytest.mark.parametrize(("has", "trouble"), [("class CollConfig: ...", None), ("", "it is older than 0.6.0")])
def test_nccl4py_is_asked_for_what_the_backend_needs_of_it(tmp_path: Path, has: str, trouble: str | None) -> None:
    for file, text in {"__init__": "", "core": "", "bindings/__init__": "", "bindings/nccl": has}.items():
        there = tmp_path / "nccl" / f"{file}.py"
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(text)
    facts = System(environment={**os.environ, "PYTHONPATH": str(tmp_path)}).child("nccl4py")
    assert facts["file"].startswith(str(tmp_path)) and facts.get("trouble") == trouble


def test_a_library_that_the_backend_does_not_take_is_too_old(machine: Machine) -> None:
    facts = {"nccl_wheels": WHEELS, f"communicator {WHEEL} 1": made(WHEEL, 21703), "nccl4py": BINDING, "cupy": CUPY}
    found = libraries.nccl(machine.system(python=machine.children(facts)))
    assert (found.ok, "older than 2.18.0" in found.text) == (False, True)


def test_the_librarys_own_reason_is_quoted(machine: Machine) -> None:
    facts = {
        "nccl_wheels": WHEELS,
        f"communicator {WHEEL} 1": json.dumps({"file": WHEEL, "code": 23203, "trouble": NO_DRIVER}),
        "nccl4py": BINDING,
    }
    found = libraries.nccl(machine.system(python=machine.children(facts)))
    assert found.ok is False
    assert f"no communicator: {NO_DRIVER}; binding nccl4py 0.6.0" in found.text
    assert [(one.level, one.value) for one in found.findings] == [("broken", NO_DRIVER)]
    assert "--gpus all" in found.remedy
    machine.file("/proc/driver/nvidia/gpus/0000:1b:00.0/information", "Model: NVIDIA H100\n")
    assert "nvidia-smi and the version of its driver" in libraries.nccl(
        machine.system(python=machine.children(facts))
    ).remedy  # fmt: skip


def test_a_binding_that_is_there_and_does_not_import_is_a_finding(machine: Machine) -> None:
    said = "ModuleNotFoundError: No module named 'cuda'"
    facts = {"nccl_wheels": WHEELS, f"communicator {WHEEL} 1": made(WHEEL), "nccl4py": f'{{"trouble": "{said}"}}'}
    found = libraries.nccl(machine.system(python=machine.children(facts)))
    assert (found.ok, [one.value for one in found.findings]) == (False, [said])


def test_two_versions_of_one_library_are_a_finding(machine: Machine) -> None:
    facts = {
        "nccl_wheels": WHEELS,
        f"communicator {WHEEL} 1": made(WHEEL),
        "communicator libnccl.so.2 0": '{"file": "/usr/lib/libnccl.so.2", "code": 21805}',
        "nccl4py": BINDING,
        "cupy": CUPY,
    }
    found = libraries.nccl(machine.system(python=machine.children(facts)))
    (finding,) = found.findings
    assert (found.ok, finding.level) == (True, "forced")
    assert finding.value == f"2.32.3 {WHEEL}, 2.18.5 /usr/lib/libnccl.so.2"


def test_a_named_file_comes_first_and_one_that_is_not_there_is_a_finding(machine: Machine) -> None:
    facts = {"nccl_wheels": WHEELS, f"communicator {WHEEL} 1": made(WHEEL), "nccl4py": BINDING}
    python = machine.children(facts)
    found = libraries.nccl(System(str(machine.root), machine.system().environment, python, "/opt/libnccl.so"))
    assert found.text.startswith("NCCL 2.32.3")
    assert [one.value.partition(":")[0] for one in found.findings] == ["/opt/libnccl.so"]
    asked = libraries.rccl(System(str(machine.root), machine.system().environment, python, "/opt/librccl.so.1"))
    assert asked.facts["libraries"][0]["file"] == "/opt/librccl.so.1"


def test_a_library_that_crashes_is_a_finding(machine: Machine) -> None:
    script = f"[ $4 = nccl_wheels ] && echo '{WHEELS}' || kill -SEGV $$"
    found = libraries.nccl(machine.system(python=str(machine.command("python", script))))
    assert found.ok is False
    assert f"{WHEEL}: it crashed (SIGSEGV)" in [one.value for one in found.findings]


def test_cupy_serves_the_vendor_that_it_was_built_for(machine: Machine) -> None:
    cupy = '{"version": "14.2.0", "file": "/venv/cupy", "hip": true}\n{"nccl": 22707}\n{"devices": 8}'
    rccl = "communicator librccl.so.1 1"
    facts = {"cupy": cupy, rccl: made("/opt/rocm/lib/librccl.so.1", 22707)}
    system = machine.system(python=machine.children(facts))
    assert libraries.rccl(system).text == (
        "RCCL 2.27.7, /opt/rocm/lib/librccl.so.1; binding cupy.cuda.nccl 14.2.0 (library 2.27.7)"
    )
    assert libraries.nccl(system).facts["bindings"]["cupy.cuda.nccl"] == {"trouble": "this CuPy is built for AMD"}
    assert libraries.cupy(system).text == "CuPy 14.2.0, /venv/cupy; 8 devices"


def test_cupy_without_a_device_quotes_the_reason(machine: Machine) -> None:
    said = "CUDARuntimeError: cudaErrorInsufficientDriver: CUDA driver version is insufficient"
    facts = f'{{"version": "14.2.0", "file": "/venv/cupy", "hip": false}}\n{{"nccl": 23203}}\n{{"trouble": "{said}"}}'
    found = libraries.cupy(machine.system(python=machine.children({"cupy": facts})))
    assert (found.ok, found.text) == (False, f"CuPy 14.2.0, /venv/cupy; no device: {said}")


def test_gloo_is_what_pytorch_brings(machine: Machine) -> None:
    said = '{"version": "2.13.0+cpu", "file": "/venv/torch", "cuda": null, "hip": null}\n{"gloo": true, "nccl": false}'
    system = machine.system(python=machine.children({"torch": said}))
    assert (libraries.gloo(system).ok, libraries.gloo(system).text) == (True, "in PyTorch 2.13.0+cpu")
    assert libraries.torch(system).text == "PyTorch 2.13.0+cpu (CPU only), /venv/torch"
    system = machine.system(python=machine.children({"torch": said.replace("true", "false")}))
    assert libraries.gloo(system).ok is False


def test_a_package_that_is_missing_says_what_to_install_and_a_broken_one_is_a_finding(machine: Machine) -> None:
    system = machine.system(python=machine.children({"package numba": '{"trouble": "ImportError: no libx"}'}))
    missing, broken = libraries.CHECKS["llvmlite"](system), libraries.CHECKS["numba"](system)
    assert (missing.text, missing.findings) == ("not installed: pip install llvmlite", ())
    assert [(one.rule, one.value) for one in broken.findings] == [("numba can be imported", "ImportError: no libx")]
    # What is an extra of commbench's is installed as that, as its doors say themselves.
    nothing = machine.system(python=machine.children({}))
    for name, extra in {"numba": "kernels", "torch": "torch", "pandas": "report"}.items():
        assert libraries.CHECKS[name](nothing).remedy == f"pip install 'commbench[{extra}]'"


@pytest.mark.parametrize(
    ("code", "text"), [(23203, "2.32.3"), (21805, "2.18.5"), (20905, "2.9.5"), (2804, "2.8.4"), (2708, "2.7.8")]
)
def test_the_number_of_a_version_is_read_in_both_ways_of_writing_it(code: int, text: str) -> None:
    assert libraries.version(code) == text


FAKE = """
#include <stdio.h>
#include <string.h>
typedef struct { char internal[128]; } ncclUniqueId;
int ncclGetVersion(int *v) { puts("{\\"code\\": 1}"); *v = 22707; return 0; }
int ncclGetUniqueId(ncclUniqueId *id) { memset(id, 7, sizeof *id); return 0; }
const char *ncclGetErrorString(int code) { return code == 5 ? "invalid usage" : "?"; }
const char *ncclGetLastError(void *comm) { return REASON; }
int ncclCommInitRank(void **comm, int n, ncclUniqueId id, int rank) {
  *comm = comm;
  if (n != 1 || rank != 0 || id.internal[127] != 7) return 4;
#ifdef CRASH
  *(volatile int *)0 = 1;
#endif
  return CODE;
}
int ncclCommDestroy(void *comm) { return comm ? 0 : 4; }
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler (cc) to make a library with")
@pytest.mark.parametrize(
    ("flags", "ok", "said"),
    [
        ("-DCODE=0", True, ""),
        ("-DCODE=5", False, "invalid usage: made for a test"),
        ("-DCODE=0 -DCRASH", False, "ncclCommInitRank crashed (SIGSEGV)"),
    ],
)
def test_a_library_is_loaded_and_asked_in_c(tmp_path: Path, flags: str, ok: bool, said: str) -> None:
    source, library = tmp_path / "fake.c", tmp_path / "libnccl.so.2"
    source.write_text(FAKE)
    command = [
        *("cc", "-O0", "-shared", "-fPIC", '-DREASON="made for a test"'),
        *flags.split(),
        "-o",
        str(library),
        str(source),
    ]
    subprocess.run(command, check=True)
    facts = System().child("communicator", str(library), "1")
    assert (facts["file"], facts["code"]) == (str(library), 22707)
    assert facts.get("communicator", False) is ok
    assert facts.get("trouble", "").startswith(said)
    assert ("trouble" in facts) is not ok


@pytest.mark.skipif(not find_spec("nvidia.nccl") if find_spec("nvidia") else True, reason="no NCCL wheel here")
@pytest.mark.skipif(os.path.exists("/proc/driver/nvidia"), reason="there is an NVIDIA driver here")
def test_the_real_library_without_a_gpu_is_named_with_its_reason() -> None:
    found = libraries.nccl(System())
    assert found.ok is False
    assert "libnccl.so.2 (wheel nvidia-nccl-cu" in found.text
    assert "CUDA driver version is insufficient for CUDA runtime version" in found.text


def test_this_interpreters_own_packages_are_found() -> None:
    found = libraries.CHECKS["numpy"](System())
    import numpy

    assert (found.ok, found.text) == (True, f"{numpy.__version__}, {numpy.__file__}")
    assert sys.executable == System().python
