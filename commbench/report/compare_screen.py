"""A comparison as text, Markdown, CSV and lines of JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from statistics import fmean
from typing import Any

from commbench.errors import printable
from commbench.report.compare import (
    AUTO,
    BEST,
    BY_ALGORITHM,
    BY_KERNEL,
    FASTER,
    SLOWER,
    Comparison,
    Failure,
    Row,
)
from commbench.report.sides import FIELDS, Cell, Side, letters
from commbench.results.kernels import KERNELS
from commbench.results.reading import UNKNOWN
from commbench.results.spread import CANNOT_TELL, FEWEST_LAUNCHES, SAME
from commbench.units import format_size

WAYS = {
    BY_ALGORITHM: "cell by cell, each algorithm and protocol with itself",
    AUTO: "what each library chose by itself (auto), whichever algorithm that was",
    BEST: "the libraries differ: the fastest algorithm of each with that of the other, whichever they are",
    BY_KERNEL: "each kernel with itself: the same row, type and useful bytes, rank by rank",
}
# The columns of a row, beside those of its cell.
COLUMNS = (
    *(
        "way",
        "algorithm_a",
        "algorithm_b",
        "observed_a",
        "observed_b",
        "launches_a",
        "launches_b",
        "time_us_a",
        "time_us_b",
    ),
    *("ratio", "low", "high", "p", "verdict", "of_bound_a", "of_bound_b", "band"),
)
_OF_TESTS = (
    "low and high: its interval over launches, at least 95 %, of each cell alone",
    "p: how often equal sides differ so much in some cell; slower and faster: p of at most 0.05",
)
Table = tuple[list[str], list[list[str]]]
_PLACES = {True: "in place", False: "out of place"}
_SPECIAL = re.compile(r"([\\|`\[*_~])")  # in Markdown


def names(sides: Sequence[Side]) -> dict[str, str]:
    """Return a letter for each side's name."""
    return dict(zip((side.name for side in sides), letters(len(sides)), strict=True))


def flat(row: Row) -> dict[str, Any]:
    """Return a row as one flat mapping: its cell's fields, then COLUMNS."""
    values = {name: getattr(row.cell, name) for name in FIELDS if name not in ("algorithm", "protocol")}
    pairs = {"algorithm": row.algorithms, "observed": row.observed, "launches": row.launches, "time_us": row.time_us}
    pairs["of_bound"] = row.of_bound
    values |= {"way": row.way} | {
        f"{name}_{side}": pair[i] for name, pair in pairs.items() for i, side in enumerate("ab")
    }
    return values | {name: getattr(row, name) for name in ("ratio", "low", "high", "p", "verdict")} | {"band": row.band}


def head(sides: Sequence[Side]) -> list[str]:
    """Return what the sides are, a line each."""
    lines = []
    for side in sides:
        known = side.settings.get("library") or set(side.vendors)
        scales = sorted({key[1].scale for key in side.timed})
        launches = f"{side.launches} launch{'es' * (side.launches != 1)}"
        lines.append(
            f"{names(sides)[side.name]}: {side.name}: {launches} of {', '.join(sorted(known))}; {', '.join(scales)}"
        )
        if side.predicted:
            lines.append(f"{names(sides)[side.name]} is predicted: nothing of it was measured")
    if all(side.simulated == {True} for side in sides):
        lines.append("all of this is simulated: nothing was measured")
    return lines


def words(found: Comparison, a: str, b: str, margin: float) -> list[str]:
    """Return the outcome in words, the most important first."""
    rows, percent = found.rows, f"{100 * margin:g} %"
    lines = []
    for verdict in (SLOWER, FASTER):
        those = [row for row in rows if row.verdict == verdict]
        if those:
            far = max(those, key=lambda row: abs(row.ratio - 1))
            lines.append(
                f"{b} is {verdict} than {a} in {_cells(len(those))}, by more than shuffled launches are apart "
                f"(in 95 % of ways); most in {label(far.cell)}: {_change(far.ratio)}"
            )
    same = sum(row.verdict == SAME for row in rows)
    if same:
        lines.append(f"the same within {percent} in {_cells(same)}")
    undecided = [row for row in rows if row.verdict == CANNOT_TELL]
    untested = [row for row in undecided if row.p is None]
    if untested:
        why = f"a test takes {FEWEST_LAUNCHES} launches of each side (commbench.repeat)"
        if found.a.predicted or found.b.predicted:
            why = "a prediction has no launches"
        elif not (found.a.tested and found.b.tested):
            why = "a test takes launches that commbench made itself, and logs are not (commbench.repeat makes them)"
        lines.append(f"in {_cells(len(untested))} cannot tell whether the ratio is noise: {why}")
    if len(undecided) > len(untested):
        open_ = len(undecided) - len(untested)
        lines.append(
            f"in {_cells(open_)} cannot tell: no difference beyond chance, nor surely within {percent}; "
            "more launches may tell"
        )
    return lines


