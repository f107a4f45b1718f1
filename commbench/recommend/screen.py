"""Advice as it is printed: words and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from commbench.recommend.advice import BOUND, CURRENT, DEFAULT, KEEP, RANDOM, RECOMMENDED, Advice
from commbench.topology.hosts import fold
from commbench.topology.show import counted
from commbench.units import format_size

if TYPE_CHECKING:
    from commbench.recommend.batch import Split
    from commbench.recommend.plan import Choice

_MOST_RANKS = 32  # of a table; --json has all


def lines(advice: Advice, measured: bool, split: Split | None = None) -> list[str]:
    """Return what to print; `measured`: there were results of this cluster to choose algorithms from."""
    plan, chosen, seconds = advice.plan, advice.chosen, advice.plan.seconds
    reference = CURRENT if CURRENT in seconds else DEFAULT
    gain = 1 - seconds[RECOMMENDED] / seconds[reference] if seconds[reference] else 0.0
    found = [f"# {counted(len(plan.seats), 'rank')} on {plan.topology or 'the cluster'}: predicted, not measured"]
    found += [f"# {note}" for note in plan.notes]
    what = "the order in use" if reference == CURRENT else "the order by name"
    if plan.advice == KEEP:
        text = f"keep what you have: {what} is as fast as any that was found, within the error of a prediction"
    else:
        text = f"take it: a step's communication takes {100 * gain:.0f} % less time than in {what}"
    found += ["", text]
    found.append(f"gain {100 * gain:.1f} %, error of a prediction {100 * advice.error:.1f} % ({advice.error_source})")
    leaves = "1 leaf" if chosen.leaves == 1 else f"{chosen.leaves} leaves"
    found += [
        "",
        f"nodes: {fold(plan.hosts)}",
        f"chosen: {counted(len(chosen.nodes), 'node')}, {leaves}, {counted(chosen.pods, 'pod')} "
        f"({chosen.how}, gap {100 * chosen.gap:.0f} %)",
        f"order: {advice.found.how}",
        "",
        *_orders(advice),
    ]
    gap = "unknown" if plan.gap is None else f"{100 * plan.gap:.1f} %"
    found.append(f"gap to the proven bound: {gap}{' (no order is better)' if advice.found.exact else ''}")
    found += ["what limits:", *(f"  {line}" for line in plan.limits), ""]
    found += _measured(plan.choices) if measured else _predicted(advice)
    return found + (_batch(split) if split else [])


def _orders(advice: Advice) -> list[str]:
    """Return the table of times, one order a row."""
    seconds = advice.plan.seconds
    names = [part.axis for part in advice.scores[RECOMMENDED].parts]
    found = [f"{'order':<12} {'ms':>10} {'x bound':>8}  " + "  ".join(f"{name:<24}" for name in names).rstrip()]
    for name in (DEFAULT, CURRENT, RANDOM, RECOMMENDED, BOUND):
        if name not in seconds:
            continue
        times = f"{seconds[name] / seconds[BOUND]:.2f}" if seconds[BOUND] else ""
        parts = advice.scores[name].parts if name in advice.scores else ()
        cells = "  ".join(f"{f'{part.seconds * 1e3:.3f} {part.algorithm}':<24}" for part in parts)
        found.append(f"{name:<12} {seconds[name] * 1e3:>10.3f} {times:>8}  {cells}".rstrip())
    return found


def _measured(choices: Sequence[Choice]) -> list[str]:
    """Return what to ask libraries for."""
    if not choices:
        return ["algorithms: the library's own choice stays, as the results show none that is faster for real"]
    rows = [
        (
            one.collective,
            f"{one.ranks} on {counted(one.nodes, 'node')}",
            _sizes(one),
            one.algorithm if one.protocol is None else f"{one.algorithm} {one.protocol}",
            f"{one.gain:.2f} x",
            one.source,
        )
        for one in choices
    ]
    return [
        "algorithms to ask for; the library's own choice takes so many times as long, and stays for all else:",
        *_table(("collective", "ranks", "sizes", "algorithm", "gain", "by"), rows),
    ]


def _sizes(one: Choice) -> str:
    if one.below is None:
        return f"from {format_size(one.least)}" if one.least else "all"
    return f"{format_size(one.least)} to below {format_size(one.below)}"


def _predicted(advice: Advice) -> list[str]:
    """Return the algorithms that the times stand for, which no setting of a library is made of."""
    score = advice.scores[RECOMMENDED]
    rows = [
        (part.flow.collective, str(part.flow.n), format_size(round(part.flow.size)), part.algorithm, "predicted")
        for part in score.parts
    ]
    return [
        "algorithms, predicted and so not exported: --results chooses them from measurements",
        *_table(("collective", "ranks", "size", "algorithm", "by"), rows),
    ]


def _batch(split: Split) -> list[str]:
    """Return who computes how many samples, and what that brings."""
    total = sum(split.samples)
    found = ["", f"batch of {total} in micro-batches of {split.micro_batch}, by throughput, communication not counted:"]
    rows = [
        (str(rank), str(own), str(own // split.micro_batch), str(equal), f"{weight:.4f}")
        for rank, (own, equal, weight) in enumerate(zip(split.samples, split.equal, split.weights, strict=True))
    ]
    found += _table(("rank", "samples", "micro-batches", "equal split", "loss weight"), rows[:_MOST_RANKS])
    if len(rows) > _MOST_RANKS:
        found.append(f"  ... and {len(rows) - _MOST_RANKS} more (--json has all)")
    found.append(f"a step computes {split.seconds:.4g} s; no split takes less than {split.bound:.4g} s")
    if split.equal_seconds is None or split.gain is None:
        found.append("an equal split does not fit into the memory of some device")
    else:
        found.append(f"split equally it takes {split.equal_seconds:.4g} s, {split.gain:.2f} x as long")
    return [*found, "each rank's loss, a mean over its own samples, is to be multiplied by its weight"]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    every = [head, *rows]
    widths = [max(len(row[place]) for row in every) for place in range(len(head))]
    return [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in every
    ]
