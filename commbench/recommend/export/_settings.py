"""What an exporter has to know beside the plan, and the names that it may put into a script or a configuration file.

A name that comes from outside reaches a shell, a scheduler's own parser and a tool's file, whose ways of quoting
differ. So names are not quoted for each of them, but must be such as need no quoting anywhere: a host's letters, digits
and _.- are plain in all of them. Paths and expressions, which may be more than that, are quoted where they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from commbench.errors import UsageError
from commbench.recommend.plan import Choice, Plan
from commbench.topology.cluster import Cluster
from commbench.topology.show import counted
from commbench.units import format_size

LONGEST_HOST = 253  # characters, as of a name in the DNS
MOST_DEVICES = 4095
MOST_SWITCHES = 100_000
_TOLD = 4  # choices of a collective, at most, of which a reason tells
CORES = "commbench.recommend --cores N names those near each device"
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_CPUS = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*")
_VERSION = re.compile(r"(?:slurm(?:-wlm)? )?v?([0-9]{1,3}(?:\.[0-9]{1,3}){0,3})", re.IGNORECASE)
_FEATURES = re.compile(r"[A-Za-z0-9_.:,&|*!()\[\]-]+")
_PARTITION = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_][A-Za-z0-9_.+-]*(?:,[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")
_WAIT = re.compile(r"[0-9]{1,3}(?:-[0-9]{1,2})?(?::[0-9]{1,2}){0,2}")


class NotExported(UsageError):
    """This target cannot be told of this plan; the text says why, and what to use instead."""


@dataclass(frozen=True)
class Settings:
    """What is known of the place where the files will be used. Versions are tuples of numbers, None: not known.

    `cluster` is what topology files are made of; `topology` is Slurm's plugin, "tree" or "block", of itself what the
    cluster has: switches, else blocks of Slurm's or domains of NVLink. The rest is what a job asks of Slurm: these very
    nodes (`nodelist`), or any that are on so few leaf `switches` (waiting at most `wait`, as Slurm writes times), in
    segments of so many nodes, with such `features`, of a `partition` or the first of several. `wrapper` starts ranks by
    ranks.sh even where Slurm takes an order of tasks. `folder` is where the files will be, empty: not known.
    """

    slurm: tuple[int, ...] | None = None
    openmpi: tuple[int, ...] | None = None
    cluster: Cluster | None = None
    topology: str = ""
    nodelist: bool = True
    switches: int | None = None
    wait: str = ""
    segment: int | None = None
    features: str = ""
    partition: str = ""
    wrapper: bool = False
    folder: str = ""
    port: int = 29500  # at which rank 0 of PyTorch listens

    def __post_init__(self) -> None:
        for what, value, pattern, example in (
            ("features are", self.features, _FEATURES, "[leaf1|leaf2]"),
            ("the time to wait for --switches N@T is", self.wait, _WAIT, "01:00:00"),
        ):
            if value and not pattern.fullmatch(value):
                raise UsageError(f"{what} written as Slurm does ({example}), not {value[:60]!r}")
        if self.partition and not _PARTITION.fullmatch(self.partition):
            rule = "has letters, digits and _.+-, and a comma between two"
            raise UsageError(f"a partition's name {rule}, not {self.partition[:60]!r}")
        for name, most in (("switches", MOST_SWITCHES), ("segment", 100_000), ("port", 65_535)):
            if (number := getattr(self, name)) is not None and not 1 <= number <= most:
                raise UsageError(f"{name} is a whole number from 1 to {most}, not {number!r}")
        if self.topology not in ("", "tree", "block"):
            raise UsageError(f"Slurm's topology is tree or block, not {self.topology[:60]!r}")
        if self.wait and self.switches is None:
            raise UsageError("a time to wait goes with a number of switches: give that too")

    @property
    def plugin(self) -> str:
        """Slurm's topology plugin: "tree", "block", or empty where nobody said, as of nodes that nothing joins."""
        if self.topology or self.cluster is None:
            return self.topology
        if self.cluster.switches:
            return "tree"
        return "block" if any(block.name or block.domain for block in self.cluster.blocks) else ""


def version(text: str, what: str = "a version") -> tuple[int, ...]:
    """Return the numbers of a version: "slurm-wlm 22.05.8" gives (22, 5, 8)."""
    if not (found := _VERSION.fullmatch(text.strip())):
        raise UsageError(f"{what} is numbers with dots, as 25.05 or 5.0.7, not {text[:60]!r}")
    return tuple(map(int, found[1].split(".")))


def checked(plan: Plan) -> Plan:
    """Return the plan, whose names are safe anywhere; raise UsageError for one that is not."""
    for host in plan.hosts:
        if len(host) > LONGEST_HOST or not _HOST.fullmatch(host):
            shown = host if len(host) <= 80 else f"{host[:77]}..."
            raise UsageError(
                f"a host's name has up to {LONGEST_HOST} letters, digits and _.-, and begins with no dot or dash, "
                f"not {shown!r}: correct it in the topology"
            )
    for cpus in {seat.cpus for seat in plan.seats} - {""}:
        if not _CPUS.fullmatch(cpus):
            raise UsageError(f"CPUs are ranges as 0-7,16-23, not {cpus[:60]!r}")
    if (most := max(seat.device for seat in plan.seats)) > MOST_DEVICES:
        raise UsageError(f"a device's number is 0 to {MOST_DEVICES}, not {most}")
    return plan


def ranks_of(plan: Plan) -> Mapping[str, list[int]]:
    """Return the ranks of each host, lowest first: their places there are what launchers call local ranks."""
    found: dict[str, list[int]] = {}
    for rank, seat in enumerate(plan.seats):
        found.setdefault(seat.host, []).append(rank)
    return found


def one_for_all(choices: Iterable[Choice]) -> tuple[dict[str, Choice], list[str]]:
    """Return the choice of each collective that has the same for all sizes and all ranks, and what each other one has.

    What is said is one line, whatever the plan holds: it may stand behind a # in a script.
    """
    by_collective: dict[str, list[Choice]] = {}
    for one in choices:
        by_collective.setdefault(one.collective, []).append(one)
    found, said = {}, []
    for collective, mine in by_collective.items():
        kinds = {(one.algorithm, one.protocol, one.least, one.below) for one in mine}
        if kinds == {(mine[0].algorithm, mine[0].protocol, 0, None)}:
            found[collective] = mine[0]
        else:
            more = f" and {len(mine) - _TOLD} more" * (len(mine) > _TOLD)
            said.append(f"{collective} has {', '.join(map(_told, mine[:_TOLD]))}{more}")
    return found, said


def _told(it: Choice) -> str:
    """Return a choice in words without the collective."""
    what = repr(it.algorithm[:40]) if it.protocol is None else f"{it.algorithm[:40]!r} {it.protocol[:40]!r}"
    sizes = f" from {format_size(it.least)}" * (it.least > 0 or it.below is not None)
    sizes += f" to below {format_size(it.below)}" if it.below is not None else ""
    return f"{what} with {it.ranks!r} ranks on {counted(it.nodes, 'node')}{sizes}"


def on_gpus(plan: Plan) -> bool:
    """Whether the devices are GPUs."""
    return plan.vendor != "cpu"
