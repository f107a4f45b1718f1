"""Records as a pandas table: `commbench.load("results/")`, `commbench.load("logs/*.txt")`."""

from __future__ import annotations

from collections.abc import Iterable
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
    try:
        import pandas
    except ImportError:
        raise ImportError("commbench.load needs pandas: pip install 'commbench[report]'") from None
    if not paths:
        raise ResultsError("load takes files, folders or patterns, and was given none")
    readings = collect(paths)
    names = ["run", *(field.name for field in fields(Record)), "source", "line"]
    parts = [(reading, table) for reading in readings for table in reading.tables if table.rows]
    frame = pandas.DataFrame({name: _column(name, parts) for name in names}, columns=names)
    frame.attrs["findings"] = [finding.to_dict() for reading in readings for finding in reading.findings]
    return frame


def _column(name: str, parts: Iterable[tuple[Reading, Table]]) -> Any:
    """Return one column over all tables: made column by column, since a log may hold millions of rows."""
    import numpy as np

    values: list[Any] = []
    for reading, table in parts:
        n = len(table.rows)
        if name in ("run", "source"):
            values += [Path(reading.source).name if name == "run" else reading.source] * n
        elif name == "line":
            values += [None] * n if reading.format == OWN else [row.line for row in table.rows]
        elif name in Row._fields:
            place = Row._fields.index(name)
            values += [row[place] for row in table.rows]
        else:
            shared = table.facts.get(name, NOT_SAID.get(name))
            values += [row.more.get(name, shared) if row.more else shared for row in table.rows]
    if values and name in _NUMBERS and None in values:
        return np.array(values, dtype=float)  # None becomes NaN
    return values


_NUMBERS = frozenset(
    field.name for field in fields(Record) if "int" in str(field.type) or str(field.type).startswith("float")
)
