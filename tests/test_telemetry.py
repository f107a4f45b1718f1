"""`commbench.telemetry` from its command line: counters that a command raises by known amounts, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from commbench import telemetry
from commbench.attribution.counters import Column, increments, rates, read_series
from commbench.attribution.sources import Source
from commbench.report.telemetry_screen import lines
from tests.attribution.adapters import MLX5, port
from tests.mpi.launch import MPIRUN, library, run

ROOT = Path(__file__).resolve().parents[1]

# Raises counters of a port in ten steps: FILE BY, FILE BY, ...
RAISE = """
import sys, time
from pathlib import Path
from tests.attribution.adapters import put
files = dict(zip(map(Path, sys.argv[1::2]), map(int, sys.argv[2::2])))
begun = {path: int(path.read_text()) for path in files}
for step in range(1, 11):
    time.sleep(0.03)
    for path, by in files.items():
        put(path, begun[path] + by * step // 10)
print("the command's own words")
print("and its errors", file=sys.stderr)
"""
# Says by which two signals it is told of something.
LISTEN = """
import signal, sys
numbers = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("ready", flush=True)
for _ in numbers:
    print(signal.Signals(signal.sigwait(numbers)).name, flush=True)
sys.exit(5)
"""


def door(*words: str) -> list[str]:
    return [sys.executable, "-m", "commbench.telemetry", *words]


class Done(NamedTuple):
    code: object
    stdout: str
    stderr: str


Record = Callable[..., Done]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Record]:
    """Runs the door in this process, in a folder of its own, and returns how it ended and what was printed."""

    def run_door(*words: str) -> Done:
        with pytest.raises(SystemExit) as ended:
            telemetry.main(words)
        return Done(ended.value.code, *capfd.readouterr())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    interrupt = signal.getsignal(signal.SIGINT)
    yield run_door
    signal.signal(signal.SIGINT, interrupt)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return port(tmp_path / "sys", "mlx5_0/1", MLX5 | {"hw_counters/np_cnp_sent": 5})


def raising(adapter: Path, **by: int) -> list[str]:
    files = {name: next(adapter.glob(f"*counters/{name}")) for name in by}
    return [
        "env",
        f"PYTHONPATH={ROOT}",
        sys.executable,
        "-c",
        RAISE,
        *(word for name in by for word in (str(files[name]), str(by[name]))),
    ]


def recorded(folder: Path) -> list[dict[str, Any]]:
    (file,) = folder.glob("telemetry-*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("this never came")


def test_counters_that_a_command_raises_are_rates_in_their_units(adapter: Path, tmp_path: Path, record: Record) -> None:
    command = raising(adapter, port_xmit_data=250_000_000, port_xmit_wait=1200, np_cnp_sent=131, port_xmit_packets=4096)
    done = record("--sysfs", "sys", "--interval", "20", "--out", "out", "--json", "--", *command)
    assert (done.code, done.stdout) == (0, "the command's own words\n")
    errors, summary = done.stderr.splitlines()
    assert errors == "and its errors"
    (source,) = [one for one in json.loads(summary)["sources"] if one["source"] == "mlx5_0/1"]
    risen = {name: (counter["increment"], counter["unit"]) for name, counter in source["counters"].items()}
    assert risen["port_xmit_data"] == (1_000_000_000, "B")
    assert risen["port_xmit_wait"] == (1200, "ticks")
    assert risen["port_xmit_packets"] == (4096, "packets")
    assert risen["np_cnp_sent"] == (131, "")
    assert risen["port_rcv_data"] == (0, "B")
    assert source["carries"] == 25e9 / 8

    # By hand, of the file's first and last line of this source.
    lines = recorded(tmp_path / "out")
    place = [one["source"] for one in lines[0]["sources"]].index("mlx5_0/1")
    samples = [line for line in lines if line.get("s") == place]
    seconds = (samples[-1]["t"] - samples[0]["t"]) / 1e9
    assert source["counters"]["port_xmit_data"]["rate"] == pytest.approx(4 * 250_000_000 / seconds)
    assert source["counters"]["port_xmit_wait"]["rate"] == pytest.approx(1200 / seconds)
    assert len(samples) == json.loads(summary)["samples"] > 5

    # And window by window, which together are the whole.
    (one,) = [one for one in read_series(tmp_path / "out")[0] if one.source == "mlx5_0/1"]
    starts, ends = one.time[:-1], one.time[1:]
    words = {line["t"]: line["v"]["port_xmit_data"] for line in samples if "port_xmit_data" in line["v"]}
    assert one.values["port_xmit_data"][-1] == 4 * words[max(words)]
    assert increments(one, "port_xmit_data", starts, ends).sum() == pytest.approx(1e9)
    speeds = rates(one, "port_xmit_data", starts, ends)
    assert (speeds * (ends - starts) / 1e9).sum() == pytest.approx(1e9) and np.isfinite(speeds).all()


def test_the_table_says_what_rose_and_what_recording_took(adapter: Path, tmp_path: Path, record: Record) -> None:
    done = record("--sysfs", "sys", "--", *raising(adapter, port_xmit_data=1000, roce_adp_retrans=7))
    (file,) = (tmp_path / "results").glob("*-telemetry/telemetry-*.jsonl")
    text = done.stderr
    assert f"; results/{file.parent.name}/{file.name}\n" in text
    assert re.search(r"^# own CPU: \d+\.\d\d % of a core while the command ran, \d+\.\d\d s before$", text, re.M)
    assert re.search(r"^  mlx5_0/1    3\.125    0\.000    0\.000     0\.0      0\.0          0$", text, re.M)
    assert re.search(r"^# mlx5_0/1 counted: roce_adp_retrans 7 \(.*/s\)$", text, re.M)
    assert "# note: amd: none: no card with gpu_busy_percent in sys/class/drm\n" in text


def test_processors_are_told_of_runs_that_are_longer_than_the_ticks_in_which_they_count(record: Record) -> None:
    text = record("--out", "out", "--", "sleep", "0.2").stderr
    assert re.search(r"^# cpu: .* % of \d+ cores busy, the most cpu\d+ \(.* %\); \d+ context switches/s", text, re.M)
    rates = {name: {"rate": rate} for name, rate in {"busy": 6.3, "cpu0": 0.0, "context_switches": 9.0}.items()}
    busy = {"source": "cpu", "kind": "cpu", "counters": rates}
    assert lines([busy], 0.0016) == ["# cpu: not told of less than 100 ms"]
    assert lines([], 0.0016) == []


def test_the_busiest_core_is_left_out_where_ticks_put_it_below_the_mean() -> None:
    def said(**rates: float) -> list[str]:
        counters = {name: {"rate": rate} for name, rate in rates.items()}
        return lines([{"source": "cpu", "kind": "cpu", "counters": counters}], 1.0)

    assert said(busy=0.01, cpu0=0.0, cpu1=0.0) == ["# cpu: 0.5 % of 2 cores busy; 0 context switches/s"]
    assert said(busy=0.5, cpu0=0.1, cpu1=0.4) == [
        "# cpu: 25.0 % of 2 cores busy, the most cpu1 (40.0 %); 0 context switches/s"
    ]


def test_no_adapter_is_said_and_no_row_of_zeros(tmp_path: Path, record: Record) -> None:
    (tmp_path / "sys" / "class" / "infiniband").mkdir(parents=True)
    done = record("--sysfs", "sys", "--", "true")
    assert "# note: rdma: none: no device in sys/class/infiniband\n" in done.stderr
    assert "GB/s" not in done.stderr and "mlx" not in done.stderr


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -9 $$"], 137),
        (["sh", "-c", "kill -TERM $$"], 143),
    ],
    ids=["0", "7", "SIGKILL", "SIGTERM"],
)
def test_the_command_s_exit_code_is_passed_on(
    command: Sequence[str], code: int, tmp_path: Path, record: Record
) -> None:
    done = record("--out", "out", "--", *command)
    assert done.code == code
    assert recorded(tmp_path / "out")[-1]["end"]["code"] == code


@pytest.mark.parametrize("samples", [True, False], ids=["beside the sampler", "in its place"])
def test_the_command_has_the_streams_and_the_signals_of_its_caller(samples: bool, tmp_path: Path) -> None:
    second = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    script = "tr a-z A-Z; grep -E '^Sig(Blk|Ign)' /proc/self/status; echo its errors >&2"
    bare, with_it = (
        subprocess.run(
            [*words, "sh", "-c", script],
            cwd=tmp_path,
            env=environment() | ({} if samples else second),
            input="what is piped in\n",
            capture_output=True,
            text=True,
            check=True,
        )
        for words in ([], door("--"))
    )
    ours = re.sub(r"(?<=SigIgn:\t)\w{16}", lambda match: f"{int(match[0], 16) & 0x7FFFFFFF:016x}", with_it.stdout)
    assert ours == bare.stdout  # but for two signals of the C library's own
    assert re.fullmatch(f"its errors\n{'# telemetry of .*' * samples}", with_it.stderr, re.S)


def test_signals_are_passed_to_the_command(tmp_path: Path) -> None:
    words = door("--out", "out", "--", sys.executable, "-c", LISTEN)
    process = subprocess.Popen(
        words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        said = []
        for number in (signal.SIGINT, signal.SIGTERM):
            said.append(process.stdout.readline())
            process.send_signal(number)
        said += process.stdout.readlines()
        assert process.wait(timeout=30) == 5
    finally:
        process.kill()
        process.communicate()
    assert said == ["ready\n", "SIGINT\n", "SIGTERM\n"]
    assert recorded(tmp_path / "out")[-1]["end"]["code"] == 5


def test_a_run_that_is_killed_is_read_with_a_note(adapter: Path, tmp_path: Path) -> None:
    words = door("--sysfs", "sys", "--interval", "10", "--out", "t.jsonl", "--", "sleep", "600")
    process = subprocess.Popen(words, cwd=tmp_path, env=environment(), start_new_session=True)
    try:
        wait_for(lambda: (tmp_path / "t.jsonl").exists() and (tmp_path / "t.jsonl").read_bytes().count(b"\n") > 10)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # and the command too
        process.wait()
    series, notes = read_series(tmp_path / "t.jsonl")
    assert len(series[0].time) > 3
    assert "killed" in notes[-1]


def test_an_adapter_that_goes_and_comes_again_is_missing_meanwhile(
    adapter: Path, tmp_path: Path, record: Record
) -> None:
    port(tmp_path / "sys", "mlx5_1/1", MLX5)
    script = """
        mv sys/class/infiniband/mlx5_0 gone; rm sys/class/infiniband/mlx5_1/ports/1/counters/*; sleep 0.3
        mv gone sys/class/infiniband/mlx5_0; sleep 0.1
        cp -r sys/class/infiniband/mlx5_0 sys/class/infiniband/mlx5_2
        echo 1: DOWN > sys/class/infiniband/mlx5_0/ports/1/state
    """
    done = record("--sysfs", "sys", "--interval", "20", "--out", "out", "--", "sh", "-c", script)
    assert done.code == 0
    for words in (
        "mlx5_2/1 came while the command ran, and was not sampled",
        "mlx5_0/1: state was '4: ACTIVE' at first, and '1: DOWN' then",
    ):
        assert f"# note: {words}\n" in done.stderr
    series = {one.source: one for one in read_series(tmp_path / "out")[0]}
    left = np.isnan(series["mlx5_1/1"].values["port_xmit_data"])
    assert not left[0] and left[-1] and not np.isnan(series["mlx5_1/1"].values["roce_adp_retrans"]).any()
    assert set(series["mlx5_0/1"].values["port_xmit_data"]) == {4.0 * MLX5["counters/port_xmit_data"]}  # type: ignore[operator]


def test_a_disk_that_is_full_from_the_start_is_bad_usage_and_nothing_runs(tmp_path: Path, record: Record) -> None:
    done = record("--out", "/dev/full", "--", "touch", "ran")
    assert (done.code, done.stderr.count("\n")) == (2, 1)
    assert "cannot write to /dev/full: No space left on device; name another place by --out" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_disk_that_fills_up_ends_the_recording_and_not_the_command(adapter: Path, tmp_path: Path) -> None:
    limited = ["bash", "-c", 'ulimit -f 8; exec "$@"', "-"]  # KiB of a file
    words = door("--sysfs", "sys", "--interval", "1", "--out", "t.jsonl", "--", "sh", "-c", "sleep 1; exit 3")
    done = subprocess.run([*limited, *words], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 3
    assert re.search(
        r"^# note: t\.jsonl: nothing was written any more: (File too large|the disk is full)$", done.stderr, re.M
    )
    assert "  mlx5_0/1 " in done.stderr  # of what was written


def test_the_interval_is_no_shorter_than_the_adapters_refresh(adapter: Path, tmp_path: Path, record: Record) -> None:
    (adapter / "hw_counters" / "lifespan").write_text("250\n")
    done = record("--sysfs", "sys", "--interval", "5", "--out", "out", "--", "true")
    assert "# note: sampled every 250 ms rather than 5: adapters refresh their counters so often\n" in done.stderr
    assert recorded(tmp_path / "out")[0]["interval_ms"] == 250


def test_sampling_that_is_dear_is_rarer_than_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the CPU clock finds 50 ms more: a sample of 50 ms may come every 5 s."""
    looks = iter(range(1000))
    monkeypatch.setattr(telemetry, "process_time", lambda: 0.05 * next(looks))
    source = Source("x", "cpu", {}, [Column("x")], lambda: [1])
    found = {}
    for share in (None, 0.01):
        with open(tmp_path / f"{share}.jsonl", "wb", buffering=0) as stream:
            recorder = telemetry.Recorder(stream, {}, [source])
            found[share] = telemetry.run(["sleep", "0.3"], recorder, 0.01, share)
    assert found[0.01].samples == 3 < found[None].samples
    assert found[None].notes == ()
    assert re.fullmatch(r"sampled up to \d+ ms apart, lest it take more than 1 % of a core", found[0.01].notes[0])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the command is missing: put it behind --"),
        (["--json"], "the command is missing"),
        (["--interval", "0", "--", "true"], "--interval is a number of at least 1, not '0'"),
        (["--sysfs", "/nowhere", "--", "true"], "and /nowhere is no folder"),
        (["--frobnicate", "--", "true"], "--frobnicate"),
        (["sleep", "1"], "'sleep' is no option: put the command behind -- (python -m commbench.telemetry -- ./app)"),
        (["--json", "./app", "--lr", "1"], "'./app' is no option: put the command behind --"),
        (["--out", "there", "--", "true"], "there is there already, and is kept: name another place by --out"),
        (["--out", "there/below", "--", "true"], "cannot write to there/below"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(words: list[str], message: str, tmp_path: Path, record: Record) -> None:
    (tmp_path / "there").write_text("")
    done = record(*words)
    assert (done.code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("commbench telemetry: error: ") and message in done.stderr


def test_a_file_is_never_written_over(tmp_path: Path, record: Record) -> None:
    assert record("--out", "out", "--", "true").code == 0
    before = next((tmp_path / "out").iterdir()).read_bytes()
    assert record("--out", "out", "--", "true").code == 2
    assert [path.read_bytes() for path in (tmp_path / "out").iterdir()] == [before]


@pytest.mark.parametrize(("ends", "code"), [("true", 2), ("exit 3", 3)])
def test_among_other_ranks_a_command_runs_that_cannot_be_recorded(ends: str, code: int, tmp_path: Path) -> None:
    """The others' commands run already, and would wait for it."""
    (tmp_path / "kept.jsonl").write_text("kept")
    done = subprocess.run(
        door("--out", "kept.jsonl", "--", "sh", "-c", f"echo it runs; {ends}"),
        cwd=tmp_path,
        env=environment() | {f"OMPI_COMM_WORLD_{of}": text for of, text in [("RANK", "0"), ("SIZE", "2")]},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, (tmp_path / "kept.jsonl").read_text()) == (code, "it runs\n", "kept")
    said = "kept.jsonl is there already, and is kept: name another place by --out; the command runs all the same"
    assert done.stderr.startswith(f"commbench telemetry: error: {said}, and is not recorded\n")


def test_a_command_that_cannot_be_started_is_a_line_and_the_code_of_shells(tmp_path: Path, record: Record) -> None:
    (tmp_path / "app").write_text("no program\0")
    (tmp_path / "app").chmod(0o755)
    for command, code in (("no-such-command", 127), ("./app", 126)):
        done = record("--out", "out", "--", command)
        assert (done.code, done.stdout, done.stderr.count("\n")) == (code, "", 1)
        assert done.stderr.startswith(f"commbench telemetry: error: cannot start {command}: ")
        assert not list((tmp_path).glob("out/*"))  # nothing was recorded, nor is in the way of the next try


def test_help_has_examples(record: Record) -> None:
    assert "mpirun -n 8 python -m commbench.telemetry" in record("--help").stdout


def test_the_door_itself_loads_nothing_heavy() -> None:
    code = "import sys, commbench.telemetry; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"numpy", "mpi4py", "torch", "pandas"} & set(loaded.stdout.split()) == set()


@pytest.mark.mpi
@pytest.mark.skipif(not library(), reason=f"no mpirun beside this interpreter ({MPIRUN})")
def test_one_rank_of_a_node_samples_and_all_run_the_command(adapter: Path, tmp_path: Path) -> None:
    app = [sys.executable, "-c", "from mpi4py import MPI; print(f'{MPI.COMM_WORLD.size} ranks')"]
    done = run([str(MPIRUN), "-n", "2", *door("--sysfs", "sys", "--out", "out", "--", *app)], cwd=tmp_path)
    assert (done.code, done.left) == (0, 0), done.stderr
    assert done.stdout.count("2 ranks") == 2  # mpirun may put both on one line
    assert done.stderr.count("# telemetry of ") == 1
    assert (recorded(tmp_path / "out")[0]["rank"], recorded(tmp_path / "out")[0]["ranks"]) == (0, 2)


@pytest.mark.mpi
@pytest.mark.skipif(not library(), reason=f"no mpirun beside this interpreter ({MPIRUN})")
@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("./app", 126)])
def test_one_rank_of_a_node_says_that_the_command_cannot_be_started(command: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "app").write_text("no program\0")
    (tmp_path / "app").chmod(0o755)
    late = ["sh", "-c", 'sleep 1; exec "$@"', "sh"]  # most launchers end all with the first that fails
    words = door("--out", "out", "--", command)
    done = run([str(MPIRUN), "-n", "1", *late, *words, ":", "-n", "2", *words], cwd=tmp_path)
    assert (done.code, done.left) == (code, 0), done.stderr
    assert done.stderr.count("cannot start") == done.stderr.count(f"error: cannot start {command}: ") == 1


# What was recorded, shown


PRINTED = """# Port extended counters: Lid 7 port 1 (CapMask: 0x5300 CapMask2: 0x0000002)
PortXmitData:....................{data}
PortXmitWait:....................{wait}
"""


def shown(*paths: Path, words: Sequence[str] = ()) -> None:
    with pytest.raises(SystemExit) as end:
        telemetry.main([*words, "--show", *map(str, paths)])
    assert end.value.code == 0


def write_recording(file: Path, host: str, seconds: int, retransmits: int) -> None:
    """Write two samples of a port, and of a core that was busy for a quarter of the time."""
    port = [["port_xmit_data", "B", 4, False], ["roce_adp_retrans", "", 1, False]]
    cpu = [["busy", "s", 1e-9, False], ["cpu0", "s", 1e-9, False]]
    told = [("mlx5_0/1", "rdma", {"rate": "400 Gb/sec"}, port), ("cpu", "cpu", {}, cpu)]
    sources = [dict(zip(("source", "kind", "facts", "columns"), one, strict=True)) for one in told]
    begin, end = 10**18, 10**18 + seconds * 10**9
    rows = [
        {"s": 0, "t": begin, "v": {"port_xmit_data": 0, "roce_adp_retrans": 5}},
        {"s": 1, "t": begin, "v": {"busy": 0, "cpu0": 0}},
        {"s": 0, "t": end, "v": {"port_xmit_data": 250_000_000, "roce_adp_retrans": 5 + retransmits}},
        {"s": 1, "t": end, "v": {"busy": seconds * 250_000_000, "cpu0": seconds * 250_000_000}},
    ]
    head = {"telemetry": 1, "host": host, "sources": sources, "notes": [f"of {host}"]}
    file.write_text("".join(json.dumps(line) + "\n" for line in [head, *rows, {"end": {"notes": []}}]))


def test_each_node_of_a_folder_is_shown_below_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_recording(tmp_path / "telemetry-n1.jsonl", "n1", 2, 8)
    write_recording(tmp_path / "telemetry-n2.jsonl", "n2", 4, 0)
    shown(tmp_path)
    heading = [
        "# rdma      carries    sends receives   sends receives      waits",
        "#            (GB/s)   (GB/s)   (GB/s)     (%)      (%)  (ticks/s)",
    ]
    assert capsys.readouterr().out.splitlines() == [
        f"# telemetry of n1: 2.00 s, 2 samples, 2000 ms apart; {tmp_path}/telemetry-n1.jsonl",
        *heading,
        "  mlx5_0/1   50.000    0.500        -     1.0        -          -",  # 4 B x 250 M in 2 s
        "# mlx5_0/1 counted: roce_adp_retrans 8 (4/s)",
        "# cpu: 25.0 % of 1 cores busy, the most cpu0 (25.0 %); 0 context switches/s",
        "# note: of n1",
        f"# telemetry of n2: 4.00 s, 2 samples, 4000 ms apart; {tmp_path}/telemetry-n2.jsonl",
        *heading,
        "  mlx5_0/1   50.000    0.250        -     0.5        -          -",
        "# no counter of errors, retransmissions or congestion rose: mlx5_0/1",
        "# cpu: 25.0 % of 1 cores busy, the most cpu0 (25.0 %); 0 context switches/s",
        "# note: of n2",
    ]
    shown(tmp_path, words=["--json"])
    sources = json.loads(capsys.readouterr().out)["sources"]
    assert [(one["host"], one["file"], one["source"]) for one in sources] == [
        (host, f"{tmp_path}/telemetry-{host}.jsonl", source) for host in ("n1", "n2") for source in ("mlx5_0/1", "cpu")
    ]


def test_two_outputs_of_perfquery_give_rates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.write_text(PRINTED.format(data=1000, wait=10))
    after.write_text(PRINTED.format(data=1000 + 500_000_000, wait=10 + 30))
    os.utime(before, (1_000_000, 1_000_000))
    os.utime(after, (1_000_002, 1_000_002))
    shown(after, before)
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  lid 7/1"))
    assert row.split() == ["lid", "7/1", "-", "1.000", "-", "-", "-", "15"]  # 4 x 500 MB, and 30 ticks, in 2 s


def test_one_output_of_perfquery_gives_totals_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "once").write_text(PRINTED.format(data=1000, wait=10))
    shown(tmp_path / "once")
    out = capsys.readouterr().out
    assert "# lid 7/1: one sample, so that no rate is known; totals: port_xmit_data 4000 B, port_xmit_wait 10" in out
    assert "no counter" not in out


def test_what_is_shown_is_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "junk").write_text("hello")
    for words, said in (
        (["--show", str(tmp_path / "junk")], "is no file of commbench.telemetry"),
        (["--show", str(tmp_path), "--", "true"], "--show runs no command"),
    ):
        with pytest.raises(SystemExit) as end:
            telemetry.main(words)
        assert end.value.code == 2 and said in capsys.readouterr().err
