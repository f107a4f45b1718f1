"""The clocks of ranks made one, with what each may be off.

Ranks of one host share its clock. Between hosts, ranks that measured (by ping-pong with the rank whose clock is the
common one, at the start and the end of a run) say in files `clock-rankN.json` beside their traces what they found:

    {"format": 1, "rank": 1, "host": "node2", "readings": [{"local": ns, "common": ns, "error": ns}, ...]}

Where nobody measured, the ends of collectives tell: all ranks of an all-reduce end at about one instant. What is set
that way cannot tell late ends from slow clocks, and the waits that follow from it are those by durations.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from commbench.attribution.matching import Meeting
from commbench.attribution.trace import SYNCHRONISING, Trace
from commbench.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Times = NDArray[np.int64]

# How a rank's clock was set against the first one's (`Alignment.source`).
SHARED, MEASURED, FROM_TRACES, ASSUMED = "one host", "ping-pong", "the traces", "none"

FORMAT = 1
LATEST = 1 << 62  # ns since 1970: the year 2116
UNKNOWN_ERROR = 1 << 62  # ns: nothing tells how far a clock is off
_MOST_DRIFT = 1e-4  # seconds a second: quartz is within 100 ppm, and what is more is no drift
_FEWEST_ENDS = 8  # collectives from which a drift is told
_MOST_PAIRS = 50_000  # of ends, of which slopes are taken
_SCATTER = 3 * 1.4826  # times the median absolute deviation: three standard deviations where it is normal


@dataclass(frozen=True)
class Reading:
    """At `local` ns on a rank's clock the common one showed `common` ns, give or take `error`."""

    local: int
    common: int
    error: int


@dataclass(frozen=True)
class Alignment:
    """How a trace's clock becomes the common one: common = local + offset + (local - since) x drift."""

    source: str
    offset: int = 0  # ns
    drift: float = 0.0  # seconds a second
    since: int = 0  # ns, local
    error: int = 0  # ns: how far common times may be off; between ranks of one clock, only `resolution`
    resolution: int = 1  # ns: what the trace's times are whole multiples of
    clock: str = ""  # what ranks of one clock have in common

    def common(self, local: Any) -> Any:
        """Return common times (ns) of local ones, a number or an array."""
        if isinstance(local, np.ndarray):
            return local + self.offset + np.rint((local - self.since) * self.drift).astype(np.int64)
        return local + self.offset + round((local - self.since) * self.drift)


def known(error: int) -> int | None:
    """Return what clocks may be off (ns); None where nothing tells how far that is."""
    return error if error < UNKNOWN_ERROR else None


