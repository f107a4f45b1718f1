"""A made-up run on the common clock, in which rank 1 arrives two milliseconds late."""

from __future__ import annotations

import random
from pathlib import Path

from commbench.results.journal import Journal
from tests.fake_door import write_run


def write_clocked(folder: Path) -> None:
    """Write the run into a folder."""
    journal: Journal = write_run(folder, {8: 10.0, 512: 12.0, 4096: 20.0}, random.Random("clock"), method="clock")
    skew = {"arrival_skew_us": [0.0, 2000.0], "exit_skew_us": [0.0, 0.5], "skew_error_us": 0.2, "late_starts": 0}
    about = {"session": 0, "status": "ok", "reason": "", "loop": "plain", "iterations": 5, "seconds": 0.1}
    figures = {"median_us": 11.0, "mean_us": 11.0, "min_us": 10.0, "max_us": 12.0, "samples_us": [11.0] * 5}
    for index in range(3):
        journal.append({"cell": index, "round": 3, **about, **figures, **skew})
    journal.close()
