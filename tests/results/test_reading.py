"""Logs of others, each format: what is read of them, and what is said of those that are wrong."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import commbench
from commbench import read as door
from commbench.errors import ResultsError
from commbench.results.findings import Finding
from commbench.results.reading import Reading, read, readers
from tests.results import logs

TIMES = [(1024, 20.0, 21.0), (65536, 30.0, 29.5), (1048576, 60.0, 61.0), (268435456, 1200.0, 1210.0)]
ONE = [(size, out) for size, out, _ in TIMES]


def reading(folder: Path, text: str, name: str = "a.log") -> Reading:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read(path)


def found(it: Reading, rule: str) -> list[Finding]:
    return [finding for finding in it.findings if finding.rule == rule]


FORMATS = {
    "nccl-tests text": (logs.nccl_tests(TIMES), "nccl-tests text"),
    "2021": (logs.nccl_tests(TIMES, old=True), "nccl-tests text"),
    "tagged": (logs.nccl_tests(TIMES, prefix="[1,0]<stdout>:"), "nccl-tests text"),
    "labelled": (logs.nccl_tests(TIMES, prefix="0: "), "nccl-tests text"),
    "indented": (logs.nccl_tests(TIMES, prefix="    "), "nccl-tests text"),
    "AMD": (logs.nccl_tests(TIMES, device="AMD Instinct MI300X"), "nccl-tests text"),
    "JSON": (logs.nccl_json(TIMES), "nccl-tests JSON"),
    "CSV": (logs.rccl_csv(ONE), "rccl-tests CSV or JSON"),
    "old CSV": (logs.rccl_csv(ONE, old=True), "rccl-tests CSV or JSON"),
    "RCCL JSON": (logs.rccl_json(ONE), "rccl-tests CSV or JSON"),
    "old RCCL JSON": (logs.rccl_json(ONE, old=True), "rccl-tests CSV or JSON"),
    "inspector": (logs.inspector([(size, int(time)) for size, time in ONE]), "NCCL inspector JSON lines"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_an_allreduce_of_eight_ranks_is_the_same_in_every_format(name: str, tmp_path: Path) -> None:
    text, kind = FORMATS[name]
    it = reading(tmp_path, text)
    assert it.format == kind
    times = {(r.size, bool(r.inplace)): r.time_us for r in it.records}
    first = it.records[0].inplace
    assert [times[size, bool(first)] for size, _ in ONE] == [time for _, time in ONE]
    for record in it.records:
        assert (record.collective, record.nranks, record.busbw_factor, record.status) == ("allreduce", 8, 1.75, "ok")
        assert record.algbw == pytest.approx(record.size / (record.time_us or 0) / 1e3, rel=5e-3)
        assert record.busbw == pytest.approx((record.algbw or 0) * 1.75, rel=5e-3)
    assert {record.backend for record in it.records} == {"rccl" if name == "AMD" or "rccl" in kind else "nccl"}
    assert [f for f in it.findings if f.level != "note"] == []


def test_rows_without_heading_or_devices_say_what_could_not_be_known(tmp_path: Path) -> None:
    it = reading(tmp_path, logs.nccl_tests(TIMES, rows_only=True))
    assert {(r.collective, r.nranks) for r in it.records} == {("allreduce", 8)}
    assert found(it, "heading") and found(it, "truncated")
    assert "from busbw / algbw" in found(it, "ranks")[0].value


def test_a_row_that_a_log_line_split_is_joined(tmp_path: Path) -> None:
    lines = logs.nccl_tests(TIMES).splitlines()
    place = next(i for i, line in enumerate(lines) if line.split()[:1] == ["65536"])
    head, tail = lines[place].split("-1", 1)
    lines[place : place + 1] = [
        f"{head}-1node-a:12:34 [0] NCCL INFO Launch mode Parallel",
        "node-a:1:2 [0] NCCL INFO x",
        tail,
    ]
    it = reading(tmp_path, "\n".join(lines))
    assert [(r.size, r.time_us) for r in it.records[2:4]] == [(65536, 30.0), (65536, 29.5)]
    assert not found(it, "row") and not found(it, "average")


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("1200.0", "1100.0", "algbw"),
        ("391.47", "301.47", "busbw"),
        (" 67108864 ", " 67108865 ", "count"),
        ("# Avg bus bandwidth    : ", "# Avg bus bandwidth    : 1", "average"),
    ],
)
def test_what_contradicts_itself_is_a_finding_and_no_number(old: str, new: str, rule: str, tmp_path: Path) -> None:
    text = logs.nccl_tests(TIMES)
    assert old in text
    it = reading(tmp_path, text.replace(old, new, 1))
    assert found(it, rule)
    withdrawn = [r for r in it.records if r.status != "ok"]
    assert all((r.time_us, r.algbw, r.busbw) == (None, None, None) for r in withdrawn)
    assert {r.size for r in withdrawn} == (set() if rule == "average" else {268435456})


def test_wrong_answers_withdraw_their_row(tmp_path: Path) -> None:
    lines = logs.nccl_tests(TIMES).splitlines()
    place = next(i for i, line in enumerate(lines) if line.split()[:1] == ["65536"])
    lines[place] = lines[place][:-1] + "7"
    it = reading(tmp_path, "\n".join(lines))
    assert [(r.size, r.inplace, r.wrong, r.busbw) for r in it.records if r.status == "wrong"] == [
        (65536, True, 7, None)
    ]
    assert found(it, "validation")[0].lines == (place + 1,)


def test_what_ran_is_attached_to_its_rows_and_another_algorithm_is_no_result(tmp_path: Path) -> None:
    tuning = "node-a:1:2 [0] NCCL INFO AllReduce: {} Bytes -> Algo {} proto {} channel{{Lo..Hi}}={{0..{}}}\n"
    log = tuning.format(1048576, "TREE", "LL128", 15) + tuning.format(65536, "RING", "LL", 7)
    it = reading(tmp_path, log + logs.nccl_tests(TIMES))
    ran = {r.size: (r.observed_algorithm, r.observed_protocol, r.channels, r.status) for r in it.records}
    assert ran[1048576] == ("tree", "ll128", 16, "ok")
    assert ran[1024] == (None, None, None, "ok")
    asked = "node-a:1:2 [0] NCCL INFO NCCL_ALGO set by environment to Tree\n"
    it = reading(tmp_path, asked + log + logs.nccl_tests(TIMES))
    status = {r.size: (r.algorithm, r.status, r.time_us is None) for r in it.records}
    assert status[65536] == ("tree", "substituted", True)
    assert status[1048576] == ("tree", "ok", False)
    assert found(it, "substituted")


def test_columns_of_rccl_tests_and_a_time_stamp(tmp_path: Path) -> None:
    text = logs.nccl_tests(TIMES, device="AMD Instinct MI300X")
    lines = [
        f"{line}  algo proto nchannels" if line == logs.HEAD
        else f"{line}   RING  LL128  56 2026-01-02 03:04:05" if line[:12].strip().isdigit()
        else line
        for line in text.splitlines()
    ]  # fmt: skip
    it = reading(tmp_path, "\n".join(lines))
    assert {(r.observed_algorithm, r.observed_protocol, r.channels) for r in it.records} == {("ring", "ll128", 56)}
    assert len(it.records) == 2 * len(TIMES)


def test_processes_that_each_ran_alone_have_no_bandwidth(tmp_path: Path) -> None:
    text = logs.nccl_tests(TIMES, n=1)
    device = next(line for line in text.splitlines() if "Rank" in line)
    it = reading(tmp_path, text.replace(device, f"{device}\n{device.replace('device  0', 'device  1')}"))
    assert found(it, "rank 0 of 1")
    assert {r.busbw for r in it.records} == {None}


def test_several_tables_of_one_file(tmp_path: Path) -> None:
    it = reading(tmp_path, logs.nccl_tests(TIMES) + logs.nccl_tests(TIMES[:2], n=4))
    assert [(len(t.rows), t.facts["nranks"]) for t in it.tables] == [(8, 8), (4, 4)]
    assert [f for f in it.findings if f.level != "note"] == []


TUNED = "node-a:1:2 [0] NCCL INFO AllReduce: {} Bytes -> Algo {} proto SIMPLE channel{{Lo..Hi}}={{0..7}}\n"
ASKED = "node-a:1:2 [0] NCCL INFO NCCL_ALGO set by environment to {}\n"


def gathered(times: list[tuple[int, float, float]], n: int = 8) -> str:
    """An all-gather of `n` ranks' blocks: all of a size is one block from each."""
    head = logs.nccl_tests(TIMES[:1], n).splitlines(keepends=True)[:-4]
    lines = "".join(head)
    rates = []
    for size, *both in times:
        halves = [logs.half(size, time, (n - 1) / n, "0") for time in both]
        rates += [size / time / 1e3 * (n - 1) / n for time in both]
        lines += f"{size:12d}  {size // n // 4:12d}     float    none      -1  {'  '.join(halves)}\n"
    return f"{lines}# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {sum(rates) / len(rates):g}\n"


