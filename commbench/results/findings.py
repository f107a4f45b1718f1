"""What is to be said of results beside their numbers: the rule, what broke it, where, and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

WITHDRAWN = "withdrawn"  # numbers were taken back: they stand in no table and no ranking
DOUBT = "doubt"  # numbers stand, and may not mean what they seem to
NOTE = "note"  # nothing is wrong
LEVELS = (WITHDRAWN, DOUBT, NOTE)
MOST_LINES = 20  # kept of a finding; `count` has them all


@dataclass(frozen=True)
class Finding:
    """One thing to be said of a file or a run."""

    rule: str  # a fixed word, to select by
    level: str
    source: str  # the file or the run's folder
    lines: tuple[int, ...]  # of the source, from 1, at most MOST_LINES; empty: of the whole
    count: int  # how many lines or cells it is about
    value: str  # what was seen
    remedy: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as it stands in JSON."""
        return asdict(self)

    def __str__(self) -> str:
        where = f":{_listed(self.lines, self.count)}" if self.lines else ""
        return f"{self.level}: {self.source}{where}: {self.value} ({self.rule}); {self.remedy}"


def finding(rule: str, level: str, source: str, lines: Iterable[int], value: str, remedy: str) -> Finding:
    """Return a finding about `lines`, of which it keeps the first ones."""
    every = sorted(lines)
    return Finding(rule, level, source, tuple(every[:MOST_LINES]), len(every), value, remedy)


def _listed(lines: Sequence[int], count: int) -> str:
    shown = ",".join(map(str, lines[:4]))
    return f"{shown} and {count - 4} more" if count > 4 else shown
