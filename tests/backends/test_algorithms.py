"""One canonical name for what libraries spell differently."""

from __future__ import annotations

import pytest

from commbench.backends import _algorithms
from commbench.backends._algorithms import KNOWN, canonical


@pytest.mark.parametrize(
    ("natives", "name"),
    [
        (["brucks", "bruck", "modified_bruck", "Bruck"], "bruck"),
        (["reduce_scatter_allgather", "rabenseifner", "reduce_scatter_gather"], "rabenseifner"),
        (["linear", "basic_linear"], "linear"),
        (["scatter_ring_allgather", "scatter_allgather_ring"], "scatter_allgather_ring"),
        (["nb", "nonblocking"], "nonblocking"),
        (["neighbor", "neighbor_exchange"], "neighbor_exchange"),
        (["Ring", "ring", "RING", " ring "], "ring"),
        (["CollnetDirect", "collnet_direct"], "collnet_direct"),
        (["NVLSTree", "nvls_tree"], "nvls_tree"),
        (["recursive-doubling", "recursive doubling", "recursive_doubling"], "recursive_doubling"),
    ],
)
def test_what_libraries_spell_differently_has_one_name(natives: list[str], name: str) -> None:
    assert {canonical(native) for native in natives} == {name}


def test_scattering_then_gathering_by_doubling_has_one_name_in_both_libraries() -> None:
    assert canonical("scatter_recursive_doubling_allgather") == canonical("scatter_allgather")  # MPICH, Open MPI


def test_a_canonical_name_is_its_own() -> None:
    for name in [*_algorithms._CANONICAL.values(), *KNOWN]:
        assert canonical(name) == name


def test_a_name_that_no_one_listed_stays() -> None:
    assert canonical("Swing-X 2") == "swing_x_2"


def test_what_any_user_may_ask_for_on_any_library_is_known() -> None:
    assert {"auto", "ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat"} <= KNOWN
    assert set(_algorithms._CANONICAL.values()) <= KNOWN
