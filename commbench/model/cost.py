"""The time of a collective: latency and bandwidth of the links that its steps take, the fullest link deciding.

A step that is made once lasts as long as its longest way, and as its fullest link needs for all that is put on it:

    messages x step + latency of the longest way + size x load of the fullest link

with the messages that the busiest rank sends or receives in it, whose software costs one `step` each. That is Hockney's
model for every transfer, and a share of a link for each that takes it. A step that is made over and over between the
same ends, as in a ring, is a chain: a rank begins its next turn as soon as it has what the rank before sent, so that
the turns of a round trip add up the latencies of all ways and not the longest one each time. A turn lasts

    the longer of  size x load of the fullest link
    and            messages x step + mean over the ring of (latency + size x load of the transfer's fullest link)

A pipelined schedule has its buffer cut into C chunks, of which each follows the one before as soon as the fullest link
of all steps together is free, and not sooner than a step's software allows; C is the best power of two with chunks of
4 KiB at least. Nothing else is in it: no protocols, no arithmetic, no caches, no noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commbench.errors import UsageError
from commbench.model import placement as placements
from commbench.model.library import Library
from commbench.model.placement import Placement
from commbench.model.routes import Routes
from commbench.model.schedule import Schedule, Step, make

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

CHUNK = 4096  # bytes: the least that a pipeline is cut into
_MOST_CHUNKS = 20  # as a power of two


@dataclass(frozen=True)
class Cost:
    """What a schedule costs on a topology, for every size: what its steps ask of links, tier by tier.

    Arrays of (steps, tiers): `latency`, seconds of the longest way, or of the mean one of a chain; `load`, seconds for
    each byte of size that the fullest link of a tier needs; `mean`, the same of a chain's transfers on average, 0 else.
    `times`, (steps,): repetitions; `messages`, (steps,): those that one rank sends or receives, at most. `together`,
    (tiers,): as load, of all steps of a pipeline at once.
    """

    tiers: tuple[str, ...]
    times: Floats
    messages: Floats
    latency: Floats
    load: Floats
    mean: Floats
    together: Floats
    pipelined: bool
    step: float  # seconds of software for each message

    def seconds(self, size: Floats | float, slower: Floats | None = None, later: Floats | None = None) -> Floats:
        """Return the seconds of a collective of `size` bytes, in an array of the shape of `size`, which is (sizes,).

        `slower` and `later`, (tiers,), are factors of the time that links need for a byte, and of their latencies.
        """
        import numpy as np

        sizes = np.atleast_1d(np.asarray(size, dtype=np.float64))
        ones = np.ones(len(self.tiers))
        slower = ones if slower is None else slower
        fixed = self.step * self.messages + self.latency @ (ones if later is None else later)
        full = (self.load * slower).max(axis=1, initial=0.0)
        if not self.pipelined:
            once = self.times == 1
            turn = fixed[:, None] + np.outer(np.where(once, full, self.mean @ slower), sizes)
            return np.asarray(self.times @ np.maximum(turn, np.outer(full, sizes)))
        return self._pipeline(sizes, fixed, full, (self.together * slower).max(initial=0.0))[0]

    def _pipeline(self, sizes: Floats, fixed: Floats, full: Floats, together: float) -> tuple[Floats, Floats]:
        """Return the seconds of each size in as many chunks as are best, and how many these are; both (sizes,)."""
        import numpy as np

        software = self.step * self.messages.max(initial=0.0)
        chunks = 2.0 ** np.arange(_MOST_CHUNKS)[:, None]
        part = np.maximum(sizes / chunks, np.minimum(sizes, CHUNK))
        total = fixed.sum() + part * full.sum() + (chunks - 1) * (software + part * together)
        return total.min(axis=0), chunks[total.argmin(axis=0), 0]

    @property
    def loaded(self) -> list[str]:
        """The tiers whose links carry something."""
        return [name for place, name in enumerate(self.tiers) if self.load[:, place].any()]

    def limits(self, size: float) -> list[tuple[str, float]]:
        """Return what the seconds of one size add up from, the largest first: ("latency of dgx nic", seconds).

        Where turns of a chain wait for the fullest link, software and latencies pass meanwhile and are no part of them.
        """
        import numpy as np

        software, latency, carried = self.step * self.messages, self.latency, _only_highest(self.load)
        fixed, full = software + latency.sum(axis=1), self.load.max(axis=1, initial=0.0)
        if self.pipelined:
            together = _only_highest(self.together[None, :])[0]
            chunks = float(self._pipeline(np.array([size]), fixed, full, together.sum())[1][0])
            in_software = software.sum() + (chunks - 1) * software.max(initial=0.0)
            in_latency = latency.sum(axis=0)
            in_bandwidth = size / chunks * (carried.sum(axis=0) + (chunks - 1) * together)
        else:
            waits = self.times * ((self.times == 1) | (fixed + size * self.mean.sum(axis=1) >= size * full))
            chained = (self.times > 1) & (waits > 0)
            in_software, in_latency = waits @ software, waits @ latency
            in_bandwidth = size * (self.times @ np.where(chained[:, None], self.mean, carried))
        parts = {"software": float(in_software)}
        parts |= {f"latency of {name}": part for name, part in zip(self.tiers, in_latency.tolist(), strict=True)}
        parts |= {f"bandwidth of {name}": part for name, part in zip(self.tiers, in_bandwidth.tolist(), strict=True)}
        return sorted(((name, seconds) for name, seconds in parts.items() if seconds > 0), key=lambda one: -one[1])


def cost(collective: str, algorithm: str, placement: Placement, library: Library, routes: Routes | None = None) -> Cost:
    """Return what one algorithm costs; raise NotApplicable where it does not exist there.

    `routes` of the same placement and library may be given, since they are the same for all algorithms.
    """
    group = placements.group(placement, library)
    channels = [make(algorithm, collective, group, channel) for channel in range(group.channels)]
    step_us = placement.cluster.step_us
    return of(channels, routes or Routes(placement, library), (step_us or 0.0) * 1e-6)


def of(channels: Sequence[Schedule], routes: Routes, step: float) -> Cost:
    """Return the cost of the schedules of all channels, at work together, each on an equal part of the buffer."""
    import numpy as np

    tiers = len(routes.tiers)
    steps = max(len(one.steps) for one in channels)
    times, messages = np.ones(steps), np.zeros(steps)
    latency, load, mean = (np.zeros((steps, tiers)) for _ in range(3))
    together = np.zeros(routes.links)
    ways: dict[int, _Ways] = {}
    needed = together
    for place in range(steps):
        here = [(number, one, one.steps[place]) for number, one in enumerate(channels) if place < len(one.steps)]
        times[place] = here[0][2].times
        messages[place] = max(_messages(step_, routes.placement.n) for _, _, step_ in here)
        last, ways = ways, {number: _ways(routes, step_, ways.get(number)) for number, _, step_ in here}
        if place and _repeats(ways, last, here, times[place], times[place - 1]):  # as the all-gather of a ring
            latency[place], load[place], mean[place] = latency[place - 1], load[place - 1], mean[place - 1]
            together += needed
            continue
        on_links = np.zeros(routes.links)
        for number, schedule, step_ in here:
            share = step_.count / (schedule.blocks * len(channels))
            on_links += np.bincount(ways[number].link, weights=share[ways[number].transfer], minlength=routes.links)
        needed = _needed(on_links, routes)
        load[place] = _highest(needed, routes.tier, tiers)
        together += needed
        of_channels = [_chain(ways[number], needed, routes, chained=times[place] > 1) for number, _, _ in here]
        latency[place], mean[place] = max(of_channels, key=lambda one: float(one[0].sum()))
    return Cost(
        tuple(routes.tiers),
        times,
        messages,
        latency,
        load,
        mean,
        _highest(together, routes.tier, tiers),
        channels[0].pipelined,
        step,
    )


def _repeats(
    ways: dict[int, _Ways],
    last: dict[int, _Ways],
    here: Sequence[tuple[int, Schedule, Step]],
    now: float,
    before: float,
) -> bool:
    """Whether the steps of a place put the same on the same links as those of the place before."""
    import numpy as np

    return (now > 1) == (before > 1) and ways.keys() == last.keys() and all(
        ways[number] is last[number] and np.array_equal(step.count, last[number].step.count) for number, _, step in here
    )  # fmt: skip


def _messages(step: Step, n: int) -> int:
    """Return how many messages the busiest rank sends or receives; switches have no software."""
    import numpy as np

    return max(int(np.bincount(ends[ends < n], minlength=1).max()) for ends in (step.source, step.target))


@dataclass(frozen=True)
class _Ways:
    """The links of a step's transfers, as pairs (transfer, link), and the seconds that each transfer is on its way."""

    step: Step
    transfer: Ints
    link: Ints
    latency: Floats  # (transfers,)


