"""The figures of a cluster from measured records: for each tier of links one factor of bandwidth and one of latency.

The model (cost.py) says how long a collective takes with the figures as they were declared. A fit finds the factors by
which the links of a tier, and the software of a step, are slower than that, so that the logarithms of predicted and
measured times differ least, by a loss that grows with the distance and not its square (soft L1): a few disturbed
records do not decide.

Intervals hold in 95 of 100 cases. They come from the derivatives at the solution. What the model leaves out is alike at
neighbouring sizes, so that records of one curve (one algorithm on one group in one run) err together: where there are
more curves than figures, the errors are added up by curve before they are squared (Liang and Zeger, "Longitudinal data
analysis using generalized linear models", 1986), with Student's t of curves - 1, and the wider one of this and of
independent errors is taken. A bootstrap over runs would ask for more of them than anyone has.

A figure that the records cannot tell stays as it was declared: no record is limited by it, it acts on all records as
another one does, or its interval is wider than a factor of two to a side.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.errors import ResultsError, UsageError
from commbench.model import cost as costs
from commbench.model.cost import Cost
from commbench.model.library import LIBRARIES
from commbench.model.placement import Placement
from commbench.model.routes import ADDING, Routes
from commbench.model.schedule import NotApplicable, Schedule, Step
from commbench.results.record import Record
from commbench.results.status import OK
from commbench.topology.cluster import Cluster
from commbench.topology.node import MEASURED, Hub
from commbench.units import expand_ranges, format_size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

BANDWIDTH, LATENCY, SOFTWARE = "bandwidth", "latency", "software"
WIDEST = 2.0  # a factor to each side of an interval, beyond which a figure counts as not determined
_MOST = math.log(1e4)  # that a figure may be off
_STEP_US = 1.0  # of software, to begin with where none was declared
_LEAST_SCALE = 0.005  # relative scatter of records
_SLOW = 1.25  # times the prediction, from which a curve is named
_CHI_SQUARE = 6.63  # with one degree of freedom, which chance exceeds once in a hundred
_MESSAGE = "pairs"  # the door of single messages


@dataclass(frozen=True)
class Figure:
    """What was fitted: the time of a tier's links (for a byte, or one way), or of a message's software.

    `factor` 2 is half of the declared bandwidth, or twice the latency; `low` and `high` are its 95 % interval, None
    where it is not determined, which `why` explains.
    """

    kind: str
    tier: str  # empty: of software
    factor: float = 1.0
    low: float | None = None
    high: float | None = None
    why: str = ""

    @property
    def determined(self) -> bool:
        """Whether the records tell it."""
        return self.low is not None

    def __str__(self) -> str:
        return f"{self.kind} of {self.tier}" if self.tier else "software of a message"


@dataclass(frozen=True)
class HoldOut:
    """How far predictions are off for records that a fit did not see: |log(predicted / measured)|, as a fraction."""

    what: str
    records: int
    median: float
    worst: float


@dataclass(frozen=True)
class Slow:
    """A group that takes longer than its tiers explain."""

    hosts: str
    algorithm: str
    ranks: str
    factor: float  # measured / predicted


@dataclass(frozen=True)
class Fit:
    """The figures, how well they foretell, and what they were fitted to."""

    figures: tuple[Figure, ...]
    step_us: float | None  # None: not determined
    records: int
    left_out: Mapping[str, int]  # reason: records
    scatter: float  # of the records around the fit, relative: median
    hold_outs: tuple[HoldOut, ...]
    slow: tuple[Slow, ...]
    ranks: tuple[int, int]
    sizes: tuple[int, int]
    schedules: tuple[str, ...]  # "allreduce ring"
    tiers: tuple[str, ...]  # that records load
    notes: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()  # of the records, as far as these tell

    def to_dict(self) -> dict[str, Any]:
        """Return the fit as it stands in JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Fit:
        """Return the fit that to_dict was made of."""
        kinds = {"figures": Figure, "hold_outs": HoldOut, "slow": Slow}
        some: dict[str, Any] = dict(kept)
        for name, kind in kinds.items():
            some[name] = tuple(kind(**one) for one in kept[name])
        for name in ("ranks", "sizes", "schedules", "tiers", "notes", "libraries"):
            some[name] = tuple(kept[name])
        return cls(**some)

    def beyond(self, collective: str, algorithm: str, ranks: int, size: int, tiers: Iterable[str]) -> str:
        """Return what of a prediction lies outside of what was fitted, or nothing; `tiers` are those that it loads."""
        found = []
        for what, value, (low, high) in (("ranks", ranks, self.ranks), ("bytes", size, self.sizes)):
            if not low <= value <= high:
                found.append(f"{what} beyond {low} to {high}")
        if f"{collective} {algorithm}" not in self.schedules:
            found.append(f"no record of {collective} {algorithm}")
        if missing := [tier for tier in tiers if tier not in self.tiers]:
            found.append(f"no record loads {', '.join(missing)}")
        return ", ".join(found)

    def lines(self) -> list[str]:
        """Return what a person should know."""
        found = [
            f"fitted to {self.records} records of {_span(*self.ranks)} ranks, {format_size(self.sizes[0])} to "
            f"{format_size(self.sizes[1])}, which scatter by {self.scatter:.0%} around it (median)",
            *self.notes,
        ]
        found += [f"left out {number}: {reason}" for reason, number in self.left_out.items()]
        for one in self.figures:
            if not one.determined:
                found.append(f"{one}: not determined by these records ({one.why}); kept as declared")
                continue
            low, high = one.low or 0.0, one.high or 0.0
            if one.kind == BANDWIDTH:
                text = f"{1 / one.factor:.3g} x the declared (95 %: {1 / high:.3g} to {1 / low:.3g})"
            elif one.kind == LATENCY:
                text = f"{one.factor:.3g} x the declared (95 %: {low:.3g} to {high:.3g})"
            else:
                step = self.step_us or 0.0
                text = f"{step:.3g} us (95 %: {step * low / one.factor:.3g} to {step * high / one.factor:.3g})"
            found.append(f"{one}: {text}")
        for held in self.hold_outs:
            found.append(
                f"fitted without {held.what}, its {held.records} records are foretold with an error of "
                f"{held.median:.0%} (median), {held.worst:.0%} at worst"
            )
        found += [
            f"slower than its tier explains: ranks {one.ranks} on {one.hosts}, {one.algorithm}, {one.factor:.2f} x"
            for one in self.slow[:5]
        ]
        return found


