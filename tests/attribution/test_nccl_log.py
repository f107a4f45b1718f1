"""Logs of NCCL and RCCL: which rank called what."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench.attribution.readers import nccl_log
from commbench.attribution.reading import read_file
from commbench.attribution.trace import Trace
from commbench.errors import UsageError

CASES = Path(os.environ.get("COMMBENCH_CASES") or Path(__file__).resolve().parents[3] / "shared" / "cases")


def line(rank: int, message: str, before: str = "") -> str:
    """A line of a rank, whose process and device have its number."""
    return f"{before}node-{rank // 2}:{100 + rank}:{200 + rank} [{rank % 2}] NCCL INFO {message}\n"


def joined(
    rank: int, ranks: int, pointer: str = "0xa0", name: str = "commId 0xc1 ", prefix: str = "ncclCommInitRank "
) -> str:
    return f"{prefix}comm {pointer} rank {rank} nranks {ranks} cudaDev 0 nvmlDev 0 busId 1000 {name}- Init COMPLETE"


def called(
    name: str = "AllReduce", count: int = 8, ranks: int = 2, pointer: str = "0xa0", root: int = 0, dtype: int = 7
) -> str:
    return (
        f"{name}: opCount 1a sendbuff 0x7f01 recvbuff (nil) count {count} datatype {dtype} op 0 root {root} "
        f"comm {pointer} [nranks={ranks}] stream 0x5"
    )


def read(*lines: str) -> list[Trace]:
    return list(nccl_log.read(io.BytesIO("".join(lines).encode()), "nccl.log"))


def test_the_ranks_of_one_log_are_told_apart() -> None:
    lines = [line(rank, joined(rank, 4)) for rank in range(4)]
    lines += [line(rank, called(ranks=4, count=10 + step)) for step in range(3) for rank in (3, 1, 0, 2)]
    traces = read("starting\n", *lines, "node-0: done\n")
    assert [(trace.rank, trace.ranks, trace.host) for trace in traces] == [
        (0, 4, "node-0"),
        (1, 4, "node-0"),
        (2, 4, "node-1"),
        (3, 4, "node-1"),
    ]
    for trace in traces:
        assert [call.elements_in for call in trace.calls] == [10, 11, 12]
        assert {(call.operation, call.group, call.group_name, call.dtype) for call in trace.calls} == {
            ("allreduce", (0, 1, 2, 3), "0xc1", "float32")
        }
        assert {(call.arrival, call.sequence) for call in trace.calls} == {(None, None)}
        assert any("no times" in note for note in trace.notes)


@pytest.mark.parametrize(
    "written",
    [
        "comm 0xa0 rank {} nranks 2 cudaDev 0 nvmlDev 0 - Init COMPLETE",  # 2.3
        "comm 0xa0 rank {} nranks 2 cudaDev 2 busId 201c0 - Init COMPLETE",  # 2.4
        "ncclCommInitRank comm 0xa0 rank {} nranks 2 cudaDev 1 nvmlDev 1 busId 16000 commId 0xb3609cbb - Init START",
        "ncclCommSplit comm 0xa0 rank {} nranks 2 cudaDev 0 busId 1 parent 0xb0 splitCount 1 color 0 key 0- Init START",
        "comm 0xa0 rank {} nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0",
        "comm 0xa0 rank {} nranks 2 cudaDev 0 busId c1000 localSize 8 used 5693 bytes on core 2 - Init COMPLETE",
    ],
)
@pytest.mark.parametrize("before", ["", "[1,0]<stdout>:", "3: ", "[1] ", "[2026-05-05 06:16:47] "])
def test_lines_of_all_years_and_launchers(written: str, before: str) -> None:
    lines = [line(rank, text, before) for rank in (0, 1) for text in (written.format(rank), called())]
    assert [(trace.rank, trace.calls[0].group) for trace in read(*lines)] == [(0, (0, 1)), (1, (0, 1))]


def test_rccl_says_the_rank_beside_the_call() -> None:
    lines = [line(rank, f"{called()} task 1 globalrank {rank}") for rank in (1, 0)]
    assert [(trace.rank, trace.ranks) for trace in read(*lines)] == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("name", "operation", "given", "got"),
    [  # nccl.h: of 4 ranks, 8 elements as NCCL counts
        ("AllReduce", "allreduce", 8, 8),
        ("AllGather", "allgather", 8, 32),
        ("ReduceScatter", "reducescatter", 32, 8),
        ("AlltoAll", "alltoall", 32, 32),
        ("Broadcast", "broadcast", 8, 8),
        ("Send", "send", 8, None),
        ("Recv", "recv", None, 8),
        ("Gather", "gather", 8, None),
        ("Scatter", "scatter", None, 8),
    ],
)
def test_counts_are_those_of_a_rank(name: str, operation: str, given: int | None, got: int | None) -> None:
    ((call,),) = [trace.calls for trace in read(line(1, joined(1, 4)), line(1, called(name, ranks=4)))]
    assert (call.operation, call.elements_in, call.elements_out) == (operation, given, got)


@pytest.mark.parametrize(
    ("number", "dtype"), [(0, "int8"), (6, "float16"), (9, "bfloat16"), (11, "float8_e5m2"), (99, "")]
)
def test_types_have_our_names(number: int, dtype: str) -> None:
    assert read(line(0, joined(0, 2)), line(0, called(dtype=number)))[0].calls[0].dtype == dtype


def test_smaller_communicators_have_the_ranks_of_the_job() -> None:
    """Ranks 1 and 3 make a pair, in the other order; whoever is root and peer there is told by ranks of the job."""
    lines = [line(rank, joined(rank, 4)) for rank in range(4)]
    lines += [line(rank, joined(local, 2, "0xb0", "commId 0xd2 ")) for local, rank in enumerate((3, 1))]
    lines += [line(rank, called("Broadcast", ranks=2, pointer="0xb0", root=1)) for rank in (1, 3)]
    lines += [line(3, called("Send", ranks=2, pointer="0xb0", root=1))]
    one, three = read(*lines)
    assert (one.rank, three.rank) == (1, 3)
    assert {call.group for call in (*one.calls, *three.calls)} == {(3, 1)}
    assert [call.root for call in one.calls] == [1]
    assert [(call.root, call.peer) for call in three.calls] == [(1, None), (None, 1)]


def test_of_one_ranks_log_the_members_of_smaller_communicators_are_not_known() -> None:
    (trace,) = read(
        line(1, joined(1, 4)),
        line(1, joined(0, 2, "0xb0", "commId 0xd2 ")),
        line(1, called("Broadcast", ranks=2, pointer="0xb0", root=1)),
    )
    (call,) = trace.calls
    assert (trace.rank, call.group, call.group_name, call.group_size, call.root) == (1, None, "0xd2", 2, None)
    assert any("does not hold who is in them" in note for note in trace.notes)


def test_a_later_communicator_at_the_same_address_is_another_one() -> None:
    lines = [line(0, text) for text in (joined(0, 2), called(), joined(0, 2, name="commId 0xff "), called())]
    assert [call.group_name for call in read(*lines)[0].calls] == ["0xc1", "0xff"]


def test_ranks_that_two_processes_claim_are_not_believed() -> None:
    """Two groups of two and none of four: the largest communicators are parts of the job."""
    lines = [line(rank, joined(rank % 2, 2, name=f"commId 0x{rank // 2} ")) for rank in range(4)]
    lines += [line(rank, called()) for rank in range(4)]
    traces = read(*lines)
    assert [trace.rank for trace in traces] == [None] * 4
    assert all(any("no communicator spans the job" in note for note in trace.notes) for trace in traces)


def test_calls_without_lines_of_communicators_are_kept_without_a_rank() -> None:
    (trace,) = read(line(0, called()))
    assert (trace.rank, len(trace.calls), trace.calls[0].group) == (None, 1, None)
    assert any("NCCL_DEBUG_SUBSYS=INIT,COLL" in note for note in trace.notes)


def test_times_are_taken_where_they_are_finer_than_a_second() -> None:
    stamps = ("[2026-05-05 06:16:47.25] ", "[2026-05-05 06:16:47.250001] ")
    (trace,) = read(line(0, joined(0, 2)), *(line(0, called(), stamp) for stamp in stamps))
    first, second = (call.arrival for call in trace.calls)
    assert first is not None and second is not None and second - first == 1000
    assert first % 10**9 == 250_000_000 and not trace.unix


@pytest.mark.parametrize("stamp", ["[2026-05-05 06:16:47] ", "[2026-02-31 06:16:47.5] "])
def test_times_that_mean_nothing_are_left_out(stamp: str) -> None:
    (trace,) = read(line(0, joined(0, 2)), line(0, called(), stamp))
    assert trace.calls[0].arrival is None
    assert any("whole seconds" in note for note in trace.notes) == ("." not in stamp)


def test_collectives_in_another_form_are_counted() -> None:
    unknown = line(0, "AllReduce: opCount 4a sendbuff 0x7f recvbuff 0x7f count 65536 datatype ncclFloat32 nchannels 2")
    (trace,) = read(line(0, joined(0, 2)), line(0, called()), unknown)
    assert len(trace.calls) == 1
    assert any(note.startswith("1 lines look like collectives") for note in trace.notes)


def test_operations_that_are_not_known_are_named() -> None:
    (trace,) = read(line(0, joined(0, 2)), line(0, called("PutSignal")))
    assert trace.calls[0].operation == "unknown"
    assert "operations not known here: PutSignal" in trace.notes


@pytest.mark.skipif(not (CASES / "nccl_tests").exists(), reason=f"the public logs are not here ({CASES})")
def test_a_public_log_without_collectives_says_what_to_set() -> None:
    with pytest.raises(
        UsageError, match=r"without a collective in it: set NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL"
    ):
        read_file(CASES / "nccl_tests" / "aws_p4d_2node_tagged_ncclinfo.log")


def test_numbers_of_any_size_take_no_memory() -> None:
    (trace,) = read(
        line(0, "comm 0xa0 rank 1 nranks 999999999 busId 1"), line(0, called(ranks=999_999_999, count=10**17))
    )
    assert (trace.rank, trace.calls[0].group) == (None, None)


def test_lines_of_any_length_take_no_time_that_grows_with_its_square() -> None:
    long = "a" * 60_000
    (trace,) = read(*[f"{long} NCCL INFO {long}\n"] * 20, line(0, joined(0, 2)), line(0, called()))
    assert len(trace.calls) == 1


WHOLE = "".join(line(rank, text) for rank in (0, 1) for text in (joined(rank, 2), called(), called("Send", root=1)))


@settings(max_examples=50)
@given(st.integers(0, len(WHOLE)), st.integers(0, len(WHOLE)), st.binary(max_size=8))
def test_a_cut_or_changed_log_is_read_or_refused(cut: int, place: int, change: bytes) -> None:
    data = WHOLE.encode()[:cut]
    try:
        traces = nccl_log.read(io.BytesIO(data[:place] + change + data[place + len(change) :]), "nccl.log")
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert 1 <= sum(len(trace.calls) for trace in traces) <= 4


def test_logs_are_recognised() -> None:
    assert nccl_log.recognise(b"starting\n" + line(0, called()).encode())
    assert not nccl_log.recognise(b'{"traceEvents": [{"name": " NCCL INFO "}]}')
