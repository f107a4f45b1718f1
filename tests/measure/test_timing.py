"""The timed loops: what is called, in which order, how often; never how fast."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import pytest

from commbench.measure import timing
from commbench.measure.timing import METHODS, durations


class Book:
    """Writes down who was called, on a clock that each call moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.now = 100.0
        monkeypatch.setattr(timing, "perf_counter", lambda: self.now)

    def call(self, name: str, seconds: float) -> None:
        self.calls.append(name)
        self.now += seconds

    def named(self, name: str, seconds: float) -> Callable[[], None]:
        return partial(self.call, name, seconds)


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Book:
    return Book(monkeypatch)


def test_a_barrier_stands_before_each_iteration_outside_its_time(book: Book) -> None:
    runs = [book.named("a", 1.0), book.named("b", 2.0)]
    taken = durations("barrier", runs, book.named("|", 50.0), 5)
    assert book.calls == list("|a|b|a|b|a")
    assert taken.tolist() == [1.0, 2.0, 1.0, 2.0, 1.0]


def test_back_to_back_there_is_one_barrier_before_all(book: Book) -> None:
    runs = [book.named("a", 1.0), book.named("b", 2.0), book.named("c", 4.0)]
    taken = durations("loop", runs, book.named("|", 50.0), 5)
    assert book.calls == list("|abcab")
    assert taken.tolist() == [1.0, 2.0, 4.0, 1.0, 2.0]


@pytest.mark.parametrize("method", METHODS)
def test_the_garbage_collector_rests_meanwhile_and_is_put_back(method: str) -> None:
    seen: list[bool] = []
    assert gc.isenabled()
    durations(method, [lambda: seen.append(gc.isenabled())], lambda: None, 3)
    assert (seen, gc.isenabled()) == ([False] * 3, True)

    gc.disable()
    try:
        durations(method, [lambda: None], lambda: None, 3)
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("method", METHODS)
def test_an_error_gets_out_and_the_collector_is_put_back(method: str) -> None:
    def run() -> None:
        raise RuntimeError("the library failed")

    with pytest.raises(RuntimeError, match="the library failed"):
        durations(method, [run], lambda: None, 3)
    assert gc.isenabled()
