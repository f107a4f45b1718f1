"""All calls into NCCL and RCCL: the only file that knows nccl4py, CuPy's nccl module, or a prototype of nccl.h.

What is repeated and timed goes through compiled bindings: `nccl.bindings.nccl` of nccl4py, which also has the library's
versioned structures, or `cupy.cuda.nccl`, for RCCL and where nccl4py is missing. What is not timed goes through ctypes
on the same loaded library. Addresses, streams, communicators, handles and windows are plain integers.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from commbench.backends._nccl_facts import version_text
from commbench.errors import UsageError

SUCCESS, INVALID_ARGUMENT, INVALID_USAGE = 0, 4, 5  # ncclResult_t
SYMMETRIC = 1  # NCCL_WIN_COLL_SYMMETRIC
OLDEST = 21800
NCCL4PY_HAS, NCCL4PY_OLDEST = "CollConfig", "0.6.0"  # what tells one that is new enough
CUPY_OLDEST = 14  # of its nccl module: before, it took ids in another form
DTYPES = {
    **{"int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5},
    **{"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9},
}
REDOPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
_ITEMSIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2)
_REDUCING, _ROOTED = ("AllReduce", "ReduceScatter", "Reduce"), ("Broadcast", "Reduce", "Gather", "Scatter")
_NO_LIBRARY = "install nccl4py with nvidia-nccl-cu12 (or -cu13), or CuPy, or name the library's file"

# Prototypes of nccl.h (librccl has the same), each returning ncclResult_t
_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_OUT_POINTER, _OUT_INT = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int)
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (_OUT_INT,),
    "ncclGetUniqueId": (_POINTER,),
    "ncclCommDestroy": (_POINTER,),
    "ncclCommAbort": (_POINTER,),
    "ncclCommGetAsyncError": (_POINTER, _OUT_INT),
    "ncclCommCount": (_POINTER, _OUT_INT),
    "ncclCommUserRank": (_POINTER, _OUT_INT),
    "ncclMemAlloc": (_OUT_POINTER, _SIZE),
    "ncclMemFree": (_POINTER,),
    "ncclCommRegister": (_POINTER, _POINTER, _SIZE, _OUT_POINTER),
    "ncclCommDeregister": (_POINTER, _POINTER),
    "ncclCommWindowRegister": (_POINTER, _POINTER, _SIZE, _OUT_POINTER, _INT),
    "ncclCommWindowDeregister": (_POINTER, _POINTER),
}
# Kinds of memory: what makes them, and the version that came with it
_MEMORY = {"registered": ("ncclCommRegister", 21900), "symmetric": ("ncclCommWindowRegister", 22700)}


class Failure(RuntimeError):
    """A call that went wrong or was refused: its `code` is an ncclResult_t, its text the library's own."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Library:
    """A loaded NCCL or RCCL.

    vendor: NVIDIA or AMD. version: ncclGetVersion's number. file: what is mapped into this process. bindings: through
    which it is called. has_call_config: whether a call can choose its algorithm.

    Communicators block: a call has been enqueued when it returns. One that does not block enqueues each call in a
    thread of its own, refuses the next call until that is through, and lets an event pass in between (NVIDIA/nccl,
    src/group.cc, ncclGroupEndInternal; src/init.cc, ncclCommEnsureReady), so that no batch could be timed.
    """

    bindings = ""
    _errors: tuple[type[Exception], ...] = ()

    def __init__(self, c: ctypes.CDLL, file: str) -> None:
        self._c, self.file = c, file
        for name, types in _PROTOTYPES.items():
            if hasattr(c, name):
                getattr(c, name).argtypes = types
        for name in ("ncclGetErrorString", "ncclGetLastError"):
            getattr(c, name).restype = ctypes.c_char_p
        c.ncclGetLastError.argtypes = (_POINTER,)
        self.version = self._int("ncclGetVersion")
        self.vendor = "AMD" if "rccl" in os.path.basename(file) or hasattr(c, "mscclLoadAlgo") else "NVIDIA"
        self.name = f"{'RCCL' if self.vendor == 'AMD' else 'NCCL'} {version_text(self.version)}"
        self.has_call_config = False
        if self.version < OLDEST:
            raise UsageError(
                f"commbench needs NCCL {version_text(OLDEST)} or later, and {file} is {version_text(self.version)}: "
                "install a newer one, or name its file"
            )

    def unique_id(self) -> bytes:
        """Return a new id of 128 bytes, for one rank to hand to all that form a communicator."""
        made = ctypes.create_string_buffer(128)
        self._check(self._c.ncclGetUniqueId(ctypes.addressof(made)))
        return made.raw

    def init_rank(self, n: int, unique_id: bytes, rank: int) -> int:
        """Return the communicator of `n` ranks in which this process is `rank`."""
        raise NotImplementedError

    def prepare(
        self,
        function: str,
        send: int,
        recv: int,
        count: int,
        dtype: str,
        redop: str | None,
        root: int,
        comm: int,
        stream: int,
        row: str | None = None,
    ) -> Callable[[], None]:
        """Return the function that enqueues one call, for a loop: it raises Failure where the library refuses.

        `count` is NCCL's: the elements of a block. `row` is an algSelection, None where the call has no configuration.
        SendRecv sends to the next rank and receives from the one before.
        """
        kind = DTYPES[dtype]
        if row is not None and not (self.has_call_config and function != "SendRecv"):
            raise UsageError(f"{self.name} through {self.bindings} cannot choose {row!r} for one {function}")
        if not self._has(function):
            return self._guarded(self._grouped(function, send, recv, count, kind, root, comm, stream), comm)
        chosen = [REDOPS[redop or "sum"]] if function in _REDUCING else []
        if function in _ROOTED:
            chosen.append(root)
        return self._guarded(self._collective(function, [send, recv, count, kind, *chosen], comm, stream, row), comm)

    def call(
        self,
        function: str,
        send: int,
        recv: int,
        count: int,
        dtype: str,
        redop: str | None,
        root: int,
        comm: int,
        stream: int,
        row: str | None = None,
    ) -> None:
        """Enqueue one call: `prepare`, and run it once."""
        self.prepare(function, send, recv, count, dtype, redop, root, comm, stream, row)()

    def async_error(self, comm: int) -> int:
        """Return the communicator's state: SUCCESS or an error."""
        return self._int("ncclCommGetAsyncError", comm)

    def error_text(self, code: int) -> str:
        """Return the library's words for a result code."""
        return str(self._c.ncclGetErrorString(code).decode(errors="replace"))

    def last_error(self, comm: int = 0) -> str:
        """Return the library's last message, empty where there is none."""
        return (self._c.ncclGetLastError(comm or None) or b"").decode(errors="replace").strip()

    def abort(self, comm: int) -> None:
        """End a communicator and what runs in it, without the other ranks; it cannot be used after that."""
        self._check(self._c.ncclCommAbort(comm), comm)

    def destroy(self, comm: int) -> None:
        """Free a communicator; all its ranks do."""
        self._check(self._c.ncclCommDestroy(comm), comm)

    def lacks(self, kind: str) -> str:
        """Return why there is no memory of a kind, or nothing."""
        function, since = _MEMORY.get(kind, ("ncclGetVersion", 0))
        if hasattr(self._c, function) and self.version >= since:
            return ""
        return f"{kind} memory came with NCCL {version_text(since)} ({function}), and this is {self.name}"

    def mem_alloc(self, nbytes: int) -> int:
        """Return device memory that the library can register in every way."""
        return self._out("ncclMemAlloc", after=(nbytes,))

    def mem_free(self, pointer: int) -> None:
        """Free what `mem_alloc` returned."""
        self._check(self._c.ncclMemFree(pointer))

    def register(self, comm: int, pointer: int, nbytes: int) -> int:
        """Return the handle of a buffer registered for zero-copy; local to a rank."""
        return self._out("ncclCommRegister", comm, pointer, nbytes)

    def deregister(self, comm: int, handle: int) -> None:
        """Undo `register`."""
        self._check(self._c.ncclCommDeregister(comm, handle), comm)

    def window_register(self, comm: int, pointer: int, nbytes: int) -> int:
        """Return the symmetric window of a buffer; all ranks of the communicator make it together (2.27 and later)."""
        return self._out("ncclCommWindowRegister", comm, pointer, nbytes, after=(SYMMETRIC,))

    def window_deregister(self, comm: int, window: int) -> None:
        """Undo `window_register`; all ranks do."""
        self._check(self._c.ncclCommWindowDeregister(comm, window), comm)

    def reset_debug(self) -> bool:
        """Let the library read NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE anew; say whether it can.

        The file is opened afresh, and emptied, at the next message.
        """
        for name in ("ncclResetDebugInit", "ncclResetDebugInitInternal"):  # deprecated; RCCL's
            if hasattr(self._c, name):
                getattr(self._c, name).restype = None
                getattr(self._c, name)()
                return True
        return False

    def _has(self, function: str) -> bool:
        raise NotImplementedError

    def _collective(
        self, function: str, arguments: list[int], comm: int, stream: int, row: str | None
    ) -> Callable[[], Any]:
        raise NotImplementedError

    def _point_to_point(
        self, sends: bool, buffer: int, count: int, kind: int, peer: int, comm: int, stream: int
    ) -> Callable[[], Any]:
        raise NotImplementedError

    def _group(self) -> tuple[Callable[[], Any], Callable[[], Any]]:
        raise NotImplementedError

    def _grouped(
        self, function: str, send: int, recv: int, count: int, kind: int, root: int, comm: int, stream: int
    ) -> Callable[[], None]:
        """Return what carries out `function` by sends and receives, as NCCL 2.28 and later do themselves."""
        n, rank = self._int("ncclCommCount", comm), self._int("ncclCommUserRank", comm)
        block = count * _ITEMSIZES[kind]
        everyone, mine = range(n), rank == root
        # (peer, block of the buffer)
        sends, receives = {
            "SendRecv": ([((rank + 1) % n, 0)], [((rank - 1) % n, 0)]),
            "AlltoAll": ([(peer, peer) for peer in everyone], [(peer, peer) for peer in everyone]),
            "Gather": ([(root, 0)], [(peer, peer) for peer in everyone if mine]),
            "Scatter": ([(peer, peer) for peer in everyone if mine], [(root, 0)]),
        }[function]
        steps = [self._point_to_point(True, send + at * block, count, kind, to, comm, stream) for to, at in sends]
        steps += [self._point_to_point(False, recv + at * block, count, kind, of, comm, stream) for of, at in receives]
        start, end = self._group()

        def run() -> None:
            start()
            try:
                for step in steps:
                    step()
            finally:
                end()

        return run

    def _guarded(self, function: Callable[[], Any], comm: int) -> Callable[[], None]:
        errors = self._errors

        def run() -> None:
            try:
                function()
            except errors as error:
                raise self._failure(int(error.status), comm) from None  # type: ignore[attr-defined]

        return run

    def _failure(self, code: int, comm: int = 0) -> Failure:
        said = ": ".join(filter(None, (self.error_text(code), self.last_error(comm))))
        return Failure(f"{self.name}: {said}", code)

    def _check(self, code: int, comm: int = 0) -> None:
        if code != SUCCESS:
            raise self._failure(code, comm)

    def _int(self, name: str, *before: int) -> int:
        value = ctypes.c_int()
        self._check(getattr(self._c, name)(*before, ctypes.byref(value)), before[0] if before else 0)
        return value.value

    def _out(self, name: str, *before: int, after: Sequence[int] = ()) -> int:
        """Return the pointer that a function writes."""
        value = ctypes.c_void_p()
        code = getattr(self._c, name)(*before, ctypes.byref(value), *after)
        self._check(code, before[0] if before else 0)
        return value.value or 0


