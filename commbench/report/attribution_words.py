"""Where a step's time goes, in words: the first thing that is read, on screen and in the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from commbench.attribution.advice import convicted, shortest, together
from commbench.attribution.analyse import Attribution, set_against
from commbench.attribution.classes import NAME
from commbench.attribution.clocks import ASSUMED
from commbench.attribution.excess import excess_name
from commbench.attribution.lateness import EARLIER
from commbench.attribution.layers import COMMUNICATION, LAYERS, WAITING
from commbench.attribution.trace import BY_NAME, DEVICE_KINDS, OPERATOR
from commbench.report.summary import DO, DOUBTED, SLOW, Statement
from commbench.results.stats import median
from commbench.topology.show import counted
from commbench.units import format_ranges

if TYPE_CHECKING:
    from commbench.attribution.injected import Measured
    from commbench.attribution.lateness import Culprit
    from commbench.attribution.trace import Call

TIME = "time"
_MOST = 3  # statements of one kind; the tables have them all
_WEAK = 0.5  # of the evidence
_MANY = 0.1  # of the calls
_SEEN = 4  # names


def words(found: Attribution) -> list[Statement]:
    """Return the outcome, in the order in which it is to be read."""
    parts = (_steps, _layers, _calls, _late, _effect, _excesses, _doubts)
    return [*(one for part in parts for one in part(found)), *_to_do(found)]


def _steps(found: Attribution) -> Iterator[Statement]:
    ranks = counted(len(found.traces), "rank")
    hosts = len({trace.host for trace in found.traces if trace.host})
    where = f"{ranks} on {counted(hosts, 'host')}" if hosts else ranks
    lengths = step_lengths(found)
    if not lengths:
        yield Statement(DOUBTED, f"{where}: the traces hold no times of work, so that there are no layers")
    elif found.steps == (None,):
        yield Statement(TIME, f"{where}, no steps: {ms(max(lengths))} looked at")
    else:
        text = f"{ms(median(lengths))} (median; {ms(min(lengths))} to {ms(max(lengths))})"
        yield Statement(TIME, f"{where}, {counted(len(lengths), 'step')} of {text}, by the rank that took longest")


def _layers(found: Attribution) -> Iterator[Statement]:
    if found.time:
        shown = {layer: percent(found.share(layer)) for layer in LAYERS}
        if not found.share(WAITING) and found.unsplit:
            shown[WAITING] = "not told"
        shares = ", ".join(f"{layer} {share}" for layer, share in shown.items())
        yield Statement(TIME, f"of all ranks' time: {shares}")


def _calls(found: Attribution) -> Iterator[Statement]:
    """What most tools call communication, beside what of it is transfer."""
    if not found.time:
        return
    every = [one for per in found.layers for one in per]
    naive = sum(one.communication for one in every) / found.time
    if not any(trace.calls for trace in found.traces):
        text = f"no communication was recognised in any trace; names seen: {', '.join(_names(found)) or 'none'}"
        yield Statement(DOUBTED, text)
        return
    hidden = sum(one.hidden for one in every) / found.time
    if found.alone:
        text = f"collectives fill {percent(naive)}, {percent(hidden)} hidden under work: with one rank's trace waiting "
        yield Statement(DOUBTED, f"{text}cannot be told from transfer, which takes the traces of the others")
        return
    text = f"collectives fill {percent(naive)}, as most tools count communication; "
    if found.unsplit < found.share(COMMUNICATION):
        transfer = percent(found.share(COMMUNICATION) - found.unsplit)
        text += f"{transfer} is transfer that nothing hides, {percent(found.share(WAITING))} waiting, "
    yield Statement(TIME, f"{text}{percent(hidden)} hidden under work")
    if found.unsplit >= 0.001:
        text = f"in {percent(found.unsplit)} waiting cannot be told from transfer, as calls have no counterpart: "
        yield Statement(DOUBTED, f"{text}it counts as communication")


def _names(found: Attribution) -> list[str]:
    """Return the names of work that took the most time, of all traces."""
    import numpy as np

    totals: dict[str, int] = {}
    for trace in found.traces:
        spans = trace.spans
        if len(spans):
            work = np.isin(spans.kind, (*DEVICE_KINDS, OPERATOR))
            time = np.bincount(spans.name, weights=(spans.end - spans.start) * work, minlength=len(trace.names))
            for name, its in zip(trace.names, time.tolist(), strict=True):
                totals[name] = totals.get(name, 0) + int(its)
    return [name[:40] for name in sorted(totals, key=lambda name: -totals[name])[:_SEEN] if totals[name]]


def _late(found: Attribution) -> Iterator[Statement]:
    late = convicted(found)
    groups = together(late)
    for one, *others in groups[:_MOST]:
        yield Statement(SLOW, _held_up(found, [one, *others]) if others else _culprit(found, one))
    if more := sum(map(len, groups[_MOST:])):
        yield Statement(SLOW, f"and {counted(more, 'more late rank')}, in the table below")
    if late or len(found.traces) == 1 or not found.splits:
        return
    if not found.culprits and any(one.durations_only for one in found.splits):
        yield Statement(TIME, _by_durations(found))
        return
    if not found.culprits and not all(map(set_against, found.alignments)):
        text = "who is late cannot be told, as clocks are not set against one another: clock-rankN.json, as "
        yield Statement(DOUBTED, f"{text}commbench.train writes them, beside the traces would do")
        return
    text = f"no rank is late by more than chance gives from step to step ({certainty(found)})"
    if found.culprits:
        most = max(found.culprits, key=lambda one: one.waited)
        text += f"; the others wait most for rank {most.rank}: {waiting(found, most)}; it was the last one at "
        text += f"{most.meetings} of {counted(most.of, 'collective')}"
    yield Statement(TIME, text)


def _by_durations(found: Attribution) -> str:
    text = "who is late is not known for certain where traces hold durations alone"
    if (one := shortest(found)) is None:
        return f"{text}; no rank's are the shortest more often than chance gives"
    its = f"{one.meetings} of {counted(one.of, 'collective')}"
    return f"{text}; it is probably rank {one.rank}, whose are the shortest at {its}, if all ranks end at once"


def _culprit(found: Attribution, one: Culprit) -> str:
    text = f"rank {one.rank} is late: the last one at {one.meetings} of the {one.of} collectives at which any rank was "
    text += f"late for certain, by {ms(one.lateness)} (median; at most {ms(one.longest)}); {waiting(found, one)}"
    if one.cause == EARLIER and one.upstream:
        text += f"; it had waited itself in {one.through or 'another group'}, for rank {one.upstream[-1]}"
    elif one.cause:
        text += f"; before it arrives it spends {ms(one.before.get(one.cause, 0))} more than they do in {one.cause}"
    else:
        text += "; no layer of its time before stands out"
    return f"{text} ({certainty(found)})"


def _held_up(found: Attribution, those: Sequence[Culprit]) -> str:
    """Return a sentence for ranks that are late for one reason: what they had waited for themselves."""
    ranks, one = format_ranges(sorted(each.rank for each in those)), those[0]
    most, longest = max(each.meetings for each in those), max(each.longest for each in those)
    usual, where = median([each.lateness for each in those]), one.through or "another group"
    text = f"ranks {ranks} are late: each the last one at up to {most} collectives, by {ms(usual)} (median; at most "
    text += f"{ms(longest)}); they had waited themselves in {where}, for rank {one.upstream[-1]}"
    return f"{text} ({certainty(found)})"


def waiting(found: Attribution, one: Culprit) -> str:
    """Return how long the others wait for a rank."""
    others = [place for place, trace in enumerate(found.traces) if trace.rank != one.rank]
    if not found.steps:
        return f"each other rank waits {ms(one.waited / len(others))} for it in all"
    share = len(others) * len(found.steps)
    each = found.waited_for(one.rank) / share
    exposed = min(each, sum(found.totals(place)[WAITING] for place in others) / share)
    where = "in this window" if found.steps == (None,) else "a step"
    hidden = "" if each - exposed < 0.01 * each else f", and {ms(each - exposed)} that work or transfers hide"
    behind = "" if one.behind <= one.waited else f"; with those that it held up, {ms(one.behind / share)}"
    return f"each other rank waits {ms(exposed)} {where} for it (mean){hidden}{behind}"


def certainty(found: Attribution) -> str:
    """Return how well the clocks of the ranks agree."""
    if not all(map(set_against, found.alignments)):
        return "clocks are not set against one another"
    sources = dict.fromkeys(one.source for one in found.alignments if one.source != ASSUMED)
    return f"clocks agree to {ms(max(one.error for one in found.alignments))}: {', '.join(sources)}"


def _effect(found: Attribution) -> Iterator[Statement]:
    it = found.effect
    if it is None:
        return
    text = f"injected {it.injection.faults}: against {counted(it.pairs, 'step')} without it the other ranks wait "
    if it.first:
        text += f"{_measured(it.first)} longer at the first collective of a step, "
    text += f"{_measured(it.exposed)} longer in all that nothing hides, and the step takes {ms(it.step)} longer"
    yield Statement(TIME, f"{text} (medians over pairs, ± half of a 93 % interval)")
    top = max(it.layers, key=lambda layer: it.layers[layer])
    yield Statement(TIME, f"the rank held up spends {ms(it.layers[top])} more of such a step in {top}")


def _measured(one: Measured) -> str:
    return ms(one.value) if one.half_width is None else f"{ms(one.value)} ± {ms(one.half_width)}"


def _excesses(found: Attribution) -> Iterator[Statement]:
    known = [one for one in found.excesses if one.alone is not None]
    for one in known[:_MOST]:
        alone, low, high, more = one.alone or 0, one.alone_low or 0, one.alone_high or 0, one.excess or 0
        interval = f"{ms(low)} to {ms(high)}; " if high > low else ""
        name = excess_name(one, found.excesses)
        text = f"{name}: {ms(one.transfer)} of transfer, {ms(alone)} alone ({interval}{one.record}): "
        if one.longer:
            text += f"{ms(more)} more; {one.congestion or 'without counters nothing tells why'}"
        elif low <= one.transfer <= high:
            text += "within what was measured alone"
        else:
            text += f"{ms(abs(more))} {'more, as equal launches may differ' if more > 0 else 'less'}"
        yield Statement(SLOW if one.longer else TIME, text)


def _doubts(found: Attribution) -> Iterator[Statement]:
    if cut := [trace.label for trace in found.traces if not trace.whole]:
        more = f" and {len(cut) - _SEEN} more" if len(cut) > _SEEN else ""
        text = f"{', '.join(cut[:_SEEN])}{more}: the file breaks off, and only what stands before that was looked at"
        # A profiler writes thread by thread: what is missing is not only the end.
        yield Statement(DOUBTED, f"{text}; parts of every step may be missing")
    if found.refusals:
        calls = sum(one.calls for one in found.refusals)
        first = found.refusals[0]
        text = f"{counted(calls, 'call')} could not be matched: {first.reason} ({first.group or 'no group'})"
        more = f"; {counted(len(found.refusals) - 1, 'more reason')} below" if len(found.refusals) > 1 else ""
        yield Statement(DOUBTED, text + more)
    low = [one for one in found.splits if one.low_confidence]
    if low:
        text = f"{len(low)} of {counted(len(found.splits), 'collective')} with low confidence, the first of them: "
        yield Statement(DOUBTED, text + low[0].low_confidence)
    every = [call for trace in found.traces for call in trace.calls]
    if (named := sum(map(_by_name_alone, every))) > _MANY * len(every):
        text = f"{named} of {counted(len(every), 'call')} were recognised by name alone: what they do is likely, and "
        yield Statement(DOUBTED, f"{text}neither sizes nor groups are known")
    evidence: dict[str, int] = {}
    for one in (one for per in found.layers for one in per):
        for name, time in one.evidence.items():
            evidence[name] = evidence.get(name, 0) + time
    total = sum(evidence.values())
    if total and evidence.get(NAME, 0) > _WEAK * total:
        text = f"{percent(evidence[NAME] / total)} of compute and memory are told apart by names of kernels alone"
        yield Statement(DOUBTED, f"{text}: {_lacking(found)}")


def _lacking(found: Attribution) -> str:
    """Return what would tell compute from memory better than names do."""
    shapes = any(operator.shapes for trace in found.traces for operator in trace.operators)
    ceilings = "--peak float32=TFLOP/S,memory=GB/S, or for the latter --results of commbench.kernels"
    return f"give {ceilings}" if shapes else f"record shapes (record_shapes=True), and give {ceilings}"


def _by_name_alone(call: Call) -> bool:
    """Whether no argument tells more of a call than its name does; Gloo's names are followed by sizes."""
    return call.evidence == BY_NAME and call.group is None and call.elements_in is call.elements_out is None


def _to_do(found: Attribution) -> Iterator[Statement]:
    for one in found.advice:
        yield Statement(DO, f"{one.text}: {one.command}" if one.command else one.text)


def step_lengths(found: Attribution) -> list[int]:
    """Return how long each step took (ns) on the rank where it took longest."""
    longest: dict[int | None, int] = {}
    for one in (one for per in found.layers for one in per):
        length = one.window.end - one.window.start
        longest[one.window.step] = max(length, longest.get(one.window.step, 0))
    return [length for length in longest.values() if length]


def ms(ns: float) -> str:
    """Return a duration with three digits, in the unit that suits it."""
    for unit, name in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if abs(ns) >= unit:
            return f"{ns / unit:.3g} {name}"
    return f"{ns:.3g} ns" if ns else "0 ms"


def percent(part: float) -> str:
    """Return a part of the whole."""
    return f"{100 * part:.1f} %"
