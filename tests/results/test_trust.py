"""Files that somebody changed: what no run writes is refused in one line, and never counted with."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commbench.errors import ResultsError
from commbench.results.collect import collect
from commbench.results.reading import read
from commbench.results.record import Record
from commbench.results.trust import trusted
from tests.fake_door import write_run
from tests.runs import record

CHANGES: list[dict[str, Any]] = [
    {"size": "8"},
    {"size": -8},
    {"size": 1 << 63},
    {"size": True},
    {"nranks": "four"},
    {"library": 3},
    {"inplace": 1},
    {"time_us": float("nan")},
    {"time_us": -1.0},
    {"busbw": 10**400},
    {"status": "splendid"},
    {"version": 99},
    {"arrival_skew_us": [0.0, 1.0]},
    {"arrival_skew_us": [0.0, 1.0, "late", 3.0]},
    {"arrival_skew_us": [0.0] * 4, "ranks": "0-99999999999"},
    {"arrival_skew_us": [0.0] * 4, "ranks": "0-x"},
    {"arrival_skew_us": [0.0] * 4, "ranks": "0-7"},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_record_that_no_run_writes_is_not_trusted(change: dict[str, Any]) -> None:
    good: Record = record()
    assert trusted(good) is good
    with pytest.raises((ValueError, OverflowError)):
        trusted(replace(good, **change))


PLANS: list[tuple[str, Any]] = [
    ("plan.cells", None),
    ("plan.cells.0.group", None),
    ("plan.cells.0.size", "8"),
    ("plan.facts.library", 3),
    ("plan.facts.groups", {}),
    ("plan.facts.groups.all.nranks", "x"),
    ("plan.facts.groups.all.busbw_factor", "x"),
    ("plan.facts.simulated", None),
]


@pytest.mark.parametrize(("path", "value"), PLANS)
def test_a_manifest_that_was_changed_is_refused_in_one_line(tmp_path: Path, path: str, value: Any) -> None:
    write_run(tmp_path / "run", {8: 10.0}, random.Random(1)).close()
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    node, *steps = manifest, *path.split(".")
    for step in steps[:-1]:
        node = node[int(step)] if step.isdigit() else node[step]
    node[steps[-1]] = value
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ResultsError) as raised:
        collect([tmp_path / "run"])
    assert "\n" not in str(raised.value) and str(tmp_path / "run") in str(raised.value)


@pytest.mark.parametrize("change", [{"wrong": "x"}, {"iterations": 10**400}, {"arrival_skew_us": True}], ids=str)
def test_a_visit_that_was_changed_is_refused_in_one_line(tmp_path: Path, change: dict[str, Any]) -> None:
    write_run(tmp_path / "run", {8: 10.0}, random.Random(1)).close()
    visits = tmp_path / "run" / "visits.jsonl"
    lines = [json.loads(line) | change for line in visits.read_text().splitlines()]
    visits.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ResultsError) as raised:
        collect([tmp_path / "run"])
    assert "\n" not in str(raised.value)


def test_a_line_that_never_ends_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commbench.results.reading._LONGEST_LINE", 1 << 12)
    (tmp_path / "zeros").write_bytes(bytes(1 << 14))
    with pytest.raises(ResultsError, match="zeros is a binary file"):
        read(tmp_path / "zeros")


def test_an_empty_path_is_not_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "run", {8: 10.0}, random.Random(1)).close()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ResultsError, match="a path is empty"):
        collect([""])