def test_what_a_run_said_is_that_of_its_own_table(tmp_path: Path) -> None:
    """A run that forced a ring, and one that forced a tree, of which NCCL ran a ring at one size."""
    one, two = TIMES[1][0], TIMES[2][0]
    table = logs.nccl_tests(TIMES[1:3])
    first = ASKED.format("Ring") + TUNED.format(one, "RING") + TUNED.format(two, "RING") + table
    second = ASKED.format("Tree") + TUNED.format(one, "TREE") + TUNED.format(two, "RING") + table
    expected = [
        *[(one, "ring", "ring", "ok")] * 2,
        *[(two, "ring", "ring", "ok")] * 2,
        *[(one, "tree", "tree", "ok")] * 2,
        *[(two, "tree", "ring", "substituted")] * 2,
    ]
    it = reading(tmp_path, first + second + table)
    assert [(r.size, r.algorithm, r.observed_algorithm, r.status) for r in it.records[:8]] == expected
    assert {(r.algorithm, r.observed_algorithm, r.status) for r in it.records[8:]} == {("auto", None, "ok")}
    tagged = "".join(  # another rank's lines, which have no table of their own
        f"[1,{int('NCCL INFO' in line)}]<stdout>:{line}\n" for line in (first + second).splitlines()
    )
    it = reading(tmp_path, tagged)
    assert [(r.size, r.algorithm, r.observed_algorithm, r.status) for r in it.records] == expected


