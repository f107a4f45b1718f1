"""What is printed, to the letter: people read it, and scripts parse it."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import pytest

from commbench.measure.screen import json_line, number, print_csv, print_nccl_tests, print_rest, print_table
from commbench.results.record import Record
from tests.runs import record

CHANCE = random.Random("screen")


def printed(how: Callable[[Sequence[Record], TextIO], None], *records: Record) -> str:
    out = io.StringIO()
    how(records, out)
    return out.getvalue()


def block(text: str) -> str:
    """The lines of a block between bars, which show where they end."""
    return "".join(line.strip().strip("|") + "\n" for line in text.strip().splitlines())


TABLE = block("""
|#       size         count      type  redop   root  place                 algorithm  protocol      time      low     high   algbw   busbw  #wrong|
|#        (B)    (elements)                                                                      (us)     (us)     (us)  (GB/s)  (GB/s)|
|        1024           256     float    sum     -1    out                      auto         -     10.00      N/A      N/A    0.10    0.15       0|
|     1048576        262144  bfloat16    max     -1     in        recursive_doubling        ll    123.46   120.00   130.50    8.49   12.74     N/A|
|        1024           256     float   none      3    out                 auto>ring         -  12345678 12345678  1.2e+08    0.00    0.00       0|
||
""")  # noqa: E501


def test_the_table() -> None:
    rows = [
        record(),
        record(
            "recursive_doubling",
            1 << 20,
            123.456,
            protocol="ll",
            dtype="bfloat16",
            redop="max",
            inplace=True,
            time_us_low=120.0,
            time_us_high=130.5,
            wrong=None,
        ),
        record(
            time_us=12345678.0,
            time_us_low=12345678.0,
            time_us_high=123456789.0,
            root=3,
            redop=None,
            observed_algorithm="ring",
        ),
    ]
    text = printed(print_table, *rows)
    assert text.partition("# Best")[0] == TABLE


def test_columns_stand_under_their_headings() -> None:
    head, _, row, *_ = printed(print_table, record(time_us_low=9.0, time_us_high=11.0)).splitlines()
    ends = [i for i in range(1, len(head) + 1) if head[i - 1] != " " and head[i : i + 1] in ("", " ")]
    assert [row[:end].split()[-1] for end in ends[1:]] == row.split()


def test_only_what_ran_stands_in_the_table() -> None:
    text = printed(print_table, record(), record("nvls", time_us=None, status="not_applicable", reason="no NVLS"))
    assert "nvls" not in text


BEST = block("""
|# Best algorithm per size, within this launch (~: its interval meets theirs; ?: too few rounds to tell)|
|#        8  ring                          2.00 us  auto 3.00 us (1.50 x)|
|#       1K  auto                         10.00 us  ~ ring, tree|
||
""")


def test_the_best_algorithm_of_each_size_with_its_gain_and_doubt() -> None:
    def at(algorithm: str, size: int, low: float, time: float, high: float) -> Record:
        return record(algorithm, size, time, time_us_low=low, time_us_high=high)

    text = printed(
        print_table,
        at("auto", 8, 2.9, 3.0, 3.1),
        at("ring", 8, 1.9, 2.0, 2.1),
        at("auto", 1024, 9.0, 10.0, 11.0),
        at("ring", 1024, 10.5, 11.5, 12.5),
        at("tree", 1024, 11.0, 12.0, 13.0),
        at("slow", 1024, 11.1, 12.1, 13.1),
    )
    assert text[text.index("# Best") :] == BEST


def test_many_that_are_as_good_are_counted() -> None:
    names = ["auto", "ring", "tree", "bruck", "linear", "chain"]
    text = printed(print_table, *(record(name, 8, 1.0 + i) for i, name in enumerate(names)))
    assert text.splitlines()[-2].endswith(" 1.00 us  ? ring, tree, bruck and 2 more")


def test_no_gain_is_claimed_over_an_auto_that_may_be_as_good() -> None:
    text = printed(print_table, record("ring", 8, 1.0), record("auto", 8, 900.0))
    assert text.splitlines()[-2].endswith(" 1.00 us  ? auto")


def test_without_an_interval_no_order_is_certain() -> None:
    assert "? auto" in printed(print_table, record("auto", 8, 900.0), record("ring", 8, 1.0))


def test_one_algorithm_alone_is_not_called_the_best() -> None:
    assert "Best" not in printed(print_table, record(size=8), record(size=64))


def test_unlike_cells_are_not_held_against_each_other() -> None:
    text = printed(
        print_table,
        *(
            record(name, 8, time, dtype=dtype)
            for name, time, dtype in [("auto", 2.0, "float32"), ("ring", 3.0, "float32")]
        ),
        *(record(name, 8, time, dtype=dtype) for name, time, dtype in [("auto", 9.0, "int8"), ("ring", 8.0, "int8")]),
    )
    best = [line.split() for line in text[text.index("# Best") :].splitlines()[1:] if line]
    assert [(words[2], words[7]) for words in best] == [("float,", "auto"), ("int8,", "ring")]


REST = block("""
|# Without a time:|
|# not_applicable  nvls at 8 to 1M: no NVLS on a CPU|
|#       rejected  ring, neighbor_exchange at 8: fewer elements than ranks|
|#          wrong  tree at 1K: 3 elements differ|
||
""")


def test_what_has_no_time_is_said_once_for_each_reason() -> None:
    rows = [
        record(size=8),
        *(
            record("nvls", size, None, status="not_applicable", reason="no NVLS on a CPU")
            for size in (8, 1024, 1 << 20)
        ),
        record("ring", 8, None, status="rejected", reason="fewer elements than ranks"),
        record("neighbor_exchange", 8, None, status="rejected", reason="fewer elements than ranks"),
        record("tree", 1024, None, status="wrong", reason="3 elements differ", wrong=3),
    ]
    assert printed(print_rest, *rows) == REST
    assert printed(print_rest, record()) == ""


def test_each_group_has_a_table_of_its_own_and_its_own_best() -> None:
    rows = [
        record(algorithm, 8, time, group=group, ranks=ranks, nranks=2, hosts="a,b")
        for group, ranks, times in (("left", "0-1", (1.0, 2.0)), ("right", "2-3", (5.0, 4.0)))
        for algorithm, time in zip(("auto", "ring"), times, strict=True)
    ]
    text = printed(print_table, *rows)
    for group, ranks in (("left", "0-1"), ("right", "2-3")):
        assert f"# Group {group}: 2 ranks ({ranks}) on a,b\n" in text
    best = [line.split() for line in text[text.index("# Best") :].splitlines()[1:] if line]
    assert [(words[2], words[8]) for words in best] == [("left,", "auto"), ("right,", "ring")]
    text = printed(print_nccl_tests, *rows)
    assert [line for line in text.splitlines() if "Group" in line] == ["# Group: left, ranks 0-1"] * 2 + [
        "# Group: right, ranks 2-3"
    ] * 2
    assert "Group" not in printed(print_table, record()) + printed(print_nccl_tests, record())


# nccl-tests

NCCL_TESTS = block("""
|#|
|# Algorithm: ring ll|
|#|
|#                                                              out-of-place                       in-place|
|#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong|
|#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)|
|        1024           256     float     sum      -1    10.00    0.10    0.15      0    20.00    0.05    0.08      0|
|     1048576        262144     float     sum      -1   100.00   10.49   15.73      0      N/A     N/A     N/A    N/A|
|# Out of bounds values : 0 OK|
|# Avg bus bandwidth    : 5.31968|
|#|
""")


def test_the_table_of_nccl_tests() -> None:
    rows = [
        record("ring", 1024, 10.0, protocol="ll"),
        record("ring", 1024, 20.0, protocol="ll", inplace=True),
        record("ring", 1 << 20, 100.0, protocol="ll"),
    ]
    assert printed(print_nccl_tests, *rows) == NCCL_TESTS


def parse(text: str) -> list[list[str]]:
    """The rows as existing scripts read them: lines without a #, by white space."""
    return [line.split() for line in text.splitlines() if line and not line.lstrip().startswith("#")]


