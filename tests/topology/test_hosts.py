"""Lists of hosts, as Slurm writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.errors import UsageError
from commbench.topology.hosts import counterparts, expand, fold, same_host


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n[01-03,07]", ["n01", "n02", "n03", "n07"]),
        ("n13,n01,n13", ["n13", "n01", "n13"]),
        ("a[1-2]-ib,b", ["a1-ib", "a2-ib", "b"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("login", ["login"]),
        ("n[098-101]x", ["n098x", "n099x", "n100x", "n101x"]),
        ("n[1-2]m[8,10-11]", ["n1m8", "n1m10", "n1m11", "n2m8", "n2m10", "n2m11"]),
    ],
)
def test_lists_name_their_hosts_in_order(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "n[01-08",
        "n01-08]",
        "",
        "a,,b",
        "a&b",
        "@all",
        "n[4-1]",
        "n[1-x]",
        "n[1-9999999]",
        "r[1-2000]n[1-2000]",
        "n[1-99999999999999999999]",
        "a b",
        "n[1-9/2]",
        "n[001-1]",
        f"n[1-{'9' * 5000}]",
        "n[1]2]",
    ],
)
def test_what_is_no_list_is_refused_with_what_it_is(text: str) -> None:
    with pytest.raises(UsageError, match=r"a list of hosts is written like n\[01-04,07\], not"):
        expand(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n03", "n01", "n02", "m1"], "m1,n[01-03]"),
        (["n9", "n10", "n11", "n13"], "n[9-11,13]"),
        (["n08", "n09", "n10", "n011"], "n[08-10],n011"),
        (["n1", "n01", "n2"], "n[1-2],n01"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
        (["a1-ib", "a2-ib", "login"], "a1-ib,a2-ib,login"),  # Slurm refuses a[1-2]-ib
        (["n0", "n0", "7"], "7,n0"),
        ([], ""),
        ([f"n{k}" for k in range(65_537)], "n[0-65535,65536]"),  # and a range of more than 65,536
        (["x" + "9" * 20], "x" + "9" * 20),
    ],
)
def test_folding_makes_lists_that_slurm_takes(names: list[str], text: str) -> None:
    assert fold(names) == text


@given(st.sets(st.from_regex(r"[a-z0-9]{1,2}[-.]?[0-9]{0,3}[a-z]?", fullmatch=True)))
def test_what_is_folded_names_the_same_hosts(names: set[str]) -> None:
    found = expand(fold(names)) if names else []
    assert sorted(found) == sorted(names)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("n1", "n1", True),
        ("n1", "n1.cluster.example", True),
        ("n1.cluster.example", "n1", True),
        ("n1.a", "n1.b", False),
        ("n1", "n11", False),
    ],
)
def test_names_of_one_host(one: str, other: str, same: bool) -> None:
    assert same_host(one, other) == same
    assert counterparts([one], [other]) == {one: [other] if same else []}


def test_a_name_may_be_that_of_several() -> None:
    assert counterparts(["n1", "n2.a"], ["n1.a", "n1.b", "n1", "n2"]) == {"n1": ["n1.a", "n1.b", "n1"], "n2.a": ["n2"]}
