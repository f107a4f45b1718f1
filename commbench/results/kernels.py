"""What a run of kernels says: of each row and rank its record, and its shares of other rows, by paired rounds.

    found = read(Path("results/update"))    # from the manifest and the visits: finished or not, the answer is the same

The bandwidths of one round lie next to each other in time, so that a machine's drift is in both: a share is the median
over rounds of their ratio. It needs no kernel's code, nor what that needs: `commbench.report` reads runs by this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commbench.errors import ResultsError
from commbench.results.journal import read_manifest, read_records, read_visits
from commbench.results.record import Record
from commbench.results.stats import median, median_interval
from commbench.results.status import OK

KERNELS = "kernels"  # the `collective` of their records
BASELINE, CEILING = "baseline", "ceiling"  # the factors of the rows that others are shares of
_SLOW = 1.05  # by so much a device must surely be slower than the others' median to be named


@dataclass(frozen=True)
class Share:
    """A ratio of two bandwidths: the median over the rounds that have both, and its interval (from five on)."""

    ratio: float
    low: float | None
    high: float | None

    def surely_below(self, limit: float) -> bool:
        """Whether all of the interval is."""
        return self.high is not None and self.high < limit


@dataclass(frozen=True)
class Result:
    """One row on one rank."""

    study: int
    rank: int
    kernel: str  # with its variant
    factor: str
    level: str
    predicted_low: float | None  # as shares of the baseline's bandwidth
    predicted_high: float | None
    record: Record
    of_baseline: Share | None
    of_ceiling: Share | None
    of_peak: float | None  # of the data sheet's
    of_others: Share | None  # of baselines, where there are several ranks: of the other ranks' median

    @property
    def slow(self) -> bool:
        """Whether the device is surely slower than the others."""
        return self.of_others is not None and self.of_others.surely_below(1 / _SLOW)

    @property
    def beside(self) -> dict[str, Any]:
        """What kernels have beside the fields of a record, flat."""
        about: dict[str, Any] = {"kernel": self.kernel, "rank": self.rank, "factor": self.factor, "level": self.level}
        about |= {"predicted_low": self.predicted_low, "predicted_high": self.predicted_high}
        for name in ("of_baseline", "of_ceiling", "of_others"):
            share: Share | None = getattr(self, name)
            about |= {name: share and share.ratio, f"{name}_low": share and share.low}
            about[f"{name}_high"] = share and share.high
        return {**about, "of_peak": self.of_peak}

    def to_dict(self) -> dict[str, Any]:
        """Return the record with what kernels have beside, flat."""
        return {**self.record.to_dict(), **self.beside}


def read(folder: Path) -> list[Result]:
    """Return what a run folder of kernels holds of each row and rank, in the plan's order, as `read_records` does.

    The data sheets' bandwidths are those in the manifest. Raises ResultsError where there is no such run.
    """
    manifest = read_manifest(folder)
    records = read_records(folder)
    try:
        cells = manifest["plan"]["cells"]
        visits: dict[int, list[Mapping[str, Any]]] = {index: [] for index in range(len(cells))}
        for visit in read_visits(folder, len(cells)):
            visits[visit["cell"]].append(visit)
        return results(cells, visits, records, [device["peak"] for device in manifest["library"]["devices"]])
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ResultsError(f"{folder} does not hold a run of kernels ({error!r}): its files were changed") from None


def results(
    cells: Sequence[Mapping[str, Any]],
    visits: Mapping[int, Sequence[Mapping[str, Any]]],
    records: Sequence[Record],
    peaks: Sequence[float | None],
) -> list[Result]:
    """Return what there is of each row and rank, in the plan's order.

    `cells`: those of the plan, of each row one a rank; `visits`, `records`: of each cell; `peaks`: the data
    sheet's GB/s of each rank's device.
    """
    ranks = len(peaks)
    rates = [_rates(cell["size"], visits[index]) for index, cell in enumerate(cells)]
    place = {
        (cell["study"], cell["level"]["factor"], index % ranks): index
        for index, cell in enumerate(cells)
        if cell["level"]["factor"] in (BASELINE, CEILING)
    }
    found = []
    for index, (cell, record) in enumerate(zip(cells, records, strict=True)):
        study, level, rank = cell["study"], cell["level"], index % ranks
        right = record.status == OK
        others = None
        if right and level["factor"] == BASELINE and ranks > 1:
            others = _of_others(rank, rates[index - rank : index - rank + ranks])
        peak, rate = peaks[rank], record.algbw
        found.append(
            Result(
                *(study, rank, f"{cell['kernel']} {cell['variant']}".rstrip(), level["factor"], level["level"]),
                *(level["predicted_low"], level["predicted_high"], record),
                _share(rates[index], rates[place[study, BASELINE, rank]]) if right else None,
                _share(rates[index], rates[place[study, CEILING, rank]]) if right else None,
                rate / peak if rate and peak else None,
                others,
            )
        )
    return found


def slow(found: Sequence[Result], names: Sequence[str]) -> list[str]:
    """Say which devices are surely slower than the others in some kernel's baseline; `names`: of each rank's device."""
    return [
        f"{names[one.rank]} is slow: {one.kernel} {one.record.dtype} at {share.ratio:.2f} of the others' median "
        f"({share.low:.2f} to {share.high:.2f})"
        for one in found
        if one.slow and (share := one.of_others) is not None
    ]


def device_names(devices: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each rank's device: "rank 0 (GPU-5f2c...)"; `devices` as the manifest keeps them."""
    return [f"rank {rank} ({about['identity']})" for rank, about in enumerate(devices)]


def _rates(size: int, visits: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Return the bandwidth of a cell in each round, in GB/s."""
    return {visit["round"]: size / visit["median_us"] / 1e3 for visit in visits if visit["status"] == OK}


def _share(mine: Mapping[int, float], other: Mapping[int, float]) -> Share | None:
    ratios = [mine[number] / other[number] for number in mine.keys() & other.keys()]
    if not ratios:
        return None
    low, high = median_interval(ratios) or (None, None)
    return Share(median(ratios), low, high)


def _of_others(rank: int, rates: Sequence[Mapping[int, float]]) -> Share | None:
    """Return a rank's share of the other ranks' median, by rounds that all have."""
    peers: dict[int, float] = {}
    for number in set.intersection(*(set(one) for one in rates)):
        peers[number] = median([one[number] for other, one in enumerate(rates) if other != rank])
    return _share(rates[rank], peers)
