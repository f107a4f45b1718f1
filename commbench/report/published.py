"""What others published, to hold a result against: shown as such, with its source, never as a limit or a grade."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A bus bandwidth that somebody reported."""

    device: str  # pattern of the device's name
    collective: str
    nranks: int
    nnodes: int
    busbw: float  # GB/s
    about: str  # how it came about
    source: str
    size: int = 1 << 30  # bytes, from which on results may be held against it


PUBLISHED = (
    Published(r"H100", "allreduce", 8, 1, 480, "with NVLS", "github.com/NVIDIA/nccl-tests/issues/212"),
    Published(r"H100", "allreduce", 8, 1, 370, "ring", "github.com/NVIDIA/nccl-tests/issues/212"),
    Published(r"H200", "allreduce", 8, 1, 482.26, "NVLS, 16 GiB", "github.com/stas00/ml-engineering, network"),
    Published(r"H200", "allreduce", 8, 1, 367.61, "ring, 16 GiB", "github.com/stas00/ml-engineering, network"),
    Published(r"H200", "allgather", 8, 1, 361.4, "", "github.com/stas00/ml-engineering, network"),
    Published(r"H200", "reducescatter", 8, 1, 362.9, "", "github.com/stas00/ml-engineering, network"),
    Published(r"B200", "allreduce", 8, 1, 845.67, "16 GiB", "github.com/stas00/ml-engineering, network"),
    Published(r"A100.*SXM", "allreduce", 8, 1, 234.89, "16 GiB", "github.com/stas00/ml-engineering, network"),
    Published(r"H800", "allreduce", 8, 1, 215, "", "github.com/NVIDIA/nccl/issues/1374"),
    Published(r"MI300X", "allreduce", 8, 1, 312.9, "4 GiB", "rocm.blogs.amd.com, RCCL over xGMI on MI300X"),
    Published(r"MI300X", "allreduce", 8, 1, 304, "least accepted, 8 GiB", "github.com/ROCm/cvs"),
)


def published(devices: Iterable[str], collective: str, nranks: int | None, nnodes: int | None) -> list[Published]:
    """Return what is known of a collective on such devices, all of one kind."""
    names = list(devices)
    return [
        one
        for one in PUBLISHED
        if (one.collective, one.nranks, one.nnodes) == (collective, nranks, nnodes)
        and names
        and all(re.search(one.device, name) for name in names)
    ]
