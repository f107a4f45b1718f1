"""JSON lines of NCCL's inspector, a profiler plugin: a collective of one rank a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from commbench.results import reading as common
from commbench.results.findings import DOUBT, NOTE
from commbench.results.reading import SHARED, UNKNOWN, Reading, Row, Table

NAME = "NCCL inspector JSON lines"


def recognise(head: Sequence[str]) -> float:
    """Return 1 where a line has what the inspector measured."""
    return float(any('"coll_perf"' in line and line.lstrip()[:1] == "{" for line in head))


def read(lines: Iterable[str], source: str) -> Reading:
    """Return a table for each communicator, collective and host."""
    reading = Reading(source, NAME)
    tables: dict[tuple[Any, ...], Table] = {}
    unreadable, total = [], 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        total += 1
        try:
            facts, row = _row(number, json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            unreadable.append(number)
            continue
        tables.setdefault(tuple(facts.items()), Table(facts)).rows.append(row)
    for table in tables.values():
        table.rows = common.verified(table.rows, table.facts["busbw_factor"], reading)
    reading.tables = list(tables.values())
    if unreadable:
        value = f"{len(unreadable)} of {total} lines are no records of the inspector, and are left out"
        reading.say("row", DOUBT, unreadable, value, "look at these lines: a killed job leaves the last one cut")
    if tables:
        value = "a record is one rank's view of one collective: its time may hold the wait for other ranks"
        reading.say("one rank", NOTE, (), value, "compare the ranks' files")
    return reading


def _row(number: int, entry: dict[str, Any]) -> tuple[dict[str, Any], Row]:
    header, perf = entry["header"], entry["coll_perf"]
    name = common.collective(perf["coll"])
    n, nodes = common.whole(header["n_ranks"]), common.whole(header["nnodes"])
    if name is None or n < 1:
        raise ValueError
    message = common.whole(perf["coll_msg_size_bytes"])
    size = common.whole(message * n if name in SHARED else message)  # a rank's share there
    facts = {
        "collective": name,
        "backend": "nccl",
        "library": "NCCL",
        "method": "inspector",
        "nranks": n,
        "nnodes": nodes,
        "busbw_factor": common.factor(name, n),
        "group": str(header.get("id", UNKNOWN)),
        "hosts": UNKNOWN,
    }
    time = common.figure(perf["coll_exec_time_us"])
    rates = common.figure(perf["coll_algobw_gbs"]), common.figure(perf["coll_busbw_gbs"])
    more = {"iterations": 1, "rank": common.whole(header["rank"]), "sequence": perf.get("coll_sn")}
    return facts, Row(number, size, None, UNKNOWN, None, None, None, time, *rates, None, more=more)
