"""JSON lines of NCCL's inspector, a profiler plugin: a line is one rank's view of one collective.

A file holds the ranks of one process. Those that say the same of one collective (communicator and sequence number)
become one row, that of the slowest rank; what other ranks' files say of it is not known here.
"""

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
    """Return a table for each communicator and collective."""
    reading = Reading(source, NAME)
    tables: dict[tuple[Any, ...], Table] = {}
    unreadable, total = [], 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        total += 1
        try:
            communicator, facts, row = _row(number, json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            unreadable.append(number)
            continue
        key = communicator, *facts.items()
        tables.setdefault(key, Table(facts, beside={"communicator": communicator})).rows.append(row)
    held = {_fold(table, reading) for table in tables.values()}
    reading.tables = list(tables.values())
    if unreadable:
        value = f"{len(unreadable)} of {total} lines are no records of the inspector, and are left out"
        reading.say("row", DOUBT, unreadable, value, "look at these lines: a killed job leaves the last one cut")
    if partly := sorted(f"{ranks} of {n}" for ranks, n in held if ranks < n):
        value = (
            f"{', '.join(partly)} ranks are in this file: a time is that of the slowest of them, and may hold its wait "
            "for others, whose files are not folded in"
        )
        reading.say("one rank", NOTE, (), value, "compare the ranks' files; they are no launches of their own")
    return reading


def _fold(table: Table, reading: Reading) -> tuple[int, int]:
    """Make one row of what several ranks say of one collective; return how many ranks do, and how many there are."""
    collectives: dict[Any, list[Row]] = {}
    ranks = set()
    for row in common.verified(table.rows, table.facts["busbw_factor"], reading):
        more = row.more or {}
        ranks.add(more["rank"])
        key = row.line if more["sequence"] is None else (more["sequence"], row.size)
        collectives.setdefault(key, []).append(row)
    table.rows = [max(rows, key=_lateness) for rows in collectives.values()]
    return len(ranks), table.facts["nranks"]


def _lateness(row: Row) -> float:
    """Return a row's time; a row that was withdrawn may have been the slowest."""
    return float("inf") if row.time_us is None else row.time_us


def _row(number: int, entry: dict[str, Any]) -> tuple[str, dict[str, Any], Row]:
    """Return a line's communicator, what its table shares, and its row; raise what a line that is none leads to."""
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
    }
    time = common.figure(perf["coll_exec_time_us"])
    rates = common.figure(perf["coll_algobw_gbs"]), common.figure(perf["coll_busbw_gbs"])
    sequence = perf.get("coll_sn")
    more: dict[str, Any] = {"iterations": 1, "rank": common.whole(header["rank"])}
    more["sequence"] = None if sequence is None else common.whole(sequence)
    communicator = str(header.get("id", UNKNOWN))
    return communicator, facts, Row(number, size, None, UNKNOWN, None, None, None, time, *rates, None, more=more)
