"""Our own records: JSON lines of `--format json`, and records.jsonl away from its run's folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from commbench.results.findings import DOUBT
from commbench.results.reading import Reading, figure
from commbench.results.record import FORMAT, Record
from commbench.results.status import STATUSES

NAME = "commbench records"

_TYPES = {field.name: str(field.type) for field in fields(Record)}
_KINDS: dict[str, Any] = {"str": str, "int": int, "float": (int, float), "bool": bool, "list[float]": list}


def recognise(head: Sequence[str]) -> float:
    """Return 1 where a line has the keys of a record."""
    return float(any('"busbw_factor"' in line and '"observed_algorithm"' in line for line in head))


def read(lines: Iterable[str], source: str) -> Reading:
    """Return the records of a file, those left out that are none."""
    records, unreadable = [], []
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            try:
                records.append(_record(json.loads(line)))
            except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
                unreadable.append(number)
    reading = Reading.of(source, NAME, records)
    if unreadable:
        value = f"{len(unreadable)} lines are no records of format {FORMAT} or earlier, and are left out"
        reading.say("row", DOUBT, unreadable, value, "read the run's folder, from which records are made anew")
    return reading


def _record(entry: dict[str, Any]) -> Record:
    if not isinstance(entry, dict) or not 0 < entry["version"] <= FORMAT or entry["status"] not in STATUSES:
        raise ValueError
    for name, kind in _TYPES.items():
        value, names = entry[name], kind.split(" | ")
        if value is None and "None" in names:
            continue
        if (isinstance(value, bool) and names[0] != "bool") or not isinstance(value, _KINDS[names[0]]):
            raise ValueError
        if names[0] in ("int", "float") and name not in ("drift", "root"):
            figure(value)
    return Record(**{name: entry[name] for name in _TYPES})