@dataclass(frozen=True)
class _Shape:
    """Curves that cost the same, and the sizes at which they were measured."""

    cost: Cost
    places: NDArray[np.int64]  # of the cost's tiers among those of the fit
    sizes: Floats


@dataclass(frozen=True)
class _Data:
    """Records ready to be fitted; `shape` and `at` say which time of which shape foretells a record."""

    tiers: tuple[str, ...]
    shapes: tuple[_Shape, ...]
    shape: NDArray[np.int64]
    at: NDArray[np.int64]
    curve: NDArray[np.int64]
    logs: Floats  # of the measured seconds
    step: float  # seconds to begin with
    ranks: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def only(self, chosen: NDArray[np.bool_]) -> _Data:
        """Return some of the records."""
        return replace(
            self, **{name: getattr(self, name)[chosen] for name in ("shape", "at", "curve", "logs", "ranks", "sizes")}
        )

    def predicted(self, values: Floats) -> Floats:
        """Return the logarithms of the seconds that figures foretell: values, (2 tiers + 1,), are their logarithms."""
        import numpy as np

        factors, count = np.exp(values), len(self.tiers)
        slower, later = factors[:count], factors[count : 2 * count]
        step = float(self.step * factors[-1])
        tables = {}
        for number in np.unique(self.shape).tolist():
            one = self.shapes[number]
            some = replace(one.cost, step=step)
            tables[number] = some.seconds(one.sizes, slower[one.places], later[one.places])
        found = np.empty(len(self.shape))
        for number, table in tables.items():
            mine = self.shape == number
            found[mine] = table[self.at[mine]]
        return np.log(found)


