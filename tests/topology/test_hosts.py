"""Lists of hosts, as Slurm writes them."""

from __future__ import annotations

import pytest

from commbench.errors import UsageError
from commbench.topology.hosts import expand, fold


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


def test_folding_makes_ranges_of_the_last_number() -> None:
    assert fold(["r1n1", "r1n2", "r2n1", "r2n2"]) == "r1n[1-2],r2n[1-2]"
    assert fold(["n03", "n01", "n02", "m1"]) == "m1,n[01-03]"
    assert sorted(expand(fold(f"x{k:03}" for k in range(300)))) == [f"x{k:03}" for k in range(300)]
