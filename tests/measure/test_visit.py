"""One visit of one cell, on a library that goes right or wrong at every point of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest

from commbench.backends.base import Call, Selection
from commbench.errors import Rejected
from commbench.measure import visit as module
from commbench.measure.buffers import Arenas, layout
from commbench.measure.clock import Clock, Laps
from commbench.measure.effort import FEWEST_ITERATIONS, MOST_ITERATIONS, Effort, fitting
from commbench.measure.visit import KEPT_SAMPLES, LATE_START, WINDOW_TRIES, Visit, summary
from commbench.results.journal import _MEASURED
from tests.fakes import FakeLibrary, call, effort
from tests.numpy_collectives import Array

TIMED = {"iterations", "median_us", "mean_us", "min_us", "max_us", "p99_us", "samples_us", "calls"}


def carry_out(
    library: FakeLibrary,
    one: Call | None = None,
    asked: Effort | None = None,
    *,
    number: int = 0,
    fresh: bool = True,
    iterations: int = 5,
    seconds: float = 0.001,
    clock: Clock | None = None,
) -> dict[str, Any]:
    one = one or call()
    arenas = Arenas(library.backend, [layout(library.backend, one, 0, 1)])
    visit = Visit(library.world, library.backend, arenas, one, asked or effort(), number, fresh, False, clock)
    return visit.carry_out(seconds, iterations)


def test_a_visit_checks_times_and_checks_again() -> None:
    library = FakeLibrary()
    kept = carry_out(library)
    assert library.calls == 1 + 1 + 5 + 1  # check, warm-up, timed, check
    assert library.barriers == 1 + 5
    assert (kept["status"], kept["reason"], kept["wrong"], kept["iterations"]) == ("ok", "", 0, 5)
    assert (kept["observed_algorithm"], kept["evidence"], kept["loop"]) == ("ring", "said so", "plain")
    assert kept["pace_us"] > 0
    assert kept["switch_us"] >= 0
    assert kept["seconds"] > 0


def test_what_is_kept_is_what_the_journal_reads() -> None:
    kept = json.loads(json.dumps(carry_out(FakeLibrary())))
    assert all(isinstance(kept[name], kind) for name, kind in _MEASURED)
    assert kept.keys() >= TIMED


def test_every_check_and_the_timed_loop_have_data_of_their_own() -> None:
    library = FakeLibrary()
    for number in range(3):
        carry_out(library, number=number)
    visits = [library.seen[8 * i : 8 * i + 8] for i in range(3)]
    assert all(len(set(visit[1:7])) == 1 for visit in visits)  # warm-up and timed
    assert len({data for visit in visits for data in (visit[0], visit[1], visit[7])}) == 9


def break_at(*numbers: int) -> FakeLibrary:
    """A library whose calls of these numbers give one wrong element."""

    def wrongly(number: int, send: Array, recv: Array) -> None:
        recv[:] = send
        if number in numbers:
            recv[3] += 1

    return FakeLibrary(wrongly)


@pytest.mark.parametrize(("numbers", "wrong"), [((1,), 1), ((7,), 1), ((8,), 1), ((1, 7, 8), 1), ((7, 8), 2)])
def test_a_wrong_answer_before_in_and_after_the_timed_loop_is_seen(numbers: tuple[int, ...], wrong: int) -> None:
    kept = carry_out(break_at(*numbers))
    assert (kept["status"], kept["wrong"]) == ("wrong", wrong)
    assert kept["reason"] == f"{wrong} elements differ from the definition of all-reduce"
    assert not TIMED & kept.keys()


def test_a_stale_result_is_wrong() -> None:
    def only_once(number: int, send: Array, recv: Array) -> None:
        if number == 1:
            recv[:] = send

    assert carry_out(FakeLibrary(only_once))["status"] == "wrong"


def test_a_cell_that_is_wrong_from_the_start_is_not_timed() -> None:
    library = break_at(1)
    carry_out(library)
    assert library.calls == 1


def test_without_checks_nothing_is_called_wrong() -> None:
    library = break_at(*range(10))
    kept = carry_out(library, asked=effort(check=False))
    assert (kept["status"], kept["wrong"]) == ("ok", None)
    assert library.calls == 1 + 1 + 5  # the witness stays


def test_in_place_the_timed_loop_leaves_nothing_to_tell_by() -> None:
    assert carry_out(break_at(7), call(inplace=True))["status"] == "ok"
    assert carry_out(break_at(8), call(inplace=True))["status"] == "wrong"


def test_what_the_library_refuses_is_rejected() -> None:
    for selection in (Rejected("no such thing"), Selection(None, "said so", objection="no such thing")):
        library = FakeLibrary(selection=selection)
        kept = carry_out(library)
        assert (kept["status"], kept["reason"], kept["wrong"]) == ("rejected", "no such thing", None)
        assert (kept["observed_algorithm"], kept["evidence"]) == (None, "none: the cell did not run as asked")
        assert library.calls == 1


def test_another_algorithm_than_the_one_asked_for_is_substituted() -> None:
    kept = carry_out(FakeLibrary(selection=Selection("linear", "seen")))
    assert (kept["status"], kept["reason"]) == ("substituted", "linear ran instead of ring")
    assert (kept["observed_algorithm"], kept["evidence"]) == ("linear", "seen")
    assert not TIMED & kept.keys()


def test_what_ran_unseen_is_not_called_substituted() -> None:
    kept = carry_out(FakeLibrary(selection=Selection(None, "unknown")))
    assert (kept["status"], kept["observed_algorithm"]) == ("ok", None)


@pytest.mark.parametrize("number", [1, 2, 3, 8], ids=["witness", "warm-up", "timed", "last check"])
def test_an_error_at_any_point_is_kept_until_all_agree(number: int) -> None:
    def broken(now: int, send: Array, recv: Array) -> None:
        if now == number:
            raise ValueError("it broke")
        recv[:] = send

    kept = carry_out(FakeLibrary(broken))
    assert (kept["status"], kept["reason"], kept["wrong"]) == ("failed", "ValueError: it broke", None)
    assert not TIMED & kept.keys()


def test_a_minimum_is_checked_until_each_rank_could_have_shown() -> None:
    library = FakeLibrary()
    assert carry_out(library, call(redop="min", count=1))["status"] == "ok"
    assert library.calls == 8  # one rank: one call each


@pytest.mark.parametrize(("first", "asked", "warmups"), [(3, None, 3), (0, None, 1), (3, 5, 3), (0, 5, 0)])
def test_warm_ups_are_those_asked_for_and_one_where_the_pace_is_wanted(
    first: int, asked: int | None, warmups: int
) -> None:
    library = FakeLibrary()
    carry_out(library, asked=effort(iterations=asked, warmup=first))
    assert library.calls == 1 + warmups + 5 + 1


def test_without_a_number_the_warm_up_says_how_many_iterations_fit() -> None:
    for seconds, least, most in ((0.0, FEWEST_ITERATIONS, FEWEST_ITERATIONS), (60.0, MOST_ITERATIONS, MOST_ITERATIONS)):
        kept = carry_out(FakeLibrary(), asked=effort(iterations=None), iterations=0, seconds=seconds)
        assert least <= kept["iterations"] <= most


def test_few_samples_are_kept_as_they_are() -> None:
    kept = summary(np.array([3.0, 1.0, 2.0]))
    assert kept == {
        "iterations": 3,
        "median_us": 2.0,
        "mean_us": 2.0,
        "min_us": 1.0,
        "max_us": 3.0,
        "p99_us": 2.98,
        "samples_us": [3.0, 1.0, 2.0],
    }


def test_of_many_samples_some_are_kept_evenly_and_the_figures_are_over_all() -> None:
    samples = np.arange(1000.0)
    samples[999] = 1e6
    kept = summary(samples)
    assert (kept["iterations"], kept["min_us"], kept["max_us"], kept["median_us"]) == (1000, 0.0, 1e6, 499.5)
    assert kept["mean_us"] == pytest.approx(samples.mean())
    assert kept["p99_us"] == pytest.approx(np.quantile(samples, 0.99))
    assert len(kept["samples_us"]) == KEPT_SAMPLES
    assert set(np.diff(kept["samples_us"])) == {7.0, 8.0}


def test_a_cell_that_ran_before_is_not_warmed_up_anew() -> None:
    library = FakeLibrary()
    carry_out(library, asked=effort(iterations=5, warmup=3), fresh=False)
    assert library.calls == 1 + 0 + 5 + 1


def test_a_rank_that_cannot_begin_what_all_could_before_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLibrary()

    def refuse(*anything: Any) -> Any:
        raise MemoryError("none left")

    monkeypatch.setattr(library.backend, "plan", refuse)
    assert carry_out(library)["status"] == "failed"
    with pytest.raises(RuntimeError, match="on rank 0 it was not: MemoryError: none left; --resume goes on"):
        carry_out(library, fresh=False)


def test_of_several_errors_the_first_is_the_reason() -> None:
    def broken(now: int, send: Array, recv: Array) -> None:
        if now > 2:
            raise ValueError(f"call {now} broke")
        recv[:] = send

    assert carry_out(FakeLibrary(broken))["reason"] == "ValueError: call 3 broke"


def test_a_cell_that_failed_on_one_rank_does_not_carry_anothers_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLibrary(selection=Rejected("no such thing"))
    world = type(library.world)
    monkeypatch.setattr(world, "total", lambda self, *values: (1, *values[1:]))  # another rank failed
    monkeypatch.setattr(world, "first_text", lambda self, text: text or "ValueError: it broke")
    kept = carry_out(library)
    assert (kept["status"], kept["reason"]) == ("failed", "ValueError: it broke")


# On the common clock


class TrueClock:
    """A clock that agrees with the common one; `error` is what it says of itself."""

    def __init__(self, error: float) -> None:
        self.error = error

    def refresh(self) -> None:
        """Nothing to learn."""

    def common(self, local: float) -> float:
        return local


def on_clock(
    monkeypatch: pytest.MonkeyPatch,
    entries: Callable[[int], Sequence[float]],
    asked: Effort,
    taken: float = 0.0,
    error: float = 0.0,
) -> tuple[dict[str, Any], list[tuple[float, int]]]:
    """A visit of laps that begin late by `entries(iterations)` and end `taken` windows later; the laps' windows too."""
    tries: list[tuple[float, int]] = []

    def laps(clock: Clock, runs: Sequence[Callable[[], Any]], start: float, window: float, iterations: int) -> Laps:
        tries.append((window, iterations))
        for i in range(iterations):
            runs[i % len(runs)]()
        late = np.array(entries(iterations))
        return Laps(late, late + taken * window)

    monkeypatch.setattr(module, "laps", laps)
    clock = cast(Clock, TrueClock(error))
    kept = carry_out(FakeLibrary(), asked=asked, iterations=asked.iterations or 0, seconds=1.0, clock=clock)
    return kept, tries


