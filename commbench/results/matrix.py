"""The matrices of a run of `commbench.pairs`, from its plan and visits: latency and bandwidth of every pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from commbench.errors import ResultsError
from commbench.results.journal import read_manifest, read_visits
from commbench.results.status import OK

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Matrices:
    """What each round gave; NaN where nothing was measured, and on the diagonal."""

    names: tuple[str, ...]
    latency: NDArray[Any]  # [round, one, other], microseconds, symmetric
    rate: NDArray[Any]  # [round, from, to], GB/s

    @property
    def latency_us(self) -> NDArray[Any]:
        """The median over rounds."""
        return median(self.latency)

    @property
    def bandwidth(self) -> NDArray[Any]:
        """The median over rounds."""
        return median(self.rate)


def fold(plan: Mapping[str, Any], visits: Mapping[int, Sequence[Mapping[str, Any]]]) -> Matrices:
    """Fold the visits of each cell into matrices over the plan's places."""
    places = {rank: place for place, rank in enumerate(plan["places"])}
    good = [visit for those in visits.values() for visit in those if visit["status"] == OK]
    rounds = 1 + max((visit["round"] for visit in good), default=0)
    latency = np.full((rounds, len(places), len(places)), np.nan)
    rate = latency.copy()
    for index, cell in enumerate(plan["cells"]):
        one, other = (places[rank] for rank in plan["facts"]["groups"][cell["group"]]["order"])
        start, end = (one, other) if cell["root"] in (None, plan["places"][one]) else (other, one)
        for visit in visits.get(index, ()):
            if visit["status"] != OK or not visit["median_us"]:
                continue
            if cell["root"] is None:
                latency[visit["round"], one, other] = latency[visit["round"], other, one] = visit["median_us"]
            else:
                rate[visit["round"], start, end] = cell["size"] / visit["median_us"] / 1e3
    return Matrices(tuple(plan["names"]), latency, rate)


def read(folder: Path) -> Matrices:
    """Return the matrices of a run folder, finished or not."""
    plan = read_manifest(folder)["plan"]
    if plan.get("mode") != "pairs":
        raise ResultsError(f"{folder} holds no run of commbench.pairs over pairs")
    visits: dict[int, list[dict[str, Any]]] = {}
    for visit in read_visits(folder, len(plan["cells"])):
        visits.setdefault(visit["cell"], []).append(visit)
    return fold(plan, visits)


def median(rounds: NDArray[Any]) -> NDArray[Any]:
    """Return the median over the first axis of what was measured; NaN, with no word of it, where nothing was."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmedian(rounds, axis=0))
