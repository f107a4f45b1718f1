"""What is compared and reported: sides, each one run, a set of equal launches, or logs that others wrote."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from commbench.errors import ResultsError, UsageError
from commbench.results.collect import collect, expanded, read_run
from commbench.results.journal import MANIFEST
from commbench.results.kernels import KERNELS
from commbench.results.launches import run_folders
from commbench.results.reading import UNKNOWN, Reading
from commbench.results.record import Record
from commbench.results.stats import median
from commbench.results.status import OK

V = TypeVar("V")

MODEL = "model"  # the backend that predicts
RANKS, NODES, GPUS = "ranks", "nodes", "gpus"
MOST = 26  # sides: each has a letter
_DIES = re.compile(r"MI250X?\b")  # two devices, of which a rank has one, make one of these GPUs


@dataclass(frozen=True)
class Cell:
    """What two sides must have in common to be compared."""

    collective: str
    scale: str  # in words: 8 ranks on 1 node
    dtype: str
    redop: str | None
    root: int | None
    size: int  # bytes
    inplace: bool
    buffer: str
    group: str  # empty: the whole launch, or its first ranks
    method: str
    algorithm: str
    protocol: str | None


FIELDS = tuple(field.name for field in fields(Cell))

Times = list[float | None]  # us, launch by launch; None where the cell has no time
Key = tuple[str, Cell]  # the vendor, and its cell


@dataclass(frozen=True)
class Shape:
    """What a cell's rates and bounds are computed with."""

    nranks: int | None
    nnodes: int | None
    factor: float | None  # busbw / algbw


class Side:
    """One run, set of equal launches, or logs: of each cell its times, launch by launch, and what was set."""

    def __init__(self, name: str, match: str = RANKS, path: str | Path = "") -> None:
        """`match`: whether equal ranks (on as many nodes), nodes or gpus make two launches of one scale.

        `path`: what was named on the command line, which may hold several sides.
        """
        self.name, self.path, self._match = name, str(path), match
        self.launches = 0
        self.tested = True  # whether its launches may stand for chance: not those of others' logs
        self.readings: list[Reading] = []
        self.times: dict[Key, Times] = {}
        self.shapes: dict[Key, Shape] = {}
        self.algorithms: dict[Key, set[str]] = defaultdict(set)  # observed
        self.without: dict[Key, Counter[tuple[str, str]]] = defaultdict(Counter)  # (status, reason) of cells, no time
        self.settings: dict[str, set[str]] = defaultdict(set)
        self.devices: set[str] = set()  # their names, as far as they are told
        self.simulated: set[bool] = set()
        self.of_model: set[bool] = set()  # whether its records are predictions

    def read(self, reading: Reading) -> None:
        """Add what a run or a log holds, as a launch."""
        self.readings.append(reading)
        devices = [device for table in reading.tables for device in table.beside.get("devices") or ()]
        self.add((record for record, _ in reading.located()), reading.manifest, _names(devices))

    def add(
        self, records: Iterable[Record], manifest: Mapping[str, Any] | None = None, devices: Sequence[str] = ()
    ) -> None:
        """Add a launch; one without a manifest was not made here, and nothing is called real of it.

        `devices`: their names, where no manifest tells them.
        """
        self.launches += 1
        self.tested &= manifest is not None
        try:
            devices = _names((manifest or {}).get("library", {}).get("devices") or []) or devices
            settings = [*_settings(manifest or {}), *(_cpus(manifest) or _counted(devices))]
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ResultsError(f"a manifest of {self.name} is not one of commbench ({error!r})") from None
        self.devices |= set(devices)
        found: dict[Key, list[Record]] = defaultdict(list)
        ranks = int((manifest or {}).get("plan", {}).get("facts", {}).get("size") or 1)
        for record in records:
            found[vendor(record), self._cell(record, devices, ranks)].append(record)
            self.simulated.add(record.simulated)
            self.of_model.add(record.backend == MODEL)
            settings += _settings_of(record)
        for name, text in settings:
            self.settings[name].add(text)
        for key, those in found.items():
            self._count(key, those)

    def _count(self, key: Key, those: Sequence[Record]) -> None:
        """Add one launch's records of a cell."""
        scales = sorted({(one.nranks or 0, one.nnodes or 0) for one in those})
        if len(scales) > 1:
            texts = " and ".join(_scale_text(*one) for one in scales)
            raise ResultsError(
                f"--match {self._match} compares one number of ranks a side, and {self.name} has {texts}: "
                "--match ranks keeps them apart"
            )
        self.shapes[key] = Shape(those[0].nranks, those[0].nnodes, those[0].busbw_factor)
        timed = [one.time_us for one in those if one.status == OK and one.time_us]
        # The launch's place is that among the launches that have the cell, so that runs of other doors, or with
        # other options, in the same folder do not stand beside it as launches without it.
        self.times.setdefault(key, []).append(median(timed) if timed else None)
        self.algorithms[key] |= {one.observed_algorithm for one in those if one.observed_algorithm}
        self.without[key].update((one.status, one.reason) for one in those if one.status != OK)

    def _cell(self, record: Record, devices: Sequence[str], ranks: int) -> Cell:
        values: dict[str, Any] = {name: getattr(record, name) for name in FIELDS if name != "scale"}
        if record.group == "all" or record.group.startswith("first "):
            values["group"] = ""
        return Cell(scale=self._scale(record, devices, ranks), **values)

    def _scale(self, record: Record, devices: Sequence[str], ranks: int) -> str:
        if record.collective == KERNELS:  # each rank has its own, or a part of a CPU; the launch has so many
            return at_once(ranks)
        if self._match == NODES:
            return _number(record.nnodes, "node")
        if self._match == RANKS:
            return _scale_text(record.nranks, record.nnodes)
        if not devices or record.nranks is None:
            raise ResultsError(
                f"--match {GPUS} needs each rank's device, and {self.name} does not tell: --match {RANKS} or {NODES}"
            )
        dies = 2 if all(_DIES.search(name) for name in devices) else 1
        return _number(math.ceil(record.nranks / dies), "GPU")

    @property
    def predicted(self) -> bool:
        """Whether all of it is the model's."""
        return self.of_model == {True}

    def timed_by(self, methods: Iterable[str]) -> Side:
        """Return predictions as what each of these methods of timing would give: the model has none of its own."""
        other = copy(self)

        def keyed(found: Mapping[Key, V]) -> dict[Key, V]:
            every = sorted(methods)
            return {(name, replace(cell, method=one)): of for (name, cell), of in found.items() for one in every}

        other.times, other.shapes = keyed(self.times), keyed(self.shapes)
        other.algorithms, other.without = keyed(self.algorithms), keyed(self.without)
        return other

    @property
    def vendors(self) -> list[str]:
        return sorted({name for name, _ in self.timed})

    @property
    def timed(self) -> dict[Key, Times]:
        """The cells that have a time in some launch."""
        return {key: times for key, times in self.times.items() if any(times)}


