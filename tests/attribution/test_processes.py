"""Several processes at work on items: their results' order, and their ends."""

from __future__ import annotations

import signal
import time
from multiprocessing import active_children

import pytest

from commbench.attribution.processes import side_by_side
from commbench.errors import UsageError


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
