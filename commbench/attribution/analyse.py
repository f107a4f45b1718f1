"""The whole attribution of a set of traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from commbench.attribution.advice import Advice, advise
from commbench.attribution.ceilings import Ceilings, ceilings
from commbench.attribution.classes import classify
from commbench.attribution.clocks import Alignment, Reading, align, known
from commbench.attribution.collectives import Split, split
from commbench.attribution.counters import Series
from commbench.attribution.excess import Excess, excess
from commbench.attribution.injected import Effect, Injection, effect
from commbench.attribution.lateness import Culprit, culprits, waited
from commbench.attribution.layers import LAYERS, Layers, Window, layers, whole, windows
from commbench.attribution.matching import Refusal, match
from commbench.attribution.trace import LEFT_OUT, Trace
from commbench.errors import UsageError
from commbench.topology.hosts import counterparts
from commbench.topology.show import counted
from commbench.units import format_ranges

if TYPE_CHECKING:
    from commbench.results.record import Record

ALL = "all"
_NAMED = 4  # names in a message


@dataclass(frozen=True)
class Choice:
    """Which part of the traces is looked at."""

    window: tuple[float, float] | str | None = None  # ms since the first work of all ranks; ALL; None: steps
    steps: Collection[int] | None = None  # of those that are marked; None: all
    partial: bool = False  # go on with what is there where traces are missing, double or of another job


@dataclass(frozen=True)
class Attribution:
    """Where the time of the steps went, on each rank. Places are those of `traces`, which are sorted by rank."""

    traces: tuple[Trace, ...]
    alignments: tuple[Alignment, ...]
    layers: tuple[tuple[Layers, ...], ...]  # of each trace, each of its windows in order
    splits: tuple[Split, ...]  # in order of time
    refusals: tuple[Refusal, ...]
    culprits: tuple[Culprit, ...]
    excesses: tuple[Excess, ...]
    ceilings: Mapping[str, Ceilings]  # of each model of device; "": the host's processor, or not told
    notes: tuple[str, ...]  # of all that was clipped, left out, assumed
    advice: tuple[Advice, ...] = ()
    effect: Effect | None = None  # of a delay that was injected into some steps

    @property
    def steps(self) -> tuple[int | None, ...]:
        """The numbers of all steps, in order."""
        return tuple(dict.fromkeys(one.window.step for per in self.layers for one in per))

    @property
    def alone(self) -> bool:
        """Whether only one rank's trace is there, of several, so that waiting cannot be told from transfer."""
        return len(self.traces) == 1 and self.traces[0].ranks != 1

    @cached_property
    def time(self) -> int:
        """All ranks' time in all windows together (ns)."""
        return sum(one.window.length for per in self.layers for one in per)

    @cached_property
    def parts(self) -> tuple[tuple[Mapping[str, int], ...], ...]:
        """Of each trace and each of its windows the ns in each layer."""
        return tuple(tuple({layer: one.total(layer) for layer in LAYERS} for one in per) for per in self.layers)

    def step_of(self, one: Split) -> int | None:
        """Return the number of the step in which a meeting was asked for, by the first of its traces."""
        at = _asked(one, one.places[0], self.traces)
        within = (it.window for it in self.layers[one.places[0]])
        return next((window.step for window in within if at is not None and window.start <= at < window.end), None)

    def waited_for(self, rank: int) -> int:
        """Return how long (ns) the other ranks waited for one, each instant of each of them once."""
        late = (one for one in self.splits if not one.skew_only)
        return waited(one for one in late if one.culprit is not None and self.traces[one.culprit].rank == rank)

    def totals(self, place: int) -> Mapping[str, int]:
        """Return a trace's ns in each layer over all its windows."""
        return {layer: sum(parts[layer] for parts in self.parts[place]) for layer in LAYERS}

    @cached_property
    def unsplit(self) -> float:
        """The part of all ranks' time that is communication in which waiting may be: its calls have no counterpart."""
        return sum(one.unsplit for per in self.layers for one in per) / self.time if self.time else 0.0

    def share(self, layer: str) -> float:
        """Return a layer's part of all ranks' time in all windows."""
        return sum(parts[layer] for per in self.parts for parts in per) / self.time


