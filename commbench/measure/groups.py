"""Groups of ranks that a sweep visits: all of them, the first k, those of a node, a leaf or a rail, or a file's.

A file has a group a line: a name, a colon, and ranks as in `left: 0-3,8`; what follows a # is a comment.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from commbench.errors import UsageError
from commbench.measure.cell import ALL, Group
from commbench.measure.site import Seat
from commbench.units import parse_whole

KINDS = ("node", "leaf", "rail")
LONGEST_NAME = 100  # characters
MOST_GROUPS = 500  # of a file; MPICH has 2048 communicators, and a group takes up to three


def first_ranks(text: str, n: int) -> list[Group]:
    """Return the groups of the first 2, 4, ... ranks that `--ranks 2,4,N` asks for; N is all."""
    sizes = []
    for part in text.split(","):
        size = n if part.strip().upper() == "N" else parse_whole(part.strip(), "each of --ranks", least=1)
        if size > n:
            raise UsageError(f"--ranks names numbers of ranks up to the {n} of this launch, not {size}")
        sizes.append(size)
    return [Group(ALL if size == n else f"first {size}", tuple(range(size))) for size in sorted(set(sizes))]


def split(kind: str, seats: Sequence[Seat]) -> list[Group]:
    """Return the groups of `--groups KIND`: `node`, `leaf`, `rail`, or a file's."""
    if kind not in KINDS:
        return _from_file(Path(kind), len(seats))
    nodes = {seat.node for seat in seats}
    if kind == "rail" and len(nodes) < 2:
        raise UsageError("--groups rail needs more than one node: a rail joins the same place on each")
    if kind == "leaf" and not all(seat.leaf for seat in seats):
        raise UsageError(
            "--groups leaf needs a topology, and none is known: Slurm tells it to srun's tasks (SLURM_TOPOLOGY_ADDR); "
            "else name the groups in a FILE"
        )
    keys = {
        "node": lambda seat: f"node {seat.host}" if _distinct(seats) else f"node {seat.node}",
        "leaf": lambda seat: f"leaf {seat.leaf}",
        "rail": lambda seat: f"rail {seat.on_node}",
    }
    members: dict[str, list[int]] = {}
    for rank, seat in enumerate(seats):
        members.setdefault(keys[kind](seat), []).append(rank)
    return [Group(name, tuple(ranks)) for name, ranks in members.items()]


def check_concurrent(groups: Sequence[Group]) -> None:
    """Raise UsageError where groups that are to run at once share a rank."""
    owner: dict[int, str] = {}
    for group in groups:
        for rank in group.ranks:
            if rank in owner:
                raise UsageError(
                    f"--concurrent on needs groups without common ranks, and rank {rank} is in {owner[rank]!r} and "
                    f"{group.name!r}; --concurrent off runs them one after another"
                )
            owner[rank] = group.name


def _distinct(seats: Sequence[Seat]) -> bool:
    """Whether every node has a host name of its own."""
    return len({(seat.host, seat.node) for seat in seats}) == len({seat.host for seat in seats})


def _from_file(path: Path, n: int) -> list[Group]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--groups is {', '.join(KINDS)} or a file, and {str(path)!r} cannot be read ({error})"
        ) from None
    groups: list[Group] = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        name, colon, ranks = text.rpartition(":")
        if not colon or not name.strip():
            raise UsageError(f"{path}:{number}: a group is a name, a colon and ranks (left: 0-3,8), not {text!r}")
        if len(name.strip()) > LONGEST_NAME or not name.strip().isprintable():
            raise UsageError(f"{path}:{number}: a group's name has up to {LONGEST_NAME} characters that can be printed")
        groups.append(Group(name.strip(), _ranks(ranks, n, f"{path}:{number}")))
        if len(groups) > MOST_GROUPS:
            raise UsageError(f"{path} names more than {MOST_GROUPS} groups, and each takes communicators: name fewer")
        if groups[-1].name == ALL and len(groups[-1].ranks) < n:
            raise UsageError(f"{path}:{number}: {ALL!r} names all {n} ranks, not {ranks.strip()}: take another name")
    names = [group.name for group in groups]
    if not groups or len(set(names)) < len(names):
        raise UsageError(f"{path} must name at least one group, and each by a name of its own")
    return groups


def _ranks(text: str, n: int, where: str) -> tuple[int, ...]:
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low = parse_whole(first, f"{where}: a rank")
        high = parse_whole(last, f"{where}: a rank") if dash else low
        if high >= n or low > high:
            raise UsageError(f"{where}: ranks are 0 to {n - 1} in this launch, in rising order, not {part.strip()!r}")
        ranks.extend(range(low, high + 1))
    if len(set(ranks)) < len(ranks):
        raise UsageError(f"{where}: a rank stands twice in {text.strip()!r}")
    return tuple(ranks)
