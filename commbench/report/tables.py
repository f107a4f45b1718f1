"""The tables of a report: text in every form, with links from what is said to the rows that show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from commbench.report.best import Best, sizes_in_words
from commbench.report.content import PLACES, Content, scale, title
from commbench.report.kernels import bracket, ratio
from commbench.report.sides import at_once
from commbench.results.kernels import BASELINE, CEILING, KERNELS
from commbench.units import format_size

ROWS = 20_000  # of records in a page: beyond, browsers stutter
COLUMNS = (
    *("side", "collective", "nranks", "nnodes", "size", "count", "dtype", "redop", "root", "place", "label"),
    *("observed_algorithm", "observed_protocol", "buffer", "group", "method", "status", "reason", "time_us"),
    *("time_us_low", "time_us_high", "time_us_p99", "algbw", "busbw", "wrong", "source", "line"),
)
_HEADERS = {
    **{"nranks": "ranks", "nnodes": "nodes", "size": "size (B)", "label": "algorithm", "time_us": "time (us)"},
    **{"observed_algorithm": "ran", "observed_protocol": "protocol that ran", "time_us_p99": "p99 (us)"},
    **{"time_us_low": "low (us)", "time_us_high": "high (us)", "algbw": "algbw (GB/s)", "busbw": "busbw (GB/s)"},
}


@dataclass(frozen=True)
class Cell:
    """A text, its number for sorting where it has one, and the row of the table of records that it links to."""

    text: str
    number: float | None = None
    row: int | None = None


@dataclass(frozen=True)
class Table:
    """A header, lines of cells, and for each line the anchor that it has."""

    header: list[str]
    lines: list[list[Cell]]
    anchors: list[int] | None = None

    @classmethod
    def plain(cls, header: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
        """Return a table of texts."""
        return cls(list(header), [[Cell(text, _number(text)) for text in line] for line in lines])

    @property
    def texts(self) -> tuple[list[str], list[list[str]]]:
        """Header and lines as texts."""
        return self.header, [[cell.text for cell in line] for line in self.lines]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def side_table(content: Content) -> Table:
    """Return what the sides are."""
    lines = []
    for letter, side in content.sides.items():
        mine = content.frame[content.frame["side"] == letter]
        together = mine.loc[mine["collective"] != KERNELS, ["nranks", "nnodes"]]
        scales = dict.fromkeys(scale(n, k) for n, k in together.itertuples(index=False))
        devices = mine.loc[mine["collective"] == KERNELS, "group"].nunique()
        scales |= {at_once(devices): None} if devices else {}
        links = content.links[letter]
        given = [f"link {links.link:g}" if links.link else "", f"NIC {links.nic:g}" if links.nic else ""]
        formats = dict.fromkeys(reading.format for reading in side.readings)
        words = [
            *(letter, side.name, ", ".join(formats), str(side.launches)),
            *(_joined(side.settings.get(name, ())) for name in ("library", "devices")),
            *(", ".join(scales), ", ".join(one for one in given if one) or "not given", str(len(mine))),
        ]
        lines.append(words)
    header = ["side", "path", "format", "launches", "library", "devices", "scale", "GB/s a rank", "records"]
    return Table.plain(header, lines)


def _joined(values: Any) -> str:
    return ", ".join(sorted(values)) or "unknown"


def best_table(best: Sequence[Best]) -> Table:
    """Return which algorithm is fastest at which sizes."""
    lines = []
    for one in best:
        unsure = [name if at == one.sizes else f"{name} (at {sizes_in_words(at)})" for name, at in one.unsure.items()]
        auto = [Cell("not measured"), Cell("")]
        if one.auto is not None:
            doubt = ", perhaps noise" if one.auto.unsure and one.auto.ratio > 1 else ""
            at = Cell(f"{format_size(one.auto.size)}{doubt}", one.auto.size, one.auto.row)
            auto = [Cell(f"{one.auto.ratio:.2f}", one.auto.ratio), at]
        where = [Cell(one.side), Cell(title(one.family)), Cell(PLACES[one.place]), Cell(one.range, one.sizes[0])]
        lines.append([*where, Cell(one.label, row=one.row), Cell(", ".join(unsure) or "-"), *auto])
    return Table(["side", "cells", "place", "sizes", "fastest", "not told apart from", "auto / fastest", "at"], lines)


def kernel_table(content: Content) -> Table:
    """Return the rows of kernels on each device, with links to those that tell more."""
    rows = content.kernels
    lines = []
    found = rows.to_dict("records")  # none, and no columns, where no kernel was run
    measured_kernels = {one["kernel"] for one in found if (one["algbw"] or 0) > 0}
    for row, one in zip(rows.index, found, strict=True):
        if one["kernel"] not in measured_kernels and one["factor"] != BASELINE:
            continue  # the baseline's line says why there is nothing
        measured = [one[name] for name in ("algbw", "of_baseline", "of_baseline_low", "of_baseline_high")]
        free = one["factor"] not in (BASELINE, CEILING)  # of those two there is nothing to predict
        ends = [one[name] for name in ("predicted_low", "predicted_high")] if free else []
        ends = [] if one["by_launch"] is True else ends
        against = "" if one["against"] == BASELINE else f" of {one['against']}"
        parts = [one[name] for name in ("of_ceiling", "of_peak", "of_others")]
        others = _share(parts[-1])
        if one["slow"] is True:
            others = Cell(f"{others.text}: slow", others.number)
        lines.append(
            [
                *(Cell(one["side"]), Cell(one["kernel"]), Cell(one["dtype"]), Cell(one["device"])),
                *(Cell(one["factor"]), Cell(one["level"]), _rate(measured[0], one["status"], int(row))),
                *(*map(_share, measured[1:]), _predicted(ends, against), *map(_share, parts[:-1]), others),
            ]
        )
    header = ["side", "kernel", "dtype", "device", "factor", "level", "GB/s", "of baseline", "low", "high", "predicted"]
    return Table([*header, "of ceiling", "of data sheet", "of other devices"], lines)


def _rate(value: Any, status: str, row: int) -> Cell:
    return (
        Cell(status, None, row)
        if value is None or value != value
        else Cell(f"{value:.2f}" if value >= 0.1 else f"{value:#.2g}", float(value), row)
    )


def _predicted(ends: list[Any], against: str) -> Cell:
    known = [end for end in ends if end == end and end is not None]
    return Cell(bracket(*known) + against, known[0]) if known else Cell("-" if ends else "")


def _share(value: Any) -> Cell:
    return Cell("") if value is None or value != value else Cell(ratio(value), float(value))


def finding_table(content: Content) -> Table:
    """Return the findings, the gravest first."""
    own = {reading.source for side in content.sides.values() for reading in side.readings if reading.manifest}
    lines = []
    for one in content.findings:
        found = one.finding
        place = f"{'record' if found.source in own else 'line'} {found.lines[0]}" if found.lines else ""
        more = f" and {found.count - 1} more" if found.count > 1 else ""
        link = Cell(place + more if place else "", row=one.rows[0] if one.rows else None)
        lines.append(
            [
                *(Cell(one.side), Cell(found.level), Cell(found.rule), Cell(found.value), Cell(found.remedy)),
                *(Cell(found.source), link),
            ]
        )
    return Table(["side", "level", "rule", "what was seen", "remedy", "source", "where"], lines)


def row_table(content: Content, most: int) -> Table:
    """Return the records, at most so many."""
    frame = content.frame.head(most)
    columns = [name for name in COLUMNS if frame[name].notna().any()]
    if len(frame) and (frame["collective"] == KERNELS).all():  # a device each: no bus, no ranks together
        columns = [name for name in columns if name not in ("nranks", "nnodes", "busbw")]
    lines = [[_cell(value) for value in values] for values in frame[columns].itertuples(index=False, name=None)]
    return Table([_HEADERS.get(name, name) for name in columns], lines, list(map(int, frame.index)))


def _cell(value: Any) -> Cell:
    if value is None or value != value:
        return Cell("")
    if isinstance(value, bool | str):
        return Cell(str(value))
    number = float(value)
    return Cell(f"{int(number)}" if number.is_integer() and abs(number) < 1 << 62 else f"{number:.6g}", number)


def setting_table(content: Content) -> Table:
    """Return what was set on each side; what differs comes first."""
    names = sorted({name for side in content.sides.values() for name in side.settings})
    texts = {
        name: [" | ".join(sorted(side.settings.get(name, ()))) for side in content.sides.values()] for name in names
    }
    several = len(content.sides) > 1
    lines = [
        [
            name,
            *(["yes" if len(set(texts[name])) > 1 else ""] if several else []),
            *(text or "-" for text in texts[name]),
        ]
        for name in sorted(names, key=lambda name: len(set(texts[name])) == 1)
    ]
    return Table(
        ["setting", *(["differs"] if several else []), *content.sides], [[Cell(one) for one in line] for line in lines]
    )
