"""`analyse` put together from its parts: against jobs of which the truth is known, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from commbench.attribution.advice import convicted
from commbench.attribution.analyse import ALL, Attribution, Choice, analyse, one_of_each_rank
from commbench.attribution.clocks import read_readings
from commbench.attribution.injected import Injection, Measured, effect, read_injection
from commbench.attribution.layers import COMMUNICATION, COMPUTE, HOST, LAYERS, MEMORY, WAITING
from commbench.attribution.reading import read
from commbench.attribution.trace import Call, Spans, Trace
from commbench.errors import UsageError
from tests.attribution import synthetic
from tests.attribution.jobs import call, trace, world
from tests.attribution.synthetic import Collective, Job, Work
from tests.runs import record

MS = 1_000_000  # ns
STEPS = 8


def job(slow: Sequence[int] = (), late_us: int = 4000, ranks: int = 3, steps: int = STEPS) -> Job:
    """Ranks that compute 10 ms, move memory for 2 and reduce for 3; the last one computes longer in `slow` steps."""

    def step(rank: int, number: int) -> list[synthetic.Op]:
        more = late_us if rank == ranks - 1 and number in slow else 0
        return [Work(HOST, 500), Work(COMPUTE, 10_000 + more), Work(MEMORY, 2_000), Collective("world", 3_000)]

    programs = [[step(rank, number) for number in range(steps)] for rank in range(ranks)]
    return Job(programs, {"world": tuple(range(ranks))})


def traces_of(it: Job) -> list[Trace]:
    run = synthetic.run(it)
    return [synthetic.trace(run, rank)[0] for rank in range(len(it.programs))]


def total(found: Attribution, place: int) -> int:
    return sum(one.window.end - one.window.start for one in found.layers[place])


def test_layers_of_a_known_job_are_the_true_ones() -> None:
    it = job(slow=range(STEPS))
    run = synthetic.run(it)
    found = analyse([synthetic.trace(run, rank)[0] for rank in range(3)])
    for rank in range(3):
        true = run.truth(rank)
        assert [{layer: one.total(layer) for layer in LAYERS} for one in found.layers[rank]] == true
        assert found.totals(rank) == {layer: sum(one[layer] for one in true) for layer in LAYERS}
        assert sum(found.totals(rank).values()) == total(found, rank)
    assert sum(found.share(layer) for layer in LAYERS) == pytest.approx(1)
    assert found.steps == tuple(range(STEPS))


def test_the_slow_rank_is_convicted_and_the_next_command_is_about_compute() -> None:
    found = analyse(traces_of(job(slow=range(STEPS))))
    (one,) = convicted(found)
    assert (one.rank, one.meetings, one.of, one.cause) == (2, STEPS, STEPS, COMPUTE)
    first = found.advice[0]
    assert first.text.startswith("rank 2 computes longer than the others") and "(node0)" in first.text
    assert first.command == "python -m commbench.kernels"


def test_nobody_is_convicted_where_ranks_take_turns() -> None:
    """Each rank is late in one of three steps: last as often as chance gives."""

    def step(rank: int, number: int) -> list[synthetic.Op]:
        return [Work(COMPUTE, 14_000 if number % 3 == rank else 10_000), Collective("world", 3_000)]

    programs = [[step(rank, number) for number in range(12)] for rank in range(3)]
    found = analyse(traces_of(Job(programs, {"world": (0, 1, 2)})))
    assert found.culprits and convicted(found) == []


@pytest.mark.parametrize("domain", ["", ".hpc.example"])
def test_of_several_models_of_device_each_has_the_bandwidth_of_its_own_hosts(domain: str) -> None:
    rows = [
        record(
            "copy baseline",
            collective="kernels",
            buffer="device",
            status="ok",
            simulated=False,
            algbw=rate,
            hosts=",".join(f"{host}{domain}" for host in hosts.split(",")),
        )
        for rate, hosts in ((1400.0, "a"), (2900.0, "b"), (3000.0, "a,b"))
    ]
    models = {"a": "NVIDIA A100-SXM4-80GB", "b": "AMD Instinct MI250X"}
    calls = [call(0, MS, group=(0, 1))]
    traces = [trace(rank, calls, ranks=2, host=host, model=model) for rank, (host, model) in enumerate(models.items())]
    both = analyse(traces, records=rows).ceilings
    assert [both[model].bandwidth for model in models.values()] == [1.4e12, 2.9e12]
    alike = [replace(one, model=models["a"]) for one in traces]
    assert analyse(alike, records=rows).ceilings[models["a"]].bandwidth == 3e12


def test_nobody_is_convicted_where_the_ranks_of_pairs_take_turns() -> None:
    """Each is last at every other meeting of its pair, which is more than one in four, and what chance gives of two."""

    def step(rank: int, number: int) -> list[synthetic.Op]:
        return [Work(COMPUTE, 14_000 if number % 2 == rank % 2 else 10_000), Collective(f"pair {rank // 2}", 3_000)]

    programs = [[step(rank, number) for number in range(40)] for rank in range(4)]
    found = analyse(traces_of(Job(programs, {"pair 0": (0, 1), "pair 1": (2, 3)})))
    assert [(one.meetings, one.of) for one in found.culprits] == [(20, 40)] * 4
    assert min(one.chance for one in found.culprits) > 0.5
    assert convicted(found) == []


def test_the_root_of_broadcasts_is_not_convicted_by_them_alone() -> None:
    def calls(rank: int) -> list[Call]:
        starts = [k * 100 * MS + (30 * MS if rank == 0 else 0) for k in range(20)]
        return [call(s, (k * 100 + 50) * MS, group=(0, 1), operation="broadcast", root=0) for k, s in enumerate(starts)]

    found = analyse(world(calls(0), calls(1)))
    assert [(one.rank, one.meetings, one.of, one.chance) for one in found.culprits] == [(0, 20, 20, 1.0)]
    assert convicted(found) == []


def test_traces_come_in_any_order_and_clocks_are_set_by_their_readings(tmp_path: Path) -> None:
    """The clock of rank 2 is 7 ms ahead and runs fast; read from files, its lateness is still 4 ms."""
    it = replace(job(slow=range(STEPS)), hosts=("a", "a", "b"), offsets=(0, 0, 7 * MS), drifts=(0.0, 0.0, 20e-6))
    run = synthetic.run(it)
    files = synthetic.write(run, tmp_path)
    clocks = read_readings(synthetic.write_readings(run, tmp_path, error=5_000))
    found = analyse(read(reversed(files)), clocks)
    assert [one.rank for one in found.traces] == [0, 1, 2]
    assert max(how.error for how in found.alignments) < 50_000
    assert [one.lateness for one in found.splits] == pytest.approx([4 * MS] * STEPS, abs=50_000)
    (late,) = convicted(found)
    assert late.rank == 2


def test_calls_without_a_counterpart_are_refused_and_count_as_communication() -> None:
    traces = traces_of(job())
    traces[1] = replace(
        traces[1], calls=(replace(traces[1].calls[0], elements_in=7, elements_out=7), *traces[1].calls[1:])
    )
    found = analyse(traces)
    assert found.refusals
    assert found.totals(0)[WAITING] == 0
    assert found.totals(0)[COMMUNICATION] == sum(one.unsplit for one in found.layers[0])


def test_steps_are_chosen_and_an_unknown_one_is_answered_with_those_there_are() -> None:
    traces = traces_of(job())
    found = analyse(traces, choice=Choice(steps={2, 3}))
    assert found.steps == (2, 3)
    assert {found.step_of(one) for one in found.splits} == {2, 3}
    with pytest.raises(UsageError, match=r"--steps 9: the traces have steps 0-7"):
        analyse(traces, choice=Choice(steps={9}))


def test_a_window_cuts_all_ranks_at_the_same_time() -> None:
    """Rank 2's clock is 5 s ahead: the window is one of common time."""
    traces = traces_of(replace(job(slow=range(STEPS)), offsets=(0, 0, 5_000 * MS), hosts=("a", "a", "b")))
    found = analyse(traces, choice=Choice(window=(0.0, 19.5)))
    assert [len(per) for per in found.layers] == [1, 1, 1]
    assert {one.window.end - one.window.start for per in found.layers for one in per} == {round(19.5 * MS)}
    with pytest.raises(UsageError, match=r"--window 1000:2000 holds no work: the traces run from 0 to "):
        analyse(traces_of(job()), choice=Choice(window=(1000.0, 2000.0)))


