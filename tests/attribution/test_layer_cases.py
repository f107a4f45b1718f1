"""The public traces of shared/cases: layers against what TraceLens and Holistic Trace Analysis say of them.

The files are not the project's, and never part of it: COMMBENCH_CASES names their folder, or ../shared/cases from the
root of the repository. docs/attribution-oracles.md has the whole comparison, and where the values come from.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from commbench.attribution.ceilings import Ceilings, ceilings
from commbench.attribution.classes import COMPUTE_WORK, EVIDENCE, ROOFLINE, classify
from commbench.attribution.intervals import total, union
from commbench.attribution.layers import LAYERS, Layers, Window, layers, whole, windows
from commbench.attribution.reading import read_file
from commbench.attribution.trace import DEVICE_KINDS, KERNEL, Trace
from commbench.errors import UsageError
from tests.attribution.sets import difference, intersection

CASES = Path(os.environ.get("COMMBENCH_CASES") or Path(__file__).resolve().parents[3] / "shared" / "cases")

pytestmark = pytest.mark.skipif(not (CASES / "INDEX.md").exists(), reason=f"the public logs are not here ({CASES})")


@cache
def case(name: str) -> Trace:
    (found,) = read_file(CASES / "kineto" / name)
    return found


def of(trace: Trace, *wanted: Window) -> tuple[Layers, ...]:
    return layers(trace, wanted, {}, classify(trace, Ceilings()))


def percent(part: int, one: Layers) -> float:
    return 100 * part / (one.window.end - one.window.start)


def work(trace: Trace, *, before: int | None = None, microseconds: bool = False) -> dict[str, np.ndarray]:
    """Kernels, copies and fills, and communication of what was launched before a time: columns of start and end."""
    spans = trace.spans
    start, end = spans.start, spans.end
    if microseconds:  # as HTA rounds: starts up, ends down
        start, end = -(-start // 1000) * 1000, end // 1000 * 1000
    device = np.isin(spans.kind, DEVICE_KINDS) & (spans.launched < (before or np.iinfo(np.int64).max))
    kernels, calls = device & (spans.kind == KERNEL) & (spans.call < 0), device & (spans.call >= 0)
    parts = {"kernels": kernels, "copies": device & ~kernels & ~calls, "calls": calls}
    return {name: np.column_stack((start[these], end[these])) for name, these in parts.items()}


def test_tracelens_on_two_a100() -> None:
    """TraceLens 171dd74, no window: 660.55 ms, 76.16 % idle, 5.98 % exposed communication."""
    trace = case("hta_nccl_data.json.gz")
    (one,) = of(trace, whole(trace))
    assert (one.window.end - one.window.start) / 1e6 == pytest.approx(660.55, abs=0.005)
    assert percent(one.total("host"), one) == pytest.approx(76.16, abs=0.01)
    assert percent(one.exposed, one) == pytest.approx(5.98, abs=0.1)
    parts = work(trace)  # TraceLens: communication beside a copy is exposed; with us the copy is memory
    exposed = difference(union(*parts["calls"].T), union(*parts["kernels"].T))
    assert percent(total(exposed), one) == pytest.approx(5.98, abs=0.01)


@pytest.mark.parametrize("microseconds", [False, True])
def test_hta_on_two_a100(microseconds: bool) -> None:
    """HTA 0.5.0: of 435,586 us are 77.78 % idle, 17.26 % compute, 4.97 % others; 14.31 % of communication overlaps.

    It leaves out what the last step launched, and rounds starts up and ends down to whole microseconds; with its
    rounding the algebra is the same to the last digit.
    """
    trace = case("hta_nccl_data.json.gz")
    parts = work(trace, before=trace.steps[-1].start, microseconds=microseconds)
    every = np.concatenate(list(parts.values()))
    busy, compute, calls = union(*every.T), union(*parts["kernels"].T), union(*parts["calls"].T)
    span = int(busy[-1, 1] - busy[0, 0])
    idle, other = span - total(busy), total(difference(busy, compute))
    overlap = total(intersection(calls, compute)) / np.diff(parts["calls"]).sum()
    found = [100 * idle / span, 100 * total(compute) / span, 100 * other / span, 100 * overlap]
    assert span / 1000 == pytest.approx(435_586, abs=2)
    assert found == pytest.approx([77.78, 17.26, 4.97, 14.31], abs=0.01 if microseconds else 1)
    if not microseconds:
        (one,) = of(trace, Window(None, int(busy[0, 0]), int(busy[-1, 1])))
        assert one.total("host") == idle
        assert one.communication == total(calls)
        assert one.hidden == total(intersection(calls, union(*np.concatenate([parts["kernels"], parts["copies"]]).T)))


def test_two_a100_step_by_step() -> None:
    trace = case("hta_nccl_data.json.gz")
    steps = windows(trace)
    assert [step.step for step in steps] == [4, 5, 6]
    assert [step.end for step in steps[:-1]] == [step.start for step in steps[1:]]
    *found, all_of_it = of(trace, *steps, whole(trace))
    for one in found:
        assert sum(one.total(layer) for layer in LAYERS) == one.window.end - one.window.start
        assert one.unsplit == one.exposed > 0  # one rank's trace: nobody can tell waiting
    assert sum(one.communication for one in found) == all_of_it.communication == 46_876_493  # none outside of steps
    assert set(all_of_it.evidence) == {"name", "none"}  # no shapes; none: one kernel of 28 us, which no name tells
    assert all_of_it.evidence["none"] < 1e-4 * all_of_it.evidence["name"]


def test_communication_that_is_not_named_after_nccl() -> None:
    """74 kernels: 73 of multimem_all_reduce, 2119.5 us, and an all-gather of 21.953 us."""
    trace = case("tl_b200_eager.json.gz")
    (one,) = of(trace, whole(trace))
    assert one.communication / 1e3 == pytest.approx(2119.5 + 21.953, abs=0.1)
    assert percent(one.total("host"), one) == pytest.approx(86, abs=0.5)  # eager: most of the time nothing runs


@pytest.mark.parametrize(("rank", "idle", "overlap"), [(0, 53.6, 11.8), (1, 54.7, 20.1)])
def test_hta_on_two_of_128_ranks(rank: int, idle: float, overlap: float) -> None:
    """HTA 0.5.0, to one digit; the file has whole microseconds, which HTA's rounding leaves alone."""
    trace = case(f"hta_sampled_rank{rank}.json.gz")
    parts = work(trace, before=trace.steps[-1].start)
    every = union(*np.concatenate(list(parts.values())).T)
    (one,) = of(trace, Window(None, int(every[0, 0]), int(every[-1, 1])))
    assert percent(one.total("host"), one) == pytest.approx(idle, abs=0.06)
    hidden = intersection(union(*parts["calls"].T), union(*parts["kernels"].T))
    assert 100 * total(hidden) / np.diff(parts["calls"]).sum() == pytest.approx(overlap, abs=0.06)


