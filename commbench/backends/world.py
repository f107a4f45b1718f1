"""The ranks of a launch: who they are, where they sit, and how they agree, beside whatever is being measured.

`World` is the control plane. `_mpi_world.py` has it over MPI, `_tcp_world.py` over sockets where there is no MPI.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import sleep
from typing import TYPE_CHECKING, Any

from commbench import cgroup
from commbench.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# How each launcher tells a process its rank, the number of ranks, how many of them share its node, and which of those
# it is.
_LAUNCHERS = (
    ("Open MPI", *(f"OMPI_COMM_WORLD_{what}" for what in ("RANK", "SIZE", "LOCAL_SIZE", "LOCAL_RANK"))),
    ("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS_PER_NODE", "SLURM_LOCALID"),
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK"),
)

_LAST_WORD = 10.0  # seconds that a rank which ends without a word leaves to the one that has it
# Launchers that let the others run on, before MPI_Init. Slurm does too, but with KillOnBadExit, which no rank can see.
_PATIENT = ("MPICH",)

# By which launcher's variables each vendor's library finds its ranks.
_SPEAKS = {"Open MPI": "Open MPI", **dict.fromkeys(("MPICH", "MPICH2", "MVAPICH", "MVAPICH2", "Intel MPI"), "MPICH")}


@dataclass(frozen=True)
class Launch:
    """What the launcher says of this process."""

    launcher: str = ""
    rank: int = 0
    size: int = 1
    on_node: int = 1  # as far as the launcher tells
    node_rank: int | None = None  # its number among those; None: not told

    @property
    def by_mpirun(self) -> bool:
        """Whether an mpirun launched it: its ranks find one another by MPI."""
        return self.launcher in ("Open MPI", "MPICH")

    def own_code(self, code: int) -> str:
        """Return what to add to a message where the launcher ends with another exit code than ours, or nothing."""
        return f" (exit code {code}; torchrun's own is 1)" if self.launcher == "torchrun" else ""


def launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Read the launcher's variables; without any this process is alone.

    A torchrun that another launcher started, one on each node, is what tells ranks apart.
    """
    innermost = _LAUNCHERS[-1:] if "TORCHELASTIC_RUN_ID" in environment else ()
    for name, rank, size, on_node, node_rank in (*innermost, *_LAUNCHERS):
        if _is_whole(environment.get(rank, "")) and _is_whole(environment.get(size, "")):
            slurm = name == "MPICH" and "SLURM_PROCID" in environment and on_node not in environment
            local, number = environment.get(on_node, ""), environment.get("SLURM_LOCALID" if slurm else node_rank, "")
            return Launch(
                "Slurm" if slurm else name,
                int(environment[rank]),
                int(environment[size]),
                int(local) if _is_whole(local) else 1,
                int(number) if _is_whole(number) else None,
            )
    return Launch()


def leave_the_word(launched: Launch, speaks: bool) -> None:
    """Wait on a rank that is to fail without a word: most launchers end all ranks with the first that fails, which is
    to be the one that says why. Return at once on a rank that speaks.
    """
    if not speaks and launched.size > 1 and launched.launcher not in _PATIENT:
        sleep(_LAST_WORD)


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit()


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


def cores_of_the_job() -> int:
    """Return how many cores this node's ranks may use together, as far as is known before they can ask one another.

    A rank may be bound to a core of its own; the launcher's process above it has the whole allocation.
    """
    cpus = affinity()
    if hasattr(os, "sched_getaffinity"):
        with suppress(OSError):
            cpus |= os.sched_getaffinity(os.getppid())
    return min(len(cpus), quota())


