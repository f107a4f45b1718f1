"""Dumps of the Flight Recorder: what they tell, and that nothing in them is ever carried out."""

from __future__ import annotations

import io
import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench.attribution.readers import flight_recorder
from commbench.attribution.reading import read_file
from commbench.attribution.trace import Call, Trace
from commbench.errors import UsageError

CASES = Path(os.environ.get("COMMBENCH_CASES") or Path(__file__).resolve().parents[3] / "shared" / "cases")
public = pytest.mark.skipif(not (CASES / "fr").exists(), reason=f"the public dumps are not here ({CASES})")


def entry(number: int = 1, name: str = "nccl:all_reduce", **changes: Any) -> dict[str, Any]:
    """An entry as PyTorch 2.9 writes it, the `number`-th of its group and kind."""
    between = "send" in name or "recv" in name
    return {
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 0 if between else number,
        "p2p_seq_id": number if between else 0,
        "op_id": number,
        "profiling_name": name,
        "time_created_ns": 1_700_000_000_000_000_000 + number,
        "input_sizes": [[4, 2]],
        "output_sizes": [[4, 2]],
        "input_dtypes": ["BFloat16"],
        "output_dtypes": ["BFloat16"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 600_000,
        "is_p2p": between,
        **changes,
    }


def dump(*entries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A dump of rank 2 of 4, which is in a pair with rank 3."""
    return {
        "version": "2.9",
        "nccl_version": "2.27.3",
        "pg_config": {
            "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
            "3": {"name": "3", "desc": "tensor", "ranks": "[2, 3]"},
        },
        "pg_status": {"0": {"last_enqueued_collective": 3}},
        "entries": list(entries),
        **changes,
    }


def read(value: Any, name: str = "dump", protocol: int = 2) -> Trace:
    (trace,) = flight_recorder.read(io.BytesIO(pickle.dumps(value, protocol)), name)
    return trace


def call(**changes: Any) -> Call:
    value = read(dump(entry(**changes)), "rank2").calls
    assert len(value) == 1
    return value[0]


@public
@pytest.mark.parametrize("form", ["__dump_fr_trace.pkl", "__dump_fr_trace_json.json"])
def test_the_ranks_of_a_public_run_agree(form: str) -> None:
    both = [read_file(CASES / "fr" / f"ok_rank{rank}{form}")[0] for rank in (0, 1)]
    assert [trace.rank for trace in both] == [0, 1]
    told = [[replace(call, enqueued=None) for call in trace.calls] for trace in both]
    assert told[0] == told[1]
    facts = [(c.operation, c.group_name, c.sequence, c.elements_in, c.elements_out, c.dtype) for c in told[0]]
    assert facts == [
        ("allreduce", "0 (default_pg)", 1, 4, 4, "float32"),
        ("allreduce", "0 (default_pg)", 2, 1024, 1024, "float32"),
        ("allreduce", "0 (default_pg)", 3, 262144, 262144, "float32"),
        ("allgather", "0 (default_pg)", 4, 8, 16, "float32"),
        ("allreduce", "1 (dp_pair)", 1, 333, 333, "float32"),
    ]
    for trace in both:
        assert trace.unix and {(c.start, c.end, c.duration) for c in trace.calls} == {(None, None, None)}
        skews = [a.enqueued - b.enqueued for a, b in zip(*(t.calls for t in both), strict=True)]
        assert max(map(abs, skews)) < 1e6  # 0.78 ms at most, in a run that was well


@public
def test_both_forms_of_a_dump_tell_the_same() -> None:
    pickled, parsed = (read_file(path)[0] for path in sorted((CASES / "fr").glob("ok_rank0*")))
    assert pickled.calls == parsed.calls and pickled.notes == parsed.notes


def test_a_rank_is_the_one_in_all_its_groups_whatever_the_file_is_called() -> None:
    config = {str(k): {"ranks": ranks} for k, ranks in enumerate(("[0, 1, 2, 3]", "[1, 3]", [2, 3]))}
    assert read(dump(entry(), pg_config=config), "_dump_0").rank == 3


def test_a_rank_is_told_by_its_sends_where_its_groups_have_more_in_common() -> None:
    trace = read(dump(entry(name="nccl:recv 1<-0", process_group=("3", "tensor"))), "_dump_0")
    assert (trace.rank, trace.ranks) == (3, 4)
    assert trace.calls[0].peer == 2  # of the job, not of the group


def test_the_name_of_a_file_is_the_last_resort() -> None:
    alone = dump(entry(), pg_config={"": {"name": "", "desc": "", "ranks": "[]"}})
    assert read(alone, "nccl_trace_rank_12").rank == 12
    assert read(alone, "folder7/_dump_3").rank == 3
    assert read(dump(entry()), "_dump_2").rank == 2
    for value, name in ((alone, "folder7/dump"), (dump(entry()), "_dump_0")):
        trace = read(value, name)
        assert trace.rank is None and any("rank" in note for note in trace.notes)


def test_the_times_at_which_a_thread_looked_are_no_times_of_the_call() -> None:
    late = {
        "time_discovered_started_ns": 1_700_000_000_200_000_000,
        "time_discovered_completed_ns": 1_700_000_000_200_000_001,
    }
    told = call(**late, duration_ms=1.25, state="completed", retired=True)
    assert (told.start, told.end, told.duration) == (None, None, 1_250_000)
    assert told.arrival == told.enqueued == 1_700_000_000_000_000_001


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("nccl:all_reduce", "allreduce"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("nccl:_all_gather_base", "allgather"),
        ("nccl:all_gather_into_tensor_coalesced", "allgather"),
        ("nccl:_reduce_scatter_base", "reducescatter"),
        ("nccl:all_to_allv", "alltoall"),
        ("nccl:_broadcast_oop", "broadcast"),
        ("gloo:reduce", "reduce"),
        ("gloo:scatter", "scatter"),
        ("xccl:something_new", "unknown"),
    ],
)
def test_operations_have_our_names(name: str, operation: str) -> None:
    assert call(name=name).operation == operation
    assert call(name=name).name == name


def test_a_message_has_its_peer_and_no_number_that_the_peer_does_not_have() -> None:
    sent, received = (call(name=f"nccl:{word}") for word in ("send 2->0", "recv 2<-1"))
    assert (sent.operation, sent.peer, sent.sequence) == ("send", 0, None)
    assert (received.operation, received.peer, received.sequence) == ("recv", 1, None)


def test_collectives_launched_as_one_are_one_call() -> None:
    several = [entry(5, input_sizes=[[n]], output_sizes=[[n]], record_id=n) for n in (10, 20)]
    wrapper = entry(
        5, "nccl:coalesced", input_sizes=[], output_sizes=[], input_dtypes=[], output_dtypes=[], duration_ms=3.0
    )
    trace = read(dump(*several, wrapper, entry(6)), "rank2")
    first, second = trace.calls
    assert first.coalesced and not second.coalesced
    assert (first.operation, first.elements_in, first.sequence, first.duration) == ("allreduce", 30, 5, 3_000_000)


def test_messages_launched_as_one_keep_their_peers() -> None:
    several = [
        entry(1, "nccl:send 2->3"),
        entry(1, "nccl:recv 2<-1"),
        entry(1, "nccl:coalesced", is_p2p=True, p2p_seq_id=1),
    ]
    assert [(c.operation, c.peer, c.coalesced) for c in read(dump(*several), "rank2").calls] == [
        ("send", 3, True),
        ("recv", 1, True),
    ]


def test_calls_that_the_ring_lost_are_said_to_be() -> None:
    trace = read(dump(entry(41), entry(42)))
    assert "the 40 calls before these were overwritten: set a larger TORCH_FR_BUFFER_SIZE" in trace.notes


def test_a_dump_without_calls_says_so() -> None:
    empty = dump()
    del empty["entries"]  # as PyTorch writes it
    (trace,) = flight_recorder.read(io.BytesIO(json.dumps(empty).encode()), "rank1.json")
    assert trace.calls == () and any("holds no call" in note for note in trace.notes)


@pytest.mark.parametrize(
    "broken",
    [
        None,
        {},
        entry(time_created_ns=-1),
        entry(time_created_ns=1 << 70),
        entry(profiling_name=["nccl:all_reduce"]),
        entry(process_group="0"),
        entry(input_sizes=[[-4]]),
        entry(input_sizes=[[1] * 65]),
        entry(duration_ms=float("nan")),
        entry(name="nccl:send 2->9"),
        entry(input_dtypes={"Float": 1}),
    ],
)
def test_entries_that_nobody_wrote_are_left_out_and_counted(broken: Any) -> None:
    trace = read(dump(broken, entry()))
    assert len(trace.calls) == 1
    assert any(note.startswith("1 entries are not") for note in trace.notes)


@pytest.mark.parametrize("value", [[], {"a": 1}, "text", 3])
def test_other_values_are_no_dump(value: Any) -> None:
    with pytest.raises(UsageError, match="is no Flight Recorder dump"):
        read(value)


def test_a_version_that_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match=r"version '1.5'; known: 2\.x"):
        read(dump(entry(), version="1.5"))


class Hostile:
    """Makes a file when it is loaded by an Unpickler that trusts it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_code_in_a_pickle_is_refused_and_not_run(protocol: int, tmp_path: Path) -> None:
    target, file = tmp_path / "made", tmp_path / "rank0.pkl"
    data = pickle.dumps({"version": "2.9", "pg_config": Hostile(target)}, protocol)
    file.write_bytes(data)
    with pytest.raises(UsageError, match=r"names '(posix|nt)\.mkdir': .* it was not loaded") as refused:
        read_file(file)
    assert not target.exists()
    assert "\n" not in str(refused.value)
    pickle.loads(data)
    assert target.exists()  # it was a real one


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80\x02cos\nsystem\n.", "names 'os.system'"),
        (b"\x80\x02(S'x'\nios\nsystem\n.", "has the opcode STRING"),
        (b"\x80\x02(ios\nsystem\n.", "names 'os.system'"),
        (b"\x80\x02Pthing\n.", "has the opcode PERSID"),
        (b"\x80\x02K\x01Q.", "has the opcode BINPERSID"),
        (b"\x80\x02\x82\x01.", "has the opcode EXT1"),
        (b"\x80\x02]r\xff\xff\xff\x7f.", "is no Flight Recorder dump"),  # other loaders take 16 GiB for this number
        (b"\x80\x04\x96\xff\xff\xff\xff\xff\xff\x00\x00.", "is no whole pickle"),
        (b"\x80\x02X\xff\xff\xff\x7fa.", "is no whole pickle"),
        (b"\x80\x02}(]K\x01u.", "is no whole pickle"),  # a list as a key
        (b"\x80\x02.", "is no whole pickle"),
        (b"\x80\x02}", "is no whole pickle"),
    ],
)
def test_hostile_pickles_are_refused_in_a_line(data: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        flight_recorder.read(io.BytesIO(data), "rank0")
    assert len(str(refused.value)) < 300


def test_a_list_that_holds_itself_many_times_over_is_not_gone_through() -> None:
    value: Any = "nccl:all_reduce"
    for _ in range(64):
        value = [value, value]  # 2^64 words
    trace = read(dump(entry(profiling_name=value), entry(process_group=(value, value)), version="2.9"))
    assert trace.calls == ()


def test_a_file_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "_LARGEST", 1 << 20)
    with pytest.raises(UsageError, match="more than 1 MiB"):
        flight_recorder.read(io.BytesIO(b"\x80\x02" + b"]" * (1 << 20)), "rank0")
    monkeypatch.setattr(flight_recorder, "_MOST_OPCODES", 1000)
    with pytest.raises(UsageError, match="more than 1,000 opcodes"):
        flight_recorder.read(io.BytesIO(b"\x80\x02" + b"]" * 2000), "rank0")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 64), 1 << 64) | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=50)
