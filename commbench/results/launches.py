"""Sets of equal launches, read back from their folders: each a run folder, with a file that says which it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from commbench.errors import ResultsError
from commbench.results.journal import MANIFEST, read_manifest, read_visits
from commbench.results.launch import LAUNCH, SET, read_launch
from commbench.results.record import Record, fold
from commbench.results.spread import Comparison, Round, by_turns, compare, components, two_peaks
from commbench.results.stats import median, median_interval
from commbench.results.status import OK

# What makes a cell, and of that what two commands may differ in as a whole.
KEY = (
    *("collective", "backend", "library", "algorithm", "protocol", "dtype", "redop", "root", "size", "inplace"),
    *("buffer", "group", "nranks", "nnodes", "method", "loop", "simulated"),
)
MAY_DIFFER = (
    *("backend", "library", "algorithm", "protocol", "dtype", "redop", "root", "inplace", "buffer"),
    *("group", "nranks", "nnodes"),
)


def read_cells(run_folder: Path) -> list[tuple[Record, list[Round]]]:
    """Return the records of a run, each with its visits that were timed: none of the model's."""
    plan = read_manifest(run_folder)["plan"]
    visits: list[list[dict[str, Any]]] = [[] for _ in plan["cells"]]
    for visit in read_visits(run_folder, len(visits)):
        visits[visit["cell"]].append(visit)
    return [
        (
            fold(plan["facts"], cell, those),
            [
                Round(v["median_us"], v["iterations"], v["samples_us"])
                for v in those
                if v["status"] == OK and "median_us" in v
            ],
        )
        for cell, those in zip(plan["cells"], visits, strict=True)
    ]


Key = tuple[Any, ...]


class Launches:
    """One set of launches, read back: of each cell, launch by launch, its time and its rounds."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name, self.command = name, command
        self.launches: list[dict[Key, tuple[float, list[Round]]]] = []
        self.without: Counter[tuple[str, str]] = Counter()  # (status, reason) of cells without a time

    def add(self, run_folder: Path) -> None:
        """Read another launch."""
        found = {}
        for record, rounds in read_cells(run_folder):
            if record.status == OK and record.time_us:
                found[tuple(getattr(record, name) for name in KEY)] = (record.time_us, rounds)
            else:
                self.without[record.status, record.reason] += 1
        self.launches.append(found)

    @property
    def keys(self) -> list[Key]:
        """The cells that have a time in some launch, in their order."""
        return list(dict.fromkeys(key for launch in self.launches for key in launch))

    def times(self, key: Key) -> list[float | None]:
        """Return a cell's time in each launch, None where it has none."""
        return [launch[key][0] if key in launch else None for launch in self.launches]

    def cell(self, key: Key) -> dict[str, Any]:
        """Return the summary of a cell."""
        times = [time_us for time_us in self.times(key) if time_us is not None]
        rounds = [launch[key][1] for launch in self.launches if key in launch]
        low, high = median_interval(times) or (None, None)
        spread, peaks = components(rounds), two_peaks(rounds)
        return {
            **dict(zip(KEY, key, strict=True)),
            "launches": len(times),
            "time_us": round(median(times), 4),
            "time_us_low": low,
            "time_us_high": high,
            "times_us": self.times(key),
            "spread": asdict(spread),  # what each level adds, relative
            "share": dict(zip(asdict(spread), spread.shares, strict=True)) if spread.shares else None,
            "peaks": asdict(peaks) if peaks else None,
        }

    def halves(self, margin: float) -> dict[str, list[Comparison]]:
        """Compare the launches with themselves, halved in two ways."""
        middle = len(self.launches) // 2
        times = [self.times(key) for key in self.keys]
        return {
            "by turns": compare([by_turns(one) for one in times], margin),
            "first against last": compare([(one[:middle], one[middle:]) for one in times], margin),
        }


def read_sets(folder: Path) -> list[Launches]:
    """Return the sets of launches in a folder; runs that were not begun here are one set, in the order of names."""
    sets: dict[str, Launches] = {}
    for name, runs in run_folders(folder).items():
        sets[name] = Launches(name, runs[0][0].get("command", []))
        for _, run_folder in runs:
            sets[name].add(run_folder)
    for name, one in sets.items():
        if not one.keys:
            raise ResultsError(f"no cell of {name} in {folder} has a time: {reasons(one)}")
    return list(sets.values())


def run_folders(folder: Path) -> dict[str, list[tuple[dict[str, Any], Path]]]:
    """Return the run folders below a folder by their set, each with what is known of its launch, in their order.

    In the folder of a set of `commbench.repeat` those are its own launches alone. Elsewhere runs that it did not begin
    are of set a, in the order of names.
    """
    paths = [path.parent for path in folder.rglob(MANIFEST)]
    if (folder / SET).exists():
        paths = [path for path in paths if path.parent == folder and (path / LAUNCH).exists()]
    found = [(read_launch(path), path) for path in paths]
    sets: dict[str, list[tuple[dict[str, Any], Path]]] = {}
    for about, run_folder in sorted(found, key=lambda one: (one[0].get("launch", 0), str(one[1]))):
        sets.setdefault(about.get("set", "a"), []).append((about, run_folder))
    if not sets:
        raise ResultsError(f"{folder} holds no run: a run folder has a {MANIFEST}")
    return dict(sorted(sets.items()))


def reasons(one: Launches) -> str:
    found = [f"{number} {status}: {reason}" for (status, reason), number in one.without.most_common(3)]
    return "; ".join(found) + ("; ..." if len(one.without) > 3 else "")


@dataclass(frozen=True)
class Versus:
    """Two sets, matched cell by cell."""

    contrast: dict[str, list[Any]]  # what they differ in as a whole: the name of a field, and its two values
    keys: list[Key]  # of the first set
    comparisons: list[Comparison]


def versus(one: Launches, other: Launches, margin: float) -> Versus:
    """Match the cells of two sets, and compare them."""
    ours, theirs = ([dict(zip(KEY, key, strict=True)) for key in side.keys] for side in (one, other))
    differ = contrast(ours, theirs, MAY_DIFFER)
    matched = {_without(key, differ): key for key in other.keys}
    keys = [key for key in one.keys if _without(key, differ) in matched]
    if not keys:
        raise ResultsError(
            f"{one.name} and {other.name} have no cell in common: let both sweep the same sizes by the same method; "
            f"what they differ in ({', '.join(MAY_DIFFER)}) must have one value in each"
        )
    cells = [(one.times(key), other.times(matched[_without(key, differ)])) for key in keys]
    return Versus({name: [ours[0][name], theirs[0][name]] for name in differ}, keys, compare(cells, margin))


def _without(key: Key, names: Sequence[str]) -> Key:
    return tuple(value for name, value in zip(KEY, key, strict=True) if name not in names)


def contrast(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Return those of the names that are one value in all of `a` and another one in all of `b`."""
    found = []
    for name in names:
        ours, theirs = {key[name] for key in a}, {key[name] for key in b}
        if len(ours) == len(theirs) == 1 and ours != theirs:
            found.append(name)
    return found