def test_without_marks_whole_traces_are_taken_and_that_is_said() -> None:
    traces = [replace(one, steps=()) for one in traces_of(job())]
    found = analyse(traces)
    assert found.steps == (None,)
    assert any("no step is marked" in note for note in found.notes)
    assert not any("no step is marked" in note for note in analyse(traces, choice=Choice(window=ALL)).notes)
    with pytest.raises(UsageError, match="no step is marked"):
        analyse(traces, choice=Choice(steps={1}))
    with pytest.raises(UsageError, match="rank 1: no step is marked, as others have: --window all"):
        analyse([traces_of(job())[0], traces[1], traces_of(job())[2]])


def test_one_trace_alone_has_no_waiting() -> None:
    (first, *_) = traces_of(job(slow=range(STEPS)))
    found = analyse([first], choice=Choice(partial=True))
    assert found.alone and found.totals(0)[WAITING] == 0
    assert found.totals(0)[COMMUNICATION] == sum(one.unsplit for one in found.layers[0]) > 0


def test_where_only_arrivals_are_known_there_are_no_layers() -> None:
    """As of a Flight Recorder on Gloo: rank 1 asks 2 ms after the others, at each of six all-reduces."""
    columns = [[call(None, None, enqueued=(10 * k + 2 * (rank == 1)) * MS) for k in range(6)] for rank in range(3)]
    columns = [[replace(one, group=(0, 1, 2), group_size=3) for one in calls] for calls in columns]
    found = analyse([trace(rank, calls, ranks=3) for rank, calls in enumerate(columns)])
    assert found.steps == () and found.time == 0
    assert any("arrivals alone, no layers" in note for note in found.notes)
    assert [(one.culprit, one.lateness) for one in found.splits] == [(1, 2 * MS)] * 6