def test_what_is_said_of_a_window_is_of_the_last_one_that_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Visit, "_warm_up", lambda *_: 1e-6)
    asked = effort(method="clock", iterations=None)
    kept, tries = on_clock(monkeypatch, lambda n: [1.0] * n, asked, taken=100.0)
    (window, iterations) = tries[-1]
    assert len(tries) == WINDOW_TRIES
    assert fitting(2 * window, 1.0) < iterations < tries[0][1]  # one more window would have had fewer
    assert (kept["status"], kept["pace_us"]) == ("ok", round(window * 1e6, 3))
    assert (kept["iterations"], kept["late_starts"]) == (iterations, iterations)


@pytest.mark.parametrize(("prompt", "kept"), [(5, 5), (3, 3), (2, 5), (1, 5), (0, 5)])
def test_late_iterations_are_discarded_unless_most_are_late(
    monkeypatch: pytest.MonkeyPatch, prompt: int, kept: int
) -> None:
    late = 2 * LATE_START
    found, _ = on_clock(
        monkeypatch, lambda n: [0.0] * prompt + [late] * (n - prompt), effort(method="clock", iterations=5)
    )
    assert (found["iterations"], found["late_starts"]) == (kept, 5 - prompt)


def test_a_start_is_late_by_the_ranks_own_clock_and_a_skew_is_off_by_twice_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = 1.2 * LATE_START
    kept, _ = on_clock(monkeypatch, lambda n: [0.0, 0.0, late], effort(method="clock", iterations=3), error=1e-3)
    assert (kept["iterations"], kept["late_starts"]) == (2, 1)
    assert kept["skew_error_us"] == 2000.0
