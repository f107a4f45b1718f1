"""Shares by paired rounds, and which device is slow."""

from __future__ import annotations

from commbench.results.kernels import _of_others, _share


def test_a_share_is_the_median_over_the_rounds_that_both_have() -> None:
    share = _share({0: 1.0, 1: 4.0, 2: 3.0, 9: 100.0}, {0: 2.0, 1: 2.0, 2: 2.0, 3: 1.0})
    assert share is not None
    assert (share.ratio, share.low, share.high) == (1.5, None, None)
    assert _share({0: 1.0}, {1: 1.0}) is None


def slow(rank: int, rates: list[dict[int, float]]) -> bool:
    share = _of_others(rank, rates)
    return share is not None and share.surely_below(1 / 1.05)


def test_a_device_is_slow_if_it_is_so_in_nearly_every_round() -> None:
    quick = [10.0, 11.0, 9.0, 10.5, 10.0, 9.5]
    rates = [dict(enumerate(quick)), dict(enumerate(quick)), {i: rate * 0.8 for i, rate in enumerate(quick)}]
    share = _of_others(2, rates)
    assert share is not None and 0.79 < share.ratio < 0.81
    assert slow(2, rates) and not slow(0, rates)
    rates[2][0] = rates[2][1] = rates[2][2] = 12.0  # half of the rounds say otherwise
    assert not slow(2, rates)


def test_few_rounds_name_nobody() -> None:
    assert not slow(1, [{0: 10.0, 1: 10.0}, {0: 1.0, 1: 1.0}])