class _Nccl4py(Library):
    """NCCL through nccl4py."""

    def __init__(self, module: Any, c: ctypes.CDLL, file: str) -> None:
        super().__init__(c, file)
        from importlib.metadata import version

        self._module, self._errors = module, (module.NCCLError,)
        self.bindings = f"nccl4py {version('nccl4py')}"
        self.has_call_config = hasattr(c, "ncclAllReduceConfig")
        self._functions = {
            name: getattr(module, binding)
            for name, binding in (
                *(("AllReduce", "all_reduce"), ("AllGather", "all_gather"), ("ReduceScatter", "reduce_scatter")),
                *(("Broadcast", "broadcast"), ("Reduce", "reduce")),
                *(("AlltoAll", "allto_all"), ("Gather", "gather"), ("Scatter", "scatter")),
            )
            if hasattr(c, f"nccl{name}")
        }
        self._comms: dict[int, Any] = {}

    def init_rank(self, n: int, unique_id: bytes, rank: int) -> int:
        made = self._module.UniqueId()
        ctypes.memmove(made.ptr, unique_id, len(unique_id))
        try:
            comm = self._module.comm_init_rank(n, made, rank)
        except self._errors as error:
            raise self._failure(error.status) from None  # type: ignore[attr-defined]
        self._comms[comm.handle] = comm
        return int(comm.handle)

    def abort(self, comm: int) -> None:
        self._comms.pop(comm, None)
        super().abort(comm)

    def destroy(self, comm: int) -> None:
        self._comms.pop(comm, None)
        super().destroy(comm)

    def _has(self, function: str) -> bool:
        return function in self._functions

    def _collective(
        self, function: str, arguments: list[int], comm: int, stream: int, row: str | None
    ) -> Callable[[], Any]:
        if row is None:
            return partial(self._functions[function], *arguments, self._comms[comm], stream)
        config = self._module.CollConfig()
        config.alg_selection = row
        config.force_alg_selection = 1
        configured = getattr(self._module, f"{self._functions[function].__name__}_config")
        return partial(configured, *arguments, self._comms[comm], stream, config)

    def _point_to_point(
        self, sends: bool, buffer: int, count: int, kind: int, peer: int, comm: int, stream: int
    ) -> Callable[[], Any]:
        function = self._module.send if sends else self._module.recv
        return partial(function, buffer, count, kind, peer, self._comms[comm], stream)

    def _group(self) -> tuple[Callable[[], Any], Callable[[], Any]]:
        return self._module.group_start, self._module.group_end


