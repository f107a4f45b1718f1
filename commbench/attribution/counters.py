"""Counters of network ports, devices and processors over time, as telemetry records them.

    series, notes = read_series("results/20261201T120000Z-telemetry")
    rates(series[0], "port_xmit_data", starts, ends)    bytes/s in each window

A counter only rises (bytes, ticks, packets), and what counts is by how much; a gauge is what it is (percent, watts).
Sources: the kernel's Documentation/ABI (sysfs-class-infiniband) and drivers/infiniband/core/sysfs.c for units and
widths; the InfiniBand Architecture Specification, PortCounters, for counters that stay at their largest value.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from commbench.errors import ResultsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Times = NDArray[np.int64]
    Floats = NDArray[np.float64]

FORMAT = 1  # of the files
FILES = "telemetry-*.jsonl"  # of a folder

# Names of RDMA counters that tell of trouble, as the drivers spell them.
WAITS = ("port_xmit_wait",)  # ticks with data to send and nobody to take it; how long a tick is depends on the adapter
DISCARDS = ("port_xmit_discards", "port_rcv_discards", "rx_discards_phy", "out_of_buffer")
RETRANSMISSIONS = (
    *("roce_adp_retrans", "packet_seq_err", "local_ack_timeout_err", "implied_nak_seq_err", "rnr_nak_retry_err"),
    *("out_of_sequence", "duplicate_request"),
)
CONGESTION = ("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "roce_slow_restart")
TROUBLE = (*CONGESTION, *RETRANSMISSIONS, *DISCARDS)
# Names of those that count bytes, the first one that a port has: by 64 bits where there are two.
SENT, RECEIVED = ((f"port_{way}_data_64", f"port_{way}_data") for way in ("xmit", "rcv"))

# Gauges of GPUs that say by what the clock was lowered, in which share of the time; idle GPUs are none.
THROTTLED = {"throttle_thermal": "heat", "throttle_power": "power", "throttle_hardware": "the hardware itself"}

# Bits of counters of the port's own agent, which stay at their largest value; others are taken for 32 or 64.
_BITS = {
    **dict.fromkeys(("local_link_integrity_errors", "excessive_buffer_overrun_errors"), (4,)),
    **dict.fromkeys(("link_downed", "link_error_recovery"), (8,)),
    **dict.fromkeys(("port_xmit_constraint_errors", "port_rcv_constraint_errors"), (8,)),
    **dict.fromkeys(("symbol_error", "port_rcv_errors", "port_rcv_remote_physical_errors"), (16,)),
    **dict.fromkeys(("port_rcv_switch_relay_errors", "port_xmit_discards", "VL15_dropped"), (16,)),
}
_WRAP = 1 << 32  # where counters of adapters begin anew
_DATA = re.compile(r"port_(xmit|rcv)_data(_64)?")
_RATE = re.compile(r"(?P<rate>[\d.]+) Gb/sec(?:.*\b(?P<speed>[SDQ]DR)\b)?")


class Column(NamedTuple):
    """What one number of a source is: the number times `factor` is in `unit` ("": events)."""

    name: str
    unit: str = ""
    factor: float = 1
    gauge: bool = False


@dataclass(frozen=True)
class Series:
    """One source's counters, sampled."""

    host: str
    source: str  # mlx5_0/1: a device and its port; gpu0; cpu
    kind: str  # "rdma", "gpu", "cpu"
    time: Times  # (samples,), ns since 1970, rising
    values: Mapping[str, Floats]  # (samples,) each, in its unit; NaN where a sample lacks it
    facts: Mapping[str, str]  # rate, link_layer, state, ...
    units: Mapping[str, str] = field(default_factory=dict)  # "B", "ticks", "s", ...; "": events
    gauges: frozenset[str] = frozenset()  # names of those that are no counters


def rdma_column(name: str) -> Column:
    """Return what an RDMA counter counts, by its name: data is in words of 4 bytes, whichever the link's width."""
    if _DATA.fullmatch(name):
        return Column(name, "B", 4)
    if name.startswith("port_xmit_wait"):
        return Column(name, "ticks")
    if name.endswith("_bytes"):
        return Column(name, "B")
    return Column(name, "packets" if re.search(r"_(packets|pkts)(_64)?$", name) else "")


