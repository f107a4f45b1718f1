"""What slow pairs share: from a matrix of rates, the host, the trunk or the link that explains them.

One idea serves hosts and trunks: a partition of the places into groups, such that pairs across groups are slow and
pairs within are fast. A group of one is a host, all of whose pairs are slow; groups of several are joined by a slow
trunk. Candidates are read off a tree of average-linkage clustering, in which fast pairs are near. Named is the one that
shortens the description of the matrix most (logarithms of rates with Laplace's distribution, and the price of saying
which partition); then its effect is taken out, and what is left is looked at again. Pairs that stay slow are links.

Rounds are the only replicates that there are, and what is said is in how many of them it shows. The sign test over them
(`p`) holds for one suspect named beforehand; these are picked from the same rounds, and nothing is corrected for that.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

HOST, TRUNK, LINK, RECEIVER = "host", "trunk", "link", "receiver"
BOTH, SENDING, RECEIVING = "both ways", "sending", "receiving"

SLOWER = 0.8  # of the others' rate: what is faster than this part of it is no finding
STEADY, STEADY_LINK = 0.8, 0.9  # of the rounds must show it; a link is one of thousands, some of which stall often
SEPARATED = 0.8  # of the pairs must lie on their side of the middle
GAIN = 3.0  # nats by which a description must shorten beyond its price: chance gives as much in one of e^3 matrices
FINEST = 0.02  # spread that rates are taken to have at least, so that quiet matrices do not speak of nothing
OUTLYING, OUTLYING_PLACE = 6.0, 4.0  # spreads that a single pair, or one place of a few, must lie below the others
MOST = 8  # findings of each kind
LINKS = 0.05  # the share of pairs up to which slow ones are single ones, rather than a noisy machine
FEWEST_ROUNDS = 3  # with fewer, a stall looks like a slow link


@dataclass(frozen=True)
class Suspect:
    """Something slow. `factor` is its rate as a part of the others'."""

    kind: str  # host, trunk, link or receiver
    members: tuple[tuple[int, ...], ...]  # places: of the host, of each side of the trunk, of each end of the link
    factor: float
    way: str  # both ways; a host sending or receiving; a link or a trunk of two sides sending (first to second), ...
    p: float  # of the sign test: the chance that so many rounds show it if a coin says whether one does; uncorrected
    rounds_shown: int
    rounds: int

    def to_dict(self) -> dict[str, Any]:
        """Return it as it stands in JSON."""
        return asdict(self)


def find(rates: NDArray[Any], slower: float = SLOWER) -> list[Suspect]:
    """Return what explains the slow pairs in `rates` [round, from, to] (higher is better, NaN where not measured).

    A symmetric matrix, such as one over latencies, has no ways. Needs three places: a pair alone has nothing to be held
    against.
    """
    logs = np.log(rates)
    n = logs.shape[1]
    if n < 3:
        return []
    directed = _median(logs)
    rounds = np.stack([_worse_way(of_round) for of_round in logs])
    pairs = np.triu_indices(n, 1)
    flat = _worse_way(directed)[pairs]
    known = ~np.isnan(flat)
    if known.sum() < 3:
        return []
    spread = _spread(rounds[:, pairs[0], pairs[1]])
    view = _View(n, pairs, known, np.where(known, flat, np.median(flat[known])), rounds, spread, math.log(slower))
    found: list[Suspect] = []
    for _ in range(MOST):
        split = view.best_split()
        if split is None:
            break
        found += _named(split, view, directed)
    return found + _links(view, directed)