def analyse(
    traces: Sequence[Trace],
    readings: Mapping[int, Sequence[Reading]] | None = None,
    records: Sequence[Record] = (),
    counters: Sequence[Series] = (),
    *,
    bandwidth: float | None = None,
    flops: Mapping[str, float] | None = None,
    choice: Choice | None = None,
    injection: Injection | None = None,
    notes: Sequence[str] = (),
) -> Attribution:
    """Return where the steps' time went on each rank.

    `readings`: of clocks, by rank; `records`: measured runs of this cluster; `bandwidth` (bytes/s) and `flops` (FLOP/s
    by data type): what the device can do, where that is known better than by records and data sheets; `injection`: into
    which steps a delay was put on purpose; `notes`: what is to be said besides. Raises UsageError where traces are not
    one of each rank of one job, and `choice` is not partial.
    """
    choice = choice or Choice()
    ordered, said = one_of_each_rank(traces, choice.partial)
    said += [*notes, *_noted(ordered)]
    try:
        matches = match(ordered, choice.partial)
    except UsageError as error:  # a trace may be missing because its file is of no use
        unusable = dict.fromkeys(note for one in ordered for note in one.notes if note.startswith(LEFT_OUT))
        raise UsageError("; ".join([str(error), *unusable])) from None
    said += _missing(ordered)
    alignments = align(ordered, readings or {}, matches.meetings)
    unset = [trace.label for trace, how in zip(ordered, alignments, strict=True) if not set_against(how)]
    if unset and len(ordered) > 1:
        said.append(f"clocks: nothing tells how those of {_several(unset)} are set against the others")
    splits = tuple(split(meeting, ordered, alignments) for meeting in matches.meetings)
    chosen, more = _windows(ordered, alignments, choice)
    said += more
    waits = _waits(ordered, splits)
    models = dict.fromkeys(trace.model for trace in ordered)
    limits = {model: ceilings(model, _of_model(model, ordered, records), bandwidth, flops) for model in models}
    said += [f"ceilings of {model or 'the processor'}: {its.source}" for model, its in limits.items()]
    found = [
        layers(trace, its, waiting, classify(trace, limits[trace.model]))
        for trace, its, waiting in zip(ordered, chosen, waits, strict=True)
    ]
    inside = tuple(one for one in splits if not any(chosen) or _inside(one, ordered, chosen))
    it = Attribution(
        traces=tuple(ordered),
        alignments=tuple(alignments),
        layers=tuple(found),
        splits=inside,
        refusals=matches.refusals,
        culprits=culprits(ordered, inside, found),
        excesses=excess(ordered, inside, records, counters),
        ceilings=limits,
        notes=tuple(dict.fromkeys(said)),
    )
    if injection:
        by_step: dict[int | None, list[Split]] = {}
        for one in it.splits:
            by_step.setdefault(it.step_of(one), []).append(one)
        it = replace(it, effect=effect(it.traces, it.layers, by_step, injection))
    return replace(it, advice=advise(it, counters))


def _of_model(model: str, traces: Sequence[Trace], records: Sequence[Record]) -> Sequence[Record]:
    """Return the records that may be of a model of device: where there are several, those of hosts with it alone."""
    its, others = ({one.host for one in traces if (one.model == model) == same} for same in (True, False))
    if not others:
        return records

    def has(record: Record, hosts: Collection[str]) -> bool:
        return any(counterparts(record.hosts.split(","), hosts).values())

    return [one for one in records if has(one, its) and not has(one, others)]


def set_against(how: Alignment) -> bool:
    """Whether it is known, more or less, how a clock is set against the first one's."""
    return known(how.error) is not None


def _noted(traces: Sequence[Trace]) -> list[str]:
    """Return what the traces' notes say, each once, with the ranks that say it."""
    ranks: dict[str, list[str]] = {}
    for trace in traces:
        for note in trace.notes:
            ranks.setdefault(note, []).append(trace.label)
    return [note if len(its) == len(traces) else f"{_several(its)}: {note}" for note, its in ranks.items()]