@given(PLAIN, st.integers(2, 5))
def test_plain_values_are_those_of_pythons_own_loader(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert flight_recorder._unpickled(data, "") == pickle.loads(data)


WHOLE = pickle.dumps(dump(entry(), entry(2), entry(3, "nccl:send 2->3")), 2)


@settings(max_examples=50)
@given(st.data())
def test_a_cut_or_changed_dump_is_read_or_refused(data: st.DataObject) -> None:
    cut = data.draw(st.integers(2, len(WHOLE) - 1))
    change = data.draw(st.binary(max_size=4))
    place = data.draw(st.integers(2, cut))
    for broken in (WHOLE[:cut], WHOLE[:place] + change + WHOLE[place + len(change) :]):
        try:
            (trace,) = flight_recorder.read(io.BytesIO(broken), "rank0")
        except UsageError as error:
            assert str(error).startswith("rank0 ") and "\n" not in str(error)
        else:
            assert trace.format == flight_recorder.NAME


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(sorted(entry())), PLAIN), PLAIN)
def test_any_values_in_place_of_what_is_expected_are_read_or_refused(changes: dict[str, Any], config: Any) -> None:
    value = dump(entry(), {**entry(2), **changes}, pg_config=config)
    for data in (pickle.dumps(value, 2), json.dumps(value).encode()):
        (trace,) = flight_recorder.read(io.BytesIO(data), "rank0")
        assert 1 <= len(trace.calls) <= 2


def test_the_recorders_files_are_recognised_and_others_are_not() -> None:
    assert flight_recorder.recognise(WHOLE[:100])
    assert flight_recorder.recognise(json.dumps(dump(entry())).encode())
    assert not flight_recorder.recognise(b'{"schemaVersion": 1, "distributedInfo": {"pg_config": []}, "traceEvents": [')
    assert not flight_recorder.recognise(b"\x89PNG")
