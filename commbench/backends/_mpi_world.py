"""The world over MPI. MPI is opened only after the launcher's variables were held against the library, since a launcher
of one MPI with the library of another runs as N lone ranks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from time import sleep
from typing import TYPE_CHECKING, Any

from commbench.backends.world import World, affinity, cores_of_the_job, launch, mismatch, quota
from commbench.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_CPUS = 4096
_SHORTEST_NAP, _LONGEST_NAP = 0.0005, 0.05  # seconds between looks of a rank that sleeps
_OPERATIONS = {"sum": "SUM", "min": "MIN", "max": "MAX"}


class MpiWorld(World):
    """The ranks of this launch, over MPI."""

    def __init__(self, mpi: Any, comm: Any = None) -> None:
        self.mpi = mpi
        # For control traffic; what is measured has a communicator of its own.
        self.comm = mpi.COMM_WORLD if comm is None else comm
        self.rank = self.comm.Get_rank()
        self.size = self.comm.Get_size()
        self._node = self.comm.Split_type(mpi.COMM_TYPE_SHARED)
        self.node_rank = self._node.Get_rank()
        self.node_size = self._node.Get_size()
        self.cores = self._cores()
        self.nodes, crowded = self.total(self.node_rank == 0, self.node_size > self.cores)
        self.node = self._node.bcast(self._first_ranks_before())  # the number of this node, by its lowest rank
        self.crowded = crowded > 0

    def _first_ranks_before(self) -> int:
        """Return how many lower ranks are the first of their node."""
        import numpy as np

        before = np.zeros(1, dtype=np.int64)
        self.comm.Exscan(np.array([self.node_rank == 0], dtype=np.int64), before)
        return int(before[0]) if self.rank else 0

    def _cores(self) -> int:
        """Return how many cores this node's ranks may use together."""
        import numpy as np

        mask = np.zeros(_MOST_CPUS, dtype=np.uint8)
        mask[[cpu for cpu in affinity() if cpu < _MOST_CPUS]] = 1
        bits = np.packbits(mask)
        self._node.Allreduce(self.mpi.IN_PLACE, bits, op=self.mpi.BOR)
        return min(int(np.unpackbits(bits).sum()), quota())

    def subgroup(self, ranks: Sequence[int]) -> MpiWorld | None:
        if self.rank not in ranks:
            return None
        group = self.comm.Get_group().Incl(list(ranks))
        return MpiWorld(self.mpi, self.comm.Create_group(group))

    def hand_over(self, value: Any, giver: int) -> Any:
        if giver == 0:
            return value
        if self.rank == giver:
            self.comm.send(value, dest=0)
            return None
        return self.comm.recv(source=giver)

    def _reduce(self, values: NDArray[Any], how: str) -> NDArray[Any]:
        import numpy as np

        reduced = np.empty_like(values)
        self.comm.Reduce(values, reduced if self.rank == 0 else None, op=getattr(self.mpi, _OPERATIONS[how]))
        return reduced

    def _allreduce(self, values: NDArray[Any], how: str) -> NDArray[Any]:
        import numpy as np

        reduced = np.empty_like(values)
        self.comm.Allreduce(values, reduced, op=getattr(self.mpi, _OPERATIONS[how]))
        return reduced

    def gather_numbers(self, number: float) -> list[float]:
        import numpy as np

        gathered = np.empty(self.size if self.rank == 0 else 0)
        self.comm.Gather(np.array([number]), gathered if self.rank == 0 else None)
        return gathered.tolist()

    def command(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        import numpy as np

        shared = np.array(numbers, dtype=np.int64)
        self.comm.Bcast(shared)
        return tuple(shared.tolist())

    def broadcast(self, value: Any, root: int = 0) -> Any:
        return self.comm.bcast(value, root=root)

    def gather(self, value: Any) -> list[Any] | None:
        gathered: list[Any] | None = self.comm.gather(value)
        return gathered

    def gather_text(self, text: str) -> list[str] | None:
        """As in World; texts have one length, so that they come up a tree."""
        import numpy as np

        (width,) = self.largest(len(text.encode()) or 1)
        mine = np.array([text.encode()], dtype=f"S{width}")
        gathered = np.empty(self.size if self.rank == 0 else 0, dtype=mine.dtype)
        self.comm.Gather(mine.view(np.uint8), gathered.view(np.uint8) if self.rank == 0 else None)
        return [item.decode() for item in gathered.tolist()] if self.rank == 0 else None

    def share_on_node(self, value: Any) -> Any:
        return self._node.bcast(value)

    def meet(self) -> None:
        self.comm.Barrier()

    def meet_asleep(self) -> None:
        request, nap = self.comm.Ibarrier(), _SHORTEST_NAP
        while not request.Test():
            sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)

    def meet_on_node(self) -> None:
        self._node.Barrier()

    def abort(self, code: int) -> None:
        self.comm.Abort(code)

    def close(self) -> None:
        self._node.Free()
        if self.comm == self.mpi.COMM_WORLD:
            self.mpi.Finalize()
        else:
            self.comm.Free()


def open_mpi() -> MpiWorld:
    """Initialise MPI for one thread and return the world; raise UsageError where launcher and library do not fit."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UsageError(
            f"no MPI library can be loaded ({error}): load your cluster's MPI module, or pip install 'commbench[mpich]'"
        ) from None
    from commbench.backends._mpi_t import library_file

    launched = launch()
    vendor = MPI.get_vendor()[0]
    if trouble := mismatch(launched, vendor, library_file()):
        raise UsageError(trouble)
    if vendor in ("Open MPI", "MPICH"):
        library = import_module(f"commbench.backends.{'_openmpi' if vendor == 'Open MPI' else '_mpich'}")
        library.before_init(os.environ, MPI.get_vendor()[1], launched.on_node > cores_of_the_job())
    # Here: once ranks wait in MPI, they keep the cores from those that still load something.
    import numpy  # noqa: F401

    import commbench.backends.mpi  # noqa: F401

    # mpi4py asks for MPI_THREAD_MULTIPLE by default, which costs up to twice the latency.
    MPI.Init_thread(MPI.THREAD_FUNNELED)
    world = MpiWorld(MPI)
    if world.size != launched.size and launched.launcher:
        raise UsageError(
            f"{launched.launcher} launched {launched.size} ranks, but {vendor} sees {world.size}: they do not "
            f"speak to each other; use the launcher that belongs to {vendor} (with srun: --mpi=pmix or --mpi=pmi2)"
        )
    return world
