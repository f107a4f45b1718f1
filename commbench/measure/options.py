"""The command line of a collective's door, understood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from commbench.backends.base import Settings

FORMATS = ("table", "nccl-tests", "json", "csv")


@dataclass(frozen=True)
class Options:
    """The command line, understood. `plan` decides which cells there are and how they are timed."""

    plan: dict[str, Any]
    given: frozenset[str]  # the names in `plan` that the user gave
    backend: str
    settings: Settings
    format: str
    out: str | None
    resume: bool
    progress: str
    timeout: float  # seconds for a visit
    rendezvous: str | None = None  # where ranks without MPI meet: HOST:PORT or a file; None: as the launcher tells
    topology: str | None = None  # of the model: a file, or the name of a cluster that commbench brings
    results: str | None = None  # run folders that the model is fitted to first
    per_node: int | None = None  # ranks that the model puts on a node; None: as many as a node has devices
