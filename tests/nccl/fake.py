"""`--backend tests.nccl.fake`: the NCCL backend over the fake library that `--library` names and host memory."""

from __future__ import annotations

import os

from commbench.backends import nccl
from commbench.backends._device import Device
from commbench.backends.base import Availability
from tests.nccl.host_device import HostDevice


class Backend(nccl.Backend):
    simulated = True

    @classmethod
    def probe(cls) -> Availability:
        return Availability(True)

    @classmethod
    def count(cls) -> tuple[int, str]:
        return int(os.environ.get("FAKE_NCCL_DEVICES", "8")), "FAKE_NCCL_DEVICES is 0"

    @staticmethod
    def device(index: int) -> Device:
        return HostDevice(index)