class _Cupy(Library):
    """NCCL or RCCL through CuPy, which has no configured calls."""

    def __init__(self, module: Any, c: ctypes.CDLL, file: str) -> None:
        super().__init__(c, file)
        import cupy

        self._module, self._errors = module, (module.NcclError,)
        self.bindings = f"CuPy {cupy.__version__}"
        self._comms: dict[int, Any] = {}

    def init_rank(self, n: int, unique_id: bytes, rank: int) -> int:
        try:
            comm = self._module.NcclCommunicator(n, unique_id, rank)
        except self._errors as error:
            raise self._failure(error.status) from None  # type: ignore[attr-defined]
        self._comms[comm.comm] = comm
        return int(comm.comm)

    def abort(self, comm: int) -> None:
        self._comms.pop(comm).abort()

    def destroy(self, comm: int) -> None:
        self._comms.pop(comm).destroy()

    def _has(self, function: str) -> bool:
        return function in ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce")

    def _collective(
        self, function: str, arguments: list[int], comm: int, stream: int, row: str | None
    ) -> Callable[[], Any]:
        method = getattr(self._comms[comm], function[0].lower() + function[1:])
        return partial(method, *arguments, stream)

    def _point_to_point(
        self, sends: bool, buffer: int, count: int, kind: int, peer: int, comm: int, stream: int
    ) -> Callable[[], Any]:
        method = self._comms[comm].send if sends else self._comms[comm].recv
        return partial(method, buffer, count, kind, peer, stream)

    def _group(self) -> tuple[Callable[[], Any], Callable[[], Any]]:
        return self._module.groupStart, self._module.groupEnd


