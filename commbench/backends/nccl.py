"""NCCL on NVIDIA devices."""

from __future__ import annotations

from commbench.backends._xccl import Xccl
from commbench.backends.base import NVIDIA


class Backend(Xccl):
    """NCCL."""

    name = "nccl"
    vendor = NVIDIA
