"""A report as one HTML file that opens offline: pictures and tables are in it, and nothing is fetched."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from textwrap import wrap
from typing import Any

from commbench import __version__
from commbench.report import compare_screen as screen
from commbench.report.content import Content
from commbench.report.drawing import Drawing, drawings, plain, style
from commbench.report.summary import Statement
from commbench.report.tables import (
    ROWS,
    Table,
    best_table,
    finding_table,
    kernel_table,
    row_table,
    setting_table,
    side_table,
)

MOST_PICTURES = 40
_PREFIXES = {"svg": "image/svg+xml", "png": "image/png"}


@dataclass(frozen=True)
class Picture:
    """A picture as it stands in the page."""

    title: str
    caption: str
    data: str  # a data URI


def render(content: Content, statements: Sequence[Statement], best: Sequence[Any], command: str) -> str:
    """Return the page."""
    pictures = list(embedded(drawings(content)))
    return page(
        "report.html",
        command=command,
        statements=statements,
        sides=side_table(content),
        pictures=pictures[:MOST_PICTURES],
        left_out=[one.title for one in pictures[MOST_PICTURES:]],
        kernels=kernel_table(content),
        best=best_table(best),
        comparisons=list(_comparisons(content)),
        findings=finding_table(content),
        settings=setting_table(content),
        rows=row_table(content, ROWS),
        rows_in_all=len(content.frame),
        rows_shown=ROWS,
        simulated=bool(len(content.frame)) and bool(content.frame["simulated"].all()),
    )


def page(template: str, **about: Any) -> str:
    """Return a page of `templates/`; all text is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    place = Path(__file__).parent / "templates"
    environment = Environment(
        loader=FileSystemLoader(place), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    made = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return environment.get_template(template).render(version=__version__, made=made, **about)


def picture_bytes(figure: Any, kind: str) -> bytes:
    """Return a matplotlib figure as a file of a kind, the same for the same figure."""
    out = io.BytesIO()
    figure.savefig(out, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()


def own_picture(one: Drawing) -> bytes:
    """Return a picture as a PNG that stands by itself: with its title on top, and as much higher."""
    figure, lines = one.draw(), wrap(one.title, 72)
    figure.suptitle("\n".join(map(plain, lines)), fontsize="medium")
    figure.set_figheight(figure.get_figheight() + 0.2 * len(lines))
    return picture_bytes(figure, "png")


def embedded(those: Iterable[Drawing]) -> Iterator[Picture]:
    """Yield pictures as a page has them; of those beyond MOST_PICTURES the titles alone."""
    with style():
        for number, one in enumerate(those):
            data = ""
            if number < MOST_PICTURES:
                encoded = base64.b64encode(picture_bytes(one.draw(), "svg")).decode("ascii")
                data = f"data:{_PREFIXES['svg']};base64,{encoded}"
            yield Picture(one.title, one.caption, data)


def _comparisons(content: Content) -> Iterable[dict[str, Any]]:
    for found in content.comparisons:
        a, b = content.letter(found.a), content.letter(found.b)
        shared, cells = screen.cell_table(found, a, b, content.margin)
        yield {
            "title": f"{b} against {a}",
            "means": screen.band_title(found),
            "shared": shared,
            "ways": [f"{way}: {screen.WAYS[way]}" for way in dict.fromkeys(row.way for row in found.rows)],
            "bands": Table.plain(*screen.band_table(found, a, b)),
            "cells": Table.plain(cells[0], cells[1][:ROWS]),
            "cells_in_all": len(found.rows),
            "unmatched": screen.unmatched_lines(found, a, b),
        }
