"""Our own records: JSON lines of `--format json`, and records.jsonl away from its run's folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from commbench.results.findings import DOUBT
from commbench.results.reading import Reading
from commbench.results.record import FORMAT, Record
from commbench.results.trust import trusted

NAME = "commbench records"


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
    return trusted(Record(**{field.name: entry[field.name] for field in fields(Record)}))
