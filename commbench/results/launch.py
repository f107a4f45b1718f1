"""The files that say what a set of launches is: one in its folder, and one in each run folder, which launch it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from commbench.errors import ResultsError

SET = "repeat.json"  # in the folder of a set
LAUNCH = "launch.json"  # in a run folder, there before the run begins


def launch_number(folder: str | Path | None) -> int:
    """Return which launch of a set the run in `folder` is, 0 where it is of none.

    A file says so, and no environment variable, as not every launcher hands those on to rank 0's node.
    """
    path = Path(folder or "") / LAUNCH
    if folder is None:
        return 0
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["launch"])
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResultsError(
            f"{path} does not say which launch this is ({error!r}): remove it, or --out another"
        ) from None


def read_launch(run_folder: Path) -> dict[str, Any]:
    """Return what is known of a launch that was begun; nothing of one that was not."""
    try:
        kept: dict[str, Any] = json.loads((run_folder / LAUNCH).read_text(encoding="utf-8"))
        return kept
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ResultsError(f"cannot read {run_folder / LAUNCH} ({error}): remove {run_folder} to run it anew") from None
