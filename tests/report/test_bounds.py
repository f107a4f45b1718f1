"""Bounds of links, held against published arithmetic and against algorithms whose traffic is counted here."""

from __future__ import annotations

import pytest

from commbench.errors import UsageError
from commbench.report.bounds import Links, algbw_bound, nic_rate, parse_links


def test_an_interface_of_a_hierarchical_all_reduce_carries_what_was_published() -> None:
    """Four nodes of 8 B200, busbw 377.34 GB/s: 36.5 GB/s for each of the 32 interfaces (ml-engineering)."""
    algbw = 377.34 / (2 * 31 / 32)
    assert nic_rate("allreduce", 32, 4, algbw) == pytest.approx(377.34 * 3 / 31)


def test_two_nodes_may_show_a_busbw_above_their_interfaces() -> None:
    """Two nodes of 8 ranks with 25 GB/s each: 328 GB/s busbw is legal, as each node sends the buffer about once."""
    most = algbw_bound("allreduce", 16, 2, Links(nic=25.0))
    assert most is not None and most == pytest.approx(200.0)
    assert 328.74 / 1.875 < most < 328.74


def ring(n: int) -> set[tuple[int, int, float]]:
    """What a ring all-gather of n blocks sends: (from, to, parts of the whole)."""
    return {(rank, (rank + 1) % n, (n - 1) / n) for rank in range(n)}


@pytest.mark.parametrize(("n", "k"), [(4, 2), (6, 3), (8, 2)])
def test_a_ring_all_gather_meets_the_bounds(n: int, k: int) -> None:
    """Its time by what each rank and each node receives is no less than the bound's, and on one rank a node equal."""
    into_rank = max(part for _, _, part in ring(n))
    assert algbw_bound("allgather", n, 1, Links(link=7.0)) == pytest.approx(7.0 / into_rank)
    node = {rank: rank * k // n for rank in range(n)}
    into_node = sum(part for a, b, part in ring(n) if node[a] != node[b] == 0)
    most = algbw_bound("allgather", n, k, Links(nic=7.0))
    reached = 7.0 / into_node  # what comes into a node comes over one of its interfaces
    assert most is not None and reached <= most * (1 + 1e-9)
    assert algbw_bound("allgather", n, n, Links(nic=7.0)) == pytest.approx(7.0 / into_rank)


def test_each_rank_of_an_all_to_all_sends_its_part_through_its_nodes_interfaces() -> None:
    n, k, nic = 8, 2, 10.0
    to_others = sum(1 / n for other in range(n) if other // (n // k) != 0)  # of what rank 0 sends
    assert algbw_bound("alltoall", n, k, Links(nic=nic)) == pytest.approx(nic / to_others)
    assert nic_rate("alltoall", n, k, 4.0) == pytest.approx(4.0 * to_others)


@pytest.mark.parametrize(
    ("n", "k", "links"),
    [
        (1, 1, Links(450, 50)),
        (None, None, Links(450, 50)),
        (8, 1, Links(nic=50)),
        (9, 2, Links(450, 50)),
        (8, 2, Links()),
    ],
)
def test_nothing_is_said_where_nothing_is_known(n: int | None, k: int | None, links: Links) -> None:
    assert algbw_bound("allreduce", n, k, links) is None


def test_links_are_of_all_sides_or_of_one() -> None:
    found = parse_links(["450", "B=336"], ["A=50"], ["A", "B"])
    assert found == {"A": Links(450.0, 50.0), "B": Links(336.0, None)}


@pytest.mark.parametrize("text", ["C=450", "fast", "A=", "0", "-3", "nan"])
def test_other_links_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--link"):
        parse_links([text], None, ["A", "B"])