def load(path: str | None = None) -> Library:
    """Load the library at `path`, or the one that the bindings find; raise UsageError where there is none to use."""
    named = _open(path) if path else None
    reasons = []
    for kind, bind in ((_Nccl4py, _bind_nccl4py), (_Cupy, _bind_cupy)):
        try:
            module, c = bind()
        except (ImportError, OSError, RuntimeError) as error:
            reasons.append(f"{bind.__name__[6:]}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
            continue
        file = _mapped_file(c)
        if named is not None and file != _mapped_file(named):
            reasons.append(f"{bind.__name__[6:]}: it calls {file} instead")
            continue
        return kind(module, c, file)
    if named is not None:
        Library(named, _mapped_file(named))  # too old comes before who could call it
    raise UsageError(f"no bindings for {path or 'an NCCL or RCCL'} ({'; '.join(reasons)}): {_NO_LIBRARY}")


def _open(path: str) -> ctypes.CDLL:
    """Load a named library for all to see, so that the bindings find it loaded."""
    try:
        c = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise UsageError(f"cannot load {path} ({error}): name the file of an NCCL or RCCL") from None
    if not hasattr(c, "ncclGetVersion"):
        raise UsageError(f"{path} is no NCCL or RCCL, as it has no ncclGetVersion: name the file of one")
    return c


def _bind_nccl4py() -> tuple[Any, ctypes.CDLL]:
    from nccl.bindings import nccl

    if not hasattr(nccl, NCCL4PY_HAS):
        raise ImportError(f"older than {NCCL4PY_OLDEST}")
    nccl.get_version()  # loads the library
    return nccl, ctypes.CDLL(nccl.get_library_path())


def _bind_cupy() -> tuple[Any, ctypes.CDLL]:
    import cupy
    from cupy.cuda import nccl

    if int(cupy.__version__.split(".")[0]) < CUPY_OLDEST:
        raise ImportError(f"older than {CUPY_OLDEST}")
    if not nccl.available:
        raise ImportError("built without NCCL, or none found")
    from cupy_backends.cuda.libs import nccl as compiled

    return compiled, ctypes.CDLL(compiled.__file__)  # linked to the library, whose functions are found through it


def _mapped_file(c: ctypes.CDLL) -> str:
    """Return the file that holds the library's functions, as it is mapped into this process."""
    address = ctypes.cast(c.ncclGetVersion, ctypes.c_void_p).value or 0
    with open("/proc/self/maps") as lines:
        for line in lines:
            fields = line.split(maxsplit=5)
            low, high = (int(edge, 16) for edge in fields[0].split("-"))
            if low <= address < high:
                return fields[5].strip()
    raise AssertionError("a function of a loaded library is mapped")
