"""The OSU Micro-Benchmarks: in C (plain, -f, -c, -z) and in Python, over MPI, NCCL and RCCL.

A size is a rank's message there, and ours the larger of what a rank sends and receives: n messages of an all-gather,
say; of a reduce-scatter it is the whole vector, as ours (osu_reduce_scatter.c: a rank's portion is size / numprocs).
No line states n, so that the size of such a table is known only where the command above it does.

Non-blocking tests time something else (a call that computation overlaps), so that they have a method of their own.
Their time is the pure communication, measured apart: Overall holds the computation too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from commbench.results import reading as common
from commbench.results.findings import DOUBT, NOTE
from commbench.results.reading import SHARED, UNKNOWN, Reading, Row, Table
from commbench.results.status import OK, WRONG
from commbench.units import LARGEST

NAME = "OSU Micro-Benchmarks"

_TITLE = re.compile(r"#\s*(?:OSU|OMB)(?: Python)? (?P<kind>MPI|NCCL|RCCL|XCCL)(?P<device>-\w+)? (?P<test>.+?) Test\b")
_VERSION = re.compile(r"\bv(\d+(?:\.\d+)+)")
_DATATYPE = re.compile(r"#\s*Datatype:\s*(\w+)")
_HEADING = re.compile(r"#\s*Size\b")
_COLUMN = re.compile(
    r"(?:Avg |Min |Max )?(?:Lat|Latency) ?\(us\)|P\d+(?:\.\d+)? Tail Lat\(us\)|Bandwidth \(MB/s\)|Iterations|Validation"
    r"|(?:Overall|Compute|Pure Comm\.|Coll\. Init|MPI_Test|MPI_Wait|Min Comm|Max Comm)\(us\)|Overlap\(%\)|\(B\)"
    r"|Transmit Size|Messages/s"
)
_RANKS = re.compile(r"(?:mpirun|mpiexec|srun)\b.*?\s(?:-np|-n|--ntasks)[ =](\d+)\b.*osu_")
_AVERAGES = ("Avg Latency(us)", "Latency (us)", "Latency(us)", "Avg Lat(us)")
_NONBLOCKING = "Non-blocking "
_MESSAGES = SHARED - {"reducescatter"}  # whose size here is n messages
_LIBRARY = {"NCCL": "nccl", "RCCL": "rccl", "MPI": "mpi"}


def recognise(head: Sequence[str]) -> float:
    """Return 1 for a title."""
    return float(
        any(("OSU" in line and _TITLE.search(line)) or ("OMB" in line and _TITLE.search(line)) for line in head)
    )


def read(lines: Iterable[str], source: str) -> Reading:
    """Return the tables of a log."""
    reading = Reading(source, NAME)
    table: Table | None = None
    columns: list[str] = []
    heading = ranks = 0
    unreadable: list[int] = []
    for number, line in enumerate(lines, start=1):
        text = re.sub(r"^\s*(?:\[\d+,\d+\]<std(?:out|err)>:|\d+: )", "", line).strip()
        if found := _TITLE.search(text):
            version = _VERSION.search(text)
            table = Table(
                _facts(found, ranks or None), beside={"version": version[1] if version else None, "line": number}
            )
            reading.tables.append(table)
            columns, ranks = [], 0  # a command is that of one table
        elif found := _RANKS.search(text):
            ranks = min(int(found[1][:9]), LARGEST)
        elif table is None:
            continue
        elif found := _DATATYPE.match(text):
            table.facts["dtype"] = common.dtype(found[1]) or UNKNOWN
        elif _HEADING.match(text):
            columns = [name for name in _COLUMN.findall(text) if name != "(B)"]
            heading = number
        elif text[:1].isdigit():
            try:
                row = _row(number, text.split(), columns or ["Latency (us)"], table.facts)
            except (ValueError, IndexError, OverflowError):
                unreadable.append(number)
                continue
            table.rows.append(row)
    if unreadable:
        value = f"{len(unreadable)} rows are not of the columns that the heading names, and are left out"
        reading.say("row", DOUBT, unreadable, value, "write the table and the library's log to files of their own")
    for table in reading.tables:
        _finish(table, reading)
    if not len(reading):
        reading.say("no rows", DOUBT, [heading] if heading else (), "no row of results", "look at what ended the run")
    reading.tables = [table for table in reading.tables if table.rows]
    return reading


def _facts(title: re.Match[str], n: int | None) -> dict[str, Any]:
    test = re.sub(r" (?:Latency|Bandwidth|Overall)$", "", title["test"].replace(_NONBLOCKING, "").strip())
    pointwise = "pingpong" if title["test"].strip() == "Latency" else None
    name = common.collective(test) or pointwise
    return {
        "collective": name or UNKNOWN,
        "backend": _LIBRARY.get(title["kind"], UNKNOWN),
        "library": UNKNOWN,
        "buffer": "host" if title["device"] is None and title["kind"] == "MPI" else "plain",
        "method": "osu-nonblocking" if _NONBLOCKING in title["test"] else "osu",
        "nranks": 2 if name == "pingpong" else n,
        "busbw_factor": None if name is None or not n else common.factor(name, n),
    }


def _row(number: int, tokens: Sequence[str], columns: Sequence[str], facts: dict[str, Any]) -> Row:
    """Return a row; raises ValueError where it is none."""
    message = common.whole(tokens[0])
    values = dict(zip(columns, tokens[1:], strict=False))
    if len(tokens) != len(columns) + 1:
        raise ValueError
    time = next((values[name] for name in _AVERAGES if name in values), None)
    rate = values.get("Bandwidth (MB/s)")
    if time is None and rate is None:
        time = values.get("Pure Comm.(us)", tokens[1])
    more: dict[str, Any] = {}
    for name, word in values.items():
        if name.startswith("Min Lat"):
            more["time_us_min"] = common.figure(word)  # of the ranks' means, as is the largest
        elif name.startswith("Max Lat"):
            more["time_us_max"] = common.figure(word)
        elif name.startswith("P99 "):
            more["time_us_p99"] = common.figure(word)
        elif name == "Iterations":
            more["iterations"] = common.whole(word)
        elif name not in ("Validation", "Transmit Size", "Bandwidth (MB/s)"):
            common.figure(word)
    failed = values.get("Validation") == "Fail"
    status, reason = (WRONG, "its validation says Fail") if failed else (OK, "")
    us = None if time is None else common.figure(time)
    if us is not None and not more.get("time_us_min", us) <= us + 0.01 <= more.get("time_us_max", us) + 0.02:
        raise ValueError  # a mean lies between the smallest and the largest
    algbw = None if rate is None else common.figure(rate) / 1e3
    return Row(number, message, None, UNKNOWN, None, None, None, us, algbw, None, None, status, reason, more or None)


def _finish(table: Table, reading: Reading) -> None:
    """Turn messages into sizes, and times into rates, where n is known."""
    name, n, kind = table.facts["collective"], table.facts["nranks"], table.facts.pop("dtype", UNKNOWN)
    factor = table.facts["busbw_factor"]
    line = table.beside["line"]
    times = n if name in _MESSAGES else 1
    rows = []
    for row in table.rows:
        size = row.size * (times or 1)
        if size > LARGEST:
            continue
        itemsize = common.ITEMSIZES.get(kind)
        block = size // n if name == "reducescatter" and n else row.size
        count = None if not itemsize or (name == "reducescatter" and not n) else block // itemsize
        algbw = row.algbw
        if algbw is None and times and row.time_us and name != "pingpong":
            algbw = size / row.time_us / 1e3
        busbw = None if algbw is None or factor is None else algbw * factor
        rows.append(row._replace(size=size, count=count, dtype=kind, algbw=algbw, busbw=busbw))
    table.rows = common.verified(rows, factor, reading) if any(row.status == WRONG for row in rows) else rows
    if name in _MESSAGES and n is None and rows:
        value = "sizes are a rank's messages: the number of ranks is not stated, by which ours are larger"
        reading.say("size", DOUBT, [line], value, "keep the command line (mpirun -np N) in the log")
    elif n is None and rows:
        value = "the number of ranks is not stated, so that there is no busbw"
        reading.say("ranks", NOTE, [line], value, "keep the command line (mpirun -np N) in the log")
