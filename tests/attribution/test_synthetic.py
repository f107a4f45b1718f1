"""Whole jobs of which the truth is known, through files: layers, clocks, waits, and what must be refused."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from commbench.attribution.ceilings import Ceilings
from commbench.attribution.classes import classify
from commbench.attribution.clocks import FROM_TRACES, MEASURED, Alignment, align, read_readings
from commbench.attribution.collectives import Split, split
from commbench.attribution.lateness import Culprit, culprits
from commbench.attribution.layers import COMPUTE, HOST, LAYERS, MEMORY, Layers, layers, windows
from commbench.attribution.matching import Matches, match
from commbench.attribution.reading import read
from commbench.attribution.trace import Trace
from commbench.errors import UsageError
from tests.attribution.synthetic import (
    US,
    Await,
    Collective,
    Job,
    Message,
    Op,
    Program,
    Run,
    Work,
    run,
    write,
    write_readings,
)

GROUPS = {"world": (0, 1, 2, 3), "tensor 0": (0, 1), "tensor 1": (2, 3)}
CLOCKS: dict[str, Any] = {
    "hosts": ("node0", "node0", "node1", "node2"),
    "offsets": (0, 0, 3_456_789, -987_654_321),
    "drifts": (0.0, 0.0, 2e-5, -1e-5),
}


def training(draw: random.Random, rank: int, steps: int = 6, late: int | None = 2, extra: int = 700) -> Program:
    """Steps with collectives within a pair, buckets under the backward pass, and one at the end that nothing hides."""

    def step() -> list[Op]:
        ops: list[Op] = [Work(HOST, draw.randint(20, 60))]
        for _ in range(2):
            ops += [Work(COMPUTE, draw.randint(200, 260)), Collective(f"tensor {rank // 2}", 30, elements=1 << 14)]
        if rank == late:
            ops.append(Work(MEMORY, extra))
        for bucket in range(3):
            ops += [
                Work(COMPUTE, draw.randint(150, 190)),
                Collective("world", 220, elements=1 << (18 + bucket), overlapped=True),
            ]
        ops += [Await("world"), Work(MEMORY, draw.randint(80, 120)), Collective("world", 90, "allgather", 1 << 16)]
        return ops

    return [step() for _ in range(steps)]


def job(seed: int = 1, **changes: Any) -> Run:
    late = {name: changes.pop(name) for name in ("late", "extra", "steps") if name in changes}
    programs = [training(random.Random(seed * 10 + rank), rank, **late) for rank in range(4)]
    return run(Job(programs, GROUPS, **changes))


def pipeline() -> Run:
    """Four stages, six micro-batches: GPipe's bubble."""
    programs: list[Program] = []
    for rank in range(4):
        ops: list[Op] = [Work(HOST, 20)]
        for _ in range(6):
            ops += [Message("recv", rank - 1, 10)] * (rank > 0) + [Work(COMPUTE, 200)]
            ops += [Message("send", rank + 1, 10)] * (rank < 3)
        programs.append([[*ops, Collective("world", 40)]] * 3)
    return run(Job(programs, {"world": (0, 1, 2, 3)}))


class Found:
    """What comes of the files of a job."""

    def __init__(self, folder: Path, paths: Sequence[Path], readings: Sequence[Path] = ()) -> None:
        self.traces: list[Trace] = sorted(read(paths), key=lambda trace: trace.rank or 0)
        self.matches: Matches = match(self.traces)
        self.alignments: tuple[Alignment, ...] = align(self.traces, read_readings(readings), self.matches.meetings)
        self.splits: list[Split] = [split(one, self.traces, self.alignments) for one in self.matches.meetings]
        self.layers: list[tuple[Layers, ...]] = []
        for place, trace in enumerate(self.traces):
            waits = {}
            for one in self.splits:
                if place in one.places and not one.skew_only:
                    number = one.meeting.calls[place]
                    waits[number] = (trace.calls[number].start or 0) + int(one.wait[one.places.index(place)])
            self.layers.append(layers(trace, windows(trace), waits, classify(trace, Ceilings())))

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        return culprits(self.traces, self.splits, self.layers)

    def layers_off(self, it: Run) -> int:
        """How far a layer of a step is off at most (ns)."""
        return max(
            abs(one.total(layer) - truth[layer])
            for rank, of_rank in enumerate(self.layers)
            for one, truth in zip(of_rank, it.truth(rank), strict=True)
            for layer in LAYERS
        )

    def clocks_off(self, it: Run) -> list[int]:
        """How far each rank's common times are off at most over the job (ns)."""
        end = it.marks[0][-1][1]
        times = [end * k / 10 for k in range(11)]
        return [
            max(abs(one.common(it.clock(rank, time)) - it.clock(0, time)) for time in times)
            for rank, one in enumerate(self.alignments)
        ]