def leads(found: Comparison, a: str, b: str, margin: float) -> list[str]:
    """Return which side is faster from which size to which, by the mean ratio at each size, and the most in a row.

    A line for each kind of cell; nothing is said of chance.
    """
    kinds: dict[tuple[str, ...], dict[int, list[float]]] = {}
    for row in found.rows:
        if row.cell.size and row.way in (AUTO, BEST):
            key: tuple[str, ...] = (row.cell.collective, row.cell.scale, row.cell.dtype, row.cell.redop or "", row.way)
            kinds.setdefault(key, {}).setdefault(row.cell.size, []).append(row.ratio)
    lines = []
    for key, sizes in kinds.items():
        means = {size: math.exp(fmean(map(math.log, ratios))) for size, ratios in sorted(sizes.items())}
        parts = []
        for ahead, those in groupby(means.items(), lambda one: _ahead(one[1], margin)):
            run = list(those)
            most = max(ratio**ahead for size, _ in run for ratio in sizes[size])
            ends = [format_size(run[0][0]), format_size(run[-1][0])]
            where = f"at {ends[0]}" if len(run) == 1 else f"from {ends[0]} to {ends[1]}"
            names = {
                1: f"{a} is faster {where}, up to {most:.3g} times",
                -1: f"{b} is faster {where}, up to {most:.3g} times",
            }
            parts.append(names.get(ahead, f"both within {100 * margin:g} % {where}"))
        lines.append(f"{', '.join(word for word in key if word)}: {'; '.join(parts)}")
    return lines


def _ahead(ratio: float, margin: float) -> int:
    return (ratio > 1 + margin) - (ratio < 1 / (1 + margin))


def failures(found: Comparison, a: str, b: str) -> list[str]:
    """Return which cells ended badly, and where, a line each."""
    sides = {found.a.name: a, found.b.name: b}
    return [
        f"{label(one.cell)} ended as {one.status} in {sides[one.side]} ({_launches(one.launches)}): {one.reason}"
        for one in found.failures
    ]


def _cells(number: int) -> str:
    return f"{number} cell{'s' * (number != 1)}"


def _launches(number: int) -> str:
    return f"{number} launch{'es' * (number != 1)}"


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} % of the time" if ratio < 10 else f"{ratio:.3g} times the time"


def label(cell: Cell) -> str:
    """Return a cell in a few words."""
    if cell.collective == KERNELS:
        return f"{cell.algorithm} {cell.dtype} on {cell.group}"
    protocol = f"/{cell.protocol}" if cell.protocol else ""
    return f"{cell.collective} {cell.algorithm}{protocol} at {format_size(cell.size)}"


def cell_table(found: Comparison, a: str, b: str, margin: float) -> tuple[str, Table]:
    """Return what all rows share, in words, and the table of the rows."""
    named = [name for name in FIELDS if name not in ("size", "algorithm", "protocol")]
    values = {name: {getattr(row.cell, name) for row in found.rows} for name in named}
    own = [name for name in named if len(values[name]) > 1]
    shared = [
        _PLACES[one] if name == "inplace" else f"{name} {one}"
        for name in named
        if name not in own and (one := min(values[name])) not in (None, "", UNKNOWN)
    ]
    ways = len({row.way for row in found.rows}) > 1
    kernels = values["collective"] == {KERNELS}
    header = ["useful bytes" if kernels else "size (B)", *(["way"] if ways else [])]
    header.append("kernel" if kernels else "algorithm")
    header += ["place" if name == "inplace" else name for name in own]
    bounds = any(part is not None for row in found.rows for part in row.of_bound)
    header += [f"{a} (us)", f"{b} (us)", *([f"{a} of bound", f"{b} of bound"] if bounds else [])]
    tested = any(row.p is not None for row in found.rows)
    header += [f"{b}/{a}", *(["low", "high", "p", "verdict"] if tested else [])]
    rows = []
    for row in found.rows:
        one, other = (_ran(*pair) for pair in zip(row.algorithms, row.observed, strict=True))
        line = [str(row.cell.size), *([row.way] if ways else [])]
        line += [one if one == other else f"{one} | {other}", *(_plain(getattr(row.cell, name)) for name in own)]
        line += [f"{time:.2f}" for time in row.time_us]
        line += ["-" if part is None else f"{100 * part:.3g} %" for part in row.of_bound] if bounds else []
        line.append(number(row.ratio))
        if tested:
            verdict = f"same within {100 * margin:g} %" if row.verdict == SAME else row.verdict
            line += [number(row.low), number(row.high), "-" if row.p is None else f"{row.p:.4f}", verdict]
        rows.append(line)
    return ", ".join(shared), (header, rows)


