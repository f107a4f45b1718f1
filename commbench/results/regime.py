"""Under which conditions a run measured, and what of them makes its numbers uncertain: said, never corrected for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from commbench.results.stats import median

FEWEST_ROUNDS = 6  # for a drift: three before, three after
STEADY = 0.05  # a smaller change from the first to the second half of the rounds is no drift


def findings(site: Mapping[str, Any], machine: Mapping[str, Any], load: float) -> list[str]:
    """Return what is to be said of a launch's node, from the manifest: rule, value and remedy."""
    found = []
    cores, settings = site["cores"], machine["settings"]
    if site["crowded"]:
        found.append(f"ranks outnumber the cores of a node ({cores} here): times hold the wait for a core too")
    elif _unbound(site, cores):
        found.append(
            "ranks are not bound to cores and may move: bind them (mpirun --bind-to core, srun --cpu-bind=cores)"
        )
    if load > 0.5 * cores:
        found.append(f"other work runs here (load {load:.1f} on {cores} cores before the start): quiet the node")
    governor = settings.get("governor", "")
    if governor and governor != "performance":
        found.append(f"the CPU frequency follows the load (governor {governor}): set it to performance")
    if settings.get("numa_balancing") == "1":
        found.append("the kernel moves pages between NUMA nodes as it goes: set kernel.numa_balancing to 0")
    return found


def drift(medians: Sequence[float]) -> float | None:
    """Return by which fraction a cell's rounds changed from their first half to their second, None for no drift.

    It is one where every round of one half lies beyond every round of the other: by chance that happens in
    2 / C(2k, k) of cases, a tenth at three rounds each, so small changes do not count.
    """
    if len(medians) < FEWEST_ROUNDS:
        return None
    half = len(medians) // 2
    before, after = medians[:half], medians[-half:]
    change = median(after) / median(before) - 1
    apart = max(before) < min(after) or max(after) < min(before)
    return round(change, 4) if apart and abs(change) > STEADY else None


def drifts_by_chance(rounds: Sequence[int]) -> float:
    """Return how many drifts rounds that only scatter give at most, over cells with so many of them."""
    return sum(2 / math.comb(2 * (n // 2), n // 2) for n in rounds if n >= FEWEST_ROUNDS)


def _unbound(site: Mapping[str, Any], cores: int) -> bool:
    """Whether a rank may run on every core of its node, where there is more than one."""
    masks = set(site["cpus"])
    return cores > 1 and len(masks) == 1 and len(site["cpus"]) > 1
