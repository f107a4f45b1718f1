"""Tests for commbench.attribution.ceilings: from records of kernels, a data sheet, and what is given."""

from __future__ import annotations

from typing import Any

import pytest

from commbench.attribution.ceilings import Ceilings, ceilings
from commbench.results.record import Record
from tests.runs import record

A100 = "NVIDIA A100-SXM4-80GB"


def row(name: str, rate: float, **changes: Any) -> Record:
    """A record of a kernel on a device that reached so many GB/s."""
    facts: dict[str, Any] = {
        "collective": "kernels",
        "buffer": "device",
        "status": "ok",
        "simulated": False,
        "algbw": rate,
    }
    return record(name, **(facts | changes))


def test_the_bandwidth_is_the_best_that_went_through_memory() -> None:
    rows = [
        *(row("copy baseline", 1400.0), row("read ceiling", 1700.0), row("triad baseline", 1500.0)),
        row("copy cache warm", 4000.0),  # not through memory
        row("copy ceiling", 5000.0, status="wrong"),
        row("copy ceiling", 5000.0, simulated=True),
        row("copy ceiling", 100.0, buffer="host"),
        row("ring", 9000.0, collective="allreduce"),
    ]
    found = ceilings(A100, rows)
    assert found.bandwidth == 1.7e12
    assert (
        found.source
        == "1700 GB/s, measured by 3 records of kernels; FLOP/s of A100 (NVIDIA A100 Tensor Core GPU data sheet)"
    )
    assert ceilings("", rows).bandwidth == 1e11


@pytest.mark.parametrize("model", ["NVIDIA RTX A4000", "Radeon", ""])
def test_what_nobody_measured_or_gave_is_left_open(model: str) -> None:
    found = ceilings(model)
    assert (found.bandwidth, dict(found.flops)) == (None, {})
    assert found.source == (
        "no bandwidth: measure it by python -m commbench.kernels on such a device; "
        f"no FLOP/s of {model or 'the processor'} are known: give them"
    )


def test_what_is_given_stands_over_all_else() -> None:
    found = ceilings(A100, [row("copy baseline", 1400.0)], bandwidth=2e12, flops={"float32": 1e13})
    assert (found.bandwidth, found.flops["float32"], found.flops["tf32"]) == (2e12, 1e13, 156e12)
    assert found.source == "2000 GB/s, given; FLOP/s given"
    assert ceilings("", bandwidth=1e10, flops={"float32": 1e11}) == Ceilings(
        1e10, {"float32": 1e11}, "10 GB/s, given; FLOP/s given"
    )
