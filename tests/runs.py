"""Made-up runs: the parts of a run folder with plausible values, and whatever a test wants to differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commbench.measure.cell import Cell
from commbench.results.record import FORMAT, Record, fold


def facts(**changes: Any) -> dict[str, Any]:
    """What the records of a run share: an all-reduce on 4 ranks."""
    return {
        "collective": "allreduce",
        "backend": "mpi",
        "library": "MPICH 5.0.2",
        "method": "barrier",
        "launch": 0,
        "simulated": False,
        "groups": {"all": group()},
    } | changes


def group(**changes: Any) -> dict[str, Any]:
    """What the records of a group share: four ranks of one host."""
    fields = {"ranks": "0-3", "order": [0, 1, 2, 3], "hosts": "here", "nranks": 4, "nnodes": 1, "busbw_factor": 1.5}
    return fields | changes


def cell(algorithm: str = "auto", size: int = 1024, **changes: Any) -> dict[str, Any]:
    """A cell as the plan in a manifest has it."""
    return {
        "algorithm": algorithm,
        "native": algorithm,
        "protocol": None,
        "dtype": "float32",
        "redop": "sum",
        "root": None,
        "size": size,
        "count": size // 4,
        "inplace": False,
        "buffer": "host",
        "group": "all",
        "status": "planned",
        "reason": "",
    } | changes


def visit(samples: Sequence[float] = (10.0,), **changes: Any) -> dict[str, Any]:
    """A visit that went well, with these samples in microseconds (an odd number of them)."""
    ordered = sorted(samples)
    return {
        "cell": 0,
        "round": 0,
        "session": 0,
        "status": "ok",
        "reason": "",
        "wrong": 0,
        "observed_algorithm": None,
        "evidence": "unknown",
        "observed_protocol": None,
        "channels": None,
        "seconds": 0.01,
        "iterations": len(ordered),
        "median_us": ordered[len(ordered) // 2],
        "mean_us": sum(ordered) / len(ordered),
        "min_us": ordered[0],
        "max_us": ordered[-1],
        "p99_us": ordered[-1],
        "samples_us": list(samples),
        "loop": "plain",
        "calls": 1,
    } | changes


def bad_visit(status: str, reason: str = "it broke", **changes: Any) -> dict[str, Any]:
    """A visit without a time."""
    return {"cell": 0, "round": 0, "session": 0, "status": status, "reason": reason, "seconds": 0.01} | changes


def manifest(*cells: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The manifest of a run of these cells."""
    plan = {"facts": facts(), "asked": {}, "effort": {}, "notes": [], "cells": list(cells)}
    return {"version": FORMAT, "plan": plan, "sessions": [{"started": "20261130T064512Z", "arguments": []}]} | changes


def record(algorithm: str = "auto", size: int = 1024, time_us: float | None = 10.0, **changes: Any) -> Record:
    """A record: of a cell that was measured in one round, or (time None) was not."""
    visits = [] if time_us is None else [visit([time_us])]
    fields = fold(facts(), cell(algorithm, size), visits).to_dict()
    return Record(**(fields | changes))


def planned(*cells: dict[str, Any]) -> list[Cell]:
    return [Cell(**one) for one in cells]
