"""Which communication and Python libraries can be used here, and why not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from commbench.backends._nccl_bindings import CUPY_OLDEST, OLDEST
from commbench.backends.world import Launch, launch, mismatch
from commbench.diagnose.system import BROKEN, FORCED, Check, Finding, System

_SLOW_IMPORT = 60.0  # seconds: PyTorch from a cold network file system


def mpi(system: System) -> Check:
    """The MPI that mpi4py loads, the mpirun that comes first in PATH, and whether they fit."""
    loaded = system.child("mpi")
    launchers = [{"file": file, **_launcher(system, file)} for file in system.commands("mpirun")]
    facts = {**_public(loaded), "mpirun": launchers}
    if "vendor" not in loaded:
        trouble = loaded.get("trouble", "it gave no answer")
        if "mpi4py" not in loaded and not loaded.get("crash"):
            return Check(f"mpi4py cannot be imported ({trouble})", False, "pip install mpi4py", facts)
        remedy = "load your cluster's MPI module, or pip install 'commbench[mpich]'"
        found = (_broken("mpi4py loads an MPI library", trouble, remedy),)
        return Check(f"mpi4py {loaded.get('mpi4py', '')} loads no MPI library: {trouble}", False, remedy, facts, found)
    ours = f"{loaded['vendor']} {loaded['version']}"
    text = f"{ours}, {loaded['file'] or 'path unknown'}; mpi4py {loaded['mpi4py']}"
    launched = launch(system.environment)
    started = mismatch(launched, loaded["vendor"], loaded["file"])
    if not started and not launched.launcher and not launchers:
        remedy = f"put the mpirun of {ours} into PATH, or launch by srun"
        return Check(f"{text}; no mpirun in PATH", True, remedy, facts)
    first = launchers[0] if launchers else {"vendor": "", "version": "", "file": "none in PATH"}
    text += f"; mpirun of {first['vendor'] or 'an unknown MPI'} {first['version']}".rstrip() + f" ({first['file']})"
    if "trouble" in first:
        remedy = "mend PATH: another mpirun may stand behind it"
        found = (_broken("the first mpirun in PATH answers", first["trouble"], remedy),)
        return Check(f"{text}: {first['trouble']}", False, remedy, facts, found)
    if started or mismatch(Launch(first["vendor"], 0, 2), loaded["vendor"], loaded["file"]):
        remedy = f"put the mpirun of {loaded['vendor']} first in PATH, or point MPI4PY_LIBMPI at the other's libmpi"
        value = started or f"mpi4py loads {ours}, and mpirun is {first['vendor']}'s"
        found = (_broken("mpirun and the library that mpi4py loads are of one MPI", value, remedy),)
        return Check(f"{text}: they do not fit", False, remedy, facts, found)
    return Check(text, True, "", facts)


def _launcher(system: System, file: str) -> dict[str, str]:
    """Return to which MPI an mpirun belongs: vendor, named as mpi4py does, and version."""
    answer = system.run(file, "--version")
    for vendor, pattern in (
        ("Open MPI", r"Open MPI\)? +v?([\d.]+\w*)"),
        ("Intel MPI", r"Intel\(R\) MPI Library.*?Version ([\d.]+)"),
        ("MPICH", r"HYDRA build details:\s+Version: +([\d.]+\w*)"),
    ):
        if match := re.search(pattern, answer.text, re.DOTALL):
            return {"vendor": vendor, "version": match[1]}
    if answer.trouble:
        return {"vendor": "", "version": "", "trouble": answer.trouble}
    return {"vendor": "", "version": "", "said": answer.text.strip().partition("\n")[0]}


def nccl(system: System) -> Check:
    """NVIDIA's library: which files there are, whether one makes a communicator, and what else the backend needs.

    That is a binding, and a device by CuPy.
    """
    wheels = system.child("nccl_wheels")
    files = [_named(system, "nccl"), *wheels.get("files", ()), "libnccl.so.2"]
    bindings = {"nccl4py": system.child("nccl4py"), "cupy.cuda.nccl": _cupy_binding(system, hip=False)}
    brought = ", ".join(f"{name} {version}" for name, version in wheels.get("wheels", {}).items())
    gpus = bool(system.glob("/proc/driver/nvidia/gpus/*"))
    remedy = (
        "read the reason above: nvidia-smi and the version of its driver say more (NCCL_DEBUG=INFO, the most)"
        if gpus
        else "it takes an NVIDIA GPU and its driver: nvidia-smi must list the GPU (in a container: --gpus all, --nv)"
    )
    install = "pip install 'commbench[cuda12]' (or cuda13), or give --library PATH"
    device = _no_device(system, hip=False)
    return _collective_library("NCCL", system, files, bindings, device, brought, remedy, install)


def rccl(system: System) -> Check:
    """AMD's library, likewise."""
    installed = system.glob("/opt/rocm*/lib/librccl.so.1")
    files = [_named(system, "rccl"), "librccl.so.1", *(system.path(file) for file in installed)]
    gpus = bool(system.glob("/sys/module/amdgpu") and system.glob("/dev/kfd"))
    remedy = (
        "read the reason above: rocm-smi says more (NCCL_DEBUG=INFO, the most)"
        if gpus
        else "it takes an AMD GPU and the amdgpu driver: /dev/kfd must be there (in a container: --device /dev/kfd)"
    )
    install = "install ROCm's rccl (it is not on PyPI), load its module, or give --library PATH"
    bindings = {"cupy.cuda.nccl": _cupy_binding(system, hip=True)}
    device = _no_device(system, hip=True)
    return _collective_library("RCCL", system, files, bindings, device, "", remedy, install)


