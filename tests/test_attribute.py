"""`commbench.attribute` on files: traces of jobs whose truth is known, and what is not as it should be."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from commbench.attribute import main
from commbench.attribution.clocks import MEASURED
from tests.attribution import synthetic
from tests.attribution.synthetic import Collective, Job, Op, Work
from tests.report import doors

STEPS = 6
Say = Callable[..., doors.Said]


def job(late_us: int) -> Job:
    """Three ranks; the last one computes longer in every other step."""

    def step(rank: int, number: int) -> list[Op]:
        late = late_us if rank == 2 and number % 2 else 0
        return [Work("compute", 10_000 + late), Work("memory", 2_000), Collective("world", 3_000)]

    programs = [[step(rank, number) for number in range(STEPS)] for rank in range(3)]
    return Job(programs, {"world": (0, 1, 2)})


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attributed")
    for name, late_us in {"quick": 0, "slow": 4_000}.items():
        (folder / name).mkdir()
        run = synthetic.run(job(late_us))
        synthetic.write(run, folder / name)
        synthetic.write_readings(run, folder / name, error=0)
    steps = [{"step": number, "injected": bool(number % 2)} for number in range(STEPS)]
    told = {"format": 1, "faults": ["slow-compute=2:1.4"], "steps": steps}
    (folder / "slow" / "training.json").write_text(json.dumps(told))
    shutil.copytree(folder / "slow", folder / "torn")
    (folder / "again").mkdir()
    shutil.copy(folder / "slow" / "rank1.json", folder / "again")
    (folder / "torn" / "clock-rank1.json").write_text('{"format": 1')
    return folder


@pytest.fixture
def say(top: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    return lambda *words: doors.say(main, top, monkeypatch, capsys, words)


def test_words_come_first_then_tables(say: Say) -> None:
    code, out, err = say("slow")
    assert (code, err) == (0, "")
    assert out.startswith("time   3 ranks on 1 host, 6 steps of ")
    assert "injected slow-compute=2:1.4: against 3 steps without it the other ranks wait 4 ms" in " ".join(out.split())
    titles = [line for line in out.splitlines() if line.startswith("# ")]
    assert [title.split(":")[0] for title in titles[:4]] == ["# ranks", "# steps", "# layers", "# collectives"]
    assert max(map(len, out.splitlines())) <= 100


def test_json_has_the_true_layers(say: Say) -> None:
    code, out, _ = say("slow", "--json")
    assert code == 0
    run = synthetic.run(job(4_000))
    for rank, one in enumerate(json.loads(out)["ranks"]):
        assert [window["layers"] for window in one["windows"]] == run.truth(rank)


def test_steps_and_windows_choose(say: Say) -> None:
    windows = json.loads(say("slow", "--steps", "1-2,5", "--json")[1])["ranks"][0]["windows"]
    assert [one["step"] for one in windows] == [1, 2, 5]
    (window,) = json.loads(say("slow", "--window", "2:12", "--json")[1])["ranks"][0]["windows"]
    assert (window["step"], window["end"] - window["start"]) == (None, 10_000_000)
    (window,) = json.loads(say("slow", "--window", "all", "--json")[1])["ranks"][0]["windows"]
    assert window["layers"]["waiting"] == 3 * 4_000_000


def test_files_of_the_inspector_without_events_are_split_by_durations(top: Path, say: Say) -> None:
    """Three ranks of two hosts; 16 MiB in 300 us, which rank 2 comes 400 us too late for."""
    (top / "inspector").mkdir()
    for rank, took in enumerate((700, 700, 300)):
        metadata = {"inspector_output_format_version": "v4.0", "hostname": f"n{rank // 2}", "pid": rank}
        whose = {"header": {"id": "0x1", "rank": rank, "n_ranks": 3, "nnodes": 2}, "metadata": metadata}
        perf = {"coll": "AllReduce", "coll_msg_size_bytes": 16 << 20, "coll_exec_time_us": took}
        lines = [json.dumps(whose | {"coll_perf": perf | {"coll_sn": number}}) + "\n" for number in range(1, 9)]
        (top / "inspector" / f"{rank}.jsonl").write_text("".join(lines))
    code, out, _ = say("inspector")
    assert code == 0 and "it is probably rank 2, whose are the shortest at 8 of 8 collectives" in " ".join(out.split())
    (line,) = [line.split() for line in out.splitlines() if line.split()[:1] == ["allreduce"]]
    busbw = f"{(16 << 20) / 300e3 * 4 / 3:.3g}"
    assert line == ["allreduce", "16M", "3", "8", "8", "0.267", "0.4", "0.3", busbw, "-", "-"]


def test_two_runs_are_compared_layer_by_layer(say: Say) -> None:
    code, out, _ = say("quick", "--compare", "slow")
    assert code == 0
    assert "A: quick, B: slow" in out and "steps of one run are not launches" in out
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines if line and line[0] in ("step", "compute", "waiting", "host")]


def test_json_of_two_runs_has_the_comparison(say: Say) -> None:
    """Of 3 ranks one computes 4 ms longer in each other of 6 steps: of 36 pairs of steps 18 differ."""
    found = json.loads(say("quick", "--compare", "slow", "--json")[1])
    assert found.keys() == {"a", "b", "comparison"}
    told = found["comparison"]
    assert (told["a"], told["b"]) == ("quick", "slow")
    (step,) = [one for one in told["layers"] if one["layer"] == "step"]
    assert (step["b_ns"] - step["a_ns"], step["difference_ns"]) == (2_000_000, 2_000_000)
    assert (step["low_ns"], step["high_ns"], step["verdict"]) == (0, 4_000_000, "cannot tell")


def test_a_folder_gets_a_report_and_all_that_is_in_it(say: Say, tmp_path: Path) -> None:
    pytest.importorskip("seaborn")
    pytest.importorskip("jinja2")
    code, _, err = say("slow", "--steps", "0-1", "--out", str(tmp_path / "out"))
    assert code == 0 and err.startswith(f"# in {tmp_path / 'out'}: report.html, attribution.json, ")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Where a step's time goes" in page and page.count("<img") == 4  # of two steps one is the median
    assert json.loads((tmp_path / "out" / "attribution.json").read_text())["format"] == "commbench attribution 1"


def test_a_peak_that_is_given_tells_compute_from_memory_by_it(say: Say) -> None:
    code, out, _ = say("slow", "--peak", "memory=2900,bfloat16=989")
    assert code == 0 and "2900 GB/s, given; FLOP/s given" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nothing-there"], "cannot read nothing-there"),
        (["no\nsuch\x1b[31m"], r"cannot read no\nsuch\x1b[31m: No such file"),
        (["slow/rank0.json", "slow/rank2.json"], "1 of 3 have none (1): give theirs, or --partial goes on without"),
        (["slow", "again"], "rank 1 is in again/rank1.json and in slow/rank1.json: name one trace"),
        (["torn"], "torn/clock-rank1.json is no file of clock readings"),
        (["slow", "--steps", "3-x"], "--steps is numbers and ranges by comma, such as 3-10, not '3-x'"),
        (["slow", "--steps", "5-1"], "--steps has ranges from the first step to the last, such as 3-10, not '5-1'"),
        (["slow", "--steps", "0-99999999999"], "--steps chooses 1000000 steps at most, not 100000000000"),
        (["slow", "--steps", "70"], "--steps 70: the traces have steps 0-5"),
        (["slow", "--window", "5"], "--window is A:B in ms, such as 100:250, or all, not '5'"),
        (["slow", "--window", "9:x"], "B of --window A:B is a number of at least 0, not 'x'"),
        (["slow", "--window", "9:8"], "--window A:B ends after it begins, and 9:8 does not"),
        (["slow", "--window", "9000:9001"], "--window 9000:9001 holds no work: the traces run from 0 to "),
        (["slow", "--window", "all", "--steps", "1"], "--window and --steps choose the same in two ways"),
        (["slow", "--peak", "989"], "--peak is TYPE=TFLOPS by comma, or memory=GB/S, such as bfloat16=989, not '989'"),
        (["slow", "--peak", "bf16=989"], "unknown data type of --peak 'bf16': did you mean bfloat16"),
        (["slow", "--rdma", "slow"], "slow holds no telemetry-*.jsonl"),
        (["slow", "--results", "nowhere"], "there is no nowhere"),
        (["--results", "nowhere", "slow"], "TRACE is missing: put it first (commbench attribute traces/ ...)"),
        (["--compare", "quick", "slow"], "as --results and --compare take all paths behind them"),
        (["slow", "--out", "slow/rank0.json/x"], "cannot write into slow/rank0.json/x"),
        (["slow", "--out", "slow/"], "--out slow/ holds the traces: name another folder"),
        (["nothing-there", "--out", "slow/rank0.json"], "--out slow/rank0.json is a file: name a folder"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(words: list[str], text: str, say: Say) -> None:
    if "--out" in words:
        pytest.importorskip("seaborn")
    code, _, err = say(*words)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("commbench attribute: error: ") and text in err


def test_partial_goes_on_and_says_what_is_missing(say: Say) -> None:
    code, out, _ = say("slow/rank0.json", "slow/rank2.json", "--partial")
    assert code == 0 and "of 3 ranks the traces of 1 are missing" in " ".join(out.split())
    code, out, _ = say("slow/rank0.json", "--partial")
    assert code == 0 and "waiting cannot be told from transfer" in " ".join(out.split())


def test_clocks_are_those_beside_the_traces_that_are_used(top: Path, say: Say) -> None:
    """A job with a host and a folder for each rank, and the traces of another one, whose clocks lie beside them."""
    run = synthetic.run(replace(job(0), hosts=("a", "b", "c")))
    for rank in range(3):
        (top / "apart" / str(rank)).mkdir(parents=True)
    for path in [*synthetic.write(run, top / "apart"), *synthetic.write_readings(run, top / "apart", error=0)]:
        path.rename(path.parent / path.stem[-1] / path.name)
    two = synthetic.run(Job([[[Work("compute", 9_000), Collective("world", 1_000)]]] * 2, {"world": (0, 1)}))
    (top / "two").mkdir()
    synthetic.write(two, top / "two")
    synthetic.write_readings(two, top / "two", error=0)
    assert "two/rank0.json (2 ranks), two/rank1.json (2 ranks): of another job" in say("apart", "two")[2]
    code, out, _ = say("apart", "two", "--partial", "--json")
    assert code == 0
    assert {one["clock"]["source"] for one in json.loads(out)["ranks"]} == {MEASURED}


def test_the_screen_loads_no_package_for_pictures_or_tables(top: Path) -> None:
    heavy = ("pandas", "matplotlib", "seaborn", "jinja2", "torch", "mpi4py", "scipy")
    code = f"""
import sys
from commbench.attribute import main
try:
    main(["slow"])
except SystemExit as ended:
    assert ended.code == 0
print([name for name in {heavy} if name in sys.modules])
"""
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=top, capture_output=True, text=True, env={"PYTHONPATH": str(root)}, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_steps_that_no_trace_has_are_said(say: Say) -> None:
    _, out, _ = say("slow", "--steps", "4-9")
    assert "- --steps: no trace has 6-9" in out
