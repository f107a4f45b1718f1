"""Whether a record is one that commbench may have written: files come from anywhere, and may have been changed."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from typing import Any

from commbench.results.record import FORMAT, Record
from commbench.results.status import STATUSES
from commbench.units import LARGEST

_TYPES = {field.name: str(field.type).split(" | ") for field in fields(Record)}
_KINDS: dict[str, Any] = {"str": str, "int": int, "float": (int, float), "bool": bool, "list[float]": list}
_RANGES = re.compile(r"\d{1,10}(-\d{1,10})?(,\d{1,10}(-\d{1,10})?)*")
_SIGNED = ("drift", "root")
_LONGEST = 1e15  # us, some thirty years: no time, rate or skew is above


def trusted(record: Record) -> Record:
    """Return the record; raise ValueError, which names the field, where it holds what none can."""
    for name, names in _TYPES.items():
        value = getattr(record, name)
        if value is None and "None" in names:
            continue
        if (isinstance(value, bool) and names[0] != "bool") or not isinstance(value, _KINDS[names[0]]):
            raise ValueError(f"{name} is {value!r}")
        if names[0] == "int" and not (-1 if name in _SIGNED else 0) <= value <= LARGEST:
            raise ValueError(f"{name} is {value!r}")
        if names[0] == "float" and not _is_figure(value, name):
            raise ValueError(f"{name} is {value!r}")
    if record.status not in STATUSES or not 0 < record.version <= FORMAT:
        raise ValueError(f"status and version are {record.status!r} and {record.version!r}")
    _check_skews(record)
    return record


def _is_figure(value: Any, name: str) -> bool:
    if not math.isfinite(value) or abs(value) > _LONGEST:
        return False
    return value >= 0 or name in _SIGNED


def _check_skews(record: Record) -> None:
    """Raise ValueError unless there is a skew for each rank, and the ranks can be told."""
    for name in ("arrival_skew_us", "exit_skew_us"):
        skews = getattr(record, name)
        if skews is None:
            continue
        if len(skews) != record.nranks or not _RANGES.fullmatch(record.ranks):
            raise ValueError(f"{name} has {len(skews)} values for ranks {record.ranks[:40]!r}")
        ends = [list(map(int, part.split("-"))) for part in record.ranks.split(",")]
        if sum(end[-1] - end[0] + 1 for end in ends) != record.nranks:
            raise ValueError(f"ranks {record.ranks[:40]!r} are not {record.nranks}")
        if not all(isinstance(skew, int | float) and math.isfinite(skew) and abs(skew) <= _LONGEST for skew in skews):
            raise ValueError(f"{name} holds what is no time")