def _collective_library(
    title: str,
    system: System,
    files: Sequence[str],
    bindings: dict[str, dict[str, Any]],
    no_device: str,
    brought: str,
    remedy: str,
    install: str,
) -> Check:
    """Return what is said of NCCL or RCCL; the first of `files` that loads is the one that is used.

    `no_device`: why CuPy reaches none, empty where it does.
    """
    seen: dict[str, dict[str, Any]] = {}
    unloaded: list[dict[str, Any]] = []
    for file in dict.fromkeys(filter(None, files)):
        asked = system.child("communicator", file, "0" if seen else "1", patience=1.5 * system.patience)
        real = os.path.realpath(asked.get("file", file))
        if "code" in asked:
            seen.setdefault(real, {**_public(asked), "file": asked["file"], "version": version(asked["code"])})
        elif os.path.isabs(file) or asked.get("crash") or "No such file" not in asked.get("trouble", ""):
            unloaded.append({"file": file, **_public(asked)})
    usable = [f"{name} {facts.get('version', '')}".strip() for name, facts in bindings.items() if _works(facts)]
    facts = {
        "libraries": [*seen.values(), *unloaded],
        "bindings": {name: _public(said) for name, said in bindings.items()},
        "wheels": brought,
    }
    findings = [
        _broken(f"a {title} file can be loaded", f"{one['file']}: {one['trouble']}", install) for one in unloaded
    ]
    own = bindings.get("nccl4py")  # CuPy has a check of its own
    if own is not None and not _works(own) and not _missing("nccl", own):
        findings.append(_broken("nccl4py can be used", own.get("trouble", "it gave no answer"), _REINSTALL))
    if not seen:
        why = (
            f"{unloaded[0]['file']} cannot be loaded: {unloaded[0]['trouble']}"
            if unloaded
            else f"no library found: {install}"
        )
        return Check(f"{why}; binding {_list(usable)}", False, install, facts, tuple(findings))
    first = next(iter(seen.values()))
    text = f"{title} {first['version']}, {first['file']}{brought and f' (wheel {brought})'}"
    if len({one["version"] for one in seen.values()}) > 1:
        others = ", ".join(f"{one['version']} {one['file']}" for one in list(seen.values())[1:])
        text += f"; also {others}"
        findings.append(
            Finding(
                FORCED,
                f"one {title} is on this machine, so that it is clear which one runs",
                ", ".join(f"{one['version']} {one['file']}" for one in seen.values()),
                "remove one, or look in the manifest of a run at which one it used",
            )
        )
    if first["code"] < OLDEST:
        why = f"older than {version(OLDEST)}, the oldest that the backend takes"
        return Check(f"{text}; {why}; binding {_list(usable)}", False, install, facts, tuple(findings))
    if not first.get("communicator"):
        why = first.get("trouble", "no reason given")
        findings.append(_broken(f"{title} makes a communicator of one rank", why, remedy))
        return Check(f"{text}; no communicator: {why}; binding {_list(usable)}", False, remedy, facts, tuple(findings))
    if not usable:
        bind = install.partition(",")[0]
        return Check(f"{text}; a communicator can be made, but no binding imports", False, bind, facts, tuple(findings))
    text += f"; binding {_list(usable)}"
    if no_device:
        return Check(f"{text}; no device by CuPy: {no_device}", False, _CUPY, facts, tuple(findings))
    return Check(text, True, "", facts, tuple(findings))


_CUPY = "pip install 'commbench[cuda12]' (or cuda13, rocm)"
_REINSTALL = "install it anew, in versions that fit one another (docs: constraints.txt)"


