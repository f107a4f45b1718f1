"""NVLS: the switch of an NVLink domain adds up what it reads from all ranks, and multicasts (NVLink SHARP), pipelined.

Every rank has a share of the buffer. The switch reads all ranks' copies of a share and gives the sum to its rank, which
writes it back to the switch, which writes it to all (NCCL's `src/device/all_reduce.h`, RunWorkColl of NCCL_ALGO_NVLS:
multimem loads that reduce and stores). A rank so sends and receives 1 + 1/n of the buffer, whatever n is. Over several
domains ranks of the same place have a share together, and between the two halves the network's switches add up (SHARP).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commbench.model.schedule import Group, NotApplicable, Schedule, Step, listed, places, whole

if TYPE_CHECKING:
    from commbench.model.schedule import Ints

COLLECTIVES = ("allreduce", "allgather", "reducescatter")


def schedule(collective: str, group: Group, channel: int = 0) -> Schedule:
    """Return the schedule of one channel."""
    check(group)
    if group.domains > 1 and not group.network_reduces:
        raise NotApplicable(
            f"{group.domains} NVLink domains and a network whose switches do not add up (SHARP): nvls_tree goes between"
        )
    n, grid = group.n, places(group, channel)
    ranks = np.arange(n)
    switch, network = n + group.domain, np.full(n, n + group.domains)
    place = np.empty_like(ranks)
    place[grid] = np.arange(grid.shape[1])

    def own(source: Ints, target: Ints) -> Step:  # the block of each rank
        return listed(source, target, ranks[:, None])

    def share(source: Ints, target: Ints, reduce: bool = False) -> Step:  # those of its place
        def moved(repetition: int) -> tuple[Ints, Ints]:
            return np.repeat(ranks, group.domains), grid.T[place].ravel()

        return Step(source, target, np.full(n, group.domains), moved, reduce)

    across = group.domains > 1
    steps: list[Step] = []
    if collective != "allgather":
        steps += [whole(ranks, switch, n, reduce=True), share(switch, ranks)]
        if across:
            steps.append(share(ranks, network, reduce=True))
            steps.append((share if collective == "allreduce" else own)(network, ranks))
    elif across:
        steps += [own(ranks, network), share(network, ranks)]
    if collective != "reducescatter":
        steps += [share(ranks, switch), whole(switch, ranks, n)]
    return Schedule(n, tuple(steps), pipelined=True)


def check(group: Group) -> None:
    """Raise NotApplicable where the domains' switches cannot add up for the ranks."""
    if not group.domain_reduces:
        raise NotApplicable("no switch that adds up (NVLink SHARP) in the NVLink domains")
    if np.bincount(group.domain).min() < 2:
        raise NotApplicable("an NVLink domain with a single rank: its switch has nothing to add up")