def test_each_command_names_its_own_table(tmp_path: Path) -> None:
    both = f"$ ./all_reduce_perf -g 8\n{logs.nccl_tests(TIMES)}$ ./all_gather_perf -g 8\n{gathered(TIMES)}"
    it = reading(tmp_path, both)
    assert [(t.facts["collective"], t.facts["busbw_factor"], len(t.rows)) for t in it.tables] == [
        ("allreduce", 1.75, 8),
        ("allgather", 0.875, 8),
    ]
    assert {r.status for r in it.records} == {"ok"}
    ended = "# Collective test concluded: all_reduce_perf\n"
    it = reading(tmp_path, both.replace("$ ./all_gather_perf -g 8\n", ended))
    assert it.tables[1].facts["collective"] == "allgather"  # by its columns


def test_each_table_has_the_version_that_its_run_said(tmp_path: Path) -> None:
    table = logs.nccl_tests(TIMES[:1])
    it = reading(tmp_path, f"NCCL version 2.19.3+cuda12.3\n{table}NCCL version 2.27.5+cuda12.9\n{table}")
    assert [r.library for r in it.records] == [*["NCCL 2.19.3+cuda12.3"] * 2, *["NCCL 2.27.5+cuda12.9"] * 2]


OURS = """\
# commbench 0.1.0, backend mpi: the default, as rank 0 reaches no device by CuPy; MPICH 5.0.2, /opt/lib/libmpi.so.12
# all-gather on 4 ranks, 1 node; method loop; time of the slowest rank (-a 3; nccl-tests' default is 1, the mean)
# time: median of the rounds' medians; low, high: interval over rounds (launches differ by more)
# results in results/20261130T211155Z-allgather
#
# Group: first 2, ranks 0-1
#
# Algorithm: ring
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           128     float    none      -1     5.25    0.20    0.10      0     5.29    0.19    0.10      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.0971895
#
#
# Group: all, ranks 0-3
#
# Algorithm: auto
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024            64     float    none      -1  1310.54    0.00    0.00      0   872.08    0.00    0.00      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.000733336
#
# 4 cells ok
"""