def read_readings(paths: Iterable[str | Path]) -> dict[int, tuple[Reading, ...]]:
    """Return the readings of each rank from files `clock-rankN.json`; raises UsageError for what is none."""
    found: dict[int, tuple[Reading, ...]] = {}
    sources: dict[int, Path] = {}
    for path in map(Path, paths):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            version, rank = content["format"], int(content["rank"])
            readings = tuple(Reading(*(int(one[name]) for name in _FIELDS)) for one in content["readings"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            what = str(error) if isinstance(error, OSError) else f"{type(error).__name__} {error}"
            raise UsageError(f"{path} is no file of clock readings ({what}): leave it out, or record it anew") from None
        if version != FORMAT:
            raise UsageError(
                f"clock readings have format {FORMAT}, and {path} has {version}: read it with its own version"
            )
        if rank in found:
            raise UsageError(
                f"a rank has one file of clock readings, and {sources[rank]} and {path} are both of {rank}"
            )
        if not readings or any(one.error < 0 for one in readings):
            raise UsageError(f"{path} has no readings, or negative errors: record it anew")
        if any(abs(time) > LATEST for one in readings for time in (one.local, one.common, one.error)):
            raise UsageError(f"{path} has times of more than {LATEST:g} ns, which no clock shows: record it anew")
        found[rank], sources[rank] = readings, path
    return found


_FIELDS = ("local", "common", "error")


def align(
    traces: Sequence[Trace], readings: Mapping[int, Sequence[Reading]], meetings: Sequence[Meeting] = ()
) -> tuple[Alignment, ...]:
    """Return each trace's alignment. `readings`: those of ranks that measured their clocks."""
    clocks: dict[str, list[int]] = defaultdict(list)
    for place, trace in enumerate(traces):
        clocks[_clock(trace, place)].append(place)
    found: dict[str, Alignment] = {}
    if len(clocks) == 1:
        found[next(iter(clocks))] = Alignment(SHARED)
    for name, places in clocks.items():
        if name not in found and (line := _measured(traces, places, readings)) is not None:
            found[name] = line
    if not found and clocks:
        found[next(iter(clocks))] = Alignment(ASSUMED)  # the first one's clock is the common one
    _chain(traces, clocks, meetings, found)
    return tuple(_of(trace, found[clock := _clock(trace, place)], clock) for place, trace in enumerate(traces))


def _clock(trace: Trace, place: int) -> str:
    """Return what traces have in common that are on one clock."""
    return trace.host if trace.host and trace.unix else f"{trace.source} ({place})"


def _of(trace: Trace, host: Alignment, clock: str) -> Alignment:
    """Return the alignment of one of a clock's traces."""
    times = _times(trace)
    resolution = 1000 if len(times) and not (times % 1000).any() else 1
    return Alignment(host.source, host.offset, host.drift, host.since, host.error + resolution, resolution, clock)


def _times(trace: Trace) -> Times:
    """Return all times of a trace's calls, else of its spans."""
    kept = [time for call in trace.calls for time in (call.start, call.end, call.enqueued) if time is not None]
    return np.array(kept, dtype=np.int64) if kept else np.concatenate([trace.spans.start, trace.spans.end])


def _measured(
    traces: Sequence[Trace], places: Sequence[int], readings: Mapping[int, Sequence[Reading]]
) -> Alignment | None:
    """Return the alignment of a clock by readings, those of the rank on it that read it best; None without any."""
    of_ranks = [readings[rank] for place in places if (rank := traces[place].rank) is not None and rank in readings]
    if not of_ranks:
        return None
    times = np.concatenate([_times(traces[place]) for place in places])
    span = (int(times.min()), int(times.max())) if len(times) else None
    return min((_line(mine, span) for mine in of_ranks), key=lambda one: one.error)


def _line(readings: Sequence[Reading], span: tuple[int, int] | None) -> Alignment:
    """Return the line through the best reading of the first half of the time and the best one of the second half.

    Between the two it is off by no more than they are; beyond, what the drift may be off comes on top. Another reading
    that both errors do not explain tells of a drift that is not even: the line is off by as much as it is. Of a single
    reading the drift is anything that quartz does.
    """
    ordered = sorted(readings, key=lambda one: one.local)
    middle = (ordered[0].local + ordered[-1].local) // 2
    one = min((r for r in ordered if r.local <= middle), key=lambda r: r.error)
    other = min((r for r in ordered if r.local > middle), key=lambda r: r.error, default=one)
    first, last = span or (one.local, other.local)
    if other is one:
        away = max(abs(first - one.local), abs(last - one.local))
        return Alignment(MEASURED, one.common - one.local, 0.0, one.local, one.error + round(_MOST_DRIFT * away))
    apart = other.local - one.local
    drift = ((other.common - other.local) - (one.common - one.local)) / apart
    line = Alignment(MEASURED, one.common - one.local, drift, one.local)
    worst = max(one.error, other.error)
    beyond = max(0, one.local - first, last - other.local) * (one.error + other.error) / apart
    gaps = [(abs(line.common(r.local) - r.common), r.error) for r in ordered]
    bent = max((gap + error for gap, error in gaps if gap > error + worst), default=0)
    return Alignment(MEASURED, line.offset, drift, one.local, max(worst + round(beyond), bent))


def _chain(
    traces: Sequence[Trace],
    clocks: Mapping[str, Sequence[int]],
    meetings: Sequence[Meeting],
    found: dict[str, Alignment],
) -> None:
    """Align all clocks that are not in `found` yet by collectives with those that are, the most of them first."""
    name_of = {place: name for name, places in clocks.items() for place in places}
    ends = [ends for meeting in meetings if (ends := _ends(meeting, traces))]
    while len(found) < len(clocks):
        pairs: dict[str, list[tuple[int, int, int]]] = defaultdict(list)  # local end, common end, error
        for at in ends:
            sides: dict[str, list[int]] = defaultdict(list)
            for place, end in at.items():
                sides[name_of[place]].append(end)
            told = [(found[name].common(_middle(of)), found[name].error) for name, of in sides.items() if name in found]
            for name, of in sides.items():
                if name not in found and told:
                    pairs[name].append((_middle(of), _middle([end for end, _ in told]), min(e for _, e in told)))
        if not pairs:
            found.update({name: Alignment(ASSUMED, error=UNKNOWN_ERROR) for name in clocks if name not in found})
            return
        name = max(pairs, key=lambda name: len(pairs[name]))
        found[name] = _by_ends(np.array(pairs[name], dtype=np.int64))


def _ends(meeting: Meeting, traces: Sequence[Trace]) -> dict[int, int]:
    """Return when the ranks ended, by place of the trace, of collectives that end everywhere at once."""
    if meeting.operation not in SYNCHRONISING or meeting.coalesced or meeting.uneven:
        return {}
    known = {place: traces[place].calls[index].end for place, index in meeting.calls.items()}
    return {place: end for place, end in known.items() if end is not None}


def _middle(values: Sequence[int]) -> int:
    """Return the lower median: exact, where times since 1970 are beyond what a float holds to the nanosecond."""
    return sorted(values)[(len(values) - 1) // 2]


def _by_ends(pairs: Times) -> Alignment:
    """Return the alignment by which local ends fit common ones (the first two columns), robustly.

    Drift: the median slope of pairs of ends (Theil 1950, Sen 1968); offset: the median of what is left. The error is
    three times the standard deviation that the median absolute deviation of the residuals stands for (of few ends:
    twice the largest deviation), and that of those it was set against: it is the scatter of the ends, and says nothing
    of ranks that always end late.
    """
    since = int(pairs[0, 0])
    offset = int(pairs[0, 1]) - since
    at, off = (pairs[:, 0] - since).astype(float), (pairs[:, 1] - pairs[:, 0] - offset).astype(float)
    drift = theil_sen(at, off) if len(at) >= _FEWEST_ENDS else 0.0
    if abs(drift) > _MOST_DRIFT:
        drift = 0.0
    left = off - drift * at
    middle = float(np.median(left))
    away = np.abs(left - middle)
    scatter = _SCATTER * float(np.median(away)) if len(at) >= _FEWEST_ENDS else 2 * float(away.max())
    error = int(np.max(pairs[:, 2])) + round(scatter) if len(at) > 1 else UNKNOWN_ERROR  # one end has no scatter
    return Alignment(FROM_TRACES, offset + round(middle), drift, since, min(error, UNKNOWN_ERROR))


def theil_sen(x: Floats, y: Floats) -> float:
    """Return the median slope over pairs of points; of many points the pairs that lie farthest apart in order.

    `x` ascends. At most about 50 000 pairs are taken: all of up to 300 points.
    """
    n = len(x)
    if n < 2:
        return 0.0
    slopes: list[Floats] = []
    pairs = 0
    for lag in _lags(n):
        run = x[lag:] - x[:-lag]
        slopes.append(((y[lag:] - y[:-lag])[run > 0]) / run[run > 0])
        pairs += n - lag
        if pairs > _MOST_PAIRS:
            break
    all_slopes = np.concatenate(slopes)
    return float(np.median(all_slopes)) if len(all_slopes) else 0.0


def _lags(n: int) -> Iterable[int]:
    """Return how far apart pairs are taken: every lag of few points, else long ones, spread over all lengths."""
    if n * (n - 1) // 2 <= _MOST_PAIRS:
        return range(1, n)
    # From half of the points on: half the pairs have the most leverage, and any two lags use unlike points.
    few = max(1, _MOST_PAIRS // (n // 2))
    return sorted({int(lag) for lag in np.linspace(n // 2, n - 1, num=2 * few)})
