"""Runs loaded with one line of pandas."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import commbench
from commbench.errors import ResultsError
from commbench.results.journal import Journal
from commbench.results.record import Record
from tests.runs import cell, manifest, visit


def make_run(folder: Path, *times: float) -> Path:
    """A run of one cell a time, with a last cell that was not reached."""
    journal = Journal.create(folder, manifest(*[cell(size=8 << i) for i in range(len(times) + 1)]))
    for index, time in enumerate(times):
        journal.append(visit([time], cell=index))
    journal.close()
    return folder


def test_a_run_is_one_row_a_record(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    frame = commbench.load(make_run(tmp_path / "monday", 2.0, 4.0))
    assert list(frame.columns) == ["run", *(field.name for field in fields(Record)), "source", "line"]
    assert frame["run"].tolist() == ["monday"] * 3
    assert frame["size"].tolist() == [8, 16, 32]
    assert frame["status"].tolist() == ["ok", "ok", "not_measured"]
    assert frame["time_us"].dropna().tolist() == [2.0, 4.0]
    assert frame["time_us"].isna().tolist() == [False, False, True]


def test_a_folder_of_runs_is_loaded_whole_by_text_or_path(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    make_run(tmp_path / "b", 2.0)
    make_run(tmp_path / "deep" / "a", 3.0)
    for path in (tmp_path, str(tmp_path)):
        frame = commbench.load(path)
        assert frame.groupby("run")["time_us"].max().to_dict() == {"a": 3.0, "b": 2.0}


def test_the_best_of_each_size_is_a_line_of_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    cells = [cell(algorithm, size) for size in (8, 64) for algorithm in ("auto", "ring", "tree")]
    journal = Journal.create(tmp_path / "run", manifest(*cells))
    for index, time in enumerate([3.0, 2.0, 4.0, 5.0, 7.0, 1.0]):
        journal.append(visit([time], cell=index))
    journal.close()
    frame = commbench.load(tmp_path)
    assert frame.loc[frame.groupby("size")["time_us"].idxmin(), "algorithm"].tolist() == ["ring", "tree"]


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    with pytest.raises(ResultsError, match=f"{tmp_path} holds no run: a run folder has a manifest.json"):
        commbench.load(tmp_path)
    with pytest.raises(ResultsError, match=f"there is no {tmp_path}/nowhere"):
        commbench.load(tmp_path / "nowhere")


def test_without_pandas_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"commbench.load needs pandas: pip install 'commbench\[report\]'"):
        commbench.load(make_run(tmp_path / "run"))


def test_naming_load_loads_no_pandas() -> None:
    code = "import commbench, sys; commbench.load; print('pandas' in sys.modules, 'numpy' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_other_names_are_not_made_up() -> None:
    with pytest.raises(AttributeError, match="module 'commbench' has no attribute 'laod'"):
        commbench.laod  # noqa: B018
