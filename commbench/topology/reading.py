"""Anybody's description of a cluster, or of one node, as a Cluster: what a file is, is told by what is in it.

    reading = read("topology.conf")
    reading.cluster
    for finding in reading.findings: ...

A format is one file of `commbench/topology/readers/`: TITLE, recognise(text) and read(text, source). A file that cannot
be understood raises TopologyError with its line; what is odd and can be lived with is a finding.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast

from commbench.errors import UsageError
from commbench.results.findings import Finding
from commbench.topology.cluster import Cluster

LARGEST_FILE = 1 << 28  # bytes


MOST_FAULTS = 20  # of a file, that are told one by one


class TopologyError(UsageError):
    """A description that cannot be used: the file and line, the rule, the value, the remedy.

    `faults` are the lines to say where a file has several; the text is the first of them.
    """

    def __init__(self, source: str, line: int | None, text: str, more: Sequence[TopologyError] = ()) -> None:
        said = f"{source}{f':{line}' if line else ''}: {text}"
        rest = f" (beside {len(more)} more: `commbench topology check` lists them)" if more else ""
        super().__init__(said + rest)
        self.line, self.text = line, text
        left = len(more) - MOST_FAULTS + 1
        self.faults = (said, *map(str, more[: MOST_FAULTS - 1]), *([f"{source}: {left} more"] if left > 0 else ()))


class Faults:
    """What is wrong with a file, gathered so that all of it is told at once."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.found: list[TopologyError] = []

    def add(self, line: int | None, text: str) -> None:
        """Remember a fault."""
        self.found.append(TopologyError(self.source, line, text))

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Remember what a body raises, and leave the body."""
        try:
            yield
        except TopologyError as error:
            self.found.append(error)

    def check(self) -> None:
        """Raise a TopologyError if there are any, the first in the file first."""
        if self.found:
            first, *more = sorted(self.found, key=lambda one: one.line or 0)
            raise TopologyError(self.source, first.line, first.text, more)


@dataclass(frozen=True)
class Reading:
    """What a file says: one cluster, or several by name, the default first."""

    clusters: tuple[Cluster, ...]
    findings: tuple[Finding, ...] = ()
    format: str = ""
    source: str = ""

    @property
    def cluster(self) -> Cluster:
        """The cluster that the file takes as the default."""
        return self.clusters[0]


class Reader(Protocol):
    """A format, which is a module."""

    TITLE: str  # "Slurm topology.conf"

    def recognise(self, text: str) -> float:
        """Return how surely `text` has this format: 0 to 1."""

    def read(self, text: str, source: str) -> Reading:
        """Return what `text` says; raise TopologyError where it says nothing that can be used."""


@cache
def readers() -> dict[str, Reader]:
    """Return the formats by the names of their files."""
    from commbench.topology import readers as folder

    names = sorted(found.name for found in pkgutil.iter_modules(folder.__path__) if not found.name.startswith("_"))
    modules: dict[str, Reader] = {}
    for name in names:
        modules[name] = cast(Reader, importlib.import_module(f"{folder.__name__}.{name}"))
    return modules


def read(path: str | Path, nodes: Collection[str] | None = None) -> Reading:
    """Return what the file at `path` says of a cluster; raise TopologyError where no format of ours is in it.

    `nodes` are those that there are, to hold Slurm's topology.conf against; other formats are refused with them.
    """
    return read_text(text_of(Path(path)), str(path), nodes)


def read_text(text: str, source: str, nodes: Collection[str] | None = None) -> Reading:
    """Return what `text` says; `source` is what errors call it."""
    sure, name = max((reader.recognise(text), name) for name, reader in readers().items())
    if sure <= 0:
        known = "; ".join(reader.TITLE for reader in readers().values())
        raise TopologyError(source, None, f"no description of a cluster that is known here: {known}")
    reader: Any = readers()[name]
    if nodes is None:
        found = reader.read(text, source)
    elif "nodes" in inspect.signature(reader.read).parameters:
        found = reader.read(text, source, nodes)
    else:
        raise TopologyError(source, None, f"it is no topology.conf of Slurm ({reader.TITLE}): leave slurm.conf out")
    return Reading(found.clusters, found.findings, name, source)


def text_of(path: Path) -> str:
    """Return the text of a description; raise TopologyError where it is too large, or cannot be read."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise TopologyError(str(path), None, f"a description has at most {LARGEST_FILE >> 20} MiB")
        return path.read_bytes().decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise TopologyError(str(path), None, f"cannot be read ({error.strerror})") from None
