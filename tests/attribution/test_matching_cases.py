"""Jobs of several ranks in shared/cases: what meets, what must be refused, and that waiting is no transfer.

The files are not the project's, and never part of it: COMMBENCH_CASES names their folder, or ../shared/cases from the
root of the repository.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from commbench.attribution.clocks import align
from commbench.attribution.collectives import split
from commbench.attribution.matching import match
from commbench.attribution.reading import read
from commbench.attribution.trace import Trace
from commbench.errors import UsageError

CASES = Path(os.environ.get("COMMBENCH_CASES") or Path(__file__).resolve().parents[3] / "shared" / "cases")

pytestmark = pytest.mark.skipif(not (CASES / "INDEX.md").exists(), reason=f"the public traces are not here ({CASES})")


def by_rank(*paths: Path) -> list[Trace]:
    return sorted(read(paths), key=lambda trace: trace.rank or 0)


def test_two_ranks_of_a_job_of_128_with_messages_that_tell_nothing_are_refused() -> None:
    traces = by_rank(*(CASES / "kineto" / f"hta_sampled_rank{rank}.json.gz" for rank in (0, 1)))
    with pytest.raises(UsageError, match=r"126 of 128 have none \(2-127\)"):
        match(traces)
    found = match(traces, partial=True)
    assert found.meetings == ()
    assert sum(refusal.calls for refusal in found.refusals) == 20  # of its index: ten on each


def test_the_spread_of_times_over_eight_ranks_is_waiting(tmp_path: Path) -> None:
    with tarfile.open(CASES / "kineto" / "param_dlrm_kineto_8rank.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    traces = by_rank(tmp_path)
    found = match(traces)
    assert [meeting.operation for meeting in found.meetings] == ["alltoall"] * 4 + ["allreduce", "alltoall"] + [
        "allreduce"
    ] * 2
    assert found.refusals == () and all(meeting.supposed for meeting in found.meetings)
    alignments = align(traces, {}, found.meetings)
    splits = [split(meeting, traces, alignments) for meeting in found.meetings]
    took = np.array([one.end - one.arrival for one in splits]).sum(axis=0)
    assert (took // 1000).tolist() == pytest.approx(
        [5798, 11336, 3492, 9774, 6587, 6251, 3558, 1746], abs=10
    )  # of its index
    known = [one for one in splits if not one.skew_only]
    assert len(known) == 7  # one all-to-all is uneven
    transfer = np.array([one.transfer for one in known]).sum(axis=0)
    assert transfer.max() < 1.05 * transfer.min() and took.max() > 6 * took.min()
    first = known[0]
    assert (first.culprit, first.wait[7]) == (7, 0) and first.wait[1] > 7_000_000  # rank 7 came last, rank 1 first


def test_dumps_of_the_flight_recorder_meet_by_their_numbers() -> None:
    traces = by_rank(*(CASES / "fr" / f"ok_rank{rank}__dump_fr_trace_json.json" for rank in (0, 1)))
    found = match(traces)
    assert [(one.operation, one.group_name.split()[0], one.number) for one in found.meetings] == [
        *(("allreduce", "0", number) for number in (1, 2, 3)),
        ("allgather", "0", 4),
        ("allreduce", "1", 1),
    ]
    alignments = align(traces, {}, found.meetings)
    assert all(split(one, traces, alignments).skew_only for one in found.meetings)  # only enqueue times are there
