"""Attributions made by hand: some ranks and steps, with one rank late in all of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from commbench.attribution.advice import advise
from commbench.attribution.analyse import Attribution
from commbench.attribution.classes import NAME
from commbench.attribution.clocks import SHARED, Alignment
from commbench.attribution.collectives import Split
from commbench.attribution.excess import Excess
from commbench.attribution.lateness import Culprit
from commbench.attribution.layers import COMMUNICATION, COMPUTE, HOST, LAYERS, MEMORY, WAITING, Layers, Window
from commbench.attribution.matching import Meeting, Refusal
from commbench.attribution.trace import Call, Step, Trace

MS = 1_000_000
STEP = 100 * MS
# Of a step of 100 ms; the late rank computes while the others wait.
PARTS = {COMPUTE: 40, MEMORY: 10, WAITING: 30, COMMUNICATION: 15, HOST: 5}
LATE = {COMPUTE: 70, MEMORY: 10, WAITING: 0, COMMUNICATION: 15, HOST: 5}


def layers_of(window: Window, parts: Mapping[str, int], hidden: int = 0) -> Layers:
    """The layers one after another, in ms."""
    times = {layer: ms * MS for layer, ms in parts.items() if ms}
    edges = window.start + np.cumsum([0, *times.values()])
    calls = times.get(WAITING, 0) + times.get(COMMUNICATION, 0)
    return Layers(
        window,
        edges.astype(np.int64),
        np.array([LAYERS.index(layer) for layer in times], dtype=np.uint8),
        hidden=hidden,
        communication=calls + hidden,
        exposed=calls,
        latency_bound=0,
        unsplit=0,
        evidence={NAME: times.get(COMPUTE, 0) + times.get(MEMORY, 0)},
    )


def attribution(
    ranks: int = 2,
    steps: int = 6,
    late: int = 1,
    host: str = "n0",
    name: str = "",
    scale: float = 1.0,
    excess: Excess | None = None,
) -> Attribution:
    """An all-reduce of 4 MiB a step; `scale`: of the waiting, and of what the late rank computes beyond the others."""
    wait = round(30 * scale)
    usual = {**PARTS, WAITING: wait}
    slow = {**LATE, COMPUTE: 40 + wait}
    length = sum(usual.values()) * MS
    traces, layers = [], []
    for rank in range(ranks):
        begins = [number * length for number in range(steps)]
        arrival = (80 if rank == late else 50) * MS
        traces.append(
            Trace(
                source=f"rank{rank}.json",
                format="made by hand",
                rank=rank,
                ranks=ranks,
                host=host,
                unix=True,
                calls=tuple(
                    Call("allreduce", tuple(range(ranks)), start=begin + arrival, end=begin + length, name=name)
                    for begin in begins
                ),
                steps=tuple(Step(number, begin, begin + length) for number, begin in enumerate(begins)),
            )
        )
        windows = [Window(number, begin, begin + length) for number, begin in enumerate(begins)]
        layers.append(tuple(layers_of(window, slow if rank == late else usual) for window in windows))
    splits = tuple(_split(number, ranks, late, wait, number * length) for number in range(steps))
    waited = (ranks - 1) * steps * wait * MS
    its = late, steps, steps, steps, steps, wait * MS, wait * MS, waited, waited, COMPUTE
    culprit = Culprit(*its, {COMPUTE: wait * MS}, chance=float(ranks) ** -steps)
    found = Attribution(
        traces=tuple(traces),
        alignments=tuple(Alignment(SHARED) for _ in traces),
        layers=tuple(layers),
        splits=splits,
        refusals=(Refusal(name or "group other", "the counts differ", 2),),
        culprits=(culprit,),
        excesses=() if excess is None else (excess,),
        ceilings={},
        notes=(f"made by hand {name}".strip(),),
    )
    return _advised(found)


def _advised(found: Attribution) -> Attribution:
    from dataclasses import replace

    return replace(found, advice=advise(found))


def _split(number: int, ranks: int, late: int, wait: int, begin: int) -> Split:
    arrival = np.full(ranks, begin + 50 * MS, dtype=np.int64)
    arrival[late] += wait * MS
    waits = np.full(ranks, wait * MS, dtype=np.int64)
    waits[late] = 0
    calls = dict.fromkeys(range(ranks), number)
    return Split(
        Meeting("allreduce", tuple(range(ranks)), "0", number, calls, 4 << 20, "float32", None),
        places=tuple(range(ranks)),
        arrival=arrival,
        end=np.full(ranks, begin + (65 + wait) * MS, dtype=np.int64),
        wait=waits,
        transfer=np.full(ranks, 15 * MS, dtype=np.int64),
        wait_by_duration=None,
        error=0,
        culprit=late,
        lateness=wait * MS,
    )
