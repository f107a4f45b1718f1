"""Whether the loaded MPI library takes addresses of devices: asked of the library, by its own function.

Open MPI and MVAPICH: MPIX_Query_cuda_support and MPIX_Query_rocm_support of mpi-ext.h, 1 for yes. MPICH 4.1 and later:
MPIX_GPU_query_support of mpi.h, with the number of the kind of device. They ask how the library was built and, where it
knows, whether this run has it turned on. MPI must be initialised.
"""

from __future__ import annotations

import ctypes

from commbench.backends.base import AMD, NVIDIA

_KINDS = {NVIDIA: ("cuda", 0), AMD: ("rocm", 2)}  # MPIX_GPU_SUPPORT_CUDA, MPIX_GPU_SUPPORT_HIP


def aware(path: str, vendor: str) -> bool | None:
    """Return whether the library at `path` takes addresses of `vendor`'s devices; None where it cannot be asked."""
    if not path:
        return None
    library, (name, kind) = ctypes.CDLL(path), _KINDS[vendor]
    if hasattr(library, "MPIX_GPU_query_support"):
        answer = ctypes.c_int()
        code = library.MPIX_GPU_query_support(ctypes.c_int(kind), ctypes.byref(answer))
        return code == 0 and answer.value == 1
    if hasattr(library, f"MPIX_Query_{name}_support"):
        return bool(getattr(library, f"MPIX_Query_{name}_support")() == 1)
    return None
