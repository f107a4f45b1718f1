"""Which library is loaded, and what is said where none can be; each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.launch import ROOT
from tests.nccl.build import compile_c

_LOAD = """
import json, sys
from commbench.backends._nccl_bindings import Failure, load
from commbench.errors import UsageError
try:
    lib = load(sys.argv[1] if sys.argv[1:] else None)
    found = {name: getattr(lib, name) for name in
             ("name", "version", "file", "vendor", "bindings", "has_call_config")}
    found["id"] = len(lib.unique_id())
    try: lib.init_rank(1, lib.unique_id(), 0)
    except Failure as failure: found["failure"] = [failure.code, str(failure)]
except UsageError as error:
    found = {"error": str(error)}
print(json.dumps(found))
"""
_BLOCKED = "import sys; sys.modules['nccl'] = sys.modules['cupy'] = None\n"


def loaded(*path: str | Path, before: str = "") -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", before + _LOAD, *map(str, path)], capture_output=True, text=True, cwd=ROOT, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def library(folder: Path, text: str, name: str = "libnccl.so.2") -> Path:
    (folder / "library.c").write_text(text)
    return compile_c(folder / "library.c", folder / name, "-shared", "-fPIC", f"-Wl,-soname,{name}")


@pytest.mark.skipif(not find_spec("nccl") or not find_spec("nvidia.nccl"), reason="no nccl4py with nvidia-nccl-cu12")
def test_the_real_library_loads_and_says_itself_what_it_lacks_here() -> None:
    found = loaded()
    assert found["version"] >= 23100 and found["has_call_config"]
    assert (found["vendor"], found["id"]) == ("NVIDIA", 128)
    assert found["name"].startswith("NCCL 2.") and found["bindings"].startswith("nccl4py ")
    assert Path(found["file"]).name == "libnccl.so.2" and Path(found["file"]).exists()
    if not Path("/dev/nvidiactl").exists():
        code, text = found["failure"]
        assert code == 1
        assert (
            "CUDA driver version is insufficient for CUDA runtime version" in text or "no CUDA-capable device" in text
        )


def test_a_named_library_is_the_one_that_is_called(fake: Path, old_fake: Path) -> None:
    for path, version, config in ((fake, 23203, True), (old_fake, 22707, False)):
        found = loaded(path)
        assert (found["file"], found["has_call_config"]) == (str(path), config)
        assert found["version"] == version or (config and found["version"] > 23100)
        assert found["failure"][0] == 2 and "needs MPI to be initialised" in found["failure"][1]


def test_a_file_that_is_no_library_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    text = tmp_path / "libnccl.so.2"
    text.write_text("not a library")
    for path in (text, tmp_path / "absent.so"):
        error = loaded(path)["error"]
        assert error.startswith(f"cannot load {path}") and "name the file of an NCCL or RCCL" in error


@pytest.mark.usefixtures("fake")
def test_a_library_that_is_no_nccl_is_an_error(tmp_path: Path) -> None:
    path = library(tmp_path, "int nothing(void) { return 0; }")
    assert loaded(path)["error"].startswith(f"{path} is no NCCL or RCCL")


@pytest.mark.parametrize("blocked", ["", _BLOCKED])
@pytest.mark.usefixtures("fake")
def test_a_library_that_is_too_old_is_named_with_its_version(tmp_path: Path, blocked: str) -> None:
    path = library(
        tmp_path,
        "int ncclGetVersion(int* v) { *v = 21706; return 0; }\n"
        'const char* ncclGetErrorString(int r) { return ""; }\nconst char* ncclGetLastError(void* c) { return ""; }',
    )
    error = loaded(path, before=blocked)["error"]
    assert error.startswith(f"commbench needs NCCL 2.18.0 or later, and {path} is 2.17.6: ")


def test_without_bindings_what_is_missing_is_named(fake: Path) -> None:
    for path in ((), (fake,)):
        error = loaded(*path, before=_BLOCKED)["error"]
        assert "nccl4py" in error and "cupy" in error and "install nccl4py" in error


@pytest.mark.usefixtures("fake")
def test_an_rccl_is_not_called_through_nccl4py(tmp_path: Path) -> None:
    path = library(
        tmp_path,
        "int ncclGetVersion(int* v) { *v = 22707; return 0; }\n"
        'const char* ncclGetErrorString(int r) { return ""; }\nconst char* ncclGetLastError(void* c) { return ""; }',
        "librccl.so.1",
    )
    error = loaded(path, before="import sys; sys.modules['cupy'] = None\n")["error"]
    assert error.startswith(f"no bindings for {path} (nccl4py: it calls ") and "cupy: " in error
