"""RCCL on AMD devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from commbench.backends._xccl import Xccl
from commbench.backends.base import AMD


class Backend(Xccl):
    """RCCL. What it would run before any algorithm is chosen is turned off where algorithms are swept."""

    name = "rccl"
    vendor = AMD
    graphs = False  # CuPy captures none on ROCm
    side_paths: ClassVar[Mapping[str, str]] = {
        "RCCL_DDA_ENABLE": "0",
        "RCCL_DIRECT_ALLGATHER_DISABLE": "1",
        "RCCL_HIERARCHICAL_ALLGATHER": "0",
    }
