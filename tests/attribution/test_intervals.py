"""Tests for commbench.attribution.intervals: against sets of whole numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commbench.attribution.intervals import total, union, within
from tests.attribution.sets import difference, intersection

if TYPE_CHECKING:
    from commbench.attribution.intervals import Times

Spans = list[tuple[int, int]]
SPANS = st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 8)).map(lambda span: (span[0], sum(span))), max_size=12)


def instants(spans: Spans) -> set[int]:
    return {instant for start, end in spans for instant in range(start, end)}


def union_of(spans: Spans) -> Times:
    starts, ends = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    return union(starts, ends)


def check(found: Times, expected: set[int]) -> None:
    """The right instants, in rows that are sorted, apart from one another, and not empty."""
    assert found.dtype == np.int64 and found.shape == (len(found), 2)
    assert instants([(int(start), int(end)) for start, end in found]) == expected
    assert np.all(np.diff(found.ravel()) > 0)
    assert total(found) == len(expected)


@given(SPANS)
def test_a_union_holds_what_any_span_holds(spans: Spans) -> None:
    check(union_of(spans), instants(spans))


@given(SPANS, SPANS)
def test_sets_meet_and_differ_as_sets_of_numbers_do(one: Spans, other: Spans) -> None:
    check(intersection(union_of(one), union_of(other)), instants(one) & instants(other))
    check(difference(union_of(one), union_of(other)), instants(one) - instants(other))


@given(SPANS)
def test_an_instant_is_within_from_a_start_on_and_before_the_end(spans: Spans) -> None:
    line = np.arange(-25, 35)
    assert set(line[within(union_of(spans), line)].tolist()) == instants(spans)


def test_times_since_1970_in_nanoseconds_stay_exact() -> None:
    start = 1_764_590_000_000_000_001
    found = union_of([(start, start + 1), (start + 3, start + 10)])
    assert found.tolist() == [[start, start + 1], [start + 3, start + 10]]
    assert total(found) == 8