def version(code: int) -> str:
    """Return the version that ncclGetVersion's number stands for: 23203 is 2.32.3, 2804 was 2.8.4."""
    major, rest = divmod(code, 10_000 if code >= 10_000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _named(system: System, kind: str) -> str:
    """Return the file that the user named, if it is of this kind."""
    is_rccl = "rccl" in os.path.basename(system.library)
    return system.library if is_rccl == (kind == "rccl") else ""


def _cupy_binding(system: System, hip: bool) -> dict[str, Any]:
    """Return CuPy's binding as facts of its own: it serves the vendor that CuPy was built for."""
    said = system.child("cupy")
    if "version" not in said:
        return said
    if said["hip"] != hip:
        return {"trouble": f"this CuPy is built for {'AMD' if said['hip'] else 'NVIDIA'}"}
    if int(said["version"].partition(".")[0]) < CUPY_OLDEST:
        return {"trouble": f"CuPy {said['version']} is older than {CUPY_OLDEST}"}
    if said.get("nccl") is None:
        return {"trouble": said.get("nccl_trouble", "CuPy found no library for it")}
    return {"version": f"{said['version']} (library {version(said['nccl'])})", "file": said["file"]}


def _no_device(system: System, hip: bool) -> str:
    """Return why CuPy, by which the backends have their memory and clock, reaches no device of a vendor, or nothing."""
    said = system.child("cupy")
    if "version" not in said:
        return "not installed" if _missing("cupy", said) else str(said.get("trouble", "it gave no answer"))
    if said["hip"] != hip:
        return f"this CuPy is built for {'AMD' if said['hip'] else 'NVIDIA'}"
    return "" if said.get("devices") else str(said.get("trouble", "it sees none"))


def _works(facts: dict[str, Any]) -> bool:
    return "version" in facts and "trouble" not in facts


def _missing(module: str, facts: dict[str, Any]) -> bool:
    """Whether a package is not there, rather than there and broken."""
    return str(facts.get("trouble", "")).startswith(f"ModuleNotFoundError: No module named {module!r}")


def cupy(system: System) -> Check:
    """CuPy: buffers, streams and events on both vendors' GPUs."""
    said = system.child("cupy")
    if "version" not in said:
        return _absent("cupy", said, _CUPY)
    text = f"CuPy {said['version']}, {said['file']}"
    if not said.get("devices"):
        why = said.get("trouble", "it sees no device")
        return Check(f"{text}; no device: {why}", False, "it takes a GPU and its driver", _public(said))
    return Check(f"{text}; {_count(said['devices'], 'device')}", True, "", _public(said))


def torch(system: System) -> Check:
    """PyTorch."""
    said = system.child("torch", patience=max(system.patience, _SLOW_IMPORT))
    if "version" not in said:
        return _absent("torch", said, "pip install 'commbench[torch]'")
    built = f"CUDA {said['cuda']}" if said["cuda"] else f"ROCm {said['hip']}" if said["hip"] else "CPU only"
    return Check(f"PyTorch {said['version']} ({built}), {said['file']}", True, "", _public(said))


def gloo(system: System) -> Check:
    """Gloo, which PyTorch brings."""
    said = system.child("torch", patience=max(system.patience, _SLOW_IMPORT))
    if "version" not in said:
        return Check("PyTorch brings it, and cannot be imported here", False, "pip install 'commbench[torch]'")
    if not said.get("gloo"):
        return Check(f"PyTorch {said['version']} was built without it", False, "pip install 'commbench[torch]'")
    return Check(f"in PyTorch {said['version']}", True)


def _imported(name: str, install: str, system: System) -> Check:
    return _package(name, system.child("package", name), install)


def _found(name: str, install: str, system: System) -> Check:
    return _package(name, system.child("found", name), install)


def _package(name: str, said: dict[str, Any], install: str) -> Check:
    if not _works(said):
        return _absent(name, said, install)
    return Check(f"{said['version']}, {said['file']}", True, "", _public(said))


def _absent(name: str, said: dict[str, Any], install: str) -> Check:
    """Return what is said of a package that is not there, or that is and cannot be imported."""
    trouble = said.get("trouble", "it gave no answer")
    if _missing(name, said):
        return Check(f"not installed: {install}", False, install, _public(said))
    found = (_broken(f"{name} can be imported", trouble, _REINSTALL),)
    return Check(f"cannot be imported: {trouble}", False, _REINSTALL, _public(said), found)


def _broken(rule: str, value: str, remedy: str) -> Finding:
    return Finding(BROKEN, rule, value, remedy)


def _public(said: dict[str, Any]) -> dict[str, Any]:
    """Return facts without the notes on how they were got."""
    return {name: value for name, value in said.items() if name not in ("doing", "crash")}


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


_REPORT = "pip install 'commbench[report]'"
CHECKS: dict[str, Callable[[System], Check]] = {
    "mpi": mpi,
    "nccl": nccl,
    "rccl": rccl,
    "gloo": gloo,
    "cupy": cupy,
    "numba": partial(_imported, "numba", "pip install 'commbench[kernels]'"),
    "torch": torch,
    "llvmlite": partial(_imported, "llvmlite", "pip install llvmlite"),
    "numpy": partial(_imported, "numpy", "pip install numpy"),
    "pandas": partial(_found, "pandas", _REPORT),
    "matplotlib": partial(_found, "matplotlib", _REPORT),
    "seaborn": partial(_found, "seaborn", _REPORT),
}
