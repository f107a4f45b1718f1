"""What links allow at most, of collectives that no switch reduces.

A rank, and a node, sends or receives so many bytes whatever the algorithm, and its links carry so many a second: no
time is below their quotient. Most follow from what must cross the cut around the rank or node. Of an all-reduce it is
the total: n ranks send 2(n-1) times the buffer together (Patarasuk and Yuan 2009, section 3), so one of them, or of k
nodes, sends 1/n or 1/k of that at least. What a switch reduces (NVLS, SHARP) may pass the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from commbench.errors import UsageError
from commbench.units import parse_number

# Bytes that leave or enter one rank of n and one node of k, as parts of `size` (the larger of what a rank sends and
# receives in all; of an all-reduce both ways of the reduced and the unreduced data). A node has n / k ranks.
_Cut = tuple[Callable[[int], float], Callable[[int, int], float]]


def _part(n: int) -> float:
    return (n - 1) / n


_CUTS: dict[str, _Cut] = {
    "allreduce": (lambda n: 2 * _part(n), lambda n, k: 2 * _part(k)),
    "allgather": (_part, lambda n, k: _part(k)),
    "reducescatter": (_part, lambda n, k: _part(k)),
    "alltoall": (_part, lambda n, k: n / k * _part(k)),
    "broadcast": (lambda n: 1.0, lambda n, k: 1.0),
    "reduce": (lambda n: 1.0, lambda n, k: 1.0),
    "gather": (_part, lambda n, k: _part(k)),  # of the root, and its node
    "scatter": (_part, lambda n, k: _part(k)),
    "sendrecv": (lambda n: 1.0, lambda n, k: 1.0),  # each rank to the next one
}


@dataclass(frozen=True)
class Links:
    """What the links of one rank carry in one direction, GB/s; None: not said."""

    link: float | None = None  # all of those inside its node together: 450 for an H100 with NVLink
    nic: float | None = None  # its share of its node's network interfaces: 50 for one of 400 Gb/s


def algbw_bound(collective: str, nranks: int | None, nnodes: int | None, links: Links) -> float | None:
    """Return the highest algbw, GB/s; None where the links are not known, or nodes have unlike numbers of ranks."""
    if collective not in _CUTS or not nranks or not nnodes or nranks < 2 or nranks % nnodes:
        return None
    rank, node = _CUTS[collective]
    if nnodes == 1:
        return None if links.link is None else links.link / rank(nranks)
    found = []
    if links.nic is not None:
        found.append(links.nic * nranks / nnodes / node(nranks, nnodes))
        if links.link is not None:
            found.append((links.link + links.nic) / rank(nranks))
    return min(found, default=None)


def nic_rate(collective: str, nranks: int | None, nnodes: int | None, algbw: float | None) -> float | None:
    """Return what a node's interfaces carry at least, on average, GB/s, with one a rank.

    Of an all-reduce it is busbw × (k-1)/(n-1). None on one node, where nodes have unlike numbers of ranks, and where
    nothing is known.
    """
    if collective not in _CUTS or not algbw or not nranks or not nnodes or nnodes < 2 or nranks % nnodes:
        return None
    return algbw * _CUTS[collective][1](nranks, nnodes) * nnodes / nranks


def parse_links(rates: list[str] | None, nics: list[str] | None, letters: list[str]) -> dict[str, Links]:
    """Return the links of each side from `450` (of all sides) or `A=450`; raise UsageError for anything else."""
    found: dict[str, dict[str, float]] = {letter: {} for letter in letters}
    for name, texts in (("link", rates or []), ("nic", nics or [])):
        for text in texts:
            letter, named, rate = text.rpartition("=")
            if named and letter not in letters:
                raise UsageError(f"--{name} {text}: there is no side {letter!r}; sides are {', '.join(letters)}")
            value = parse_number(rate, f"--{name}")
            if value <= 0:
                raise UsageError(f"--{name} is a rate in GB/s above 0, not {rate!r}")
            for one in [letter] if letter else letters:
                found[one][name] = value
    return {letter: Links(**rates_of) for letter, rates_of in found.items()}
