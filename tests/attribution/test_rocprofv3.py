"""JSON of rocprofv3: kernels and copies, and what RCCL's kernels of one name carry out."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench.attribution.readers import rocprofv3
from commbench.attribution.trace import ANNOTATION, BY_ARGUMENTS, BY_NAME, KERNEL, MEMCPY, RUNTIME, SYNC, Step, Trace
from commbench.errors import UsageError

GENERIC = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL128(ncclDevKernelArgsStorage<4096ul>)"
KERNELS = ["void gemm<float>(float*)", GENERIC, RING]
HIP = ["hipLaunchKernel", "hipStreamSynchronize"]
RCCL = ["ncclAllReduce", "ncclSend", "ncclRecv", "ncclGroupStart", "ncclGroupEnd", "ncclCommInitRank"]
COPIES = ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_DEVICE"]


class Process:
    """What one process of a program leaves, written down call by call."""

    def __init__(self) -> None:
        self.buffers: dict[str, list[Any]] = {
            name: [] for name in ("kernel_dispatch", "hip_api", "rccl_api", "memory_copy", "marker_api")
        }
        self.texts: list[dict[str, Any]] = []
        self.calls = 0

    def _call(self, buffer: str, kind: int, operation: int, start: int, end: int, thread: int) -> dict[str, Any]:
        self.calls += 1
        record = {
            **{"size": 56, "kind": kind, "operation": operation, "thread_id": thread},
            **{"correlation_id": {"internal": self.calls, "external": 0}},
            **{"start_timestamp": start, "end_timestamp": end},
        }
        self.buffers[buffer].append(record)
        return record

    def hip(self, name: str, start: int, end: int, thread: int = 9) -> int:
        """Return the correlation of a call of HIP."""
        self._call("hip_api", 0, HIP.index(name), start, end, thread)
        return self.calls

    def rccl(self, name: str, start: int, end: int, thread: int = 9) -> None:
        self._call("rccl_api", 1, RCCL.index(name), start, end, thread)

    def kernel(self, name: str, start: int, end: int, correlation: int, thread: int = 9, queue: int = 1) -> None:
        record = self._call("kernel_dispatch", 2, 0, start, end, thread)
        record["correlation_id"]["internal"] = correlation
        record["dispatch_info"] = {
            **{"size": 72, "agent_id": {"handle": 7001}, "queue_id": {"handle": queue}},
            **{"kernel_id": KERNELS.index(name), "dispatch_id": 1},
        }

    def launch(self, name: str, at: int, start: int, end: int, thread: int = 9) -> None:
        """Launch a kernel at an instant that begins later."""
        self.kernel(name, start, end, self.hip("hipLaunchKernel", at, at + 2, thread), thread)

    def copy(self, start: int, end: int) -> None:
        record = self._call("memory_copy", 3, 1, start, end, 9)
        record |= {"dst_agent_id": {"handle": 7001}, "src_agent_id": {"handle": 7000}, "bytes": 64}

    def mark(self, text: str, start: int, end: int) -> None:
        self._call("marker_api", 4, 0, start, end, 9)
        self.texts.append({"key": self.calls, "value": text})

    def entry(self) -> dict[str, Any]:
        kinds = {"HIP_RUNTIME_API": HIP, "RCCL_API": RCCL, "KERNEL_DISPATCH": ["DISPATCH"], "MEMORY_COPY": COPIES}
        return {
            "metadata": {"pid": 1, "init_time": 1, "fini_time": 2},
            "agents": [{"id": {"handle": handle}, "type": kind} for handle, kind in ((7000, 1), (7001, 2))],
            "strings": {
                "buffer_records": [{"kind": kind, "operations": names} for kind, names in kinds.items()],
                "marker_api": self.texts,
            },
            "kernel_symbols": [{"kernel_id": k, "formatted_kernel_name": name} for k, name in enumerate(KERNELS)],
            "buffer_records": self.buffers,
        }


def file(*processes: Process) -> bytes:
    return json.dumps({"rocprofiler-sdk-tool": [process.entry() for process in processes]}, indent=1).encode()


def read(*processes: Process, name: str = "out_rank1.json") -> list[Trace]:
    return list(rocprofv3.read(io.BytesIO(file(*processes)), name))


def spans(trace: Trace) -> list[tuple[int, int, int, str, int]]:
    s = trace.spans
    return [
        (int(s.start[k]), int(s.end[k]), int(s.kind[k]), trace.names[s.name[k]], int(s.launched[k]))
        for k in range(len(s))
    ]


def test_kernels_copies_and_calls_are_spans_in_order() -> None:
    process = Process()
    process.hip("hipStreamSynchronize", 60, 90)
    process.launch(KERNELS[0], 10, 30, 50)
    process.copy(20, 25)
    process.mark("ProfilerStep#3", 5, 95)
    (trace,) = read(process)
    assert spans(trace) == [
        (5, 95, ANNOTATION, "ProfilerStep#3", 5),
        (10, 12, RUNTIME, "hipLaunchKernel", 10),
        (20, 25, MEMCPY, "MEMORY_COPY_HOST_TO_DEVICE", 20),
        (30, 50, KERNEL, KERNELS[0], 10),
        (60, 90, SYNC, "hipStreamSynchronize", 60),
    ]
    mark, launch, copy, kernel, sync = trace.spans.lane
    assert mark == launch == sync and len({launch, copy, kernel}) == 3
    assert trace.steps == (Step(3, 5, 95),)
    assert (trace.rank, trace.device, trace.unix, trace.calls) == (1, "hip", False, ())


def test_a_kernel_is_what_the_call_that_launched_it_asked_for() -> None:
    process = Process()
    process.rccl("ncclCommInitRank", 0, 5)
    process.rccl("ncclAllReduce", 10, 20)
    process.launch(GENERIC, 12, 40, 90)
    process.launch(GENERIC, 30, 100, 110)  # between calls: nothing tells
    (trace,) = read(process)
    first, second = trace.calls
    assert (first.operation, first.evidence, first.enqueued, first.start, first.end) == (
        "allreduce",
        BY_ARGUMENTS,
        12,
        40,
        90,
    )
    assert (second.operation, second.evidence) == ("unknown", BY_NAME)
    kernels = [k for k in range(len(trace.spans)) if trace.spans.kind[k] == KERNEL]
    assert [int(trace.spans.call[k]) for k in kernels] == [0, 1]
    assert sorted(map(int, trace.spans.call)) == [-1] * (len(trace.spans) - 2) + [0, 1]


def test_another_threads_call_is_not_what_a_kernel_carries_out() -> None:
    process = Process()
    process.rccl("ncclAllReduce", 10, 20, thread=8)
    process.launch(GENERIC, 12, 40, 90, thread=9)
    assert read(process)[0].calls[0].operation == "unknown"


@pytest.mark.parametrize(
    ("names", "operation", "coalesced"),
    [
        (["ncclAllReduce"], "allreduce", False),
        (["ncclAllReduce", "ncclAllReduce"], "allreduce", True),
        (["ncclSend", "ncclRecv"], "sendrecv", True),
        (["ncclSend"], "send", False),
        (["ncclAllReduce", "ncclSend"], "unknown", True),
    ],
)
def test_a_group_is_launched_by_its_end(names: list[str], operation: str, coalesced: bool) -> None:
    process = Process()
    process.rccl("ncclAllReduce", 1, 5)  # of before: no part of it
    process.rccl("ncclGroupStart", 10, 11)
    process.rccl("ncclGroupStart", 12, 13)
    for k, name in enumerate(names):
        process.rccl(name, 14 + 2 * k, 15 + 2 * k)
    process.rccl("ncclGroupEnd", 30, 31)
    process.rccl("ncclGroupEnd", 40, 50)
    process.launch(GENERIC, 45, 60, 70)
    (call,) = read(process)[0].calls
    assert (call.operation, call.coalesced) == (operation, coalesced)


def test_names_tell_where_nothing_was_recorded_of_rccl() -> None:
    process = Process()
    process.kernel(RING, 40, 90, correlation=77)
    process.kernel(GENERIC, 100, 190, correlation=78, queue=2)
    (trace,) = read(process)
    first, second = trace.calls
    assert (first.operation, first.evidence) == ("allreduce", BY_NAME)
    assert (second.operation, second.enqueued) == ("unknown", 100)
    assert trace.spans.lane[0] != trace.spans.lane[1]
    assert any("add --rccl-trace --hip-trace" in note for note in trace.notes)


def test_processes_are_traces_whose_ranks_a_name_does_not_tell() -> None:
    both = [Process(), Process()]
    for k, process in enumerate(both):
        process.copy(10, 20 + k)
    traces = read(*both)
    assert [trace.rank for trace in traces] == [None, None]
    assert [spans(trace)[0][1] for trace in traces] == [20, 21]
    assert all("several processes" in trace.notes[0] for trace in traces)


@pytest.mark.parametrize(
    ("name", "rank"), [("d/rank12_results.json", 12), ("4711_results.json", None), ("d/4711.json", None)]
)
def test_a_process_number_in_a_name_is_no_rank(name: str, rank: int | None) -> None:
    process = Process()
    process.copy(10, 20)
    assert read(process, name=name)[0].rank == rank


def test_names_that_are_not_there_are_not_invented() -> None:
    process = Process()
    process.launch(KERNELS[0], 10, 30, 50)
    entry = process.entry()
    entry["strings"] = entry["kernel_symbols"] = None
    (trace,) = rocprofv3.read(io.BytesIO(json.dumps({"rocprofiler-sdk-tool": entry}).encode()), "results.json")
    assert trace.names == ("operation 0 of kind 0", "a kernel without a name")


@pytest.mark.parametrize(
    "broken",
    [
        None,
        {},
        {"start_timestamp": 20, "end_timestamp": 10},
        {"start_timestamp": -1, "end_timestamp": 10},
        {"start_timestamp": 1, "end_timestamp": 1 << 64},
        {"start_timestamp": 1, "end_timestamp": 2, "thread_id": "nine"},
    ],
)
@pytest.mark.parametrize("buffer", ["kernel_dispatch", "hip_api", "rccl_api", "memory_copy"])
def test_records_that_nobody_wrote_are_left_out_and_counted(broken: Any, buffer: str) -> None:
    process = Process()
    process.copy(10, 20)
    process.buffers[buffer].append(broken)
    (trace,) = read(process)
    assert len(trace.spans) == 1
    assert any("records are not as rocprofv3 writes them" in note for note in trace.notes)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"rocprofiler-sdk-tool": []}', "holds no kernel, copy or call"),
        (b'{"rocprofiler-sdk-tool": [1, {}]}', "holds no kernel, copy or call"),
        (b'{"rocprofiler-sdk-tool": [{"metadata"', "is not whole"),
        (b'{"rocprofiler-sdk-tool": ' + b"[" * 100_000, "is not whole"),
    ],
)
def test_files_with_nothing_in_them_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rocprofv3.read(io.BytesIO(data), "results.json")


def test_names_that_are_no_text_of_this_encoding_are_read() -> None:
    process = Process()
    process.launch(KERNELS[0], 10, 30, 50)
    (trace,) = rocprofv3.read(io.BytesIO(file(process).replace(b"gemm", b"ge\x8dm")), "results.json")
    assert any("ge\ufffdm" in name for name in trace.names)


WHOLE = Process()
WHOLE.rccl("ncclAllReduce", 10, 20)
WHOLE.launch(GENERIC, 12, 40, 90)
WHOLE.copy(10, 20)
JUNK = (
    st.none()
    | st.integers()
    | st.text(max_size=3)
    | st.lists(st.none(), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.none())
)


@settings(max_examples=50)
@given(st.data())
def test_any_value_in_place_of_another_is_read_or_refused(data: st.DataObject) -> None:
    value = json.loads(file(WHOLE))
    place = value
    while isinstance(place, dict | list) and place:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or data.draw(st.integers(0, 5)) == 0:
            place[key] = data.draw(JUNK)
            break
        place = place[key]
    try:
        traces = rocprofv3.read(io.BytesIO(json.dumps(value).encode()), "results.json")
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert all((trace.spans.end >= trace.spans.start).all() for trace in traces)


def test_the_files_are_recognised() -> None:
    assert rocprofv3.recognise(file(WHOLE)[:200])
    assert not rocprofv3.recognise(b'{"traceEvents": []}')
