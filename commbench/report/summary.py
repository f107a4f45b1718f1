"""The outcome in words: what is fast, what is slow, what is wrong, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from commbench.report.best import WORTH, Best
from commbench.report.compare_screen import leads, words
from commbench.report.content import PLACES, Content, Located, scale, title, whole_or_none
from commbench.report.kernels import explained, launched, lost, reached
from commbench.report.published import published
from commbench.results.findings import DOUBT, WITHDRAWN
from commbench.results.kernels import KERNELS
from commbench.results.status import FAILURES, OK
from commbench.units import approximate_size, format_size

WRONG, COMPARED, BEST, PUBLISHED, SLOW, DOUBTED, DO = "wrong", "compared", "best", "published", "slow", "doubt", "do"
APART = "not compared"
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
    parts = (_simulated, _wrong, _compared, _best, _kernels, _doubted)
    found = [one for part in parts for one in part(content)]
    found += _auto(best)
    return [*_capped(found), *_to_do(content, best)]


def _capped(statements: list[Statement]) -> Iterator[Statement]:
    for kind in dict.fromkeys(one.kind for one in statements):
        those = [one for one in statements if one.kind == kind]
        if kind == COMPARED:  # few for each comparison, and none may hide another one
            yield from those
            continue
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
    if content.timed.empty and content.rated.empty:
        yield Statement(WRONG, "no row has a time or a rate")
    for one in content.findings:
        if one.finding.level == WITHDRAWN:
            found = one.finding
            yield Statement(WRONG, f"{one.side}: {found.value} ({_short(found.source)}): {found.remedy}", one.rows)


def _best(content: Content) -> Iterator[Statement]:
    """What was reached, of each side and collective: the highest rate and the shortest time."""
    groups = ["side", "collective", "nranks", "nnodes"]
    rated = content.rated[content.rated["collective"] != KERNELS]
    for (side, name, n, k), rows in rated.groupby(groups, dropna=False, sort=False):
        where = f"{side}: {name} on {scale(n, k)}"
        column = "busbw" if (rows["busbw"] > 0).any() else "algbw"
        row = int(rows[column].idxmax())
        top = rows.loc[row]
        text = f"{where}: up to {top[column]:.4g} GB/s {column} at {approximate_size(top['size'])} ({top['label']})"
        if top["bound"] == top["bound"]:
            text += f", {top['algbw'] / top['bound']:.0%} of what the links allow where no switch reduces"
        if top["nic"] == top["nic"]:
            nic = content.links[str(side)].nic
            if nic is not None and name in ("allreduce", "allgather", "reducescatter"):
                rings = nic * n / k  # each ring leaves a node once
                text += (
                    f" and {top['busbw'] / rings:.0%} of what rings over all interfaces reach ({rings:g} GB/s busbw)"
                )
            text += f"; a node's interfaces carry at least {top['nic']:.4g} GB/s each on average, with one a rank"
        yield Statement(BEST, text, (row,))
        if column == "busbw":
            devices = content.sides[str(side)].devices
            for known in published(devices, str(name), whole_or_none(n), whole_or_none(k)):
                if top["size"] >= known.least_size:
                    text = f"{side}: {known}; here it is {top['busbw'] / known.busbw:.0%} of that, at "
                    yield Statement(PUBLISHED, f"{text}{approximate_size(top['size'])} ({top['label']})", (row,))
        small = rows[(rows["size"] > 0) & (rows["time_us"] > 0)]
        if len(small):
            least = small.loc[small["time_us"].idxmin()]
            text = f"{where}: down to {least['time_us']:.4g} us at {approximate_size(least['size'])} ({least['label']})"
            yield Statement(BEST, text, (int(small["time_us"].idxmin()),))


def _kernels(content: Content) -> Iterator[Statement]:
    """What each kernel reached, which devices are slow, and what traffic does not explain."""
    for text, rows in reached(content):
        yield Statement(BEST, text, rows)
    for text, rows in explained(content):
        yield Statement(BEST, text, rows)
    for text, rows in lost(content):
        yield Statement(SLOW, text, rows)
    for text, rows in launched(content):
        yield Statement(DOUBTED, text, rows)


def _doubted(content: Content) -> Iterator[Statement]:
    """What makes numbers doubtful, once for each rule: launches repeat it."""
    rules: dict[tuple[str, str], list[Located]] = {}
    for one in content.findings:
        if one.finding.level == DOUBT:
            rules.setdefault((one.side, one.finding.rule), []).append(one)
    for (side, rule), those in rules.items():
        found = those[0].finding
        more = f"; {len(those) - 1} more of the rule '{rule}' below" if len(those) > 1 else ""
        text = f"{side}: {found.value} ({_short(found.source)}{more}): {found.remedy}"
        yield Statement(DOUBTED, text, those[0].rows)


def _auto(best: list[Best]) -> Iterator[Statement]:
    """Where the library's own choice was not the fastest."""
    for one in best:
        if one.auto is None or one.auto.ratio < WORTH:
            continue
        unsure = "; whether that is more than noise is not known" if one.auto.unsure else ""
        text = (
            f"{one.side}: {title(one.family)}, {PLACES[one.place]}: at {format_size(one.auto.size)} the library's own "
            f"choice takes {one.auto.ratio:.2f} times as long as {one.label}, the fastest at {one.range}{unsure}"
        )
        yield Statement(SLOW, text, (one.auto.row,))


def _compared(content: Content) -> Iterator[Statement]:
    for found in content.comparisons:
        a, b = content.letter(found.a), content.letter(found.b)
        for band in found.bands:
            text = (
                f"{band.collective}, {band.scale}, {band.dtype}, {band.limits}, {band.way}: {b} takes {band.ratio:.3g}"
            )
            yield Statement(COMPARED, f"{text} times as long as {a} (geometric mean of {band.cells} matched cells)")
        for text in leads(found, a, b, content.margin):
            yield Statement(COMPARED, text)
        for text in words(found, a, b, content.margin) if any(row.p is not None for row in found.rows) else ():
            yield Statement(COMPARED, text)
        if found.unmatched:
            yield Statement(COMPARED, f"{len(found.unmatched)} cells of {a} or {b} have no counterpart in the other")
    if any(row.p is None for found in content.comparisons for row in found.rows):
        why = "a test takes five launches of each side that commbench made itself"
        yield Statement(COMPARED, f"whether ratios are more than noise is not known where there was no test: {why}")
    for text in content.uncompared:
        yield Statement(APART, text)


def _to_do(content: Content, best: list[Best]) -> Iterator[Statement]:
    """What the data call for, beside the remedies of single findings."""
    cut = content.frame[(content.frame["status"] != OK) & content.frame["reason"].astype(str).str.contains("budget")]
    if len(cut):
        yield Statement(DO, f"{_rows(len(cut))} were cut by the budget: --resume goes on with them", tuple(cut.index))
    sure = [one for one in best if one.auto is not None and one.auto.ratio >= WORTH and not one.auto.unsure]
    if sure:
        where = "; ".join(f"{one.side} {one.family['collective']} {one.label} at {one.range}" for one in sure[:MOST])
        yield Statement(DO, f"try by name what beat the library's own choice beyond its interval: {where}")
    if any(row.p is None for found in content.comparisons for row in found.rows):
        yield Statement(DO, "to tell differences from noise, make five launches a side with commbench.repeat")


def _short(source: str) -> str:
    return "/".join(source.split("/")[-2:])


def _rows(number: int) -> str:
    return f"{number} row{'s' * (number != 1)}"
