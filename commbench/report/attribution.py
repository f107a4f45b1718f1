"""An attribution as files: a page that opens offline, its pictures and tables, and a timeline for Perfetto."""

from __future__ import annotations

import json
from pathlib import Path

from commbench.attribution.analyse import Attribution
from commbench.attribution.chrome import write as write_timeline
from commbench.errors import UsageError
from commbench.report import attribution_compare as compare
from commbench.report.attribution_screen import ABOUT, as_csv, as_json
from commbench.report.attribution_tables import TABLES, tables
from commbench.report.attribution_words import words
from commbench.report.drawing import drawings_of_steps, style
from commbench.report.html import embedded, own_picture, page
from commbench.report.tables import Table

PICTURES = ("step-layers", "step-timeline-median", "step-timeline-longest", "late-ranks")
# All names that a run may write; a later one removes those of them that it has no use for.
FILES = frozenset(
    ["report.html", "attribution.json", "trace.json", "comparison.csv"]
    + [f"{name}.csv" for name in TABLES]
    + [f"{name}.png" for name in PICTURES]
)
_LINES = 5_000  # of a table in a page: beyond, browsers stutter


def render(found: Attribution, command: str, other: Attribution | None = None) -> str:
    """Return the page; `other`: the run that this one, A, is compared with."""
    every = tables(found)
    return page(
        "attribution.html",
        command=command,
        statements=words(found),
        compared=compare.words(found, other) if other else [],
        comparison=compare.table(found, other) if other else Table([], []),
        estimator=compare.ESTIMATOR,
        pictures=list(embedded(drawings_of_steps(found))),
        tables={name: Table(table.header, table.lines[:_LINES]) for name, table in every.items()},
        lines_in_all={name: len(table.lines) for name, table in every.items()},
        about=ABOUT,
    )


def write(found: Attribution, folder: str | Path, command: str, other: Attribution | None = None) -> list[str]:
    """Write all files into a folder, and return their names; raise UsageError where that cannot be.

    Where the folder holds an earlier attribution, those of its files that this one has not are removed.
    """
    top = Path(folder)
    names = []
    try:
        top.mkdir(parents=True, exist_ok=True)
        again = all((top / name).is_file() for name in ("report.html", "attribution.json"))
        with style():
            for one in drawings_of_steps(found):
                names.append(f"{one.name}.png")
                (top / names[-1]).write_bytes(own_picture(one))
        about = as_json(found) | ({"comparison": compare.as_json(found, other)} if other else {})
        texts = {"report.html": render(found, command, other), "attribution.json": json.dumps(about, indent=1)}
        texts |= {f"{name}.csv": as_csv(table) for name, table in tables(found).items()}
        texts |= {"comparison.csv": as_csv(compare.table(found, other))} if other else {}
        for name, text in texts.items():
            names.append(name)
            (top / name).write_text(text, encoding="utf-8", errors="backslashreplace")  # names may hold anything
        write_timeline(top / "trace.json", found)
        for path in (top / name for name in FILES - {*names, "trace.json"}) if again else ():
            if path.is_file():
                path.unlink()
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror or error}") from None
    return ["report.html", *sorted({*names, "trace.json"} - {"report.html"})]