def records_of(path: str | Path) -> list[list[Record]]:
    """Return the records of run folders, run by run; of logs, log by log."""
    from commbench.results.collect import collect

    return [reading.records for reading in collect([path])]


def records_of_frame(frame: Any) -> list[list[Record]]:
    """Return the records of a frame that `commbench.load` gave, run by run."""
    names = [field.name for field in dataclasses.fields(Record)]
    runs: dict[str, list[Record]] = {}
    for row in frame.to_dict("records"):
        values: dict[str, Any] = {name: None if row[name] != row[name] else row[name] for name in names}  # NaN is None
        runs.setdefault(str(row["source"]), []).append(Record(**values))
    return list(runs.values())


def fit(runs: Sequence[Sequence[Record]], cluster: Cluster, hold_out: bool = True) -> Fit:
    """Fit the figures of a cluster to the records of measured runs.

    In a run, ranks fill its hosts one after another, alike. `hold_out`: fit anew without some of the records, to see
    how well those are foretold. Raises UsageError for hosts that the cluster does not have, and where no record can be
    used.
    """
    import numpy as np

    data, records, left_out, notes = _data(runs, cluster)
    values, figures, step = _solve(data, cluster)
    residuals = data.logs - replace(data, step=step).predicted(values)
    return Fit(
        tuple(figures),
        step * math.exp(values[-1]) * 1e6 if figures[-1].determined else None,
        len(records),
        left_out,
        float(np.expm1(np.median(np.abs(residuals)))),
        tuple(_hold_outs(data, cluster)) if hold_out else (),
        tuple(_slow(data, records, residuals)),
        (int(data.ranks.min()), int(data.ranks.max())),
        (int(data.sizes.min()), int(data.sizes.max())),
        tuple(sorted({f"{one.collective} {_ran(one)}" for one in records})),
        tuple(tier for place, tier in enumerate(data.tiers) if _loads(data, place)),
        tuple(notes),
        tuple(sorted({one.library for one in records if one.library})),
    )


def apply(cluster: Cluster, fitted: Fit) -> Cluster:
    """Return the cluster with the figures that were determined; they say that they are measured."""
    slower = {one.tier: one.factor for one in fitted.figures if one.kind == BANDWIDTH and one.determined}
    later = {one.tier: one.factor for one in fitted.figures if one.kind == LATENCY and one.determined}

    def changed(thing: Any, tier: str) -> Any:
        if tier not in slower and tier not in later:
            return thing
        gbps = None if thing.gbps is None else thing.gbps / slower.get(tier, 1.0)
        us = None if thing.us is None else thing.us * later.get(tier, 1.0)
        return replace(thing, gbps=gbps, us=us, source=MEASURED)

    classes = tuple(
        replace(
            one,
            links=tuple(changed(link, f"{one.name} {link.kind}") for link in one.links),
            nics=tuple(changed(nic, f"{one.name} nic") for nic in one.nics),
            hubs=tuple(_adding(hub, later.get(f"{one.name} {ADDING}")) for hub in one.hubs),
        )
        for one in cluster.classes
    )
    heights = cluster.arrays.tier.tolist()
    switches = tuple(
        switch if switch.parent is None else changed(switch, f"uplink {height}")
        for switch, height in zip(cluster.switches, heights, strict=True)
    )
    step: dict[str, Any] = {}
    if fitted.step_us is not None:
        step = {"step_us": fitted.step_us, "step_source": MEASURED}
    return replace(cluster, classes=classes, switches=switches, **step)


def _adding(hub: Hub, later: float | None) -> Hub:
    return hub if hub.us is None or later is None else replace(hub, us=hub.us * later, source=MEASURED)


# What is fitted.


