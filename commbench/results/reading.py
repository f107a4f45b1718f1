"""Anybody's logs as records: which format a file has is told by what is in it, never by its name.

    reading = read("all_reduce.log")
    for record, line in reading.located(): ...
    for finding in reading.findings: ...

A format is one file of `commbench/results/readers/` ([adding.md]): NAME, recognise(head) and read(lines, source).
A log never makes a reader raise: what is not understood is a finding with its lines.
"""

from __future__ import annotations

import gzip
import importlib
import pkgutil
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from commbench.errors import ResultsError
from commbench.results import findings
from commbench.results.findings import Finding, finding
from commbench.results.record import FORMAT, Record
from commbench.results.status import FAILED, OK, WRONG
from commbench.units import LARGEST

UNKNOWN = "unknown"
HEAD = 20_000  # lines that a format is told by: libraries write thousands before the first row
_LONGEST_LINE = 1 << 26  # bytes: what has longer ones is no text, and would fill the memory
LEAST = 0.1  # of what `recognise` returns, for a format to be tried

# What no foreign log says, or what those that do put in place of it.
NOT_SAID: dict[str, Any] = {
    **dict.fromkeys(Record.__dataclass_fields__),
    **dict.fromkeys(("collective", "backend", "library", "buffer", "dtype", "hosts", "ranks", "method"), UNKNOWN),
    **{"algorithm": "auto", "evidence": "", "status": OK, "reason": "", "group": "all"},
    **{"launch": 0, "simulated": False, "version": FORMAT},
}


class Row(NamedTuple):
    """What differs from row to row of one table: small, since a log may hold millions."""

    line: int
    size: int
    count: int | None  # type: ignore[assignment] # not the method of tuples
    dtype: str
    redop: str | None
    root: int | None
    inplace: bool | None
    time_us: float | None
    algbw: float | None
    busbw: float | None
    wrong: int | None
    status: str = OK
    reason: str = ""
    more: Mapping[str, Any] | None = None  # other fields of a record, and what a format has beside them

    def withdrawn(self, status: str, reason: str) -> Row:
        """Return the row without its numbers."""
        more = {name: value for name, value in (self.more or {}).items() if not name.startswith("time_us")}
        return self._replace(time_us=None, algbw=None, busbw=None, status=status, reason=reason, more=more or None)


_FIELDS = frozenset(Record.__dataclass_fields__)


@dataclass
class Table:
    """Rows that were measured together, and the fields of a record that all of them share."""

    facts: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    beside: dict[str, Any] = field(default_factory=dict)  # what a record has no field for: devices, the stated average

    def record(self, row: Row) -> Record:
        """Return one row as a record."""
        values = {**NOT_SAID, **self.facts, **row._asdict()}
        values.update(row.more or {})
        return Record(**{name: values[name] for name in _FIELDS})


@dataclass
class Reading:
    """What a file holds."""

    source: str
    format: str
    tables: list[Table] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    manifest: Mapping[str, Any] | None = None  # of a run of ours

    def __len__(self) -> int:
        return sum(len(table.rows) for table in self.tables)

    def located(self) -> Iterator[tuple[Record, int]]:
        """Yield each record, made as it is asked for, with its line in the file."""
        return ((table.record(row), row.line) for table in self.tables for row in table.rows)

    @property
    def records(self) -> list[Record]:
        """All records at once."""
        return [record for record, _ in self.located()]

    def say(self, rule: str, level: str, lines: Iterable[int], value: str, remedy: str) -> None:
        """Add a finding about lines of this file."""
        self.findings.append(finding(rule, level, self.source, lines, value, remedy))

    @classmethod
    def of(cls, source: str, name: str, records: Iterable[Record]) -> Reading:
        """Return records that are there already as a reading."""
        table = Table({})
        for line, record in enumerate(records, start=1):
            rest = record.to_dict()
            own = [rest.pop(field) for field in Row._fields[1:-1]]
            table.rows.append(Row._make([line, *own, rest]))
        return cls(source, name, [table])


class Reader(Protocol):
    """A file of `readers/`."""

    NAME: str

    @staticmethod
    def recognise(head: Sequence[str]) -> float:
        """Return how sure it is, from 0 to 1, that these first lines are of this format."""

    @staticmethod
    def read(lines: Iterable[str], source: str) -> Reading:
        """Return what all lines hold; never raises for what stands in them."""


@cache
def readers() -> tuple[Reader, ...]:
    """Return the formats, found as files."""
    from commbench.results import readers as folder

    names = sorted(name for _, name, _ in pkgutil.iter_modules(folder.__path__) if not name.startswith("_"))
    return tuple(importlib.import_module(f"{folder.__name__}.{name}") for name in names)  # type: ignore[misc]


