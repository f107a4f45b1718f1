"""Processors by /proc/stat (how long each was busy, context switches), and stalls by /proc/pressure where that is.

Source: proc_stat(5); the kernel's Documentation/accounting/psi.rst.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from commbench.attribution.counters import Column
from commbench.attribution.sources import Found, Machine, Source

KIND = "cpu"
_TOTAL = re.compile(rb"^(some|full) .*total=(\d+)", re.MULTILINE)


def find(machine: Machine) -> Found:
    """Return one source with the processors of the node; a container sees those of its node too."""
    try:
        stat = _again(machine.proc / "stat")
    except OSError as error:
        return Found(notes=[f"cpu: none: {machine.proc / 'stat'}: {error.strerror}"])
    pressures = {}
    for what in ("cpu", "memory", "io"):
        with suppress(OSError):  # a kernel that does not account for it
            pressures[what] = _again(machine.proc / "pressure" / what)

    def read() -> dict[str, int]:
        numbers = read_stat(stat())
        for what, pressure in pressures.items():
            numbers |= read_pressure(what, pressure())
        return numbers

    columns = [_column(name) for name in read()]
    names = [column.name for column in columns]
    facts = {"cores": str(sum(re.fullmatch(r"cpu\d+", name) is not None for name in names))}

    def row() -> Sequence[int | None]:
        numbers = read()
        return [numbers.get(name) for name in names]

    notes = [] if pressures else [f"cpu: no stalls: this kernel has no {machine.proc / 'pressure'}"]
    return Found([Source("cpu", KIND, facts, columns, row)], notes)


def _column(name: str) -> Column:
    if name == "context_switches":
        return Column(name)
    return Column(name, "s", 1e-6 if name.startswith("pressure_") else 1 / os.sysconf("SC_CLK_TCK"))


def read_stat(stat: bytes) -> dict[str, int]:
    """Return the ticks in /proc/stat: all processors' (busy, iowait, steal), each one's busy ones, context switches.

    Busy is user, nice, system, irq and softirq: neither idle, nor waiting for a disk, nor taken by another guest.
    """
    found: dict[str, int] = {}
    for line in stat.split(b"\n"):
        if line.startswith(b"cpu"):
            name, *ticks = line.split()
            user, nice, system, _, iowait, irq, softirq, steal = map(int, ticks[:8])
            busy = user + nice + system + irq + softirq
            found |= {"busy": busy, "iowait": iowait, "steal": steal} if name == b"cpu" else {name.decode(): busy}
        elif line.startswith(b"ctxt "):
            found["context_switches"] = int(line[5:])
    return found


def read_pressure(what: str, pressure: bytes) -> dict[str, int]:
    """Return the microseconds in which some tasks, or all (full), waited for cpu, memory or io.

    Of all tasks waiting for processors at once there is nothing to be said of a whole node: the kernel writes 0.
    """
    totals = {f"pressure_{what}_{which.decode()}": int(total) for which, total in _TOTAL.findall(pressure)}
    totals.pop("pressure_cpu_full", None)
    return totals


def _again(path: Path) -> Callable[[], bytes]:
    """Return what reads a file again from its start; raise OSError where it cannot be read."""
    file = os.open(path, os.O_RDONLY)
    size = 2 * sum(map(len, iter(lambda: os.read(file, 1 << 16), b""))) + 4096
    return lambda: os.pread(file, size, 0)