def letters(number: int) -> list[str]:
    """Return a letter for each of so many sides."""
    return [chr(ord("A") + i) for i in range(number)]


def vendor(record: Record) -> str:
    """Return whose algorithms a record's are: the library without its version, the backend where it is not known.

    A kernel is the same pattern whatever runs it.
    """
    if record.collective == KERNELS:
        return KERNELS
    name = re.split(r"\s+v?\d", record.library)[0].strip()
    return name if name not in ("", UNKNOWN) else record.backend


def _names(devices: Iterable[Mapping[str, Any]]) -> list[str]:
    return [str(device["name"]) for device in devices if device.get("name")]


def _counted(names: Sequence[str]) -> list[tuple[str, str]]:
    text = ", ".join(f"{number} x {name}" for name, number in sorted(Counter(names).items()))
    return [("devices", text)] if text else []


def _cpus(manifest: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return the CPUs of a run of kernels on them, each once however many ranks share it, and a rank's threads."""
    if manifest is None or manifest["plan"].get("device") != "cpu":
        return []
    devices = manifest["library"]["devices"]
    hosts = [group["hosts"] for group in manifest["plan"]["facts"]["groups"].values()]
    once = dict(zip(hosts, _names(devices), strict=True))
    threads = sorted({str(device["identity"]).partition(" thread")[0] for device in devices})
    return [*_counted(list(once.values())), ("threads a rank", ", ".join(threads))]


def at_once(devices: int) -> str:
    """Say how many devices worked at once: those of a node share its memory where they are parts of a CPU."""
    return "1 device" if devices == 1 else f"{devices} devices at once"


def _scale_text(ranks: int | None, nodes: int | None) -> str:
    return f"{_number(ranks, 'rank')} on {_number(nodes, 'node')}"


def _number(number: int | None, what: str) -> str:
    return f"{'?' if number is None else number} {what}{'s' * (number != 1)}"  # a log need not tell


def _settings_of(record: Record) -> list[tuple[str, str]]:
    """Return what a record itself tells of the settings."""
    found = {"backend": record.backend, "library": record.library, "loop": record.loop}
    if record.group == "all":
        found |= {"ranks": _known(record.nranks), "nodes": _known(record.nnodes)}
    return [(name, text) for name, text in found.items() if text and text != UNKNOWN]


def _known(number: int | None) -> str:
    return "" if number is None else str(number)


def _settings(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the settings that a manifest holds, by dotted names, each as text."""
    library = dict(manifest.get("library", {}))
    for name in ("devices", "library"):  # said apart; in the records too
        library.pop(name, None)
    machine = {name: value for name, value in manifest.get("machine", {}).items() if name != "executable"}
    effort = {name: value for name, value in manifest.get("plan", {}).get("effort", {}).items() if name != "seed"}
    found = _flat("machine", machine) + _flat("library", library) + _flat("effort", effort)
    for session in manifest.get("sessions", []):
        found += _flat("environment", session.get("environment", {}))
        site = session.get("site", {})
        found += [(f"site.{name}", str(site[name])) for name in ("cores", "crowded") if name in site]
    return found


def _flat(name: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [one for key, below in value.items() for one in _flat(f"{name}.{key}", below)]
    return [(name, value if isinstance(value, str) else json.dumps(value))]


def read_sides(path: str | Path, match: str = RANKS) -> list[Side]:
    """Return the sides that a path names.

    In a folder with runs each set of launches is one, and so are all runs that are of none (in the folder of a set they
    are left out); other files in it are left alone. Of a folder of logs, or a pattern, the logs of one system (its
    devices and library, as far as they tell) are one side, each log a launch of it.
    """
    places = expanded(path)
    if all(place.is_dir() and any(place.rglob(MANIFEST)) for place in places):
        sets: dict[str, dict[Path, Path]] = {}
        for place in places:
            for name, runs in run_folders(place).items():
                sets.setdefault(name, {}).update((folder.resolve(), folder) for _, folder in runs)
        if len(sets) > 1 and len(places) > 1:
            raise ResultsError(f"{path} reaches the sets {' and '.join(sets)}, which are sides of their own: name one")
        names = [f"{path} ({name})" if len(sets) > 1 else str(path) for name in sets]
        readings = [[read_run(folder) for folder in folders.values()] for folders in sets.values()]
    else:
        kinds: dict[str, list[Reading]] = {}
        for reading in collect([path]):
            kinds.setdefault(_system(reading), []).append(reading)
        names = [f"{path} ({kind})" if len(kinds) > 1 else str(path) for kind in kinds]
        readings = list(kinds.values())
    sides = []
    for name, those in zip(names, readings, strict=True):
        side = Side(name, match, path)
        for reading in those:
            side.read(reading)
        sides.append(side)
    return sides


def _system(reading: Reading) -> str:
    """Return what a log was measured on, in words: its devices, else its library."""
    devices = sorted({name for table in reading.tables for name in _names(table.beside.get("devices") or ())})
    libraries = sorted({vendor(table.record(table.rows[0])) for table in reading.tables if table.rows})
    return ", ".join(devices or libraries) or "no rows"


def read_all(paths: Sequence[str | Path], match: str = RANKS) -> list[Side]:
    """Return the sides of several paths; raise UsageError for what stands on two of them, or for too many."""
    sides = [side for path in paths for side in read_sides(path, match)]
    if len(sides) > MOST:
        raise UsageError(f"at most {MOST} sides stand side by side, not {len(sides)}")
    seen: dict[Path, Side] = {}
    for side in sides:
        for reading in side.readings:
            other = seen.setdefault(Path(reading.source).resolve(), side)
            if other is not side and other.name == side.name:
                raise UsageError(f"each side is another one, and {side.name} is named twice")
            if other is not side:
                raise UsageError(
                    f"each side is another one, and {reading.source} is in {other.name} and in {side.name}"
                )
    return sides


def set_apart(sides: Sequence[Side]) -> tuple[list[Side], list[Side]]:
    """Return the sides to compare, and those that are but logs without a row in a path that has others with rows."""
    filled = {side.path for side in sides if side.times}
    logs = [side for side in sides if all(reading.manifest is None for reading in side.readings)]
    empty = [side for side in logs if not side.times and side.path in filled]
    return [side for side in sides if side not in empty], empty
