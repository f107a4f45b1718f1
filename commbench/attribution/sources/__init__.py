"""What telemetry samples on a node. A kind of source is one file here: KIND, and find(machine) -> Found.

Files of the kernel are opened once and read again where they are (pread), as opening costs more than reading.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from commbench.attribution.counters import Column
from commbench.errors import UsageError

_LONGEST = 64  # bytes of a number in a file


@dataclass(frozen=True)
class Machine:
    """Where a node keeps its counters. `live`: the kernel's own files, which nobody deletes or replaces."""

    sysfs: Path = Path("/sys")
    infiniband: Path = Path("/sys/class/infiniband")
    proc: Path = Path("/proc")
    nvml: str = "libnvidia-ml.so.1"
    live: bool = True


@dataclass(frozen=True)
class Source:
    """One row of numbers that is read again and again."""

    name: str
    kind: str
    facts: Mapping[str, str]
    columns: Sequence[Column]
    read: Callable[[], Sequence[int | None]]  # a number for each column; None where it is gone
    refresh_ms: int = 0  # how often the numbers change at most


@dataclass(frozen=True)
class Found:
    """The sources of a kind, and what is to be said of them: that there are none, what was left out."""

    sources: Sequence[Source] = ()
    notes: Sequence[str] = ()


def find(machine: Machine) -> Found:
    """Return all sources of a machine."""
    found = []
    for _, name, _ in sorted(pkgutil.iter_modules(__path__), key=lambda module: module[1]):
        found.append(importlib.import_module(f"{__name__}.{name}").find(machine))
    return Found([one for part in found for one in part.sources], [note for part in found for note in part.notes])


def copied(folder: str) -> Machine:
    """Return the machine whose sysfs was copied to a folder: the root of it, or its class/infiniband.

    Raises UsageError for a folder that is neither.
    """
    root = Path(folder)
    for sysfs in (root, root / "sys"):
        if (sysfs / "class" / "infiniband").is_dir():
            return Machine(sysfs, sysfs / "class" / "infiniband", live=False)
    if any(root.glob("*/ports")):
        sysfs = root.parent.parent if root.parts[-2:] == ("class", "infiniband") else root
        return Machine(sysfs, root, live=False)
    raise UsageError(
        f"--sysfs is a copy of /sys (with class/infiniband in it) or of /sys/class/infiniband (DEVICE/ports/1), and "
        f"{folder} {'holds neither' if root.is_dir() else 'is no folder'}"
    )


class Files:
    """Files of one whole number each, kept open. One that is gone is None, and looked for again each time."""

    def __init__(self, paths: Sequence[Path], live: bool) -> None:
        self._paths, self._live = paths, live
        self._open: list[int | None] = [None] * len(paths)

    def __call__(self) -> list[int | None]:
        return [self._read(place) for place in range(len(self._paths))]

    def _read(self, place: int) -> int | None:
        file = self._open[place]
        try:
            if file is not None and not self._live and os.fstat(file).st_nlink == 0:  # deleted, or another in its place
                os.close(file)
                file = self._open[place] = None
            if file is None:
                file = self._open[place] = os.open(self._paths[place], os.O_RDONLY)
            return int(os.pread(file, _LONGEST, 0))
        except ValueError:
            return None
        except OSError:
            if file is not None:
                self._open[place] = None
                with suppress(OSError):
                    os.close(file)
            return None


def text(path: Path) -> str:
    """Return a file's text without the blanks around it; raise OSError where it cannot be read."""
    return path.read_bytes().decode("utf-8", "replace").strip()
