"""The tables of an attribution: ranks, steps, layers, collectives, who was late, what could not be matched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from commbench.attribution.analyse import Attribution
from commbench.attribution.clocks import known
from commbench.attribution.excess import transfer_of
from commbench.attribution.lateness import waited
from commbench.attribution.layers import LAYERS, WAITING, Layers
from commbench.report.tables import Cell, Table
from commbench.results.reading import factor
from commbench.results.stats import median
from commbench.units import format_size

if TYPE_CHECKING:
    from commbench.attribution.collectives import Split

TABLES = ("ranks", "steps", "layers", "collectives", "late", "unmatched", "notes")


def tables(found: Attribution) -> dict[str, Table]:
    """Return all tables that have lines, by name."""
    made = (rank_table, step_table, layer_table, collective_table, late_table, refusal_table, note_table)
    every = {name: make(found) for name, make in zip(TABLES, made, strict=True)}
    return {name: table for name, table in every.items() if table.lines}


def rank_table(found: Attribution) -> Table:
    """Return a line a rank: its step, and the parts of it in percent."""
    lines = []
    for place, (trace, per) in enumerate(zip(found.traces, found.layers, strict=True)):
        if not per:
            continue  # no times of work: there are no parts
        time = sum(one.window.length for one in per)
        parts = (sum(getattr(one, name) for one in per) for name in _PARTS)
        lines.append(
            [
                *(_rank(trace.rank), _ms(median([one.window.length for one in per]))),
                *_shares(per, found.totals(place), time),
                *(_percent(part, time) for part in parts),
                *(Cell(_most(per)), _us(known(found.alignments[place].error)), Cell(trace.host or "-")),
            ]
        )
    return Table(["rank", "step (ms)", *LAYERS, *_PARTS.values(), "evidence", "clock ± (us)", "on"], lines)


_PARTS = {"communication": "calls", "hidden": "hidden", "unsplit": "unsplit", "latency_bound": "small"}


def _shares(per: Sequence[Layers], totals: Mapping[str, int], time: int) -> Iterator[Cell]:
    """Yield the part of each layer."""
    for layer in LAYERS:
        yield Cell("-") if _untold(layer, per, totals[layer]) else _percent(totals[layer], time)


def _untold(layer: str, per: Iterable[Layers], total: int) -> bool:
    """Whether a layer is waiting, and none of it is known only because calls have no counterpart."""
    return layer == WAITING and not total and any(one.unsplit for one in per)


def _most(per: Sequence[Layers]) -> str:
    """Return the evidence that most of compute and memory rests on."""
    totals: dict[str, int] = {}
    for one in per:
        for name, time in one.evidence.items():
            totals[name] = totals.get(name, 0) + time
    return max(totals, key=lambda name: totals[name]) if any(totals.values()) else "-"


def step_table(found: Attribution) -> Table:
    """Return a line a step: how long the longest rank took, and the parts over all ranks."""
    lengths_of: dict[int | None, dict[int, int]] = {step: {} for step in found.steps}
    of: dict[int | None, list[Layers]] = {step: [] for step in found.steps}
    totals_of = {step: dict.fromkeys(LAYERS, 0) for step in found.steps}
    for place, per in enumerate(found.layers):
        for one, parts in zip(per, found.parts[place], strict=True):
            lengths_of[one.window.step][place] = one.window.length
            of[one.window.step].append(one)
            for layer, time in parts.items():
                totals_of[one.window.step][layer] += time
    late = _late_by_step(found)
    lines = []
    for step, lengths in lengths_of.items():
        longest, time = max(lengths, key=lambda place: lengths[place]), sum(lengths.values())
        rank, time_waited = late.get(step, (None, 0))
        lines.append(
            [
                *(Cell("all" if step is None else str(step), step), _ms(lengths[longest])),
                _rank(found.traces[longest].rank),
                *_shares(of[step], totals_of[step], time),
                *((_rank(rank), _ms(time_waited)) if time_waited else (Cell("-"), Cell(""))),
            ]
        )
    header = ["step", "longest (ms)", "on rank", *LAYERS, "waited for", "in all (ms)"]
    return Table(header, lines)


def _late_by_step(found: Attribution) -> dict[int | None, tuple[int | None, int]]:
    """Return for each step the rank most waited for, and how long (ns), of what is certain."""
    late: dict[int | None, dict[int, list[Split]]] = {}
    for one in found.splits:
        if one.culprit is not None and one.distinguishable and not one.skew_only:
            late.setdefault(found.step_of(one), {}).setdefault(one.culprit, []).append(one)
    most = {}
    for step, its in late.items():
        place, time = max(((place, waited(those)) for place, those in its.items()), key=lambda one: one[1])
        most[step] = found.traces[place].rank, time
    return most


def layer_table(found: Attribution) -> Table:
    """Return a line a layer: its part of all time, and on which ranks it is least and most."""
    lines = []
    times = [sum(one.window.length for one in per) for per in found.layers]
    every = [found.totals(place) for place in range(len(times))]
    for layer in LAYERS if any(times) else ():
        totals = [one[layer] for one in every]
        if _untold(layer, (one for per in found.layers for one in per), sum(totals)):
            lines.append([Cell(layer), *[Cell("-")] * 7])
            continue
        shares = {place: totals[place] / time for place, time in enumerate(times) if time}
        least, most = (pick(shares, key=lambda place: shares[place]) for pick in (min, max))
        steps = [parts[layer] for per in found.parts for parts in per]
        lines.append(
            [
                *(Cell(layer), _ms(fmean(steps)), _ms(max(steps)), _percent(sum(totals), found.time)),
                *(_percent(shares[least], 1), _rank(found.traces[least].rank)),
                *(_percent(shares[most], 1), _rank(found.traces[most].rank)),
            ]
        )
    header = ["layer", "a step (ms)", "at most (ms)", "of all %", "least %", "on rank", "most %", "on rank"]
    return Table(header, lines)


def collective_table(found: Attribution) -> Table:
    """Return a line for each operation, size and number of ranks; the one that waits and transfers longest first."""
    groups: dict[tuple[str, int, int], list[Split]] = {}
    for one in found.splits:
        key = (one.meeting.operation, one.meeting.size or -1, len(one.meeting.group))
        groups.setdefault(key, []).append(one)
    alone: dict[tuple[str, int, int], set[int | None]] = {}
    for its in found.excesses:
        alone.setdefault((its.operation, its.size, its.ranks), set()).add(its.alone)

    def in_all(those: Iterable[Split]) -> int:
        return -sum(int(one.wait.sum() + one.transfer.sum()) for one in those)

    lines = []
    for (name, size, ranks), those in sorted(groups.items(), key=lambda item: in_all(item[1])):
        head = [Cell(name), Cell(format_size(size) if size >= 0 else "?", size if size >= 0 else None)]
        doubtful = sum(bool(one.low_confidence) for one in those)
        head += [Cell(str(number), number) for number in (ranks, len(those), doubtful)]
        split = [one for one in those if not one.skew_only]
        late_by = [one.lateness for one in those if known(one.error) is not None]
        late = _ms(median(late_by)) if late_by else Cell("-")
        if not split:
            lines.append([*head, Cell("skew only"), *[Cell("-")] * 5, late])
            continue
        waits = [float(value) for one in split for value in one.wait]
        transfer = round(median([transfer_of(one) for one in split]))
        lines.append(
            [
                *(*head, _ms(fmean(waits)), _ms(max(waits)), _ms(transfer), _busbw(name, size, ranks, transfer)),
                *(*_excess(transfer, alone.get((name, size, ranks), set())), late),
            ]
        )
    header = ["operation", "size (B)", "ranks", "count", "doubtful", "wait (ms)", "at most", "transfer", "busbw"]
    return Table([*header, "alone", "excess", "late by"], lines)


def _busbw(name: str, size: int, ranks: int, transfer: float) -> Cell:
    """Return the bus bandwidth (GB/s) of a transfer in ns: bytes a ns are GB/s."""
    scale = factor(name, ranks) if ranks > 0 else None
    if size <= 0 or transfer <= 0 or scale is None:
        return Cell("-")
    value = size / transfer * scale
    return Cell(f"{value:.3g}", value)


def _excess(transfer: int, alone: set[int | None]) -> Iterator[Cell]:
    """Yield what a line takes alone, and beyond that: nothing where its groups do not take the same alone."""
    (one,) = alone if len(alone) == 1 else (None,)
    for value in (None, None) if one is None else (one, transfer - one):
        yield Cell("-") if value is None else _ms(value)


def late_table(found: Attribution) -> Table:
    """Return a line for each rank that others waited for."""
    lines = []
    for one in found.culprits:
        cause = one.cause or "not seen"
        if one.upstream:
            cause += f": rank {one.upstream[-1]}{f' in {one.through}' if one.through else ''}"
        more = one.before.get(one.cause)
        lines.append(
            [
                *(_rank(one.rank), Cell(f"{one.meetings} of {one.of}", one.meetings)),
                *(Cell(f"{one.steps} of {one.of_steps}", one.steps), _ms(one.lateness), _ms(one.waited)),
                *(_percent(one.waited, found.time), Cell(cause)),
                *(Cell("-") if more is None else _ms(more), _ms(one.behind)),
            ]
        )
    header = ["rank", "last at", "worst in steps", "late by (ms)", "waited for (ms)", "of all %", "cause"]
    return Table([*header, "more (ms)", "behind (ms)"], lines)


def refusal_table(found: Attribution) -> Table:
    """Return a line for each reason why calls could not be matched."""
    return Table.plain(
        ["group", "calls", "why they are not matched"],
        [[one.group, str(one.calls), one.reason] for one in found.refusals],
    )


def note_table(found: Attribution) -> Table:
    """Return what was clipped, left out or assumed."""
    return Table.plain(["note"], [[note] for note in found.notes])


def _rank(rank: int | None) -> Cell:
    return Cell("?" if rank is None else str(rank), rank)


def _ms(ns: float) -> Cell:
    return _figure(ns / 1e6)


def _us(ns: float | None) -> Cell:
    return Cell("-") if ns is None else _figure(ns / 1e3)


def _figure(value: float) -> Cell:
    return Cell(f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}", value)


def _percent(part: float, whole: float) -> Cell:
    return Cell(f"{100 * part / whole:.1f}", 100 * part / whole) if whole else Cell("-")
