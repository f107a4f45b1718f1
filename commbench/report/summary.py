"""The outcome in words: what is fast, what is slow, what is wrong, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from commbench.report.best import WORTH, Best
from commbench.report.compare_screen import words
from commbench.report.content import Content, whole_or_none
from commbench.report.published import published
from commbench.results.findings import DOUBT, WITHDRAWN
from commbench.results.status import FAILURES, OK
from commbench.units import approximate_size, format_size

WRONG, COMPARED, FAST, PUBLISHED, SLOW, DO = "wrong", "compared", "fast", "published", "slow", "do"
MOST = 8  # statements of one kind; the tables have them all


@dataclass(frozen=True)
class Statement:
    """One sentence of the summary."""

    kind: str
    text: str
    rows: tuple[int, ...] = ()  # of the table, that show it


def summary(content: Content, best: list[Best]) -> list[Statement]:
    """Return the summary, in the order in which it is to be read."""
    if content.frame.empty:
        return [Statement(WRONG, "there are no records: nothing was measured, or nothing could be read")]
    parts = (_simulated, _wrong, _compared, _fast, _slow)
    found = [one for part in parts for one in part(content)]
    found += _auto(best)
    return [*_capped(found), *_remedies(content)]


def _capped(statements: list[Statement]) -> Iterator[Statement]:
    for kind in dict.fromkeys(one.kind for one in statements):
        those = [one for one in statements if one.kind == kind]
        yield from those[:MOST]
        if len(those) > MOST:
            yield Statement(kind, f"and {len(those) - MOST} more of this kind, in the tables below")


def _simulated(content: Content) -> Iterator[Statement]:
    if content.frame["simulated"].all():
        yield Statement(WRONG, "all of this is simulated: nothing was measured")


def _wrong(content: Content) -> Iterator[Statement]:
    bad = content.frame[content.frame["status"].isin(list(FAILURES))]
    for (side, status), rows in bad.groupby(["side", "status"], sort=False):
        reasons = rows["reason"].value_counts()
        text = f"{side}: {_rows(len(rows))} ended as {status}"
        if len(reasons) and reasons.index[0]:
            text += f" ({reasons.index[0]})"
        yield Statement(WRONG, text, tuple(rows.index))
    if content.timed.empty:
        yield Statement(WRONG, "no row has a time")
    for one in content.findings:
        if one.finding.level == WITHDRAWN:
            yield Statement(WRONG, f"{one.side}: {one.finding.value} ({one.finding.source})", one.rows)


def _fast(content: Content) -> Iterator[Statement]:
    """What was reached, of each side and collective: the highest rate and the shortest time."""
    for (side, name, n, k), rows in content.timed.groupby(
        ["side", "collective", "nranks", "nnodes"], dropna=False, sort=False
    ):
        where = f"{side}: {name} on {scale(n, k)}"
        rated = rows[rows["busbw"] > 0]
        if len(rated):
            top = rated.loc[rated["busbw"].idxmax()]
            text = f"{where}: up to {top['busbw']:.4g} GB/s busbw at {approximate_size(top['size'])} ({top['label']})"
            if top["bound"] == top["bound"]:
                text += f", {top['algbw'] / top['bound']:.0%} of what the links allow where no switch reduces"
            if top["nic"] == top["nic"]:
                text += f"; each interface carries at least {top['nic']:.4g} GB/s, with one a rank"
            yield Statement(FAST, text, (int(rated["busbw"].idxmax()),))
            devices = content.sides[str(side)].devices
            for known in published(devices, str(name), whole_or_none(n), whole_or_none(k)):
                if top["size"] >= known.size:
                    about = f" ({known.about})" if known.about else ""
                    part = top["busbw"] / known.busbw
                    text = (
                        f"{side}: others published {known.busbw:g} GB/s for this{about}, source {known.source}: "
                        f"here it is {part:.0%} of that"
                    )
                    yield Statement(PUBLISHED, text, (int(rated["busbw"].idxmax()),))
        small = rows[rows["size"] > 0]
        if len(small):
            least = small.loc[small["time_us"].idxmin()]
            text = f"{where}: down to {least['time_us']:.4g} us at {format_size(int(least['size']))} ({least['label']})"
            yield Statement(FAST, text, (int(small["time_us"].idxmin()),))


def _slow(content: Content) -> Iterator[Statement]:
    for one in content.findings:
        if one.finding.level == DOUBT:
            yield Statement(SLOW, f"{one.side}: {one.finding.value} ({one.finding.source})", one.rows)


def _auto(best: list[Best]) -> Iterator[Statement]:
    """Where the library's own choice was not the fastest."""
    for one in best:
        if one.auto is None or one.auto < WORTH or one.worst_size is None:
            continue
        where = f"{one.side}: {one.family['collective']}{f' {one.place} of place' if one.place == 'out' else ''}"
        sure = f"; not told apart from {', '.join(one.unsure[:3])}" if one.unsure else ""
        text = (
            f"{where}: at {one.sizes} {one.label} is fastest{sure}; the library's own choice takes up to "
            f"{one.auto:.2f} times as long, at {format_size(one.worst_size)}, within this data"
        )
        yield Statement(SLOW, text, (one.row,))


def _compared(content: Content) -> Iterator[Statement]:
    letters = {side.name: letter for letter, side in content.sides.items()}
    for found in content.comparisons:
        a, b = letters[found.a.name], letters[found.b.name]
        for text in words(found, a, b, content.margin):
            yield Statement(COMPARED, text)
        for band in found.bands:
            text = f"{band.collective}, {band.limits}, {band.way}: {b} takes {band.ratio:.3g} times as long as {a}"
            yield Statement(COMPARED, f"{text} (geometric mean of {band.cells} matched cells)")
    if content.uncompared:
        yield Statement(COMPARED, f"the sides are not compared: {content.uncompared}")


def _remedies(content: Content) -> Iterator[Statement]:
    """What the findings that matter say is to be done, each once."""
    found: dict[str, list[str]] = {}
    for one in content.findings:
        if one.finding.level in (WITHDRAWN, DOUBT):
            found.setdefault(one.finding.remedy, []).append(one.side)
    for remedy, sides in list(found.items())[:MOST]:
        yield Statement(DO, f"{', '.join(dict.fromkeys(sides))}: {remedy}")
    cut = content.frame[(content.frame["status"] != OK) & content.frame["reason"].astype(str).str.contains("budget")]
    if len(cut):
        yield Statement(DO, f"{_rows(len(cut))} were cut by the budget: --resume goes on with them", tuple(cut.index))


def scale(nranks: Any, nnodes: Any) -> str:
    """Return how many ranks on how many nodes, in words."""
    n, k = whole_or_none(nranks), whole_or_none(nnodes)
    ranks = "an unknown number of ranks" if n is None else f"{n} rank{'s' * (n != 1)}"
    return ranks if k is None else f"{ranks}, {k} node{'s' * (k != 1)}"


def _rows(number: int) -> str:
    return f"{number} row{'s' * (number != 1)}"
