"""What is asked of libraries, each in a process of its own: a probe yields facts, and what it yielded survives a crash.

"trouble" is the library's own reason, and "doing" what is going on, for the case that it never ends.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator
from typing import Any

Facts = dict[str, Any]
_MOST_LINES = 3  # of an error: mpi4py and NumPy go on for pages


def main(probe: str, *arguments: str) -> None:
    """Print each fact as it comes; what libraries print goes to standard error."""
    out = os.dup(1)
    os.dup2(2, 1)

    def say(facts: Facts) -> None:
        os.write(out, (json.dumps(facts) + "\n").encode())

    try:
        for facts in PROBES[probe](*arguments):
            say(facts)
    except Exception as error:
        text = "; ".join(str(error).strip().splitlines()[:_MOST_LINES])
        say({"trouble": f"{type(error).__name__}: {text}" if text else type(error).__name__})


def mpi() -> Iterator[Facts]:
    """mpi4py and the library that it loads; MPI is not initialised."""
    import mpi4py

    yield {"mpi4py": mpi4py.__version__, "doing": "loading the MPI library"}
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    from commbench.backends._mpi_t import library_file

    vendor, version = MPI.get_vendor()
    yield {"vendor": vendor, "version": ".".join(map(str, version)), "file": library_file()}


def nccl_wheels() -> Iterator[Facts]:
    """The NCCL files that wheels brought, and the wheels' versions."""
    from glob import glob
    from importlib.util import find_spec

    spec = find_spec("nvidia")
    places = list(spec.submodule_search_locations or ()) if spec else []
    files = [file for place in places for file in sorted(glob(f"{place}/nccl/lib/libnccl.so*"))]
    wheels = {name: version for name in ("nvidia-nccl-cu12", "nvidia-nccl-cu13") if (version := _release(name))}
    yield {"files": files, "wheels": wheels}


def communicator(path: str, make: str) -> Iterator[Facts]:
    """Load an NCCL or RCCL file, ask for its version and, if `make` is "1", make a communicator of one rank.

    Signatures: nccl.h, equal in both libraries.
    """
    yield {"doing": "loading the library"}
    library = ctypes.CDLL(path)
    version = ctypes.c_int()
    code = library.ncclGetVersion(ctypes.byref(version))
    yield {"file": _mapped(os.path.basename(path).partition(".so")[0]) or path, "code": version.value}
    if make != "1":
        return

    class UniqueId(ctypes.Structure):
        _fields_ = (("internal", ctypes.c_char * 128),)

    library.ncclGetErrorString.restype = ctypes.c_char_p
    library.ncclCommInitRank.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int)
    library.ncclCommDestroy.argtypes = (ctypes.c_void_p,)
    unique, comm = UniqueId(), ctypes.c_void_p()
    yield {"doing": "ncclGetUniqueId"}
    code = library.ncclGetUniqueId(ctypes.byref(unique))
    if code == 0:
        yield {"doing": "ncclCommInitRank"}
        code = library.ncclCommInitRank(ctypes.byref(comm), 1, unique, 0)
    if code == 0:
        yield {"communicator": True, "doing": "ncclCommDestroy"}
        library.ncclCommDestroy(comm)
        return
    reason = library.ncclGetErrorString(code).decode(errors="replace")
    if hasattr(library, "ncclGetLastError"):  # since 2.13
        library.ncclGetLastError.restype = ctypes.c_char_p
        library.ncclGetLastError.argtypes = (ctypes.c_void_p,)
        detail = (library.ncclGetLastError(None) or b"").decode(errors="replace").strip()
        reason = f"{reason}: {detail}" if detail else reason
    yield {"communicator": False, "trouble": reason}


def nccl_plugins() -> Iterator[Facts]:
    """The plugins that NCCL and RCCL load unasked, as the loader finds them under these names."""
    for name in ("libnccl-tuner.so", "libnccl-env.so", "librccl-net.so", "libnccl-net.so", "libnccl-profiler.so"):
        yield {"doing": f"loading {name}"}
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        yield {name: _mapped(name.partition(".so")[0]) or name}


def nccl4py() -> Iterator[Facts]:
    """NVIDIA's own binding, which is of use from a certain version on."""
    import nccl.core
    from nccl.bindings import nccl as bindings

    from commbench.backends._nccl_bindings import NCCL4PY_HAS, NCCL4PY_OLDEST

    yield {"version": _release("nccl4py"), "file": nccl.core.__file__}
    if not hasattr(bindings, NCCL4PY_HAS):
        yield {"trouble": f"it is older than {NCCL4PY_OLDEST}"}


def cupy() -> Iterator[Facts]:
    """CuPy, its binding of NCCL or RCCL, and the devices it sees."""
    import cupy

    yield {"version": cupy.__version__, "file": cupy.__file__, "hip": bool(cupy.cuda.runtime.is_hip)}
    try:
        from cupy.cuda import nccl

        yield {"nccl": nccl.get_version() if nccl.available else None}
    except Exception as error:
        yield {"nccl": None, "nccl_trouble": f"{type(error).__name__}: {error}"}
    yield {"devices": cupy.cuda.runtime.getDeviceCount()}


def torch() -> Iterator[Facts]:
    """PyTorch and what its distributed package was built with."""
    import torch
    import torch.distributed as distributed

    yield {"version": torch.__version__, "file": torch.__file__, "cuda": torch.version.cuda, "hip": torch.version.hip}
    there = distributed.is_available()
    yield {"gloo": there and distributed.is_gloo_available(), "nccl": there and distributed.is_nccl_available()}
    yield {"devices": torch.cuda.device_count()}


def package(name: str) -> Iterator[Facts]:
    """A package that is imported."""
    from importlib import import_module

    module = import_module(name)
    if name == "llvmlite":
        import_module("llvmlite.binding")  # loads its library
    yield {"version": getattr(module, "__version__", ""), "file": getattr(module, "__file__", "")}


def found(name: str) -> Iterator[Facts]:
    """A package that is looked for only, as importing it takes seconds."""
    from importlib.util import find_spec

    spec = find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}")
    yield {"version": _release(name), "file": spec.origin}


def _release(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _mapped(stem: str) -> str:
    """Return the file of a loaded library, empty where it cannot be told."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if f"/{stem}.so" in line}
    except OSError:
        return ""
    return min(paths, default="")


PROBES = {
    probe.__name__: probe
    for probe in (mpi, nccl_wheels, communicator, nccl_plugins, nccl4py, cupy, torch, package, found)
}