def _data(runs: Sequence[Sequence[Record]], cluster: Cluster) -> tuple[_Data, list[Record], dict[str, int], list[str]]:
    """Return the records that can be used, those same records, and why others cannot."""
    import numpy as np

    seats = _Seats(cluster)
    used: list[Record] = []
    left_out: Counter[str] = Counter()
    shapes: dict[Any, int] = {}
    kept: list[tuple[Cost, dict[int, int]]] = []  # of each shape, its cost and where its sizes stand
    tiers: dict[str, int] = {}
    curves: dict[Any, int] = {}
    rows: list[tuple[int, int, int]] = []
    known: dict[Any, int | str] = {}
    for number, run in enumerate(runs):
        first = seats.first_ranks(run)
        for record in run:
            if reason := _useless(record):
                left_out[reason] += 1
                continue
            root = record.root if record.collective == _MESSAGE else None
            key = (number, record.collective, _ran(record), record.backend, record.ranks, record.hosts, root)
            if key not in known:
                try:
                    placement = seats.placement(record, first)
                    if len(np.unique(np.stack([placement.node, placement.device]), axis=1)[0]) < placement.n:
                        raise NotApplicable("of ranks that wait for a device or core which they share")
                    found = _cost_of(record, placement)
                except NotApplicable as refusal:
                    known[key] = str(refusal).partition("; it has")[0]
                else:
                    for tier in found.tiers:
                        tiers.setdefault(tier, len(tiers))
                    known[key] = shapes.setdefault(_digest(found), len(shapes))
                    if known[key] == len(kept):
                        kept.append((found, {}))
            shape = known[key]
            if isinstance(shape, str):
                left_out[shape] += 1
                continue
            at = kept[shape][1].setdefault(record.size, len(kept[shape][1]))
            rows.append((shape, at, curves.setdefault(key, len(curves))))
            used.append(record)
    if not used:
        reasons = "; ".join(f"{number} x {reason}" for reason, number in left_out.most_common(3))
        raise ResultsError(f"a fit needs records with a time and a known algorithm, and there are none: {reasons}")
    finished = tuple(
        _Shape(cost, np.array([tiers[tier] for tier in cost.tiers]), np.array(list(sizes), dtype=np.float64))
        for cost, sizes in kept
    )
    columns = np.array(rows, dtype=np.int64).T
    logs = np.log(np.array([one.time_us for one in used], dtype=np.float64) * 1e-6)
    ranks, sizes = (np.array([getattr(one, name) for one in used]) for name in ("nranks", "size"))
    step = (cluster.step_us or _STEP_US) * 1e-6
    data = _Data(tuple(tiers), finished, columns[0], columns[1], columns[2], logs, step, ranks, sizes)
    return data, used, dict(left_out), seats.notes


def _useless(record: Record) -> str:
    """Return why a record says nothing about a cluster, or nothing."""
    if record.simulated:
        return "simulated, or predicted"
    if record.status != OK or not record.time_us:
        return f"without a time ({record.status})"
    if not record.size or not record.nranks or not record.ranks or not record.hosts:
        return "of a log that does not tell ranks and hosts"
    if record.collective == _MESSAGE:
        return "" if record.nranks == 2 else "of messages among more than two ranks"
    if _ran(record) is None:
        return "the library did not say which algorithm ran"
    return "rooted elsewhere than at rank 0" if record.root else ""


def _ran(record: Record) -> str | None:
    """Return which algorithm ran, as far as it is known."""
    if record.collective == _MESSAGE:
        return "message"
    return record.observed_algorithm or (None if record.algorithm == "auto" else record.algorithm)


def _cost_of(record: Record, placement: Placement) -> Cost:
    """Return what a record cost; raise NotApplicable where no schedule does what ran."""
    import numpy as np

    algorithm = _ran(record) or ""
    library = LIBRARIES.get(record.backend, LIBRARIES["mpi"])
    if record.collective != _MESSAGE:
        return costs.cost(record.collective, algorithm, placement, library)
    ends = np.array([0]), np.array([1])
    second = expand_ranges(record.ranks)[1]
    source, target = ends[::-1] if record.root == second else ends
    one = np.ones(1, dtype=np.int64)
    message = Schedule(1, (Step(source, target, one, lambda _: (one - 1, one - 1)),))
    return costs.of([message], Routes(placement, library), 0.0)


