"""The time of a collective in many groups of ranks at once, as all groups of one axis of a training step are.

Each group has its own schedule, and all of them share the links: their transfers of a step are put together into one,
and cost.py says how long that lasts. Groups of one shape (how their ranks sit on nodes) share a schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from commbench.model import cost as costs
from commbench.model import placement as placements
from commbench.model.cost import Cost
from commbench.model.library import Library
from commbench.model.placement import Placement
from commbench.model.routes import Routes
from commbench.model.schedule import Group, NotApplicable, Schedule, Step, make

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_COMPARED_AT_ONCE = 512  # ranks of a group: numbering by comparing all with all takes the square of it in memory


def together(
    collective: str,
    algorithm: str,
    placement: Placement,
    members: Ints,
    library: Library,
    routes: Routes | None = None,
) -> Cost:
    """Return what one algorithm costs in all groups at once; `members`, (groups, n), are ranks of the placement.

    Each group has a buffer of the size that the cost is asked for. Raises NotApplicable where a group has no such
    algorithm. One group of all ranks costs what cost.cost says.
    """
    step_us = placement.cluster.step_us
    channels = schedules(collective, algorithm, placement, members, library)
    return costs.of(channels, routes or Routes(placement, library), (step_us or 0.0) * 1e-6)


def schedules(collective: str, algorithm: str, placement: Placement, members: Ints, library: Library) -> list[Schedule]:
    """Return the schedules of all groups as one for each channel; `count` is in buffers of a group, and has no blocks.

    Where groups differ in how often they repeat a step, it counts as often as the most patient one does it.
    """
    if members.shape[1] < 2:
        raise NotApplicable(f"{algorithm} takes two ranks, there is {members.shape[1]}")
    shapes = _shapes(placement, members)
    made: list[tuple[list[Schedule], Ints]] = []
    for rows in shapes:
        first = members[rows[0]]
        group = _fewest(placements.group(replace(placement, node=placement.node[first], device=placement.device[first]),
                                        library))  # fmt: skip
        found = [make(algorithm, collective, group, channel) for channel in range(group.channels)]
        made.append((found, _ends(placement, members[rows], group)))
    count = max(len(found) for found, _ in made)
    return [
        _joined([(found[channel], ends, count / len(found)) for found, ends in made if channel < len(found)])
        for channel in range(count)
    ]


def _shapes(placement: Placement, members: Ints) -> list[list[int]]:
    """Return the groups that sit alike, as rows of members."""
    import numpy as np

    arrays = placement.cluster.arrays
    node = placement.node[members]
    alike = np.stack(
        [
            _first_alike(node),
            _first_alike(arrays.domain[node]),
            arrays.node_class[node].astype(np.int64),
            placement.device[members],
        ],
        axis=1,
    )
    found: dict[bytes, list[int]] = {}
    for row in range(len(members)):
        found.setdefault(alike[row].tobytes(), []).append(row)
    return list(found.values())


def _first_alike(values: NDArray[Any]) -> Ints:
    """Return for each value the place of the first one in its row that is equal."""
    import numpy as np

    if values.shape[1] <= _COMPARED_AT_ONCE:
        return np.asarray((values[:, :, None] == values[:, None, :]).argmax(axis=2))
    rows = []
    for row in values:
        _, first, inverse = np.unique(row, return_index=True, return_inverse=True)
        rows.append(first[inverse])
    return np.stack(rows)


def _fewest(group: Group) -> Group:
    """Return a group whose channels all are alike with one of them: a ring six times with a sixth each is one ring."""
    orders = {order.tobytes(): order for order in group.orders}
    return replace(group, orders=tuple(orders.values())) if len(orders) == 1 else group


def _ends(placement: Placement, members: Ints, group: Group) -> Ints:
    """Return the endpoints of the whole placement that those of groups of one shape are: (groups, endpoints)."""
    import numpy as np

    _, domain = np.unique(placement.cluster.arrays.domain[placement.node], return_inverse=True)
    _, first = np.unique(group.domain, return_index=True)
    switches = placement.n + domain[members[:, first]]
    top = np.full((len(members), 1), placement.n + int(domain.max()) + 1)
    return np.concatenate([members, switches, top], axis=1)


def _joined(parts: Sequence[tuple[Schedule, Ints, float]]) -> Schedule:
    """Return schedules as one; each is carried out by as many groups as it has rows of endpoints, at a weight."""
    import numpy as np

    def moved(repetition: int) -> tuple[Ints, Ints]:
        raise NotImplementedError("schedules of several groups cost time, and prove nothing")

    steps = []
    for place in range(max(len(schedule.steps) for schedule, _, _ in parts)):
        here = [(one.steps[place], one.blocks, ends, weight) for one, ends, weight in parts if place < len(one.steps)]
        steps.append(
            Step(
                np.concatenate([ends[:, step.source].ravel() for step, _, ends, _ in here]),
                np.concatenate([ends[:, step.target].ravel() for step, _, ends, _ in here]),
                np.concatenate([np.tile(one.count * (weight / n), len(ends)) for one, n, ends, weight in here]),
                moved,
                here[0][0].reduce,
                max(step.times for step, _, _, _ in here),
            )
        )  # fmt: skip
    return Schedule(1, tuple(steps), parts[0][0].pipelined)
