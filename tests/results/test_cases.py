"""The public logs of shared/cases: every value of their index that these readers can see.

The files are not the project's, and never part of it: COMMBENCH_CASES names their folder, or ../shared/cases from the
root of the repository.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from commbench.results.findings import Finding
from commbench.results.reading import Reading, read
from commbench.results.record import Record

CASES = Path(os.environ.get("COMMBENCH_CASES") or Path(__file__).resolve().parents[3] / "shared" / "cases")

pytestmark = pytest.mark.skipif(not (CASES / "INDEX.md").exists(), reason=f"the public logs are not here ({CASES})")


def rows(reading: Reading) -> list[tuple[int, float | None, float | None]]:
    """(size, busbw out of place, in place) of each line."""
    lines: dict[int, dict[bool | None, Record]] = {}
    for record, line in reading.located():
        lines.setdefault(line, {})[record.inplace] = record
    return [(both[False].size, both[False].busbw, both[True].busbw) for both in lines.values()]


def found(reading: Reading, rule: str) -> list[Finding]:
    return [finding for finding in reading.findings if finding.rule == rule]


# file: rows, rows of size 0, collective, ranks, nodes, factor, last row, average (None: not stated), root, backend
NCCL = {
    "nccl_tests/abci_a100_1node_allreduce.nccl": (
        *(24, 0, "allreduce", 8, 1, 1.75, (33554432, 158.41, 163.80), 21.2687, "nccl"),
    ),
    "nccl_tests/abci_a100_2node_allreduce.nccl": (
        *(24, 0, "allreduce", 16, 2, 1.875, (33554432, 33.34, 33.37), 7.41855, "nccl"),
    ),
    "nccl_tests/abci_v100_2node_bcast.nccl": (
        *(24, 0, "broadcast", 8, 2, 1.0, (33554432, 18.13, 18.12), 3.6606, "nccl"),
    ),
    "nccl_tests/aws_2x_p4de_allreduce_rankprefix.txt": (
        *(29, 0, "allreduce", 16, None, 1.875, (2147483648, 78.33, 78.33), None, "unknown"),
    ),
    "nccl_tests/aws_p4d_2node_tagged_ncclinfo.log": (
        *(30, 0, "allreduce", 16, 2, 1.875, (4294967296, 43.81, 43.72), 11.2432, "nccl"),
    ),
    "nccl_tests/sb_a100x8_allgather.log": (
        *(34, 5, "allgather", 8, 1, 0.875, (8589934592, 223.39, 230.07), 58.2651, "nccl"),
    ),
    "nccl_tests/sb_a100x8_allreduce.log": (
        *(34, 2, "allreduce", 8, 1, 1.75, (8589934592, 235.26, 235.03), 68.4048, "nccl"),
    ),
    "nccl_tests/sb_a100x8_reduce.log": (*(34, 2, "reduce", 8, 1, 1.0, (8589934592, 228.38, 228.83), 65.018, "nccl"),),
    "nccl_tests/like_h100_2node_allreduce_prose.md": (
        *(31, 0, "allreduce", 16, 2, 1.875, (8589934592, 328.74, 328.41), 84.081, "nccl"),
    ),
    "nccl_tests/like_reducescatter_zero_sizes.txt": (
        *(14, 3, "reducescatter", 4, None, 0.75, (65536, 1.73, 1.74), 0.270714, "unknown"),
    ),
    "nccl_tests/like_ring_truncated_header.txt": (
        *(5, 0, "allreduce", 12, None, 11 / 6, (4294967296, 94.42, 96.07), 93.962, "unknown"),
    ),
    "rccl_tests/like_mi300x_1node_longhost.txt": (
        *(29, 0, "allreduce", 8, 1, 1.75, (4294967296, 312.51, 318.17), 108.744, "rccl"),
    ),
    "rccl_tests/like_mi300x_vf_allreduce.txt": (
        *(24, 0, "allreduce", 8, 1, 1.75, (67108864, 244.97, 246.36), 40.5552, "rccl"),
    ),
    "rccl_tests/like_mi355x_2node_truncated.txt": (
        *(27, 0, "allreduce", 16, 2, 1.875, (2147483648, 352.19, 351.29), None, "rccl"),
    ),
}


@pytest.mark.parametrize("name", NCCL)
def test_a_table_of_nccl_tests(name: str) -> None:
    number, empty, collective, n, nodes, factor, last, average, backend = NCCL[name]
    reading = read(CASES / name)
    (table,) = reading.tables
    record = reading.records[-1]
    lines = rows(reading)
    assert len(lines) == number
    assert sum(size == 0 for size, _, _ in lines) == empty
    assert (record.collective, record.nranks, record.nnodes, record.backend) == (collective, n, nodes, backend)
    assert record.busbw_factor == pytest.approx(factor)
    assert lines[-1] == last
    assert table.beside["average"] == average
    assert {record.status for record in reading.records} == {"ok"}
    assert bool(found(reading, "truncated")) == (average is None)
    assert not found(reading, "average") and not found(reading, "row")


@pytest.mark.parametrize(
    ("name", "mean"),
    [
        ("nccl_tests/aws_2x_p4de_allreduce_rankprefix.txt", "18.53"),
        ("rccl_tests/like_mi355x_2node_truncated.txt", "93.10"),
    ],
)
def test_a_missing_average_is_computed(name: str, mean: str) -> None:
    (finding,) = found(read(CASES / name), "truncated")
    assert f"the mean of what is there is {mean}" in finding.value


def test_what_single_logs_hold() -> None:
    one = read(CASES / "nccl_tests/abci_a100_1node_allreduce.nccl")
    assert max(row.more["error"] for row in one.tables[0].rows if row.more) == 2e-07
    bcast = read(CASES / "nccl_tests/abci_v100_2node_bcast.nccl")
    assert {record.root for record in bcast.records} == {0}
    dips = {finding.value.split(" B")[0].rpartition(" ")[2] for finding in found(bcast, "dip")}
    assert dips == {"65536", "2097152"}
    assert read(CASES / "nccl_tests/sb_a100x8_allgather.log").records[-1].count == 268435456
    assert read(CASES / "nccl_tests/sb_a100x8_allreduce.log").records[-1].count == 2147483648
    reduce = max(read(CASES / "nccl_tests/sb_a100x8_reduce.log").records, key=lambda record: record.busbw or 0)
    assert (reduce.size, reduce.inplace, reduce.busbw) == (4294967296, True, 231.28)
    prose = read(CASES / "nccl_tests/like_h100_2node_allreduce_prose.md")
    assert prose.records[0].hosts == "trainer-kx4p,trainer-w09d"
    assert prose.records[-2].algbw == 175.33
    first = next(
        record for record in read(CASES / "nccl_tests/like_reducescatter_zero_sizes.txt").records if record.size
    )
    assert (first.size, first.count) == (64, 4)
    mi300 = read(CASES / "rccl_tests/like_mi300x_1node_longhost.txt")
    peak = max(mi300.records, key=lambda record: record.busbw or 0)
    assert (peak.size, peak.inplace, peak.busbw) == (1073741824, True, 319.58)
    vf = read(CASES / "rccl_tests/like_mi300x_vf_allreduce.txt").tables[0].beside["devices"]
    assert [device["bus"][:4] for device in vf] == ["0007", "0008", "0009", "000a", "000b", "000c", "000d", "000e"]
    assert {device["name"] for device in vf} == {"AMD Instinct MI300X VF"}
    mi355 = read(CASES / "rccl_tests/like_mi355x_2node_truncated.txt")
    assert mi355.records[0].hosts == "amd-rk5-11,amd-rk5-12"
    assert mi355.tables[0].beside["devices"][0]["bus"] == "0000:73:00"
    tagged = read(CASES / "nccl_tests/aws_p4d_2node_tagged_ncclinfo.log")
    assert tagged.records[0].library == "NCCL 2.9.9+cuda11.2"


def test_a_log_cut_short_is_incomplete() -> None:
    reading = read(CASES / "nccl_tests/like_broadcast_oldcols_warn.txt")
    assert [size for size, _, _ in rows(reading)] == [16, 32, 64]
    record = reading.records[0]
    assert (record.root, record.nranks, record.nnodes, record.library) == (1, 2, 2, "NCCL 2.8.4+cuda11.0")
    assert record.wrong is None
    assert "the last size is 64 B of 1073741824" in found(reading, "truncated")[0].value


def test_too_many_ranks_for_a_host() -> None:
    reading = read(CASES / "nccl_tests/like_invalid_device_ordinal.txt")
    assert reading.records == []
    (finding,) = found(reading, "ranks exceed gpus")
    assert finding.count == 4
    assert "10.40.8.21" in finding.value and "ranks 6, 4, 7, 5" in finding.value


def test_runs_of_one_rank_each() -> None:
    reading = read(CASES / "nccl_tests/like_nompi_three_rank0.txt")
    assert reading.records == []
    (finding,) = found(reading, "rank 0 of 1")
    assert "3 processes on cnode-117, cnode-204 each report rank 0 of 1" in finding.value
    assert "MPI=1" in finding.remedy
    assert "device 0 of cnode-117 has 2" in found(reading, "shared gpu")[0].value


def test_what_the_library_says_ran() -> None:
    records = read(CASES / "nccl_tests/like_nvlstree_algo_lines.txt").records
    assert [(r.size, r.observed_algorithm, r.observed_protocol, r.channels) for r in records] == [
        (524288, "tree", "ll", 8),
        (8388608, "tree", "ll128", 24),
        (67108864, "nvls_tree", "simple", 24),
        (268435456, "ring", "simple", 24),
    ]
    assert {record.status for record in records} == {"not_measured"}


def test_a_failed_check_withdraws_the_bandwidth() -> None:
    reading = read(CASES / "nccl_tests/like_oob_failed.txt")
    assert [(r.size, r.nranks, r.status, r.busbw, r.time_us) for r in reading.records] == [
        (2147483648, 4, "wrong", None, None)
    ] * 2
    assert found(reading, "validation")[0].level == "withdrawn"
    assert reading.tables[0].beside["average"] == 135.48


def test_excerpts_with_algorithms() -> None:
    before, after = (read(CASES / f"rccl_tests/like_algo_cols_{word}.tsv").records for word in ("before", "after"))
    assert [(r.size, r.busbw, r.observed_algorithm, r.observed_protocol, r.channels) for r in before[::3]] == [
        (16777216, 88.40, "tree", "ll128", 56),
        (268435456, 286.05, "ring", "simple", 56),
    ]
    ratios = [round((b.busbw or 0) / (a.busbw or 1), 3) for a, b in zip(before, after, strict=True)]
    assert ratios == [1.190, 1.200, 1.210, 1.005]
    assert (after[-1].busbw, after[-1].channels) == (287.48, 40)


# file: rows, first size and time, last size and time
OSU: dict[str, tuple[Any, ...]] = {
    "osu/abci_a100_16node_allreduce_cpu_full.mpi-cpu": (24, 4, 9.27, 33554432, 22911.89),
    "osu/abci_a100_16node_allreduce_cuda_full.mpi": (24, 4, 39.20, 33554432, 51207.10),
    "osu/like_v532_latency.log": (24, 0, 1.33, 4194304, 363.49),
    "osu/like_v59_allgather_24node_pathological.txt": (21, 24 * 1, 87674.30, 24 * 1048576, 1779149.01),
    "osu/like_v752_allgather_datatype_line.txt": (21, 1, 7.35, 1048576, 968.39),
}


@pytest.mark.parametrize("name", OSU)
def test_a_table_of_osu(name: str) -> None:
    records = read(CASES / name).records
    first, last = records[0], records[-1]
    assert (len(records), first.size, first.time_us, last.size, last.time_us) == OSU[name]


def test_what_osu_says_beside_its_times() -> None:
    host = read(CASES / "osu/abci_a100_16node_allreduce_cpu_full.mpi-cpu")
    assert (host.records[0].time_us_min, host.records[0].time_us_max) == (6.76, 12.06)
    assert [r.iterations for r in host.records] == [1000] * 14 + [100] * 10
    assert "from 16384 B" in found(host, "dip")[0].value
    device = read(CASES / "osu/abci_a100_16node_allreduce_cuda_full.mpi")
    assert "64 B takes 70.73 us" in found(device, "stands out")[0].value
    assert "from 16384 B" in found(device, "dip")[0].value
    assert (host.records[0].buffer, device.records[0].buffer) == ("host", "plain")
    assert "from 16384 B" in found(read(CASES / "osu/like_v532_latency.log"), "dip")[0].value
    slow = read(CASES / "osu/like_v59_allgather_24node_pathological.txt")
    assert slow.records[0].nranks == 24
    assert found(slow, "latency")
    typed = read(CASES / "osu/like_v752_allgather_datatype_line.txt")
    assert typed.records[0].dtype == "int8"
    assert "from 16384 B" in found(typed, "dip")[0].value
    assert found(typed, "size")  # n is not stated
    empty = read(CASES / "osu/like_v70_cuda_allreduce_ucc_trace.txt")
    assert empty.records == []
    assert found(empty, "no rows")


def test_imb() -> None:
    pingpong = read(CASES / "imb/imb2021_pingpong_azure.txt").records
    by_size = {record.size: record for record in pingpong}
    assert len(pingpong) == 24
    assert pingpong[0].nranks == 2
    assert (by_size[0].time_us, by_size[0].algbw) == (1.73, 0.0)
    assert (by_size[262144].time_us, by_size[262144].algbw, by_size[262144].iterations) == (31.11, 8.42669, 160)
    assert by_size[4194304].algbw == pytest.approx(11.34701)
    on, off = (read(CASES / f"imb/imb_allreduce_1408_waagent_{word}.txt").records for word in ("on", "off"))
    assert len(on) == len(off) == 3
    assert (on[2].size, on[2].time_us_min, on[2].time_us_max, on[2].time_us) == (16, 26.13, 29.28, 27.28)
    assert off[2].time_us == 19.43
    assert round((on[2].time_us or 0) / off[2].time_us, 2) == 1.40


def test_the_inspector() -> None:
    one = read(CASES / "inspector/nccl_inspector_0.jsonl")
    record = one.records[0]
    assert (record.collective, record.size, record.time_us, record.nranks) == ("allreduce", 17179869184, 61974, 8)
    assert (record.algbw, record.busbw, record.busbw_factor) == (277.210914, 485.119099, 1.75)
    assert one.tables[0].rows[0].more == {"iterations": 1, "rank": 2, "sequence": 1407}
    record = read(CASES / "inspector/exporter_0.jsonl").records[0]
    assert (record.collective, record.size, record.nranks, record.nnodes) == ("reducescatter", 32 * 65536, 32, 4)
    assert (record.algbw, record.busbw) == (19.065018, 18.469236)


def test_other_programs_are_not_read_as_logs_of_these() -> None:
    from commbench.errors import ResultsError

    for folder in (
        "nccl_topo",
        "smi_topo",
        "lstopo",
        "ibnetdiscover",
        "slurm",
        "topograph_models",
        "fr",
        "tuner",
        "ompi",
    ):
        for path in (CASES / folder).iterdir():
            with pytest.raises(ResultsError):
                read(path)