def _digest(cost: Cost) -> tuple[Any, ...]:
    """Return what makes two costs the same."""
    arrays = (cost.times, cost.messages, cost.latency, cost.load, cost.mean, cost.together)
    return (cost.tiers, cost.pipelined, *(array.tobytes() for array in arrays))


class _Seats:
    """Where the ranks of records sit on a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._places = dict(cluster.arrays.places)  # and of a host that is taken for one of them
        self.notes: list[str] = []

    def first_ranks(self, run: Sequence[Record]) -> dict[str, int]:
        """Return the first rank of each host of a run."""
        first: dict[str, int] = {}
        for record in run:
            for host, ranks in _shares(record):
                first[host] = min(first.get(host, ranks[0]), *ranks)
        if first.keys() - self._places:
            self._adopt(sorted(first))
        return first

    def _adopt(self, hosts: list[str]) -> None:
        """Take an unknown host for the first node where there is but one kind of them, else refuse."""
        unknown = [host for host in hosts if host not in self._places]
        if len(hosts) > 1 or len(self._cluster.classes) != 1:
            some = ", ".join(unknown[:5]) + ", ..." * (len(unknown) > 5)
            raise UsageError(
                f"records are of hosts of the cluster, and {self._cluster.name or 'it'} has none called {some}: name "
                f"its nodes as the hosts are called (it has {', '.join(list(self._places)[:3])}, ...)"
            )
        self._places[unknown[0]] = 0
        node = self._cluster.arrays.nodes[0]
        self.notes.append(f"{unknown[0]} is no node of the cluster: taken for {node}, since all are of one class")

    def placement(self, record: Record, first: Mapping[str, int]) -> Placement:
        """Return where the ranks of a record sit, on devices that are numbered as ranks on their host are."""
        import numpy as np

        node, device = [], []
        for host, ranks in _shares(record):
            place = self._places[host]
            kind = self._cluster.classes[int(self._cluster.arrays.node_class[place])]
            node += [place] * len(ranks)
            device += [(rank - first[host]) % max(1, len(kind.devices)) for rank in ranks]
        return Placement(self._cluster, np.array(node), np.array(device))


def _shares(record: Record) -> list[tuple[str, list[int]]]:
    """Return the hosts of a record, each with its ranks: an equal share of them, one host after another."""
    if not record.hosts or not record.ranks or not record.nranks:
        return []
    hosts, ranks = record.hosts.split(","), expand_ranges(record.ranks)
    if len(hosts) not in (record.nnodes, None) or len(ranks) % len(hosts):
        raise UsageError(
            f"a fit needs to know where ranks sit, equally many on each host, and {record.nranks} ranks are on "
            f"{record.nnodes} nodes called {record.hosts}"
        )
    share = len(ranks) // len(hosts)
    return [(host, ranks[place * share : (place + 1) * share]) for place, host in enumerate(hosts)]


# How it is fitted.


def _solve(data: _Data, cluster: Cluster) -> tuple[Floats, list[Figure], float]:
    """Return the logarithms of all figures (0: as declared), the figures, and the step's seconds that they begin at."""
    import numpy as np

    count = len(data.tiers)
    kinds = [(BANDWIDTH, tier) for tier in data.tiers] + [(LATENCY, tier) for tier in data.tiers] + [(SOFTWARE, "")]
    free = np.array([_loads(data, p) for p in range(count)] + [_delays(data, p) for p in range(count)] + [True])
    why = np.array(["no record takes it"] * count + ["no record takes it, or none was declared"] * count + [""], object)
    values, scale = _begin(data, free)
    while True:
        values, scale = _refine(data, values, free, scale)
        errors, silent, more = _errors(data, values, free, scale)
        errors[~free] = 0.0
        widest = len(errors) - 1 - int(np.argmax(errors[::-1]))  # of equals the last: latencies before bandwidths
        if not free.any():
            break
        if errors[widest] <= math.log(WIDEST):
            idle = _idle(data, values, free, scale, more)
            if idle is None:
                break
            widest = idle
        free[widest], values[widest] = False, 0.0
        if widest == len(errors) - 1:
            data = replace(data, step=(cluster.step_us or 0.0) * 1e-6)
        if silent[widest] or errors[widest] <= math.log(WIDEST):
            why[widest] = "none of them is limited by it" if widest < count else "none of them depends on it"
        elif math.isinf(errors[widest]):
            why[widest] = "it acts on all of them as other figures do"
        else:
            why[widest] = f"its interval is wider than a factor of {WIDEST:g}"
    figures = []
    for place, (kind, tier) in enumerate(kinds):
        if free[place]:
            factor, spread = math.exp(values[place]), math.exp(errors[place])
            figures.append(Figure(kind, tier, factor, factor / spread, factor * spread))
        else:
            figures.append(Figure(kind, tier, why=str(why[place])))
    return values, figures, data.step