def read(path: str | Path) -> Reading:
    """Return what a file holds, plain or gzipped.

    Raises ResultsError for one that cannot be opened, is empty or binary, or is of no format that is known here.
    """
    from commbench.results.health import check

    source = str(path)
    try:
        with open(path, "rb") as raw:
            text = _Text(raw, source)
            head = list(islice(text, HEAD))
            reader = _recognised(head, source)
            reading = reader.read(chain(head, text), source)
    except OSError as error:
        raise ResultsError(f"cannot read {source}: {error.strerror or error}") from None
    reading.findings += check(reading)
    if text.broken:
        reading.say("cut", findings.DOUBT, (), f"the gzip stream ends early: {text.broken}", "copy the file again")
    return reading


class _Text:
    """The lines of a file; a gzip stream that breaks off ends them, and `broken` says why."""

    def __init__(self, raw: BinaryIO, source: str) -> None:
        start = raw.read(2)
        raw.seek(0)
        self._stream: Any = gzip.GzipFile(fileobj=raw) if start == b"\x1f\x8b" else raw
        self._source = source
        self.broken = ""
        self._lines = self._decoded()

    def __iter__(self) -> Iterator[str]:
        return self._lines

    def _decoded(self) -> Iterator[str]:
        first = True
        try:
            for line in iter(lambda: self._stream.readline(_LONGEST_LINE), b""):
                if first and b"\0" in line[:4096]:
                    raise ResultsError(f"{self._source} is a binary file; logs are text, or text that was gzipped")
                first = False
                yield line.decode("utf-8", "replace")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            self.broken = str(error)


def _recognised(head: Sequence[str], source: str) -> Reader:
    if not any(line.strip() for line in head):
        raise ResultsError(f"{source} is empty: there is nothing to read")
    sure, reader = max(((reader.recognise(head), reader) for reader in readers()), key=lambda pair: pair[0])
    if sure < LEAST:
        known = ", ".join(reader.NAME for reader in readers())
        first = next(line.strip() for line in head if line.strip())
        raise ResultsError(
            f"{source} is of no format that is known here (its first line is {_short(first)!r}); known: {known}"
        )
    return reader


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


# Words that formats share.