def _ran(name: str, observed: str | None) -> str:
    """Return an algorithm; with auto, what ran."""
    return f"{name} ({observed})" if name.startswith(AUTO) and observed else name


def band_title(found: Comparison) -> str:
    """Return what the geometric means are of."""
    if _sized(found):
        return "Geometric means by size, over all algorithms, in and out of place"
    return "Geometric means over kernels, by what a row is"


def _sized(found: Comparison) -> bool:
    """Whether bands are of sizes; of kernels they are not."""
    return any(row.cell.collective != KERNELS for row in found.rows)


def band_table(found: Comparison, a: str, b: str) -> Table:
    """Return the geometric means by size band."""
    tested = any(row.p is not None for row in found.rows)
    what = ["collective", "scale", "dtype", "way", "band", "sizes" if _sized(found) else "rows", "cells"]
    header = [*what, f"mean {b}/{a}", "smallest", "largest", *(["slower", "faster"] if tested else [])]
    return header, [
        [
            *(one.collective, one.scale, one.dtype, one.way, one.band, one.limits, str(one.cells)),
            *map(number, (one.ratio, one.smallest, one.largest)),
            *([str(one.slower), str(one.faster)] if tested else []),
        ]
        for one in found.bands
    ]


def setting_table(found: Comparison, a: str, b: str) -> Table:
    """Return what is set to other things in b than in a."""
    return ["setting", a, b], [[one.name, one.a or "-", one.b or "-"] for one in found.settings]


def unmatched_lines(found: Comparison, a: str, b: str) -> list[str]:
    """Return the cells without a counterpart, those that differ in size only in one line."""
    groups: dict[tuple[str, str], list[int]] = {}
    kernels: dict[tuple[str, str], list[str]] = {}
    for one in found.unmatched:
        cell = one.cell
        if cell.collective == KERNELS:
            named = f"{cell.algorithm} at {format_size(cell.size)}"
            kernels.setdefault((one.why, f"{KERNELS} {cell.dtype} {cell.buffer} {cell.group}"), []).append(named)
            continue
        parts = [cell.collective, cell.algorithm, cell.protocol, cell.dtype, cell.redop, cell.buffer, cell.method]
        parts += ["in place" if cell.inplace else None, f"root {cell.root}" if cell.root is not None else None]
        text = " ".join(part for part in (*parts, cell.group or None, cell.scale) if part)
        groups.setdefault((one.why, text), []).append(cell.size)
    lines = []
    listed = {key: [*map(format_size, sorted(sizes))] for key, sizes in groups.items()}
    for (why, text), names in (listed | kernels).items():
        for side, letter in ((found.a.name, a), (found.b.name, b)):
            why = why.replace(f" in {side}", f" in {letter}")
        lines.append(f"{why}: {text}: {', '.join(names)}")
    return lines


def number(value: float | None) -> str:
    """Return a ratio as text."""
    return "-" if value is None else f"{value:.3f}" if 0.01 <= value < 1000 else f"{value:.1e}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "in" if value else "out"
    return "-" if value in (None, "") else str(value)


def text(sides: Sequence[Side], comparisons: Sequence[Comparison], margin: float, *, markdown: bool = False) -> str:
    """Return all of it for a person: plain, or in Markdown."""
    lines: list[str] = []
    item = "- " if markdown else "# "

    def section(title: str) -> None:
        lines.extend(["", f"## {escaped(title)}", ""] if markdown else ["", f"# {title}"])

    def say(those: Iterable[str]) -> None:
        lines.extend(item + (escaped(one) if markdown else printable(one)) for one in those)

    def show(table: Table) -> None:
        lines.extend(["", *markdown_table(table)] if markdown else _aligned(table))

    if markdown:
        lines += ["# Comparison", ""]
    say(head(sides))
    for found in comparisons:
        a, b = (names(sides)[side.name] for side in (found.a, found.b))
        section(f"{b} against {a}")
        say([*leads(found, a, b, margin), *words(found, a, b, margin), *failures(found, a, b)])
        shared, table = cell_table(found, a, b, margin)
        bounds = any(part is not None for row in found.rows for part in row.of_bound)
        section(f"Cells: {shared}")
        say(f"{way}: {WAYS[way]}" for way in dict.fromkeys(row.way for row in found.rows))
        say(
            [
                f"{b}/{a}: ratio of times, above 1 where {b} is slower",
                *(_OF_TESTS if any(row.p is not None for row in found.rows) else ()),
                *(["of bound: algbw over the highest that the given links allow where no switch reduces"] * bounds),
            ]
        )
        show(table)
        section(band_title(found))
        show(band_table(found, a, b))
        section(f"Unmatched: {_cells(len(found.unmatched))}")
        say(unmatched_lines(found, a, b))
        section(f"Settings that differ: {len(found.settings)}")
        if not (found.a.tested and found.b.tested):
            say(["a log that commbench did not make tells few of its settings"])
        if found.settings:
            show(setting_table(found, a, b))
    return "\n".join(lines) + "\n"


