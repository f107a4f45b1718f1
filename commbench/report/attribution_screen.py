"""An attribution as text of 100 columns, as CSV, and as JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from commbench.attribution.analyse import Attribution
from commbench.attribution.clocks import known
from commbench.attribution.layers import LAYERS
from commbench.errors import printable
from commbench.report import attribution_compare as compare
from commbench.report.attribution_tables import tables
from commbench.report.attribution_words import words
from commbench.report.summary import Statement
from commbench.report.tables import Table

WIDTH = 100
MOST = {"ranks": 16, "steps": 10, "collectives": 20, "late": 8}  # lines on screen
ABOUT = {
    "ranks": "parts of their steps in %; calls: all communication, as most tools count it",
    "steps": "parts over all ranks in %, and the rank that the others waited for longest",
    "layers": "over all ranks and steps; a step: the mean",
    "collectives": "times in ms, wait the mean over ranks; busbw in GB/s, of the transfer alone",
    "late": "waits under work too; more: than others spent in it before; behind: with those it held up",
    "unmatched": "calls without a counterpart on other ranks, by group",
    "notes": "what was left out, clipped or assumed",
}


def text(found: Attribution) -> str:
    """Return all of it for a person: words first, then tables, folded where they are long."""
    lines = [*statement_lines(words(found))]
    for name, table in tables(found).items():
        lines += ["", f"# {name}: {ABOUT[name]}"]
        if name in ("unmatched", "notes"):
            lines += [line for row in table.texts[1] for line in wrapped(": ".join(row))]
        else:
            lines += table_lines(*folded(name, table))
    return "\n".join(lines) + "\n"


def comparison_lines(a: Attribution, b: Attribution) -> list[str]:
    """Return what changed from a to b: words, then the table."""
    caption = wrapped(f"B less A: {compare.ESTIMATOR}", "# ", "# ")
    return [*statement_lines(compare.words(a, b)), "", *caption, *table_lines(compare.table(a, b))]


def statement_lines(statements: Iterable[Statement]) -> Iterator[str]:
    """Yield statements, each behind its kind."""
    for one in statements:
        head = f"{one.kind:<6}"
        yield from wrapped(one.text, f"{head} ", " " * 7)


def wrapped(line: str, first: str = "- ", later: str = "  ") -> list[str]:
    """Return a text of a trace in lines of WIDTH, of which no terminal obeys any."""
    return wrap(printable(line), WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)


def folded(name: str, table: Table) -> tuple[Table, str]:
    """Return a table with as many lines as are shown, and what was left out."""
    most = MOST.get(name, len(table.lines))
    if len(table.lines) <= most:
        return table, ""
    by = {"ranks": "waiting", "steps": "longest (ms)"}.get(name)
    lines = table.lines[:most]
    how = "the first"
    if by is not None:
        column = table.header.index(by)
        ranked = sorted(table.lines, key=lambda line: line[column].number or 0.0)
        chosen = [*ranked[: most // 2], *ranked[-(most // 2) :]] if name == "ranks" else ranked[-most:]
        lines = [line for line in table.lines if any(line is one for one in chosen)]
        how = "those that waited least and most" if name == "ranks" else "the longest"
    return Table(table.header, lines), f"{how}: {len(lines)} of {len(table.lines)} (--out has all)"


def table_lines(table: Table, left_out: str = "") -> Iterator[str]:
    """Yield a table's lines, without its last columns where they do not fit."""
    header, rows = table.texts
    every = [header, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    shown = len(widths)
    while shown > 2 and sum(widths[:shown]) + 2 * shown > WIDTH:
        shown -= 1
    for row in every:
        cells = (f"{cell:>{width}}" for cell, width in zip(row[:shown], widths, strict=False))
        yield f"  {'  '.join(cells)}"[:WIDTH].rstrip()
    if shown < len(widths):
        left_out = "; ".join([*([left_out] if left_out else []), f"not shown: {', '.join(header[shown:])} (--out)"])
    if left_out:
        yield from wrapped(left_out, "  ... ", "      ")


def as_csv(table: Table) -> str:
    """Return a table's lines: numbers as they are, and texts of a trace such that no terminal obeys any."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.header)
    writer.writerows(
        [printable(cell.text) if cell.number is None else cell.number for cell in line] for line in table.lines
    )
    return out.getvalue()


def as_json(found: Attribution) -> dict[str, Any]:
    """Return all of it but the instants: durations in ns, and no number that was not found."""
    ranks = []
    for place, (trace, how) in enumerate(zip(found.traces, found.alignments, strict=True)):
        about = {"rank": trace.rank, "source": trace.source, "format": trace.format, "host": trace.host}
        windows = [
            {
                **{"step": one.window.step, "start": one.window.start, "end": one.window.end},
                "layers": {layer: one.total(layer) for layer in LAYERS},
                **{name: getattr(one, name) for name in ("communication", "exposed", "hidden")},
                **{"latency_bound": one.latency_bound, "unsplit": one.unsplit, "evidence": dict(one.evidence)},
            }
            for one in found.layers[place]
        ]
        ranks.append({**about, "clock": {**asdict(how), "error": known(how.error)}, "windows": windows})
    return {
        "format": "commbench attribution 1",
        "words": [{"kind": one.kind, "text": one.text} for one in words(found)],
        "ranks": ranks,
        "collectives": list(_collectives(found)),
        "late": [asdict(one) for one in found.culprits],
        "excess": [asdict(one) for one in found.excesses],
        "unmatched": [asdict(one) for one in found.refusals],
        "injected": None if found.effect is None else _effect(found),
        "advice": [asdict(one) for one in found.advice],
        "notes": list(found.notes),
    }


def _collectives(found: Attribution) -> Iterator[dict[str, Any]]:
    for one in found.splits:
        of = one.meeting
        ranks: Sequence[int | None] = [found.traces[place].rank for place in one.places]
        yield {
            **{"operation": of.operation, "group": of.group_name, "ranks_of_group": list(of.group)},
            **{"number": of.number, "size": of.size, "dtype": of.dtype, "root": of.root, "ranks": list(ranks)},
            **{name: None if one.durations_only else getattr(one, name).tolist() for name in ("arrival", "end")},
            **{name: getattr(one, name).tolist() for name in ("wait", "transfer")},
            "wait_by_duration": None if one.wait_by_duration is None else one.wait_by_duration.tolist(),
            "late_rank": None if one.culprit is None else found.traces[one.culprit].rank,
            **{"lateness": None if one.durations_only else one.lateness, "error": known(one.error)},
            **{"distinguishable": one.distinguishable, "durations_only": one.durations_only},
            **{"skew_only": one.skew_only, "low_confidence": one.low_confidence},
        }


def _effect(found: Attribution) -> dict[str, Any]:
    assert found.effect is not None
    it = asdict(found.effect)
    it["injection"]["steps"] = sorted(it["injection"]["steps"])
    return it
