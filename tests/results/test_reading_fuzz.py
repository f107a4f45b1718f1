"""Logs that were cut, reordered and corrupted: never an exception but ours, never a number that contradicts itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from commbench.errors import ResultsError
from commbench.results.reading import Reading, factor_agrees, rate_agrees, read
from tests.results import logs

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

TIMES = [(8 << place, 20.0 + (8 << place) / 2e5, 21.0 + (8 << place) / 2e5) for place in range(0, 28, 3)]
ONE = [(size, out) for size, out, _ in TIMES]
TEXTS = (
    logs.nccl_tests(TIMES),
    logs.nccl_tests(TIMES, old=True, prefix="[1,0]<stdout>:"),
    logs.nccl_tests(TIMES, rows_only=True),
    logs.nccl_json(TIMES),
    logs.rccl_csv(ONE),
    logs.rccl_json(ONE),
    logs.osu(ONE, n=4),
    logs.imb(ONE),
    logs.inspector([(size, int(time)) for size, time in ONE]),
)


def cut(text: str, rng: random.Random) -> str:
    ends = sorted(rng.choices(range(len(text) + 1), k=2))
    return text[: ends[0]] + text[ends[1] :]


def reorder(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    start, end = sorted(rng.choices(range(len(lines) + 1), k=2))
    part = lines[start:end]
    rng.shuffle(part)
    return "".join(lines[:start] + part + lines[end:])


def swap_digits(text: str, rng: random.Random) -> str:
    places = [place for place, letter in enumerate(text) if letter.isdigit()]
    letters = list(text)
    for place in rng.sample(places, min(3, len(places))):
        letters[place] = rng.choice("0123456789")
    return "".join(letters)


def noise(text: str, rng: random.Random) -> str:
    place = rng.randrange(len(text) + 1)
    junk = "".join(chr(rng.choice((rng.randrange(1, 128), rng.randrange(1, 0x3000)))) for _ in range(rng.randrange(9)))
    return text[:place] + junk + text[place + rng.randrange(4) :]


def words(text: str, rng: random.Random) -> str:
    parts = text.split(" ")
    parts[rng.randrange(len(parts))] = rng.choice(
        ("nan", "inf", "-1", "1e400", "N/A", "", "9" * 40, "²", "[]", "{}", '"')
    )
    return " ".join(parts)


def join(text: str, rng: random.Random) -> str:
    return text + rng.choice(TEXTS)


HARM: tuple[Callable[[str, random.Random], str], ...] = (cut, reorder, swap_digits, noise, words, join)


def accepted(it: Reading) -> None:
    """The identities hold for every number that a reading kept, and its average, or a finding says why not."""
    rules = {finding.rule for finding in it.findings}
    for record, line in it.located():
        assert line >= 1
        assert 0 <= record.size <= 1 << 62
        times = [record.time_us, record.time_us_min, record.time_us_max, record.algbw, record.busbw]
        assert all(value is None or 0 <= value < float("inf") for value in times)
        if record.status != "ok":
            assert (record.time_us, record.algbw, record.busbw) == (None, None, None)
            assert record.reason
            continue
        if record.time_us and record.algbw is not None and record.collective != "pingpong":
            assert rate_agrees(record.size, record.time_us, record.algbw)
        if record.busbw is not None and record.algbw is not None and record.busbw_factor is not None:
            assert factor_agrees(record.algbw, record.busbw, record.busbw_factor)
    for table in it.tables:
        average = table.beside.get("average")
        rates = [row.busbw for row in table.rows if row.busbw is not None]
        if average is not None and len(rates) == len(table.rows):
            mean = sum(rates) / len(rates)
            assert abs(average - mean) <= 0.02 + 2e-3 * mean or rules & {"average", "row"}


@settings(max_examples=300)
@given(st.sampled_from(TEXTS), st.lists(st.sampled_from(HARM), min_size=1, max_size=4), st.integers(0, 2**32))
def test_harm_never_makes_a_reader_fail_or_invent(text: str, harm: list[Callable[..., str]], seed: int) -> None:
    from tempfile import TemporaryDirectory

    rng = random.Random(seed)
    for one in harm:
        text = one(text, rng) or " "
    with TemporaryDirectory() as folder:
        path = Path(folder, "log")
        path.write_text(text, encoding="utf-8", errors="replace")
        try:
            it = read(path)
        except ResultsError:
            return
        accepted(it)


@settings(max_examples=100)
@given(st.binary(max_size=400))
def test_bytes_never_make_a_reader_fail(content: bytes) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder, "log")
        path.write_bytes(content)
        with suppress(ResultsError):
            accepted(read(path))
