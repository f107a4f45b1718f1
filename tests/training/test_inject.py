"""Faults: what is asked for, whom it concerns, and in which steps it acts."""

from __future__ import annotations

import pytest

from commbench.errors import UsageError
from commbench.training.inject import JITTER, LATE_DATA, SLOW_COMPUTE, SLOW_RANK, Injection, parse


@pytest.mark.parametrize(
    ("text", "kind", "rank", "amount"),
    [
        ("slow-rank=1:50ms", SLOW_RANK, 1, 0.05),
        ("late-data=12:0.5s", LATE_DATA, 12, 0.5),
        ("slow-compute=0:1.5", SLOW_COMPUTE, 0, 1.5),
        ("jitter=*:800us", JITTER, None, 0.0008),
        ("slow-rank=*:.5ms", SLOW_RANK, None, 0.0005),
    ],
)
def test_a_fault_is_understood(text: str, kind: str, rank: int | None, amount: float) -> None:
    fault = parse(text)
    assert (fault.kind, fault.rank, fault.text) == (kind, rank, text)
    assert fault.amount == pytest.approx(amount)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slow-rank", "--inject is KIND=RANK:AMOUNT, such as slow-rank=1:50ms, not 'slow-rank'"),
        ("slow-rank=1", "--inject is KIND=RANK:AMOUNT"),
        ("slow-rank=:50ms", "--inject is KIND=RANK:AMOUNT"),
        ("slow-rnk=1:50ms", "unknown fault 'slow-rnk': did you mean slow-rank"),
        ("slow-rank=one:50ms", "a rank by its number, or * for every rank, not 'one'"),
        ("slow-rank=-1:50ms", "a rank by its number, or * for every rank, not '-1'"),
        ("slow-rank=1:50", "a time with its unit (50ms, 0.5s, 800us), not 'slow-rank=1:50'"),
        ("jitter=1:-5ms", "a time with its unit"),
        ("late-data=1:99999999999s", "a time of 3600 s at most, not 'late-data=1:99999999999s'"),
        ("slow-compute=1:1", "a factor above 1 and at most 1000, not 'slow-compute=1:1'"),
        ("slow-compute=1:twice", "a factor above 1"),
        ("slow-compute=1:nan", "a factor above 1"),
    ],
)
def test_what_cannot_be_is_refused_with_the_rule(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(text)
    assert said in str(error.value)


def test_faults_act_on_their_rank_from_the_first_measured_step_on() -> None:
    faults = [parse("slow-rank=1:50ms"), parse("slow-rank=1:20ms"), parse("slow-compute=0:1.5")]
    slow, other = (Injection(faults, rank, first=3) for rank in (1, 0))
    assert [slow.seconds(SLOW_RANK, step) for step in (0, 2)] == [0, 0]
    assert slow.seconds(SLOW_RANK, 3) == pytest.approx(0.07)  # of both
    assert other.seconds(SLOW_RANK, 3) == slow.seconds(LATE_DATA, 3) == 0
    assert (slow.factor(3), other.factor(3), other.factor(2)) == (1.0, 1.5, 1.0)


def test_every_other_step_is_a_control_on_all_ranks() -> None:
    ranks = [Injection([parse("slow-rank=1:50ms")], rank, first=3, alternate=True) for rank in (0, 1)]
    acts = [[one.acts(step) for step in range(9)] for one in ranks]
    assert acts == [[False, False, False, False, True, False, True, False, True]] * 2
    assert not any(Injection([], 0, first=0).acts(step) for step in range(4))


def test_jitter_differs_by_rank_step_and_micro_batch_and_repeats_itself() -> None:
    faults = [parse("jitter=*:5ms")]

    def drawn(seed: int) -> list[float]:
        ranks = [Injection(faults, rank, first=0, seed=seed) for rank in (0, 1)]
        return [one.seconds(JITTER, step, micro) for one in ranks for step in range(20) for micro in range(3)]

    found = drawn(1)
    assert found == drawn(1) and found != drawn(2)
    assert len(set(found)) == len(found)
    assert min(found) >= 0 and 0.004 < max(found) <= 0.005
