"""Records as a pandas table: `commbench.load("results/")`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from commbench.errors import ResultsError
from commbench.results.journal import MANIFEST, VISITS, read_records

if TYPE_CHECKING:
    import pandas


def load(path: str | Path) -> pandas.DataFrame:
    """Return the records below `path` (a run folder, or one that holds several), one row a record.

    The columns are those of `commbench.results.record.Record`, and `run`, the folder's name.
    Raises ResultsError where there is no run, ImportError without pandas.
    """
    try:
        import pandas
    except ImportError:
        raise ImportError("commbench.load needs pandas: pip install 'commbench[report]'") from None
    top = Path(path)
    folders = sorted(path.parent for path in top.rglob(MANIFEST) if (path.parent / VISITS).exists())
    if not folders:
        raise ResultsError(f"{top} holds no run: a run folder has a {MANIFEST}")
    rows = [{"run": folder.name, **record.to_dict()} for folder in folders for record in read_records(folder)]
    return pandas.DataFrame(rows)
