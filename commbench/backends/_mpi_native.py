"""The C functions of the loaded MPI library, for a loop that is compiled over their addresses.

Signatures: MPI 4.1 standard, annex A. A handle is a 32-bit int in MPICH and a pointer in Open MPI.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from commbench.backends.base import Call, Functions, Native

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STATUS = ctypes.create_string_buffer(256)  # written by receives and read by nobody; larger than any MPI_Status
_ADDRESS, _INT = ctypes.c_size_t, ctypes.c_int32


def native(
    mpi: Any,
    path: str,
    comm: Any,
    call: Call,
    slots: Sequence[tuple[NDArray[Any], NDArray[Any]]],
    types: tuple[Any, Any],
    address: Callable[[NDArray[Any]], int],
) -> Native:
    """Return `call` as a C function with its arguments.

    `types` are the MPI datatype and operation (or None); `address` tells where an array lies, 0 for an empty one.
    """
    name = call.collective.mpi
    wide = mpi._sizeof(mpi.Comm) == ctypes.sizeof(ctypes.c_void_p)
    handle = _ADDRESS if wide else _INT

    def value(thing: Any) -> Any:
        return handle(mpi._handleof(thing))  # ctypes keeps the low bits

    rank, size = comm.Get_rank(), comm.Get_size()
    datatype, operation = types
    count, kind, group = _INT(call.count), value(datatype), value(comm)
    root: tuple[Any, ...] = (_INT(call.root),) if call.collective.rooted else ()
    head: tuple[Any, ...] = ()
    if name == "Bcast":
        tail: tuple[Any, ...] = (count, kind, *root, group)
        parameters: tuple[Any, ...] = (_ADDRESS, _INT, handle, _INT, handle)
    elif name == "Sendrecv" and call.inplace:
        name = "Sendrecv_replace"
        there, back, tag = _INT((rank + 1) % size), _INT((rank - 1) % size), _INT(0)
        tail = (count, kind, there, tag, back, tag, group, _ADDRESS(ctypes.addressof(_STATUS)))
        parameters = (_ADDRESS, _INT, handle, _INT, _INT, _INT, _INT, handle, _ADDRESS)
    elif name == "Sendrecv":
        there, back, tag = _INT((rank + 1) % size), _INT((rank - 1) % size), _INT(0)
        head = (count, kind, there, tag)
        tail = (count, kind, back, tag, group, _ADDRESS(ctypes.addressof(_STATUS)))
        parameters = (_ADDRESS, _INT, handle, _INT, _INT, _ADDRESS, _INT, handle, _INT, _INT, handle, _ADDRESS)
    elif call.collective.reduces:
        tail = (count, kind, value(operation), *root, group)
        parameters = (_ADDRESS, _ADDRESS, _INT, handle, handle, *[_INT] * len(root), handle)
    else:
        head = (count, kind)
        tail = (count, kind, *root, group)
        parameters = (_ADDRESS, _INT, handle, _ADDRESS, _INT, handle, *[_INT] * len(root), handle)
    functions = _functions(path, name, parameters, handle)
    one_buffer = name in ("Bcast", "Sendrecv_replace")
    send, recv = zip(*(_addresses(mpi, call, send, recv, address) for send, recv in slots), strict=True)
    return Native(functions, one_buffer, send, recv, head, tail, group)


def _addresses(
    mpi: Any, call: Call, send: NDArray[Any], recv: NDArray[Any], address: Callable[[NDArray[Any]], int]
) -> tuple[int, int]:
    """Return the C addresses of a pair of buffers, as MPI wants them in place and not."""
    unsigned = int(mpi.IN_PLACE) % (1 << (8 * ctypes.sizeof(ctypes.c_void_p)))
    here, there = address(send), address(recv)
    if call.collective.mpi == "Bcast":
        return there or here, there or here
    if not (call.inplace and send.size and recv.size) or call.collective.mpi == "Sendrecv":
        return here, there
    if call.collective.mpi == "Scatter":
        return here, unsigned
    return unsigned, here if send.size > recv.size else there


@lru_cache
def _functions(path: str, name: str, parameters: tuple[Any, ...], handle: Any) -> Functions:
    """Return the collective, the barrier and the clock, made once, so that a loop over them is compiled once."""
    library = ctypes.CDLL(path)
    return Functions(
        ctypes.CFUNCTYPE(_INT, *parameters)((f"MPI_{name}", library)),
        ctypes.CFUNCTYPE(_INT, handle)(("MPI_Barrier", library)),
        ctypes.CFUNCTYPE(ctypes.c_double)(("MPI_Wtime", library)),
    )