def data_rate(facts: Mapping[str, str]) -> float | None:
    """Return the bytes/s that a port carries each way, by its `rate`; None for a port that is down or does not say.

    InfiniBand at SDR to QDR sends 10 bits for 8 of data, which its rate does not take off; later speeds name data.
    """
    match = _RATE.match(facts.get("rate", ""))
    rate = float(match["rate"]) * 1e9 / 8 if match else 0.0
    if match and match["speed"] and facts.get("link_layer") == "InfiniBand":
        rate *= 0.8
    return rate or None


def make_series(
    host: str,
    source: str,
    kind: str,
    facts: Mapping[str, str],
    columns: Sequence[Column],
    time: Times,
    numbers: Floats,
) -> tuple[Series, list[str]]:
    """Return a series of raw `numbers` (samples, columns), and what is to be said of it."""
    import numpy as np

    notes = []
    latest = np.maximum.accumulate(time) if len(time) else time
    keep = np.concatenate([[True], time[1:] > latest[:-1]]) if len(time) else np.zeros(0, dtype=bool)
    if not keep.all():
        notes.append(f"{source}: {(~keep).sum()} samples left out, as the clock of {host} went back")
    values = {}
    for place, column in enumerate(columns):
        raw = numbers[keep, place]
        if not column.gauge:
            raw, said = _unwrapped(raw, column.name)
            notes += [f"{source}: {column.name} {text}" for text in said]
        values[column.name] = raw * column.factor
    units = {column.name: column.unit for column in columns}
    gauges = frozenset(column.name for column in columns if column.gauge)
    return Series(host, source, kind, time[keep], values, facts, units, gauges), notes


def _unwrapped(raw: Floats, name: str) -> tuple[Floats, list[str]]:
    """Return a counter without the steps back of 32 bits that began anew, and NaN where it stays at its largest."""
    import numpy as np

    raw, notes = raw.copy(), []
    full = np.isin(raw, [float((1 << bits) - 1) for bits in _BITS.get(name, (32, 64))])
    if full.any():
        notes.append(f"stays at its largest value, {raw[full][0]:.0f}: what it counts from there on is not known")
        raw[full] = np.nan
    there = np.flatnonzero(~np.isnan(raw))
    seen = raw[there]
    back = np.diff(seen) < 0
    # Half of the range in one interval is more than any port counts: what steps back so far has begun anew.
    wrapped = back & (seen[:-1] < _WRAP) & (np.diff(seen) < -_WRAP / 2)
    raw[there[1:]] += _WRAP * np.cumsum(wrapped)
    if resets := int((back & ~wrapped).sum()):
        notes.append(f"went back {resets} times: it was reset, and what it counted meanwhile is not known")
    return raw, notes


def increments(series: Series, name: str, starts: Any, ends: Any) -> Any:
    """Return by how much a counter rose in each window, in its unit; NaN where that is not known.

    Between two samples it is taken to rise evenly, so that a window shorter than the interval has its share of it. Not
    known: beyond the first and the last sample, and where the counter was reset.

    Args:
        starts, ends: ns since 1970, numbers or arrays of one shape.
    """
    import numpy as np

    if name in series.gauges:
        raise ValueError(f"{name} is a gauge, which has a mean and no increment")
    times, values = _there(series, name)
    starts, ends = np.asarray(starts), np.asarray(ends)
    if len(times) < 2:
        return np.full(np.broadcast(starts, ends).shape, np.nan)[()]
    values = values - values[0]
    resets = np.concatenate([[0], np.cumsum(np.diff(values) < 0)])
    first = np.searchsorted(times, starts, side="right").clip(1) - 1
    last = np.searchsorted(times, ends, side="left").clip(max=len(times) - 1)
    risen = _at(times, values, ends) - _at(times, values, starts)
    return np.where(resets[last] > resets[first], np.nan, risen)[()]


def rates(series: Series, name: str, starts: Any, ends: Any) -> Any:
    """Return by how much a counter rose in each window, in its unit a second, as `increments` does."""
    import numpy as np

    seconds = (np.asarray(ends) - np.asarray(starts)) / 1e9
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(seconds > 0, increments(series, name, starts, ends) / seconds, np.nan)[()]