def affinity() -> set[int]:
    """Return the CPUs that this process may run on."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def quota() -> int:
    """Return the cores that control groups allow, a very large number where they do not say."""
    cores = cgroup.cores()
    return 1 << 30 if cores is None else max(1, round(cores))


class World(ABC):
    """The ranks of this launch, or a group of them.

    Every method is collective: all ranks call it in the same order, but for `hand_over` and `abort`. Values are what
    JSON has: None, numbers, texts, lists and dicts of them (a tuple may arrive as a list).
    """

    rank: int
    size: int
    node: int  # the number of this rank's node; nodes are numbered by their lowest ranks
    node_rank: int
    node_size: int
    nodes: int
    cores: int  # that this node's ranks may use together
    crowded: bool  # ranks outnumber cores on some node
    mpi: Any = None  # mpi4py's module and a communicator for control traffic, where the ranks speak MPI
    comm: Any = None

    def need_mpi(self, what: str) -> None:
        """Raise UsageError where these ranks do not speak MPI, which `what` needs."""
        if self.mpi is None:
            raise UsageError(f"{what} needs ranks that speak MPI, and these met without: launch them by mpirun")

    @abstractmethod
    def broadcast(self, value: Any, root: int = 0) -> Any:
        """Return root's `value` on every rank."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any] | None:
        """Return every rank's `value` on rank 0, None elsewhere."""

    @abstractmethod
    def hand_over(self, value: Any, giver: int) -> Any:
        """Return on rank 0 what rank `giver` hands over; these two call it, or rank 0 alone where it is the giver."""

    @abstractmethod
    def share_on_node(self, value: Any) -> Any:
        """Return the `value` of this node's first rank on all its ranks."""

    @abstractmethod
    def meet(self) -> None:
        """Return when all ranks have come."""

    @abstractmethod
    def meet_asleep(self) -> None:
        """Return when all ranks have come. Those that wait sleep: a core that they keep may be one that others need."""

    @abstractmethod
    def meet_on_node(self) -> None:
        """Return when all ranks of this node have come."""

    @abstractmethod
    def subgroup(self, ranks: Sequence[int]) -> World | None:
        """Return the world of these ranks, in their order, on each of them; None elsewhere."""

    @abstractmethod
    def abort(self, code: int) -> None:
        """End every rank of the job with `code`; any rank, at any time, from any thread."""

    @abstractmethod
    def close(self) -> None:
        """Leave: the whole launch, or a subgroup of it."""

    @abstractmethod
    def _reduce(self, values: NDArray[Any], how: str) -> NDArray[Any]:
        """Return on rank 0 the "sum", "min" or "max" of the ranks' `values`, one by one; anything elsewhere."""

    @abstractmethod
    def _allreduce(self, values: NDArray[Any], how: str) -> NDArray[Any]:
        """Return the "sum", "min" or "max" of the ranks' `values`, one by one."""

    def largest(self, *values: int) -> tuple[int, ...]:
        """Return the largest of each value over all ranks."""
        return self._combine(values, "max")

    def total(self, *values: int) -> tuple[int, ...]:
        """Return the sum of each value over all ranks."""
        return self._combine(values, "sum")

    def _combine(self, values: tuple[int, ...], how: str) -> tuple[int, ...]:
        import numpy as np

        return tuple(self._allreduce(np.array(values, dtype=np.int64), how).tolist())

    def merge(self, samples: NDArray[Any], how: str) -> NDArray[Any]:
        """Return, on rank 0, the ranks' `samples` (float64) merged one by one: by "rank0", "mean", "min" or "max"."""
        if how == "rank0" or self.size == 1:
            return samples
        merged = self._reduce(samples, "sum" if how == "mean" else how)
        return merged / self.size if how == "mean" else merged

    def elementwise(self, values: NDArray[Any], how: str) -> NDArray[Any]:
        """Return on every rank the "min" or "max" of the ranks' `values` (float64), one by one."""
        return self._allreduce(values, how)

    def gather_numbers(self, number: float) -> list[float]:
        """Return every rank's `number` on rank 0, an empty list elsewhere."""
        return self.gather(float(number)) or []

    def gather_text(self, text: str) -> list[str] | None:
        """Return every rank's `text` on rank 0, None elsewhere."""
        return self.gather(text)

    def command(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """Return rank 0's `numbers` on every rank; the others pass as many of their own."""
        return tuple(map(int, self.broadcast(numbers)))

    def first_text(self, text: str) -> str:
        """Return the text of the lowest rank that has one, empty where none has."""
        first = -self.largest(-self.rank if text else -self.size)[0]
        return "" if first == self.size else self.broadcast(text, root=first)
