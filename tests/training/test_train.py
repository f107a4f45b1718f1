"""`commbench.train`: traces and what is said of them, refusals, and how a job ends."""

from __future__ import annotations

import gzip
import json
import os
import signal
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commbench.errors import UsageError
from commbench.training import options, profiling, summary
from commbench.training.run import _conclude
from tests.gloo.test_gloo import torchrun
from tests.mpi.launch import MPIRUN, Job, launch, library, mpirun, python, run

needs_torch = pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed beside this interpreter")
needs_mpirun = pytest.mark.skipif(not library(), reason=f"no mpirun beside this interpreter ({MPIRUN})")
DOOR = "commbench.train"
TINY = ["--preset", "tiny", "--sequence", "32", "--warmup", "1"]


def events(trace: dict[str, Any], category: str) -> list[dict[str, Any]]:
    found = [event for event in trace["traceEvents"] if event.get("cat") == category]
    return sorted(found, key=lambda event: event["ts"])


def inside(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
    return bool(outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"])


@needs_torch
@needs_mpirun
@pytest.mark.mpi
def test_traces_show_steps_collectives_and_the_fault_in_every_other_step(tmp_path: Path) -> None:
    words = ["--steps", "4", "--accumulate", "2", "--inject", "slow-rank=1:30ms", "--alternate", "--profile", "out"]
    done = launch(2, DOOR, "--mode", "ddp", *TINY, *words, cwd=tmp_path, timeout=120)
    assert (done.code, done.left, done.stderr) == (0, 0, "")
    assert "# 4 steps ok, loss " in done.stdout
    assert "no MFU: no peak known of CPU in float32 (--peak TFLOPS)" in done.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        *("training.json", "rank0.json.gz", "rank1.json.gz", "clock-rank0.json", "clock-rank1.json")
    }

    for rank in (0, 1):
        with gzip.open(tmp_path / "out" / f"rank{rank}.json.gz") as file:
            trace = json.load(file)
        spans = events(trace, "user_annotation")
        count = Counter(span["name"] for span in spans)
        assert [span["name"] for span in spans if "ProfilerStep" in span["name"]] == [
            f"ProfilerStep#{k}" for k in range(4)
        ]
        assert count["data"] == count["forward"] == count["backward"] == 8
        assert count["optimizer"] == 4
        assert count["gloo:all_reduce"] % 4 == 0 and count["gloo:all_reduce"] >= 8  # several buckets, once a step
        steps = {int(span["name"][-1]): span for span in spans if "ProfilerStep" in span["name"]}
        assert [k for k in steps if any(inside(steps[k], s) for s in spans if s["name"] == "injected step")] == [1, 3]
        assert [k for k in steps if any(inside(steps[k], s) for s in spans if s["name"] == "control step")] == [0, 2]
        late = [span for span in spans if span["name"] == "inject slow-rank"]
        assert len(late) == 2 * rank and all(span["dur"] >= 30e3 for span in late)
        assert any(event["args"].get("Input Dims") for event in events(trace, "cpu_op"))
        clock = json.loads((tmp_path / "out" / f"clock-rank{rank}.json").read_text())
        assert (clock["format"], clock["rank"]) == (1, rank)
        first, last = clock["readings"]
        assert first["local"] == first["common"] < last["local"] == last["common"]
        assert first["error"] == last["error"] == 0
        since = trace["baseTimeNanoseconds"]
        assert first["local"] < since + steps[0]["ts"] * 1e3 < last["local"]  # one time, since 1970

    told = json.loads((tmp_path / "out" / "training.json").read_text())
    about = ("mode", "ranks", "preset", "accumulate", "warmup", "faults", "alternate", "mfu")
    assert [told[name] for name in about] == ["ddp", 2, "tiny", 2, 1, ["slow-rank=1:30ms"], True, None]
    assert [(step["step"], step["injected"]) for step in told["steps"]] == [(k, k % 2 == 1) for k in range(4)]
    tokens = 2 * 2 * 2 * 32 * 4  # ranks, micro-batches, sequences, tokens, steps
    assert told["tokens_per_second"] == pytest.approx(tokens / told["seconds"])
    assert told["seconds"] == max(sum(step["seconds"][rank] for step in told["steps"]) for rank in (0, 1))


@needs_torch
def test_a_parameter_server_under_torchrun() -> None:
    words = ["--mode", "ps", *TINY, "--steps", "12", "--peak", "2", "--inject", "jitter=*:1ms", "--json"]
    done = run(torchrun(3, DOOR, *words), timeout=120)
    assert (done.code, done.left) == (0, 0), done.stderr
    (told,) = done.records
    assert (told["mode"], told["updates"], told["ranks"], len(told["steps"])) == ("ps", "asynchronous", 3, 12)
    assert told["loss_last"] < told["loss_first"]
    for step in told["steps"]:
        assert step["exchange"][0] is None
        for seconds, parts in zip(step["seconds"][1:], step["exchange"][1:], strict=True):
            assert min(parts) >= 0 and sum(parts) <= seconds
    assert told["tokens_per_second"] == pytest.approx(2 * 2 * 32 * 12 / told["seconds"])  # of two workers
    a_rank = told["tokens_per_second"] * told["flops_per_token"] / 2
    assert told["mfu"] == pytest.approx(a_rank / 2e12)


@needs_torch
@needs_mpirun
@pytest.mark.mpi
def test_a_rank_that_is_killed_ends_the_job(tmp_path: Path) -> None:
    command = mpirun(2, DOOR, "--mode", "ddp", *TINY, "--steps", "1000000", "--profile", "out")
    with Job(command, tmp_path) as job:
        deadline = time.monotonic() + 60
        ranks: list[int] = []
        while len(ranks) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
            ranks = [pid for pid in job.processes() if _trains(pid)]
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        done = job.wait(60)
    assert done.code != 0
    assert done.left == 0


def _trains(pid: int) -> bool:
    """Whether a process has joined the group: Gloo's threads run."""
    try:
        return any("gloo" in path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/comm"))
    except OSError:
        return False


@needs_mpirun
@pytest.mark.mpi
def test_clocks_of_several_nodes_are_right_within_their_error() -> None:
    done = launch(3, "tests.training.skewed")
    assert done.code == 0, done.stderr
    assert [found["rank"] for found in done.records] == [0, 1, 2]
    for found in done.records:
        first, last = found["readings"]
        assert last["local"] - first["local"] >= 0.7e9
        for reading in (first, last):  # of one machine, whose time is the same for all
            assert abs(reading["common"] - reading["local"]) <= reading["error"] + 1000  # floating point
            assert (reading["error"] < 1e5) or found["rank"] > 0


# What is refused


@needs_torch
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mode", "ps"], "--mode ps takes a server and a worker at least: mpirun -n 2 python -m commbench.train"),
        (["--inject", "slow-rank=1:5ms"], "--inject slow-rank=1:5ms names rank 1, and ranks are 0 to 0"),
        (["--preset", "smal"], "unknown preset 'smal': did you mean small"),
        (["--threads", "100000"], "--threads is at most "),
        (["--batch", "100000000"], " of memory at least, and it has "),
    ],
    ids=["one rank", "no such rank", "no such preset", "more threads than cores", "more than the memory"],
)
def test_what_cannot_be_trained_is_refused_in_one_line(words: list[str], said: str) -> None:
    done = run(python(DOOR, *words))
    assert done.code == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("commbench train: error: ") and said in done.stderr