def test_our_own_table_is_of_the_method_library_and_ranks_that_its_first_lines_state(tmp_path: Path) -> None:
    it = reading(tmp_path, OURS + logs.nccl_tests(TIMES))
    facts = [
        (r.collective, r.backend, r.library, r.method, r.algorithm, r.group, r.ranks, r.nranks, r.nnodes, r.simulated)
        for r in it.records
    ]
    shared = "allgather", "mpi", "MPICH 5.0.2", "loop"
    assert facts[:4] == [
        *[(*shared, "ring", "first 2", "0-1", 2, None, False)] * 2,
        *[(*shared, "auto", "all", "0-3", 4, 1, False)] * 2,
    ]
    assert facts[4] == ("allreduce", "nccl", "NCCL", "nccl-tests", "auto", "all", "0-7", 8, 1, False)
    assert {r.status for r in it.records} == {"ok"}
    simulated = OURS.replace("# commbench", "# SIMULATED: what is measured is a stand-in; commbench")
    assert {r.simulated for r in reading(tmp_path, simulated).records} == {True}
    one = re.sub(r"# Group.*\n", "", OURS.partition("#\n# Group: all")[0])  # of a run of one group alone
    assert [(r.nranks, r.group, r.busbw_factor) for r in reading(tmp_path, one).records] == [(2, "unknown", 0.5)] * 2
    cut = re.sub(r"# all-gather on .*\n", "", OURS)
    assert [(r.group, r.nranks, r.method) for r in reading(tmp_path, cut).records][::2] == [
        ("first 2", 2, "nccl-tests"),
        ("all", 4, "nccl-tests"),
    ]