def test_steps_in_which_a_rank_has_no_work_are_said() -> None:
    traces = traces_of(job())
    traces[1] = replace(traces[1], steps=traces[1].steps[:5])
    said = "rank 1: no work in steps 5-7, in which others have some"
    assert said in analyse(traces).notes
    assert said.replace("5-7", "6") in analyse(traces, choice=Choice(steps={3, 6})).notes
    assert not any("no work in steps" in note for note in analyse(traces_of(job())).notes)


def test_a_job_of_one_rank_waits_for_nobody_and_all_of_its_calls_is_transfer() -> None:
    found = analyse(traces_of(Job([[[Work(COMPUTE, 5_000), Collective("world", 2_000)]]], {"world": (0,)})))
    assert not found.alone and found.unsplit == 0
    assert found.totals(0) == {COMPUTE: 5 * MS, MEMORY: 0, COMMUNICATION: 2 * MS, WAITING: 0, HOST: 0}


# What is refused


def test_a_missing_rank_is_named_and_partial_goes_on() -> None:
    traces = traces_of(job())
    with pytest.raises(UsageError, match=r"1 of 3 have none \(1\): give theirs, or --partial goes on without"):
        analyse([traces[0], traces[2]])
    found = analyse([traces[0], traces[2]], choice=Choice(partial=True))
    assert any("of 3 ranks the traces of 1 are missing" in note for note in found.notes)


def test_a_rank_is_missing_for_the_reason_that_its_file_is_of_no_use() -> None:
    traces = [
        replace(one, notes=("left out: rank1.json is empty", "2 events are left out")) for one in traces_of(job())
    ]
    with pytest.raises(UsageError, match=r"goes on without; left out: rank1\.json is empty$"):
        analyse([traces[0], traces[2]])


