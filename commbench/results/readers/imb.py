"""The Intel MPI Benchmarks. A size is a rank's message there, as with OSU.

Of Reduce_scatter it was the whole vector up to 2018, which a rank has a share of, and is a rank's share since
(IMB_reduce_scatter.c), as it always was of Reduce_scatter_block. Mbytes/sec are counted by the slowest rank's time, in
2^20 B in early releases and in 1e6 B in later ones (IMB_output.c); Sendrecv counts what is sent and what is received.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from commbench.results import reading as common
from commbench.results.findings import DOUBT, NOTE
from commbench.results.reading import SHARED, UNKNOWN, Reading, Row, Table
from commbench.results.status import FAILED, OK, TIMEOUT
from commbench.units import LARGEST

NAME = "Intel MPI Benchmarks"

_VERSION = re.compile(r"MPI Benchmarks?(?: Suite)?,? V?(\d+)", re.IGNORECASE)
_TITLE = re.compile(r"#\s*Benchmarking\s+(\S+)")
_PROCESSES = re.compile(r"#\s*#processes\s*=\s*(\d+)")
_HEADING = re.compile(r"#bytes\s+#repetitions\b(.*)")
_DATATYPE = re.compile(r"#\s*MPI_Datatype for reductions\s*:\s*(\w+)")
_ENDED = {"time-out.;": TIMEOUT, "int-overflow.;": FAILED, "int-overflow;": FAILED, "out-of-mem.;": FAILED}
_SHARE_SINCE = 2019  # the release from which Reduce_scatter's size is a rank's share
_NEIGHBOURS = {"exchange": 2}  # messages that a rank sends, and receives as many, where there are several
_BYTES_COUNTED = {"sendrecv": 2.0, "exchange": 2.0}  # in Mbytes/sec, of a size: both directions
_BINARY = 2**20 / 1e6


def recognise(head: Sequence[str]) -> float:
    """Return 1 for a heading or a title."""
    return float(any(_HEADING.search(line) or "Intel(R) MPI Benchmarks" in line for line in head))


def read(lines: Iterable[str], source: str) -> Reading:
    """Return the tables of a log."""
    reading = Reading(source, NAME)
    name, reductions = UNKNOWN, UNKNOWN
    n: int | None = None
    version: int | None = None
    columns: list[str] = []
    table: Table | None = None
    unreadable = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if found := _VERSION.search(text):
            version = int(found[1][:9])
        elif found := _TITLE.match(text):
            name, n, table = found[1], None, None
        elif found := _PROCESSES.match(text):
            n = int(found[1][:9])
        elif found := _DATATYPE.match(text):
            reductions = common.dtype(found[1]) or UNKNOWN
        elif found := _HEADING.search(text):
            columns = found[1].split()
            table = Table(_facts(name, n), beside={"title": name, "version": version, "line": number})
            reading.tables.append(table)
        elif table is not None and text[:1].isdigit():
            try:
                table.rows.append(_row(number, text.split(), columns, table, reductions))
            except (ValueError, IndexError, OverflowError):
                unreadable.append(number)
    reading.tables = [table for table in reading.tables if table.rows]
    for table in reading.tables:
        _finish(table, reading)
    if unreadable:
        value = f"{len(unreadable)} rows are not of the columns that the heading names, and are left out"
        reading.say("row", DOUBT, unreadable, value, "look at these lines")
    if not len(reading):
        reading.say("no rows", DOUBT, (), "no row of results", "look at what ended the run")
    return reading


def _facts(title: str, n: int | None) -> dict[str, Any]:
    name = common.collective(title)
    return {
        "collective": name or title.lower(),
        "backend": "mpi",
        "buffer": "host",
        "method": "imb",
        "nranks": n,
        "busbw_factor": common.factor(name, n) if name and n else None,
    }


def _whole_vector(table: Table) -> bool:
    """Whether a size is all that a rank gives to a reduce-scatter, and not its share of the result."""
    title, version = table.beside["title"].lower(), table.beside["version"]
    return title == "reduce_scatter" and version is not None and version < _SHARE_SINCE


def _row(number: int, tokens: Sequence[str], columns: Sequence[str], table: Table, reductions: str) -> Row:
    """Return a row with the rate as it is printed; raise ValueError where it is none."""
    message, iterations = common.whole(tokens[0]), common.whole(tokens[1])
    name, n = table.facts["collective"], table.facts["nranks"]
    if name in SHARED and n is None:
        raise ValueError
    whole = _whole_vector(table)
    size = message * n if name in SHARED and not whole else message * _NEIGHBOURS.get(name, 1)
    if size > LARGEST:
        raise ValueError
    dtype = reductions if name in ("allreduce", "reduce", "reducescatter") else UNKNOWN
    block = message // n if whole else message
    count = block // common.ITEMSIZES[dtype] if dtype in common.ITEMSIZES else None
    nothing = None, None, None
    for word in tokens[2:]:
        if word in _ENDED:
            none = None, None, None, None
            reason = f"the log says {word}"
            return Row(number, size, count, dtype, *nothing, *none, _ENDED[word], reason, {"iterations": iterations})
    values = dict(zip(columns, map(common.figure, tokens[2:]), strict=True))
    more: dict[str, Any] = {"iterations": iterations}
    more |= {f"time_us_{end}": values[f"t_{end}[usec]"] for end in ("min", "max") if f"t_{end}[usec]" in values}
    time = values.get("t_avg[usec]", values.get("t[usec]"))
    if time is None or not more.get("time_us_min", time) <= time + 0.01 <= more.get("time_us_max", time) + 0.02:
        raise ValueError  # a mean lies between the smallest and the largest
    rate = values["Mbytes/sec"] / 1e3 / _BYTES_COUNTED.get(name, 1.0) if "Mbytes/sec" in values else None
    return Row(number, size, count, dtype, *nothing, time, rate, None, None, OK, "", more)


def _finish(table: Table, reading: Reading) -> None:
    """Hold printed rates against the slowest rank's time; give those of the time that is kept."""
    slowest = [row._replace(time_us=(row.more or {}).get("time_us_max", row.time_us)) for row in table.rows]
    binary = [row._replace(algbw=row.algbw * _BINARY) for row in slowest if row.algbw is not None]
    if any(map(_contradicts, slowest)) and not any(map(_contradicts, binary)):
        slowest = [row if row.algbw is None else row._replace(algbw=row.algbw * _BINARY) for row in slowest]
        value = "its Mbytes/sec are of 2^20 B, as early releases count: ours are of 1e9 B"
        reading.say("megabyte", NOTE, [table.beside["line"]], value, "none")
    factor = table.facts["busbw_factor"]
    rows = []
    for row, checked in zip(table.rows, common.verified(slowest, None, reading), strict=True):
        if checked.status == OK and row.time_us is not None:
            algbw = checked.algbw if checked.time_us == row.time_us else None  # a mean has no printed rate
            if algbw is None and row.time_us:
                algbw = row.size / row.time_us / 1e3
            busbw = None if algbw is None or factor is None else algbw * factor
            checked = row._replace(algbw=algbw, busbw=busbw)
        rows.append(checked)
    table.rows = rows
    if table.beside["title"].lower() == "reduce_scatter" and table.beside["version"] is None:
        value = (
            "the release is not stated: sizes are taken as ranks' shares, and up to 2018 were those of whole vectors"
        )
        reading.say("size", DOUBT, [table.beside["line"]], value, "keep the heading of the whole run in the log")


def _contradicts(row: Row) -> bool:
    """Whether a row's rate is not size / time."""
    both = row.status == OK and row.time_us is not None and row.algbw is not None
    return both and not common.rate_agrees(row.size, row.time_us or 0.0, row.algbw or 0.0)