def _ways(routes: Routes, step: Step, last: _Ways | None) -> _Ways:
    """Return the ways of a step: those of the last one where it has the same ends."""
    import numpy as np

    if last and np.array_equal(last.step.source, step.source) and np.array_equal(last.step.target, step.target):
        return last
    transfer, link = routes.paths(step.source, step.target)
    latency = np.zeros(len(step.source))
    np.add.at(latency, transfer, np.nan_to_num(routes.latency[link]))
    return _Ways(step, transfer, link, latency)


def _chain(ways: _Ways, needed: Floats, routes: Routes, chained: bool) -> tuple[Floats, Floats]:
    """Return the latency of a step and the mean load of its transfers, by tiers: of the longest way, or of a chain."""
    import numpy as np

    tiers = len(routes.tiers)
    if not chained:
        longest = ways.link[ways.transfer == int(ways.latency.argmax())] if len(ways.latency) else ways.link
        return _sums(longest, np.nan_to_num(routes.latency[longest]), routes, tiers), np.zeros(tiers)
    ring = _rings(ways.step)
    sizes = np.bincount(ring)
    slowest = int((np.bincount(ring, weights=ways.latency) / np.maximum(1, sizes)).argmax())
    mine = ring[ways.transfer] == slowest
    link = ways.link[mine]
    mean = _sums(link, np.nan_to_num(routes.latency[link]), routes, tiers) / sizes[slowest]
    # of each transfer the link that needs longest
    fullest = np.zeros(len(ways.latency))
    np.maximum.at(fullest, ways.transfer, needed[ways.link])
    on_fullest = mine & (needed[ways.link] >= fullest[ways.transfer])
    _, first = np.unique(ways.transfer[on_fullest], return_index=True)
    chosen = ways.link[on_fullest][first]
    return mean, _sums(chosen, needed[chosen], routes, tiers) / sizes[slowest]


