"""What a report says, before its form: sides, one table of all their records, findings and comparisons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from commbench.errors import ResultsError
from commbench.report.bounds import Links, algbw_bound, nic_rate
from commbench.report.compare import MARGIN, Comparison, compare
from commbench.report.sides import Side
from commbench.results.findings import LEVELS, NOTE, Finding, finding
from commbench.results.frame import frame_of
from commbench.results.kernels import KERNELS, device_names, read
from commbench.results.reading import Reading
from commbench.results.status import OK

Frame: TypeAlias = Any  # a pandas.DataFrame: with its stubs every label would need a cast

# Rows that differ in size, algorithm, protocol and place alone make one family, and stand in one picture.
FAMILY = ("collective", "nranks", "nnodes", "dtype", "redop", "root", "buffer", "group", "method")

PLACES = {"in": "in place", "out": "out of place", "": "place unknown"}


@dataclass(frozen=True)
class Located:
    """A finding, the side that it is of, and the rows of the table that it is about."""

    side: str
    finding: Finding
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Content:
    """Everything that a report says."""

    sides: Mapping[str, Side]  # by letter
    links: Mapping[str, Links]  # by letter
    frame: Frame  # a row a record: the columns of commbench.load, and those of `_frame`
    findings: Sequence[Located]
    comparisons: Sequence[Comparison]
    uncompared: Sequence[str]  # why a side is not compared with the first one
    margin: float

    def letter(self, side: Side) -> str:
        """Return the letter of a side."""
        return next(letter for letter, one in self.sides.items() if one is side)

    @property
    def timed(self) -> Frame:
        """The rows that are right and have a time."""
        return self.frame[(self.frame["status"] == OK) & (self.frame["time_us"] > 0)]

    @property
    def rated(self) -> Frame:
        """The rows that are right and have a rate; some logs state rates alone."""
        right = self.frame[self.frame["status"] == OK]
        return right[(right["busbw"] > 0) | (right["algbw"] > 0)]

    @property
    def kernels(self) -> Frame:
        """The rows of kernels, with the columns of `commbench.results.kernels.Result.beside`, `device` and `slow`."""
        return self.frame[self.frame["collective"] == KERNELS]

    def families(self) -> Iterator[tuple[str, dict[str, Any], Frame]]:
        """Yield the rows with a time and a size, family by family: the side, what they share, and they.

        Rows of kernels are of no family: among them the size tells one kernel from another.
        """
        timed = self.timed[(self.timed["size"] > 0) & (self.timed["collective"] != KERNELS)]
        for (side, *values), rows in timed.groupby(["side", *FAMILY], dropna=False, sort=False):
            yield side, dict(zip(FAMILY, values, strict=True)), rows


def assemble(sides: Mapping[str, Side], links: Mapping[str, Links], margin: float = MARGIN) -> Content:
    """Return the content of a report on these sides, by letter.

    Raises ResultsError where simulated results stand beside measured ones. Sides that have no cell in common are
    reported side by side.
    """
    if len(set().union(*(side.simulated for side in sides.values()))) > 1:
        names = ", ".join(letter for letter, side in sides.items() if True in side.simulated)
        raise ResultsError(f"simulated results do not stand beside measured ones, and side {names} has simulated ones")
    frame = _frame(sides, links)
    comparisons, uncompared = _compared(sides, links, margin)
    return Content(sides, links, frame, _findings(sides, links, frame), comparisons, uncompared, margin)


def _frame(sides: Mapping[str, Side], links: Mapping[str, Links]) -> Frame:
    """Return all records: the columns of `load`, and `side`, `label`, `place`, `bound` and `nic` (GB/s).

    `label` is the algorithm, with its protocol; `bound` is the highest algbw that the links allow where no switch
    reduces; `nic` is what the network interfaces of a node carried at least, on average, with one a rank.
    """
    import pandas

    parts = []
    for letter, side in sides.items():
        part = _with_kernels(frame_of(side.readings), side.readings)
        part.insert(0, "side", letter)
        parts.append(part)
    whole = pandas.concat([part for part in parts if len(part)] or parts, ignore_index=True)
    labels = [_label(*one) for one in zip(whole["algorithm"], whole["protocol"], strict=True)]
    places = [{True: "in", False: "out"}.get(value, "") for value in whole["inplace"]]
    shapes = list(zip(whole["collective"], whole["nranks"], whole["nnodes"], strict=True))
    bounds = [
        algbw_bound(name, whole_or_none(n), whole_or_none(k), links.get(letter, Links()))
        for (name, n, k), letter in zip(shapes, whole["side"], strict=True)
    ]
    nics = [
        nic_rate(name, whole_or_none(n), whole_or_none(k), None if rate != rate else rate)
        for (name, n, k), rate in zip(shapes, whole["algbw"].astype(float), strict=True)
    ]
    numbers = {"bound": pandas.Series(bounds, dtype=float), "nic": pandas.Series(nics, dtype=float)}
    return whole.assign(label=labels, place=places, **numbers)


def _with_kernels(frame: Frame, readings: Sequence[Reading]) -> Frame:
    """Return the records with the columns that runs of kernels have beside, where there is such a run."""
    import pandas

    rows: list[dict[str, Any]] = []
    for reading in readings:
        if reading.manifest is None or reading.manifest["plan"]["facts"].get("collective") != KERNELS:
            rows += [{}] * len(reading)
            continue
        names = device_names(reading.manifest["library"]["devices"])
        rows += [{**one.beside, "device": names[one.rank], "slow": one.slow} for one in read(Path(reading.source))]
    if not any(rows):
        return frame
    beside = pandas.DataFrame(rows, index=frame.index)
    numbers = [name for name in beside.columns if name.startswith(("predicted_", "of_"))]
    return frame.join(beside.astype(dict.fromkeys(numbers, float)))  # a column of nothing but None too


def scale(nranks: Any, nnodes: Any) -> str:
    """Return how many ranks on how many nodes, in words."""
    n, k = whole_or_none(nranks), whole_or_none(nnodes)
    ranks = "an unknown number of ranks" if n is None else f"{n} rank{'s' * (n != 1)}"
    return ranks if k is None else f"{ranks}, {k} node{'s' * (k != 1)}"


def title(family: dict[str, Any]) -> str:
    """Return what the rows of a family share, in words."""
    about = [family["dtype"], family["redop"], family["buffer"], family["method"], family["group"]]
    words = [str(one) for one in about if one == one and one not in (None, "unknown", "all")]
    return f"{family['collective']}, {scale(family['nranks'], family['nnodes'])} ({', '.join(words)})"


def whole_or_none(value: Any) -> int | None:
    """Return a number of a column that may lack some as a whole one, or None."""
    return None if value is None or value != value else int(value)


def _label(algorithm: str, protocol: Any) -> str:
    return f"{algorithm}/{protocol}" if isinstance(protocol, str) else algorithm


def _findings(sides: Mapping[str, Side], links: Mapping[str, Links], frame: Frame) -> list[Located]:
    """Return the findings of all sides, the gravest first, each with its rows of the table."""
    places: dict[tuple[str, int], list[int]] = {}
    at = 0
    for side in sides.values():
        for reading in side.readings:
            for table in reading.tables:
                for row in table.rows:
                    places.setdefault((reading.source, row.line), []).append(at)
                    at += 1
    found = [
        Located(letter, one, tuple(row for line in one.lines for row in places.get((one.source, line), ())))
        for letter, side in sides.items()
        for reading in side.readings
        for one in reading.findings
    ]
    found += _above_bounds(links, frame)
    return sorted(found, key=lambda one: LEVELS.index(one.finding.level))


def _above_bounds(links: Mapping[str, Links], frame: Frame) -> Iterator[Located]:
    """Explain rates above what the links that were given carry."""
    over = frame[(frame["algbw"] > frame["bound"]) & (frame["status"] == OK)]
    for letter, rows in over.groupby("side"):
        most = rows.loc[(rows["algbw"] / rows["bound"]).idxmax()]
        value = (
            f"algbw is up to {most['algbw']:.2f} GB/s, and the links allow {most['bound']:.2f} where no switch "
            "reduces: either one does (NVLS, SHARP), or the given rate is not theirs"
        )
        one = finding("above bound", NOTE, str(most["source"]), (), value, "see which algorithm ran")
        yield Located(str(letter), one, tuple(rows.index))
    several = frame[(frame["nnodes"] > 1) & (frame["status"] == OK)]
    for letter, rows in several.groupby("side"):
        nic = links.get(str(letter), Links()).nic
        if nic is None:
            continue
        above = rows[
            (rows["nic"] > 0)
            & (rows["busbw"] > nic * rows["nranks"] / rows["nnodes"])
            & ~(rows["algbw"] > rows["bound"])
        ]
        if len(above):
            most = above.loc[above["busbw"].idxmax()]
            value = (
                f"busbw is up to {most['busbw']:.2f} GB/s, above the {nic * most['nranks'] / most['nnodes']:g} of a "
                f"node's interfaces, and legal: busbw is no wire speed; they carry {most['nic']:.2f} each on average"
            )
            one = finding("above NICs", NOTE, str(most["source"]), (), value, "none: compare times or algbw")
            yield Located(str(letter), one, tuple(above.index))


def _compared(
    sides: Mapping[str, Side], links: Mapping[str, Links], margin: float
) -> tuple[list[Comparison], list[str]]:
    """Compare each later side with the first one, as far as that can be done."""
    by_name = {side.name: links.get(letter, Links()) for letter, side in sides.items()}
    (first, a), *later = sides.items()
    found, apart = [], []
    for letter, side in later:
        try:
            found += compare([a, side], margin, by_name, of=len(later))
        except ResultsError as error:
            apart.append(f"{letter} is not compared with {first}: {error}")
    return found, apart
