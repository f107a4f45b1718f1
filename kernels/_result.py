"""What a run says: of each row and rank its record, its share of the baseline and of the ceiling, by paired rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.kernels._factors import BASELINE, CEILING
from commbench.kernels._study import Study
from commbench.results.journal import Journal
from commbench.results.record import Record
from commbench.results.stats import median, median_interval
from commbench.results.status import OK

_SLOW = 1.05  # by so much a device must surely be slower than the others' median to be named


@dataclass(frozen=True)
class Share:
    """A ratio of two bandwidths: the median over the rounds that have both, and its interval (from five on)."""

    ratio: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Result:
    """One row on one rank."""

    study: int
    rank: int
    factor: str
    level: str
    predicted_low: float | None
    predicted_high: float | None
    record: Record
    of_baseline: Share | None
    of_ceiling: Share | None
    of_peak: float | None  # of the data sheet's

    def to_dict(self) -> dict[str, Any]:
        """Return the record with what kernels have beside, flat."""
        about: dict[str, Any] = {"rank": self.rank, "factor": self.factor, "level": self.level}
        about |= {"predicted_low": self.predicted_low, "predicted_high": self.predicted_high}
        for name, share in (("of_baseline", self.of_baseline), ("of_ceiling", self.of_ceiling)):
            about |= {name: share and share.ratio, f"{name}_low": share and share.low}
            about[f"{name}_high"] = share and share.high
        return {**self.record.to_dict(), **about, "of_peak": self.of_peak}


def results(journal: Journal, studies: Sequence[Study], ranks: int, peaks: Sequence[float | None]) -> list[Result]:
    """Return what there is of each row and rank, in the plan's order."""
    found: list[Result] = []
    cell = 0
    for number, study in enumerate(studies):
        first = cell
        rates = {index: _rates(journal, index) for index in range(first, first + len(study.rows) * ranks)}
        place = {row.level.factor: index for index, row in enumerate(study.rows)}
        for row in study.rows:
            for rank in range(ranks):
                level, record = row.level, journal.record(cell)
                baseline = rates[first + place[BASELINE] * ranks + rank]
                ceiling = rates[first + place[CEILING] * ranks + rank]
                peak, rate = peaks[rank], record.algbw
                found.append(
                    Result(
                        *(number, rank, level.factor, level.level, level.predicted_low, level.predicted_high),
                        record,
                        _share(rates[cell], baseline) if record.status == OK else None,
                        _share(rates[cell], ceiling) if record.status == OK else None,
                        rate / peak if rate and peak else None,
                    )
                )
                cell += 1
    return found


def _rates(journal: Journal, index: int) -> dict[int, float]:
    """Return the bandwidth of a cell in each round, in GB/s."""
    size = journal.cells[index]["size"]
    good = (visit for visit in journal.visits[index] if visit["status"] == OK)
    return {visit["round"]: size / visit["median_us"] / 1e3 for visit in good}


def _share(mine: Mapping[int, float], other: Mapping[int, float]) -> Share | None:
    ratios = [mine[number] / other[number] for number in mine.keys() & other.keys()]
    if not ratios:
        return None
    low, high = median_interval(ratios) or (None, None)
    return Share(median(ratios), low, high)


def slow(journal: Journal, studies: Sequence[Study], names: Sequence[str]) -> list[str]:
    """Say which devices are surely slower than the others in some kernel's baseline, by rounds that all have."""
    ranks, cell, found = len(names), 0, []
    for study in studies:
        for row in study.rows:
            if row.level.factor == BASELINE and ranks > 1:
                rates = [_rates(journal, cell + rank) for rank in range(ranks)]
                for rank in range(ranks):
                    if share := _against_peers(rank, rates):
                        found.append(
                            f"{names[rank]} is slow: {row.pattern.label} {study.dtype} at {share.ratio:.2f} of the "
                            f"others' median ({share.low:.2f} to {share.high:.2f})"
                        )
            cell += ranks
    return found


def _against_peers(rank: int, rates: Sequence[Mapping[int, float]]) -> Share | None:
    """Return a rank's share of the others' median where all of its interval is below 1 / _SLOW."""
    peers: dict[int, float] = {}
    for number in set.intersection(*(set(one) for one in rates)):
        peers[number] = median([one[number] for other, one in enumerate(rates) if other != rank])
    share = _share(rates[rank], peers)
    return share if share and share.high is not None and share.high < 1 / _SLOW else None