def one_of_each_rank(traces: Sequence[Trace], partial: bool) -> tuple[list[Trace], list[str]]:
    """Return one trace of each rank of one job, sorted by rank, and what was left out.

    Where a rank has files of several formats, the one with spans is taken; where all have several recordings, one
    after the other, the last. Raises UsageError unless `partial`, which leaves out what does not fit the others.
    """
    if not traces:
        raise UsageError("there is no trace: name files, or a folder of them")
    if len(traces) > 1 and (unnamed := [trace.source for trace in traces if trace.rank is None]):
        raise UsageError(f"{_several(unnamed)}: nothing in the file or in its name tells the rank: name it rank0.json")
    jobs = Counter((trace.job, trace.ranks) for trace in traces if trace.job or trace.ranks)
    notes = []
    ordered = sorted(traces, key=lambda trace: (trace.rank or 0, -len(trace.spans), trace.source))
    if len({job for job, _ in jobs} - {""}) > 1 or len({ranks for _, ranks in jobs} - {None}) > 1:
        first = max(jobs, key=lambda job: jobs[job])
        of_others = [_with_job(trace) for trace in ordered if not _same_job(trace, *first)]
        like = next(trace for trace in ordered if (trace.job, trace.ranks) == first)
        text = f"{_several(of_others)}: of another job than {_with_job(like)}"
        if not partial:
            raise UsageError(f"{text}: name traces of one job, or --partial leaves these out")
        notes.append(f"{LEFT_OUT}{text}")
        ordered = [trace for trace in ordered if _same_job(trace, *first)]
    beyond = [
        f"{one.source} (rank {one.rank} of {one.ranks})" for one in ordered if (one.rank or 0) >= (one.ranks or inf)
    ]
    if beyond:
        raise UsageError(
            f"{_several(beyond)}: ranks count from 0, so that there is no such one: name the files by rank"
        )
    ordered, said = _last_recordings(ordered)
    notes += said
    kept: dict[int | None, Trace] = {}
    others: Counter[tuple[str, str]] = Counter()
    for trace in ordered:
        first_one = kept.setdefault(trace.rank, trace)
        if first_one is trace:
            continue
        if first_one.format == trace.format:
            text = f"{trace.label} is in {first_one.source} and in {trace.source}"
            if not partial:
                raise UsageError(
                    f"{text}: name one trace of each rank (--compare holds two runs against each other), or --partial "
                    "takes the first"
                )
            notes.append(f"{text}: the first is taken")
        else:
            others[trace.format, first_one.format] += 1
    for (other, taken), count in others.items():
        notes.append(f"{LEFT_OUT}{counted(count, other)}, of ranks that have a {taken} too")
    chosen = list(kept.values())
    timed = [trace for trace in chosen if _timed(trace)]
    if timed and (untimed := [trace.source for trace in chosen if not _timed(trace)]):
        text = f"{_several(untimed)}: told when collectives were asked for, and not when anything ran, as others tell"
        if not partial:
            raise UsageError(f"{text}: name a trace of each rank that does, or --partial leaves these out")
        return timed, [*notes, f"{LEFT_OUT}{text}"]
    return chosen, notes


def _last_recordings(traces: Sequence[Trace]) -> tuple[list[Trace], list[str]]:
    """Return the last one of each rank where all ranks have as many, one after the other: a profiler's cycles."""
    cycles: dict[str, dict[int | None, list[Trace]]] = {}
    for trace in traces:
        cycles.setdefault(trace.format, {}).setdefault(trace.rank, []).append(trace)
    left_out: list[Trace] = []
    notes = []
    for form, of_rank in cycles.items():
        counts = {len(its) for its in of_rank.values()}
        if len(counts) == 1 and (count := counts.pop()) > 1:
            in_order = [_one_after_the_other(its) for its in of_rank.values()]
            if all(in_order):
                left_out += [trace for its in in_order for trace in its[:-1]]
                notes.append(f"{count} recordings of each rank ({form}): the last is taken; name files for another")
    return [trace for trace in traces if not any(trace is other for other in left_out)], notes


def _one_after_the_other(traces: Sequence[Trace]) -> list[Trace]:
    """Return traces in order of time; none where they overlap, have no times, or lie in several folders, as runs do."""
    if not all(len(trace.spans) for trace in traces) or len({Path(trace.source).parent for trace in traces}) > 1:
        return []
    ordered = sorted(traces, key=lambda trace: int(trace.spans.start.min()))
    apart = all(int(one.spans.end.max()) <= int(other.spans.start.min()) for one, other in pairwise(ordered))
    return ordered if apart else []


def _same_job(trace: Trace, job: str, ranks: int | None) -> bool:
    return trace.job in ("", job) and trace.ranks in (None, ranks)


def _with_job(trace: Trace) -> str:
    told = [f"job {trace.job}"] if trace.job else []
    told += [counted(trace.ranks, "rank")] if trace.ranks else []
    return f"{trace.source} ({', '.join(told)})"


def _missing(traces: Sequence[Trace]) -> Iterator[str]:
    """Yield what to say of ranks without a trace."""
    ranks = next((trace.ranks for trace in traces if trace.ranks), 0)
    missing = sorted(set(range(ranks)) - {trace.rank for trace in traces if trace.rank is not None})
    if missing and len(traces) < ranks:
        which = format_ranges(missing) if len(missing) + len(traces) == ranks else f"{ranks - len(traces)}"
        yield f"of {ranks} ranks the traces of {which} are missing: who waited for them cannot be told"