def edited(path: Path, edit: Any) -> Path:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    return path


# One host


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_on_one_clock_every_layer_of_every_step_is_exact(seed: int, tmp_path: Path) -> None:
    it = job(seed)
    found = Found(tmp_path, write(it, tmp_path))
    assert found.matches.refusals == ()
    assert len(found.splits) == 6 * (2 * 2 + 4)
    assert found.layers_off(it) == 0
    assert all(sum(one.total(layer) for layer in LAYERS) > 0 for of in found.layers for one in of)


def test_a_pipeline_waits_in_its_bubble(tmp_path: Path) -> None:
    it = pipeline()
    found = Found(tmp_path, write(it, tmp_path))
    assert found.matches.refusals == () and found.layers_off(it) == 0
    # GPipe: of m micro-batches on p stages each rank idles (p - 1) of (m + p - 1) slots.
    for of_rank in found.layers:
        for one in of_rank[1:2]:
            share = one.total("waiting") / (one.window.end - one.window.start)
            assert share == pytest.approx(3 / 9, abs=0.06)


def test_the_rank_that_was_made_late_is_named_with_its_layer(tmp_path: Path) -> None:
    found = Found(tmp_path, write(job(), tmp_path)).culprits
    assert (found[0].rank, found[0].cause) == (2, MEMORY)
    assert found[0].steps == found[0].of_steps == 6
    assert found[0].before[MEMORY] == pytest.approx(700 * US, rel=0.1)


def test_waits_and_transfers_of_every_rank_are_those_of_the_job(tmp_path: Path) -> None:
    it = job(4)
    found = Found(tmp_path, write(it, tmp_path))
    true = {
        (rank, it.clock(rank, event.start)): ((event.until - event.start) * US, (event.end - event.until) * US)
        for rank, events in enumerate(it.events)
        for event in events
        if event.op is not None
    }
    seen = 0
    for one in found.splits:
        for column, place in enumerate(one.places):
            start = found.traces[place].calls[one.meeting.calls[place]].start
            assert true[place, start or 0] == (one.wait[column], one.transfer[column])
            seen += 1
    assert seen == len(true)


# Several hosts


@pytest.mark.parametrize("error", [100, 20_000])
def test_with_readings_all_is_within_the_stated_errors(error: int, tmp_path: Path) -> None:
    it = job(**CLOCKS)
    found = Found(tmp_path, write(it, tmp_path), write_readings(it, tmp_path, error))
    assert [one.source for one in found.alignments] == [MEASURED] * 4
    assert all(off <= one.error for off, one in zip(found.clocks_off(it), found.alignments, strict=True))
    assert max(one.error for one in found.alignments) <= error + 1000  # and what times of whole us say
    # A layer is off by what each boundary between wait and transfer is, and by the drift of a clock over a step.
    boundaries = 9 * max(one.error for one in found.splits)
    assert (
        found.layers_off(it)
        <= boundaries + 2e-5 * max(one.window.end - one.window.start for of in found.layers for one in of) + 100
    )
    assert found.culprits[0].rank == 2


