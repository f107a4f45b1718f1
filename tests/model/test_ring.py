"""The ring, proved by sets."""

from __future__ import annotations

import pytest

from commbench.model.schedule import NotApplicable
from commbench.model.schedules import ring
from tests.model.groups import SHAPES, group
from tests.model.proof import prove


@pytest.mark.parametrize("sizes", [sizes for sizes in SHAPES if sum(sizes) > 1])
@pytest.mark.parametrize("collective", ring.COLLECTIVES)
def test_a_ring_computes_its_collective(collective: str, sizes: tuple[int, ...]) -> None:
    some = group(*sizes, channels=2)
    for channel in range(2):
        prove(collective, some, ring.schedule(collective, some, channel))


def test_a_ring_of_one_is_none() -> None:
    with pytest.raises(NotApplicable, match="two ranks"):
        ring.schedule("allreduce", group(1))
