"""What perfquery of infiniband-diags prints: counters of any port of the fabric, of switches too.

    # Port extended counters: Lid 2052 port 1 (CapMask: 0x5300 CapMask2: 0x0000002)
    PortXmitData:....................178791657177235

It prints no time: of several files, each has that of its last change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.attribution.counters import Series, make_series, rdma_column
from commbench.errors import ResultsError

_HEAD = re.compile(r"# Port(?P<what>.*?)(?: counters)?: Lid (?P<lid>\d+) port (?P<port>\d+|ALL)\b")
_LINE = re.compile(r"(?P<name>\w+):\.*(?P<value>\S*)\s*")
_BEGINNING = 4096  # characters that a file is told by
_SELECTORS = ("PortSelect", "CounterSelect", "CounterSelect2")
_KERNEL = {"Pkts": "Packets", "SymbolErrorCounter": "SymbolError", "LinkDownedCounter": "LinkDowned"}
_KERNEL |= {"LinkErrorRecoveryCounter": "LinkErrorRecovery"}


@dataclass(frozen=True)
class Port:
    """The counters of one port at one time, by the names that the kernel has for them, as numbers of the port's own."""

    lid: int
    port: str  # a number, or ALL
    counters: Mapping[str, int]  # data in words of 4 bytes
    skipped: tuple[str, ...]  # lines that are no whole numbers


def kernel_name(name: str) -> str:
    """Return the kernel's name of a counter: PortXmitData is port_xmit_data, VL15Dropped VL15_dropped."""
    for theirs, ours in _KERNEL.items():
        name = name.replace(theirs, ours)
    name = re.sub(r"^Port(?=Unicast|Multicast)", "", name)
    words = re.findall(r"VL15|QP1|[A-Z]+(?![a-z])|[A-Z][a-z]*\d*|[a-z\d]+", name)
    return "_".join(word if word in ("VL15", "QP1") else word.lower() for word in words)


def read_perfquery(text: str) -> tuple[Port, ...]:
    """Return the ports in what perfquery printed, with -x or without; several blocks of one port are one port."""
    counters: dict[tuple[int, str], dict[str, int]] = {}
    skipped: dict[tuple[int, str], list[str]] = {}
    port = None
    for line in text.splitlines():
        if head := _HEAD.match(line.strip()):
            port = int(head["lid"]), head["port"]
            counters.setdefault(port, {})
            skipped.setdefault(port, [])
        elif port and (match := _LINE.fullmatch(line.strip())) and match["name"] not in _SELECTORS:
            if match["value"].isascii() and match["value"].isdigit():
                counters[port][kernel_name(match["name"])] = int(match["value"])
            else:
                skipped[port].append(line.strip())
    return tuple(Port(*port, counters[port], tuple(skipped[port])) for port in counters)


def recognise(path: str | Path) -> bool:
    """Return whether a file begins as what perfquery prints does."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return bool(read_perfquery(file.read(_BEGINNING)))
    except OSError:
        return False  # whoever reads it says why


def read_series(files: Sequence[str | Path]) -> tuple[tuple[Series, ...], tuple[str, ...]]:
    """Return the series of each port in files of perfquery, in order of their last change, and what is to be said.

    Raises ResultsError for a file that cannot be read or has no port in it.
    """
    import numpy as np

    samples: dict[str, list[tuple[int, Mapping[str, int]]]] = {}
    notes: list[str] = []
    for file in map(Path, files):
        try:
            text, time = file.read_text(encoding="utf-8", errors="replace"), file.stat().st_mtime_ns
        except OSError as error:
            raise ResultsError(f"cannot read {file}: {error.strerror}") from None
        ports = read_perfquery(text)
        if not ports:
            raise ResultsError(
                f"{file} has no port of perfquery (a line '# Port counters: Lid 1 port 1'): name what it printed"
            )
        for port in ports:
            samples.setdefault(f"lid {port.lid}/{port.port}", []).append((time, port.counters))
            notes += [f"{file}: left out, as it is no whole number: {line}" for line in port.skipped]
    found = []
    for name, rows in samples.items():
        rows.sort(key=lambda row: row[0])
        columns = [rdma_column(counter) for counter in dict.fromkeys(key for _, row in rows for key in row)]
        numbers = np.array([[row.get(column.name, np.nan) for column in columns] for _, row in rows], dtype=np.float64)
        times = np.array([time for time, _ in rows], dtype=np.int64)
        series, said = make_series(
            "", name, "rdma", {"lid": name.split()[1].partition("/")[0]}, columns, times, numbers
        )
        found.append(series)
        notes += said
    return tuple(found), tuple(notes)
