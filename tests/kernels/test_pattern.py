"""Kernels as they are declared: names, bytes, rules, and where elements lie."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from commbench.errors import UsageError
from commbench.kernels import _study
from commbench.kernels._factors import Level
from commbench.kernels._pattern import GUARD, Access, Pattern, Problem, Stream, reads, transformer, writes

EVERY = [pattern for name in _study.names() for pattern in _study.patterns(name)]


@pytest.mark.parametrize("pattern", EVERY, ids=lambda pattern: pattern.label)
def test_a_kernel_is_called_as_its_file_and_its_rule_is_whole(pattern: Pattern) -> None:
    assert pattern in _study.patterns(pattern.name)
    pattern.check()
    pattern.ceiling().check()


def test_all_kernels_are_found_by_their_files() -> None:
    assert _study.names() == ["copy", "fill", "read", "scale", "sgd_momentum", "triad", "weight_update"]


@pytest.mark.parametrize(
    ("kernel", "variant", "dtype", "read", "written"),
    [  # bytes of each element, counted by hand: g16 p32 m32 v32 -> p32 m32 v32 w16, ...
        ("weight_update", "adamw", "float16", 14, 14),
        ("weight_update", "adam", "bfloat16", 14, 14),
        ("weight_update", "adamw16", "float16", 8, 6),
        ("weight_update", "adamw32", "float32", 16, 12),
        ("sgd_momentum", "mixed", "float16", 10, 10),
        ("sgd_momentum", "half", "float16", 6, 4),
        ("copy", "", "float64", 8, 8),
        ("triad", "", "float32", 8, 4),
        ("read", "", "float16", 2, 0),
        ("fill", "", "bfloat16", 0, 2),
    ],
)
def test_bytes_of_an_element(kernel: str, variant: str, dtype: str, read: int, written: int) -> None:
    (pattern,) = [one.of(dtype) for one in _study.patterns(kernel) if one.variant == variant]
    assert (pattern.bytes_read, pattern.bytes_written) == (read, written)
    assert (pattern.ceiling().bytes_read, pattern.ceiling().bytes_written) == (read, written)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (("b = a + c",), "k: b = a + c uses c, which nothing gives"),
        (("b = 2 * a",), "k: b = 2 * a has a number: name it among the constants"),
        (("c = a",), "k: b is written, and the rule gives no value"),
    ],
)
def test_a_rule_that_cannot_be_carried_out_is_refused(rule: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError) as error:
        Pattern("k", "k", (reads("a"), writes("b")), rule).check()
    assert str(error.value) == message


@pytest.mark.parametrize(
    "walk",
    [
        {"vector": 4, "stride": 2},
        {"vector": 4, "offset": 2},
        {"stride": 2, "layout": "aos"},
        {"layout": "rows"},
        {"index": "shuffled"},
    ],
)
def test_a_walk_that_makes_no_sense_is_refused(walk: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Access(**walk)  # type: ignore[arg-type]


def test_structs_have_the_fields_and_the_size_that_c_gives_them() -> None:
    streams = (Stream("a", "float16"), Stream("b", "float64"), Stream("c", "float32"))
    problem = Problem(Pattern("k", "k", streams, ()), Access(layout="aos"), 10)
    assert problem.fields == ({"a": 0, "b": 8, "c": 16}, 24)
    dtype = np.dtype([("a", "f2"), ("b", "f8"), ("c", "f4")], align=True)
    assert problem.fields[1] == dtype.itemsize


def test_every_place_lies_between_the_guards() -> None:
    pattern = _study.patterns("weight_update")[0].of("float16")
    walks = [
        Access(vector=4),
        Access(offset=1),
        Access(stride=7),
        Access(layout="aos"),
        Access(index="random"),
        Access(index="duplicate"),
        Access(inplace=False),
        Access(layout="aos", inplace=False),
    ]
    for access in walks:
        problem = Problem(pattern, access, 1001)
        places = problem.index if problem.index is not None else np.arange(problem.count)
        for place in problem.places:
            last = place.offset + place.pitch * int(places.max() if place.indexed else problem.count - 1)
            assert place.offset >= GUARD
            assert last + place.itemsize <= problem.arenas[place.arena] - GUARD


def test_lists_of_places_are_what_their_names_say() -> None:
    pattern = _study.patterns("copy")[0].of("float32")
    lists = {kind: Problem(pattern, Access(index=kind), 1000).index for kind in ("sorted", "random", "duplicate")}
    once, shuffled, twice = lists["sorted"], lists["random"], lists["duplicate"]
    assert once is not None and shuffled is not None and twice is not None
    assert len(once) == len(shuffled) == 125 and [place // 8 for place in once] == list(range(125))
    assert sorted(shuffled.tolist()) == once.tolist() != shuffled.tolist()
    assert len(twice) == 1000 and len(set(twice.tolist())) < 1000


def test_tensors_of_a_transformer_are_all_of_its_elements() -> None:
    for total in (1, 769, 7_087_872, 10_000_000):
        assert sum(transformer(total)) == total
    layer = transformer(7_087_872)  # GPT-2 small has 7,087,872 parameters a layer
    assert len(layer) == 12 and max(layer) == 4 * 768 * 768


def test_two_kernels_may_not_have_the_same_name_and_variant() -> None:
    assert len({(one.name, one.variant) for one in EVERY}) == len(EVERY)
    assert replace(EVERY[0], variant="other") not in EVERY


@pytest.mark.parametrize("index", ["sorted", "random", "duplicate"])
def test_a_list_of_places_has_no_more_elements_than_32_bits_tell_apart(index: str) -> None:
    (pattern, *_) = _study.patterns("copy")
    level = Level("gather", index, Access(index=index))
    _study.check_lists(_study.Study(pattern, "float16", (_study.Row(pattern, level, (1 << 31) - 1),)))
    with pytest.raises(UsageError, match="at most 2147483647 elements, not 2147483648: give a smaller --size"):
        _study.check_lists(_study.Study(pattern, "float16", (_study.Row(pattern, level, 1 << 31),)))


@pytest.mark.parametrize("index", ["sorted", "random", "duplicate"])
def test_a_list_of_one_of_each_eight_places_needs_eight(index: str) -> None:
    (pattern, *_) = _study.patterns("copy")
    with pytest.raises(UsageError, match="one of each 8 elements: 7 are too few"):
        Problem(pattern, Access(index=index), 7)