class _View:
    """Logarithms of the pairs' rates, less what was explained already."""

    def __init__(
        self,
        n: int,
        pairs: tuple[NDArray[Any], ...],
        known: NDArray[Any],
        flat: NDArray[Any],
        rounds: NDArray[Any],
        spread: float,
        floor: float,
    ) -> None:
        self.n, self.pairs, self.known, self.flat = n, pairs, known, flat
        self.rounds = rounds[:, pairs[0], pairs[1]]
        self.spread, self.floor = spread, floor

    def best_split(self) -> _Split | None:
        """Return the split that explains most, None where none explains enough."""
        if self.known.sum() < 3:
            return None
        best, gain = None, GAIN
        before = self._length(self.flat[self.known])
        for split in _candidates(self._matrix()):
            across, touching = self.slow_pairs(split)
            rest = ~across & ~touching
            slow = [mask for mask in (across, touching) if (mask & self.known).any()]
            if not slow or not (rest & self.known).any() or not all(self._apart(mask, rest) for mask in slow):
                continue
            parts = [self.flat[mask & self.known] for mask in (*slow, rest)]
            deviations = np.concatenate([part - np.median(part) for part in parts])
            price = split.ways(self.n) + len(slow) * 0.5 * math.log(self.flat.size)
            gained = before - self._length(deviations, centred=True) - price
            if gained > gain and all(self.steady(mask, rest, STEADY) for mask in slow):
                best, gain = split, gained
        return best

    def slow_pairs(self, split: _Split) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return which pairs lie across two sides, and which have an end in a host that stands alone."""
        label = np.full(self.n, -1)
        for number, side in enumerate(split.sides):
            label[list(side)] = number
        one, other = label[self.pairs[0]], label[self.pairs[1]]
        touching = (one < 0) | (other < 0)
        return (one != other) & ~touching, touching

    def effect(self, mask: NDArray[Any], others: NDArray[Any]) -> float:
        """Return by how much the pairs in `mask` lie above `others`, by their medians."""
        return float(np.median(self.flat[mask & self.known]) - np.median(self.flat[others & self.known]))

    def shown(self, mask: NDArray[Any], others: NDArray[Any]) -> tuple[int, int]:
        """Return in how many rounds the pairs in `mask` are slower than `others` by enough, and of how many."""
        effects = _median(self.rounds[:, mask].T) - _median(self.rounds[:, others].T)
        return int((effects <= self.floor).sum()), int((~np.isnan(effects)).sum())  # NaN: a round cut short before

    def steady(self, mask: NDArray[Any], others: NDArray[Any], share: float) -> bool:
        """Whether that is so in this share of the rounds."""
        shown, rounds = self.shown(mask, others)
        return shown >= share * rounds

    def explain(self, effects: NDArray[Any]) -> None:
        """Take each pair's effect out of its rates."""
        self.flat = self.flat - effects
        self.rounds = self.rounds - effects

    def _apart(self, slow: NDArray[Any], rest: NDArray[Any]) -> bool:
        below, above = self.flat[slow & self.known], self.flat[rest & self.known]
        low, high = np.median(below), np.median(above)
        middle = (low + high) / 2
        sides = (below < middle).mean(), (above > middle).mean()
        return bool(low - high <= self.floor and min(sides) >= SEPARATED)

    def _length(self, values: NDArray[Any], centred: bool = False) -> float:
        """Return the nats that describe `values` around their median (or 0), but for what all descriptions share."""
        deviations = values if centred else values - np.median(values)
        return values.size * math.log(max(float(np.abs(deviations).mean()), self.spread))

    def _matrix(self) -> NDArray[Any]:
        matrix = np.full((self.n, self.n), -np.inf)
        matrix[self.pairs] = self.flat
        return np.maximum(matrix, matrix.T)


@dataclass(frozen=True)
class _Split:
    """Hosts that stand alone, with slow pairs to all others, and the sides of a slow trunk (or one side: no trunk)."""

    alone: tuple[int, ...]
    sides: tuple[tuple[int, ...], ...]

    def ways(self, n: int) -> float:
        """Return the nats that say which split of its shape it is."""
        return math.lgamma(n + 1) - sum(math.lgamma(len(side) + 1) for side in self.sides)


