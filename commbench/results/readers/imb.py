"""The Intel MPI Benchmarks. A size is a rank's message there, as with OSU; Mbytes/sec are 1e6 B."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from commbench.results import reading as common
from commbench.results.findings import DOUBT
from commbench.results.reading import SHARED, UNKNOWN, Reading, Row, Table
from commbench.results.status import FAILED, OK, TIMEOUT
from commbench.units import LARGEST

NAME = "Intel MPI Benchmarks"

_TITLE = re.compile(r"#\s*Benchmarking\s+(\S+)")
_PROCESSES = re.compile(r"#\s*#processes\s*=\s*(\d+)")
_HEADING = re.compile(r"#bytes\s+#repetitions\b(.*)")
_DATATYPE = re.compile(r"#\s*MPI_Datatype for reductions\s*:\s*(\w+)")
_ENDED = {"time-out.;": TIMEOUT, "int-overflow.;": FAILED, "int-overflow;": FAILED, "out-of-mem.;": FAILED}


def recognise(head: Sequence[str]) -> float:
    """Return 1 for a heading or a title."""
    return float(any(_HEADING.search(line) or "Intel(R) MPI Benchmarks" in line for line in head))


def read(lines: Iterable[str], source: str) -> Reading:
    """Return the tables of a log."""
    reading = Reading(source, NAME)
    name, reductions = UNKNOWN, UNKNOWN
    n: int | None = None
    columns: list[str] = []
    table: Table | None = None
    unreadable = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if found := _TITLE.match(text):
            name, n, table = found[1], None, None
        elif found := _PROCESSES.match(text):
            n = int(found[1][:9])
        elif found := _DATATYPE.match(text):
            reductions = common.dtype(found[1]) or UNKNOWN
        elif found := _HEADING.search(text):
            columns = found[1].split()
            table = Table(_facts(name, n))
            reading.tables.append(table)
        elif table is not None and text[:1].isdigit():
            try:
                table.rows.append(_row(number, text.split(), columns, table.facts, reductions))
            except (ValueError, IndexError, OverflowError):
                unreadable.append(number)
    reading.tables = [table for table in reading.tables if table.rows]
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


def _row(number: int, tokens: Sequence[str], columns: Sequence[str], facts: dict[str, Any], reductions: str) -> Row:
    message, iterations = common.whole(tokens[0]), common.whole(tokens[1])
    name, n, factor = facts["collective"], facts["nranks"], facts["busbw_factor"]
    if name in SHARED and n is None:
        raise ValueError
    size = message * n if name in SHARED else message
    if size > LARGEST:
        raise ValueError
    dtype = reductions if name in ("allreduce", "reduce", "reducescatter") else UNKNOWN
    count = message // common.ITEMSIZES[dtype] if dtype in common.ITEMSIZES else None
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
    algbw = values["Mbytes/sec"] / 1e3 if "Mbytes/sec" in values else None
    if algbw is None and time and name != "pingpong":
        algbw = size / time / 1e3
    busbw = None if algbw is None or factor is None else algbw * factor
    return Row(number, size, count, dtype, *nothing, time, algbw, busbw, None, OK, "", more)