def _rings(step: Step) -> Ints:
    """Return the ring that each transfer of a repeated step belongs to, numbered from 0: (transfers,)."""
    import numpy as np

    ends, flat = np.unique(np.concatenate([step.source, step.target]), return_inverse=True)
    source, target = flat[: len(step.source)], flat[len(step.source) :]
    following = np.arange(len(ends))
    following[source] = target
    least, rounds = np.arange(len(ends)), int(np.ceil(np.log2(max(2, len(ends))))) + 1
    for _ in range(rounds):  # each time twice as far ahead
        least = np.minimum(least, least[following])
        following = following[following]
    _, ring = np.unique(least[source], return_inverse=True)
    return np.asarray(ring, dtype=np.int64)


def _sums(link: Ints, values: Floats, routes: Routes, tiers: int) -> Floats:
    import numpy as np

    found = np.zeros(tiers)
    np.add.at(found, routes.tier[link], values)
    return found


def _needed(on_links: Floats, routes: Routes) -> Floats:
    """Return the seconds that each link needs for a byte of size; UsageError where nobody said how fast it is."""
    import numpy as np

    used = on_links > 0
    unknown = np.flatnonzero(used & np.isnan(routes.rate))
    if len(unknown):
        link = int(unknown[0])
        raise UsageError(
            f"a cost needs the bandwidth of every link that is taken, and nobody said that of {routes.name(link)} "
            f"({routes.tiers[int(routes.tier[link])]}): give its gbps"
        )
    return np.where(used, on_links / np.where(used, routes.rate, 1.0), 0.0)


def _highest(values: Floats, tier: Ints, tiers: int) -> Floats:
    import numpy as np

    found = np.zeros(tiers)
    np.maximum.at(found, tier, values)
    return found


def _only_highest(load: Floats) -> Floats:
    """Return `load`, (steps, tiers), with the highest of each step, and 0 for its other tiers."""
    import numpy as np

    return np.where(np.arange(load.shape[1]) == load.argmax(axis=1)[:, None], load, 0.0)