ODD: list[dict[str, Any]] = [
    {},
    {"time_us": None, "status": "not_applicable", "reason": "no"},
    {"time_us": None, "status": "not_measured"},
    {"time_us": None, "status": "wrong", "wrong": 3},
    {"time_us": 123456789.0},
    {"size": 1 << 40, "time_us": 1.0},
    {"size": 1 << 40, "count": 1 << 40, "dtype": "bfloat16", "redop": None, "root": 255},
    {"wrong": None},
    {"wrong": 123456789},
]


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("changes", ODD, ids=str)
def test_every_row_has_exactly_13_columns(changes: dict[str, Any], inplace: bool) -> None:
    one = record(inplace=inplace, **changes)
    (row,) = parse(printed(print_nccl_tests, one))
    assert len(row) == 13
    assert (int(row[0]), int(row[1])) == (one.size, one.count)
    assert (row[3], int(row[4])) == (one.redop or "none", -1 if one.root is None else one.root)
    half, other = (row[9:], row[5:9]) if inplace else (row[5:9], row[9:])
    assert other == ["N/A"] * 4
    for text, value in zip(half[:3], (one.time_us, one.algbw, one.busbw), strict=True):
        assert (text == "N/A") if value is None else float(text) == pytest.approx(value, rel=0.05, abs=0.005)