def _begin(data: _Data, free: NDArray[np.bool_]) -> tuple[Floats, float]:
    """Return the best of several starts: as declared, and with one tier far slower, as another may be the limit."""
    import numpy as np

    starts = [np.zeros(len(free))]
    for place in np.flatnonzero(free[: len(data.tiers)]).tolist():
        starts.append(np.zeros(len(free)))
        starts[-1][place] = math.log(10)
    found = [_least(data, start, free, 0.1) for start in starts]
    values, _ = min(found, key=lambda one: one[1])
    return values, _scale(data.predicted(values) - data.logs)


def _refine(data: _Data, values: Floats, free: NDArray[np.bool_], scale: float) -> tuple[Floats, float]:
    """Return a solution from near one, with the scatter that it has."""
    values, _ = _least(data, values, free, scale)
    return values, _scale(data.predicted(values) - data.logs)


def _scale(residuals: Floats) -> float:
    """Return the scatter of residuals, as a standard deviation that outliers do not move."""
    import numpy as np

    return max(_LEAST_SCALE, 1.4826 * float(np.median(np.abs(residuals))))


def _least(data: _Data, start: Floats, free: NDArray[np.bool_], scale: float) -> tuple[Floats, float]:
    """Return the values that fit best, and the loss."""
    from scipy.optimize import least_squares

    if not free.any():
        return start, 0.0
    values = start.copy()

    def residuals(some: Floats) -> Floats:
        values[free] = some
        return data.predicted(values) - data.logs

    found = least_squares(
        residuals, start[free].clip(-_MOST, _MOST), bounds=(-_MOST, _MOST), loss="soft_l1", f_scale=scale, x_scale=1.0
    )
    values[free] = found.x
    return values, float(found.cost)


def _errors(
    data: _Data, values: Floats, free: NDArray[np.bool_], scale: float
) -> tuple[Floats, NDArray[np.bool_], Floats]:
    """Return half of each value's 95 % interval, infinite where the records do not tell it, and which ones do nothing.

    The third is by how much curves that err as one make a value's variance larger, at least 1.
    """
    import numpy as np
    from scipy.special import stdtrit

    places = np.flatnonzero(free)
    residuals = data.predicted(values) - data.logs
    columns = []
    for place in places.tolist():
        moved = []
        for change in (1e-4, -1e-4):
            near = values.copy()
            near[place] += change
            moved.append(data.predicted(near))
        columns.append((moved[0] - moved[1]) / 2e-4)
    slopes = np.array(columns).T.reshape(len(residuals), len(places))
    far = (residuals / scale) ** 2
    pull = residuals / np.sqrt(1 + far)  # the derivative of the loss, and its derivative
    curvature = slopes.T @ (slopes * ((1 + far) ** -1.5)[:, None])
    half = np.full(len(values), np.inf)
    size = np.sqrt(np.diag(curvature))
    told = size > 1e-3 * max(1e-12, float(size.max(initial=0.0)))
    silent = np.zeros(len(values), dtype=bool)
    silent[places[~told]] = True
    more = np.ones(len(values))
    if not told.any():
        return half, silent, more
    scaled = curvature[np.ix_(told, told)] / np.outer(size[told], size[told])
    lengths, ways = np.linalg.eigh(scaled)
    flat = lengths < 1e-7
    lost = (np.abs(ways[:, flat]) > 1e-3).any(axis=1)  # takes part in a change that no record shows
    inverse = (ways[:, ~flat] / lengths[~flat]) @ ways[:, ~flat].T / np.outer(size[told], size[told])
    score = slopes[:, told] * pull[:, None]
    n, number = len(residuals), int(told.sum())
    small = n / max(1, n - number)
    variance = np.diag(inverse @ (score.T @ score) @ inverse) * small
    widths = np.sqrt(variance) * stdtrit(max(1, n - number), 0.975)
    curves = np.unique(data.curve, return_inverse=True)[1]
    groups = int(curves.max()) + 1
    if groups > number + 1:
        sums = np.zeros((groups, number))
        np.add.at(sums, curves, score)
        grouped = np.diag(inverse @ (sums.T @ sums) @ inverse) * small * groups / (groups - 1)
        more[places[told]] = np.maximum(1.0, grouped / np.maximum(variance, 1e-300))
        widths = np.maximum(widths, np.sqrt(grouped) * stdtrit(groups - 1, 0.975))
    half[places[told]] = np.where(lost, np.inf, widths)
    return half, silent, more


