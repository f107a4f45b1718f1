"""Values of files that anybody may have written, and what a file's name says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

MOST_RANKS = 1 << 20  # more than any job has


def rank_in_name(source: str, last: bool = False) -> int | None:
    """Return the rank that a file's name holds (rank3.json), or with `last` the number that it ends in (_dump_3)."""
    name = Path(source).name
    found = re.search(r"rank[-_]?(\d{1,6})(?!\d)", name, re.IGNORECASE)
    if found is None and last:
        found = re.search(r"(?<!\d)(\d{1,6})(?:\.[a-zA-Z]\w*)*$", name)
    return int(found[1]) if found else None


def text(value: Any) -> str:
    """Return a value that is text; raise ValueError for any other, which hostile files make of any size and depth."""
    if type(value) is not str:
        raise ValueError
    return value


def whole(value: Any) -> int:
    """Return a value that is a whole number of no more than 63 bits and not below 0; raise ValueError for any other."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError
    return value
