"""Tests for commbench.attribution.chrome: what is written, read as the trace event format says."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.attribution.chrome import events, write
from commbench.attribution.clocks import MEASURED, Alignment
from commbench.attribution.collectives import Split
from commbench.attribution.layers import LAYERS, Window, layers
from commbench.attribution.matching import Meeting
from commbench.attribution.trace import Call
from commbench.errors import UsageError
from tests.attribution.making import COMPUTE_WORK, Span, classes, trace

Event = dict[str, Any]
BEGIN = 1_796_000_000_123_456_789  # ns: more digits than a float of microseconds since 1970 has
BEHIND = 5_000  # ns by which the second rank's clock is


def attribution(calls: list[tuple[int, int, int]], **changes: Any) -> Any:
    """Two ranks that meet: when each of them came and both ended, ns since BEGIN. Rank 1 computes in between."""
    sides = []
    for rank, clock in enumerate((0, -BEHIND)):
        began = BEGIN + clock
        its = [Call("allreduce", start=began + call[rank], end=began + call[2]) for call in calls]
        spans = [Span(began + 100, began + 1_000, work=COMPUTE_WORK)] if rank else []
        made = trace(spans, its, rank=rank, host="node7", device="cuda")
        waits = {place: began + max(call[:2]) for place, call in enumerate(calls)}
        windows = [Window(3, began, began + 700), Window(4, began + 700, began + 2_000)]
        sides.append((made, layers(made, windows, waits, classes(spans))))
    splits = []
    for number, (one, other, end) in enumerate(calls):
        arrival = np.array([one, other]) + BEGIN
        wait = arrival.max() - arrival
        late: dict[str, Any] = {"error": 20, "culprit": int(arrival.argmax()), "lateness": abs(one - other)}
        meeting = Meeting("allreduce", (0, 1), "world", number, {0: number, 1: number}, 4096, "float32", None)
        ends = np.full(2, end + BEGIN)
        splits.append(Split(meeting, (0, 1), arrival, ends, wait, ends - arrival - wait, None, **late, **changes))
    return SimpleNamespace(
        traces=tuple(made for made, _ in sides),
        alignments=(Alignment(MEASURED), Alignment(MEASURED, offset=BEHIND)),
        layers=tuple(found for _, found in sides),
        splits=tuple(splits),
    )


def written(path: Path, it: Any) -> tuple[Event, list[Event]]:
    write(path, it)
    content = json.loads(path.read_text(encoding="utf-8"))
    return content, content.pop("traceEvents")


def ns(event: Event) -> tuple[int, int]:
    """Start and end of a complete event; that they are whole ns to far below one."""
    start, lasted = event["ts"] * 1e3, event["dur"] * 1e3
    assert abs(start - round(start)) < 1e-3 and abs(lasted - round(lasted)) < 1e-3
    return round(start), round(start) + round(lasted)


def check_format(events: list[Event]) -> None:
    """Complete events and names; on a track events follow or enclose one another, and each track has a name."""
    named = {(event["name"], event["pid"], event["tid"]) for event in events if event["ph"] == "M"}
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        assert event["ph"] in ("X", "M") and isinstance(event["args"], dict)
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["ts"] >= 0 and event["name"] and event["cat"]
            tracks[event["pid"], event["tid"]].append(ns(event))
    for (process, thread), spans in tracks.items():
        assert ("thread_name", process, thread) in named and ("process_name", process, 0) in named
        for place, (start, end) in enumerate(spans):
            for other_start, other_end in spans[:place]:
                apart = end <= other_start or other_end <= start
                assert apart or (start >= other_start and end <= other_end)  # what encloses comes first


CALLS = st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900), st.integers(900, 1_500)), max_size=5)


@given(CALLS)
def test_any_calls_make_tracks_on_which_nothing_overlaps_in_part(calls: list[tuple[int, int, int]]) -> None:
    it = attribution(calls)
    found = list(events(it, BEGIN))
    check_format(found)
    for place, its in enumerate(it.layers):
        mine = [event for event in found if event["pid"] == place and event.get("cat") == "layer"]
        for layer in LAYERS:
            lasted = sum(end - start for start, end in map(ns, (one for one in mine if one["name"] == layer)))
            assert lasted == sum(one.total(layer) for one in its)


def test_ranks_are_processes_on_one_clock(tmp_path: Path) -> None:
    head, found = written(tmp_path / "timeline.json", attribution([(200, 600, 1_200)]))
    assert head == {"displayTimeUnit": "ms", "otherData": {"written by": "commbench attribute", "ns at 0": BEGIN}}
    check_format(found)
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in found if event["ph"] == "M"}
    assert names == {
        **{(0, 0): "rank 0 on node7", (0, 1): "layer", (0, 2): "waits"},
        **{(1, 0): "rank 1 on node7", (1, 1): "layer", (1, 2): "waits"},
    }
    shown = [(event["pid"], event["name"], *ns(event)) for event in found if event["ph"] == "X"]
    assert shown == [
        *((0, "step 3", 0, 700), (0, "host", 0, 200), (0, "waiting", 200, 600), (0, "communication", 600, 700)),
        *((0, "step 4", 700, 2_000), (0, "communication", 700, 1_200), (0, "host", 1_200, 2_000)),
        *((0, "allreduce", 200, 1_200), (0, "waiting for rank 1", 200, 600), (0, "transfer", 600, 1_200)),
        *((1, "step 3", 0, 700), (1, "host", 0, 100), (1, "compute", 100, 700)),
        *((1, "step 4", 700, 2_000), (1, "compute", 700, 1_000), (1, "communication", 1_000, 1_200)),
        *((1, "host", 1_200, 2_000), (1, "allreduce", 600, 1_200), (1, "transfer", 600, 1_200)),
    ]
    (step,) = [event for event in found if event["name"] == "step 3" and event["pid"] == 0]
    assert step["args"] == {
        **{"compute_us": 0.0, "memory_us": 0.0, "communication_us": 0.1, "waiting_us": 0.4, "host_us": 0.2}
    }
    (call,) = [event for event in found if event["name"] == "allreduce" and event["pid"] == 0]
    assert call["args"] == {
        **{"group": "world", "number": 0, "ranks": 2, "bytes": 4096, "dtype": "float32"},
        **{"lateness_us": 0.4, "error_us": 0.02},
    }


def test_collectives_at_once_lie_on_tracks_side_by_side(tmp_path: Path) -> None:
    _, found = written(tmp_path / "timeline.json", attribution([(0, 0, 500), (100, 100, 900), (500, 500, 800)]))
    tracks = [event["tid"] for event in found if event.get("cat") == "collective" and event["pid"] == 0]
    assert tracks == [2, 3, 2]
    assert [event["args"]["name"] for event in found if event["ph"] == "M" and event["pid"] == 0] == [
        *("rank 0 on node7", "layer", "waits", "waits 2")
    ]


def test_where_only_the_skew_means_something_nothing_is_split(tmp_path: Path) -> None:
    it = attribution([(200, 600, 1_200)], skew_only=True, low_confidence="enqueue times only")
    _, found = written(tmp_path / "timeline.json", it)
    assert not [event for event in found if event.get("cat") in ("waiting", "transfer")]
    assert {event["args"].get("low confidence") for event in found if event.get("cat") == "collective"} == {
        "enqueue times only"
    }


def test_a_name_that_ends_in_gz_is_gzipped(tmp_path: Path) -> None:
    it = attribution([(200, 600, 1_200)])
    write(tmp_path / "timeline.json.gz", it)
    write(tmp_path / "timeline.json", it)
    assert gzip.decompress((tmp_path / "timeline.json.gz").read_bytes()) == (tmp_path / "timeline.json").read_bytes()


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^cannot write .*timeline\.json: No such file or directory$"):
        write(tmp_path / "missing" / "timeline.json", attribution([]))
