"""YAML with its lines, and nothing that could do harm."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given

from commbench.topology.reading import TopologyError
from commbench.topology.yaml_tree import DEEPEST, load, quote
from tests.topology.clusters import PLAIN


def test_every_place_knows_its_line() -> None:
    root = load("a: 1\nb:\n- x\n- {c: y}\n", "f")
    assert root.entries is not None
    assert root.keys == {"a": 1, "b": 2}
    items = root.entries["b"].items
    assert items is not None
    assert [one.line for one in items] == [3, 4]


def test_a_scalar_keeps_its_text() -> None:
    for text in ("no", "010", "1e3", "12:30", "1_000", "0x10", "2026-01-01"):
        root = load(f"a: {text}\n", "f")
        assert root.entries is not None
        assert root.entries["a"].text == text


@given(value=PLAIN)
def test_what_is_quoted_is_read_as_the_same(value: object) -> None:
    text = f"a: {quote(value)}\n"
    assert load(text, "f").value == {"a": value}
    assert yaml.safe_load(text) == {"a": value}


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("a: 1\nb: &x [1]\nc: *x\n", 3, "aliases"),
        ("a: !mine 1\n", 1, "tags"),
        ("a: 1\na: 2\n", 2, "in line 1"),
        ("a: 1\n---\nb: 2\n", 3, "one document"),
        ("a:\n  b: 1\n c: 2\n", 3, "no YAML"),
        ("{[1]: 2}\n", 1, "a key is a word"),
        ("a: " + "[" * (DEEPEST + 1), 1, "deep"),
    ],
)
def test_what_is_not_taken_is_refused_with_its_line(text: str, line: int, why: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load(text, "f")
    assert str(caught.value).startswith(f"f:{line}: ")
    assert why in str(caught.value)


def test_an_empty_file_is_an_empty_word() -> None:
    assert load("", "f").value is None
    assert load("# nothing\n", "f").value is None
