"""The run folder: nothing kept is lost, nothing broken is read, and what cannot be written is said."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from commbench.errors import DiskError, ResultsError
from commbench.results.journal import (
    MANIFEST,
    RECORDS,
    VISITS,
    Journal,
    append_beside,
    lock,
    new_folder,
    read_manifest,
    read_records,
    read_visits,
    replace,
)
from commbench.results.record import FORMAT, Record, fold
from tests.runs import bad_visit, cell, facts, manifest, visit

CELLS = [cell("auto", 8), cell("ring", 8), cell("nvls", 8, status="not_applicable", reason="no NVLS on a CPU")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "results" / "monday"


@pytest.fixture
def journal(folder: Path) -> Iterator[Journal]:
    with closing(Journal.create(folder, manifest(*CELLS))) as journal:
        yield journal


def reopen(folder: Path) -> Journal:
    """The run as a launch with --resume sees it, not open any more."""
    with closing(Journal.reopen(folder)) as journal:
        return journal


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_visit_is_on_disk_as_soon_as_it_is_appended(journal: Journal, folder: Path) -> None:
    first, second = visit([3.0]), bad_visit("rejected", cell=1)
    journal.append(first)
    assert lines(folder / VISITS) == [first]
    journal.append(second)
    assert lines(folder / VISITS) == [first, second]


def test_records_are_the_folded_visits_one_a_cell_in_the_order_of_the_plan(journal: Journal, folder: Path) -> None:
    visits = [visit([3.0], cell=1), visit([5.0], cell=1), bad_visit("failed", cell=0)]
    for one in visits:
        journal.append(one)
    expected = [fold(facts(), CELLS[0], visits[2:]), fold(facts(), CELLS[1], visits[:2]), fold(facts(), CELLS[2], [])]
    assert journal.records() == expected
    journal.write_records()
    assert [Record(**fields) for fields in lines(folder / RECORDS)] == expected


def test_an_unfinished_run_is_read_from_its_visits(journal: Journal, folder: Path) -> None:
    journal.append(visit([3.0], cell=1))
    journal.write_records()
    journal.append(visit([5.0], cell=1))  # and killed here
    records = read_records(folder)
    assert [record.status for record in records] == ["not_measured", "ok", "not_applicable"]
    assert (records[1].time_us, records[1].rounds) == (4.0, 2)


def test_a_run_without_any_visit_is_read(journal: Journal, folder: Path) -> None:
    assert [record.status for record in read_records(folder)] == ["not_measured", "not_measured", "not_applicable"]
    (folder / VISITS).unlink()  # killed between the manifest and the first visit
    assert [record.status for record in read_records(folder)] == ["not_measured", "not_measured", "not_applicable"]


def test_a_run_goes_on_where_it_stopped(journal: Journal, folder: Path) -> None:
    journal.append(visit([3.0]))
    journal.close()
    with closing(Journal.reopen(folder)) as again:
        assert (again.manifest, again.visits) == (journal.manifest, journal.visits)
        again.append(visit([5.0], round=1))
    assert [one["samples_us"] for one in lines(folder / VISITS)] == [[3.0], [5.0]]


def test_each_launch_is_a_session_of_the_run(journal: Journal, folder: Path) -> None:
    assert journal.session == 0
    journal.close()
    again = reopen(folder)
    again.begin_session({"started": "20261201T000000Z", "arguments": ["--resume"]})
    assert again.session == 1
    assert read_manifest(folder)["sessions"][1] == {"started": "20261201T000000Z", "arguments": ["--resume"]}


@pytest.mark.parametrize("kept", range(1, len(json.dumps(visit())), 40))
def test_a_last_line_cut_short_anywhere_is_left_out_and_written_over(journal: Journal, folder: Path, kept: int) -> None:
    journal.append(visit([3.0]))
    journal.append(visit([5.0], round=1))
    journal.close()
    whole = (folder / VISITS).read_text()
    (folder / VISITS).write_text(whole + json.dumps(visit([7.0], round=2))[:kept])

    assert read_records(folder)[0].rounds == 2
    with closing(Journal.reopen(folder)) as again:
        assert len(again.visits[0]) == 2
        again.append(visit([9.0], round=2))
    assert (folder / VISITS).read_text() == whole + json.dumps(visit([9.0], round=2)) + "\n"
    assert read_records(folder)[0].rounds == 3


def test_a_visit_appended_from_beside_follows_a_whole_line(journal: Journal, folder: Path) -> None:
    journal.append(visit([3.0]))
    (folder / VISITS).write_text((folder / VISITS).read_text() + '{"cell": 0, "sta')
    append_beside(folder, bad_visit("timeout", "rank 2 not arrived", cell=1))
    assert [one["status"] for one in lines(folder / VISITS)] == ["ok", "timeout"]
    assert [record.status for record in read_records(folder)] == ["ok", "timeout", "not_applicable"]


@pytest.mark.parametrize("line", ["", "{", "[1, 2]", "7", '"visit"', '{"cell": "0", "status": "ok"}', '{"cell": 0}'])
@pytest.mark.parametrize("read", [read_records, reopen])
def test_a_broken_line_in_the_middle_is_named_with_the_remedy(
    journal: Journal, folder: Path, line: str, read: Callable[[Path], object]
) -> None:
    journal.close()
    good = json.dumps(visit()) + "\n"
    (folder / VISITS).write_text(good + line + "\n" + good)
    with pytest.raises(ResultsError) as raised:
        read(folder)
    assert str(raised.value) == f"{folder / VISITS}:2 is not a visit; remove the line to go on without it"


@pytest.mark.parametrize("index", [3, -1])
@pytest.mark.parametrize("read", [read_records, reopen])
def test_a_visit_of_a_cell_that_the_plan_has_not_is_refused(
    journal: Journal, folder: Path, index: int, read: Callable[[Path], object]
) -> None:
    journal.close()
    (folder / VISITS).write_text(json.dumps(visit(cell=index)) + "\n")
    with pytest.raises(ResultsError, match=f"speaks of cell {index}; the plan has 3"):
        read(folder)


def test_a_folder_that_holds_a_run_is_not_used_for_another(journal: Journal, folder: Path) -> None:
    journal.append(visit())
    with pytest.raises(ResultsError, match=r"monday holds a run already: go on with it by --resume, or name another"):
        Journal.create(folder, manifest(cell("tree")))
    assert (len(lines(folder / VISITS)), read_manifest(folder)["plan"]["cells"]) == (1, CELLS)


@pytest.mark.parametrize("name", [MANIFEST, VISITS, RECORDS])
def test_any_file_of_a_run_is_a_run(folder: Path, name: str) -> None:
    folder.mkdir(parents=True)
    (folder / name).write_text("kept\n")
    with pytest.raises(ResultsError, match="holds a run already"):
        Journal.create(folder, manifest(*CELLS))
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [(name, "kept\n")]


def test_of_two_launches_that_begin_at_once_the_second_leaves_the_firsts_plan(folder: Path) -> None:
    folder.mkdir(parents=True)
    with closing(lock(folder)), pytest.raises(ResultsError, match="another run is writing to"):
        Journal.create(folder, manifest(*CELLS))  # the first is about to write its plan
    assert not (folder / MANIFEST).exists()
    Journal.create(folder, manifest(*CELLS)).close()  # the first was killed


def test_a_run_that_ended_while_another_launch_began_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    def late(stream: Any, how: int) -> None:
        replace(folder / MANIFEST, json.dumps(manifest(*CELLS)))

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(ResultsError, match="holds a run already"):
        Journal.create(folder, manifest(cell("tree")))
    assert read_manifest(folder)["plan"]["cells"] == CELLS


def test_a_run_is_read_when_nobody_else_writes_to_it_any_more(
    monkeypatch: pytest.MonkeyPatch, journal: Journal, folder: Path
) -> None:
    def late(stream: Any, how: int) -> None:
        append_beside(folder, visit([3.0]))

    journal.close()
    monkeypatch.setattr(fcntl, "flock", late)
    assert len(reopen(folder).visits[0]) == 1


def test_a_folder_is_given_once(tmp_path: Path) -> None:
    path = str(tmp_path / "results" / "now-allreduce")
    names = [new_folder(path).name for _ in range(3)]
    assert names == ["now-allreduce", "now-allreduce-2", "now-allreduce-3"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match=r"cannot write to .*file.*; name another folder by --out"):
        new_folder(str(tmp_path / "file" / "now-allreduce"))


def test_a_folder_with_other_files_in_it_may_be_used(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    Journal.create(folder, manifest(*CELLS)).close()
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("where", [".", "below/it"])
def test_a_folder_that_cannot_be_written_is_named_with_the_remedy(tmp_path: Path, where: str) -> None:
    # A file in its place: a folder without write permission stops no superuser.
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match=r"cannot write to .*file.*: .*; name another folder by --out"):
        Journal.create(tmp_path / "file" / where, manifest(*CELLS))


def test_a_run_that_cannot_be_written_to_any_more_is_not_resumed(journal: Journal, folder: Path) -> None:
    journal.close()
    (folder / f"{MANIFEST}.new").mkdir()
    with pytest.raises(ResultsError, match="cannot write"):
        reopen(folder).begin_session({"started": "20261201T000000Z", "arguments": []})


def test_records_that_cannot_be_written_are_said_and_the_visits_stay(journal: Journal, folder: Path) -> None:
    journal.append(visit())
    (folder / f"{RECORDS}.new").mkdir()
    with pytest.raises(DiskError, match=r"cannot write .*records.jsonl: .*; the visits written before stay readable"):
        journal.write_records()
    assert read_records(folder)[0].status == "ok"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_said_and_earlier_visits_stay_readable(journal: Journal, folder: Path) -> None:
    journal.append(visit())
    journal.close()
    kept = (folder / VISITS).read_text()
    (folder / VISITS).unlink()
    (folder / VISITS).symlink_to("/dev/full")
    full = Journal(folder, journal.manifest, [], lock(folder))
    with pytest.raises(DiskError, match=r"cannot write .*visits.jsonl: No space left on device; .* --resume"):
        full.append(visit())
    assert full.visits[0] == []  # no record tells of what is not on disk
    full.close()  # and does not raise once more
    (folder / VISITS).unlink()
    (folder / VISITS).write_text(kept)
    assert read_records(folder)[0].rounds == 1


@pytest.mark.parametrize("read", [read_manifest, read_records, reopen])
def test_a_folder_without_a_run_is_refused(tmp_path: Path, read: Callable[[Path], object]) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ResultsError, match=rf"{folder} holds no run \(no manifest.json in it\)"):
            read(folder)


def test_a_run_of_a_newer_format_is_refused_with_the_remedy(tmp_path: Path) -> None:
    replace(tmp_path / MANIFEST, json.dumps(manifest(*CELLS, version=FORMAT + 1)))
    with pytest.raises(ResultsError, match=rf"has format {FORMAT + 1}; this commbench reads up to {FORMAT}: update it"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "7", "{}", '{"version": "1"}', '{"version": 1}', '{"version": 1, "plan": []}'),
        *('{"version": 1, "plan": {}}', '{"version": 1, "plan": {"cells": []}}', "\udcff"),
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ResultsError, match="is not a manifest of commbench"):
        read_records(tmp_path)


def test_a_manifest_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).mkdir()
    with pytest.raises(ResultsError, match=r"cannot read .*manifest.json: Is a directory"):
        read_manifest(tmp_path)


def test_replacing_a_file_leaves_nothing_beside_it(tmp_path: Path) -> None:
    for text in ("old\n", "new\n"):
        replace(tmp_path / "file", text)
        assert (tmp_path / "file").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_reader_holds_the_old_file_whole_while_it_is_replaced(tmp_path: Path) -> None:
    replace(tmp_path / "file", "old\n")
    with open(tmp_path / "file") as stream:
        replace(tmp_path / "file", "new, and longer\n")
        assert stream.read() == "old\n"


def test_a_predicted_visit_has_a_time_and_no_rounds(journal: Journal, folder: Path) -> None:
    journal.append({"cell": 0, "round": 0, "session": 0, "status": "ok", "predicted_us": 4.0, "evidence": "the model"})
    record = read_records(folder)[0]
    assert (record.status, record.time_us, record.predicted, record.algbw) == ("ok", 4.0, 4.0, 8 / 4e3)
    assert (record.rounds, record.iterations, record.time_us_low, record.time_us_min, record.wrong) == (
        0,
        0,
        None,
        None,
        None,
    )


def test_a_prediction_that_is_no_time_is_refused(journal: Journal, folder: Path) -> None:
    journal.append({"cell": 0, "round": 0, "session": 0, "status": "ok", "predicted_us": "soon"})
    with pytest.raises(ResultsError, match="is not a visit"):
        read_records(folder)


@pytest.mark.parametrize("name", ["manifest.json", "visits.jsonl"])
def test_a_pipe_in_the_place_of_a_file_is_refused_and_nobody_waits(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ResultsError, match="is a pipe" if name == VISITS else "holds a run already"):
        Journal.create(tmp_path, {})
    with pytest.raises(ResultsError, match=f"{name} is a pipe"):
        list(read_visits(tmp_path, 1)) if name == VISITS else read_manifest(tmp_path)