def _of(one: Failure) -> dict[str, Any]:
    return {name: value for name, value in asdict(one).items() if name != "cell"}


def _aligned(table: Table) -> list[str]:
    header, rows = [*map(printable, table[0])], [[*map(printable, row)] for row in table[1]]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    first, *others = (
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows)
    )
    return [f"# {first}", *(f"  {line}" for line in others)]


def markdown_table(table: Table) -> list[str]:
    """Return a table as lines of Markdown."""
    header, rows = table
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(escaped(cell) for cell in line)} |" for line in lines]


def escaped(cell: str) -> str:
    """Return text of a log so that no reader of Markdown takes it for more than text."""
    return _SPECIAL.sub(r"\\\1", " ".join(cell.split()).replace("&", "&amp;").replace("<", "&lt;"))


def as_csv(comparisons: Sequence[Comparison]) -> str:
    """Return a line a matched cell."""
    out = io.StringIO()
    fields = [name for name in FIELDS if name not in ("algorithm", "protocol")]
    writer = csv.DictWriter(out, ["a", "b", *fields, *COLUMNS], lineterminator="\n")
    writer.writeheader()
    for found in comparisons:
        for row in found.rows:
            writer.writerow({"a": found.a.name, "b": found.b.name, **flat(row)})
    return out.getvalue()


def as_json(comparisons: Sequence[Comparison]) -> str:
    """Return one object a line; `kind` is cell, band, unmatched, setting or failure."""
    lines: list[dict[str, Any]] = []
    for found in comparisons:
        pair = {"a": found.a.name, "b": found.b.name}
        lines += [{"kind": "cell", **pair, **flat(row)} for row in found.rows]
        lines += [{"kind": "band", **pair, **asdict(one)} for one in found.bands]
        lines += [{"kind": "unmatched", **pair, **asdict(one.cell), "why": one.why} for one in found.unmatched]
        lines += [
            {"kind": "setting", "name": one.name, **pair, "value_a": one.a, "value_b": one.b} for one in found.settings
        ]
        lines += [{"kind": "failure", **pair, **asdict(one.cell), **_of(one)} for one in found.failures]
    return "".join(json.dumps(line) + "\n" for line in lines)


@dataclass(frozen=True)
class Gate:
    """What a regression gate says of all comparisons."""

    lines: list[str]
    failing: int  # cells that are slower by more than the limit, for certain
    open: int  # cells of which it cannot be told that they are not


def gate(sides: Sequence[Side], comparisons: Sequence[Comparison], limit: float) -> Gate:
    """Return the gate's answer: each cell that fails, and each that is open, in a line of its own."""
    lines, failing, open_ = [], 0, 0
    for found in comparisons:
        b = names(sides)[found.b.name]
        for row in found.failing(limit):
            failing += 1
            lines.append(f"# slower in {b}: {_line(row)}")
        for row in found.open(limit):
            open_ += 1
            lines.append(f"# cannot tell in {b}: {_line(row)}")
        for one in (one for one in found.failures if one.new):
            open_ += 1
            lines.append(f"# cannot tell in {b}: {label(one.cell)} ended as {one.status}: {one.reason}")
    cells = sum(len(found.rows) for found in comparisons)
    outcome = "failed" if failing else "cannot tell" if open_ else "passed"
    about = f"{failing} of {_cells(cells)} slower by more than {100 * limit:g} % beyond chance, {open_} cannot be told"
    return Gate([*lines, f"# --fail-if-slower: {outcome}: {about}"], failing, open_)


def _line(row: Row) -> str:
    where = f"{label(row.cell)}, {row.cell.scale}, {row.cell.dtype}{', in place' if row.cell.inplace else ''}"
    interval = f", interval {number(row.low)} to {number(row.high)}" if row.low is not None else ""
    return (
        f"{where}: {number(row.ratio)} times the time{interval}, p {'not tested' if row.p is None else f'{row.p:.4f}'}"
    )
