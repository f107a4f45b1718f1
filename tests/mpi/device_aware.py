"""`--backend tests.mpi.device_aware`: an MPI that takes device memory, on devices of host memory.

The library is the real one, which says otherwise; of its memory, a device's is told from the host's by its type.
DEVICES has the number of devices of each node (default 2).
"""

from __future__ import annotations

import os

import numpy as np

from commbench.backends import mpi
from commbench.backends._device import Device
from commbench.backends.base import NVIDIA
from tests.nccl.host_device import HostDevice
from tests.numpy_collectives import Array


class DeviceArray(np.ndarray):
    """Memory of the device, in which nobody but MPI and the device's copies may read or write."""

    def __setitem__(self, *_: object) -> None:
        raise AssertionError("the host wrote into device memory")

    def __array_ufunc__(self, *_: object, **__: object) -> None:
        raise AssertionError("the host computed in device memory")


class MarkedDevice(HostDevice):
    def allocate(self, nbytes: int) -> Array:
        return super().allocate(nbytes).view(DeviceArray)

    def staging(self, array: Array) -> Array:
        return np.empty(array.shape, array.dtype)

    def put(self, array: Array, values: Array) -> None:
        assert type(values) is np.ndarray
        array.view(np.ndarray)[:] = values

    def take(self, array: Array) -> Array:
        return array.view(np.ndarray).copy()


class Backend(mpi.Backend):
    simulated = True

    @staticmethod
    def aware(path: str, vendor: str) -> bool | None:
        return vendor == NVIDIA

    @staticmethod
    def count(vendor: str) -> tuple[int, str]:
        return int(os.environ.get("DEVICES", "2")), "DEVICES is 0"

    @staticmethod
    def device(index: int) -> Device:
        return MarkedDevice(index)
