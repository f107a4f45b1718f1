"""The compiled loops, over C functions that are Python's: what is called, with what, in which order."""

from __future__ import annotations

import ctypes

import pytest

from commbench.backends.base import Functions, Native
from commbench.measure import compiled
from commbench.measure.timing import METHODS

pytest.importorskip("llvmlite")
INT, ADDRESS = ctypes.c_int32, ctypes.c_size_t


class Library:
    """C functions that write down their calls, on a clock that each call moves on."""

    def __init__(self, one_buffer: bool = False, fails_at: int = 0) -> None:
        self.calls: list[tuple[int, ...]] = []
        self.now, self.fails_at = 100.0, fails_at
        parameters = (ADDRESS, INT, INT) if one_buffer else (ADDRESS, INT, ADDRESS, INT, INT)
        self._kept = (
            ctypes.CFUNCTYPE(INT, *parameters)(self.collective),
            ctypes.CFUNCTYPE(INT, INT)(self.barrier),
            ctypes.CFUNCTYPE(ctypes.c_double)(lambda: self.now),
        )
        self.native = Native(
            Functions(*self._kept),
            one_buffer,
            send=(10, 20),
            recv=(11, 21),
            head=() if one_buffer else (INT(7),),
            tail=(INT(7), INT(3)),
            comm=INT(3),
        )

    def collective(self, *arguments: int) -> int:
        self.calls.append(arguments)
        self.now += arguments[0] / 10
        return int(len(self.calls) == self.fails_at)

    def barrier(self, comm: int) -> int:
        self.calls.append((comm,))
        self.now += 50.0
        return 0


def test_a_barrier_stands_before_each_iteration_outside_its_time() -> None:
    library = Library()
    taken = compiled.durations("barrier", library.native, 3)
    first, second = (10, 7, 11, 7, 3), (20, 7, 21, 7, 3)
    assert library.calls == [(3,), first, (3,), second, (3,), first]
    assert taken.tolist() == [1.0, 2.0, 1.0]


def test_back_to_back_there_is_one_barrier_before_all() -> None:
    library = Library()
    taken = compiled.durations("loop", library.native, 3)
    assert [len(call) for call in library.calls] == [1, 5, 5, 5]
    assert taken.tolist() == pytest.approx([1.0, 2.0, 1.0])


def test_a_call_with_one_buffer_has_the_received_one() -> None:
    library = Library(one_buffer=True)
    compiled.durations("barrier", library.native, 2)
    assert library.calls == [(3,), (11, 7, 3), (3,), (21, 7, 3)]


@pytest.mark.parametrize("method", METHODS)
def test_compiling_calls_no_collective(method: str) -> None:
    library = Library()
    compiled.prepare(method, library.native)
    assert set(library.calls) <= {(3,)}


@pytest.mark.parametrize("method", METHODS)
def test_an_error_code_amid_the_loop_is_an_error_after_it(method: str) -> None:
    library = Library(fails_at=4)  # the second collective, or the third
    with pytest.raises(RuntimeError, match="the library returned an error in the timed loop"):
        compiled.durations(method, library.native, 4)
    assert len([call for call in library.calls if len(call) > 1]) == 4


@pytest.mark.parametrize("method", METHODS)
def test_a_loop_is_compiled_once_for_the_same_functions(method: str) -> None:
    library = Library()
    compiled.prepare(method, library.native)
    before = compiled._loop.cache_info().misses
    compiled.durations(method, library.native, 5)
    assert compiled._loop.cache_info().misses == before


@pytest.mark.parametrize("there", [True, False])
def test_llvm_is_looked_for_without_importing_it(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    monkeypatch.setattr(compiled, "find_spec", {"llvmlite": object() if there else None}.__getitem__)
    assert compiled.available() == there
