"""An MPI library is asked in C whether it takes device memory; here, libraries made for the question."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from commbench.backends import mpi
from commbench.backends._mpi_device import aware
from commbench.backends.base import AMD, DEVICE, NVIDIA, Algorithm, Call
from tests.numpy_collectives import COLLECTIVES

MPICH = "int MPIX_GPU_query_support(int kind, int *yes) { *yes = kind == %d; return kind > 2; }"
OPEN_MPI = "int MPIX_Query_cuda_support(void) { return %d; } int MPIX_Query_rocm_support(void) { return %d; }"


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler (cc) to make a library with")
@pytest.mark.parametrize(
    ("source", "answers"),
    [
        (MPICH % 0, (True, False)),
        (MPICH % 1, (False, False)),  # Intel's
        (MPICH % 2, (False, True)),
        ("int MPIX_GPU_query_support(int kind, int *yes) { *yes = 1; return 16; }", (False, False)),
        (OPEN_MPI % (1, 0), (True, False)),
        (OPEN_MPI % (0, 1), (False, True)),
        ("int MPIX_Query_cuda_support(void) { return 1; }", (True, None)),
        ("int MPI_Init(void) { return 0; }", (None, None)),
    ],
)
def test_the_librarys_own_answer_is_taken(
    tmp_path: Path, source: str, answers: tuple[bool | None, bool | None]
) -> None:
    (tmp_path / "mpi.c").write_text(source)
    library = tmp_path / "libmpi.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "mpi.c")], check=True)
    assert (aware(str(library), NVIDIA), aware(str(library), AMD)) == answers


def test_a_library_that_is_not_found_cannot_be_asked() -> None:
    assert aware("", NVIDIA) is None


# What the backend makes of the answers


class Asked(mpi.Backend):
    """A backend whose library and machine answer as they are told."""

    library, library_file = "MPI 1.0", "libmpi.so"
    answers: dict[str, bool | None]
    seen: dict[str, int]

    @classmethod
    def aware(cls, path: str, vendor: str) -> bool | None:
        return cls.answers[vendor]

    @classmethod
    def count(cls, vendor: str) -> tuple[int, str]:
        return cls.seen.get(vendor, 0), f"no {vendor} device"

    @staticmethod
    def device(index: int) -> Any:
        if index == 1:
            raise OSError("out of order")
        return SimpleNamespace(index=index)


def taken(cuda: bool | None, rocm: bool | None, rank: int = 0, **seen: int) -> tuple[str, Any]:
    """Why the rank of this place has no device, and the one it has."""

    class Fresh(Asked):
        answers, _gpu = {NVIDIA: cuda, AMD: rocm}, None

    Fresh.seen = seen
    backend = Fresh()
    return backend._take_device(cast(Any, SimpleNamespace(node_rank=rank))), backend._gpu


def test_a_rank_takes_a_device_of_the_vendor_that_the_library_takes() -> None:
    assert taken(True, False, rank=6, NVIDIA=4) == ("", SimpleNamespace(index=2))
    assert taken(None, True, AMD=1) == ("", SimpleNamespace(index=0))
    assert taken(True, True, AMD=1) == ("", SimpleNamespace(index=0))


@pytest.mark.parametrize(
    ("cuda", "rocm", "seen", "why"),
    [
        (None, None, {"NVIDIA": 1}, "MPI 1.0 has no function that says whether"),
        (False, False, {"NVIDIA": 1}, "MPI 1.0 says that it takes no memory of"),
        (False, None, {"NVIDIA": 1}, "MPI 1.0 says that it takes no memory of"),
        (True, False, {"AMD": 1}, "no NVIDIA device"),
        (True, False, {"NVIDIA": 2}, "device 1 cannot be used: OSError: out of order"),
    ],
)
def test_without_one_the_reason_is_the_first_that_is_in_the_way(
    cuda: bool | None, rocm: bool | None, seen: dict[str, int], why: str
) -> None:
    reason, device = taken(cuda, rocm, rank=1, **seen)
    assert why in reason and device is None


def test_device_memory_is_refused_with_the_reason() -> None:
    backend = Asked()
    backend._no_device = "no device"
    call = Call(COLLECTIVES["allreduce"], Algorithm("auto", "auto"), "float32", 4, "sum", 1, 0, False, DEVICE)
    assert backend.refusal(call, range(2)) == "no device"


def test_addresses_are_the_devices_for_its_arrays_and_the_hosts_for_numpys() -> None:
    class Fresh(Asked):
        _gpu = cast(Any, SimpleNamespace(address=lambda array: 4711))

    backend, array = Fresh(), np.empty(4)
    assert backend._address(cast(Any, object())) == 4711
    assert backend._address(array) == array.ctypes.data
    assert backend._address(array[:0]) == 0
