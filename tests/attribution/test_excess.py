"""Transfers held against records of the same collective, and what counters of ports say of the difference."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from commbench.attribution.clocks import align
from commbench.attribution.collectives import Split, split
from commbench.attribution.counters import Series
from commbench.attribution.excess import NO_PORTS, Excess, excess
from commbench.attribution.matching import match
from commbench.attribution.trace import Trace
from commbench.results.record import Record
from tests.attribution.jobs import MS, call, trace
from tests.runs import record

EPOCH = 1_796_000_000_000_000_007  # ns
SECOND = 1000 * MS
HOSTS = ("node0", "node1")


def job(
    n: int = 10, took: int = 2 * MS, elements: int = 1 << 20, every: int = SECOND, **changes: Any
) -> tuple[list[Trace], list[Split]]:
    """Two ranks on two nodes that sum 4 MiB every second: one comes 1 ms later, and then it takes `took` ns."""
    columns = []
    for late in (0, MS):
        starts = [EPOCH + k * every + late for k in range(n)]
        fields = {"group": (0, 1), "elements_in": elements, "elements_out": elements, "name": "ncclDevKernel"} | changes
        columns.append([call(start, start - late + MS + took, **fields) for start in starts])
    traces = [
        trace(rank, column, ranks=2, host=host, device="cuda")
        for rank, (column, host) in enumerate(zip(columns, HOSTS, strict=True))
    ]
    matches = match(traces)
    alignments = align(traces, {}, matches.meetings)
    return traces, [split(meeting, traces, alignments) for meeting in matches.meetings]


def ours(size: int = 4 << 20, time_us: float = 500.0, **changes: Any) -> Record:
    fields: dict[str, Any] = {
        "backend": "nccl",
        "library": "NCCL 2.27.5",
        "nranks": 2,
        "nnodes": 2,
        "hosts": "node0,node1",
    }
    return record(size=size, time_us=time_us, **fields | changes)


def only(*records: Record, counters: tuple[Series, ...] = (), **changes: Any) -> Excess:
    (found,) = excess(*job(**changes), records, counters)
    return found


# Against records


def test_a_transfer_is_held_against_the_record_of_its_size() -> None:
    found = only(ours(), ours(8 << 20, 900.0))
    assert (found.operation, found.size, found.ranks, found.meetings) == ("allreduce", 4 << 20, 2, 10)
    assert (found.transfer, found.alone, found.excess) == (2 * MS, 500_000, 1_500_000)
    assert found.record == "NCCL 2.27.5, float32, method barrier"
    assert (found.congestion, found.congested) == ("", False)


def test_between_two_sizes_the_time_lies_on_a_line_of_logarithms() -> None:
    found = only(ours(1 << 20, 100.0), ours(16 << 20, 900.0))
    assert found.alone == pytest.approx(math.sqrt(100e3 * 900e3), abs=1)  # 4 MiB is half-way
    assert found.record.endswith("interpolated between sizes")


def test_of_several_records_of_a_size_the_median_counts() -> None:
    assert only(ours(time_us=400.0), ours(time_us=500.0), ours(time_us=900.0)).alone == 500_000


def test_of_several_records_the_interval_is_from_the_least_to_the_most() -> None:
    known = ours(time_us=500.0, time_us_low=450.0, time_us_high=700.0)
    found = only(known, ours(time_us=520.0, time_us_low=480.0, time_us_high=530.0))
    assert (found.alone_low, found.alone, found.alone_high) == (450_000, 510_000, 700_000)
    found = only(known, ours(time_us=900.0, time_us_low=None, time_us_high=None))  # too few rounds for an interval
    assert (found.alone_low, found.alone_high) == (450_000, 900_000)


def test_between_two_sizes_the_ends_of_the_interval_lie_on_such_lines_too() -> None:
    low = ours(1 << 20, 100.0, time_us_low=90.0, time_us_high=110.0)
    found = only(low, ours(16 << 20, 900.0, time_us_low=400.0, time_us_high=1600.0))
    assert found.alone_low == pytest.approx(math.sqrt(90e3 * 400e3), abs=1)
    assert found.alone_high == pytest.approx(math.sqrt(110e3 * 1600e3), abs=1)


@pytest.mark.parametrize(
    ("time_us", "high", "longer"),
    [(500.0, 600.0, True), (500.0, 2100.0, False), (1900.0, 1950.0, False), (1800.0, 1950.0, True)],
)
def test_a_transfer_of_2_ms_is_longer_beyond_both_the_interval_and_a_tenth(
    time_us: float, high: float, longer: bool
) -> None:
    counters = (port(port_xmit_wait=rising(100, 70.0)),)
    found = only(ours(time_us=time_us, time_us_low=time_us, time_us_high=high), counters=counters)
    assert (found.longer, found.congested) == (longer, longer)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"size": 1 << 20}, "no record of this size: those of NCCL 2.27.5, float32, method barrier go from 1M to 1M"),
        ({"size": 8 << 20}, "no record of this size: those of NCCL 2.27.5, float32, method barrier go from 8M to 8M"),
        ({"collective": "allgather"}, "no record of allreduce"),
        ({"status": "failed"}, "no record that was measured"),
        ({"simulated": True}, "no record that was measured"),
        ({"backend": "gloo"}, "no record by nccl"),
        ({"nranks": 4}, "no record of 2 ranks"),
        ({"nnodes": 1}, "no record on 2 nodes"),
        ({"hosts": "other,node1"}, "no record on node0, node1"),
        ({"algorithm": "ring"}, "no record of the library's own choice (algorithm auto)"),
    ],
)
def test_where_no_record_fits_the_reason_is_said(changes: dict[str, Any], why: str) -> None:
    found = only(ours(**changes))
    assert (found.alone, found.excess, found.record) == (None, None, why)


def test_without_records_that_is_said() -> None:
    assert only().record == "no records were given"


@pytest.mark.parametrize(
    "changes",
    [
        {"hosts": "unknown"},
        {"nnodes": None},
        {"hosts": "node0,node1,node2"},
        {"hosts": "node1.hpc.example,node0.hpc.example"},
    ],
)
def test_records_that_do_not_contradict_the_trace_fit(changes: dict[str, Any]) -> None:
    assert only(ours(**changes)).alone == 500_000


def test_the_same_type_and_the_method_with_the_least_skew_are_taken_and_never_mixed() -> None:
    records = [
        ours(time_us=100.0, dtype="bfloat16", method="clock"),
        ours(time_us=200.0, method="loop"),
        ours(time_us=300.0, method="clock"),
        ours(time_us=400.0, method="barrier"),
    ]
    assert only(*records).alone == 300_000
    assert only(*records[:1]).alone == 100_000


def test_the_most_time_in_all_comes_first() -> None:
    small, large = job(n=3, took=3 * MS), job(n=10, elements=1 << 10)
    traces = [replace(a, calls=(*a.calls, *b.calls)) for a, b in zip(small[0], large[0], strict=True)]
    meetings = match(traces).meetings
    splits = [split(meeting, traces, align(traces, {}, meetings)) for meeting in meetings]
    found = excess(traces, splits, [ours(4 << 10, 10.0), ours(4 << 20, 500.0)], ())
    assert [(one.size, one.meetings) for one in found] == [(4 << 10, 10), (4 << 20, 3)]


@pytest.mark.parametrize(
    ("name", "format", "device", "backend"),
    [
        ("AllReduce", "NCCL Inspector", "", "nccl"),
        ("ncclDevKernel_Generic", "rocprofv3 JSON", "hip", "rccl"),
        ("ncclDevKernel_Generic", "PyTorch profiler trace", "cuda", "nccl"),
        ("rcclAllReduce", "made up", "", "rccl"),
        ("gloo:all_reduce", "PyTorch Flight Recorder dump", "", "gloo"),
        ("gloo:all_reduce", "PyTorch profiler trace", "cpu", "gloo"),
        ("all_reduce", "made up", "", "its library, which the trace does not tell"),
    ],
)
def test_the_library_is_told_by_device_name_or_format(name: str, format: str, device: str, backend: str) -> None:
    traces, splits = job(name=name)
    traces = [replace(one, format=format, device=device) for one in traces]
    every = [ours(time_us=time, backend=of) for of, time in (("nccl", 100.0), ("rccl", 200.0), ("gloo", 300.0))]
    (found,) = excess(traces, splits, every, ())
    alone = {"nccl": 100_000, "rccl": 200_000, "gloo": 300_000}.get(backend)
    assert found.alone == alone
    assert alone is not None or found.record == f"no record by {backend}"


def test_of_durations_alone_the_shortest_is_held_against_the_record() -> None:
    fields: dict[str, Any] = {"group": (0, 1), "sequence": 1, "elements_in": 1 << 20, "elements_out": 1 << 20}
    traces = [
        trace(r, [call(None, None, duration=d, **fields)], ranks=2, host=HOSTS[r], format="NCCL Inspector")
        for r, d in enumerate((3 * MS, 2 * MS))
    ]
    meetings = match(traces).meetings
    (found,) = excess(traces, [split(one, traces, align(traces, {}, meetings)) for one in meetings], [ours()], ())
    assert (found.transfer, found.alone, found.excess) == (2 * MS, 500_000, 1_500_000)


def test_what_has_no_transfer_or_no_size_is_left_out() -> None:
    assert excess(*job(coalesced=True), [ours()], ()) == ()
    assert excess(*job(dtype=""), [ours()], ()) == ()


# Counters


def port(host: str = "node0", every: int = SECOND // 10, **counters: list[float] | np.ndarray[Any, Any]) -> Series:
    """A port that was sampled from 50 ms before the first transfer on, for 10 s."""
    time = EPOCH - SECOND // 20 + np.arange(10 * SECOND // every + 1) * every
    values = {name: np.asarray(value, dtype=float) for name, value in counters.items()}
    return Series(host, "mlx5_0/1", "rdma", time, values, {})


def rising(steps: int, each: float, beside: float = 0.0, of: int = 10) -> np.ndarray[Any, Any]:
    """A counter that rises in every tenth interval, that which holds a transfer, and otherwise `beside`."""
    return np.concatenate([[0.0], np.cumsum([each if k % of == 0 else beside for k in range(steps)])])


def test_counters_that_rise_in_the_transfers_and_not_beside_them_are_congestion() -> None:
    found = only(ours(), counters=(port(port_xmit_wait=rising(100, 70.0)),))
    assert found.congested
    assert found.congestion.startswith("port_xmit_wait rose by 700 (700/s in them, 0/s beside; node0 mlx5_0/1)")


@pytest.mark.parametrize("name", ["port_xmit_wait", "np_cnp_sent", "out_of_sequence", "rx_prio3_pause"])
def test_waits_notifications_retransmissions_and_pauses_count(name: str) -> None:
    counter: dict[str, Any] = {name: rising(100, 70.0)}
    assert only(ours(), counters=(port(**counter),)).congested


def test_counters_that_rise_all_the_time_are_none() -> None:
    found = only(ours(), counters=(port(port_xmit_wait=rising(100, 70.0, beside=60.0)),))
    assert not found.congested
    assert (
        found.congestion
        == "no counter of waits, pauses or retransmissions rose in these transfers more than beside them"
    )


def test_counters_that_rise_only_beside_the_transfers_are_none() -> None:
    assert not only(ours(), counters=(port(port_xmit_wait=rising(100, 0.0, beside=60.0)),)).congested


def test_where_every_sample_holds_a_transfer_nothing_is_known() -> None:
    found = only(ours(), counters=(port(every=SECOND, port_xmit_wait=rising(10, 70.0, of=1)),))
    assert not found.congested and "every sample holds one; sample faster" in found.congestion


def test_without_an_excess_nothing_is_called_congestion() -> None:
    counters = (port(port_xmit_wait=rising(100, 70.0)),)
    assert not only(ours(time_us=2000.0), counters=counters).congested
    assert not only(ours(time_us=1900.0), counters=counters).congested  # equal launches differ by as much
    assert not only(counters=counters).congested  # no record


def test_ports_of_other_hosts_and_other_kinds_of_counters_say_nothing() -> None:
    assert only(ours(), counters=(port("node7", port_xmit_wait=rising(100, 70.0)),)).congestion == NO_PORTS
    other = replace(port(port_xmit_wait=rising(100, 70.0)), kind="gpu")
    assert only(ours(), counters=(other,)).congestion == NO_PORTS
    assert not only(ours(), counters=(port(port_rcv_packets=rising(100, 70.0)),)).congested


def test_ports_that_were_sampled_at_another_time_are_said() -> None:
    late = port(port_xmit_wait=rising(100, 70.0))
    found = only(ours(), counters=(replace(late, time=late.time + 3600 * SECOND),))
    assert found.congestion == "no sample of the ports holds one of these transfers"


def test_what_adapters_sent_is_held_against_what_had_to_leave_the_node() -> None:
    found = only(
        ours(), counters=(port(port_xmit_data=rising(100, 5e6)), port("node1", port_xmit_data=rising(100, 4e6)))
    )
    # 10 all-reduces of 4 MiB over 2 nodes: each sends at least 2 x 1/2 of it.
    assert found.congestion.endswith(
        "adapters of node1 sent 0.04 GB in these samples, where 0.0419 GB had to leave the node, "
        "unless switches take part"
    )


def test_a_counter_that_was_reset_is_not_known_for_that_interval() -> None:
    values = rising(100, 70.0)
    values[55:] -= values[55]
    found = only(ours(), counters=(port(port_xmit_wait=values),))
    assert found.congestion.startswith("port_xmit_wait rose by 700 (700/s in them, 0/s beside;")


def test_a_port_without_a_sample_beside_the_transfers_tells_nothing_though_another_has_some() -> None:
    slow = port(every=SECOND, port_xmit_wait=rising(10, 70.0, of=1))
    still = port("node1", port_xmit_wait=np.zeros_like(rising(100, 70.0)))
    assert not only(ours(), counters=(slow, still)).congested


@pytest.mark.parametrize(
    ("operation", "elements", "gigabytes"),
    [
        # 10 meetings of two nodes of a rank each, 4 MiB: half of a vector, or of what is gathered, leaves a node.
        ("allgather", (1 << 19, 1 << 20), "0.021"),
        ("reducescatter", (1 << 20, 1 << 19), "0.021"),
        ("alltoall", (1 << 20, 1 << 20), "0.021"),
    ],
)
def test_what_had_to_leave_a_node_is_told_by_the_collective(
    operation: str, elements: tuple[int, int], gigabytes: str
) -> None:
    changes: dict[str, Any] = {"operation": operation, "elements_in": elements[0], "elements_out": elements[1]}
    (found,) = excess(*job(**changes), (ours(collective=operation),), (port(port_xmit_data=rising(100, 5e6)),))
    assert f"where {gigabytes} GB had to leave the node" in found.congestion