def _candidates(near: NDArray[Any]) -> Iterator[_Split]:
    """Yield each host alone, each cut through the tree of average linkage, and each branch of it against the rest."""
    n = len(near)
    near = near.copy()
    groups: dict[int, tuple[int, ...]] = {place: (place,) for place in range(n)}
    everyone = set(range(n))
    for place in range(n):
        yield _Split((place,), (tuple(sorted(everyone - {place})),))
    for _ in range(n - 2):
        one, other = map(int, np.unravel_index(np.argmax(near), near.shape))
        sizes = len(groups[one]), len(groups[other])
        row = (sizes[0] * near[one] + sizes[1] * near[other]) / sum(sizes)
        near[one], near[:, one] = row, row
        near[other], near[:, other] = -np.inf, -np.inf
        near[one, one] = -np.inf
        groups[one] = tuple(sorted(groups[one] + groups.pop(other)))
        cut = tuple(sorted(groups.values()))
        alone = tuple(group[0] for group in cut if len(group) == 1)
        # Where most places stand alone, slow is what is normal, and some pairs are fast.
        if 2 * len(alone) < n:
            sides = tuple(group for group in cut if len(group) > 1)
            yield _Split(alone, sides)
            if alone and len(sides) > 1:  # or they are sides too
                yield _Split((), cut)
        if len(cut) > 2:
            yield _Split((), (groups[one], tuple(sorted(everyone - set(groups[one])))))


def _named(split: _Split, view: _View, directed: NDArray[Any]) -> list[Suspect]:
    """Return the trunk and the hosts that a split stands for, and take their effects out of the view."""
    across, touching = view.slow_pairs(split)
    rest = ~across & ~touching
    found: list[Suspect] = []
    effects = np.zeros(rest.shape)
    if len(split.sides) > 1:
        found.append(_suspect(TRUNK, split.sides, across, rest, view, directed))
    for host in split.alone:
        mine = (view.pairs[0] == host) | (view.pairs[1] == host)
        # A pair of two bad hosts is as slow as the worse of them, so that it says nothing of the other.
        others = [other for other in split.alone if other != host]
        clean = mine & ~np.isin(view.pairs[0], others) & ~np.isin(view.pairs[1], others)
        chosen = clean if (clean & view.known).any() else mine
        if (chosen & view.known).any():
            found.append(_suspect(HOST, [(host,)], chosen, rest, view, directed))
            effects = np.where(mine, np.minimum(effects, math.log(found[-1].factor)), effects)
    view.explain(effects)
    # Rates across a trunk tell of who was on it at the same time, and hide what else is slow.
    view.known = view.known & ~across
    return found


def _links(view: _View, directed: NDArray[Any]) -> list[Suspect]:
    """Return the single pairs that are slow although nothing else is left to explain them."""
    if view.known.sum() < 3 or len(view.rounds) < FEWEST_ROUNDS:
        return []
    base = float(np.median(view.flat[view.known]))
    spread = max(1.4826 * float(np.median(np.abs(view.flat[view.known] - base))), view.spread)
    low = view.known & (view.flat - base <= min(view.floor, -OUTLYING * spread))
    found = []
    for index in sorted(np.flatnonzero(low), key=lambda index: view.flat[index]):
        mask = np.zeros(low.shape, dtype=bool)
        mask[index] = True
        if view.steady(mask, ~mask & view.known, STEADY_LINK):
            ends = [(int(view.pairs[0][index]),), (int(view.pairs[1][index]),)]
            found.append(_suspect(LINK, ends, mask, ~mask & view.known, view, directed))
    return found[:MOST] if len(found) <= max(2, LINKS * view.known.sum()) else []


def _suspect(
    kind: str,
    members: Sequence[tuple[int, ...]],
    mask: NDArray[Any],
    others: NDArray[Any],
    view: _View,
    directed: NDArray[Any],
) -> Suspect:
    effect = view.effect(mask, others)
    shown, rounds = view.shown(mask, others)
    there, back = _ways(kind, members, mask, view, directed)
    base = float(_median(_both(directed, others, view)))
    slow = [there - base <= view.floor, back - base <= view.floor]
    way = BOTH if slow[0] == slow[1] else SENDING if slow[0] else RECEIVING
    sides = tuple(tuple(member) for member in members)
    return Suspect(kind, sides, round(math.exp(effect), 4), way, sign_test(shown, rounds), shown, rounds)