def test_types_have_the_names_of_nccl_tests() -> None:
    rows = parse(printed(print_nccl_tests, *(record(dtype=name) for name in ("float16", "float32", "float64", "int8"))))
    assert [row[2] for row in rows] == ["half", "float", "double", "int8"]


def test_each_algorithm_has_a_table_of_its_own_and_each_size_one_row() -> None:
    rows = [
        record(algorithm, size, inplace=inplace)
        for algorithm in ("auto", "ring")
        for inplace in (False, True)
        for size in (8, 64)
    ]
    text = printed(print_nccl_tests, *rows)
    tables = text.split("# Algorithm: ")[1:]
    assert [table.partition("\n")[0] for table in tables] == ["auto", "ring"]
    assert [[row[0] for row in parse(table.partition("\n")[2])] for table in tables] == [["8", "64"], ["8", "64"]]
    assert "N/A" not in text


def test_the_average_bus_bandwidth_is_the_mean_over_rows_and_halves() -> None:
    rows = [record("auto", 1 << CHANCE.randint(3, 20), CHANCE.uniform(1, 99), inplace=i % 2 > 0) for i in range(9)]
    missing = [record("auto", 1 << 30, None), record("auto", 1 << 29, None, status="wrong", wrong=1)]
    text = printed(print_nccl_tests, *rows, *missing)
    rates = [one.busbw for one in rows if one.busbw is not None]
    (line,) = [line for line in text.splitlines() if line.startswith("# Avg bus bandwidth    : ")]
    assert float(line.split(" : ")[1]) == pytest.approx(sum(rates) / 9, rel=1e-5)


def test_without_any_rate_there_is_no_average() -> None:
    assert "# Avg bus bandwidth    : N/A\n" in printed(print_nccl_tests, record(time_us=None))


def test_wrong_elements_fail_the_table() -> None:
    text = printed(print_nccl_tests, record(), record(size=8, time_us=None, status="wrong", wrong=3))
    assert "# Out of bounds values : 3 FAILED\n" in text


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        (0.0, 6, "  0.00"),
        (1.005, 6, "  1.00"),
        (999.99, 6, "999.99"),
        (9999.99, 6, " 10000"),
        (9999.9, 6, "9999.9"),
        (12345.6, 7, "12345.6"),
        (123456.7, 7, " 123457"),
        (1234567.8, 7, "1234568"),
        (12345678.9, 7, "1.2e+07"),
        (None, 7, "    N/A"),
    ],
)
def test_a_number_loses_decimals_as_the_width_runs_out(value: float | None, width: int, text: str) -> None:
    assert number(value, width) == text


# For programs


def test_json_is_one_line_a_record_with_null_for_what_was_not_measured() -> None:
    for one in (record(), record("nvls", time_us=None, status="not_applicable", reason="no\nNVLS")):
        line = json_line(one)
        assert "\n" not in line
        assert json.loads(line) == one.to_dict()
    assert json.loads(json_line(record(time_us=None)))["busbw"] is None


def test_csv_has_a_heading_and_a_row_a_record_with_nothing_for_what_was_not_measured() -> None:
    records = [record(), record("nvls", time_us=None, status="not_applicable", reason='no NVLS, "here"')]
    rows = list(csv.DictReader(io.StringIO(printed(print_csv, *records))))
    assert len(rows) == 2
    for row, one in zip(rows, records, strict=True):
        assert row == {name: "" if value is None else str(value) for name, value in one.to_dict().items()}
    assert printed(print_csv) == ""
