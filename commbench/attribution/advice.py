"""What to do next: each finding with the command that goes on from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from commbench.attribution.chance import LEVEL, tail
from commbench.attribution.collectives import DIFFER
from commbench.attribution.excess import NO_PORTS, excess_name
from commbench.attribution.lateness import EARLIER
from commbench.attribution.layers import COMMUNICATION, COMPUTE, HOST, MEMORY, WAITING
from commbench.attribution.throttling import throttled
from commbench.topology.show import counted
from commbench.units import approximate_size, format_ranges, format_size

if TYPE_CHECKING:
    from commbench.attribution.analyse import Attribution
    from commbench.attribution.counters import Series
    from commbench.attribution.excess import Excess
    from commbench.attribution.lateness import Culprit

# From which part of all ranks' time on something is worth a line.
_WAITED, _LARGE, _HIGH = 0.02, 0.3, 0.2
_MOSTLY = 0.8  # of all waiting, that is for one rank
_MOST = 3  # lines of one kind
_TELLING = ("cuda",)  # devices of which telemetry records why a clock was lowered
_KERNELS = " (pip install 'commbench[kernels]')"
_TELEMETRY = "python -m commbench.telemetry --out counters/ -- ..."
_UNSEEN = ("is late, and its trace does not show why", "python -m commbench.doctor")
_CAUSES = {
    COMPUTE: ("computes longer than the others before it arrives", "python -m commbench.kernels"),
    MEMORY: (
        "moves memory for longer than the others before it arrives",
        "python -m commbench.kernels.weight_update",
    ),
    COMMUNICATION: (
        "is in other transfers for longer than the others before it arrives",
        "mpirun -n {ranks} python -m commbench.pairs",
    ),
    HOST: (
        "has nothing to run for longer than the others before it arrives (input, launches, other processes): counters "
        "recorded beside the job tell how busy the cores are, and commbench.doctor how the node is set up",
        _TELEMETRY,
    ),
    "": ("is late, and no part of its time before that stands out", "python -m commbench.doctor"),
}


@dataclass(frozen=True)
class Advice:
    """One finding in words, and the command of ours that goes on from it."""

    text: str
    command: str = ""


def advise(found: Attribution, counters: Sequence[Series] = ()) -> tuple[Advice, ...]:
    """Return what to do next, the most important first; nothing where nothing stands out.

    `counters`: what was recorded meanwhile, also of GPUs.
    """
    if not found.time:
        return tuple(_late(found, counters))
    return (*_late(found, counters), *_transfers(found), *_layers(found))


def convicted(found: Attribution) -> list[Culprit]:
    """Return the ranks that others waited for by more than chance gives, and for long enough to matter.

    All ranks together are wrong in at most 5 % of jobs (Bonferroni).
    """
    level = LEVEL / max(len(found.traces), 1)
    return [one for one in found.culprits if one.waited >= _WAITED * found.time and one.chance <= level]


def together(late: Sequence[Culprit]) -> list[list[Culprit]]:
    """Return late ranks in their order, in one list those that had waited themselves, in one group for one rank."""
    found: dict[object, list[Culprit]] = {}
    for one in late:
        held_up = one.cause == EARLIER and one.upstream
        found.setdefault((one.upstream[-1], one.through) if held_up else one.rank, []).append(one)
    return list(found.values())


def mostly_for(found: Attribution) -> Culprit | None:
    """Return the rank for which most of all waiting was, if there is one."""
    total = sum(one.waited for one in found.culprits)
    return next((one for one in found.culprits if one.waited >= _MOSTLY * total), None)


@dataclass(frozen=True)
class Shortest:
    """A rank that was in collectives for the least time, as one is that the others wait for."""

    rank: int | None
    meetings: int  # at which it was
    of: int  # of so many with a shortest one that it took part in


def shortest(found: Attribution) -> Shortest | None:
    """Return who was in collectives for the least time more often than chance gives, where only durations are known.

    A binomial tail over collectives, as nothing tells steps apart. Where the others' median is within DIFFER of the
    shortest, ragged ends may be all there is.
    """
    least: Counter[int] = Counter()
    chances: dict[int, list[float]] = {}
    for one in (one for one in found.splits if one.durations_only and len(one.places) > 1):
        took = sorted((one.wait + one.transfer).tolist())
        if took[0] < took[1] and took[0] < (1 - DIFFER) * took[len(took) // 2]:
            least[one.places[int(one.wait.argmin())]] += 1
            for place in one.places:
                chances.setdefault(place, []).append(1 / len(one.places))
    if not least:
        return None
    place, meetings = least.most_common(1)[0]
    of = len(chances[place])
    certain = tail(meetings, of, fmean(chances[place])) <= LEVEL / len(found.traces)
    return Shortest(found.traces[place].rank, meetings, of) if certain else None


def _late(found: Attribution, counters: Sequence[Series]) -> Iterator[Advice]:
    hosts = {trace.rank: f" ({trace.host})" for trace in found.traces if trace.host}
    of_gpus = {trace.rank: place for place, trace in enumerate(found.traces) if trace.device in _TELLING}
    late = convicted(found)
    for one, *others in together(late)[:_MOST]:
        if one.cause == EARLIER and one.upstream:
            first, where = one.upstream[-1], one.through or "another group"
            text = f"rank {one.rank} is late because it had waited itself, in {where}"
            if others:
                ranks = format_ranges(sorted(each.rank for each in (one, *others)))
                text = f"ranks {ranks} are late because they had waited themselves, in {where}"
            where = f"look at rank {first} first; on its node{hosts.get(first, '')}"
            yield Advice(f"{text}: {where}", "python -m commbench.doctor")
            continue
        why, command = _CAUSES.get(one.cause, _UNSEEN)
        where = "on all nodes" if "mpirun" in command else f"on its node{hosts.get(one.rank, '')}"
        where += _KERNELS if "commbench.kernels" in command else ""
        if one.cause == COMPUTE and counters and one.rank in of_gpus:
            place = of_gpus[one.rank]
            why += f" ({throttled(found.traces[place], [its.window for its in found.layers[place]], counters)})"
        yield Advice(f"rank {one.rank} {why}; {where}", command.format(ranks=len(found.traces)))
    if not counters and any(one.cause == COMPUTE and one.rank in of_gpus for one in late):
        text = "whether heat or power throttled a GPU that computes longer: counters, recorded beside the job and "
        yield Advice(f"{text}given as --rdma counters/, tell", _TELEMETRY)
    if not late and found.time and found.share(WAITING) >= _HIGH:
        how = " --method clock" if _on_cpu(found) else ""
        command = f"mpirun -n {len(found.traces)} python -m commbench.allreduce{how}"
        text = "ranks wait for one another, and none of them stands out: see whether that is so without work"
        if (most := mostly_for(found)) is not None:
            text = (
                f"ranks wait mostly for rank {most.rank}, in too few steps, or too unevenly, to rule out chance: trace "
            )
            text, command = (
                f"{text}more steps, and look at its node{hosts.get(most.rank, '')}",
                "python -m commbench.doctor",
            )
        yield Advice(text, command)


def _on_cpu(found: Attribution) -> bool:
    """Whether no device worked: what one runs is timed by its own clock, and --method clock is refused there."""
    return all(trace.device == "cpu" for trace in found.traces)


def _transfers(found: Attribution) -> Iterator[Advice]:
    for one in [one for one in found.excesses if one.congested][:_MOST]:
        text = f"{excess_name(one, found.excesses)} takes longer than alone while ports are congested: find the links, "
        yield Advice(f"{text}and another placement", f"mpirun -n {one.ranks} python -m commbench.pairs")
        yield Advice("place the ranks by what they send", "python -m commbench.recommend --topology FILE --results DIR")
    for one in [one for one in found.excesses if one.longer and not one.congested][:1]:
        times = f"{one.transfer / (one.alone or 1):.1f} times as long as alone"
        text = f"{excess_name(one, found.excesses)} takes {times}, and "
        if one.congestion and one.congestion != NO_PORTS:
            text += "counters show no congestion: look for slow links"
            yield Advice(text, f"mpirun -n {one.ranks} python -m commbench.pairs")
        elif not one.congestion and _spans_hosts(found):
            text += "why is not known: counters of the ports, recorded beside the job and given as --rdma counters/, "
            yield Advice(f"{text}would tell congestion", _TELEMETRY)
    if found.share(COMMUNICATION) >= _WAITED:
        yield from _sweeps(found)


def _sweeps(found: Attribution) -> Iterator[Advice]:
    """Yield one sweep for each operation and group, over all its sizes of which no record is there."""
    unknown: dict[tuple[str, int, str], list[Excess]] = {}
    for one in found.excesses:
        if one.alone is None and _measurable(one):
            unknown.setdefault((one.operation, one.ranks, one.group), []).append(one)
    how = "--method clock --budget 30 --backend gloo" if _on_cpu(found) else "--budget 30"
    sweeps: dict[str, str] = {}  # alike groups take the same one
    for (operation, ranks, _), those in unknown.items():
        least, most = (pick(one.size for one in those) for pick in (min, max))
        # Between two sizes times are interpolated: powers of two around them all are enough.
        begin, end = (format_size(1 << bits) for bits in (least.bit_length() - 1, (most - 1).bit_length()))
        sizes = " to ".join(dict.fromkeys(map(approximate_size, (least, most))))
        name = f"{operation} of {sizes} on {counted(ranks, 'rank')}"
        command = f"mpirun -n {ranks} python -m commbench.{operation} -b {begin} -e {end} -f 2 {how}"
        # Not below results/: launches there, from which algorithms are chosen, may be of another library.
        command += f" --out alone/{operation}-{ranks}-{begin}-{end}"
        text = f"what {name} takes alone is not known ({those[0].record}): measure it on these nodes, for --results "
        sweeps.setdefault(command, f"{text}alone/")
    yield from (Advice(text, command) for command, text in list(sweeps.items())[:_MOST])


def _spans_hosts(found: Attribution) -> bool:
    return len({trace.host for trace in found.traces if trace.host}) > 1


def _measurable(one: Excess) -> bool:
    doors = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "gather", "scatter")
    return one.size > 0 and one.operation in doors


def _layers(found: Attribution) -> Iterator[Advice]:
    shares = {layer: found.share(layer) for layer in (COMPUTE, MEMORY, COMMUNICATION, WAITING, HOST)}
    top = max(shares, key=lambda layer: shares[layer])
    if top == MEMORY and shares[MEMORY] >= _LARGE:
        text = f"memory-bound work is the largest part: see what the memory of these devices can give{_KERNELS}"
        yield Advice(text, "python -m commbench.kernels.weight_update")
    told = any(one.cause == HOST for one in convicted(found))
    if top == HOST and shares[HOST] >= _LARGE and not told:
        text = "nothing runs for the largest part: input, launches or a capture of the trace; look at the host"
        yield Advice(text, "python -m commbench.doctor")
    known = shares[COMMUNICATION] - found.unsplit
    if known >= _HIGH and shares[WAITING] < known / 2 and _spans_hosts(found):
        text = "transfers are a large part, with little waiting: another order of ranks, or algorithm, may take less"
        yield Advice(text, "python -m commbench.recommend --topology FILE --results DIR")
