"""What others published, to hold a result against: shown as such, with its source, never as a limit or a grade."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from commbench.units import approximate_size

GIB = 1 << 30


@dataclass(frozen=True)
class Published:
    """A bus bandwidth of eight GPUs of one node that somebody reported."""

    device: str  # pattern of the device's name
    system: str
    collective: str
    busbw: float  # GB/s
    about: str  # the algorithm, as far as it was said
    size: int | None  # bytes; None: not said, most likely the largest of a sweep
    source: str
    nranks: int = 8
    nnodes: int = 1

    @property
    def least_size(self) -> int:
        """From which size on a result is held against it: where rates have all but settled."""
        return min(GIB, self.size or GIB)

    def __str__(self) -> str:
        known = [self.about, "" if self.size is None else approximate_size(self.size)]
        about = ", ".join(one for one in known if one)
        return f"published for {self.system}: {self.busbw:g} GB/s busbw{f' ({about})' if about else ''}, {self.source}"


_SXM = r"H100(?!.*(PCIe|NVL))"  # "NVIDIA H100 80GB HBM3" is the SXM form
_ML = "github.com/stas00/ml-engineering"
PUBLISHED = (
    Published(_SXM, "8 x H100 SXM", "allreduce", 480, "NVLS", None, "github.com/NVIDIA/nccl-tests/issues/212"),
    Published(_SXM, "8 x H100 SXM", "allreduce", 370, "ring", None, "github.com/NVIDIA/nccl-tests/issues/212"),
    Published(r"H200", "8 x H200", "allreduce", 482.26, "NVLS", 16 * GIB, _ML),
    Published(r"H200", "8 x H200", "allreduce", 367.61, "ring", 16 * GIB, _ML),
    Published(r"H200", "8 x H200", "allgather", 361.4, "", None, _ML),
    Published(r"H200", "8 x H200", "reducescatter", 362.9, "", None, _ML),
    Published(r"B200", "8 x B200", "allreduce", 845.67, "", 16 * GIB, _ML),
    Published(r"A100.*SXM", "8 x A100 SXM", "allreduce", 234.89, "", 16 * GIB, _ML),
    Published(r"H800", "8 x H800", "allreduce", 215, "", None, "github.com/NVIDIA/nccl/issues/1374"),
    Published(r"MI300X(?! VF)", "8 x MI300X", "allreduce", 312.9, "", 4 * GIB, f"{_ML} and others"),
    Published(r"MI300X(?! VF)", "8 x MI300X", "allreduce", 304, "least accepted", 8 * GIB, "github.com/ROCm/cvs"),
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
