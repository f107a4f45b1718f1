"""The ranks of a launch: who they are, where they sit, and how they agree, beside whatever is being measured.

`World` is the control plane. It opens MPI only after the launcher's variables were held against the library, since
a launcher of one MPI with the library of another runs as N lone ranks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from time import sleep
from typing import TYPE_CHECKING, Any

from commbench import cgroup
from commbench.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# How each launcher tells a process its rank, the number of ranks, and how many of them share its node.
_LAUNCHERS = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS_PER_NODE"),
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
)

_MOST_CPUS = 4096
_SHORTEST_NAP, _LONGEST_NAP = 0.0005, 0.05  # seconds between looks of a rank that sleeps
# By which launcher's variables each vendor's library finds its ranks.
_SPEAKS = {"Open MPI": "Open MPI", **dict.fromkeys(("MPICH", "MPICH2", "MVAPICH", "MVAPICH2", "Intel MPI"), "MPICH")}


@dataclass(frozen=True)
class Launch:
    """What the launcher says of this process."""

    launcher: str = ""
    rank: int = 0
    size: int = 1
    on_node: int = 1  # as far as the launcher tells


def launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Read the launcher's variables; without any this process is alone."""
    for name, rank, size, on_node in _LAUNCHERS:
        if environment.get(rank, "").isdigit() and environment.get(size, "").isdigit():
            slurm = name == "MPICH" and "SLURM_PROCID" in environment and on_node not in environment
            local = environment.get(on_node, "")
            return Launch(
                "Slurm" if slurm else name,
                int(environment[rank]),
                int(environment[size]),
                int(local) if local.isdigit() else 1,
            )
    return Launch()


def mismatch(launched: Launch, vendor: str, path: str) -> str:
    """Return why a process of this launcher cannot use the MPI library of `vendor`, and the remedy; empty if it can."""
    ours = _SPEAKS.get(vendor, "")
    if launched.launcher == "torchrun":
        return "the mpi backend cannot be launched by torchrun: use mpirun or srun"
    if launched.launcher not in ("Open MPI", "MPICH") or not ours or launched.launcher == ours:
        return ""
    return (
        f"this job was launched by {launched.launcher}'s mpirun, but mpi4py loads {vendor} ({path or 'path unknown'}): "
        f"use the mpirun that belongs to {vendor}, or point MPI4PY_LIBMPI at {launched.launcher}'s libmpi"
    )


def _cores_of_the_job() -> int:
    """Return how many cores this node's ranks may use together, as far as is known before they can ask one another.

    A rank may be bound to a core of its own; the launcher's process above it has the whole allocation.
    """
    cpus = _affinity()
    if hasattr(os, "sched_getaffinity"):
        with suppress(OSError):
            cpus |= os.sched_getaffinity(os.getppid())
    return min(len(cpus), _quota())


def _affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _quota() -> int:
    """Return the cores that control groups allow, a very large number where they do not say."""
    quota = cgroup.cores()
    return 1 << 30 if quota is None else max(1, round(quota))