@needs_torch
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batch", "0"], "--batch is a whole number of at least 1, not '0'"),
        (["--sequence", "200"], "--sequence is at most the 128 tokens of preset small, not 200"),
        (["--accumulate", "0"], "--accumulate is a whole number of at least 1"),
        (["--steps", "none"], "--steps is a whole number of at least 1, not 'none'"),
        (["--alternate"], "--alternate says in which steps faults act, and there is none: add --inject"),
        (["--alternate", "--inject", "jitter=*:1ms", "--steps", "1"], "--alternate takes at least 2 steps"),
        (["--mode", "ps", "--backend", "nccl"], "--mode ps moves gradients in host memory, by gloo"),
        (["--mode", "ps", "--bucket", "1M"], "--bucket is of --mode ddp"),
        (["--bucket", "1"], "--bucket holds one float32 at least, 4 bytes, not '1'"),
        (["--mode", "fsdp"], "invalid choice: 'fsdp'"),
        (["--peak", "0"], "--peak is a number of at least 1e-06, not '0'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_options_are_refused_with_the_rule(words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as error:
        options.read(words)
    assert said in str(error.value)


def test_without_torch_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'commbench\[training\]'"):
        options.read([])


def test_a_folder_with_traces_of_another_run_is_left_alone(tmp_path: Path) -> None:
    profiling.prepare(tmp_path / "new" / "folder")
    (tmp_path / "rank3.json.gz").touch()
    with pytest.raises(UsageError, match=r"holds rank3\.json\.gz of another run: name another"):
        profiling.prepare(tmp_path)
    with pytest.raises(UsageError, match="cannot be made"):
        profiling.prepare(tmp_path / "rank3.json.gz" / "below")


@pytest.mark.parametrize(
    ("backend", "recorders", "taken"),
    [
        ("nccl", ("nccl", "fr"), b"nccl"),  # as torch is with NCCL: the common recorder holds none of its calls
        ("gloo", ("nccl", "fr"), b"fr"),
        ("nccl", ("fr",), b"fr"),
        ("gloo", ("nccl",), b""),
        ("nccl", (), b""),
    ],
)
def test_the_flight_record_is_of_the_recorder_that_the_backend_has(
    backend: str, recorders: tuple[str, ...], taken: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps = {f"_dump_{name}_trace_json": lambda name=name: name.encode() for name in recorders}
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace(**dumps))
    assert profiling.flight_record(backend) == taken


@needs_torch
@needs_mpirun
@pytest.mark.mpi
@pytest.mark.parametrize(("mode", "ranks", "notes"), [("ddp", 1, 1), ("ps", 2, 0)])
def test_a_flight_record_without_a_call_is_said_where_collectives_ran(
    mode: str, ranks: int, notes: int, tmp_path: Path
) -> None:
    words = ["--mode", mode, *TINY, "--steps", "1", "--profile", "out"]
    done = launch(ranks, DOOR, *words, cwd=tmp_path, env={"TORCH_FR_BUFFER_SIZE": "0"}, timeout=120)
    assert done.code == 0
    assert done.stderr.count("\n") == notes
    assert done.stderr.count("commbench train: note: flight-rank0.json holds no call: torch's Flight Recorder") == notes


@needs_torch
def test_a_summary_that_cannot_be_written_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "training.json").mkdir()
    asked = options.read(["--profile", str(tmp_path)])
    with pytest.raises(UsageError, match=r"cannot write .*training\.json \(Is a directory\): the traces beside it"):
        _conclude({}, asked, "")


def test_a_loss_that_does_not_fall_in_many_steps_is_said() -> None:
    def content(first: float, last: float, steps: int) -> dict[str, Any]:
        return {"loss_first": first, "loss_last": last, "warmup": 2, "steps": [{}] * steps}

    assert summary.not_learnt(content(5.0, 5.1, 8)) == (
        "the loss falls with training, and here it went from 5.0000 to 5.1000 in 10 steps"
    )
    assert summary.not_learnt(content(5.0, float("nan"), 8))
    assert not summary.not_learnt(content(5.0, 4.9, 8))
    assert not summary.not_learnt(content(5.0, 5.1, 7))
