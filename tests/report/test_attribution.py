"""What is said, tabled and drawn of an attribution; attributions are made by hand, so that each number is known."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

pytest.importorskip("seaborn")
pytest.importorskip("jinja2")

from commbench.attribution.advice import advise
from commbench.attribution.analyse import Attribution, analyse
from commbench.attribution.chrome import events
from commbench.attribution.clocks import ASSUMED, UNKNOWN_ERROR, Alignment
from commbench.attribution.excess import NO_PORTS, Excess
from commbench.attribution.injected import Effect, Injection, Measured
from commbench.attribution.layers import COMPUTE, HOST, LAYERS, WAITING, Window
from commbench.attribution.trace import BY_NAME, Operator
from commbench.report import attribution_compare as compare
from commbench.report import attribution_screen as screen
from commbench.report import html
from commbench.report.attribution import FILES, render, write
from commbench.report.attribution_tables import collective_table, tables
from commbench.report.attribution_words import ms, words
from commbench.report.drawing import LAYER_COLOURS, drawings_of_steps, style, thinned
from commbench.report.figures import late_ranks, step_timeline
from commbench.report.summary import SLOW
from tests.attribution.jobs import call, world
from tests.report.attributions import MS, attribution, layers_of
from tests.report.test_report import HOSTILE, Page

EXCESS = Excess("allreduce", 4 << 20, 2, 6, 15 * MS, 10 * MS, "run one", 5 * MS, "")


def texts(found: Attribution) -> str:
    return "\n".join(f"{one.kind} {one.text}" for one in words(found))


# In words


def test_the_layers_are_told_as_parts_of_all_ranks_time_beside_what_tools_call_communication() -> None:
    """Rank 0: 40 10 15 30 5 of 100 ms; rank 1: 70 10 15 0 5."""
    said = texts(attribution())
    assert "compute 55.0 %, memory 10.0 %, communication 15.0 %, waiting 15.0 %, host 5.0 %" in said
    assert "collectives fill 30.0 %, as most tools count communication; 15.0 % is transfer that nothing hides" in said
    assert "2 ranks on 1 host, 6 steps of 100 ms (median; 100 ms to 100 ms)" in said


def test_the_late_rank_is_told_with_how_often_how_long_and_why() -> None:
    said = texts(attribution())
    assert "slow rank 1 is late: the last one at 6 of the 6 collectives" in said
    assert "by 30 ms (median; at most 30 ms); each other rank waits 30 ms a step for it" in said
    assert "it spends 30 ms more than they do in compute (clocks agree to 0 ms: one host)" in said
    assert "do rank 1 computes longer than the others before it arrives; on its node (n0) (pip install" in said


def test_without_steps_a_window_is_spoken_of() -> None:
    found = attribution()
    wholes = tuple((replace(per[0], window=replace(per[0].window, step=None)),) for per in found.layers)
    assert "in this window for it (mean)" in texts(replace(found, layers=wholes))


def test_lateness_that_chance_may_give_convicts_nobody() -> None:
    found = attribution()
    found = replace(found, culprits=(replace(found.culprits[0], meetings=4, chance=0.026),))  # 5 % are for two ranks
    said = texts(found)
    assert "no rank is late by more than chance gives from step to step" in said
    assert "the others wait most for rank 1: each other rank waits 30 ms a step for it" in said
    assert "it was the last one at 4 of 6 collectives" in said


@pytest.mark.parametrize(
    ("cause", "command"),
    [
        ("memory", "python -m commbench.kernels.weight_update"),
        ("communication", "mpirun -n 2 python -m commbench.pairs"),
        ("host", "python -m commbench.telemetry --out counters/ -- ..."),
        ("", "python -m commbench.doctor"),
    ],
)
def test_each_cause_leads_to_a_command(cause: str, command: str) -> None:
    found = attribution()
    found = replace(found, culprits=(replace(found.culprits[0], cause=cause),))
    assert command in [one.command for one in advise(found)]


def test_a_rank_that_waited_itself_leads_to_the_first_one() -> None:
    found = attribution()
    late = replace(found.culprits[0], cause="earlier collective", upstream=(3, 0), through="tp")
    found = replace(found, culprits=(late,))
    assert advise(found)[0].text == (
        "rank 1 is late because it had waited itself, in tp: look at rank 0 first; on its node (n0)"
    )
    assert "it had waited itself in tp, for rank 0" in texts(found)


def test_ranks_that_one_rank_held_up_are_named_together() -> None:
    found = attribution()
    one = replace(found.culprits[0], behind=2 * found.culprits[0].waited)
    held_up = replace(one, cause="earlier collective", upstream=(1,), through="tp", behind=one.waited)
    found = replace(found, culprits=(one, *(replace(held_up, rank=rank) for rank in (7, 4, 5, 6))))
    said = [one.text for one in words(found) if one.kind == SLOW]
    assert len(said) == 2
    assert "rank 1 is late: " in said[0] and "; with those that it held up, " in said[0]
    assert "ranks 4-7 are late: " in said[1] and "they had waited themselves in tp, for rank 1 " in said[1]
    assert advise(found)[1].text.startswith(
        "ranks 4-7 are late because they had waited themselves, in tp: look at rank 1 first; on its node"
    )


def test_an_excess_is_no_congestion_unless_counters_say_so() -> None:
    found = attribution(excess=EXCESS)
    assert "15 ms of transfer, 10 ms alone (run one): 5 ms more; without counters nothing tells why" in texts(found)
    assert not any("congested" in one.text for one in found.advice)
    found = attribution(excess=replace(EXCESS, congestion="xmit_wait rose on mlx5_0", congested=True))
    assert "5 ms more; xmit_wait rose on mlx5_0" in texts(found)
    commands = [one.command for one in found.advice]
    assert "mpirun -n 2 python -m commbench.pairs" in commands
    assert any(command.startswith("python -m commbench.recommend") for command in commands)


def test_without_a_record_the_command_that_makes_one_is_named() -> None:
    found = attribution(excess=replace(EXCESS, alone=None, excess=None, record="no record"))
    command = "mpirun -n 2 python -m commbench.allreduce -b 4M -e 4M -f 2 --budget 30 --out alone/allreduce-2-4M-4M"
    assert command in [one.command for one in found.advice]


def test_one_sweep_for_each_group_is_over_all_sizes_without_a_record() -> None:
    """3 to 5 MiB lie between 2 and 8; the size that has a record is left out, and a group of its own has its own."""
    unknown = replace(EXCESS, alone=None, excess=None, record="no record", group="dp")
    mib = [replace(unknown, size=size << 20) for size in (5, 3, 4)]
    other = replace(unknown, ranks=4, size=1000, group="tp")
    found = replace(attribution(), excesses=(*mib, replace(EXCESS, size=64 << 20, group="dp"), other))
    cpu = replace(found, traces=tuple(replace(trace, device="cpu") for trace in found.traces))
    how = "-f 2 --method clock --budget 30 --backend gloo --out"
    not_known = "takes alone is not known (no record): measure it on these nodes, for --results alone/"
    assert [(one.text, one.command) for one in advise(cpu) if not_known in one.text] == [
        (
            f"what allreduce of 3 MiB to 5 MiB on 2 ranks {not_known}",
            f"mpirun -n 2 python -m commbench.allreduce -b 2M -e 8M {how} alone/allreduce-2-2M-8M",
        ),
        (
            f"what allreduce of 1000 B on 4 ranks {not_known}",
            f"mpirun -n 4 python -m commbench.allreduce -b 512 -e 1K {how} alone/allreduce-4-512-1K",
        ),
    ]
    gpu = replace(found, traces=tuple(replace(trace, device="cuda") for trace in found.traces))
    # The library's work is timed by the device there, which --method clock excludes.
    command = "mpirun -n 2 python -m commbench.allreduce -b 2M -e 8M -f 2 --budget 30 --out alone/allreduce-2-2M-8M"
    assert command in [one.command for one in advise(gpu)]


@pytest.mark.parametrize(
    ("low", "high", "alone", "said"),
    [
        (
            9,
            11,
            10,
            "slow allreduce of 4 MiB on 2 ranks: 15 ms of transfer, 10 ms alone (9 ms to 11 ms; run one): 5 ms",
        ),
        (
            9,
            16,
            10,
            "time allreduce of 4 MiB on 2 ranks: 15 ms of transfer, 10 ms alone (9 ms to 16 ms; run one): within",
        ),
        (14, 14.5, 14, "(14 ms to 14.5 ms; run one): 1 ms more, as equal launches may differ"),
        (
            19,
            21,
            20,
            "time allreduce of 4 MiB on 2 ranks: 15 ms of transfer, 20 ms alone (19 ms to 21 ms; run one): 5 ms less",
        ),
    ],
)
def test_only_what_is_beyond_the_interval_and_a_tenth_is_slow(low: float, high: float, alone: int, said: str) -> None:
    it = replace(EXCESS, alone=alone * MS, excess=(15 - alone) * MS)
    it = replace(it, alone_low=round(low * MS), alone_high=round(high * MS))
    assert said in texts(attribution(excess=it))


def test_sizes_that_would_be_called_the_same_are_told_exactly() -> None:
    """4099 and 4098 KiB are 4 MiB both; that of another number of ranks has its name for itself."""
    sizes = [replace(EXCESS, size=4099 << 10), replace(EXCESS, size=4098 << 10), replace(EXCESS, ranks=4)]
    found = replace(attribution(), excesses=tuple(sizes))
    said = texts(found)
    for name in ("allreduce of 4099K on 2 ranks", "allreduce of 4098K on 2 ranks", "allreduce of 4 MiB on 4 ranks"):
        assert f"slow {name}: 15 ms of transfer" in said
    assert any(one.text.startswith("allreduce of 4099K on 2 ranks takes 1.5 times") for one in advise(on_hosts(found)))
    unknown = [replace(one, alone=None, excess=None, record="no record") for one in sizes]
    asked = advise(replace(found, excesses=tuple(unknown)))
    assert any(one.text.startswith("what allreduce of 4 MiB on 2 ranks takes alone") for one in asked)


def on_hosts(found: Attribution) -> Attribution:
    """The same with each rank on a host of its own."""
    return replace(found, traces=tuple(replace(trace, host=f"n{trace.rank}") for trace in found.traces))


def test_counters_are_asked_for_only_where_ranks_span_hosts_and_none_were_given() -> None:
    telemetry = "python -m commbench.telemetry --out counters/ -- ..."
    for congestion, hosts, wanted in (("", 1, False), ("", 2, True), (NO_PORTS, 2, False), ("none rose", 2, False)):
        found = attribution(excess=replace(EXCESS, congestion=congestion))
        commands = [one.command for one in advise(on_hosts(found) if hosts > 1 else found)]
        assert (telemetry in commands) == wanted
        assert ("mpirun -n 2 python -m commbench.pairs" in commands) == (congestion == "none rose")


def test_another_order_of_ranks_is_proposed_only_where_they_span_hosts() -> None:
    found = attribution(scale=0)  # 15 of 70 ms are transfer, and nobody waits
    assert not any("another order of ranks" in one.text for one in advise(found))
    assert any("another order of ranks" in one.text for one in advise(on_hosts(found)))


def test_kernels_are_proposed_with_what_they_need() -> None:
    assert any(
        "pip install 'commbench[kernels]'" in one.text and one.command == "python -m commbench.kernels"
        for one in attribution().advice
    )


def test_one_trace_alone_says_that_waiting_cannot_be_told() -> None:
    found = attribution()
    layers = tuple(replace(one, unsplit=45 * MS) for one in found.layers[0])
    alone = replace(
        found, traces=found.traces[:1], layers=(layers,), alignments=found.alignments[:1], splits=(), culprits=()
    )
    assert "waiting cannot be told from transfer, which takes the traces of the others" in texts(alone)


def test_waiting_that_nobody_can_tell_is_no_zero() -> None:
    found = attribution()
    layers = tuple(
        tuple(replace(one, unsplit=one.exposed) for one in per) for per in (found.layers[1], found.layers[1])
    )
    found = replace(found, layers=layers, splits=(), culprits=())
    said = texts(found)
    assert "communication 15.0 %, waiting not told, host" in said
    assert "in 15.0 % waiting cannot be told from transfer, as calls have no counterpart" in said
    ranks = tables(found)["ranks"]
    assert [line[ranks.header.index("waiting")] for line in ranks.texts[1]] == ["-", "-"]
    assert not any("transfers are a large part" in one.text for one in advise(found))


def test_no_communication_is_said_with_the_names_seen() -> None:
    found = attribution()
    bare = replace(found, traces=tuple(replace(one, calls=()) for one in found.traces), splits=(), culprits=())
    assert "no communication was recognised in any trace; names seen: none" in texts(bare)


def test_who_is_late_is_not_told_without_a_common_clock() -> None:
    found = attribution()
    apart = [replace(one, source=ASSUMED, error=UNKNOWN_ERROR, clock=str(k)) for k, one in enumerate(found.alignments)]
    said = texts(replace(found, culprits=(), alignments=tuple(apart)))
    assert "doubt who is late cannot be told, as clocks are not set against one another" in said
    assert "no rank is late" not in said
    table = collective_table(replace(found, splits=tuple(replace(one, error=UNKNOWN_ERROR) for one in found.splits)))
    assert {row[table.header.index("late by")].text for row in table.lines} == {"-"}


def test_a_trace_that_breaks_off_is_a_doubt() -> None:
    found = attribution()
    assert "breaks off" not in texts(found)
    cut = replace(found, traces=(found.traces[0], replace(found.traces[1], whole=False)))
    assert "doubt rank 1: the file breaks off, and only what stands before that was looked at" in texts(cut)


def test_what_names_lack_is_named() -> None:
    found = attribution()
    assert "record shapes (record_shapes=True), and give --peak" in texts(found)
    shapes = (Operator("aten::mm", ((2, 2), (2, 2))),)
    told = texts(replace(found, traces=tuple(replace(one, operators=shapes) for one in found.traces)))
    assert "record shapes" not in told and "alone: give --peak float32=TFLOP/S,memory=GB/S" in told


def test_calls_that_are_not_matched_are_said_with_the_reason() -> None:
    assert "doubt 2 calls could not be matched: the counts differ (group other)" in texts(attribution())


@pytest.mark.parametrize(("by_name", "said"), [(1, False), (2, True)])
def test_calls_recognised_by_name_alone_are_said_where_they_are_more_than_a_tenth(by_name: int, said: bool) -> None:
    """Of 12 calls."""
    found = attribution()
    first, second = found.traces
    calls = [
        replace(one, evidence=BY_NAME, group=None, elements_in=None, elements_out=None) if k < by_name else one
        for k, one in enumerate(first.calls)
    ]
    found = replace(found, traces=(replace(first, calls=tuple(calls)), second))
    assert (f"doubt {by_name} of 12 calls were recognised by name alone" in texts(found)) == said
    assert ("recognised" in texts(found)) == said


def lasting(*meetings: tuple[int, ...]) -> Attribution:
    """All-reduces of 4 KiB of which only these durations (us) on the ranks are known."""
    columns = zip(*meetings, strict=True)
    group = tuple(range(len(meetings[0])))
    calls = [[call(None, None, group=group, duration=us * 1000, sequence=n) for n, us in enumerate(c)] for c in columns]
    return analyse(world(*calls))


@pytest.mark.parametrize(("at", "said"), [(5, True), (4, False)])
def test_by_durations_the_rank_is_named_that_is_the_shortest_more_often_than_chance_gives(at: int, said: bool) -> None:
    """Of 1024 ways, 16 make one of four ranks the shortest at 4 of 5 or more, beyond 0.05 / 4; one makes it all 5."""
    found = lasting(*[(9, 8, 5, 9)] * at, *[(5, 8, 9, 9)] * (5 - at))
    assert ("probably rank 2, whose are the shortest at 5 of 5 collectives" in texts(found)) == said
    assert ("no rank's are the shortest more often" in texts(found)) != said
    assert not any(one.kind == "slow" for one in words(found))


def test_by_durations_nobody_is_named_for_ends_that_are_ragged_or_equal() -> None:
    for durations in [(100, 99, 95, 100), (9, 9, 5, 5)]:
        assert "no rank's are the shortest" in texts(lasting(*[durations] * 20))


def test_durations_alone_fill_the_table_of_collectives_and_leave_empty_what_takes_clocks() -> None:
    """Waits of 4, 3, 0, 1 us; 4096 bytes in 5 us, times 2 (4 - 1) / 4."""
    found = lasting(*[(9, 8, 5, 6)] * 3)
    table = tables(found)["collectives"]
    cells = dict(zip(table.header, table.lines[0], strict=True))
    assert {name: cells[name].number for name in ("count", "wait (ms)", "at most", "transfer", "busbw", "late by")} == {
        **{"count": 3, "wait (ms)": pytest.approx(0.002), "at most": 0.004, "transfer": 0.005},
        **{"busbw": pytest.approx(4096 / 5000 * 1.5), "late by": None},
    }
    (first, *_) = screen.as_json(found)["collectives"]
    assert [first[name] for name in ("arrival", "end", "lateness", "error", "late_rank")] == [None] * 5
    assert (first["wait"], first["durations_only"]) == ([4000, 3000, 0, 1000], True)
    assert [one["ph"] for one in events(found, 0) if one["ph"] != "M"] == []
    assert not list(late_ranks.of_steps(found))
    assert any("durations alone, no layers" in note for note in found.notes)


def test_an_injection_is_told_with_its_interval() -> None:
    injection = Injection("slow-rank=1:50ms", (1,), frozenset({1, 3}))
    first, exposed = Measured(50.0 * MS, 48.0 * MS, 52.0 * MS), Measured(40.0 * MS, None, None)
    it = Effect(injection, 20, 51.0 * MS, first, exposed, {**dict.fromkeys(LAYERS, 0.0), HOST: 50.0 * MS})
    said = texts(replace(attribution(), effect=it))
    assert "injected slow-rank=1:50ms: against 20 steps without it the other ranks wait 50 ms ± 2 ms longer at" in said
    assert "40 ms longer in all that nothing hides, and the step takes 51 ms longer" in said
    assert "the rank held up spends 50 ms more of such a step in host" in said


@pytest.mark.parametrize(
    ("ns", "text"), [(0, "0 ms"), (1, "1 ns"), (1_500, "1.5 us"), (2e6, "2 ms"), (61.5e9, "61.5 s")]
)
def test_durations_have_the_unit_that_suits_them(ns: float, text: str) -> None:
    assert ms(ns) == text


# On screen and in files


@pytest.mark.parametrize(("ranks", "steps"), [(1, 1), (2, 6), (300, 21)])
def test_text_fits_into_a_hundred_columns_and_folds_what_is_long(ranks: int, steps: int) -> None:
    lines = screen.text(attribution(ranks, steps, late=min(1, ranks - 1), excess=EXCESS)).splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) < 120


def test_of_many_ranks_the_late_one_is_shown_and_the_rest_counted() -> None:
    text = screen.text(attribution(300, 12, late=177))
    assert re.search(r"^ +177 +100 +70\.0 ", text, re.MULTILINE)
    assert "those that waited least and most: 16 of 300" in text


def test_tables_have_the_numbers() -> None:
    made = tables(attribution(excess=EXCESS))
    ranks = [dict(zip(made["ranks"].header, line, strict=True)) for line in made["ranks"].texts[1]]
    assert [(one["compute"], one["waiting"], one["calls"]) for one in ranks] == [
        ("40.0", "30.0", "45.0"),
        ("70.0", "0.0", "15.0"),
    ]
    (collective,) = [dict(zip(made["collectives"].header, line, strict=True)) for line in made["collectives"].lines]
    # 4 MiB in 15 ms; of an all-reduce on two ranks the factor is 2 (2 - 1) / 2.
    assert collective["busbw"].number == pytest.approx((4 << 20) / 15e-3 / 1e9)
    assert (collective["count"].text, collective["transfer"].text, collective["wait (ms)"].text) == ("6", "15", "15")
    assert (collective["alone"].text, collective["excess"].text) == ("10", "5")
    steps = [dict(zip(made["steps"].header, line, strict=True)) for line in made["steps"].texts[1]]
    assert [(one["step"], one["waited for"], one["in all (ms)"]) for one in steps] == [
        (str(k), "1", "30") for k in range(6)
    ]


def test_the_excess_of_the_table_is_its_transfer_less_alone() -> None:
    """Rank 0 ends 4 ms before rank 1: the meeting takes 15 ms from the last arrival to the last end, not a median."""
    found = attribution(excess=EXCESS)
    ragged = [
        replace(one, end=one.end - np.array([4 * MS, 0]), transfer=one.transfer - np.array([4 * MS, 0]))
        for one in found.splits
    ]
    found = replace(found, splits=tuple(ragged))

    def shown(found: Attribution) -> list[str]:
        table = tables(found)["collectives"]
        (line,) = (dict(zip(table.header, line, strict=True)) for line in table.lines)
        return [line[name].text for name in ("transfer", "alone", "excess")]

    assert shown(found) == ["15", "10", "5"]
    other = replace(EXCESS, alone=2 * MS, excess=13 * MS, group="tp")  # one line of groups that differ alone
    assert shown(replace(found, excesses=(EXCESS, other))) == ["15", "-", "-"]


def test_csv_has_numbers_as_they_are() -> None:
    (header, *lines) = csv.reader(io.StringIO(screen.as_csv(tables(attribution())["layers"])))
    waits = next(line for line in lines if line[0] == WAITING)
    assert float(waits[header.index("of all %")]) == pytest.approx(15)


def test_waiting_that_is_not_told_is_no_zero_in_any_table() -> None:
    """Of ranks that transfer for 15 ms of each step, and of which no call has a counterpart."""
    found = attribution(scale=0)
    untold = [tuple(replace(one, unsplit=15 * MS) for one in per) for per in found.layers]
    for layers, text in ((found.layers, "0.0"), (tuple(untold), "-")):
        made = tables(replace(found, layers=layers))
        for name in ("ranks", "steps"):
            column = made[name].header.index(WAITING)
            assert {line[column].text for line in made[name].lines} == {text}
        (line,) = (line for line in made["layers"].lines if line[0].text == WAITING)
        assert line[made["layers"].header.index("of all %")].text == text


def test_a_comparison_says_where_waiting_is_not_told() -> None:
    a = attribution()
    b = replace(a, layers=tuple(tuple(replace(one, unsplit=15 * MS) for one in per) for per in a.layers))
    doubts = [one.text for one in compare.words(a, b) if "cannot be told from transfer" in one.text]
    assert doubts == ["in 15.0 % of B waiting cannot be told from transfer: it counts as communication"]


def test_json_adds_up_and_says_null_where_nothing_is_known() -> None:
    found = json.loads(json.dumps(screen.as_json(attribution())))
    for rank in found["ranks"]:
        for one in rank["windows"]:
            assert sum(one["layers"].values()) == one["end"] - one["start"]
    assert found["injected"] is None
    assert found["collectives"][0]["late_rank"] == 1 and found["collectives"][0]["wait"] == [30 * MS, 0]


def test_clocks_of_which_nothing_is_known_have_no_error() -> None:
    found = attribution()
    unset = replace(
        found,
        alignments=(found.alignments[0], Alignment(ASSUMED, error=UNKNOWN_ERROR + 1)),
        splits=tuple(replace(one, error=UNKNOWN_ERROR) for one in found.splits),
    )
    as_read = json.loads(json.dumps(screen.as_json(unset)))
    assert [rank["clock"]["error"] for rank in as_read["ranks"]] == [0, None]
    assert {one["error"] for one in as_read["collectives"]} == {None}
    ranks = tables(unset)["ranks"]
    assert [line[ranks.header.index("clock ± (us)")].text for line in ranks.lines] == ["0", "-"]
    captions = [one.caption for one in drawings_of_steps(unset)]
    assert sum("Nothing tells how" in caption for caption in captions) == 2
    assert not any("Nothing tells how" in one.caption for one in drawings_of_steps(found))


def test_hostile_words_obey_nobody(tmp_path: Path) -> None:
    found = attribution(host=HOSTILE, name=HOSTILE)
    assert "\x1b" not in screen.text(found) + "".join(map(screen.as_csv, tables(found).values()))
    page = Page(render(found, f"commbench attribute {HOSTILE}"))
    assert page.tags["script"] == 1 and "<script>alert(1)</script>" in page.text
    assert not any("javascript:" in link for link in page.links)
    for name in write(attribution(host="half a \ud800", name="and \udfff"), tmp_path, "commbench attribute"):
        if not name.endswith(".png"):
            assert "\ud800" not in (tmp_path / name).read_text(encoding="utf-8")


def test_pictures_of_steps_say_which_step_they_are_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    titles: dict[str, list[str]] = {"png": [], "svg": []}

    def keep(figure: Any, kind: str) -> bytes:
        titles[kind].append(figure.get_suptitle())
        return b""

    monkeypatch.setattr(html, "picture_bytes", keep)
    write(attribution(), tmp_path, "commbench attribute")
    assert "one step over all ranks: step 0, the median of 6" in titles["png"] and "" not in titles["png"]
    assert titles["svg"] == [""] * 3  # the page has them as text


def test_a_page_fetches_nothing_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    names = write(attribution(), tmp_path / "out", "commbench attribute x", attribution(scale=2.0))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(names)
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"""(?:https?:|//)[^\s"'<]*\.(?:js|css|woff)""", text)
    page = Page(text)
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert {link[1:] for link in page.links if link.startswith("#")} <= page.ids.keys()
    assert page.tags["img"] == 3 and "30 ms more a step" in page.text
    events = json.loads((tmp_path / "out" / "trace.json").read_text())["traceEvents"]
    assert sum(one["dur"] for one in events if one.get("name") == WAITING) == pytest.approx(6 * 30e3)  # us


# Pictures


def test_each_layer_has_a_look_of_its_own() -> None:
    assert LAYER_COLOURS.keys() == set(LAYERS)
    assert len({look["facecolor"] for look in LAYER_COLOURS.values()}) == len(LAYERS)


def test_pictures_of_many_ranks_show_the_late_one() -> None:
    found = attribution(300, 3, late=177)
    with style():
        for one in drawings_of_steps(found):
            figure = one.draw()
            figure.canvas.draw()
            assert max(figure.get_size_inches()) < 20
            names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
            assert len(names) <= 50
            assert "177" in one.name or one.name == "late-ranks" or "rank 177" in names


def test_short_intervals_are_drawn_as_what_most_of_a_pixel_is() -> None:
    """Of 100,000 intervals, waiting of 2 us after computing of 1: all of a pixel looks like waiting."""
    lengths = np.tile([1e-3, 2e-3], 50_000)
    edges = np.concatenate([[0.0], np.cumsum(lengths)])
    labels = np.tile([LAYERS.index(COMPUTE), LAYERS.index(WAITING)], 50_000).astype(np.uint8)
    seen, names = step_timeline._visible(edges, labels, edges[-1] / 1400)
    assert (seen[0], seen[-1]) == (0, pytest.approx(edges[-1]))
    assert set(names.tolist()) == {LAYERS.index(WAITING)}
    few = step_timeline._visible(edges[:5], labels[:4], 1.0)
    assert few[0] is not None and len(few[1]) == 4


def test_lateness_is_that_of_arrivals_step_by_step() -> None:
    late = late_ranks.late_by(attribution(3, 4))
    assert late.tolist() == [[0] * 4, [30 * MS] * 4, [0] * 4]
    assert late_ranks._folded(np.array([[1.0, np.nan], [5.0, np.nan], [2.0, 3.0]]), 2).tolist()[1] == [2.0, 3.0]
    folded = late_ranks._folded(np.array([[1.0, np.nan], [5.0, np.nan]]), 2)
    assert folded[0, 0] == 5 and np.isnan(folded[0, 1])


def test_thinning_keeps_the_ends() -> None:
    values = {key: float((key * 37) % 100) for key in range(100)}
    kept = thinned(values, 20)
    assert len(kept) == 20 == len(set(kept)) and kept == sorted(kept)
    ranked = sorted(values, key=lambda key: values[key])
    assert set(ranked[:5] + ranked[-5:]) <= set(kept)


# Two runs


def test_what_changed_is_told_with_its_sign() -> None:
    """30 ms more of waiting on one of two ranks, and of computing on the other: 15 ms each a rank."""
    a, b = attribution(), attribution(scale=2.0)
    found = {one.layer: one for one in compare.changes(a, b)}
    assert {layer: one.difference for layer, one in found.items()} == {
        **dict.fromkeys(LAYERS, 0.0),
        compare.STEP: 30 * MS,
        COMPUTE: 15 * MS,
        WAITING: 15 * MS,
    }
    assert found[WAITING].certain and not found[HOST].certain
    said = "\n".join(one.text for one in compare.words(a, b))
    assert "step: median 100 ms in A, 130 ms in B; 30 ms more a step (30 to 30 ms more)" in said
    assert "the collectives that were matched differ" not in said
    assert "no certain change: memory, communication, host" in said
    assert "steps of one run are not launches" in said
    assert max(map(len, screen.comparison_lines(a, b))) <= 100


def by_length(steps_ms: list[int], folder: str = "a") -> Attribution:
    """An attribution whose steps take so long, all of it beyond the usual computed by both ranks."""
    found = attribution(steps=len(steps_ms))
    ends = np.cumsum(steps_ms).tolist()
    windows = [
        Window(number, (end - its) * MS, end * MS) for number, (its, end) in enumerate(zip(steps_ms, ends, strict=True))
    ]
    per = tuple(layers_of(one, {COMPUTE: its}) for one, its in zip(windows, steps_ms, strict=True))
    traces = tuple(replace(trace, source=f"{folder}/{trace.source}") for trace in found.traces)
    return replace(found, layers=(per, per), traces=traces)


def test_runs_whose_interval_holds_0_are_not_told_apart() -> None:
    """The medians fall by 2 ms, while the median of the differences of all pairs rises."""
    a, b = [10, 11, 12, 50, 51, 52, 53], [40, 41, 42, 48, 90, 91, 92]
    step = compare.changes(by_length(a), by_length(b))[0]
    assert (step.a, step.b) == (50 * MS, 48 * MS)
    assert step.difference == median(y - x for x, y in product(a, b)) * MS > 0
    assert step.low is not None and step.high is not None and step.low < 0 < step.high
    (said,) = [one.text for one in compare.words(by_length(a), by_length(b)) if one.text.startswith("step:")]
    ends = f"{step.low / MS:.3g} to {step.high / MS:.3g} ms"
    assert said == f"step: median 50 ms in A, 48 ms in B; not told apart: {ends} a step"
    assert "median of the differences of all pairs of steps" in " ".join(
        screen.comparison_lines(by_length(a), by_length(b))
    )


def test_less_is_told_without_signs_and_few_steps_tell_nothing() -> None:
    a, b = by_length([60, 61, 62, 63, 64, 65]), by_length([30, 31, 32, 33, 34, 35])
    step = compare.changes(a, b)[0]
    assert step.low is not None and step.high is not None and step.high < 0
    ends = f"{-step.high / MS:.3g} to {-step.low / MS:.3g} ms less"
    assert f"30 ms less a step ({ends})" in compare.words(a, b)[1].text
    assert compare.words(by_length([60]), by_length([30]))[1].text.endswith("too few steps for an interval")


def test_a_comparison_says_which_run_is_which_and_where_collectives_differ() -> None:
    a, b = by_length([60] * 6, "slow"), by_length([60] * 6, "plain")
    assert compare.words(a, b)[0].text == "A: slow, B: plain"
    renamed = tuple(replace(trace, source=f"slow/other{trace.rank}.json") for trace in b.traces)
    said_of_one = compare.words(a, replace(b, traces=renamed))[0].text
    assert said_of_one == "A: slow/rank0.json and 1 more, B: slow/other0.json and 1 more"
    larger = tuple(replace(one, meeting=replace(one.meeting, size=8 << 20)) for one in b.splits)
    said = [one.text for one in compare.words(a, replace(b, splits=larger)) if one.kind == "doubt"]
    assert said[0] == (
        "the collectives that were matched differ: only A has allreduce of 4M; only B has allreduce of 8M"
    )


def test_a_comparison_says_who_is_late_in_each_run() -> None:
    late, sound = attribution(), replace(attribution(), culprits=())
    (said,) = [one.text for one in compare.words(late, sound) if one.text.startswith("late: ")]
    assert said.startswith("late: in A rank 1 (each other rank waits 30 ms a step for it")
    assert said.endswith("in B no rank by more than chance gives")


def test_json_has_the_comparison_with_its_units(tmp_path: Path) -> None:
    a, b = attribution(), attribution(scale=2.0)
    write(a, tmp_path, "commbench attribute", b)
    found = json.loads((tmp_path / "attribution.json").read_text())["comparison"]
    assert [one["layer"] for one in found["layers"]] == [compare.STEP, *LAYERS]
    step = {f"{name}_ns": ns * MS for name, ns in {"a": 100, "b": 130, "difference": 30, "low": 30, "high": 30}.items()}
    assert found["layers"][0] == {"layer": "step", **step, "verdict": "more"}
    few = compare.as_json(by_length([60]), by_length([30]))["layers"][0]
    assert (few["low_ns"], few["high_ns"], few["verdict"]) == (None, None, "cannot tell")
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert page.text.count("median of the differences of all pairs of steps") == 2


def test_files_of_an_earlier_run_go_and_those_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "comparison.csv").write_text("mine")
    (tmp_path / "own.csv").write_text("mine")
    write(attribution(), tmp_path, "commbench attribute")
    assert (tmp_path / "comparison.csv").read_text() == "mine"  # no attribution was there that could have written it
    both = write(attribution(), tmp_path, "commbench attribute", attribution(scale=2.0))
    assert "comparison.csv" in both and set(both) <= FILES
    alone = write(attribution(), tmp_path, "commbench attribute")
    assert "comparison.csv" not in alone
    assert {path.name for path in tmp_path.iterdir()} == {*alone, "own.csv"}


