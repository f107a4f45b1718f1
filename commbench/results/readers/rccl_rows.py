"""What rccl-tests writes to a file (-Z csv, -Z json, -x or -X), both generations, and tab-separated excerpts of it.

A record is one placement of one size. The CSV of 2024-10 to 2025-07 has a heading that is one column short (`nodes`);
its JSON is one object a line, the newer one an array.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from commbench.results import reading as common
from commbench.results.findings import DOUBT, NOTE
from commbench.results.reading import ITEMSIZES, SHARED, UNKNOWN, Reading, Row, Table
from commbench.results.status import OK, WRONG

NAME = "rccl-tests CSV or JSON"

_NAMES = {"name": "collective", "wrong": "#wrong", "algbandwidth": "algbw", "busbandwidth": "busbw"}
_JSON = re.compile(r'"(?:ranksPerNode|rankspernode|gpusPerRank|gpusperrank)"\s*:|"bus[bB]w"\s*:')


def recognise(head: Sequence[str]) -> float:
    """Return 0.95 for a heading that names busbw between separators, or JSON with the same keys."""
    if any(_heading(line) for line in head[:1000]):
        return 0.95
    start = "".join(head[:200])
    return 0.95 if start.lstrip()[:1] in ("[", "{") and _JSON.search(start) and '"inplace"' in start.lower() else 0.0


def read(lines: Iterable[str], source: str) -> Reading:
    """Return a table for each collective and set of ranks."""
    reading = Reading(source, NAME)
    tables: dict[tuple[Any, ...], Table] = {}
    unreadable: list[int] = []
    for number, entry in _entries(lines, unreadable):
        try:
            facts, row = _row(number, entry)
        except (ValueError, KeyError, TypeError, OverflowError):
            unreadable.append(number)
            continue
        tables.setdefault(tuple(facts.items()), Table(facts)).rows.append(row)
    for table in tables.values():
        table.rows = common.verified(table.rows, table.facts["busbw_factor"], reading)
        if any(row.time_us is None and row.status == OK for row in table.rows):
            value = "the rows have no time, so that their rates cannot be checked"
            reading.say("no time", NOTE, [row.line for row in table.rows], value, "keep all columns")
    reading.tables = list(tables.values())
    if unreadable:
        value = f"{len(unreadable)} rows are not of the columns that are named, and are left out"
        reading.say("row", DOUBT, unreadable, value, "look at these lines: a crash cuts the last ones")
    if not tables:
        reading.say("no rows", DOUBT, (), "no row of results", "the file is written at the very end of a run")
    return reading


def _heading(line: str) -> list[str] | None:
    """Return the names of the columns, None where a line is no heading."""
    separator = "\t" if "\t" in line else ","
    words = [word.strip().lower() for word in line.split(separator)]
    names = [_NAMES.get(word, word) for word in words]
    return names if {"size", "type", "busbw"} <= set(names) and all(" " not in name for name in names) else None


def _entries(lines: Iterable[str], unreadable: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each record with its line, as names and values."""
    names: list[str] | None = None
    separator = ","
    array: list[str] = []
    start = 0
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if array or (names is None and text[:1] == "["):
            start = start or number
            array.append(line)
        elif names is None and text[:1] == "{":
            try:
                entry = json.loads(text.rstrip(","))
            except (ValueError, RecursionError):
                unreadable.append(number)
                continue
            yield number, _named(entry)
        elif found := _heading(line):
            names, separator = found, "\t" if "\t" in line else ","
        elif names is not None and text and not text.startswith(("#", "(")):
            words = [word.strip() for word in text.split(separator)]
            columns = names
            if len(words) == len(names) + 1 and names[:2] == ["collective", "ranks"]:
                columns = ["collective", "nodes", *names[1:]]  # the heading of 2024 is one short
            if len(words) == len(columns):
                yield number, dict(zip(columns, words, strict=True))
            else:
                unreadable.append(number)
    yield from _array(array, start, unreadable)


def _array(lines: Sequence[str], start: int, unreadable: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of an array, one after another, so that one that was cut still gives its first ones."""
    text, decoder, place = "".join(lines), json.JSONDecoder(), 1
    text = text.lstrip()
    while (place := text.find("{", place)) >= 0:
        line = start + text.count("\n", 0, place)
        try:
            entry, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            unreadable.append(line)
            return
        yield line, _named(entry)


def _named(entry: Any) -> dict[str, Any]:
    return {_NAMES.get(str(name).lower(), str(name).lower()): value for name, value in entry.items()} if entry else {}


def _row(number: int, entry: dict[str, Any]) -> tuple[dict[str, Any], Row]:
    """Return what a record shares with others, and its row; raises ValueError where it is none."""
    name = common.collective(str(entry["collective"])) if "collective" in entry else None
    n = common.whole(entry["ranks"]) if "ranks" in entry else None
    if n is None and "gpus" in entry:
        n = common.whole(entry["gpus"])  # a build without MPI: one process
    nodes = common.whole(entry["nodes"]) if entry.get("nodes") is not None else None
    if n is not None and n < 1:
        raise ValueError
    dtype = common.dtype(str(entry["type"]).strip())
    if dtype is None:
        raise ValueError
    size = common.whole(entry["size"])
    share = size // n if n and name in SHARED else size
    place = str(entry["inplace"]).strip().lower() if "inplace" in entry else ""
    if place not in ("", "0", "1", "true", "false"):
        raise ValueError
    redop = str(entry.get("redop", "none")).strip().lower()
    time, algbw, busbw = (common.figure(entry[key]) if key in entry else None for key in ("time", "algbw", "busbw"))
    word = str(entry.get("#wrong", "N/A")).strip()
    wrong = None if word in ("N/A", "-1", "None") else common.whole(int(float(word)))
    status, reason = (WRONG, f"{wrong} elements are wrong") if wrong else (OK, "")
    more: dict[str, Any] = {}
    if "algo" in entry and entry["algo"] not in ("", "N/A"):
        more["observed_algorithm"], more["evidence"] = common.algorithm(entry["algo"]), "column of rccl-tests"
    if "proto" in entry and entry["proto"] not in ("", "N/A"):
        more["observed_protocol"] = common.protocol(entry["proto"])
    if str(entry.get("nchannels", "")).isdecimal():
        more["channels"] = common.whole(entry["nchannels"])
    count = share // ITEMSIZES[dtype] if name or "collective" not in entry else None
    if name is None:
        count = None  # which of a rank's blocks it is hangs on the collective
    inplace = None if not place else place in ("1", "true")
    facts = {
        "collective": name or UNKNOWN,
        "backend": "rccl",
        "library": "RCCL",
        "method": "nccl-tests",
        "nranks": n,
        "nnodes": nodes,
        "busbw_factor": common.factor(name, n) if name and n else None,
    }
    reduces = None if redop in ("none", "") else redop
    return facts, Row(
        number, size, count, dtype, reduces, None, inplace, time, algbw, busbw, wrong, status, reason, more or None
    )
