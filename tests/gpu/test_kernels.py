"""What tests.gpu.kernels concludes from what it finds; the finding itself takes a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from commbench.kernels._numba_cpu import Backend
from commbench.kernels._pattern import Problem
from tests.gpu import kernel_peers, kernels
from tests.gpu.one_gpu import Skip, Trouble


def row(factor: str = "baseline", level: str = "", **changes: Any) -> dict[str, Any]:
    """A row that is as it should be."""
    found = {"algorithm": f"weight_update adamw {factor} {level}".rstrip(), "dtype": "float16", "status": "ok"}
    numbers = {"algbw": 2800.0, "of_peak": 0.836, "of_ceiling": 0.97, "of_baseline": 1.0, "of_reference": 1.0}
    return {**found, "reason": "", "factor": factor, "level": level, **numbers} | {
        "against": "baseline",
        "predicted_low": 1.0,
        "predicted_high": 1.0,
        **changes,
    }


def test_the_steps_take_six_minutes_at_most() -> None:
    assert sum(step.limit for step in kernels.steps()) <= 360


def test_wrong_answers_are_faults_and_rows_without_time_are_none() -> None:
    rows = [row(), row(status="not_measured", reason="budget"), row("stride", "8", status="wrong", reason="3 elements")]
    assert kernels.faults_of(rows) == ["weight_update adamw stride 8 float16: wrong (3 elements)"]


def test_a_baseline_far_below_its_ceiling_is_a_fault_and_so_is_none() -> None:
    assert kernels.faults_of_baseline([row(), row("stride", "8", of_ceiling=0.2)]) == []
    slow = kernels.faults_of_baseline([row(of_ceiling=0.9)])
    assert slow == ["weight_update adamw baseline: 0.900 of the copy of its byte mix, and 0.95 are wanted"]
    assert kernels.faults_of_baseline([row(of_ceiling=None)]) == ["no baseline was measured"]


def test_rows_outside_their_bracket_are_named() -> None:
    within = row("stride", "2", predicted_low=0.5, predicted_high=1.0, of_reference=0.46)
    below = row("stride", "8", predicted_low=0.25, predicted_high=0.5, of_reference=0.1)
    unknown = row("cache", "warm", predicted_low=None, predicted_high=None, of_reference=2.0)
    assert kernels.outside_bracket([row(), within, below, unknown]) == ["stride 8 (0.10)"]


def test_the_waterfall_has_measured_beside_predicted() -> None:
    missing = row("cache", "warm", status="not_measured", algbw=None, of_peak=None, of_ceiling=None, of_baseline=None)
    missing["of_reference"] = None
    lines = kernels.waterfall(
        [row("stride", "8", of_baseline=0.3, predicted_low=0.25, against="width 4 B", of_reference=0.4), missing]
    ).splitlines()
    assert lines[1].split() == [
        *("weight_update", "adamw", "stride", "8", "float16", "ok", "2800", "0.836", "0.970", "0.300"),
        *("width", "4", "B", "0.400", "0.250", "to", "1.000"),
    ]
    assert lines[2].split()[5:] == ["not_measured", "-", "-", "-", "-", "baseline", "-", "1.000", "to", "1.000"]


class Idle(Backend):
    """A device whose kernels do nothing."""

    def prepare(self, problem: Problem, arenas: Mapping[str, Any]) -> Callable[[], None]:
        return lambda: None


def test_a_kernel_that_is_held_against_others_has_right_answers() -> None:
    pytest.importorskip("numba", reason="no Numba: pip install -c constraints.txt '.[kernels]'")
    launch, arenas = kernel_peers.ours(Backend("cpu", 0), "copy", "", "float16", elements=1 << 12)
    launch()
    assert list(arenas) == ["a", "b"]
    with pytest.raises(RuntimeError, match=r"copy float16: 4096 elements or bytes beside them are wrong"):
        kernel_peers.ours(Idle("cpu", 0), "copy", "", "float16", elements=1 << 12)


def test_torch_must_be_slower() -> None:
    ratio = {
        "ours": "weight_update adamw32 float32",
        "peer": "torch 2.13 fused AdamW",
        "ours_us": 700.0,
        "control": 1.0,
    }
    assert kernels.judged_peers({"without": "", "ratios": [ratio | {"ratio": 1.04}]}).note == "1 comparisons"
    with pytest.raises(Trouble, match=r"not faster than torch's fused AdamW: weight_update adamw32 float32 \(0\.980\)"):
        kernels.judged_peers({"without": "", "ratios": [ratio | {"ratio": 0.98}]})
    with pytest.raises(Skip, match="torch is not installed"):
        kernels.judged_peers({"without": "torch is not installed", "ratios": []})