def test_from_the_traces_alone_clocks_are_within_the_stated_error(tmp_path: Path) -> None:
    it = job(**CLOCKS, ragged=8, steps=20)
    found = Found(tmp_path, write(it, tmp_path))
    assert [one.source for one in found.alignments[2:]] == [FROM_TRACES] * 2
    assert all(off <= one.error for off, one in zip(found.clocks_off(it), found.alignments, strict=True))
    assert max(one.error for one in found.alignments) < 40 * US
    across = [one for one in found.splits if len(one.places) == 4]
    assert across and all("only durations tell" in one.low_confidence for one in across)
    assert (found.culprits[0].rank, found.culprits[0].cause) == (2, MEMORY)  # 700 us are more than that


def test_ranks_on_clocks_that_were_not_set_are_no_reason_to_call_anybody_late(tmp_path: Path) -> None:
    """Each rank's clock is wrong by far more than it is late; by the ends that is seen through."""
    it = job(late=None, **CLOCKS)
    found = Found(tmp_path, write(it, tmp_path)).culprits
    assert all(one.lateness < 200 * US for one in found)


# What must be refused


def _forget_metadata(content: dict[str, Any]) -> None:
    for event in content["traceEvents"]:
        if event["cat"] == "kernel":
            event["args"] = {key: value for key, value in event["args"].items() if key[0].islower()}


def test_messages_without_metadata_are_refused(tmp_path: Path) -> None:
    paths = [edited(path, _forget_metadata) for path in write(pipeline(), tmp_path)]
    found = match(read(paths))
    assert not [one for one in found.meetings if one.operation != "allreduce"]
    assert sum(refusal.calls for refusal in found.refusals) == 3 * 6 * 2 * 3


def test_a_rank_that_did_something_else_is_refused(tmp_path: Path) -> None:
    paths = write(job(), tmp_path)

    def other_type(content: dict[str, Any]) -> None:
        gathers = [
            event
            for event in content["traceEvents"]
            if event.get("args", {}).get("Collective name") == "_allgather_base"
        ]
        gathers[2]["args"]["dtype"] = "Half"

    edited(paths[1], other_type)
    found = match(sorted(read(paths), key=lambda trace: trace.rank or 0))
    (refusal,) = found.refusals
    assert "world" in refusal.group and "float16" in refusal.reason and "rank 1" in refusal.reason
    assert {one.group for one in found.meetings} == {(0, 1), (2, 3)}


def test_a_rank_that_is_missing_another_job_and_a_rank_twice_are_refused(tmp_path: Path) -> None:
    paths = write(job(), tmp_path)
    with pytest.raises(UsageError, match=r"1 of 4 have none \(3\)"):
        match(read(paths[:3]))
    (tmp_path / "other").mkdir()
    three = run(
        Job(
            [training(random.Random(r), r) for r in range(4)] + [[[Work(COMPUTE, 5)]]],
            {**GROUPS, "all": (0, 1, 2, 3, 4)},
        )
    )
    others = write(three, tmp_path / "other")
    with pytest.raises(UsageError, match="of different ones"):
        match(read([*paths[:3], others[3]]))
    with pytest.raises(UsageError, match="both of rank 0"):
        match(read([paths[0], paths[1], write(job(), tmp_path / "other")[0]]))


def test_profilers_that_were_not_started_at_one_instant_are_aligned_by_time(tmp_path: Path) -> None:
    it = job()
    paths = write(it, tmp_path)

    def later(content: dict[str, Any]) -> None:
        begin = it.clock(3, it.windows(3)[1][0]) - content["baseTimeNanoseconds"]
        content["traceEvents"] = [event for event in content["traceEvents"] if event["ts"] >= begin / US]

    whole = len(match(read(paths)).meetings)
    edited(paths[3], later)
    found = match(sorted(read(paths), key=lambda trace: trace.rank or 0))
    assert len(found.meetings) == whole - 2 - 4  # of rank 3's first step: two of its pair, four of all
    assert all("begins or ends elsewhere" in refusal.reason for refusal in found.refusals)
