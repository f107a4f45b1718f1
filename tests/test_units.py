"""Sizes, numbers and rates, in and out."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from commbench.errors import UsageError
from commbench.units import (
    LARGEST,
    approximate_size,
    expand_ranges,
    format_ranges,
    format_size,
    gigabytes_per_second,
    parse_number,
    parse_size,
    parse_whole,
)

CHANCE = random.Random("units")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("0", 0), ("8", 8), ("64K", 65536), ("64k", 65536), ("1M", 1 << 20), ("2G", 2 << 30), ("1T", 1 << 40)),
        *(("1.5M", 3 << 19), (".5K", 512), ("2.K", 2048), ("0.25G", 1 << 28)),
        *(
            ("8B", 8),
            ("1KB", 1024),
            ("1KiB", 1024),
            ("2GiB", 2 << 30),
            ("2 GiB", 2 << 30),
            (" 8 ", 8),
            ("3mib", 3 << 20),
        ),
        *((str(LARGEST), LARGEST), ("4194304T", LARGEST), (str(1 << 53), 1 << 53)),
    ],
)
def test_a_size_is_a_number_with_a_binary_suffix(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "K",
        "-8",
        "+8",
        "8X",
        "8KK",
        "8 8",
        "1e6",
        "nan",
        "inf",
        "0x10",
        "1,5M",
        "8iB8",
        "eight",
        "1_000",
        "8\n8",
    ],
)
def test_what_is_no_size_is_refused_with_the_rule_and_the_value(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_size(text, "-b")
    rule = "-b is a number of bytes, with K, M, G or T behind it if need be (64K, 1M), not "
    assert str(raised.value) == rule + repr(text)


@pytest.mark.parametrize("text", ["0.5", "1.3K", "8.1"])
def test_a_size_is_whole(text: str) -> None:
    with pytest.raises(UsageError, match=f"^-i is a whole number of bytes, not '{text}'$"):
        parse_size(text, "-i")


@pytest.mark.parametrize("text", ["4194305T", "5000000T", "9" * 400])
def test_a_size_has_64_bits_with_a_sign(text: str) -> None:
    with pytest.raises(UsageError, match=r"^-e is at most 2\^62 bytes \(4194304T\), not "):
        parse_size(text, "-e")


def test_large_sizes_are_exact() -> None:
    assert parse_size(str((1 << 53) + 1)) == (1 << 53) + 1
    assert parse_size("4503599627370495.5K") == 4503599627370495 * 1024 + 512


def test_a_size_is_written_with_the_largest_suffix_that_is_exact() -> None:
    texts = {0: "0", 1: "1", 1023: "1023", 1024: "1K", 1025: "1025", 1536: "1536", 65536: "64K", 3 << 20: "3M"}
    assert {size: format_size(size) for size in texts} == texts
    assert (format_size(1 << 40), format_size(LARGEST)) == ("1T", "4194304T")


def test_a_written_size_is_read_as_itself() -> None:
    for _ in range(1000):
        size = CHANCE.randrange(1 << 20) << CHANCE.choice([0, 10, 20, 30])
        assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [
        *((0, "0 B"), (999, "999 B"), (1536, "1.5 KiB"), (1 << 20, "1 MiB"), (int(2.346 * (1 << 30)), "2.35 GiB")),
        *((1 << 40, "1 TiB"), (5 << 40, "5 TiB")),
        *((1000 << 10, "1000 KiB"), (1023 << 30, "1023 GiB"), (int(999.4 * 1024), "999 KiB"), (5000 << 40, "5000 TiB")),
    ],
)
def test_a_size_for_a_person_has_three_digits(size: int, text: str) -> None:
    assert approximate_size(size) == text


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0.0), ("1.5", 1.5), ("1e3", 1000.0), (" 7 ", 7.0), (".5", 0.5), ("-0", 0.0)]
)
def test_a_number_is_read(text: str, value: float) -> None:
    assert parse_number(text, "--budget") == value


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "-1", "1e999", "-0.001"])
def test_a_number_is_finite_and_not_too_small(text: str) -> None:
    with pytest.raises(UsageError, match=f"^--budget is a number of at least 0, not '{text}'$"):
        parse_number(text, "--budget")


@pytest.mark.parametrize("text", ["", "many", "1.2.3", "0x10", "--", "0.9", "nan"])
def test_a_number_has_its_own_least(text: str) -> None:
    assert parse_number("1", "-T", least=1) == 1.0
    with pytest.raises(UsageError, match=f"^-T is a number of at least 1, not '{text}'$"):
        parse_number(text, "-T", least=1)


@pytest.mark.parametrize("text", ["", "many", "1.2.3", "0x10", "--", "0", "-1", "1.5", "1e3", "nan", str(LARGEST + 1)])
def test_what_is_no_whole_number_or_too_small_or_too_large_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"^-n is a whole number of at least 1, not '{text}'$"):
        parse_whole(text, "-n", least=1)


@pytest.mark.parametrize("text", ["0", "10", "9" * 20, "9" * 5000])
def test_a_whole_number_that_has_a_most_is_said_with_it(text: str) -> None:
    assert parse_whole("9", "-n", least=1, most=9) == 9
    with pytest.raises(UsageError, match=f"^-n is a whole number from 1 to 9, not '{text}'$"):
        parse_whole(text, "-n", least=1, most=9)


def test_a_whole_number_is_exact() -> None:
    for text in ("20", " 7 ", "0", str((1 << 53) + 1), str(LARGEST)):
        assert parse_whole(text, "--seed") == int(text)


def test_a_gigabyte_is_a_thousand_million_bytes() -> None:
    assert gigabytes_per_second(10**9, 1.0) == 1.0
    assert gigabytes_per_second(1 << 30, 0.5) == pytest.approx(2.147483648)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([0, 1, 2, 8], "0-2,8"), ([9, 1, 0], "9,1,0"), ([8, 0, 1], "8,0-1"), (range(512), "0-511")],
)
def test_whole_numbers_are_written_as_ranges_in_their_order_and_read_back(numbers: Iterable[int], text: str) -> None:
    assert format_ranges(numbers) == text
    assert expand_ranges(text) == list(numbers)