def _idle(data: _Data, values: Floats, free: NDArray[np.bool_], scale: float, more: Floats) -> int | None:
    """Return a bandwidth that the records do without: links of any speed above it explain them as well.

    At the speed where a link becomes the limit, noise alone may make it one. A likelihood ratio tells: twice the change
    of the loss is as chi square where records err one by one, and `more` times as much where curves do.
    """
    import numpy as np

    _, loss = _least(data, values, free, scale)
    for place in np.flatnonzero(free[: len(data.tiers)]).tolist():
        others = free.copy()
        others[place] = False
        losses = []
        for value in (-_MOST, 0.0):  # no limit, and as declared
            start = values.copy()
            start[place] = value
            losses.append(_least(data, start, others, scale)[1])
        if 2 * (max(losses) - loss) / scale**2 < _CHI_SQUARE * more[place]:
            return place
    return None


def _loads(data: _Data, place: int) -> bool:
    return any(float(one.cost.load[:, one.places == place].sum()) > 0 for one in data.shapes)


def _delays(data: _Data, place: int) -> bool:
    return any(float(one.cost.latency[:, one.places == place].sum()) > 0 for one in data.shapes)


# How good it is.


def _hold_outs(data: _Data, cluster: Cluster) -> Iterable[HoldOut]:
    """Yield how far off fits are that did not see the most ranks, and the largest sizes."""
    import numpy as np

    counts, sizes = np.unique(data.ranks), np.unique(data.sizes)
    if len(counts) > 1:
        yield _held(data, cluster, data.ranks == counts[-1], f"{counts[-1]} ranks")
    if len(sizes) > 4:
        first = sizes[-max(1, len(sizes) // 5)]
        yield _held(data, cluster, data.sizes >= first, f"sizes from {format_size(int(first))} on")


def _held(data: _Data, cluster: Cluster, out: NDArray[np.bool_], what: str) -> HoldOut:
    import numpy as np

    seen, unseen = data.only(~out), data.only(out)
    values, _, step = _solve(seen, cluster)
    off = np.expm1(np.abs(replace(unseen, step=step).predicted(values) - unseen.logs))
    return HoldOut(what, int(out.sum()), float(np.median(off)), float(off.max()))


def _slow(data: _Data, records: Sequence[Record], residuals: Floats) -> list[Slow]:
    """Return the curves that take far longer than foretold, the slowest first."""
    import numpy as np

    least = max(math.log(_SLOW), 3 * _scale(residuals))
    found = []
    for curve in range(int(data.curve.max()) + 1):
        mine = np.flatnonzero(data.curve == curve)
        behind = float(np.median(residuals[mine]))
        if behind > least:
            one = records[int(mine[0])]
            found.append(Slow(one.hosts, f"{one.collective} {_ran(one)}", one.ranks, math.exp(behind)))
    return sorted(found, key=lambda one: -one.factor)


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