def _ways(
    kind: str, members: Sequence[tuple[int, ...]], mask: NDArray[Any], view: _View, directed: NDArray[Any]
) -> tuple[float, float]:
    """Return the middle rate from the first member, and to it; of a trunk with many sides, both are the same."""
    if kind == TRUNK and len(members) > 2:
        middle = float(_median(_both(directed, mask, view)))
        return middle, middle
    from_first, to_first = np.zeros(directed.shape, dtype=bool), np.zeros(directed.shape, dtype=bool)
    low, high = view.pairs[0][mask & view.known], view.pairs[1][mask & view.known]
    first = np.isin(low, members[0])
    start, end = np.where(first, low, high), np.where(first, high, low)
    from_first[start, end], to_first[end, start] = True, True
    return float(_median(directed[from_first])), float(_median(directed[to_first]))


def _both(directed: NDArray[Any], mask: NDArray[Any], view: _View) -> NDArray[Any]:
    low, high = view.pairs[0][mask & view.known], view.pairs[1][mask & view.known]
    return np.concatenate([directed[low, high], directed[high, low]])


def sign_test(shown: int, rounds: int) -> float:
    """Return the chance of `shown` heads or more in `rounds` tosses of a coin."""
    return round(sum(math.comb(rounds, heads) for heads in range(shown, rounds + 1)) / 2**rounds, 4)


def slow_places(rates: NDArray[Any], slower: float = SLOWER) -> list[Suspect]:
    """Return the places whose own rate is low in `rates` [round, place] (NaN where not measured)."""
    logs = np.log(rates)
    middle = _median(logs)
    known = ~np.isnan(middle)
    if known.sum() < 3:
        return []
    floor = math.log(slower)
    base = float(np.median(middle[known]))
    spread = max(1.4826 * float(np.median(np.abs(middle[known] - base))), _spread(logs))
    found = []
    for place in np.flatnonzero(known & (middle - base <= min(floor, -OUTLYING_PLACE * spread))):
        effects = logs[:, place] - _median(logs.T)
        shown, rounds = int((effects <= floor).sum()), int((~np.isnan(effects)).sum())
        if shown >= STEADY * rounds:
            factor = round(math.exp(float(middle[place]) - base), 4)
            found.append(
                Suspect(RECEIVER, ((int(place),),), factor, RECEIVING, sign_test(shown, rounds), shown, rounds)
            )
    return found


def sentence(suspect: Suspect, names: Sequence[str], what: str, *, of_ranks: bool) -> str:
    """Say in a line what is slow; `what` is the rate (or "latency", of which it was the inverse)."""
    sides = [_listed([names[place] for place in side]) for side in suspect.members]
    shown = f"(in {suspect.rounds_shown} of {suspect.rounds} rounds)"
    latency = what == "latency"
    part = f"{_times(1 / suspect.factor)} times the latency" if latency else f"{suspect.factor:.2g} of the {what}"
    if suspect.kind == RECEIVER:
        return f"{sides[0]} receives slowly: {part} of the others {shown}"
    if suspect.kind == HOST:
        return f"{sides[0]} is slow{_way_of_host(suspect)}: its pairs have {part} of the others {shown}"
    way = {SENDING: f", from {sides[0]} to {sides[-1]} only", RECEIVING: f", from {sides[-1]} to {sides[0]} only"}
    between = f"between {' and '.join(sides)}"
    if suspect.kind == LINK:
        return f"the link {between} is slow{way.get(suspect.way, '')}: it has {part} of other pairs {shown}"
    name = "the way (sockets, NUMA nodes?)" if of_ranks else "the trunk"
    return f"{name} {between} is slow{way.get(suspect.way, '')}: pairs across have {part} of those within {shown}"


def _times(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _way_of_host(suspect: Suspect) -> str:
    return "" if suspect.way == BOTH else f" in {suspect.way}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"[{shown}]" if len(names) > 1 else shown


def _spread(rounds: NDArray[Any]) -> float:
    """Return how uncertain the median over rounds is, from how rounds differ [round, pair]."""
    away = np.abs(rounds - _median(rounds))
    if len(rounds) < 2 or np.isnan(away).all():
        return FINEST
    return max(FINEST, 1.2533 * 1.4826 * float(np.nanmedian(away)) / math.sqrt(len(rounds)))


def _worse_way(directed: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.fmin(directed, directed.T))


def _median(values: NDArray[Any]) -> NDArray[Any]:
    """Return the median over the first axis of what is not NaN; NaN, with no word of it, where nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmedian(values, axis=0))
