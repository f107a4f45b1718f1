"""One immutable result: what was asked for, what ran, what it gave.

Format versions: 1 (November 2026) the first.
A number that was not measured is None, never zero. Sizes are bytes, times microseconds, rates GB/s (1e9 B/s).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.results.regime import drift
from commbench.results.stats import median, median_interval, quantile
from commbench.results.status import LASTING, NOT_MEASURED, OK
from commbench.units import gigabytes_per_second

FORMAT = 1

Visit = Mapping[str, Any]

DEVICE_LOOPS = ("events", "graph")  # timed by a device's clock


@dataclass(frozen=True)
class Record:
    """What one cell gave in one run; of a foreign log, None or "unknown" is what it does not say."""

    collective: str
    backend: str
    library: str
    algorithm: str  # asked for, by canonical name; auto: the library's own choice
    observed_algorithm: str | None  # what ran, as far as the evidence goes
    evidence: str
    protocol: str | None
    observed_protocol: str | None
    channels: int | None
    status: str
    reason: str
    size: int  # bytes: the larger of a rank's total send and receive bytes
    count: int | None  # elements of one block
    dtype: str
    redop: str | None
    root: int | None
    inplace: bool | None
    buffer: str  # the kind of memory
    group: str
    ranks: str  # of the launch, as ranges: "0-3,8"
    hosts: str  # by comma, each once
    nranks: int | None
    nnodes: int | None
    method: str
    loop: str | None
    time_us: float | None  # median of the rounds' medians; of the model, what it predicts
    time_us_low: float | None  # interval over rounds, within this launch: at least 93 %, from five rounds on
    time_us_high: float | None
    time_us_mean: float | None  # over iterations, as are min and max; p99 over the samples kept of each visit
    time_us_min: float | None
    time_us_max: float | None
    time_us_p99: float | None
    iterations: int | None  # timed samples, over all rounds: an iteration each, on a device a batch of them
    batch: int | None  # collectives in a sample
    host_time_us: float | None  # on devices: a collective's time by the host's clock, median over rounds
    rounds: int | None
    launch: int
    algbw: float | None  # size / time_us
    busbw: float | None  # algbw x busbw_factor
    busbw_factor: float | None
    arrival_skew_us: list[float] | None  # per rank, after the first: median over iterations and rounds; method clock
    exit_skew_us: list[float] | None
    skew_error_us: float | None
    drift: float | None  # by which fraction the rounds changed from their first half to the second, where they did
    late_starts: int | None  # iterations that some rank began late
    wrong: int | None  # elements, over all checks and ranks; None: not checked
    calls: int | None  # library calls for one collective: above 1 where it went in chunks
    simulated: bool
    predicted: float | None
    version: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Return the record as it stands in JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Timing:
    """The time of one cell over its rounds, in microseconds."""

    time_us: float
    time_us_low: float | None
    time_us_high: float | None
    time_us_mean: float
    time_us_min: float
    time_us_max: float
    time_us_p99: float
    iterations: int
    rounds: int


def timing(visits: Sequence[Visit]) -> Timing:
    """Fold measured visits into one timing; the rounds' medians are the sample of the median and of its interval."""
    medians = [visit["median_us"] for visit in visits]
    low, high = median_interval(medians) or (None, None)
    iterations = sum(visit["iterations"] for visit in visits)
    return Timing(
        time_us=round(median(medians), 4),
        time_us_low=low,
        time_us_high=high,
        time_us_mean=round(sum(visit["mean_us"] * visit["iterations"] for visit in visits) / iterations, 4),
        time_us_min=min(visit["min_us"] for visit in visits),
        time_us_max=max(visit["max_us"] for visit in visits),
        time_us_p99=round(quantile([sample for visit in visits for sample in visit["samples_us"]], 0.99), 4),
        iterations=iterations,
        rounds=len(visits),
    )


