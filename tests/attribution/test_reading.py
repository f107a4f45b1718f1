"""The door to traces: files, folders, what is packed, cut or unknown."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from pathlib import Path
from threading import Thread

import pytest

from commbench.attribution.reading import choose, read, read_chosen, read_file, readers
from commbench.errors import UsageError

PYTORCH = "PyTorch profiler trace"


def trace(rank: int, operators: int = 1) -> str:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10.0 * place, "dur": 5.0}
        for place in range(operators)
    ]
    return json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 8}, "traceEvents": events})


def test_each_format_says_its_name_and_knows_no_other_text() -> None:
    assert PYTORCH in {reader.NAME for reader in readers()}
    for head in (b"hello\n", b"{}", b"[1, 2]", b"# nccl-tests", b"<xml/>", b"\x00" * 100):
        assert not [reader.NAME for reader in readers() if reader.recognise(head)]


def test_a_name_tells_nothing_and_packing_is_seen_in_the_bytes(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.json.gz", tmp_path / "b.txt"
    plain.write_text(trace(3))
    packed.write_bytes(gzip.compress(trace(4).encode()))
    assert [(one.rank, one.format, one.source) for one in read([plain, packed])] == [
        (3, PYTORCH, str(plain)),
        (4, PYTORCH, str(packed)),
    ]


def test_what_comes_through_a_pipe_is_read(tmp_path: Path) -> None:
    pipe, packed = tmp_path / "pipe", gzip.compress(trace(2, operators=3_000).encode())
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_bytes, args=(packed,))
    writer.start()
    (one,) = read([pipe])
    writer.join()
    assert (one.rank, len(one.spans)) == (2, 3_000)


def test_a_folder_gives_all_that_is_known_and_names_the_rest(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "one.json").write_text(trace(1))
    (tmp_path / "b.json").write_text(trace(0))
    (tmp_path / "notes.md").write_text("# nothing\n")
    (tmp_path / ".hidden.json").write_text(trace(7))
    found = read([tmp_path])
    assert [one.rank for one in found] == [0, 1]
    assert {one.notes[-1] for one in found} == {f"left out: {tmp_path / 'notes.md'}: of no format that is known here"}


def test_a_folder_says_why_traces_of_it_cannot_be_used_and_nothing_of_what_others_read(tmp_path: Path) -> None:
    empty = {"schemaVersion": 1, "traceEvents": []}
    (tmp_path / "rank0.json").write_text(json.dumps(empty))
    for name in ("clock-rank0.json", "training.json", "telemetry-node0.jsonl"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(UsageError, match=r"can be used: .*rank0\.json holds no event of operators"):
        read([tmp_path])
    (tmp_path / "rank1.json").write_text(trace(1))
    (one,) = read([tmp_path])
    (note,) = (note for note in one.notes if note.startswith("left out"))
    assert "rank0.json holds no event" in note and "clock" not in note


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(trace(1))
    assert len(read([tmp_path, tmp_path / "one.json"])) == 1
    assert len(read([tmp_path / "one.json", tmp_path])) == 1


def test_two_processes_read_what_one_reads(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for rank in (2, 0, 1):
        (tmp_path / "folder" / f"rank{rank}.json").write_text(trace(rank))
    (tmp_path / "folder" / "notes.txt").write_text("of no format")
    (tmp_path / "folder" / "rank3.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    (tmp_path / "alone.json").write_text(trace(7))
    told: list[None] = []
    paths = [tmp_path / "alone.json", tmp_path / "folder"]
    found = read_chosen(choose(paths), 2, lambda: told.append(None))
    assert repr(found) == repr(read(paths))
    assert [one.rank for one in found] == [7, 0, 1, 2]
    assert len(told) == 6


def test_what_another_process_cannot_read_is_refused_with_its_name(tmp_path: Path) -> None:
    for name, content in (("good", trace(1)), ("bad", "of no format")):
        (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=r"bad is of no format that is known here"):
        read_chosen(choose([tmp_path / "good", tmp_path / "bad"]), 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"hello", "no format that is known here.*known: .*" + PYTORCH),
        (b'{"schemaVersion": 1, "traceEvents": []}', "no event of operators"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message) as refused:
        read([path])
    assert str(path) in str(refused.value)


def test_an_empty_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no trace"):
        read([tmp_path])
    with pytest.raises(UsageError, match=r"cannot read .*none\.json: No such file"):
        read([tmp_path / "none.json"])


def test_of_a_packed_file_that_breaks_off_what_is_there_is_returned(tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(trace(2, operators=20_000).encode())[:-5000])
    (one,) = read_file(path)
    assert one.rank == 2
    assert 0 < len(one.spans) < 20_000
    assert any("gzip stream ends early" in note for note in one.notes)
    assert any("breaks off" in note for note in one.notes) and not one.whole


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_of_a_short_gzip_stream_that_breaks_off_all_that_can_be_unpacked_is_read(tmp_path: Path, kept: float) -> None:
    whole = gzip.compress(trace(2, operators=3_000).encode())
    cut = whole[: int(kept * len(whole))]
    (tmp_path / "cut.gz").write_bytes(cut)
    (one,) = read_file(tmp_path / "cut.gz")
    assert len(one.spans) == zlib.decompressobj(31).decompress(cut).count(b'"dur": 5.0}') > 0
    assert any("gzip stream ends early" in note for note in one.notes)


def test_a_gzip_stream_of_which_nothing_is_left_is_said_to_be_cut(tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(trace(2).encode())[:12])
    with pytest.raises(UsageError, match=r"is empty: .*the gzip stream ends early"):
        read_file(tmp_path / "cut.gz")


def test_an_archive_is_to_be_unpacked_first(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text(trace(0))
    for form in ("gztar", "tar", "zip", "bztar", "xztar"):
        path = shutil.make_archive(str(tmp_path / "packed" / form), form, tmp_path, "rank0.json")
        with pytest.raises(UsageError, match=r"is packed by (tar|zip|bzip2|xz): unpack it"):
            read_file(path)
