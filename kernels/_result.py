"""What a run says: of each row and rank its record, its shares of other rows, by paired rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.kernels._factors import BASELINE, CEILING, SAMPLE, sample
from commbench.kernels._slow import FALSE_ALARMS, Block, slow
from commbench.kernels._study import Row, Study
from commbench.kernels._traffic import Memory
from commbench.results.journal import Journal
from commbench.results.record import Record
from commbench.results.stats import median, median_interval
from commbench.results.status import OK

Rates = Mapping[tuple[int, int], float]  # GB/s by session and round: what was visited in one round stands side by side


@dataclass(frozen=True)
class Share:
    """A ratio of two bandwidths: the median over rounds of a session that have both, its interval (from five on)."""

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
    against: str  # the row that it differs from in one thing
    predicted_low: float | None  # of that row
    predicted_high: float | None
    traffic: dict[str, float]  # predicted: sectors and lines
    record: Record
    of_reference: Share | None  # of the row that it is held against
    of_baseline: Share | None
    of_ceiling: Share | None
    of_peak: float | None  # of the data sheet's

    def to_dict(self) -> dict[str, Any]:
        """Return the record with what kernels have beside, flat."""
        about: dict[str, Any] = {"rank": self.rank, "factor": self.factor, "level": self.level}
        about |= {"against": self.against, "predicted_low": self.predicted_low, "predicted_high": self.predicted_high}
        shares = {"of_reference": self.of_reference, "of_baseline": self.of_baseline, "of_ceiling": self.of_ceiling}
        for name, share in shares.items():
            about |= {name: share and share.ratio, f"{name}_low": share and share.low}
            about[f"{name}_high"] = share and share.high
        return {**self.record.to_dict(), **about, "of_peak": self.of_peak, **self.traffic}


def results(journal: Journal, studies: Sequence[Study], memory: Memory, peaks: Sequence[float | None]) -> list[Result]:
    """Return what there is of each row and rank, in the plan's order; `peaks` has one entry a rank."""
    found: list[Result] = []
    cell, ranks = 0, len(peaks)
    for number, study in enumerate(studies):
        first = cell
        rates = [_rates(journal, index) for index in range(first, first + len(study.rows) * ranks)]
        place = {row.level.name: index * ranks for index, row in enumerate(study.rows)}
        for row in study.rows:
            level, traffic = row.level, _traffic(row, memory)
            for rank in range(ranks):
                record, mine = journal.record(cell), rates[cell - first]
                of, base, top = (rates[place[name] + rank] for name in (level.against, BASELINE, CEILING))
                peak, rate = peaks[rank], record.algbw
                found.append(
                    Result(
                        *(number, rank, level.factor, level.level, level.against),
                        *(level.predicted_low, level.predicted_high, traffic, record),
                        of_reference=_share(mine, of) if record.status == OK else None,
                        of_baseline=_share(mine, base) if record.status == OK else None,
                        of_ceiling=_share(mine, top) if record.status == OK else None,
                        of_peak=rate / peak if rate and peak else None,
                    )
                )
                cell += 1
    return found


def _traffic(row: Row, memory: Memory) -> dict[str, float]:
    """Return the predicted sectors and lines: of a request, the mean, and of a launch, each once a direction."""
    found = sample(row.problem.pattern, row.level.access, memory)
    about: dict[str, float] = {}
    for name, counts in (("sectors", found.sectors), ("lines", found.lines)):
        about[f"{name}_per_request"] = found.a_request(counts)
        about[name] = round(sum(once for once, _ in counts.values()) * row.total / SAMPLE)
    return about


def _rates(journal: Journal, index: int) -> dict[tuple[int, int], float]:
    """Return the bandwidth of a cell in each round, in GB/s."""
    size = journal.cells[index]["size"]
    good = (visit for visit in journal.visits[index] if visit["status"] == OK)
    return {(visit["session"], visit["round"]): size / visit["median_us"] / 1e3 for visit in good}


def _share(mine: Rates, other: Rates) -> Share | None:
    ratios = [mine[when] / other[when] for when in mine.keys() & other.keys()]
    if not ratios:
        return None
    low, high = median_interval(ratios) or (None, None)
    return Share(median(ratios), low, high)


def slow_devices(journal: Journal, studies: Sequence[Study], names: Sequence[str]) -> list[str]:
    """Say which devices are surely slower than the others, by the baselines of all studies."""
    ranks, cell = len(names), 0
    rates: list[dict[Block, float]] = [{} for _ in names]
    for number, study in enumerate(studies):
        for row in study.rows:
            if row.level.factor == BASELINE:
                for rank, mine in enumerate(rates):
                    mine |= {(number, *when): rate for when, rate in _rates(journal, cell + rank).items()}
            cell += ranks
    return [
        f"{names[one.rank]} is slow: {one.share:.2f} of the others' median, over {one.blocks} rounds of baselines; of "
        f"equal devices one would be named in {FALSE_ALARMS:.0%} of runs at most"
        for one in slow(rates)
    ]
