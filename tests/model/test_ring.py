"""What a ring moves, and where."""

from __future__ import annotations

from fractions import Fraction

import pytest

from commbench.model.schedule import make
from tests.model.groups import SHAPES, group
from tests.model.traffic import repetitions, sent

COUNTED = [sizes for sizes in SHAPES if sum(sizes) > 1]


@pytest.mark.parametrize("sizes", COUNTED)
@pytest.mark.parametrize(("collective", "rounds"), [("allreduce", 2), ("allgather", 1), ("reducescatter", 1)])
def test_every_rank_sends_an_nth_in_each_step(collective: str, rounds: int, sizes: tuple[int, ...]) -> None:
    some, n = group(*sizes), sum(sizes)
    ring = make("ring", collective, some)
    assert sent(some, ring)[:n] == [Fraction(rounds * (n - 1), n)] * n
    assert repetitions(ring) == rounds * (n - 1)


@pytest.mark.parametrize("name", ["ring", "pipeline"])
@pytest.mark.parametrize(("collective", "last"), [("broadcast", -1), ("reduce", 0)])
def test_rooted_rings_pass_the_whole_buffer_on_once(name: str, collective: str, last: int) -> None:
    some = group(3, 3)
    made = make(name, collective, some)
    assert made.pipelined and repetitions(made) == 5
    out = sent(some, made)[:6]
    assert out.pop(last) == 0 and out == [1] * 5


def test_a_ring_crosses_each_node_once() -> None:
    some = group(4, 4, 4, channels=4)
    for channel in range(4):
        ring = make("ring", "broadcast", some, channel)
        crossings = sum(int(some.node[step.source[0]] != some.node[step.target[0]]) for step in ring.steps)
        # A chain begins at the root: where the root is not the first of its node, the ring comes back there.
        assert crossings == (2 if channel == 0 else 3)
