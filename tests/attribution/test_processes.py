"""Several processes at work on items: their results' order, and their ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing import active_children
from pathlib import Path

import pytest

from commbench.attribution.processes import side_by_side
from commbench.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("processes", [1, 2, 9])
def test_results_come_in_the_order_of_the_items(processes: int) -> None:
    before = active_children()
    assert list(side_by_side(abs, range(-7, 0), processes)) == [7, 6, 5, 4, 3, 2, 1]
    assert active_children() == before


def test_nothing_to_do_starts_nothing() -> None:
    assert list(side_by_side(abs, [], 4)) == []


def test_a_result_is_there_before_those_after_it_and_closing_ends_what_is_under_way() -> None:
    before = active_children()
    results = side_by_side(time.sleep, [0, 1000], 2)
    assert next(results) is None
    assert len(active_children()) == len(before) + 2
    results.close()
    assert active_children() == before


@pytest.mark.parametrize("place", [0, 2])
def test_a_process_that_is_killed_is_an_error_and_no_hang(place: int) -> None:
    before = active_children()
    signals = [signal.SIGCHLD] * 4  # which nobody minds
    signals[place] = signal.SIGKILL
    with pytest.raises(UsageError, match=r"was killed.*--processes 1"):
        list(side_by_side(signal.raise_signal, signals, 2))
    assert active_children() == before


def test_a_process_that_ends_of_its_own_accord_is_no_want_of_memory(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="it has said why"):
        list(side_by_side(abs, [-1, "text"], 2))  # type: ignore[arg-type]
    assert "bad operand type for abs()" in capfd.readouterr().err


def test_a_process_that_is_killed_in_the_midst_of_its_result_is_an_error_too(tmp_path: Path) -> None:
    """The second result is on its way only when nobody reads: more than a pipe holds, so that its process is stuck."""
    go = tmp_path / "go"
    large = f"while [ ! -e {go} ]; do sleep 0.02; done; head -c 64000000 /dev/zero"
    results = side_by_side(subprocess.check_output, [["echo", "small"], ["sh", "-c", large]], 2)
    assert next(results) == b"small\n"
    go.touch()
    time.sleep(1)  # by then it writes; before, it is killed at work, which is the same to whoever waits
    for child in active_children():
        child.kill()
    with pytest.raises(UsageError, match="was killed"):
        next(results)


def test_files_of_the_current_folder_are_no_modules_of_the_processes(tmp_path: Path) -> None:
    (tmp_path / "struct.py").write_text("print('run')")
    script = (
        "from commbench.attribution.processes import side_by_side\n"
        "if __name__ == '__main__':\n    print(list(side_by_side(abs, [-1, -2], 2)))\n"
    )
    place = tmp_path / "apart"
    place.mkdir()
    (place / "script.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(place / "script.py")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[1, 2]\n", "")