class World:
    """The ranks of this launch, over MPI. The constructor is collective, and any method that does not say otherwise."""

    def __init__(self, mpi: Any, comm: Any = None) -> None:
        self.mpi = mpi
        # For control traffic; what is measured has a communicator of its own.
        self.comm = mpi.COMM_WORLD if comm is None else comm
        self.rank: int = self.comm.Get_rank()
        self.size: int = self.comm.Get_size()
        self._node = self.comm.Split_type(mpi.COMM_TYPE_SHARED)
        self.node_rank: int = self._node.Get_rank()
        self.node_size: int = self._node.Get_size()
        self.cores = self._cores()
        self.nodes, crowded = self.total(self.node_rank == 0, self.node_size > self.cores)
        self.node: int = self._node.bcast(self._first_ranks_before())  # the number of this node, by its lowest rank
        self.crowded = crowded > 0  # ranks outnumber cores on some node

    def _first_ranks_before(self) -> int:
        """Return how many lower ranks are the first of their node."""
        import numpy as np

        before = np.zeros(1, dtype=np.int64)
        self.comm.Exscan(np.array([self.node_rank == 0], dtype=np.int64), before)
        return int(before[0]) if self.rank else 0

    def subgroup(self, ranks: Sequence[int]) -> World | None:
        """Return the world of these ranks, in their order, on each of them; None elsewhere."""
        if self.rank not in ranks:
            return None
        group = self.comm.Get_group().Incl(list(ranks))
        return World(self.mpi, self.comm.Create_group(group))

    def hand_over(self, value: Any, giver: int) -> Any:
        """Return on rank 0 what rank `giver` hands over; these two call it, or rank 0 alone where it is the giver."""
        if giver == 0:
            return value
        if self.rank == giver:
            self.comm.send(value, dest=0)
            return None
        return self.comm.recv(source=giver)

    def _cores(self) -> int:
        """Return how many cores this node's ranks may use together."""
        import numpy as np

        mask = np.zeros(_MOST_CPUS, dtype=np.uint8)
        mask[[cpu for cpu in _affinity() if cpu < _MOST_CPUS]] = 1
        self._node.Allreduce(self.mpi.IN_PLACE, mask, op=self.mpi.MAX)
        return min(int(mask.sum()), _quota())

    def largest(self, *values: int) -> tuple[int, ...]:
        """Return the largest of each value over all ranks."""
        return self._combine(values, self.mpi.MAX)

    def total(self, *values: int) -> tuple[int, ...]:
        """Return the sum of each value over all ranks."""
        return self._combine(values, self.mpi.SUM)

    def _combine(self, values: tuple[int, ...], operation: Any) -> tuple[int, ...]:
        import numpy as np

        combined = np.array(values, dtype=np.int64)
        self.comm.Allreduce(self.mpi.IN_PLACE, combined, op=operation)
        return tuple(combined.tolist())

    def merge(self, samples: NDArray[Any], how: str) -> NDArray[Any]:
        """Return, on rank 0, the ranks' `samples` (float64) merged one by one: by "rank0", "mean", "min" or "max"."""
        import numpy as np

        if how == "rank0" or self.size == 1:
            return samples
        merged = np.empty_like(samples)
        operation = {"mean": self.mpi.SUM, "min": self.mpi.MIN, "max": self.mpi.MAX}[how]
        self.comm.Reduce(samples, merged if self.rank == 0 else None, op=operation)
        return merged / self.size if how == "mean" else merged

    def elementwise(self, values: NDArray[Any], how: str) -> NDArray[Any]:
        """Return on every rank the "min" or "max" of the ranks' `values` (float64), one by one."""
        import numpy as np

        combined = np.empty_like(values)
        self.comm.Allreduce(values, combined, op=self.mpi.MIN if how == "min" else self.mpi.MAX)
        return combined

    def gather_numbers(self, number: float) -> list[float]:
        """Return every rank's `number` on rank 0, an empty list elsewhere."""
        import numpy as np

        gathered = np.empty(self.size if self.rank == 0 else 0)
        self.comm.Gather(np.array([number]), gathered if self.rank == 0 else None)
        return gathered.tolist()

    def command(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """Return rank 0's `numbers` on every rank; the others pass as many of their own."""
        import numpy as np

        shared = np.array(numbers, dtype=np.int64)
        self.comm.Bcast(shared)
        return tuple(shared.tolist())

    def first_text(self, text: str) -> str:
        """Return the text of the lowest rank that has one, empty where none has."""
        first = -self.largest(-self.rank if text else -self.size)[0]
        return "" if first == self.size else self.broadcast(text, root=first)

    def broadcast(self, value: Any, root: int = 0) -> Any:
        """Return root's `value` on every rank."""
        return self.comm.bcast(value, root=root)

    def gather(self, value: Any) -> list[Any] | None:
        """Return every rank's `value` on rank 0, None elsewhere."""
        gathered: list[Any] | None = self.comm.gather(value)
        return gathered

    def gather_text(self, text: str) -> list[str] | None:
        """Return every rank's `text` on rank 0, None elsewhere; of one length, so that it comes up a tree."""
        import numpy as np

        (width,) = self.largest(len(text.encode()) or 1)
        mine = np.array([text.encode()], dtype=f"S{width}")
        gathered = np.empty(self.size if self.rank == 0 else 0, dtype=mine.dtype)
        self.comm.Gather(mine.view(np.uint8), gathered.view(np.uint8) if self.rank == 0 else None)
        return [item.decode() for item in gathered.tolist()] if self.rank == 0 else None

    def share_on_node(self, value: Any) -> Any:
        """Return the `value` of this node's first rank on all its ranks."""
        return self._node.bcast(value)

    def meet(self) -> None:
        """Return when all ranks have come."""
        self.comm.Barrier()

    def meet_asleep(self) -> None:
        """Return when all ranks have come. Those that wait sleep: a core that they keep may be one that others need."""
        request, nap = self.comm.Ibarrier(), _SHORTEST_NAP
        while not request.Test():
            sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)

    def meet_on_node(self) -> None:
        """Return when all ranks of this node have come."""
        self._node.Barrier()

    def abort(self, code: int) -> None:
        """End every rank of the job with `code`."""
        self.comm.Abort(code)

    def close(self) -> None:
        """Leave: the whole launch, or a subgroup of it."""
        self._node.Free()
        if self.comm == self.mpi.COMM_WORLD:
            self.mpi.Finalize()
        else:
            self.comm.Free()


def open_mpi() -> World:
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
        library.before_init(os.environ, MPI.get_vendor()[1], launched.on_node > _cores_of_the_job())
    # mpi4py asks for MPI_THREAD_MULTIPLE by default, which costs up to twice the latency.
    MPI.Init_thread(MPI.THREAD_FUNNELED)
    world = World(MPI)
    if world.size != launched.size and launched.launcher:
        raise UsageError(
            f"{launched.launcher} launched {launched.size} ranks, but {vendor} sees {world.size}: they do not "
            f"speak to each other; use the launcher that belongs to {vendor} (with srun: --mpi=pmix or --mpi=pmi2)"
        )
    return world
