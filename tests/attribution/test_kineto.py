"""Traces of PyTorch's profiler: what is kept of them, which collectives are in them, and what is wrong with them."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench.attribution.readers import _json_events
from commbench.attribution.reading import read, read_file
from commbench.attribution.trace import (
    ANNOTATION,
    BY_ARGUMENTS,
    BY_NAME,
    DEVICE_KINDS,
    KERNEL,
    MEMCPY,
    MEMSET,
    OPERATOR,
    RUNTIME,
    SYNC,
    UNKNOWN,
    Call,
    Operator,
    Step,
    Trace,
)
from commbench.errors import UsageError
from tests.attribution.kineto_traces import (
    HOST,
    WORKER,
    asked,
    collective,
    gloo,
    info,
    kernel,
    read_events,
    read_text,
    span,
    text,
)

CASES = Path(os.environ.get("COMMBENCH_CASES") or Path(__file__).resolve().parents[3] / "shared" / "cases")
public = pytest.mark.skipif(not (CASES / "kineto").exists(), reason=f"the public traces are not here ({CASES})")

ALLREDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GENERIC = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"


def spans(trace: Trace, *kinds: int) -> list[tuple[str, int, int]]:
    chosen = np.isin(trace.spans.kind, kinds)
    columns = (trace.spans.name, trace.spans.start, trace.spans.end)
    return [(trace.names[name], start, end) for name, start, end in zip(*(one[chosen] for one in columns), strict=True)]


# What is kept.

MIXED = [
    span("user_annotation", "ProfilerStep#3", 0, 100),
    span("cpu_op", "aten::linear", 1, 20, External_id=1, Input_Dims=[[2, 3], []], Input_type=["float", "Scalar"]),
    span("cpu_op", "aten::mm", 2, 15, External_id=2, Input_Dims=[[2, 3], [3, 4]], Input_type=["float", "float"]),
    span("cuda_runtime", "cudaLaunchKernel", 4, 3, correlation=70, External_id=2),
    span("kernel", "sgemm", 9, 30.5, 7, 0, correlation=70, External_id=2),
    span("gpu_memcpy", "Memcpy HtoD", 40, 5, 7, 0, correlation=71),
    span("gpu_memset", "Memset", 46, 1, 7, 0, correlation=72),
    span("cuda_driver", "cuLaunchKernelEx", 39, 1, correlation=71),
    span("cuda_runtime", "cudaStreamSynchronize", 50, 9, correlation=73),
    span("gpu_user_annotation", "ProfilerStep#3", 9, 50, 7, 0),
    span("python_function", "train.py(3): step", 0, 90),
    {"ph": "f", "id": 70, "pid": 0, "tid": 7, "ts": 9, "cat": "ac2g", "name": "ac2g"},
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
    span("user_annotation", "ProfilerStep#4", 100, 60.25),
]


def test_spans_are_sorted_in_ns_and_have_their_kinds(tmp_path: Path) -> None:
    trace = read_events(tmp_path, reversed(MIXED))
    kinds = [OPERATOR, RUNTIME, KERNEL, MEMCPY, MEMSET, SYNC, ANNOTATION]
    assert {kind: [name for name, _, _ in spans(trace, kind)] for kind in kinds} == {
        OPERATOR: ["aten::linear", "aten::mm"],
        RUNTIME: ["cudaLaunchKernel", "cuLaunchKernelEx"],
        KERNEL: ["sgemm"],
        MEMCPY: ["Memcpy HtoD"],
        MEMSET: ["Memset"],
        SYNC: ["cudaStreamSynchronize"],
        ANNOTATION: ["ProfilerStep#3", "ProfilerStep#4"],
    }
    assert spans(trace, KERNEL) == [("sgemm", 9_000, 39_500)]
    assert (np.diff(trace.spans.start) >= 0).all()
    assert trace.steps == (Step(3, 0, 100_000), Step(4, 100_000, 160_250))
    assert (trace.device, trace.unix, trace.rank) == ("cuda", False, None)


def test_a_step_has_a_number_of_its_own_but_may_be_marked_on_several_threads(tmp_path: Path) -> None:
    marks = [("ProfilerStep#3", 0, HOST), ("ProfilerStep#3", 5, WORKER), ("ProfilerStep#3", 100, HOST)]
    kernels = kernel("sgemm", 9, 30, 1)
    trace = read_events(tmp_path, [*kernels, *(span("user_annotation", name, at, 90, tid) for name, at, tid in marks)])
    assert trace.steps == (Step(3, 0, 90_000),)
    assert [note[:40] for note in trace.notes if "number of a step" in note] == [
        "1 marks have the number of a step before"
    ]


def test_work_knows_its_launch_and_its_operator(tmp_path: Path) -> None:
    trace = read_events(tmp_path, MIXED)
    at = {name: place for place, name in enumerate(trace.names[name] for name in trace.spans.name)}
    launched = trace.spans.launched
    assert [launched[at[name]] for name in ("sgemm", "Memcpy HtoD", "Memset")] == [4_000, 39_000, 46_000]
    mm = Operator("aten::mm", ((2, 3), (3, 4)), ("float", "float"))
    assert trace.operators == (Operator("aten::linear", ((2, 3), ()), ("float", "Scalar")), mm)
    assert [trace.operators[trace.spans.operator[at[name]]] for name in ("aten::mm", "sgemm")] == [mm, mm]
    assert trace.spans.operator[at["Memset"]] == -1


def test_work_that_seems_to_begin_before_its_launch_was_launched_when_it_began(tmp_path: Path) -> None:
    """The clocks of host and device are some us apart."""
    events = [
        span("cuda_runtime", "cudaLaunchKernel", 12, 2, correlation=1),
        span("kernel", "sgemm", 10, 5, 7, 0, correlation=1),
        span("cpu_op", "record_param_comms", 21, 8, more=collective()),
        span("cuda_runtime", "cudaLaunchKernel", 23, 2, correlation=2),
        span("kernel", GENERIC, 20, 5, 20, 0, correlation=2),
    ]
    trace = read_events(tmp_path, events, distributedInfo=info())
    assert trace.spans.launched[trace.spans.kind == KERNEL].tolist() == [10_000, 20_000]
    assert [call.enqueued for call in trace.calls] == [21_000]


def test_in_old_traces_the_operator_is_the_innermost_around_the_launch(tmp_path: Path) -> None:
    events = [
        span("cpu_op", "outer", 0, 100, External_id=1),
        span("cpu_op", "first", 10, 10, External_id=2),
        span("cpu_op", "second", 30, 10, External_id=70),  # as the correlation of a kernel
        span("cpu_op", "elsewhere", 0, 200, 999, External_id=4),
        *kernel("in first", 20, 1, 70, **{"External id": 70}),
        *kernel("in outer", 30, 1, 71, **{"External id": 71}),
        *kernel("in second", 38, 1, 72, **{"External id": 72}),
        *kernel("in none", 150, 1, 73, **{"External id": 73}),
    ]
    trace = read_events(tmp_path, events)
    served = {
        trace.names[name]: trace.operators[operator].name if operator >= 0 else None
        for name, kind, operator in zip(trace.spans.name, trace.spans.kind, trace.spans.operator, strict=True)
        if kind == KERNEL
    }
    assert served == {"in first": "first", "in outer": "outer", "in second": "second", "in none": None}


@pytest.mark.parametrize(
    ("ts", "base", "start", "unix"),
    [
        (1_682_725_898_236_567, None, 1_682_725_898_236_567_000, True),  # 2023: whole us since 1970
        (4_458_676_522_690.655, 1_711_964_646_000_000_000, 1_716_423_322_522_690_655, True),
        (4_458_676_522_690.655, None, 4_458_676_522_690_655, False),
        (1_682_725_898_236_567, 1_711_964_646_000_000_000, 1_682_725_898_236_567_000, True),
        (-5.5, "nonsense", -5_500, False),
    ],
)
def test_times_are_since_1970_where_the_file_tells(
    tmp_path: Path, ts: float, base: Any, start: int, unix: bool
) -> None:
    keys = {} if base is None else {"baseTimeNanoseconds": base}
    trace = read_events(tmp_path, [span("cpu_op", "aten::mm", ts, 1)], **keys)
    assert trace.spans.start.tolist() == [start]
    assert trace.unix == unix


@pytest.mark.parametrize("ts", [1e300, 5e15, 1.2e15, -1e16])
def test_one_broken_time_leaves_the_others_where_they_are(tmp_path: Path, ts: float) -> None:
    events = [span("cpu_op", "aten::mm", 10.0 * place, 1) for place in range(3)]
    trace = read_events(tmp_path, [*events, span("cpu_op", "aten::mm", ts, 1)], baseTimeNanoseconds=10**18)
    assert trace.unix
    assert trace.spans.start[:3].tolist() == [10**18, 10**18 + 10_000, 10**18 + 20_000]


def layouts() -> Iterator[tuple[str, str]]:
    """One trace in all the shapes that a file can have."""
    whole = json.loads(text(MIXED, distributedInfo=info(1)))
    events = whole.pop("traceEvents")
    yield "compact", json.dumps({**whole, "traceEvents": events}, separators=(",", ":"))
    yield "indented", json.dumps({**whole, "traceEvents": events}, indent=2)
    yield "blank line first", "\n" + json.dumps({**whole, "traceEvents": events})
    yield "byte order mark", "\ufeff" + json.dumps({**whole, "traceEvents": events})
    yield "events first", json.dumps({"traceEvents": events, **whole})
    yield "keys around", json.dumps({"a": [{"b": 1}, {"c": 2}], "traceEvents": events, **whole, "z": [{}, {"d": []}]})
    yield "comma at the end", json.dumps({**whole, "traceEvents": events})[:-2] + ",]}"
    yield (
        "events in two lists",
        "{"
        + json.dumps(whole)[1:-1]
        + "".join(f', "traceEvents": {json.dumps(part)}' for part in (events[:5], events[5:]))
        + "}",
    )


LAYOUTS = dict(layouts())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_shape_of_the_file_changes_nothing(tmp_path: Path, layout: str) -> None:
    content = LAYOUTS[layout]
    expected = read_events(tmp_path, MIXED, distributedInfo=info(1))
    trace = read_text(tmp_path, content)
    assert (trace.rank, trace.ranks, trace.steps) == (1, 2, expected.steps)
    assert spans(trace, *range(7)) == spans(expected, *range(7))
    assert not [note for note in trace.notes if "breaks off" in note or "no JSON" in note]


def test_a_list_of_events_alone_is_a_trace(tmp_path: Path) -> None:
    assert spans(read_text(tmp_path, json.dumps(MIXED)), *range(7)) == spans(read_events(tmp_path, MIXED), *range(7))


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
def test_blocks_of_any_size_give_the_same(tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = 'a "name", with {braces}, [brackets], }, {"ph": "X"}, and an end \\'
    events = [*MIXED, span("cpu_op", odd, 200, 1, note=[{"a": 1}, {"b": [{}, {}]}]), span("cpu_op", "é", 201, 1)]
    expected = read_events(tmp_path, events)
    monkeypatch.setattr("commbench.attribution.readers._json_events._BLOCK", block)
    trace = read_events(tmp_path, events)
    assert odd in trace.names
    assert spans(trace, *range(7)) == spans(expected, *range(7))
    assert trace.notes == expected.notes


@pytest.mark.parametrize(
    "content",
    [
        *LAYOUTS.values(),
        json.dumps(MIXED).replace("aten::", "a\tb::"),  # orjson refuses the rest
        json.dumps([*MIXED, span("cpu_op", "not a number", float("nan"), 1)]),
        json.dumps([*MIXED, span("cpu_op", "half of a pair: \ud800", 200, 1)]),
        json.dumps([*MIXED, span("cpu_op", "beyond 64 bits", 200, 1, Input_Dims=[[10**30, 3]], Input_type=["float"])]),
        json.dumps([*MIXED, span("cpu_op", "deep", 200, 1, note=0)]).replace(": 0}", f": {'[' * 1100}{']' * 1100}}}"),
    ],
    ids=[*LAYOUTS, "a tab", "NaN", "half of a pair", "beyond 64 bits", "deep"],
)
def test_with_and_without_orjson_a_file_says_the_same(
    tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("orjson")
    fast, slow = _json_events._WHOLE
    assert fast.__module__ == "orjson"
    found = []
    for decoders in [(fast, slow), (slow,)]:
        monkeypatch.setattr(_json_events, "_WHOLE", decoders)
        found.append(read_text(tmp_path, content))
    one, other = found
    assert (spans(one, *range(7)), one.names, one.notes) == (spans(other, *range(7)), other.names, other.notes)
    assert one.operators == other.operators
    assert len(one.spans) >= 10


# Collectives of devices.


def test_arguments_of_a_kernel_say_everything(tmp_path: Path) -> None:
    ranks = {"0": [0, 1, 2, 3], "5": [1, 3]}
    told = collective("_allgather_base", ranks=(1, 3), Seq=12)
    told |= {"Out msg nelems": 2000, "Process Group Name": "5", "Process Group Description": "tp"}
    events = [
        asked("_allgather_base_", 80, [[2000], [1000], []], ["", "", "", "False"], External_id=4),
        *kernel("ncclDevKernel_AllGather_RING_LL(x)", 86.25, 50, 9, 20, **told),
    ]
    trace = read_events(tmp_path, events, distributedInfo=info(1, ranks, size=4))
    assert trace.calls == (
        Call(
            "allgather",
            group=(1, 3),
            group_name="5 (tp)",
            group_size=2,
            sequence=12,
            elements_in=1000,
            elements_out=2000,
            dtype="bfloat16",
            enqueued=80_000,
            start=86_250,
            end=136_250,
            evidence=BY_ARGUMENTS,
            name="ncclDevKernel_AllGather_RING_LL(x)",
        ),
    )
    assert [trace.names[name] for name in trace.spans.name[trace.spans.call == 0]] == [trace.calls[0].name]


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "allreduce"),
        ("ncclKernel_AllReduce_TREE_LL_Sum_half(ncclWorkElem)", "allreduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "sendrecv"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float(x)", "reducescatter"),
        ("ncclDevKernel_Broadcast_RING_LL(x)", "broadcast"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL128(x)", "allreduce"),
        ("ncclDevKernel_AllReduce_Sum_f32_NVLS_TREE_SIMPLE(x)", "allreduce"),
        ("nccldevkernel_allgather(x)", "allgather"),
        (GENERIC, UNKNOWN),
        ("void vllm::cross_device_reduce_1stage<__half, 4>(x)", "allreduce"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(x)", "allreduce"),
        ("nvshmemi_alltoall_kernel(x)", "alltoall"),
        ("deep_ep::internode::dispatch<8>(x)", UNKNOWN),
    ],
)
def test_a_name_says_what(tmp_path: Path, name: str, operation: str) -> None:
    (call,) = read_events(tmp_path, kernel(name, 10, 5, 1)).calls
    assert (call.operation, call.evidence, call.group, call.name) == (operation, BY_NAME, None, name)


@pytest.mark.parametrize("name", ["void gather_kernel(x)", "reduce_kernel<512>", "broadcast_add", "scatter_elements"])
def test_kernels_that_compute_are_no_communication(tmp_path: Path, name: str) -> None:
    trace = read_events(tmp_path, kernel(name, 10, 5, 1))
    assert trace.calls == ()
    assert trace.notes[-1] == f"no collective recognised; names seen: {name}"


def test_a_kernel_without_arguments_has_them_from_the_host(tmp_path: Path) -> None:
    told = collective("broadcast", 64, Rank=1, Seq=7)
    described = span("cpu_op", "record_param_comms", 81, 8, External_id=5, more=told)
    trace = read_events(tmp_path, [described, *kernel(GENERIC, 90, 9, 1)], distributedInfo=info())
    linked = read_events(tmp_path, [described, *kernel(GENERIC, 400, 9, 1, **{"External id": 5})])
    for call in (*trace.calls, *linked.calls):
        assert (call.operation, call.sequence, call.root, call.elements_in) == ("broadcast", 7, 1, 64)
        assert (call.group, call.evidence) == ((0, 1), BY_ARGUMENTS)


def test_what_the_host_asked_for_is_believed_before_the_kernels_name(tmp_path: Path) -> None:
    """NCCL before 2.19 runs some all-to-alls and sums with a factor in kernels called SendRecv."""
    mark = span("user_annotation", "nccl:all_to_all", 84, 3, more={"Input Dims": [[384]], "Input type": ["long int"]})
    events = [asked("alltoall_base_", 83, [[384], [384], []], []), mark, *kernel("ncclKernel_SendRecv(x)", 90, 9, 1)]
    for one in events:
        one["dur"] = max(one.get("dur", 0), 4)
    (call,) = read_events(tmp_path, events).calls
    assert (call.operation, call.elements_in, call.elements_out, call.evidence) == ("alltoall", 384, 384, BY_NAME)
    assert call.enqueued == 83_000


def test_messages_have_their_peer(tmp_path: Path) -> None:
    sent = collective("send", 10, (4, 6), **{"Rank": 1, "Dst Rank": 6})
    received = collective("recv", 10, (4, 6), **{"Rank": 1, "Src Rank": 6})
    events = [
        *kernel("ncclDevKernel_SendRecv(x)", 10, 5, 1, **sent),
        *kernel("ncclDevKernel_SendRecv(x)", 30, 5, 2, **received),
    ]
    calls = read_events(tmp_path, events).calls
    assert [(call.operation, call.peer, call.root, call.group) for call in calls] == [
        ("send", 6, None, (4, 6)),
        ("recv", 6, None, (4, 6)),
    ]


@pytest.mark.parametrize(
    "more", [{"In split size": "[1, 2]", "Out split size": "[2, 1]"}, {"Collective name": "allreduce_coalesced"}]
)
def test_uneven_and_coalesced_ones_say_so(tmp_path: Path, more: dict[str, str]) -> None:
    (call,) = read_events(tmp_path, kernel(GENERIC, 10, 5, 1, **{**collective("all_to_all"), **more})).calls
    assert call.coalesced
    (plain,) = read_events(tmp_path, kernel(GENERIC, 10, 5, 1, **collective("all_to_all"))).calls
    assert (plain.operation, plain.coalesced) == ("alltoall", False)


def test_ranks_that_pytorch_cuts_off_are_found_elsewhere(tmp_path: Path) -> None:
    cut = "[" + ", ".join(map(str, range(0, 58, 2))) + ", ..., 62]"
    told = collective(ranks=range(0, 64, 2)) | {"Process Group Ranks": cut, "Process Group Name": "3"}
    even = tuple(range(0, 64, 2))
    by_name = read_events(tmp_path, kernel(GENERIC, 9, 1, 1, **told), distributedInfo=info(0, {"3": list(even)}, 64))
    strided = {"Global rank start": 0, "Global rank stride": 2}
    by_stride = read_events(tmp_path, kernel(GENERIC, 9, 1, 1, **told, **strided), distributedInfo=info(0, size=64))
    untold = read_events(tmp_path, kernel(GENERIC, 9, 1, 1, **told), distributedInfo=info(0, size=64))
    assert [trace.calls[0].group for trace in (by_name, by_stride, untold)] == [even, even, None]
    assert untold.calls[0].group_size == 32


def test_a_number_that_is_no_rank_makes_no_two_of_it(tmp_path: Path) -> None:
    told = collective(ranks=range(3)) | {"Process Group Ranks": "[0, 1, 99999999999]"}
    (call,) = read_events(tmp_path, kernel(GENERIC, 9, 1, 1, **told)).calls
    assert (call.group, call.group_size) == (None, 3)


def test_the_size_of_a_librarys_own_all_reduce_is_its_operators(tmp_path: Path) -> None:
    operator = span("cpu_op", "symm_mem::multimem_all_reduce_", 80, 9, External_id=4)
    operator["args"] |= {"Input Dims": [[16, 8], [], []], "Input type": ["c10::BFloat16", "", ""]}
    trace = read_events(tmp_path, [operator, *kernel("multimem_all_reduce_kernel<x>", 90, 9, 1, **{"External id": 4})])
    assert [(call.elements_in, call.dtype) for call in trace.calls] == [(128, "bfloat16")]


def test_hip_is_told_from_cuda_and_stream_0_counts(tmp_path: Path) -> None:
    launch = span("cuda_runtime", "hipExtModuleLaunchKernel", 1, 2, correlation=3)
    work = span("kernel", "Cijk_Ailk", 5, 9, 0, 2, correlation=3, more={"kind": "Dispatch Kernel"})
    trace = read_events(tmp_path, [launch, work, span("cuda_runtime", "hipDeviceSynchronize", 20, 5)])
    assert (trace.device, [name for name, _, _ in spans(trace, SYNC)]) == ("hip", ["hipDeviceSynchronize"])
    assert spans(trace, KERNEL) == [("Cijk_Ailk", 5_000, 14_000)]
    launch_on, work_on, sync_on = trace.spans.lane
    assert launch_on == sync_on != work_on


def test_without_device_work_what_was_asked_for_is_there_and_a_note(tmp_path: Path) -> None:
    mark = span("user_annotation", "nccl:all_reduce", 5, 3, more={"Input Dims": [[4, 2]], "Input type": ["float"]})
    trace = read_events(tmp_path, [asked("allreduce_", 4, [[[4, 2]], []], []), mark], distributedInfo=info())
    (call,) = trace.calls
    assert (call.operation, call.elements_in, call.start, call.end) == ("allreduce", 8, None, None)
    assert call.arrival == call.enqueued == 5_000
    assert trace.device == ""
    assert any("no device work" in note for note in trace.notes)


# Gloo on CPUs.


def test_spans_of_gloo_have_what_the_host_asked_for(tmp_path: Path) -> None:
    events = [
        asked("allreduce_", 10, [[[100]], [], []], ["", "", ""]),
        gloo("all_reduce", 30, 50, [[100]]),
        asked("broadcast_", 100, [[[7, 2]], [], [], []], ["", "", "2", "0"]),
        gloo("broadcast", 110, 5, [[7, 2]], WORKER + 1),
        asked("_allgather_base_", 120, [[300], [100], []], ["", "", ""]),
        gloo("all_gather", 125, 5, [[100]]),
        asked("_reduce_scatter_base_", 140, [[10], [30], []], ["", "", ""]),
        gloo("all_reduce", 145, 5, [[30]]),
        asked("reduce_scatter_", 160, [[[10]], [], []], ["", "", ""]),
        *(gloo("all_reduce", 165 + place, 9, [[10]], WORKER + place % 2) for place in range(3)),
        asked("alltoall_base_", 180, [[6], [6], [], [], []], ["", "", "", "[1, 2, 3]", "[2, 2, 2]"]),
        gloo("all_to_all", 185, 5, [[6]]),
        asked("barrier", 200, [[1], []], ["", ""]),
        gloo("barrier", 205, 5, []),
        asked("gather_", 220, [[], [[4]], [], []], ["[]", "", "", "1"]),
        gloo("gather", 225, 5, [[4]]),
        asked("scatter_", 240, [[[4]], [], [], []], ["", "[]", "", "0"]),
        gloo("scatter", 245, 5, []),
    ]
    trace = read_events(tmp_path, events, distributedInfo=info(0, size=3, backend="gloo"))
    assert [
        (call.operation, call.elements_in, call.elements_out, call.root, call.enqueued, call.start, call.end)
        for call in trace.calls
    ] == [
        ("allreduce", 100, 100, None, 10_000, 30_000, 80_000),
        ("broadcast", 14, 14, 2, 100_000, 110_000, 115_000),
        ("allgather", 100, 300, None, 120_000, 125_000, 130_000),
        ("reducescatter", 30, 10, None, 140_000, 145_000, 150_000),
        ("reducescatter", 30, 10, None, 160_000, 165_000, 176_000),
        ("alltoall", 6, 6, None, 180_000, 185_000, 190_000),
        ("barrier", None, None, None, 200_000, 205_000, 210_000),
        ("gather", 4, None, 1, 220_000, 225_000, 230_000),
        ("scatter", None, 4, 0, 240_000, 245_000, 250_000),
    ]
    assert {(call.group, call.group_name, call.group_size) for call in trace.calls} == {
        ((0, 1, 2), "0 (default_pg)", 3)
    }
    assert [call.coalesced for call in trace.calls].index(True) == 5
    assert trace.device == "cpu"
    counts = Counter(trace.spans.call.tolist())
    assert [counts[place] for place in range(9)] == [1, 1, 1, 1, 3, 1, 1, 1, 1]
    rows = trace.spans.call == 0
    assert trace.spans.launched[rows].tolist() == [10_000]


def test_a_request_that_failed_shifts_no_other(tmp_path: Path) -> None:
    """reduce_scatter_tensor of what does not divide leaves a request without a span."""
    starts = [(10, True), (100, False), (200, True), (300, True)]
    events = [asked("_reduce_scatter_base_", at, [[10], [30]], []) for at, _ in starts]
    events += [gloo("all_reduce", at + 5, 20, [[30]]) for at, worked in starts if worked]
    calls = read_events(tmp_path, events, distributedInfo=info(0, size=3, backend="gloo")).calls
    assert [(call.enqueued, call.start) for call in calls] == [(10_000, 15_000), (200_000, 205_000), (300_000, 305_000)]


def test_two_in_flight_keep_their_order(tmp_path: Path) -> None:
    events = [asked("allreduce_", at, [[[8]]], []) for at in (10, 12, 14)]
    events += [gloo("all_reduce", at, 50, [[8]], WORKER + place % 2) for place, at in enumerate((20, 21, 70))]
    calls = read_events(tmp_path, events, distributedInfo=info(backend="gloo")).calls
    assert [(call.enqueued, call.start) for call in calls] == [(10_000, 20_000), (12_000, 21_000), (14_000, 70_000)]


GROUPS = {"0": [0, 1, 2], "1": [0, 2], "2": [0, 1]}


def groups(folder: Path, used: list[tuple[int, Any]]) -> list[tuple[int, ...] | None]:
    """Which groups all-reduces on these threads are of, each with what its request tells besides."""
    events = []
    for place, (thread, request) in enumerate(used):
        at = 100 * place
        events += [request(at) if request else asked("allreduce_", at, [[[8]]], [])]
        name = "all_gather" if "gather" in events[-1]["name"] else "broadcast" if request else "all_reduce"
        events += [gloo(name, at + 5, 20, [[8]], thread)]
    return [call.group for call in read_events(folder, events, distributedInfo=info(0, GROUPS, 3, "gloo")).calls]


def test_threads_of_gloo_tell_the_group(tmp_path: Path) -> None:
    pairs = [(10, None), (11, None), (20, None), (21, None), (31, None), (30, None)]
    assert groups(tmp_path, pairs) == [(0, 1, 2), (0, 1, 2), (0, 2), (0, 2), (0, 1), (0, 1)]
    assert groups(tmp_path, [(10, None), (20, None), (30, None)]) == [None, None, None]  # of any two, one may be of two
    # An all-gather of three can only be of the first, and after it a pair and another one are the others.
    three = (10, lambda at: asked("_allgather_base_", at, [[24], [8]], []))
    two = (20, lambda at: asked("_allgather_base_", at, [[16], [8]], []))
    assert groups(tmp_path, [three, two, (21, None), (30, None)]) == [(0, 1, 2), (0, 2), (0, 2), (0, 1)]
    root = (10, lambda at: asked("broadcast_", at, [[[8]], [], []], ["", "", "2"]))
    assert groups(tmp_path, [root, (20, None), (21, None)])[0] == (0, 1, 2)


def test_groups_that_cannot_be_told_are_said(tmp_path: Path) -> None:
    trace = read_events(
        tmp_path,
        [asked("allreduce_", 0, [[[8]]], []), gloo("all_reduce", 5, 9, [[8]], 10)],
        distributedInfo=info(0, GROUPS, 3, "gloo"),
    )
    assert trace.calls[0].group is None
    assert trace.notes == ("of 1 operations on the CPU the trace does not tell the group",)


def test_messages_of_gloo_are_on_the_callers_thread(tmp_path: Path) -> None:
    def events(place: str) -> list[dict[str, Any]]:
        sent = asked("send", 10, [[[5]], [], [], []], ["", "", place, "0"])
        received = asked("recv_", 50, [[[5]], [], [], []], ["", "", place, "0"])
        return [sent, gloo("send", 11, 30, [[5]], HOST), received, gloo("recv", 51, 30, [[5]], HOST)]

    calls = read_events(tmp_path, events("1"), distributedInfo=info(0, size=2, backend="gloo")).calls
    assert [(call.operation, call.peer, call.group, call.elements_in, call.elements_out) for call in calls] == [
        ("send", 1, (0, 1), 5, None),
        ("recv", 1, (0, 1), None, 5),
    ]
    several = [read_events(tmp_path, events(place), distributedInfo=info(0, GROUPS, 3, "gloo")).calls for place in "12"]
    assert [[call.peer for call in calls] for calls in several] == [[None, None], [2, 2]]


# What is wrong with events.


def test_malformed_events_are_counted_and_leave_the_others(tmp_path: Path) -> None:
    good = span("cpu_op", "aten::add", 100, 5)
    bad: list[Any] = [
        span("cpu_op", "late", float("nan"), 1),
        span("cpu_op", "later", float("inf"), 1),
        span("cpu_op", "latest", 1e300, 1),
        {key: value for key, value in good.items() if key != "ts"},
        {key: value for key, value in good.items() if key != "name"},
        {**good, "ts": "soon"},
        {**good, "ts": [1]},
        {**good, "args": [1]},
        {**good, "name": ["aten::add"]},
        {**good, "cat": {}},
        7,
    ]
    backwards, endless, stringly = (
        {**good, "name": "backwards", "dur": -3},
        {**good, "name": "untimed", "dur": None},
        {**good, "name": "text", "ts": "120.5", "dur": "2"},
    )
    trace = read_events(tmp_path, [*bad, good, backwards, endless, stringly])
    assert sorted(spans(trace, OPERATOR)) == [
        ("aten::add", 100_000, 105_000),
        ("backwards", 100_000, 100_000),
        ("text", 120_500, 122_500),
        ("untimed", 100_000, 100_000),
    ]
    assert trace.notes[:3] == (
        "11 events are left out: they have no time, or are malformed",
        "1 events have a negative duration: taken as 0",
        "1 events have no duration: taken as 0",
    )


@pytest.mark.parametrize("key", ["ts", "dur"])
def test_a_list_in_place_of_the_only_number_is_no_number(tmp_path: Path, key: str) -> None:
    """Lists of one length would be a table to NumPy."""
    event = span("cpu_op", "aten::add", 100, 5)
    for value in ([], [1, 2]):
        refused_or_noted(tmp_path, text([{**event, key: value}]).encode())
        refused_or_noted(tmp_path, text([{**event, "args": {"correlation": value, "External id": value}}]).encode())


def test_a_duration_that_overflows_ends_where_the_next_launch_on_the_stream_begins(tmp_path: Path) -> None:
    events = [*kernel("a", 10, 2**32, 1), *kernel("b", 50, 10, 2), *kernel("other stream", 55, 100, 3, 8)]
    trace = read_events(tmp_path, events)
    assert spans(trace, KERNEL) == [("a", 10_000, 50_000), ("b", 50_000, 60_000), ("other stream", 55_000, 155_000)]
    assert trace.notes[0].startswith("1 spans reach far into the next one")


def test_kernels_of_one_graph_may_run_side_by_side(tmp_path: Path) -> None:
    launch = span("cuda_runtime", "cudaGraphLaunch", 0, 5, correlation=1)
    work = [span("kernel", name, at, 100, 7, 0, correlation=1) for name, at in (("a", 10), ("b", 20), ("c", 30))]
    trace = read_events(tmp_path, [launch, *work, *kernel("rounded", 129.5, 50, 2)])
    assert [(end - start) for _, start, end in spans(trace, KERNEL)] == [100_000, 100_000, 100_000, 50_000]
    assert trace.spans.launched[trace.spans.kind == KERNEL].tolist() == [0, 0, 0, 124_500]


def test_a_span_that_never_ends_is_cut_off(tmp_path: Path) -> None:
    trace = read_events(tmp_path, [span("cpu_op", "endless", 10, 1e17), span("cpu_op", "last", 500, 5)])
    assert spans(trace, OPERATOR) == [("endless", 10_000, 500_000), ("last", 500_000, 505_000)]
    assert "for days" in trace.notes[0]


def test_an_event_that_is_no_json_is_left_out_alone(tmp_path: Path) -> None:
    events = [json.dumps(span("cpu_op", f"op{place}", place, 1)) for place in range(5)]
    events[2] = events[2].replace('"op2"', '"C:\\users"')
    trace = read_text(tmp_path, '{"schemaVersion": 1, "traceEvents": [' + ",\n".join(events) + "]}")
    assert [name for name, _, _ in spans(trace, OPERATOR)] == ["op0", "op1", "op3", "op4"]
    assert trace.notes[0] == "1 events are no JSON: they are left out"


def test_a_rank_in_the_files_name_is_used_where_no_other_is(tmp_path: Path) -> None:
    trace = read_text(tmp_path, text(MIXED), "rank-34.Jul_15.json")
    assert trace.rank == 34
    assert "in its file's name" in trace.notes[0]
    assert read_text(tmp_path, text(MIXED, distributedInfo=info(1)), "rank-34.json").rank == 1


BROKEN = text(
    [
        *MIXED,
        *kernel(ALLREDUCE, 300, 40, 9, 20, **collective(Seq=3)),
        asked("allreduce_", 400, [[[100]], []], ["", "1"]),
        gloo("all_reduce", 410, 9, [[100]]),
    ],
    distributedInfo=info(),
    baseTimeNanoseconds=10**18,
)


def refused_or_noted(folder: Path, content: bytes) -> None:
    """A trace whose parts fit together, or an error of ours."""
    try:
        trace = read_text(folder, content)
    except UsageError:
        return
    columns = trace.spans
    assert (columns.start <= columns.end).all()
    assert (np.diff(columns.start) >= 0).all()
    assert (columns.launched <= columns.start).all()
    assert columns.name.max() < len(trace.names)
    assert columns.operator.max() < len(trace.operators) and columns.call.max() < len(trace.calls)
    for call in trace.calls:
        assert call.start is None or (call.end is not None and call.start <= call.end)
    assert "".join(trace.names).encode()


@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(st.integers(0, len(BROKEN)), st.integers(0, len(BROKEN)))
def test_cut_anywhere(tmp_path_factory: pytest.TempPathFactory, first: int, second: int) -> None:
    start, end = sorted((first, second))
    refused_or_noted(tmp_path_factory.getbasetemp(), (BROKEN[:start] + BROKEN[end:]).encode())


@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, len(BROKEN) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_bytes_changed_anywhere(tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]) -> None:
    content = bytearray(BROKEN.encode())
    for place, byte in changes:
        content[place] = byte
    refused_or_noted(tmp_path_factory.getbasetemp(), bytes(content))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=3) | st.just("[]"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=250, deadline=None, database=None, derandomize=True)
@given(st.integers(0, 10**6), VALUES)
def test_any_value_anywhere(tmp_path_factory: pytest.TempPathFactory, number: int, value: Any) -> None:
    whole = json.loads(BROKEN)
    places: list[tuple[Any, Any]] = []

    def walk(part: Any) -> None:
        for key, inner in part.items() if isinstance(part, dict) else enumerate(part):
            places.append((part, key))
            if isinstance(inner, dict | list):
                walk(inner)

    walk(whole)
    part, key = places[number % len(places)]
    part[key] = value
    refused_or_noted(tmp_path_factory.getbasetemp(), json.dumps(whole).encode())


def test_memory_is_a_part_of_the_file(tmp_path: Path) -> None:
    """40 MB in half of that, of which decoded at once it would take five times as much."""
    path = tmp_path / "large.json"
    events = [
        event
        for place in range(40)
        for event in (
            span(
                "cpu_op", "aten::mm", place, 1, External_id=place, Input_Dims=[[64, 64]] * 2, Input_type=["float"] * 2
            ),
            *kernel("sgemm", place, 1, place),
        )
    ]
    part = json.dumps(events, indent=2)[1:-1]
    with path.open("w") as out:
        out.write('{"schemaVersion": 1, "traceEvents": [' + part)
        for _ in range(40_000_000 // len(part)):
            out.write("," + part)
        out.write("]}")
    code = (
        "import resource, sys; from commbench.attribution.reading import read_file, readers; readers();"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; before = peak();"
        "trace = read_file(sys.argv[1])[0]; print(len(trace.spans), peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    count, grown = map(int, done.stdout.split())
    assert count == 40 * 3 * (40_000_000 // len(part) + 1)
    assert grown * 1024 < path.stat().st_size


# The public traces, with the values of their index.


def total(trace: Trace, word: str = "") -> tuple[int, Any]:
    """How many kernels have a word in their name, and their time in us."""
    lengths = [end - start for name, start, end in spans(trace, KERNEL) if word in name]
    return len(lengths), sum(lengths) / 1e3


def events_of(name: str) -> list[Any]:
    found: list[Any] = json.loads(gzip.decompress((CASES / "kineto" / name).read_bytes()))["traceEvents"]
    return found


@public
def test_the_trace_of_two_a100() -> None:
    name = "hta_nccl_data.json.gz"
    (trace,) = read([CASES / "kineto" / name])
    assert len(events_of(name)) == 40573
    assert total(trace) == (2700, pytest.approx(162532.3, abs=0.1))
    assert total(trace, "nccl") == (21, pytest.approx(46876.5, abs=0.1))
    assert Counter(call.operation for call in trace.calls) == {"allreduce": 15, "broadcast": 6}
    assert {(call.group, call.group_size, call.evidence) for call in trace.calls} == {((0, 1), 2, BY_ARGUMENTS)}
    reduced = [call for call in trace.calls if call.operation == "allreduce"]
    sizes = [(call.elements_in, call.dtype, (call.end or 0) - (call.start or 0)) for call in reduced]
    assert sizes[0] == (2049000, "float32", 3_306_963)
    (largest,) = [one for one in sizes if one[2] == 2_636_669]
    assert largest[0] == 6637568
    assert pytest.approx(10.07, abs=0.005) == largest[0] * 4 / largest[2]
    assert (trace.rank, trace.ranks, trace.device, trace.unix, trace.notes) == (0, 2, "cuda", True, ())
    assert [step.number for step in trace.steps] == [4, 5, 6]
    device = np.isin(trace.spans.kind, DEVICE_KINDS)
    assert device.sum() == 2700 + 960 + 114


@public
def test_the_trace_without_a_device() -> None:
    name = "hta_rank_non_gpu.json.gz"
    (trace,) = read([CASES / "kineto" / name])
    assert len(events_of(name)) == len(trace.spans) == 2467
    assert total(trace) == (0, 0)
    assert (trace.rank, trace.ranks, trace.device) == (0, None, "")
    assert any("no device work" in note for note in trace.notes)


@public
@pytest.mark.parametrize(("rank", "kernels", "us", "messages"), [(0, 1154, 606519, 396199), (1, 1104, 651026, 379053)])
def test_the_pair_of_a_job_of_128(rank: int, kernels: int, us: float, messages: float) -> None:
    (trace,) = read([CASES / "kineto" / f"hta_sampled_rank{rank}.json.gz"])
    assert (trace.rank, trace.ranks) == (rank, 128)
    assert total(trace) == (kernels, us)
    assert total(trace, "SendRecv") == (10, messages)
    assert len(trace.calls) == 10
    assert {(call.group, call.evidence) for call in trace.calls} == {(None, BY_NAME)}


@public
def test_the_eight_ranks_of_a_recommender(tmp_path: Path) -> None:
    with tarfile.open(CASES / "kineto" / "param_dlrm_kineto_8rank.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    traces = {trace.rank: trace for trace in read([tmp_path])}
    assert set(traces) == set(range(8))
    times = [5798, 11336, 3492, 9774, 6587, 6251, 3558, 1746]
    for rank, us in enumerate(times):
        assert total(traces[rank], "nccl") == (8, us)
        assert total(traces[rank], "SendRecv")[0] == 5
        assert Counter(call.operation for call in traces[rank].calls) == {"alltoall": 5, "allreduce": 3}
        assert traces[rank].ranks == 8


@public
def test_the_trace_of_b200() -> None:
    name = "tl_b200_eager.json.gz"
    (trace,) = read([CASES / "kineto" / name])
    assert total(trace) == (768, pytest.approx(10862.9, abs=0.05))
    assert total(trace, "multimem_all_reduce_kernel") == (73, pytest.approx(2119.5, abs=0.05))
    gathered = [call for call in trace.calls if "nccl" in call.name]
    assert [
        (call.operation, call.elements_in, call.elements_out, call.dtype, call.group_size) for call in gathered
    ] == [("allgather", 25136, 201088, "bfloat16", 8)]
    assert (gathered[0].end or 0) - (gathered[0].start or 0) == 21_953
    assert Counter(call.operation for call in trace.calls) == {"allreduce": 73, "allgather": 1}
    kept = Counter(event.get("cat") for event in events_of(name) if event["ph"] == "X")
    assert len(trace.spans) == sum(
        kept[kind] for kind in ("kernel", "gpu_memcpy", "cpu_op", "cuda_runtime", "cuda_driver", "user_annotation")
    )


@public
def test_a_table_is_no_trace() -> None:
    with pytest.raises(UsageError, match="no format that is known here"):
        read_file(CASES / "kineto" / "tl_coll_analysis_256thread.csv")
