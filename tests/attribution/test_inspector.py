"""JSON lines of NCCL's Inspector: durations, and starts only where events tell them."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench.attribution.readers import inspector
from commbench.attribution.reading import read_file
from commbench.attribution.trace import BYTES, Call, Trace
from commbench.errors import UsageError

CASES = Path(os.environ.get("COMMBENCH_CASES") or Path(__file__).resolve().parents[3] / "shared" / "cases")


def marker(rank: int = 1, ranks: int = 4, name: Any = "0xc1", pid: int = 7, **more: Any) -> dict[str, Any]:
    """What a line says of its rank."""
    return {
        "header": {"id": name, "comm_name": "unknown", "rank": rank, "n_ranks": ranks, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.2",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": 1_752_867_300_000_000,
            "hostname": "node-1",
            "pid": pid,
        },
        **more,
    }


def perf(coll: str = "AllReduce", number: int = 1, size: int = 1 << 20, us: int = 110, **more: Any) -> dict[str, Any]:
    rates = {"coll_algobw_gbs": 1.0, "coll_busbw_gbs": 1.5, "coll_timing_source": "kernel_gpu"}
    return {"coll": coll, "coll_sn": number, "coll_msg_size_bytes": size, "coll_exec_time_us": us, **rates, **more}


def events(*channels: tuple[int, int], begun: int = 1000, kind: str = "coll") -> dict[str, Any]:
    """Events in us since 1 752 867 229 s: the call, then start and stop on each channel."""
    base = 1_752_867_229_000_000
    kernels = [
        {
            "channel_id": channel,
            "kernel_start_ts": start and base + start,
            "kernel_stop_ts": stop and base + stop,
            "kernel_record_ts": stop and base + stop,
        }
        for channel, (start, stop) in enumerate(channels)
    ]
    return {
        "event_trace_ts": {
            f"{kind}_start_ts": base + begun,
            f"{kind}_stop_ts": base + begun + 5,
            "kernel_events": kernels,
        }
    }


def read(*lines: Any) -> list[Trace]:
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    return list(inspector.read(io.BytesIO(text.encode()), "inspector.jsonl"))


def only(*lines: Any) -> Call:
    ((call,),) = [trace.calls for trace in read(*lines)]
    return call


@pytest.mark.skipif(not (CASES / "inspector").exists(), reason=f"the public records are not here ({CASES})")
def test_the_public_records() -> None:
    """NVIDIA's examples: the size of a reduce-scatter is a rank's share, which its own algbw tells."""
    (trace,) = read_file(CASES / "inspector" / "nccl_inspector_0.jsonl")
    (call,) = trace.calls
    assert (trace.rank, trace.ranks, call.operation, call.sequence) == (2, 8, "allreduce", 1407)
    assert (call.elements_in, call.elements_out, call.dtype) == (17179869184, 17179869184, BYTES)
    assert call.duration == 61974_000
    (trace,) = read_file(CASES / "inspector" / "exporter_0.jsonl")
    (call,) = trace.calls
    assert (trace.rank, trace.ranks, call.operation) == (31, 32, "reducescatter")
    assert call.elements_out == 65536 and call.duration is not None
    assert call.elements_in is not None and call.elements_in / call.duration == pytest.approx(19.065018)


def test_without_events_there_is_a_duration_and_no_time() -> None:
    (trace,) = read(marker(coll_perf=perf(us=110)))
    (call,) = trace.calls
    assert (call.arrival, call.end, call.duration) == (None, None, 110_000)
    assert any("NCCL_INSPECTOR_DUMP_VERBOSE=1" in note for note in trace.notes)


def test_with_events_a_rank_arrives_when_its_first_channel_begins() -> None:
    (trace,) = read(marker(coll_perf=perf(us=300, **events((1120, 1415), (1110, 1420), (1130, 1410)))))
    (call,) = trace.calls
    base = 1_752_867_229_000_000_000
    assert (call.enqueued, call.start, call.end) == (base + 1_000_000, base + 1_110_000, base + 1_420_000)
    assert call.duration == 300_000  # by the device's own clock
    assert trace.unix and not any("DUMP_VERBOSE" in note for note in trace.notes)


@pytest.mark.parametrize("channels", [(), ((0, 0),), ((1100, 0),), ((0, 1100), (1050, 1110)), ((1200, 1100),)])
def test_events_that_are_not_whole_are_no_start(channels: tuple[tuple[int, int], ...]) -> None:
    call = only(marker(coll_perf=perf(**events(*channels))))
    assert (call.start, call.end, call.duration) == (None, None, 110_000)
    assert call.enqueued == 1_752_867_229_001_000_000


def test_messages_have_their_peers() -> None:
    message = {"p2p": "Send", "p2p_sn": 9, "p2p_peer": 3, "p2p_msg_size_bytes": 4096, "p2p_exec_time_us": 20}
    call = only(marker(p2p_perf={**message, **events((1100, 1120), kind="p2p")}))
    assert (call.operation, call.peer, call.elements_in, call.elements_out) == ("send", 3, 4096, None)
    assert (call.sequence, call.start) == (None, 1_752_867_229_001_100_000)


def test_since_4_3_lines_belong_to_the_marker_before_them() -> None:
    dumped = {"coll_records": 2, "coll_dropped_total": 0}
    traces = read(
        marker(dump_stats=dumped),
        {"coll_perf": perf(number=1)},
        {"coll_perf": perf(number=2)},
        marker(0, 2, "0xd2", dump_stats=dumped),
        {"coll_perf": perf(number=1)},
        {"proxy_trace": {"record_type": "proxy_step"}},
    )
    (trace,) = traces
    assert trace.rank == 1
    assert [(call.group_name, call.sequence) for call in trace.calls] == [("0xc1", 1), ("0xc1", 2), ("0xd2", 1)]
    assert [call.group for call in trace.calls] == [(0, 1, 2, 3), (0, 1, 2, 3), None]


def test_lines_behind_a_broken_marker_are_nobodys() -> None:
    (trace,) = read(marker(coll_perf=perf()), '{"header": {"id": "0xd2", "ra\n', {"coll_perf": perf()})
    assert len(trace.calls) == 1
    assert any(note.startswith("2 lines are no records") for note in trace.notes)


def test_records_that_were_overwritten_are_counted_once() -> None:
    stats = [
        {"coll_dropped_total": total, "p2p_dropped_total": 1, "coll_dropped_since_last_dump": 5} for total in (5, 10)
    ]
    (trace,) = read(*(marker(dump_stats=one) for one in stats), marker(coll_perf=perf()))
    assert any(note.startswith("11 records were overwritten") for note in trace.notes)


def test_a_process_of_several_ranks_is_several_traces() -> None:
    lines = [marker(rank, 2, coll_perf=perf(number=number)) for number in (1, 2) for rank in (0, 1)]
    assert [(trace.rank, len(trace.calls)) for trace in read(*lines)] == [(0, 2), (1, 2)]


def test_calls_of_a_process_of_several_ranks_are_not_guessed() -> None:
    lines = [marker(rank, 4, coll_perf=perf()) for rank in (2, 3)]
    lines += [marker(rank, 2, "0xd2", coll_perf=perf()) for rank in (0, 1)]
    traces = read(*lines)
    assert [(trace.rank, len(trace.calls)) for trace in traces] == [(2, 1), (3, 1)]
    assert all(any("whose 2 calls in smaller communicators are" in note for note in trace.notes) for trace in traces)


def test_processes_of_one_file_are_apart() -> None:
    traces = read(*(marker(rank, pid=rank, coll_perf=perf()) for rank in (0, 1)))
    assert [(trace.rank, trace.host) for trace in traces] == [(0, "node-1"), (1, "node-1")]


def test_ranks_that_communicators_disagree_about_are_not_known() -> None:
    (trace,) = read(marker(0, 2, "0xa", coll_perf=perf()), marker(1, 2, "0xb", coll_perf=perf()))
    assert trace.rank is None and len(trace.calls) == 2


@pytest.mark.parametrize(
    "line",
    [
        "[]\n",
        "3\n",
        "[[[" * 100_000 + "\n",
        marker(rank=4, ranks=4, coll_perf=perf()),
        marker(ranks=1 << 40, coll_perf=perf()),
        marker(coll_perf=perf(us=-1)),
        marker(coll_perf=perf(size=1 << 70)),
        marker(coll_perf=perf(coll_sn=None)),
        marker(coll_perf={"coll": "AllReduce"}),
        marker(name=["0xc1"], coll_perf=perf()),
        marker(coll_perf=perf(event_trace_ts=[])),
        marker(dump_stats=[]),
    ],
)
def test_lines_that_nobody_wrote_are_left_out_and_counted(line: Any) -> None:
    (trace,) = read(line, marker(coll_perf=perf()))
    assert len(trace.calls) == 1
    assert any(note.startswith("1 lines are no records") for note in trace.notes)
    with pytest.raises(UsageError, match="holds no record of the Inspector that can be read: 1 lines are none"):
        read(line)


WHOLE = "".join(json.dumps(marker(coll_perf=perf(number=n, **events((1100, 1200))))) + "\n" for n in (1, 2, 3)).encode()


@settings(max_examples=50)
@given(st.integers(0, len(WHOLE)), st.integers(0, len(WHOLE)), st.binary(max_size=8))
def test_a_cut_or_changed_file_is_read_or_refused(cut: int, place: int, change: bytes) -> None:
    data = WHOLE[:cut]
    try:
        traces = inspector.read(io.BytesIO(data[:place] + change + data[place + len(change) :]), "inspector.jsonl")
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert sum(len(trace.calls) for trace in traces) <= 4


def test_records_are_recognised() -> None:
    assert inspector.recognise(WHOLE[:600])
    assert inspector.recognise(json.dumps(marker(dump_stats={})).encode())
    assert not inspector.recognise(b'{"traceEvents": []}')
