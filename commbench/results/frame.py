"""Records as a pandas table: `commbench.load("results/")`, `commbench.load("logs/*.txt")`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.errors import ResultsError
from commbench.results.collect import OWN, collect
from commbench.results.reading import NOT_SAID, Reading, Row, Table
from commbench.results.record import Record

if TYPE_CHECKING:
    import pandas


def load(*paths: str | Path) -> pandas.DataFrame:
    """Return the records of run folders, logs (docs/readers.md), folders of them and patterns, one row a record.

    The columns are `run` (the folder's or file's name), those of `commbench.results.record.Record`, and `source` and
    `line`: the file, and the record's line in it. What is to be said of the files is in `frame.attrs["findings"]`, as
    dictionaries. Raises ResultsError where there is nothing to read, ImportError without pandas.
    """
    if not paths:
        raise ResultsError("load takes files, folders or patterns, and was given none")
    return frame_of(collect(paths))


def frame_of(readings: Sequence[Reading]) -> pandas.DataFrame:
    """Return the records of readings as `load` does, in their order."""
    try:
        import pandas
    except ImportError:
        raise ImportError("commbench.load needs pandas: pip install 'commbench[report]'") from None
    names = ["run", *(field.name for field in fields(Record)), "source", "line"]
    parts = [(reading, table) for reading in readings for table in reading.tables if table.rows]
    frame = pandas.DataFrame({name: _column(name, parts) for name in names}, columns=names)
    frame.attrs["findings"] = [finding.to_dict() for reading in readings for finding in reading.findings]
    return frame


def _column(name: str, parts: Sequence[tuple[Reading, Table]]) -> Any:
    """Return one column over all tables: made column by column, since a log may hold millions of rows."""
    import numpy as np

    columns = []
    for reading, table in parts:
        n = len(table.rows)
        shared: Any = table.facts.get(name, NOT_SAID.get(name))
        values: Any = None
        if name in ("run", "source"):
            shared = Path(reading.source).name if name == "run" else reading.source
        elif name == "line":
            shared = None
            values = None if reading.format == OWN else [row.line for row in table.rows]
        elif name in Row._fields:
            place = Row._fields.index(name)
            values = [row[place] for row in table.rows]
        elif any(row.more and name in row.more for row in table.rows):
            values = [(row.more or {}).get(name, shared) for row in table.rows]
        known = shared is not None if values is None else None not in values
        kind = object if name not in _NUMBERS else None if known else float  # None becomes NaN
        if values is not None and kind is not object:
            columns.append(np.array(values, dtype=kind))
        elif values is not None:
            columns.append(_objects(values))
        else:
            columns.append(np.full(n, shared, dtype=kind))
    if not columns:
        return []
    whole = columns[0] if len(columns) == 1 else np.concatenate(columns)
    return whole


def _objects(values: list[Any]) -> Any:
    import numpy as np

    column = np.empty(len(values), dtype=object)
    column[:] = values  # lists stay lists
    return column


_NUMBERS = frozenset(f.name for f in fields(Record) if str(f.type).startswith(("int", "float"))) | {"line"}