def test_a_trace_without_device_work_is_not_idle_but_refused() -> None:
    with pytest.raises(UsageError, match="says of no work of a device and of no collective when it ran"):
        whole(case("hta_rank_non_gpu.json.gz"))


def test_shapes_give_rooflines() -> None:
    """The B200's trace has shapes: the products around attention are of 888 rows by weights, in bfloat16."""
    trace = case("tl_b200_eager.json.gz")
    assert trace.model == "NVIDIA B200"
    found = classify(trace, ceilings(trace.model, bandwidth=7e12))
    products = [place for place, one in enumerate(trace.operators) if one.name == "aten::addmm"]
    kernels = (trace.spans.kind == KERNEL) & np.isin(trace.spans.operator, products)
    assert kernels.sum() == 108
    # 2 x 888 x 2880 x N operations and 2 x (888 x 2880 + 2880 x N + 888 x N) bytes: 2.25e15 / 7e12 = 321 FLOP/byte.
    widths = np.array([trace.operators[place].shapes[2][1] for place in trace.spans.operator[kernels]])
    inner = np.array([trace.operators[place].shapes[2][0] for place in trace.spans.operator[kernels]])
    intensity = 888 * inner * widths / (888 * inner + inner * widths + 888 * widths)
    assert np.array_equal(found.work[kernels] == COMPUTE_WORK, intensity >= 2250 / 7)
    assert set(found.evidence[kernels]) == {EVIDENCE.index(ROOFLINE)}
