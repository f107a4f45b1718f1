"""Shares by paired rounds."""

from __future__ import annotations

from commbench.results.kernels import _of_others, _share


def test_a_share_is_the_median_over_the_rounds_of_a_session_that_both_have() -> None:
    mine = {(0, 0): 1.0, (0, 1): 4.0, (0, 2): 3.0, (0, 9): 100.0}
    share = _share(mine, {(0, 0): 2.0, (0, 1): 2.0, (0, 2): 2.0, (1, 9): 1.0})
    assert share is not None
    assert (share.ratio, share.low, share.high) == (1.5, None, None)
    assert _share({(0, 0): 1.0}, {(1, 0): 1.0}) is None


def test_a_share_of_the_others_is_of_their_median_in_rounds_that_all_have() -> None:
    rates = [{(0, 0): 8.0, (0, 1): 8.0}, {(0, 0): 10.0, (0, 1): 1.0}, {(0, 0): 30.0}]
    share = _of_others(0, rates)
    assert share is not None and share.ratio == 0.4
