"""NCCL on NVIDIA devices."""

from __future__ import annotations

from commbench.backends._device import NVIDIA
from commbench.backends._xccl import Xccl


class Backend(Xccl):
    """NCCL."""

    name = "nccl"
    vendor = NVIDIA
