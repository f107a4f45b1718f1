"""What the kernels get out of one NVIDIA GPU's memory: `python -m tests.gpu.kernels --json kernels.json`.

Steps as in one_gpu.py: each a process of its own, with a time limit; one that fails is recorded, and the next goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tests.gpu.one_gpu import Found, Skip, Step, Trouble, answer, main, process, records, table

OF_CEILING = 0.95  # a baseline update gets at least so much of what a copy of its byte mix gets
FASTER = 1.0  # times of torch's fused AdamW over ours
SLACK = 0.05  # how far a measured share may lie outside its bracket before it is named


def measured(door: str, words: Sequence[str], limit: float) -> list[dict[str, Any]]:
    """Return the records of a door."""
    command = [sys.executable, "-m", f"commbench.{door}", "--device", "cuda", "--json", *words]
    command += ["--budget", str(int(limit * 0.6)), "-T", str(int(limit * 0.8))]
    return records(process(limit, *command, codes=(0, 1)))


def update(library: str, factors: str, limit: float) -> Found:
    """Measure the weight update and what each factor takes away; the baseline must be near its ceiling."""
    words = ["--library", library, "--factor", factors, "--rounds", "5"]
    rows = measured("kernels.weight_update", words, limit)
    shown = waterfall(rows)
    if faults := faults_of(rows) + faults_of_baseline(rows):
        raise Trouble("; ".join(faults), rows, shown)
    outside = outside_bracket(rows)
    beside = f"; outside the predicted bracket: {', '.join(outside)}" if outside else ""
    return Found(f"{len(rows)} rows ok{beside}", rows, shown)


def every(limit: float) -> Found:
    """Measure each kernel's baseline in both types of 16 bits."""
    rows = measured(
        "kernels", ["-d", "float16,bfloat16", "--factor", "none", "--variant", "all", "--rounds", "3"], limit
    )
    shown = waterfall(rows)
    if faults := faults_of(rows):
        raise Trouble("; ".join(faults), rows, shown)
    return Found(f"{len(rows)} rows ok", rows, shown)


def faults_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the rows that are neither right nor left out for want of time."""
    return [
        f"{row['algorithm']} {row['dtype']}: {row['status']} ({row['reason']})"
        for row in rows
        if row["status"] not in ("ok", "not_measured")
    ]


def faults_of_baseline(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the baselines that are too far below the copy of their byte mix, or were not measured."""
    found = [row for row in rows if row["factor"] == "baseline" and row["of_ceiling"] is not None]
    if not found:
        return ["no baseline was measured"]
    return [
        f"{row['algorithm']}: {row['of_ceiling']:.3f} of the copy of its byte mix, and {OF_CEILING} are wanted"
        for row in found
        if row["of_ceiling"] < OF_CEILING
    ]


def outside_bracket(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the rows whose share of the row they are held against is not within what was predicted: no faults."""
    return [
        f"{row['factor']} {row['level']} ({row['of_reference']:.2f})"
        for row in rows
        if row["of_reference"] is not None
        and row["predicted_low"] is not None
        and not row["predicted_low"] - SLACK <= row["of_reference"] <= row["predicted_high"] + SLACK
    ]


def waterfall(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the rows, measured beside predicted."""

    def number(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    cells = [
        (
            *(row["algorithm"], row["dtype"], row["status"], number(row["algbw"], 0), number(row["of_peak"], 3)),
            *(number(row["of_ceiling"], 3), number(row["of_baseline"], 3)),
            *(row["against"], number(row["of_reference"], 3)),
            f"{number(row['predicted_low'], 3)} to {number(row['predicted_high'], 3)}",
        )
        for row in rows
    ]
    return table(
        ("row", "dtype", "status", "GB/s", "of peak", "of ceiling", "of baseline", "against", "share", "predicted"),
        cells,
    )


def peers(limit: float) -> Found:
    """Hold our kernels against the device's copy, CuPy's own and torch's fused AdamW."""
    return judged_peers(answer(process(limit, sys.executable, "-m", "tests.gpu.kernel_peers")))


def judged_peers(found: Mapping[str, Any]) -> Found:
    """Return what the comparison showed; raise Trouble where torch's fused AdamW is as fast as ours."""
    if not found["ratios"]:
        raise Skip(found["without"])
    rows = [
        (row["ours"], row["peer"], f"{row['ours_us']:.1f}", f"{row['ratio']:.3f}", f"{row['control']:.3f}")
        for row in found["ratios"]
    ]
    shown = table(("ours", "peer", "ours us", "peer/ours", "ours/ours"), rows)
    slow = [row for row in found["ratios"] if "torch" in row["peer"] and row["ratio"] <= FASTER]
    if slow:
        names = ", ".join(f"{row['ours']} ({row['ratio']:.3f})" for row in slow)
        raise Trouble(f"not faster than torch's fused AdamW: {names}", found, shown)
    return Found(found["without"] or f"{len(rows)} comparisons", found, shown)


def steps() -> list[Step]:
    """Return the steps, in their order: 360 s together at most."""
    return [
        Step("weight update, all factors", 130, partial(update, "cupy", "all")),
        Step("all kernels", 90, every),
        Step("weight update by Numba", 80, partial(update, "numba_cuda", "width,stride,layout,hint")),
        Step("against others", 60, peers),
    ]


if __name__ == "__main__":
    raise SystemExit(main(planned=steps(), name="kernels"))