def test_a_rank_that_its_job_cannot_have_is_refused() -> None:
    """As where files are named from rank1 on, and the name is all that tells the rank."""
    with pytest.raises(UsageError, match=r"rank3\.json \(rank 3 of 3\): ranks count from 0"):
        analyse([trace(1, ranks=3), trace(2, ranks=3), trace(3, ranks=3)], choice=Choice(partial=True))


def test_a_rank_twice_is_named_and_partial_takes_the_first() -> None:
    traces = [*traces_of(job()), replace(traces_of(job())[1], source="zz.json")]
    with pytest.raises(UsageError, match=r"rank 1 is in rank1\.json and in zz\.json"):
        analyse(traces)
    found = analyse(traces, choice=Choice(partial=True))
    assert [one.source for one in found.traces] == ["rank0.json", "rank1.json", "rank2.json"]


def later(one: Trace, by: int) -> Trace:
    """The same recording `by` ns later, in another file."""
    spans = replace(one.spans, start=one.spans.start + by, end=one.spans.end + by, launched=one.spans.launched + by)
    calls = [
        replace(
            call, **{name: at + by for name in ("start", "end", "enqueued") if (at := getattr(call, name)) is not None}
        )
        for call in one.calls
    ]
    steps = [replace(step, start=step.start + by, end=step.end + by) for step in one.steps]
    return replace(one, source=f"later-{one.source}", spans=spans, calls=tuple(calls), steps=tuple(steps))


def test_of_recordings_one_after_the_other_the_last_is_taken() -> None:
    """As the profiler's schedule leaves them with repeat=2, one file a cycle."""
    first = traces_of(job())
    second = [later(one, 3_600_000 * MS) for one in first]
    found = analyse([*second, *first])
    assert [one.source for one in found.traces] == [one.source for one in second]
    assert any(note.startswith("2 recordings of each rank") for note in found.notes)
    assert [found.totals(place) for place in range(3)] == [analyse(first).totals(place) for place in range(3)]
    with pytest.raises(UsageError, match="rank 0 is in"):  # of rank 0 alone there are two
        analyse([*first, second[0]])


def test_runs_of_two_folders_are_no_recordings_of_one() -> None:
    first = [replace(one, source=f"run1/{one.source}") for one in traces_of(job())]
    second = [replace(later(one, 3_600_000 * MS), source=f"run2/{one.source}") for one in traces_of(job())]
    with pytest.raises(UsageError, match=r"rank 0 is in run1/.* and in run2/.*--compare holds two runs"):
        analyse([*first, *second])


def test_a_rank_without_times_among_those_with_some_is_named_and_partial_leaves_it_out() -> None:
    """As where one rank's file is a Flight Recorder dump of Gloo, and the others' are of the profiler."""
    traces = traces_of(job())
    calls = tuple(replace(one, start=None, end=None) for one in traces[1].calls)
    traces[1] = replace(traces[1], source="flight.json", spans=Spans.none(), calls=calls, steps=())
    with pytest.raises(UsageError, match=r"^flight\.json: told when collectives were asked for, and not when anything"):
        analyse(traces)
    found = analyse(traces, choice=Choice(partial=True))
    assert [one.rank for one in found.traces] == [0, 2]
    assert any(note.startswith("left out: flight.json: told when") for note in found.notes)


def test_traces_of_different_jobs_are_refused_and_partial_keeps_the_larger_part() -> None:
    traces = [replace(one, job="one") for one in traces_of(job())]
    other = replace(traces[0], job="two", source="other.json", rank=3)
    with pytest.raises(
        UsageError, match=r"other\.json \(job two, 3 ranks\): of another job than rank0\.json \(job one"
    ):
        analyse([*traces, other])
    assert len(analyse([*traces, other], choice=Choice(partial=True)).traces) == 3
    sizes = [trace(0, ranks=2), trace(1, ranks=2), trace(2, ranks=4)]
    with pytest.raises(UsageError, match=r"rank2\.json \(4 ranks\): of another job than rank0\.json \(2 ranks\)"):
        one_of_each_rank(sizes, partial=False)