def test_differences_lie_in_the_middle_of_all_pairs() -> None:
    from commbench.results.spread import difference_interval

    draw = np.random.default_rng(3)
    a, b = draw.normal(0, 1, 9).tolist(), draw.normal(2, 1, 8).tolist()
    middle, low, high = difference_interval(a, b)
    assert middle is not None and low is not None and high is not None and low < middle < high
    assert middle == pytest.approx(median(y - x for x, y in product(a, b)))
    assert list(difference_interval(b, a)) == pytest.approx([-middle, -high, -low])
    assert difference_interval([], [1.0]) == (None, None, None)
    assert difference_interval([1.0], [3.0]) == (2.0, None, None)


def test_intervals_of_differences_cover_the_true_one() -> None:
    """Of 300 pairs of samples that are 1 apart, about 95 % of the intervals hold 1: not fewer than 92 %."""
    from commbench.results.spread import difference_interval

    draw = np.random.default_rng(5)
    held = 0
    for _ in range(300):
        _, low, high = difference_interval(draw.normal(0, 1, 60).tolist(), draw.normal(1, 2, 50).tolist())
        assert low is not None and high is not None
        held += low <= 1 <= high
    assert held >= 276


def test_the_page_names_every_key_of_the_json() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "attribution.md").read_text(encoding="utf-8")
    lines = page.split("## JSON\n")[1].split("\n## ")[0].splitlines()
    told = {
        line.split("|")[1].strip(" `"): set(re.findall(r"`(\w+)`", line.split("|")[2]))
        for line in lines
        if line.startswith("| ")
    }
    whole = screen.as_json(attribution())
    for name, some in {
        "the object": whole,
        **{name: whole[name][0] for name in ("words", "ranks", "collectives", "late")},
        "excess": [one.name for one in fields(Excess)],
        "windows": whole["ranks"][0]["windows"][0],
    }.items():
        assert set(some) <= told[name], name
