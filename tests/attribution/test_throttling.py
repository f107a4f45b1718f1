"""What is said of a rank that computes longer, by counters of its node's GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from commbench.attribution.advice import Advice
from commbench.attribution.analyse import analyse
from commbench.attribution.counters import Series
from tests.attribution.test_analyse import STEPS, job, traces_of

LATE = "rank 2 computes longer than the others before it arrives"
TELEMETRY = "python -m commbench.telemetry --out counters/ -- ..."
TRACES = traces_of(job(slow=range(STEPS)))  # on node0, the last of three computes longer
WINDOWS = [one.window for one in analyse(TRACES).layers[2]]
BEGIN, END = WINDOWS[0].start, WINDOWS[-1].end
MIDDLE = WINDOWS[STEPS // 2].start
PART = 100 * sum(one.length for one in WINDOWS[: STEPS // 2]) / sum(one.length for one in WINDOWS)  # before MIDDLE


def advice(counters: Sequence[Series] = (), device: str = "cuda") -> tuple[Advice, ...]:
    return analyse([replace(one, device=device) for one in TRACES], counters=counters).advice


def gpu(name: str, host: str = "node0", at: int = 0, **before: float) -> Series:
    """A GPU throttled by each reason before MIDDLE, in a part (%) of the time, and not at all from there on."""
    times = np.array([BEGIN, MIDDLE, MIDDLE + 1, END], dtype=np.int64) + at
    values = {f"throttle_{reason}": np.array([share, share, 0.0, 0.0]) for reason, share in before.items()}
    return Series(host, name, "gpu", times, values, {}, gauges=frozenset(values))


def test_gpus_that_were_throttled_in_the_steps_are_named_the_worst_first() -> None:
    counters = [gpu("gpu0", thermal=0, power=0), gpu("gpu1", thermal=0, power=40), gpu("gpu2", thermal=100, power=20)]
    (first, *others) = advice(counters)
    gpu2, gpu1 = f"gpu2 by heat {PART:.1f} %, power {PART / 5:.1f} %", f"gpu1 by power {0.4 * PART:.1f} %"
    assert first.text.startswith(f"{LATE} (throttled on its node, of these steps' time: {gpu2}; {gpu1}; 1 GPU not); on")
    assert TELEMETRY not in [one.command for one in others]


def test_of_many_that_were_throttled_the_others_are_counted() -> None:
    text = advice([gpu(f"gpu{number}", power=10 * number) for number in range(6)])[0].text
    assert [f"gpu{number} by" in text for number in range(6)] == [False] * 3 + [True] * 3
    assert "; 2 more, for less; 1 GPU not)" in text


@pytest.mark.parametrize(
    ("counters", "said"),
    [
        ([gpu("gpu0", thermal=0), gpu("gpu1", power=0)], "no GPU of its node was throttled; 2 GPUs recorded"),
        ([gpu("gpu0", "node1", thermal=100)], "the counters given tell nothing of throttling on its node"),
        ([gpu("card0")], "the counters given tell nothing of throttling on its node"),  # AMD's have no reasons
        ([gpu("gpu0", at=10**12, thermal=100)], "the counters given tell nothing of throttling on its node"),
    ],
    ids=["none", "another node", "no reasons", "another time"],
)
def test_nothing_is_said_to_throttle_that_is_not_known_to(counters: Sequence[Series], said: str) -> None:
    assert advice(counters)[0].text.startswith(f"{LATE} ({said}")


def test_telemetry_is_named_where_a_gpu_computes_longer_and_its_counters_are_not_given() -> None:
    first, second, *_ = advice()
    assert first.text.startswith(f"{LATE}; on its node")
    assert (second.command, "heat or power" in second.text) == (TELEMETRY, True)
    for device in ("cpu", "hip"):  # AMD's reasons are not read
        assert not any("heat or power" in one.text for one in advice(device=device))
