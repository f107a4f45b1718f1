"""What results themselves say is odd: small checks over what a file or run holds, each a rule with its remedy.

Nothing is taken back here: readers withdraw what is wrong or contradicts itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from commbench.results.findings import DOUBT, NOTE, Finding, finding
from commbench.results.reading import UNKNOWN, Reading, Row, Table
from commbench.results.skew import laggards
from commbench.results.stats import median
from commbench.results.status import OK

FALLS = 0.97  # a rate below this part of the one before is no rounding
DIPS = 0.8  # and below this it is worth a doubt
FASTER = 1.1  # a size that takes so much longer than a larger one stands out
APART = 1.25  # in place against out of place
CYCLES = 1.5  # the slowest of equal rows against the fastest
FEWEST_CYCLES = 3
SLOW_FLOOR = 1000.0  # us: no network that works takes a millisecond for a few bytes
SMALL = 1024  # B

# GB/s that one GPU sends over its links in one direction (vendors' data sheets: half of the total that they state).
LINKS = {
    **{"MI300X": 448, "MI325X": 448, "A100": 300, "A800": 200},
    **{"H100 80GB": 450, "H200": 450, "H800": 200, "B200": 900},
}
REDUCING_SWITCH = ("H100", "H200", "H800", "B200")  # NVLS: NVLink switches reduce from Hopper on
_CHOICES = ("algorithm", "protocol", "group", "buffer")


class _Point(NamedTuple):
    """All rows of one size in one series."""

    size: int
    time: float  # the median, us
    rows: list[Row]


class _Series(NamedTuple):
    """Rows that differ in size alone, by size."""

    words: str  # which they are
    points: list[_Point]


def check(reading: Reading) -> list[Finding]:
    """Return what is odd in a reading, table by table."""
    found: list[Finding] = []
    for table in reading.tables:
        series = _series(table)
        found += [one for rule in SERIES for each in series for one in rule(each, table, reading.source)]
        found += [one for rule in TABLES for one in rule(table, reading.source)]
    return found


def _series(table: Table) -> list[_Series]:
    alike: dict[tuple[object, ...], dict[int, list[Row]]] = {}
    for row in table.rows:
        if row.status == OK and row.time_us and row.size:
            own = row.more is not None and "algorithm" in row.more  # chosen row by row, as in our runs
            choices = [row.more.get(name) for name in _CHOICES] if own and row.more else ()
            sizes = alike.setdefault((row.inplace, row.dtype, row.redop, row.root, *choices), {})
            if row.size in sizes:
                sizes[row.size].append(row)
            else:
                sizes[row.size] = [row]
    found = []
    for (inplace, dtype, redop, _, *choices), sizes in alike.items():
        place = "" if inplace is None else "in place" if inplace else "out of place"
        words = ", ".join(str(word) for word in (place, dtype if dtype != UNKNOWN else "", redop, *choices) if word)
        points = [
            _Point(size, median([row.time_us or 0.0 for row in rows]), rows) for size, rows in sorted(sizes.items())
        ]
        found.append(_Series(f"{words}: " if words else "", points))
    return found


def dips(series: _Series, table: Table, source: str) -> Iterator[Finding]:
    """A size that is slower per byte than the one before: a change of algorithm, protocol or path, or a disturbance."""
    points = series.points
    rates = [point.size / point.time for point in points]
    place = 1
    while place < len(points):
        before = rates[place - 1]
        if rates[place] >= FALLS * before:
            place += 1
            continue
        end = next((n for n in range(place, len(points)) if rates[n] >= before), len(points))
        band, least = points[place:end], min(rates[place:end])
        until = "to the end" if end == len(points) else f"up to {band[-1].size} B"
        value = (
            f"{series.words}from {points[place].size} B {until} the rate is below that of "
            f"{points[place - 1].size} B, by up to {1 - least / before:.0%}"
        )
        level = DOUBT if least < DIPS * before else NOTE
        remedy = "see which algorithm and protocol run on either side"
        yield finding("dip", level, source, _lines(band), value, remedy)
        place = end + 1


def standing_out(series: _Series, table: Table, source: str) -> Iterator[Finding]:
    """A size that takes longer than a larger one."""
    for one, larger in pairwise(series.points):
        if one.time > FASTER * larger.time:
            value = f"{series.words}{one.size} B takes {one.time:.2f} us, and {larger.size} B only {larger.time:.2f} us"
            remedy = "run it again: what comes back is a setting, what does not was a disturbance"
            yield finding("stands out", NOTE, source, _lines([one]), value, remedy)


def latency_floor(series: _Series, table: Table, source: str) -> Iterator[Finding]:
    """Messages of a few bytes that take milliseconds."""
    small = [point for point in series.points if point.size <= SMALL * (table.facts.get("nranks") or 1)]
    least = min((point.time for point in small), default=0.0)
    if least > SLOW_FLOOR:
        value = f"{series.words}the smallest messages take {least:.0f} us: that is no property of their size"
        remedy = "see which transport was chosen (TCP over a slow interface?) and which ranks are late"
        yield finding("latency", DOUBT, source, _lines(small), value, remedy)


def cycles_apart(series: _Series, table: Table, source: str) -> Iterator[Finding]:
    """Rows that are equal but for their times, which differ: a mean over them would describe none."""
    apart: list[tuple[float, _Point]] = []
    for point in series.points:
        if len(point.rows) >= FEWEST_CYCLES:
            times = [row.time_us or 0.0 for row in point.rows]
            if max(times) > CYCLES * min(times):
                apart.append((max(times) / min(times), point))
    if apart:
        sizes = [f"{point.size} B" for _, point in apart]
        shown = ", ".join(sizes[:4]) + (f" and {len(sizes) - 4} more" if len(sizes) > 4 else "")
        value = f"{series.words}equal rows differ by up to {max(ratio for ratio, _ in apart):.2f} times, at {shown}"
        remedy = "look at each cycle: no mean describes several peaks"
        yield finding("cycles", DOUBT, source, _lines([point for _, point in apart]), value, remedy)


def places_apart(table: Table, source: str) -> Iterator[Finding]:
    """In place and out of place, on one line of a log, that differ by more than a quarter."""
    lines, most, where = [], 1.0, 0
    for one, two in pairwise(table.rows):
        if one.line == two.line and one.inplace != two.inplace and one.time_us and two.time_us and one.size:
            ratio = max(one.time_us, two.time_us) / min(one.time_us, two.time_us)
            if ratio > APART:
                lines.append(one.line)
            if ratio > most:
                most, where = ratio, one.size
    if lines:
        value = f"in place and out of place differ by up to {most:.2f} times, at {where} B"
        yield finding("places", NOTE, source, lines, value, "compare like with like; more iterations tell noise")


def above_the_links(table: Table, source: str) -> Iterator[Finding]:
    """A bus bandwidth above what the GPUs' links carry: busbw is no wire speed where a switch reduces, else a doubt."""
    names = {str(device.get("name", "")) for device in table.beside.get("devices", ())}
    rate = max((rate for word, rate in LINKS.items() if any(word in name for name in names)), default=None)
    if rate is None or table.facts.get("nnodes") != 1:
        return
    rows = [row for row in table.rows if row.busbw is not None and row.busbw > rate]
    if not rows:
        return
    value = f"busbw is up to {max(row.busbw or 0.0 for row in rows):.2f} GB/s, and a GPU's links carry {rate}"
    level, remedy = DOUBT, "check ranks, size and timing"
    if all(any(word in name for word in REDUCING_SWITCH) for name in names):
        value += ": the factor is that of a ring, and a switch that reduces (NVLS) moves less"
        level, remedy = NOTE, "none: compare times or algbw"
    yield finding("above links", level, source, [row.line for row in rows], value, remedy)


def late_ranks(table: Table, source: str) -> Iterator[Finding]:
    """A rank or node that is late in most cells, where the ranks' clocks were made one."""
    if any(row.more and row.more.get("arrival_skew_us") for row in table.rows):
        for text in laggards([table.record(row) for row in table.rows]):
            yield finding("late", DOUBT, source, (), text, "see what else runs there")


SERIES: tuple[Callable[[_Series, Table, str], Iterator[Finding]], ...] = (
    *(dips, standing_out, latency_floor, cycles_apart),
)
TABLES: tuple[Callable[[Table, str], Iterator[Finding]], ...] = (places_apart, above_the_links, late_ranks)


def _lines(points: Sequence[_Point]) -> list[int]:
    return [row.line for point in points for row in point.rows]
