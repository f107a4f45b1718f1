"""The model in place of a library: how long each schedule takes on a described cluster. Nothing is sent or measured.

It has the half of a backend's contract that a plan is made by (what exists, and what does not), and `predict` instead
of plans that run: commbench/measure/predict.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commbench.backends.base import AUTO, HOST, MODEL, Algorithm, Availability, Call
from commbench.errors import UsageError
from commbench.model import cost as costs
from commbench.model import placement as placements
from commbench.model.cost import Cost
from commbench.model.library import Library, choices
from commbench.model.placement import Placement
from commbench.model.routes import Routes
from commbench.model.schedule import NotApplicable, collectives, names
from commbench.topology.cluster import Cluster

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EVIDENCE = "predicted by the model"


@dataclass
class Backend:
    """A library's habits on a cluster, with ranks on its nodes in their order, `per_node` on each."""

    cluster: Cluster = field(default_factory=Cluster)
    habits: Library = field(default_factory=lambda: Library("mpi", False, ()))
    per_node: int | None = None

    name = MODEL
    library_file = ""
    simulated = True
    method = MODEL
    needs_mpi = False
    buffers: Sequence[str] = (HOST,)
    protocols: Sequence[str] = ()
    averages = True
    graphs = False
    choice_is_costly = False
    on_device = False

    def __post_init__(self) -> None:
        self.library = f"model of {self.habits.name} on {self.cluster.name or 'a cluster without a name'}"
        if self.habits.by_node:
            self.buffers = ("plain",)  # of devices, as records of these libraries have it
        self._placed: dict[int, tuple[Placement, Routes]] = {}
        self._costs: dict[tuple[str, str, int], Cost | str] = {}

    @staticmethod
    def probe() -> Availability:
        """Say that it runs anywhere."""
        return Availability(True)

    def open(self, world: Any, settings: Any = None) -> None:
        """Refuse to be measured."""
        raise UsageError(
            "the model predicts, and has nothing that could be measured: --backend mpi, gloo, nccl or rccl"
        )

    def algorithms(self, collective: Any) -> list[Algorithm]:
        """Return every schedule that there is, after `auto`: the best of those that the library has."""
        return [Algorithm(name, name) for name in (AUTO, *names())]

    def refusal(self, call: Call, ranks: Sequence[int]) -> str:
        """Return why there is no such schedule, or nothing."""
        return self._why_not(call.collective.name, call.algorithm.name, len(ranks))

    def placement(self, n: int) -> Placement:
        """Return where so many ranks sit."""
        return self._place(n)[0]

    def cost(self, collective: str, algorithm: str, n: int) -> Cost | str:
        """Return what a schedule costs, or why there is none."""
        key = (collective, algorithm, n)
        if key not in self._costs:
            placement, routes = self._place(n)
            try:
                self._costs[key] = costs.cost(collective, algorithm, placement, self.habits, routes)
            except NotApplicable as reason:
                self._costs[key] = str(reason)
        return self._costs[key]

    def predict(
        self, collective: str, algorithm: str, n: int, sizes: Sequence[int]
    ) -> tuple[NDArray[np.float64], list[str]]:
        """Return the seconds of each size, and the schedule that they are of: AUTO takes the library's best."""
        import numpy as np

        wanted = self._known(collective, n) if algorithm == AUTO else [algorithm]
        found = [self.cost(collective, one, n) for one in wanted]
        times = np.array([one.seconds(np.array(sizes)) for one in found if isinstance(one, Cost)])
        best = times.argmin(axis=0)
        return times.min(axis=0), [wanted[place] for place in best]

    def instant(self) -> list[str]:
        """Return the tiers that schedules take and whose latency nobody said, so that it counts as none."""
        taken = {tier for one in self._costs.values() if isinstance(one, Cost) for tier in one.loaded}
        return sorted(taken & {tier for _, routes in self._placed.values() for tier in routes.instant})

    def _known(self, collective: str, n: int) -> list[str]:
        """Return what `auto` chooses from of the schedules that exist here."""
        known = choices(self.habits, self.placement(n).vendors())
        return [one for one in known if isinstance(self.cost(collective, one, n), Cost)]

    def _why_not(self, collective: str, algorithm: str, n: int) -> str:
        if algorithm in names() and collective not in collectives(algorithm):
            return f"the model has no such schedule of {collective}"
        if algorithm != AUTO:
            found = self.cost(collective, algorithm, n)
            return found if isinstance(found, str) else ""
        if self._known(collective, n):
            return ""
        if n < 2:
            return f"a collective takes two ranks, there is {n}"
        known = ", ".join(choices(self.habits, self.placement(n).vendors()))
        return f"no schedule of the model does {collective} here as {self.habits.name} would, which has {known}"

    def _place(self, n: int) -> tuple[Placement, Routes]:
        if n not in self._placed:
            placement = placements.fill(self.cluster, n, self.per_node)
            self._placed[n] = placement, Routes(placement, self.habits)
        return self._placed[n]
