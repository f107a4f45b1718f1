"""Shares by paired rounds."""

from __future__ import annotations

from commbench.kernels._result import _share


def test_a_share_is_the_median_over_the_rounds_of_a_session_that_both_have() -> None:
    share = _share(
        {(0, 0): 1.0, (0, 1): 4.0, (0, 2): 3.0, (0, 9): 100.0}, {(0, 0): 2.0, (0, 1): 2.0, (0, 2): 2.0, (1, 9): 1.0}
    )
    assert share is not None
    assert (share.ratio, share.low, share.high) == (1.5, None, None)
    assert _share({(0, 0): 1.0}, {(1, 0): 1.0}) is None
