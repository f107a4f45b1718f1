"""Shares by paired rounds, and which device is slow."""

from __future__ import annotations

from commbench.kernels._result import _against_peers, _share


def test_a_share_is_the_median_over_the_rounds_that_both_have() -> None:
    share = _share({0: 1.0, 1: 4.0, 2: 3.0, 9: 100.0}, {0: 2.0, 1: 2.0, 2: 2.0, 3: 1.0})
    assert share is not None
    assert (share.ratio, share.low, share.high) == (1.5, None, None)
    assert _share({0: 1.0}, {1: 1.0}) is None


def test_a_device_is_slow_if_it_is_so_in_nearly_every_round() -> None:
    quick = [10.0, 11.0, 9.0, 10.5, 10.0, 9.5]
    rates = [dict(enumerate(quick)), dict(enumerate(quick)), {i: rate * 0.8 for i, rate in enumerate(quick)}]
    share = _against_peers(2, rates)
    assert share is not None and 0.79 < share.ratio < 0.81
    assert _against_peers(0, rates) is None
    rates[2][0] = rates[2][1] = rates[2][2] = 12.0  # half of the rounds say otherwise
    assert _against_peers(2, rates) is None


def test_few_rounds_name_nobody() -> None:
    assert _against_peers(1, [{0: 10.0, 1: 10.0}, {0: 1.0, 1: 1.0}]) is None
