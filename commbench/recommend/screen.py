"""Advice as it is printed: words and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from commbench.recommend.advice import BOUND, CURRENT, DEFAULT, KEEP, RANDOM, RECOMMENDED, SHOWN, TAKE, Advice
from commbench.recommend.robust import WORTH, Held
from commbench.topology.hosts import fold
from commbench.topology.show import counted
from commbench.units import approximate_size, format_size

if TYPE_CHECKING:
    from commbench.recommend.batch import Split
    from commbench.recommend.plan import Choice

_MOST_RANKS = 32  # of a table; --json has all


def lines(advice: Advice, measured: bool, split: Split | None = None, refused: bool = False) -> list[str]:
    """Return what to print.

    `measured`: there were results of this cluster to choose algorithms from; `refused`: which cannot be compared, as a
    note of the plan says.
    """
    plan = advice.plan
    found = [f"# {counted(len(plan.seats), 'rank')} on {plan.topology or 'the cluster'}: predicted, not measured"]
    found += [f"# {note}" for note in plan.notes]
    found += ["", *_advised(advice)]
    found += ["", *_nodes(advice), "", *_orders(advice)]
    gap = "unknown" if plan.gap is None else f"{100 * plan.gap:.1f} %"
    gap += " (no order is better)" if advice.found.exact else ""
    found.append(f"gap of recommended to the proven bound: {gap}")
    whose = f" the order {advice.how}" if plan.advice == KEEP else ""
    found += [f"what limits{whose}:", *(f"  {line}" for line in plan.limits), ""]
    found += _measured(plan.choices, refused) if measured else _predicted(advice)
    return found + (_batch(split) if split else [])


def _nodes(advice: Advice) -> list[str]:
    """Return the nodes of the plan and its order, and what the recommended one is where that is another."""
    nodes = advice.nodes
    leaves = "1 leaf" if nodes.leaves == 1 else f"{nodes.leaves} leaves"
    how = nodes.how if nodes.gap is None else f"{nodes.how}, gap {100 * nodes.gap:.0f} %"
    order = advice.how
    if advice.elsewhere or order != advice.found.how:
        order += f"; recommended below is {advice.found.how}"
    if advice.elsewhere:
        order += f", on other nodes: {fold(advice.hosts)}"
    return [
        f"nodes: {fold(advice.plan.hosts)}",
        f"{'taken' if nodes.gap is None else 'chosen'}: {counted(len(nodes.nodes), 'node')}, {leaves}, "
        f"{counted(nodes.pods, 'pod')} ({how})",
        f"order: {order}",
    ]


def _advised(advice: Advice) -> list[str]:
    """Return the advice, what the gain is under each algorithm, and how far that may be off."""
    plan, held, left = advice.plan, advice.held, advice.left
    there, library = f"the order {SHOWN[advice.reference]}", advice.judge.library.name.upper()
    if plan.advice == KEEP and held.gain < WORTH:
        found = [f"{KEEP}: no order was found that takes {100 * WORTH:.0f} % less time than {there}"]
        if left is not None:
            found[0] += f" and loses with no algorithm that {library} may run"
    elif plan.advice == KEEP and held.loses:
        found = [f"{KEEP}: no order was found that beats {there} with every algorithm that {library} may run"]
    elif plan.advice == KEEP:
        found = [f"{KEEP}: what was found takes groups in a node apart, and gains less than that may be off by"]
    elif plan.advice == TAKE:
        found = [
            f"{TAKE}: a step's communication takes {100 * held.least:.0f} % less time than in {there}, or less still"
        ]
    else:
        found = [f"{plan.advice} beside {there}, and measure both:", *(f"  {doubt}" for doubt in advice.doubts)]
    if plan.advice == KEEP:
        found += [f"  but {doubt}" for doubt in advice.doubts]
    found.append(f"gain {100 * held.gain:.1f} %{_otherwise(held, library)}")
    if left is not None:
        where = f" on other nodes, {fold(advice.hosts)}," if advice.elsewhere else ""
        where += f" which splits {', '.join(advice.torn)} over nodes," if advice.torn else ""
        found.append(f"left: an order{where} with a gain of {100 * left.gain:.1f} %{_otherwise(left, library)}")
    return [*found, f"a gain may be off by {100 * advice.error:.0f} % of the time ({advice.error_source})"]


def _otherwise(held: Held, library: str) -> str:
    """Return the gain with each other algorithm that the library may run."""
    if all(abs(gain - held.gain) < 1e-3 for gain in held.otherwise.values()):
        return ""
    some = ", ".join(f"{name} {100 * gain:.1f} %" for name, gain in held.otherwise.items())
    return f" with the fastest algorithms; if {library} runs another one instead: {some}"


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
        found.append(f"{SHOWN.get(name, name):<12} {seconds[name] * 1e3:>10.3f} {times:>8}  {cells}".rstrip())
    return found


def _measured(choices: Sequence[Choice], refused: bool) -> list[str]:
    """Return what to ask libraries for."""
    if refused:
        return ["algorithms: the library's own choice stays, as none is chosen from these results (see above)"]
    if not choices:
        return ["algorithms: the library's own choice stays, as the results show none to ask for"]
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
    score = advice.scores[advice.reference if advice.plan.advice == KEEP else RECOMMENDED]
    rows = [
        (part.flow.collective, str(part.flow.n), approximate_size(part.flow.size), part.algorithm, "predicted")
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