def test_a_rank_that_nothing_tells_is_named() -> None:
    with pytest.raises(UsageError, match=r"a\.json: nothing in the file or in its name tells the rank"):
        one_of_each_rank([trace(None, source="a.json"), trace(1)], partial=True)
    with pytest.raises(UsageError, match="there is no trace"):
        one_of_each_rank([], partial=True)


def test_of_several_formats_of_a_rank_the_one_with_spans_is_taken() -> None:
    bare = trace(1, [call(0, 1)], format="flight recorder", ranks=3, source="a-flight-rank1.json", host="node0")
    kept, notes = one_of_each_rank([bare, *traces_of(job())], partial=False)
    assert [one.source for one in kept] == ["rank0.json", "rank1.json", "rank2.json"]
    assert notes == ["left out: 1 flight recorder, of ranks that have a made too"]


# Faults that were injected


def test_an_injected_delay_is_found_in_the_waiting_of_the_others() -> None:
    """4 ms more to compute on rank 2, in every other step: the others wait 4 ms longer, whatever they did before."""
    slow = range(1, STEPS, 2)
    traces = traces_of(job(slow=slow))
    found = analyse(traces, injection=Injection("slow-compute=2:1.4", (2,), frozenset(slow)))
    it = found.effect
    assert it is not None
    assert it.first is not None
    assert (it.pairs, it.first.value, it.exposed.value, it.layers[COMPUTE]) == (4, 4 * MS, 4 * MS, 4 * MS)
    assert (it.exposed.low, it.exposed.half_width) == (None, None)  # four pairs give no interval
    more = analyse(
        traces_of(job(slow=range(1, 12, 2), steps=12)),
        injection=replace(it.injection, steps=frozenset(range(1, 12, 2))),
    )
    assert more.effect is not None and more.effect.first == more.effect.exposed == Measured(4 * MS, 4 * MS, 4 * MS)
    assert more.effect.exposed.half_width == 0


def test_without_steps_beside_them_injected_ones_say_nothing() -> None:
    found = analyse(traces_of(job()))
    assert effect(found.traces, found.layers, {}, Injection("x", (2,), frozenset(range(STEPS)))) is None
    assert effect(found.traces, found.layers, {}, Injection("x", (0, 1, 2), frozenset({1}))) is None


def test_what_was_injected_is_read_from_beside_the_traces(tmp_path: Path) -> None:
    steps = [{"step": 0, "injected": False}, {"step": 1, "injected": True}]
    content = {"format": 1, "faults": ["slow-rank=1:50ms"], "steps": steps}
    (tmp_path / "training.json").write_text(json.dumps(content))
    assert read_injection([tmp_path]) == Injection("slow-rank=1:50ms", (1,), frozenset({1}))
    (tmp_path / "training.json").write_text(json.dumps({**content, "faults": ["jitter=*:5ms"]}))
    assert read_injection([tmp_path / "rank0.json"]) == Injection("jitter=*:5ms", (), frozenset({1}))
    (tmp_path / "training.json").write_text(json.dumps({"format": 1, "faults": [], "steps": []}))
    assert read_injection([tmp_path]) is None
    (tmp_path / "training.json").write_text("[1]")
    with pytest.raises(UsageError, match=r"training\.json is not as commbench\.train writes it"):
        read_injection([tmp_path])
    (tmp_path / "training.json").write_text(json.dumps({**content, "format": 2}))
    with pytest.raises(UsageError, match=r"^training\.json has format 1, and .*training\.json has 2: read it"):
        read_injection([tmp_path])
    del content["format"]
    (tmp_path / "training.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"training\.json is not as commbench\.train writes it \(KeyError\)"):
        read_injection([tmp_path])
