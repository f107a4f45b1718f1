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
from commbench.results.slow import FALSE_ALARMS, Block
from commbench.results.slow import slow as slow_devices
from commbench.results.stats import median, median_interval
from commbench.results.status import OK

KERNELS = "kernels"  # the `collective` of their records
BASELINE, CEILING = "baseline", "ceiling"  # the factors of the rows that others are shares of
MOSTLY = 1 / 3  # of a row's time: where empty launches take more, it says little of memory

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
    kernel: str  # with its variant
    factor: str
    level: str
    against: str  # the row that it differs from in one thing: "baseline", or a factor and level
    predicted_low: float | None  # as shares of that row's bandwidth
    predicted_high: float | None
    traffic: Mapping[str, float]  # predicted: `sectors` and `lines`, of a launch and `_per_request`
    record: Record
    of_reference: Share | None  # of the row `against`
    of_baseline: Share | None
    of_ceiling: Share | None
    of_peak: float | None  # of the data sheet's
    of_others: Share | None  # of baselines, where there are several ranks: of the other ranks' median
    launch_us: float | None  # what empty launches, as many, took beside it: the median over rounds
    by_launch: bool  # whether that is most of its time, or of that of the row `against`: no prediction holds there
    slow: bool  # of baselines: whether the device is surely slower than the others, over all of them

    @property
    def beside(self) -> dict[str, Any]:
        """What kernels have beside the fields of a record, flat."""
        about: dict[str, Any] = {"kernel": self.kernel, "rank": self.rank, "factor": self.factor, "level": self.level}
        about |= {"against": self.against, "predicted_low": self.predicted_low, "predicted_high": self.predicted_high}
        for name in ("of_reference", "of_baseline", "of_ceiling", "of_others"):
            share: Share | None = getattr(self, name)
            about |= {name: share and share.ratio, f"{name}_low": share and share.low}
            about[f"{name}_high"] = share and share.high
        about |= {"launch_us": self.launch_us, "by_launch": self.by_launch}
        return {**about, "of_peak": self.of_peak, "slow": self.slow, **self.traffic}

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
    place = {(cell["study"], _name(cell["level"]), index % ranks): index for index, cell in enumerate(cells)}
    baselines: list[dict[Block, float]] = [{} for _ in peaks]
    for index, cell in enumerate(cells):
        if cell["level"]["factor"] == BASELINE:
            baselines[index % ranks] |= {(cell["study"], *when): rate for when, rate in rates[index].items()}
    launches = [_launch(visits[index]) for index in range(len(cells))]
    slow_ranks = {one.rank for one in slow_devices(baselines)}
    found = []
    for index, (cell, record) in enumerate(zip(cells, records, strict=True)):
        study, level, rank = cell["study"], cell["level"], index % ranks
        right = record.status == OK
        others = None
        if right and level["factor"] == BASELINE and ranks > 1:
            others = _of_others(rank, rates[index - rank : index - rank + ranks])
        peak, rate, against = peaks[rank], record.algbw, level.get("against", BASELINE)
        of, base, top = (rates[place[study, name, rank]] for name in (against, BASELINE, CEILING))
        empty, mostly = launches[index]
        found.append(
            Result(
                *(study, rank, f"{cell['kernel']} {cell['variant']}".rstrip(), level["factor"], level["level"]),
                *(against, level["predicted_low"], level["predicted_high"], cell.get("traffic", {}), record),
                of_reference=_share(rates[index], of) if right else None,
                of_baseline=_share(rates[index], base) if right else None,
                of_ceiling=_share(rates[index], top) if right else None,
                of_peak=rate / peak if rate and peak else None,
                of_others=others,
                launch_us=empty,
                by_launch=mostly or launches[place[study, against, rank]][1],
                slow=level["factor"] == BASELINE and rank in slow_ranks,
            )
        )
    return found


def slow(found: Sequence[Result], names: Sequence[str]) -> list[str]:
    """Say which devices are surely slower than the others, over all baselines; `names`: of each rank's device."""
    said = []
    for rank in sorted({one.rank for one in found if one.slow}):
        shares = [
            f"{one.kernel} {one.record.dtype} at {one.of_others.ratio:.2f}"
            for one in found
            if one.rank == rank and one.slow and one.of_others is not None
        ]
        said.append(
            f"{names[rank]} is slow: {', '.join(shares)} of the others' median; equal devices lead to such a line in "
            f"{FALSE_ALARMS:.0%} of runs at most"
        )
    return said


def device_names(devices: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each rank's device: "rank 0 (GPU-5f2c...)"; `devices` as the manifest keeps them."""
    return [f"rank {rank} ({about['identity']})" for rank, about in enumerate(devices)]


def _name(level: Mapping[str, Any]) -> str:
    return f"{level['factor']} {level['level']}".rstrip()


def _rates(size: int, visits: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], float]:
    """Return the bandwidth of a cell in each round, in GB/s."""
    return {
        (visit["session"], visit["round"]): size / visit["median_us"] / 1e3 for visit in visits if visit["status"] == OK
    }


def _launch(visits: Sequence[Mapping[str, Any]]) -> tuple[float | None, bool]:
    """Return what empty launches took beside a row, in us, and whether that is most of its time."""
    pairs = [
        (one["launch_us"], one["median_us"])
        for one in visits
        if one["status"] == OK and "launch_us" in one and one["median_us"]
    ]
    if not pairs:
        return None, False
    return median([empty for empty, _ in pairs]), median([empty / time for empty, time in pairs]) > MOSTLY


def _share(mine: Rates, other: Rates) -> Share | None:
    ratios = [mine[when] / other[when] for when in mine.keys() & other.keys()]
    if not ratios:
        return None
    low, high = median_interval(ratios) or (None, None)
    return Share(median(ratios), low, high)


def _of_others(rank: int, rates: Sequence[Rates]) -> Share | None:
    """Return a rank's share of the other ranks' median, by rounds that all have."""
    peers: dict[tuple[int, int], float] = {}
    for when in set.intersection(*(set(one) for one in rates)):
        peers[when] = median([one[when] for other, one in enumerate(rates) if other != rank])
    return _share(rates[rank], peers)
