"""Predicted traffic against the tables that everybody can count by hand, and against a set of touched bytes."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench.kernels import _study
from commbench.kernels._factors import FACTORS, levels, predict
from commbench.kernels._pattern import Access, Pattern, Problem
from commbench.kernels._traffic import AMD, CPU, NVIDIA, X86, Memory, addresses, traffic

COPY = _study.patterns("copy")[0].of("float16")
UPDATE = _study.patterns("weight_update")[0].of("float16")


@pytest.mark.parametrize(
    ("access", "sectors", "lines"),
    [  # of 32 and of 128 B, that one load of a warp asks for, of 16-bit numbers; 32 lanes
        (Access(), 2, 1),
        (Access(vector=2), 4, 1),
        (Access(vector=8), 16, 4),
        (Access(vector=8, offset=8), 17, 5),
        (Access(offset=1), 3, 1),
        (Access(offset=15), 3, 1),
        (Access(stride=2), 4, 1),
        (Access(stride=4), 8, 2),
        (Access(stride=8), 16, 4),
        (Access(stride=16), 32, 8),
        (Access(stride=32), 32, 16),
    ],
)
def test_sectors_and_lines_of_one_request(access: Access, sectors: int, lines: int) -> None:
    found = traffic(Problem(COPY, access, 32 * access.vector * access.stride), NVIDIA)
    assert found.sectors["a", "read"] == (sectors, sectors)
    assert found.lines["a", "read"] == (lines, lines)
    assert found.instructions["a", "read"] == 1
    assert found.a_request(found.sectors) == sectors and found.a_request(found.lines) == lines


@pytest.mark.parametrize(
    ("access", "granules_64", "granules_128"),
    [  # of one load of a wave of 64 lanes on AMD, of 16-bit numbers
        (Access(), 2, 1),
        (Access(offset=1), 3, 2),
        (Access(stride=16), 32, 16),
    ],
)
def test_granules_of_one_request_of_a_wave(access: Access, granules_64: int, granules_128: int) -> None:
    found = traffic(Problem(COPY, access, 64 * access.stride), AMD)
    assert found.sectors["a", "read"] == (granules_64, granules_64)
    assert found.lines["a", "read"] == (granules_128, granules_128)


@pytest.mark.parametrize(
    ("access", "most", "least"),
    [  # bytes of an element of 2 B: read, owned and written by lines of 64 B; by pairs of them, but for what is written
        (Access(stride=64), 64 + 64 + 64, 128 + 128 + 64),
        (Access(stride=32), 64 + 64 + 64, 64 + 64 + 64),  # two neighbours want both lines of a pair
    ],
)
def test_lines_far_apart_may_be_fetched_in_pairs_on_x86(access: Access, most: int, least: int) -> None:
    found = traffic(Problem(COPY, access, 64 * 64 * access.stride), X86)
    assert (found.unique, found.requests) == (64 * 64 * most, 64 * 64 * least)
    assert traffic(Problem(COPY, access, 64 * 64 * access.stride), CPU).requests == 64 * 64 * most


def test_structs_of_16_bytes_take_four_lines_of_each_request() -> None:
    apart = traffic(Problem(UPDATE, Access(layout="aos"), 32), NVIDIA)
    assert apart.lines["structs", "read"] == (4, 4 * 4) and apart.instructions["structs", "read"] == 4
    whole = traffic(Problem(UPDATE, Access(layout="whole"), 32), NVIDIA)
    assert (whole.sectors["structs", "read"], whole.lines["structs", "read"]) == ((16, 16), (4, 4))


def test_a_random_gather_asks_for_a_line_a_lane() -> None:
    found = traffic(Problem(COPY, Access(index="random"), 1 << 18), NVIDIA)
    assert found.lines["a", "read"][1] / found.instructions["a", "read"] > 31  # of 4096 lines two may be the same


@pytest.mark.parametrize(("layout", "useful", "moved"), [("aos", 28, 32), ("whole", 28, 32)])
def test_a_struct_of_16_bytes_wastes_four_of_32(layout: str, useful: int, moved: int) -> None:
    found = traffic(Problem(UPDATE, Access(layout=layout), 3200), NVIDIA)
    assert found.most == useful / moved


def test_a_struct_field_by_field_asks_for_its_sectors_once_a_field() -> None:
    found = traffic(Problem(UPDATE, Access(layout="aos"), 3200), NVIDIA).sectors["structs", "read"]
    assert found == (1600, 4 * 1600)  # g, p, m and v


def test_a_misaligned_stream_costs_requests_but_hardly_memory() -> None:
    found = traffic(Problem(COPY, Access(offset=1), 1 << 16), NVIDIA)
    assert found.sectors["a", "read"] == (4097, 6144)


def test_a_cpu_reads_the_lines_that_it_writes_unless_stores_stream() -> None:
    assert traffic(Problem(COPY, Access(), 6400), CPU).most == pytest.approx(2 / 3)
    assert traffic(Problem(COPY, Access(hint="streaming"), 6400), CPU).most == 1
    assert traffic(Problem(COPY, Access(), 6400), NVIDIA).most == 1


def test_what_is_updated_in_place_is_read_once() -> None:
    scale = Pattern("k", "k", (_study.patterns("weight_update")[0].streams[2],), ("p = p",))
    assert traffic(Problem(scale, Access(), 6400), CPU).most == 1


def by_bytes(problem: Problem, memory: Memory) -> int:
    """The bytes of unique sectors, from a set of every touched byte: read, written, and read first."""
    read: set[tuple[str, int]] = set()
    written: set[tuple[str, int]] = set()
    for place in problem.places:
        touched = {(place.arena, int(a) + k) for a in addresses(problem, place) for k in range(place.itemsize)}
        read |= touched if place.reads else set()
        written |= touched if place.writes else set()
    if problem.index is not None:
        read |= {("index", k) for k in range(4096, 4096 + 4 * problem.count)}
    cut = {(arena, byte // memory.sector) for arena, byte in read}
    put = {(arena, byte // memory.sector) for arena, byte in written}
    owned = memory.owns and problem.access.hint != "streaming"
    first = {
        (arena, number)
        for arena, number in put
        if owned or not {(arena, number * memory.sector + k) for k in range(memory.sector)} <= written
    }
    return memory.sector * (len(cut) + len(put) + len(first - cut))


@settings(max_examples=60)
@given(
    memory=st.sampled_from([NVIDIA, AMD, CPU]),
    pattern=st.sampled_from([COPY, UPDATE, *(one.of("float32") for one in _study.patterns("triad"))]),
    walk=st.sampled_from(
        [{}, {"offset": 3}, {"stride": 3}, {"layout": "aos"}, {"index": "random"}, {"index": "duplicate"}]
    ),
    inplace=st.booleans(),
    total=st.integers(8, 300),
    hint=st.sampled_from(["", "streaming"]),
)
def test_unique_traffic_is_that_of_the_set_of_touched_bytes(
    memory: Memory, pattern: Pattern, walk: dict[str, object], inplace: bool, total: int, hint: str
) -> None:
    access = Access(**walk, inplace=inplace, hint=hint)  # type: ignore[arg-type]
    problem = Problem(pattern, access, total)
    assert traffic(problem, memory).unique == by_bytes(problem, memory)
    assert traffic(problem, memory).requests >= traffic(problem, memory).unique


def test_predictions_are_shares_of_the_baseline() -> None:
    base = UPDATE.baseline()
    assert predict(UPDATE, base, base, NVIDIA) == (1, 1)
    low, high = predict(COPY, COPY.baseline(), Access(stride=16), NVIDIA)
    assert low == high == 4 / 96  # of each element 4 bytes are of use; 32 are read, 32 read first and 32 written
    low, high = predict(UPDATE, base, Access(index="random"), NVIDIA)
    assert low < 0.1 < high < 1


def test_a_device_has_the_levels_of_what_it_can_vary() -> None:
    found = levels(UPDATE, UPDATE.baseline(), NVIDIA, {"stride", "vector"}, FACTORS)
    assert {level.factor for level in found} == {"width", "stride"}
    assert levels(UPDATE, Access(), CPU, {"stride"}, ["threads"]) == []


GPU = frozenset({field.name for field in fields(Access)} - {"threads"} | {"whole"})


@pytest.mark.parametrize(
    ("base", "memory", "offers"),
    [(UPDATE.baseline(), NVIDIA, GPU), (Access(hint="streaming"), CPU, GPU | {"threads"}), (Access(), CPU, GPU)],
    ids=["gpu", "cpu", "plain"],
)
def test_a_level_differs_in_one_thing_from_the_row_that_it_is_held_against(
    base: Access, memory: Memory, offers: frozenset[str]
) -> None:
    for asked in (list(FACTORS), ["stride"], ["gather", "cache"]):
        found = levels(UPDATE, base, memory, offers, asked)
        rows = {level.name: level.access for level in found} | {"baseline": base}
        assert all(len(level.access.differs(rows[level.against])) == 1 for level in found)


def test_narrow_levels_are_held_against_the_narrowest_width_and_predicted_from_it() -> None:
    base = UPDATE.baseline()
    found = {level.name: level for level in levels(UPDATE, base, NVIDIA, GPU, ["stride", "misalignment", "blocks"])}
    assert {name: level.against for name, level in found.items() if level.against != "baseline"} == dict.fromkeys(
        ["misalignment 1 element", *(f"stride {stride}" for stride in (2, 4, 8, 16, 32))], "width 4 B"
    )
    assert found["width 4 B"].against == "baseline" and found["width 4 B"].access == Access()
    narrow = predict(UPDATE, Access(), Access(stride=8), NVIDIA)
    assert (found["stride 8"].predicted_low, found["stride 8"].predicted_high) == narrow


def test_a_warm_row_is_held_against_one_whose_stores_do_not_pass_the_cache_either() -> None:
    (none, warm) = levels(UPDATE, Access(hint="streaming"), CPU, {"hint", "warm"}, ["cache"])
    assert (none.name, warm.name, warm.against) == ("hint none", "cache warm", "hint none")
    assert warm.predicted_low is warm.predicted_high is None
