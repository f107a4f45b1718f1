"""The MPI tool interface (MPI_T) through ctypes: reading and writing a library's control variables.

mpi4py has none. Interface: MPI 4.1 standard, section 15.3. The library is the one that mpi4py loaded, found in this
process's memory map, never a second copy.
"""

from __future__ import annotations

import ctypes
import re
from ctypes import byref, c_char_p, c_int, c_void_p, create_string_buffer

from commbench.errors import Rejected

_LIBRARY = re.compile(r"/lib(?:mpi|mpich|mpi_cray|mpi_abi)(?:[-_]\w+)?\.so[.\d]*$")


def library_file() -> str:
    """Return the path of the MPI library in this process, empty where it cannot be told (no /proc)."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if ".so" in line}
    except OSError:
        return ""
    return min((path for path in paths if _LIBRARY.search(path)), key=len, default="")


class ControlVariables:
    """The integer and boolean control variables of the loaded MPI library, by name."""

    def __init__(self, path: str) -> None:
        self._lib = ctypes.CDLL(path)
        self._lib.MPI_T_cvar_get_index.argtypes = (c_char_p, c_void_p)
        self._check(self._lib.MPI_T_init_thread(0, byref(c_int())), "MPI_T_init_thread")

    def close(self) -> None:
        self._lib.MPI_T_finalize()

    def __contains__(self, name: str) -> bool:
        return bool(self._lib.MPI_T_cvar_get_index(name.encode(), byref(c_int())) == 0)

    def read(self, name: str) -> int:
        """Return the variable's value; raise Rejected where it cannot be read."""
        return self._access(name, "read", 0)

    def write(self, name: str, value: int) -> None:
        """Set the variable and read it back; raise Rejected where the library does not take the value."""
        self._access(name, "write", value)
        kept = self.read(name)
        if kept != value:
            raise Rejected(f"{name} was set to {value} and reads back as {kept}")

    def setting(self, name: str) -> str:
        """Return NAME=VALUE where the variable exists and is not 0, else nothing."""
        return f"{name}={self.read(name)}" if name in self and self.read(name) else ""

    def describe(self, name: str) -> tuple[str, dict[int, str]]:
        """Return the variable's description and, where it has an enumeration, its values."""
        text, length = create_string_buffer(1 << 16), c_int(1 << 16)
        short, short_length = create_string_buffer(1 << 10), c_int(1 << 10)
        kind, enumeration = c_void_p(), c_void_p()
        verbosity, binding, scope = c_int(), c_int(), c_int()
        code = self._lib.MPI_T_cvar_get_info(
            *(self._index(name), short, byref(short_length), byref(verbosity), byref(kind), byref(enumeration)),
            *(text, byref(length), byref(binding), byref(scope)),
        )
        self._check(code, f"MPI_T_cvar_get_info of {name}")
        return text.value.decode(errors="replace"), self._items(enumeration)

    def _items(self, enumeration: c_void_p) -> dict[int, str]:
        if not enumeration.value:  # MPI_T_ENUM_NULL
            return {}
        number, label, length = c_int(), create_string_buffer(1 << 10), c_int(1 << 10)
        self._check(
            self._lib.MPI_T_enum_get_info(enumeration, byref(number), label, byref(length)), "MPI_T_enum_get_info"
        )
        items = {}
        for position in range(number.value):
            value, length = c_int(), c_int(1 << 10)
            code = self._lib.MPI_T_enum_get_item(enumeration, position, byref(value), label, byref(length))
            self._check(code, "MPI_T_enum_get_item")
            items[value.value] = label.value.decode(errors="replace")
        return items

    def _index(self, name: str) -> c_int:
        index = c_int()
        self._check(self._lib.MPI_T_cvar_get_index(name.encode(), byref(index)), f"MPI_T_cvar_get_index of {name}")
        return index

    def _access(self, name: str, verb: str, value: int) -> int:
        handle, count = c_void_p(), c_int()
        code = self._lib.MPI_T_cvar_handle_alloc(self._index(name), None, byref(handle), byref(count))
        self._check(code, f"MPI_T_cvar_handle_alloc of {name}")
        room = (c_int * max(1, count.value))(value)  # a boolean uses the first byte
        try:
            self._check(getattr(self._lib, f"MPI_T_cvar_{verb}")(handle, room), f"MPI_T_cvar_{verb} of {name}")
        finally:
            self._lib.MPI_T_cvar_handle_free(byref(handle))
        return room[0]

    @staticmethod
    def _check(code: int, what: str) -> None:
        if code:
            raise Rejected(f"{what} failed with MPI error {code}")