def fold(facts: Mapping[str, Any], cell: Mapping[str, Any], visits: Sequence[Visit]) -> Record:
    """Fold a planned cell and its visits into its record; `facts` are what the run's records share.

    A cell that was once wrong, substituted or rejected stays so, and has no time. A visit that timed out or failed is
    forgiven when a later one (after --resume) went well. A visit of the model has a time, and no rounds or iterations.
    """
    fields: dict[str, Any] = {name: cell.get(name) for name in _CELL_FIELDS}
    fields |= {name: facts[name] for name in _FACT_FIELDS}
    group = facts["groups"][cell["group"]]
    fields |= {name: group[name] for name in _GROUP_FIELDS}
    fields |= dict.fromkeys(_MEASURED_FIELDS)
    fields |= {"evidence": "", "iterations": 0, "rounds": 0, "calls": 1, "predicted": None}
    if not visits:
        if cell["status"] == "planned":
            fields |= {"status": NOT_MEASURED, "reason": cell.get("reason") or "the run ended before it was reached"}
        return Record(**fields)
    # What is wrong once stays wrong; else the last attempt counts, and a cut is none while there was an attempt.
    lasting = [v for v in visits if v["status"] in LASTING]
    attempts = [v for v in visits if v["status"] != NOT_MEASURED]
    verdict = (lasting or attempts or visits)[-1]
    for name in ("observed_algorithm", "evidence", "observed_protocol", "channels", "loop", "batch", "calls"):
        fields[name] = verdict.get(name, fields[name])
    fields["status"], fields["reason"] = verdict["status"], verdict.get("reason") or cell.get("reason") or ""
    checked = [visit["wrong"] for visit in visits if visit.get("wrong") is not None]
    fields["wrong"] = sum(checked) if checked else None
    if fields["status"] == OK and "predicted_us" in verdict:
        fields |= {"time_us": verdict["predicted_us"], "predicted": verdict["predicted_us"], "calls": None}
    elif fields["status"] == OK:
        times = timing([visit for visit in visits if visit["status"] == OK])
        fields |= dataclasses.asdict(times)
        fields["drift"] = drift([visit["median_us"] for visit in visits if visit["status"] == OK])
        host = [visit["pace_us"] for visit in visits if visit["status"] == OK and visit.get("loop") in DEVICE_LOOPS]
        fields["host_time_us"] = round(median(host), 4) if host else None
        fields |= _skews([visit for visit in visits if visit["status"] == OK])
    if fields["time_us"]:
        fields["algbw"] = gigabytes_per_second(cell["size"], fields["time_us"] / 1e6)
        fields["busbw"] = fields["algbw"] * group["busbw_factor"]
    return Record(**fields)


def _skews(visits: Sequence[Visit]) -> dict[str, Any]:
    """Fold the ranks' skews, where visits were on the common clock."""
    with_clock = [visit for visit in visits if visit.get("arrival_skew_us")]
    if not with_clock:
        return {}
    skews: dict[str, Any] = {
        name: [round(median(of_rank), 3) for of_rank in zip(*(visit[name] for visit in with_clock), strict=True)]
        for name in ("arrival_skew_us", "exit_skew_us")
    }
    skews["skew_error_us"] = max(visit["skew_error_us"] for visit in with_clock)
    return {**skews, "late_starts": sum(visit["late_starts"] for visit in with_clock)}


_CELL_FIELDS = (
    *("algorithm", "protocol", "dtype", "redop", "root", "size", "count", "inplace", "buffer"),
    *("group", "status", "reason"),
)
_FACT_FIELDS = (*("collective", "backend", "library", "method", "launch", "simulated"),)
_GROUP_FIELDS = ("ranks", "hosts", "nranks", "nnodes", "busbw_factor")
_MEASURED_FIELDS = (
    *(
        "observed_algorithm",
        "observed_protocol",
        "channels",
        "loop",
        "batch",
        "host_time_us",
        "time_us",
        "time_us_low",
        "time_us_high",
    ),
    *("time_us_mean", "time_us_min", "time_us_max", "time_us_p99", "algbw", "busbw", "wrong"),
    *("arrival_skew_us", "exit_skew_us", "skew_error_us", "late_starts", "drift"),
)