def means(series: Series, name: str, starts: Any, ends: Any) -> Any:
    """Return a gauge's mean over time in each window, on straight lines between samples; NaN where it is not known."""
    import numpy as np

    times, values = _there(series, name)
    starts, ends = np.asarray(starts), np.asarray(ends)
    if len(times) < 2:
        return np.full(np.broadcast(starts, ends).shape, np.nan)[()]
    edges = np.unique(np.concatenate([times, starts.ravel(), ends.ravel()]))
    heights = _at(times, values, edges)
    areas = (heights[1:] + heights[:-1]) / 2 * np.diff(edges)
    total = np.concatenate([[0.0], np.cumsum(np.nan_to_num(areas))])
    known = (starts >= times[0]) & (ends <= times[-1]) & (ends > starts)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (total[np.searchsorted(edges, ends)] - total[np.searchsorted(edges, starts)]) / (ends - starts)
    return np.where(known, mean, np.nan)[()]


def _there(series: Series, name: str) -> tuple[Times, Floats]:
    """Return times and values of the samples that have the counter; none for one that the source lacks."""
    import numpy as np

    values = series.values.get(name)
    if values is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    there = ~np.isnan(values)
    return series.time[there], values[there]


def _at(times: Times, values: Floats, when: Any) -> Any:
    import numpy as np

    return np.interp(when - times[0], times - times[0], values, left=np.nan, right=np.nan)


def read_series(path: str | Path) -> tuple[tuple[Series, ...], tuple[str, ...]]:
    """Return what telemetry recorded in a file, or in all `telemetry-*.jsonl` of a folder, and what is to be said.

    A run that was killed is read up to where it was; a note says so. Raises ResultsError for what is no telemetry.
    """
    path = Path(path)
    files = sorted(path.glob(FILES)) if path.is_dir() else [path]
    if not files:
        raise ResultsError(f"{path} holds no {FILES}: name a folder or a file that commbench.telemetry wrote")
    found: list[Series] = []
    notes: list[str] = []
    for file in files:
        series, said = _read_file(file)
        found += series
        notes += [f"{file.name}: {text}" for text in said]
    return tuple(found), tuple(notes)


class _Rows:
    """The samples of one source as they are read: a line says only what has changed since the one before."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.name, self.kind = str(about["source"]), str(about["kind"])
        self.facts = {str(key): str(value) for key, value in about["facts"].items()}
        self.columns = [
            Column(str(name), str(unit), float(factor), bool(gauge)) for name, unit, factor, gauge in about["columns"]
        ]
        self._places = {column.name: place for place, column in enumerate(self.columns)}
        self._last = array("d", [float("nan")]) * len(self.columns)
        self.times, self.numbers = array("q"), array("d")

    def add(self, time: int, changed: Mapping[str, int | None]) -> None:
        row = {
            self._places[name]: float("nan") if number is None else float(number) for name, number in changed.items()
        }
        self.times.append(time)
        for place, number in row.items():
            self._last[place] = number
        self.numbers.extend(self._last)


def _read_file(file: Path) -> tuple[list[Series], list[str]]:
    import numpy as np

    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise ResultsError(f"cannot read {file}: {error.strerror}") from None
    try:
        head = json.loads(lines[0])
        version, host = head["telemetry"], str(head["host"])
        rows = [_Rows(about) for about in head["sources"]]
        notes = [str(note) for note in head["notes"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ResultsError(
            f"{file} is no file of commbench.telemetry: its first line is no head ({type(error).__name__} {error})"
        ) from None
    if version != FORMAT:
        raise ResultsError(f"{file} has format {version!r} of telemetry, and this commbench reads {FORMAT}: update it")
    notes += _read_samples(lines, rows)
    found = []
    for one in rows:
        times = np.array(one.times, dtype=np.int64)
        numbers = np.array(one.numbers).reshape(len(times), len(one.columns))
        series, said = make_series(host, one.name, one.kind, one.facts, one.columns, times, numbers)
        found.append(series)
        notes += said
    return found, notes


def _read_samples(lines: Sequence[bytes], rows: Sequence[_Rows]) -> Iterator[str]:
    """Add the samples to their sources; yield what is to be said of the file."""
    ended = False
    bad: list[int] = []
    for number, line in enumerate(lines[1:-1], start=2):  # what stands behind the last line's end is no whole line
        try:
            read = json.loads(line)
            if "end" in read:
                ended = True
                yield from map(str, read["end"]["notes"])
            elif 0 <= read["s"] < len(rows):
                rows[read["s"]].add(read["t"], read["v"])
            else:
                bad.append(number)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            bad.append(number)
    if lines[1:] and lines[-1]:
        yield f"line {len(lines)} is cut, and left out: the run was killed while it was written"
    elif not ended:
        yield "it has no end: the run was killed, or goes on"
    if bad:
        yield f"{len(bad)} lines are no samples, and left out: the first is line {bad[0]}"
