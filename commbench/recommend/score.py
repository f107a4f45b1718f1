"""The predicted time of a step's communication with ranks on given seats, by the cost model.

The flows of a step follow one another; all groups of a flow are at work together and share the links. Each flow is
carried out by the fastest of the algorithms that it may have, for these seats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commbench.errors import UsageError
from commbench.model import cost as costs
from commbench.model.cost import Cost
from commbench.model.library import Library, choices
from commbench.model.placement import Placement
from commbench.model.routes import Routes
from commbench.model.schedule import NotApplicable, Schedule, Step
from commbench.model.together import schedules
from commbench.recommend.traffic import MATRIX, SENDRECV, Flow, Traffic

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

DIRECT = "direct"  # what is no collective: each rank sends to whom it has to


@dataclass(frozen=True)
class Part:
    """One flow's share of a step."""

    flow: Flow
    algorithm: str
    seconds: float
    cost: Cost
    others: Mapping[str, float] = field(default_factory=dict)  # seconds by each algorithm that was tried

    @property
    def axis(self) -> str:
        """The name of the flow."""
        return self.flow.axis

    def limits(self) -> list[tuple[str, float]]:
        """Return what the time is mostly made of, seconds, the largest first."""
        return [(what, part * self.flow.times) for what, part in self.cost.limits(self.flow.size)]


@dataclass(frozen=True)
class Score:
    """The time of a step's communication, flow by flow."""

    parts: tuple[Part, ...]

    @property
    def seconds(self) -> float:
        """Of all flows."""
        return sum(part.seconds for part in self.parts)

    @property
    def algorithms(self) -> dict[str, str]:
        """The algorithm of each axis."""
        return {part.axis: part.algorithm for part in self.parts}

    def seconds_if(self, algorithm: str, axes: Set[str]) -> float:
        """Return the time where flows of these axes that can are carried out by this algorithm; others as they are."""
        return sum(
            part.others.get(algorithm, part.seconds) if part.axis in axes else part.seconds for part in self.parts
        )

    def limits(self) -> list[tuple[str, float]]:
        """Return what the step waits for, the largest first: ("dp: bandwidth of uplink 0", seconds)."""
        found = [(f"{part.axis}: {name}", seconds) for part in self.parts for name, seconds in part.limits()]
        return sorted(found, key=lambda one: -one[1])


@dataclass(frozen=True)
class Judge:
    """What decides how long a step takes beside where its ranks sit.

    `asked`: algorithms of axes that are given. `preferred`: the one that the library is taken to run wherever it can.
    """

    traffic: Traffic
    library: Library
    asked: Mapping[str, str] = field(default_factory=dict)
    preferred: str = ""

    def __post_init__(self) -> None:
        for flow in self.traffic.flows:
            if flow.collective in (SENDRECV, MATRIX) and flow.axis in self.asked:
                raise UsageError(
                    f"{flow.axis} is a {flow.collective}, sent directly and by no algorithm, and --algo asks for "
                    f"{self.asked[flow.axis]}: leave {flow.axis} out of it, or name a collective (--collectives)"
                )

    def candidates(self, flow: Flow, vendors: Set[str] = frozenset()) -> tuple[str, ...]:
        """Return the algorithms that a flow may have among devices of these vendors; each says itself where it cannot.

        Of several vendors some groups may have devices of one alone, and choose as ever.
        """
        if flow.collective in (SENDRECV, MATRIX):
            return (DIRECT,)
        if flow.axis in self.asked:
            return (self.asked[flow.axis],)
        return tuple(dict.fromkeys((*self.library.algorithms, *choices(self.library, set(vendors)))))

    def score(
        self,
        seats: Placement,
        seat: Ints | None = None,
        algorithms: Mapping[str, str] | None = None,
        routes: Routes | None = None,
    ) -> Score:
        """Return the time of a step with rank r on seat seat[r], by default on the r-th.

        `algorithms` of axes, where they are to be taken and no others tried; `routes` of the seats, which are the same
        for all orders on them.
        """
        routes = routes or Routes(seats, self.library)
        parts, vendors = [], seats.vendors()
        for flow in self.traffic.flows:
            names = (algorithms[flow.axis],) if algorithms else self.candidates(flow, vendors)
            parts.append(self._fastest(flow, names, seats, seat, routes))
        return Score(tuple(parts))

    def _fastest(self, flow: Flow, names: Sequence[str], seats: Placement, seat: Ints | None, routes: Routes) -> Part:
        found: dict[str, tuple[float, Cost]] = {}
        reasons = []
        step = (seats.cluster.step_us or 0.0) * 1e-6
        for name in names:
            try:
                cost = costs.of(self.schedules(flow, name, seats, seat), routes, step)
            except NotApplicable as reason:
                reasons.append(str(reason))
                continue
            found[name] = float(cost.seconds(flow.size)[0]) * flow.times, cost
        if not found:
            raise UsageError(
                f"no algorithm carries out the {flow.collective} of the axis {flow.axis} on {flow.n} ranks "
                f"({'; '.join(dict.fromkeys(reasons))}): name another collective (--collectives) or library (--library)"
            )
        name = self.preferred if self.preferred in found else min(found, key=lambda one: found[one][0])
        return Part(flow, name, *found[name], {one: seconds for one, (seconds, _) in found.items()})

    def schedules(self, flow: Flow, algorithm: str, seats: Placement, seat: Ints | None = None) -> list[Schedule]:
        """Return the transfers of all groups of a flow, between seats; NotApplicable where there is no such thing."""
        members = flow.members if seat is None else seat[flow.members]
        if algorithm == DIRECT:
            return [_direct(flow, members)]
        return schedules(flow.collective, algorithm, seats, members, self.library)


def _direct(flow: Flow, members: Ints) -> Schedule:
    """Return all transfers at once: along each group and back, or those of a matrix."""
    import numpy as np

    def moved(repetition: int) -> tuple[Ints, Ints]:
        raise NotImplementedError("what is sent directly costs time, and proves nothing")

    if flow.matrix is not None:
        source, target = np.nonzero(flow.matrix)
        count: Any = flow.matrix[source, target] / flow.size  # a part of the whole, where others count blocks
        source, target = members[0][source], members[0][target]
    else:
        here, there = members[:, :-1].ravel(), members[:, 1:].ravel()
        source, target = np.concatenate([here, there]), np.concatenate([there, here])
        count = np.ones(len(source), dtype=np.int64)
    return Schedule(1, (Step(source, target, count, moved),))
