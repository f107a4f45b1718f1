"""one_gpu.py as far as it goes without a GPU: limits, judgements, tables, and its parts over the fake library."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import on_device, one_gpu
from tests.gpu.one_gpu import FAILED, OK, SKIPPED, Found, Outcome, Skip, Step, Trouble
from tests.mpi.launch import MPIRUN, Done, launch
from tests.nccl import build

SLEEPS = (sys.executable, "-c", "import time; time.sleep(60)")


def record(**changes: Any) -> dict[str, Any]:
    """A cell that ran as asked."""
    fields = {
        "algorithm": "ring",
        "protocol": "ll",
        "observed_algorithm": "ring",
        "observed_protocol": "ll",
        "size": 1024,
    }
    fields |= {"status": "ok", "reason": "", "evidence": "library's tuning log", "buffer": "plain", "loop": "events"}
    return fields | {"time_us": 5.0} | changes


def done(stdout: str = "", stderr: str = "", code: int = 0) -> Done:
    return Done(code, stdout, stderr, 0)


def refuses(limit: float) -> Found:
    raise Trouble("no", [1], "shown all the same")


def breaks(limit: float) -> Found:
    raise KeyError("version")


def skips(limit: float) -> Found:
    raise Skip("not here")


# Steps


def test_a_step_that_fails_is_recorded_and_the_next_goes_on() -> None:
    steps = [Step("a", 1, refuses), Step("b", 1, breaks), Step("c", 1, skips), Step("d", 7, lambda s: Found(f"{s}", 2))]
    said: list[str] = []
    outcomes = one_gpu.carry_out(steps, said.append)
    assert [(each.status, each.note, each.data) for each in outcomes] == [
        (FAILED, "no", [1]),
        (FAILED, "KeyError: 'version'", None),
        (SKIPPED, "not here", None),
        (OK, "7", 2),
    ]
    assert outcomes[0].shown == "shown all the same"
    assert "d (at most 7 s) ..." in said and "  failed: no" in said


def test_a_step_that_does_not_end_is_ended() -> None:
    step = Step("sleepy", 0.5, lambda limit: Found("never", one_gpu.process(limit, *SLEEPS)))
    (outcome,) = one_gpu.carry_out([step], lambda text: None)
    assert (outcome.status, outcome.note) == (FAILED, "did not end within 0.5 s")
    assert "time.sleep(60)" in outcome.data  # what was running, which Overdue has killed


@pytest.mark.parametrize(("planned", "code"), [([skips], 0), ([lambda s: Found("fine", 1)], 0), ([skips, refuses], 1)])
def test_the_exit_code_is_1_where_a_step_failed_and_the_file_holds_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], planned: list[Any], code: int
) -> None:
    file = tmp_path / "found.json"
    assert one_gpu.main(["--json", str(file)], [Step("s", 1, work) for work in planned]) == code
    written = json.loads(file.read_text())["steps"]
    assert len(written) == len(planned) and all(each["name"] == "s" for each in written)
    assert "step  status" in capsys.readouterr().out


def test_all_steps_together_take_less_than_eight_minutes() -> None:
    assert sum(step.limit for step in one_gpu.steps()) < 480


# Processes


def test_another_exit_code_is_told_with_the_last_words() -> None:
    command = (sys.executable, "-c", "import sys; print('one\\ntwo', file=sys.stderr); sys.exit(3)")
    with pytest.raises(Trouble, match=r"^exit 3: two$") as trouble:
        one_gpu.process(30, *command)
    assert trouble.value.found.data["stderr"] == "one\ntwo\n"
    assert one_gpu.process(30, *command, codes=(0, 3)).code == 3


def test_an_answer_is_the_last_line() -> None:
    assert one_gpu.answer(done('hello\n{"right": true}\n')) == {"right": True}
    for text in ("", "hello\n"):
        with pytest.raises(Trouble, match="no JSON"):
            one_gpu.answer(done(text))


def test_a_sweep_without_records_is_told_by_its_last_words() -> None:
    assert one_gpu.records(done('{"size": 8}\n{"size": 64}\n')) == [{"size": 8}, {"size": 64}]
    with pytest.raises(Trouble, match="no records: commbench: error: backend nccl cannot run here"):
        one_gpu.records(done("", "x\ncommbench: error: backend nccl cannot run here\n"))


def test_a_doctor_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_gpu, "run", lambda *_, **__: done("", "python: No module named commbench.doctor", 1))
    with pytest.raises(Skip, match="has no doctor"):
        one_gpu.look(1)


def test_the_findings_of_the_doctor_are_shown() -> None:
    found = one_gpu.look(60)
    assert found.note == f"{len(found.data['findings'])} findings"
    for finding in found.data["findings"]:
        assert finding["rule"] in found.shown


# Judgements


def test_a_sweep_has_every_kind_of_memory_and_no_failure() -> None:
    good = [record(buffer=kind) for kind in ("plain", "registered", "symmetric")]
    assert one_gpu.faults_of_sweep(good, "events") == []
    assert one_gpu.faults_of_sweep([*good, record(status="not_measured")], "events") == []
    assert one_gpu.faults_of_sweep(good[:2], "events") == ["no cell in symmetric memory"]
    assert one_gpu.faults_of_sweep(good, "graph") == ["timed by events instead of graph"]
    wrong = record(status="wrong", reason="3 elements differ")
    assert one_gpu.faults_of_sweep([*good, wrong], "events") == ["1024 B plain: wrong (3 elements differ)"]


def forced() -> list[dict[str, Any]]:
    """What two ranks should give."""
    both = [(algorithm, protocol) for algorithm in ("ring", "tree") for protocol in ("ll", "simple")]
    cells = [
        record(algorithm=algorithm, protocol=protocol, observed_algorithm=algorithm, observed_protocol=protocol)
        for algorithm, protocol in both
    ]
    refused = {"status": "rejected", "observed_algorithm": None, "observed_protocol": None}
    return [*cells, record(algorithm="auto", protocol=None), record(algorithm="nvls", protocol="simple", **refused)]


def test_two_ranks_ran_what_was_asked() -> None:
    assert one_gpu.faults_of_two_ranks(forced()) == []
    assert one_gpu.faults_of_two_ranks([*forced(), record(protocol="ll128", status="rejected")]) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"observed_algorithm": "tree"}, "ring ll at 1024 B: tree ll ran"),
        ({"observed_protocol": "ll128"}, "ring ll at 1024 B: ring ll128 ran"),
        ({"status": "substituted", "reason": "tree ll ran"}, "ring ll at 1024 B: substituted (tree ll ran)"),
        ({"status": "wrong", "reason": "x"}, "ring ll at 1024 B: wrong (x)"),
        (
            {"observed_algorithm": None, "observed_protocol": None, "evidence": "unknown: no line in the tuning log"},
            "ring ll at 1024 B: what ran is unknown: no line in the tuning log",
        ),
        ({"algorithm": "nvls", "observed_algorithm": "nvls"}, "nvls ll at 1024 B: ran, without a switch"),
    ],
)
def test_what_two_ranks_may_not_do(changes: dict[str, Any], fault: str) -> None:
    assert one_gpu.faults_of_two_ranks([*forced(), record(**changes)]) == [fault]


def test_what_two_ranks_never_ran_is_missed() -> None:
    assert one_gpu.faults_of_two_ranks(forced()[1:]) == ["ring ll did not run at any size"]


def test_an_abort_shows_something_only_where_the_communicator_was_in_use() -> None:
    right = {"ranks": 2, "busy": True, "abort_s": 0.2, "right": True}
    assert one_gpu.judged_abort(right).note == "2 rank(s): gone after 0.2 s; a new communicator works"
    for changes, fault in (({"busy": False}, "nothing is shown"), ({"right": False}, "sums were wrong")):
        with pytest.raises(Trouble, match=fault):
            one_gpu.judged_abort(right | changes)


@pytest.mark.parametrize("found", [{}, {"version": 22907, "library": "NCCL 2.29.7"}])
def test_an_older_library_skips_two_ranks(found: dict[str, Any]) -> None:
    for step in (one_gpu.two_ranks, one_gpu.withheld):
        with pytest.raises(Skip, match=r"take NCCL 2\.30, and this is (NCCL 2\.29\.7|not known)"):
            step(found, 1)


def test_a_ratio_is_the_median_of_rounds_and_of_times_of_one_round() -> None:
    rounds = [{"ours": 4.0, "c": 2.0, "c_again": 2.0}, {"ours": 30.0, "c": 10.0, "c_again": 11.0}]
    rounds.append({"ours": 9.0, "c": 1.0, "c_again": 0.5})
    assert one_gpu.ratios([{"size": 8, "rounds": rounds}]) == [{"size": 8, "c_us": 2.0, "ours/c": 3.0, "c/c": 1.0}]


# What is printed


def test_columns_are_as_wide_as_what_they_hold() -> None:
    assert one_gpu.table(("a", "bb"), [("long", 1), ("x", "")]) == "a     bb\nlong  1\nx"


def test_times_are_by_size_and_kind_of_memory() -> None:
    cells = [record(size=64), record(size=8, buffer="symmetric", time_us=1.234), record(size=8, time_us=None)]
    lines = [line.split() for line in one_gpu.times(cells).splitlines()]
    assert lines == [["bytes", "plain", "registered", "symmetric"], ["8", "-", "-", "1.23"], ["64", "5.00", "-", "-"]]


def test_a_report_ends_with_the_table_of_steps() -> None:
    text = one_gpu.report([Outcome("one", OK, 1.5, "fine", [1], "its table"), Outcome("two", FAILED, 2.0, "no")])
    assert text.split("\n\n") == [
        "one\nits table",
        "step  status  s    note\none   ok      1.5  fine\ntwo   failed  2.0  no",
    ]


# Its parts, without a GPU

needs_wheels = pytest.mark.skipif(bool(build.missing()), reason=build.missing())


@needs_wheels
def test_the_loop_in_c_is_compiled_against_the_libraries_that_are_found(tmp_path: Path) -> None:
    libnccl = next(file for place in on_device.places("lib") for file in place.glob("libnccl.so.2"))
    needed = subprocess.run(
        ["readelf", "-d", on_device.compiled(tmp_path, str(libnccl))], capture_output=True, text=True, check=True
    ).stdout
    assert "[libnccl.so.2]" in needed and "[libcudart.so." in needed and str(on_device.cudart().parent) in needed


def test_no_runtime_of_cuda_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"purelib": str(tmp_path)})
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no libcudart: install nvidia-cuda-runtime-cu12"):
        on_device.cudart()


@pytest.mark.mpi
@needs_wheels
@pytest.mark.skipif(not MPIRUN.exists(), reason=f"no mpirun beside this interpreter ({MPIRUN})")
@pytest.mark.parametrize(("hang", "busy"), [({"FAKE_NCCL_HANG_AT": "2"}, True), ({}, False)])
def test_a_communicator_that_hangs_is_aborted_and_a_new_one_works(
    tmp_path: Path, hang: dict[str, str], busy: bool
) -> None:
    fake = build.build(tmp_path)
    ended = launch(1, "tests.gpu.on_device", "abort", str(fake), env=hang)
    assert ended.code == 0 and ended.left == 0, ended.stderr
    found = one_gpu.answer(ended)
    assert (found["ranks"], found["busy"], found["right"]) == (1, busy, True)