ITEMSIZES = {
    **{"int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8},
    **{"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "float8_e4m3": 1, "float8_e5m2": 1},
}
_DTYPES = {
    **{name: name for name in ITEMSIZES},
    **{"half": "float16", "float": "float32", "double": "float64", "bf16": "bfloat16", "char": "int8"},
    **{"f8e4m3": "float8_e4m3", "f8e5m2": "float8_e5m2", "fp8_e4m3": "float8_e4m3", "fp8_e5m2": "float8_e5m2"},
    **{"mpi_char": "int8", "mpi_byte": "uint8", "mpi_int": "int32", "mpi_float": "float32", "mpi_double": "float64"},
}
_COLLECTIVES = {
    **{name: name for name in ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall")},
    **{"gather": "gather", "scatter": "scatter", "sendrecv": "sendrecv", "hypercube": "hypercube"},
    **{"alltoallv": "alltoallv", "bcast": "broadcast", "allgatherv": "allgatherv", "barrier": "barrier"},
    **{"reducescatterblock": "reducescatter", "latency": "pingpong", "pingpong": "pingpong"},
    **{"sendreceive": "sendrecv"},
}
FLAT = frozenset({"broadcast", "reduce", "sendrecv", "hypercube"})
SHARED = frozenset({"allgather", "reducescatter", "alltoall", "gather", "scatter"})  # size is n blocks


def dtype(word: str) -> str | None:
    """Return the name of an element type that a log calls `word`, None where it is none."""
    return _DTYPES.get(word.lower())


def collective(word: str) -> str | None:
    """Return our name of a collective that a log calls `word` ("all_reduce_perf", "AllReduce", "Bcast")."""
    return _COLLECTIVES.get(word.lower().removesuffix("_perf").replace("_", "").replace("-", "").replace(" ", ""))


def named_by_file(source: str) -> str | None:
    """Return the collective that a file's name holds: a hint, for a log that fits several."""
    words = re.sub(r"[^a-z]", "", Path(source).name.lower())
    for name in ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "sendrecv", "gather", "scatter"):
        if name in words:
            return name
    return None


def factor(name: str, n: int) -> float | None:
    """Return busbw / algbw of a collective over `n` ranks, as nccl-tests counts it; None where it defines none."""
    if name == "allreduce":
        return 2 * (n - 1) / n
    if name in SHARED or name == "alltoallv":
        return (n - 1) / n
    return 1.0 if name in FLAT else None


NUMBERED_ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")  # nccl_tuner.h
NUMBERED_PROTOCOLS = ("ll", "ll128", "simple")


def algorithm(native: str) -> str:
    """Return the canonical name of an algorithm of NCCL or RCCL, from its name or its number."""
    if native.isascii() and native.isdigit() and int(native) < len(NUMBERED_ALGORITHMS):
        return NUMBERED_ALGORITHMS[int(native)]
    word = native.lower().replace("-", "_")
    return {"nvlstree": "nvls_tree", "collnetdirect": "collnet_direct", "collnetchain": "collnet_chain"}.get(word, word)


def protocol(native: str) -> str:
    """Return the name of a protocol of NCCL or RCCL, from its name or its number."""
    if native.isascii() and native.isdigit() and int(native) < len(NUMBERED_PROTOCOLS):
        return NUMBERED_PROTOCOLS[int(native)]
    return native.lower()


# The three identities, at the precision that is printed.

SLACK = 1e-3  # relative, beside what rounding to the printed digits explains


def rounding(value: float) -> float:
    """Return by how much a printed time may be off: two decimals below 100, as releases of all years print at least."""
    if value < 100:
        return 0.0051
    if value < 1e4:
        return 0.051
    return 0.51 if value < 1e7 else 0.051 * value


def rate_rounding(value: float) -> float:
    """Return by how much a printed rate may be off: two decimals, fewer as a width of six runs out."""
    return 0.0051 if value < 1000 else 0.051 if value < 1e4 else 0.51


def rate_agrees(size: int, time_us: float, algbw: float) -> bool:
    """Whether algbw = size / time."""
    if time_us <= 0:
        return size == 0 and algbw == 0
    off = rounding(time_us)
    low = size / (time_us + off) / 1e3 * (1 - SLACK) - rate_rounding(algbw)
    high = size / max(time_us - off, 1e-9) / 1e3 * (1 + SLACK) + rate_rounding(algbw)
    return low <= algbw <= high


def factor_agrees(algbw: float, busbw: float, factor: float) -> bool:
    """Whether busbw = algbw × factor."""
    off = rate_rounding(algbw) * factor + rate_rounding(busbw)
    return abs(busbw - algbw * factor) <= off + SLACK * busbw


def sharper(printed: float, size: int, time_us: float | None, factor: float = 1.0) -> float:
    """Return a printed rate, or size / time × factor where it was printed with less than three digits (0.00)."""
    if printed >= 1 or not time_us:
        return printed
    return size / time_us / 1e3 * factor


def verified(rows: Iterable[Row], factor: float | None, reading: Reading) -> list[Row]:
    """Return rows of which those are withdrawn, with a finding, that are wrong or that contradict themselves."""
    kept, wrong, rates, factors = [], [], [], []
    for row in rows:
        size, time, algbw, busbw = row.size, row.time_us, row.algbw, row.busbw
        if row.status != OK:
            if row.status == WRONG:
                wrong.append(row.line)
            kept.append(row.withdrawn(row.status, row.reason))
        elif time is not None and algbw is not None and not rate_agrees(size, time, algbw):
            rates.append(row.line)
            kept.append(row.withdrawn(FAILED, "algbw is not size / time"))
        elif None not in (factor, algbw, busbw) and not factor_agrees(algbw, busbw, factor):  # type: ignore[arg-type]
            factors.append(row.line)
            kept.append(row.withdrawn(FAILED, f"busbw is not algbw times {factor:.6g}"))
        elif (algbw is None or algbw >= 1) and (busbw is None or busbw >= 1):
            kept.append(row)
        else:
            algbw = None if algbw is None else sharper(algbw, size, time)
            busbw = busbw if busbw is None or factor is None else sharper(busbw, size, time, factor)
            kept.append(row._replace(algbw=algbw, busbw=busbw))
    if wrong:
        value = f"{len(set(wrong))} rows hold wrong answers: their times and rates are withdrawn"
        remedy = "find which setting breaks it; update the library"
        reading.say("validation", findings.WITHDRAWN, set(wrong), value, remedy)
    if rates:
        value = f"in {len(set(rates))} rows algbw is not size / time: they are withdrawn"
        remedy = "look at these lines: the file was changed or mixed up"
        reading.say("algbw", findings.WITHDRAWN, set(rates), value, remedy)
    if factors:
        value = f"in {len(set(factors))} rows busbw is not algbw times {factor:.6g}: they are withdrawn"
        remedy = "look at these lines, and at the number of ranks"
        reading.say("busbw", findings.WITHDRAWN, set(factors), value, remedy)
    return kept


def whole(value: Any, most: int = LARGEST) -> int:
    """Return a whole number from 0 to `most` that a log holds as a number or a word; raise ValueError for another."""
    number = int(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= most:
        raise ValueError(f"{value!r} is no whole number")
    return number


def figure(value: Any) -> float:
    """Return a time or rate that a log holds, at least 0 and at most 1e18; raise ValueError for another."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is no number")
    number = float(value)
    if not 0 <= number <= 1e18:
        raise ValueError(f"{value!r} is no time or rate")
    return number