def _windows(
    traces: Sequence[Trace], alignments: Sequence[Alignment], choice: Choice
) -> tuple[list[tuple[Window, ...]], list[str]]:
    """Return the windows of each trace, and what to say of them."""
    if not any(_timed(trace) for trace in traces):
        calls = [call for trace in traces for call in trace.calls]
        if any(call.duration is not None for call in calls):
            text = "the traces tell how long collectives ran and not when: durations alone, no layers"
        else:
            text = (
                "the traces tell when collectives were asked for and not when anything ran: arrivals alone, no layers"
            )
        return [() for _ in traces], [text]
    if isinstance(choice.window, tuple):
        return _span(traces, alignments, choice.window), []
    found = [windows(trace) for trace in traces]
    if choice.window == ALL or not any(found):
        notes = [] if choice.window == ALL else ["no step is marked: each whole trace is one window (--window cuts it)"]
        if choice.steps is not None:
            raise UsageError("no step is marked, so that none can be chosen: leave out --steps, or use --window")
        return [(whole(trace),) for trace in traces], notes
    if unmarked := [trace.label for trace, its in zip(traces, found, strict=True) if not its]:
        raise UsageError(f"{_several(unmarked)}: no step is marked, as others have: --window all takes whole traces")
    if choice.steps is None:
        return found, _lacking(traces, found)
    wanted = set(choice.steps)
    chosen = [tuple(window for window in its if window.step in wanted) for its in found]
    if not all(chosen):
        known = format_ranges(sorted({window.step for its in found for window in its if window.step is not None}))
        raise UsageError(f"--steps {format_ranges(sorted(wanted))}: the traces have steps {known}")
    marked = {window.step for its in found for window in its}
    none = [step for step in sorted(wanted) if step not in marked]
    notes = [f"--steps: no trace has {format_ranges(none)}"] if none else []
    return chosen, [*notes, *_lacking(traces, chosen)]


def _lacking(traces: Sequence[Trace], found: Sequence[Sequence[Window]]) -> list[str]:
    """Return what to say of ranks without work in steps in which others have some."""
    every = {window.step for its in found for window in its if window.step is not None}
    ranks: dict[str, list[str]] = {}
    for trace, its in zip(traces, found, strict=True):
        if lack := every - {window.step for window in its}:
            ranks.setdefault(format_ranges(sorted(lack)), []).append(trace.label)
    return [f"{_several(its)}: no work in steps {steps}, in which others have some" for steps, its in ranks.items()]


def _timed(trace: Trace) -> bool:
    """Whether a trace says of anything when it ran."""
    return len(trace.spans) > 0 or any(None not in (call.start, call.end) for call in trace.calls)


def _span(
    traces: Sequence[Trace], alignments: Sequence[Alignment], span: tuple[float, float]
) -> list[tuple[Window, ...]]:
    """Return one window a trace, from and to so many ms after the first work of all ranks."""
    wholes = [whole(trace) for trace in traces]
    begin = min(int(how.common(one.start)) for one, how in zip(wholes, alignments, strict=True))
    end = max(int(how.common(one.end)) for one, how in zip(wholes, alignments, strict=True))
    first, last = (begin + round(ms * 1e6) for ms in span)
    if first >= last:
        raise UsageError(f"--window A:B ends after it begins, and {span[0]:g}:{span[1]:g} does not")
    if first < begin or first >= end:
        raise UsageError(
            f"--window {span[0]:g}:{span[1]:g} holds no work: the traces run from 0 to {(end - begin) / 1e6:.3f} ms"
        )
    return [(Window(None, _local(how, first), _local(how, min(last, end))),) for how in alignments]


def _local(how: Alignment, common: int) -> int:
    """Return what a rank's own clock showed at a common time (ns)."""
    since = common - how.offset - how.since
    return how.since + round(since / (1 + how.drift)) if how.drift else how.since + since


def _waits(traces: Sequence[Trace], splits: Sequence[Split]) -> list[dict[int, int]]:
    """Return for each trace until when (ns, its own clock) its calls wait, by their place."""
    found: list[dict[int, int]] = [{} for _ in traces]
    for one in splits:
        if one.skew_only or one.durations_only:
            continue
        for place, wait in zip(one.places, one.wait.tolist(), strict=True):
            number = one.meeting.calls[place]
            arrival = traces[place].calls[number].arrival
            if arrival is not None:
                found[place][number] = arrival + int(wait)
    return found


def _inside(one: Split, traces: Sequence[Trace], chosen: Sequence[Sequence[Window]]) -> bool:
    """Whether a meeting began in one of the windows, on a rank whose trace is there."""
    times = ((place, _asked(one, place, traces)) for place in one.places)
    return any(window.start <= at < window.end for place, at in times if at is not None for window in chosen[place])


def _asked(one: Split, place: int, traces: Sequence[Trace]) -> int | None:
    """Return when a rank asked for a meeting (ns, its own clock): steps are divided by launches."""
    call = traces[place].calls[one.meeting.calls[place]]
    return call.arrival if call.enqueued is None else call.enqueued


def _several(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