def test_our_table_says_what_the_runs_records_say(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    words = ["commbench.allreduce", "-b", "1K", "-e", "1K", "--rounds", "1", "--algo", "auto", "--method", "loop"]
    command = [sys.executable, "-m", *words, "--format", "nccl-tests", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = ("collective", "backend", "library", "method", "nranks", "nnodes", "ranks", "group", "algorithm", "size")
    printed = {tuple(getattr(r, name) for name in names) for r in reading(tmp_path, done.stdout).records}
    kept = read(tmp_path / "run" / "records.jsonl").records
    assert printed == {tuple(getattr(r, name) for name in names) for r in kept}


def test_osu_sizes_become_ours_where_the_ranks_are_known(tmp_path: Path) -> None:
    known = reading(tmp_path, logs.osu(ONE, n=4))
    first = known.records[0]
    assert (first.size, first.nranks, first.count, first.dtype) == (4 * 1024, 4, 1024, "int8")
    assert (first.time_us, first.time_us_min, first.time_us_max, first.time_us_p99) == (20.0, 18.0, 24.0, 22.0)
    assert first.algbw == pytest.approx(4 * 1024 / 20.0 / 1e3)
    unknown = reading(tmp_path, logs.osu(ONE, full=False))
    assert [(r.size, r.algbw, r.nranks) for r in unknown.records] == [(size, None, None) for size, _ in ONE]
    assert found(unknown, "size")
    failed = reading(tmp_path, logs.osu(ONE).replace("Pass", "Fail", 1))
    assert [r.status for r in failed.records] == ["wrong", "ok", "ok", "ok"]


def test_osu_in_python_and_point_to_point(tmp_path: Path) -> None:
    text = "# OMB Python MPI Allreduce Test\n# Size (B)      Latency (us)\n1024                   2.50\n"
    record = reading(tmp_path, text).records[0]
    assert (record.collective, record.size, record.time_us) == ("allreduce", 1024, 2.5)
    text = "# OSU MPI Bandwidth Test v7.4\n# Size      Bandwidth (MB/s)\n1048576             11000.00\n"
    record = reading(tmp_path, text).records[0]
    assert (record.algbw, record.time_us) == (11.0, None)


REDUCE_SCATTER = """mpirun -np 4 ./osu_reduce_scatter
# OSU MPI Reduce_scatter Latency Test v7.4
# Datatype: MPI_FLOAT.
# Size       Avg Latency(us)
4096                   10.00
mpirun -np 4 ./osu_allgather
# OSU MPI Allgather Latency Test v7.4
# Datatype: MPI_FLOAT.
# Size       Avg Latency(us)
1024                   10.00
"""


def test_osu_prints_the_whole_vector_of_a_reduce_scatter_and_a_block_of_an_allgather(tmp_path: Path) -> None:
    """Each rank ends with 1024 B, and 256 floats, of the one, and begins with as many of the other."""
    records = reading(tmp_path, REDUCE_SCATTER).records
    assert [(r.collective, r.size, r.count, r.busbw_factor) for r in records] == [
        ("reducescatter", 4096, 256, 0.75),
        ("allgather", 4096, 256, 0.75),
    ]
    assert [r.algbw for r in records] == pytest.approx([0.4096, 0.4096])
    block = REDUCE_SCATTER.replace("Reduce_scatter ", "Reduce_scatter_block ").replace("osu_reduce_scatter", "osu_")
    assert reading(tmp_path, block).records[0].size == 4096
    unknown = reading(tmp_path, REDUCE_SCATTER.partition("\n")[2].partition("mpirun")[0])
    assert [(r.size, r.count, r.nranks) for r in unknown.records] == [(4096, None, None)]
    assert not found(unknown, "size") and found(unknown, "ranks")


def test_an_osu_command_is_that_of_one_table(tmp_path: Path) -> None:
    lines = REDUCE_SCATTER.splitlines()
    it = reading(tmp_path, "\n".join([*lines[:5], *lines[6:]]))
    assert [(r.nranks, r.size, r.busbw_factor) for r in it.records] == [(4, 4096, 0.75), (None, 1024, None)]
    assert found(it, "size")


def test_osu_nonblocking_tests_are_not_taken_for_blocking_ones(tmp_path: Path) -> None:
    text = """srun -n 2 ./osu_iallreduce
# OSU MPI Non-blocking Allreduce Latency Test v5.6.3
# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait

# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)
1024                   11.09              6.10              5.12              3.46
"""
    (record,) = reading(tmp_path, text).records
    assert (record.collective, record.method, record.time_us) == ("allreduce", "osu-nonblocking", 5.12)
    assert record.algbw == pytest.approx(0.2)


def test_imb_names_what_timed_out(tmp_path: Path) -> None:
    records = reading(tmp_path, logs.imb(ONE)).records
    assert [(r.size, r.time_us, r.nranks) for r in records[:-1]] == [(size, time, 4) for size, time in ONE]
    assert (records[-1].status, records[-1].time_us) == ("timeout", None)


def imb(title: str, columns: str, row: str, release: str = "Benchmarks 2021.2") -> str:
    heading = f"       #bytes #repetitions  {columns}"
    return f"#    Intel(R) MPI {release}, MPI-1 part\n# Benchmarking {title}\n# #processes = 4\n{heading}\n{row}\n"


@pytest.mark.parametrize(
    ("title", "release", "size"),
    [
        ("Reduce_scatter", "Benchmarks 2018", 4096),
        ("Reduce_scatter", "Benchmark Suite V3.2", 4096),
        ("Reduce_scatter", "Benchmarks 2019 Update 6", 16384),
        ("Reduce_scatter_block", "Benchmarks 2021.7", 16384),
        ("Allgather", "Benchmarks 2018", 16384),
    ],
)
def test_imb_changed_what_a_reduce_scatters_size_is(title: str, release: str, size: int, tmp_path: Path) -> None:
    """By IMB's guides a vector of X bytes up to 2018, and of X times the processes since."""
    text = imb(title, "t_min[usec]  t_max[usec]  t_avg[usec]", "4096 1000 9.00 11.00 10.00", release)
    it = reading(tmp_path, text)
    (record,) = it.records
    assert (record.size, record.time_us) == (size, 10.0)
    assert record.algbw == pytest.approx(size / 1e4)
    assert not found(it, "size")


def test_imb_without_a_release_leaves_a_reduce_scatters_size_in_doubt(tmp_path: Path) -> None:
    text = imb("Reduce_scatter", "t_min[usec]  t_max[usec]  t_avg[usec]", "4096 1000 9.00 11.00 10.00")
    assert found(reading(tmp_path, text.partition("\n")[2]), "size")


FOUR = "t_min[usec]  t_max[usec]  t_avg[usec]  Mbytes/sec"


@pytest.mark.parametrize(
    ("title", "rate", "size"),
    [("Sendrecv", 2 * 1048576 / 110, 1048576), ("Exchange", 4 * 1048576 / 110, 2097152)],
)
def test_imb_counts_both_directions_and_the_slowest_rank(title: str, rate: float, size: int, tmp_path: Path) -> None:
    text = imb(title, FOUR, f"1048576 40 90.00 110.00 100.00 {rate:.2f}")
    it = reading(tmp_path, text)
    (record,) = it.records
    assert (record.size, record.time_us) == (size, 100.0)
    assert record.algbw == pytest.approx(size / 100.0 / 1e3)
    assert it.findings == []
    it = reading(tmp_path, imb(title, FOUR, f"1048576 40 90.00 110.00 100.00 {rate / 2:.2f}"))
    assert [(r.status, r.algbw) for r in it.records] == [("failed", None)]
    assert found(it, "algbw")


def test_imb_of_early_releases_counts_in_binary_megabytes(tmp_path: Path) -> None:
    it = reading(
        tmp_path, imb("PingPong", "t[usec]   Mbytes/sec", "4194304 10 400.00 10000.00", "Benchmark Suite V3.2")
    )
    (record,) = it.records
    assert record.algbw == pytest.approx(4194304 / 400.0 / 1e3)
    assert found(it, "megabyte")[0].level == "note"


def test_json_that_a_crash_left_open_gives_its_whole_rows(tmp_path: Path) -> None:
    text = logs.nccl_json(TIMES)
    it = reading(tmp_path, text[: text.index("268435456") + 20])
    assert [r.size for r in it.records] == [1024, 1024, 65536, 65536, 1048576, 1048576]
    assert found(it, "truncated")


def test_no_environment_is_kept(tmp_path: Path) -> None:
    it = reading(tmp_path, logs.nccl_json(TIMES))
    assert found(it, "environment")
    assert "do-not-keep" not in repr(it)


def test_dips_cycles_and_what_is_above_the_links(tmp_path: Path) -> None:
    dip = [(1 << 20, 60.0, 60.0), (1 << 21, 200.0, 200.0), (1 << 22, 220.0, 220.0), (1 << 23, 300.0, 300.0)]
    it = reading(tmp_path, logs.nccl_tests(dip))
    assert {f.value.partition(" the rate")[0].partition("from ")[2] for f in found(it, "dip")} == {
        "2097152 B up to 2097152 B"
    }
    assert {f.level for f in found(it, "dip")} == {"doubt"}
    cycles = [(1 << 20, time, 60.0) for time in (60.0, 61.0, 150.0)]
    assert "differ by up to 2.50 times" in found(reading(tmp_path, logs.nccl_tests(cycles)), "cycles")[0].value
    fast = [(1 << 34, 61974.0, 61974.0)]
    assert "up to 485" in found(reading(tmp_path, logs.nccl_tests(fast)), "above links")[0].value


@pytest.mark.parametrize(
    ("device", "links", "level"),
    [("NVIDIA H100 80GB HBM3", 450, "note"), ("AMD Instinct MI300X", 448, "doubt"), ("NVIDIA A100-SXM4", 300, "doubt")],
)
@pytest.mark.parametrize("form", [logs.nccl_tests, logs.nccl_json])
def test_above_the_links_is_explained_only_where_a_switch_may_reduce(
    device: str, links: int, level: str, form: Callable[..., str], tmp_path: Path
) -> None:
    """AMD's GPUs are linked without a switch, and NVLink's switches reduce from Hopper on."""
    (finding,) = found(reading(tmp_path, form([(1 << 34, 61974.0, 61974.0)], device=device)), "above links")
    assert (finding.level, f"links carry {links}" in finding.value, "NVLS" in finding.value) == (
        *(level, True, level == "note"),
    )


def test_json_without_a_hostname_does_not_say_how_many_nodes(tmp_path: Path) -> None:
    whole = json.loads(logs.nccl_json(TIMES))
    assert reading(tmp_path, json.dumps(whole)).records[0].nnodes == 1
    del whole["config"]["devices"][3]["hostname"]
    record = reading(tmp_path, json.dumps(whole)).records[0]
    assert (record.nnodes, record.hosts, record.nranks) == (None, "unknown", 8)


def test_the_inspectors_ranks_of_one_file_are_one_collective(tmp_path: Path) -> None:
    """Two ranks' lines of three collectives, the slowest of which counts; two runs, so two communicators, match."""
    lines = logs.inspector([(1 << 20, 60), (1 << 20, 70), (1 << 20, 80)], n=2).splitlines()
    late = logs.inspector([(1 << 20, 65), (1 << 20, 50), (1 << 20, 90)], n=2).replace('"rank": 0', '"rank": 1')
    it = reading(tmp_path, "\n".join([*lines, late]))
    assert [(r.time_us, r.group, r.nranks) for r in it.records] == [(65, "all", 2), (70, "all", 2), (90, "all", 2)]
    assert [(table.beside, [row.line for row in table.rows]) for table in it.tables] == [
        ({"communicator": "0x1"}, [4, 2, 6])
    ]
    assert not found(it, "one rank")
    other = reading(tmp_path, "\n".join(lines).replace("0x1", "0x2"))
    assert {r.group for r in other.records} == {"all"}
    assert "1 of 2 ranks are in this file" in found(other, "one rank")[0].value
    wrong = late.replace('"coll_exec_time_us": 65', '"coll_exec_time_us": 95')
    statuses = [r.status for r in reading(tmp_path, "\n".join([*lines, wrong])).records]
    assert statuses == ["failed", "ok", "ok"]


def test_gzip_and_a_gzip_that_was_cut(tmp_path: Path) -> None:
    times = [(8 << place % 20, 20.0 + place, 20.0) for place in range(3000)]
    packed = gzip.compress(logs.nccl_tests(times).encode())
    (tmp_path / "whole.gz").write_bytes(packed)
    assert len(read(tmp_path / "whole.gz").records) == 6000
    (tmp_path / "cut.gz").write_bytes(packed[: len(packed) // 2])
    it = read(tmp_path / "cut.gz")
    assert 0 < len(it.records) < 6000
    assert found(it, "cut")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is empty"),
        (b"\x7fELF\0\0\0", "is a binary file"),
        (b"hello\nworld\n", "is of no format that is known here"),
    ],
)
def test_what_is_no_log_is_refused_in_a_line(
    content: bytes, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(ResultsError, match=text):
        read(path)
    with pytest.raises(SystemExit) as ended:
        door.main([str(path)])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_the_door_prints_records_and_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.log"
    path.write_text(logs.nccl_tests(TIMES, end=False), encoding="utf-8")
    for arguments in ([], ["--json"], ["--format", "csv"]):
        with pytest.raises(SystemExit) as ended:
            door.main([str(path), *arguments])
        assert ended.value.code == 0
        out, err = capsys.readouterr()
        if arguments == ["--json"]:
            (entry,) = json.loads(out)["files"]
            assert [r["time_us"] for r in entry["records"]][:2] == [20.0, 21.0]
            assert [f["rule"] for f in entry["findings"]] == ["truncated"]
        else:
            assert "1200.0" in out
            assert "(truncated)" in err


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (logs.nccl_tests(TIMES), "8 ranks on 1 node, "),
        (logs.osu(ONE, n=1), "1 rank on unknown nodes, "),
        (logs.osu(ONE), "unknown ranks on unknown nodes, "),
    ],
)
def test_the_door_counts_ranks_and_nodes(
    text: str, where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.log"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit):
        door.main([str(path)])
    assert f", {where}method " in capsys.readouterr().out


def test_load_takes_files_folders_and_patterns_together(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.log").write_text(logs.nccl_tests(TIMES), encoding="utf-8")
    (tmp_path / "logs" / "b.txt").write_text(logs.osu(ONE), encoding="utf-8")
    (tmp_path / "logs" / "README").write_text("of no format", encoding="utf-8")
    frame = commbench.load(tmp_path / "logs")
    assert frame.groupby("run").size().to_dict() == {"a.log": 8, "b.txt": 4}
    assert [f["rule"] for f in frame.attrs["findings"] if f["rule"] == "not read"] == ["not read"]
    assert frame["line"].iloc[0] == 14
    assert len(commbench.load(str(tmp_path / "logs" / "*.log"), tmp_path / "logs" / "b.txt")) == 12


def test_a_format_is_a_file() -> None:
    assert {reader.NAME for reader in readers()} >= {kind for _, kind in FORMATS.values()}
    assert all(reader.recognise(["hello\n"]) == 0 for reader in readers())
