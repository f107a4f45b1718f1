"""The text of nccl-tests and rccl-tests, of every generation since 2019.

Columns are found by the words of the heading; where that was cut off, by the number of fields. Prefixes of mpirun
--tag-output and srun --label are taken off, and every prefix has tables of its own. A row that the library's log
lines split is joined again. A file may hold several runs, one after another: what is said between the end of one table
and the end of the next one (command, version, NCCL_ALGO, what ran) is said of that next one alone.

Our own --format nccl-tests is read too: its first lines say backend, library, ranks, nodes and method, of all tables.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from commbench.results import reading as common
from commbench.results.findings import DOUBT, NOTE, WITHDRAWN
from commbench.results.reading import ITEMSIZES, UNKNOWN, Reading, Row, Table
from commbench.results.status import FAILED, NOT_MEASURED, OK, SUBSTITUTED, WRONG
from commbench.units import LARGEST, format_ranges

NAME = "nccl-tests text"

_PREFIX = re.compile(r"\s*(?:\[\d+,(?P<tag>\d+)\]<std(?:out|err)>:|\[(?P<rank>\d+)\](?!\s*NCCL)|(?P<label>\d+):(?=\s))")
_LOG = re.compile(r"(?P<host>[\w.-]+):\d+:\d+ \[\d+\] (?:\S+ )?NCCL (?:INFO|WARN|TRACE)\b.*|\[[^\]]*\] \[.*UCX.*")
_HEADING = re.compile(r"#?\s*(?:size|bytes)\s+(?:count|N)\s+type\b")
_PARAMETERS = re.compile(r"#?\s*nThread (\d+) nGpus (\d+) minBytes (\d+) maxBytes (\d+) (.*)")
_DEVICE = re.compile(
    r"#?\s*Rank\s+(?P<rank>\d+)(?:\s+Group\s+(?P<group>\d+))?\s+Pid\s+(?P<pid>\d+)\s+on\s+(?P<host>\S+)"
    r"\s+device\s+(?P<device>\d+)\s+\[(?P<bus>[^\]]*)\](?P<name>.*)"
)
_AVERAGE = re.compile(r"#?\s*Avg bus bandwidth\s*:\s*(\S+)")
_BOUNDS = re.compile(r"#?\s*Out of bounds values\s*:\s*(\d+)\s+(OK|FAILED)")
_CLIPPED = re.compile(r"#?\s*Reducing maxBytes to (\d+) due to memory limitation")
_TEST = re.compile(r"#?\s*Collective test (?:starting|concluded):\s*(\w+)")
# Our own --format nccl-tests (measure/lead.py and measure/screen.py): what all tables share, and a table for each.
_OURS = re.compile(
    r"#\s*((?:SIMULATED|PREDICTED): .*)?commbench \d\S*, backend (\w+)\b(?:; (model of .+)|.*; ([^;,]+), [^;]*)$"
)
_OUR_RANKS = re.compile(r"#\s*([\w-]+) on (\d{1,9}) ranks?, (\d{1,9}) nodes?; method (\w+)")
_OUR_GROUP = re.compile(r"#\s*Group: (.+), ranks (\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*)$")
_OUR_ALGORITHM = re.compile(r"#\s*Algorithm: (\S+)(?: (\S+))?$")
_COMMAND = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoallv?|broadcast|reduce|gather|scatter|sendrecv|hypercube)_perf\b"
)
_FAILURE = re.compile(
    r"(?P<host>\S+?)(?: pid \d+)?:? Test (?:(?P<kind>CUDA|HIP|NCCL) failure|timeout|failure)\b(?P<rest>.*)"
)
_TUNED = re.compile(
    r"(?:(?P<function>\w+): )?(?P<nbytes>\d+) Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)"
    r"(?:.*?channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})?"
)
_ASKED = re.compile(r"\bNCCL_(ALGO|PROTO)(?: set by environment to |=)([\w^,;:]+)")
_VERSIONS = (
    ("rccl", re.compile(r"#?\s*rccl-tests:? [Vv]ersion\s*(\S*)"), "rccl-tests"),
    ("nccl", re.compile(r"#?\s*nccl-tests version (\S+)"), "nccl-tests"),
    ("rccl", re.compile(r"\bRCCL version\s*:?\s*([\d.]+\S*)"), "RCCL"),
    ("nccl", re.compile(r"\bNCCL version\s+([\d.]+\S*)"), "NCCL"),
)
_OF_A_RUN = re.compile(r"Bytes -> Algo|NCCL_(?:ALGO|PROTO)|_perf\b|[nNrR][cC][cC][lL](?:-tests)?:? [vV]ersion")
_WORDS = re.compile(  # what `words` and the log look for: no other line is looked at twice
    r"nThread|Rank +\d|Algorithm: |Group: |commbench \d|; method |Avg bus|Out of bounds|Reducing maxBytes|"
    r"Collective test|Test (?:CUDA|HIP|NCCL|timeout|failure)|"
    r"out-of-place|in-place|(?:size|bytes) +(?:count|N) +type|" + _OF_A_RUN.pattern
)
_NVIDIA = re.compile(r"NVIDIA|Tesla|[AVH]\d00-")
_ALIASES = {"bytes": "size", "n": "count", "op": "redop", "res": "error", "wrong": "#wrong"}
_TIMES = ("time", "cputime")
_TAIL = ("algo", "proto", "nchannels")
_PER_ITERATION = {"i_min": "time_us_min", "i_max": "time_us_max", "i_p99": "time_us_p99"}


def recognise(head: Sequence[str]) -> float:
    """Return 1 for a heading, 0.9 for rows without one, less for the lines around a table."""
    sure = 0.0
    for line in head:
        text = _without_prefix(line)[1]
        if _HEADING.match(text.strip()) and "time" in text:
            return 1.0
        if text[:1].isdigit() and _layout_by_number(text.split()):
            sure = max(sure, 0.9)
        elif _PARAMETERS.match(text) or _DEVICE.match(text) or _BOUNDS.match(text) or _FAILURE.match(text):
            sure = max(sure, 0.8)
        elif "Bytes -> Algo" in text and _TUNED.search(text):
            sure = max(sure, 0.5)
    return sure


def read(lines: Iterable[str], source: str) -> Reading:
    """Return the tables of a log, one after another, and what is wrong with each."""
    reading = Reading(source, NAME)
    log = _Log()
    streams: dict[str, _Stream] = {}
    number = 0
    for number, line in enumerate(lines, start=1):
        tag, text = _without_prefix(line)
        stream = streams.get(tag)
        if stream is None:
            stream = streams[tag] = _Stream()
        if (text[:1].isdigit() or text[:1] == "-" or stream.pending) and stream.numbers(number, text):
            continue
        if _WORDS.search(text):
            log.line(number, tag, text)
            stream.words(number, text)
    log.share_out(streams)
    sections = [section for stream in streams.values() for section in stream.sections if section.said]
    sections.sort(key=lambda section: section.line)
    for section in sections:
        _finish(section, reading)
    _say_log(log, reading)
    if not reading.tables:
        _keep_tuning(log, reading)
    if not reading.tables:
        reading.say("no rows", DOUBT, (), "the log has no row of results", "look at what ended the run before them")
    return reading


def _without_prefix(line: str) -> tuple[str, str]:
    found = _PREFIX.match(line)
    if found is None:
        return "", line.strip()
    return found["tag"] or found["rank"] or found["label"] or "", line[found.end() :].strip()


class _Half(NamedTuple):
    """The places of one placement's columns."""

    inplace: bool | None
    time: int
    algbw: int
    busbw: int
    wrong: int | None
    exact: bool  # #wrong counts elements; error is how far they are off
    more: tuple[tuple[str, int], ...]


class _Layout(NamedTuple):
    """The places of a table's columns."""

    fields: int
    redop: int | None
    root: int | None
    halves: tuple[_Half, ...]
    tail: tuple[tuple[str, int], ...]  # algo, proto, nchannels
    unit: float  # microseconds in a printed time
    cpu: bool  # the printed time is the host's, and the rates are not made of it


def _layout(words: Sequence[str], above: str) -> _Layout | None:
    """Return the columns that a heading names, None where it is cut short. `above` is the line over it."""
    names = [_ALIASES.get(word.lower(), word.lower()) for word in words]
    starts = [place for place, name in enumerate(names) if name in _TIMES]
    if not starts or names[:3] != ["size", "count", "type"] or len(starts) > 2:
        return None
    width = _half_width(names[starts[0] :])
    if any(_half_width(names[start:]) != width for start in starts):
        return None
    placed: list[bool | None] = [word == "in-place" for word in re.findall(r"out-of-place|in-place", above)]
    if len(placed) != len(starts):
        placed = [False, True] if len(starts) == 2 else [None]
    halves = []
    for start, inplace in zip(starts, placed, strict=True):
        own = {name: start + place for place, name in enumerate(names[start : start + width])}
        if "algbw" not in own or "busbw" not in own:
            return None
        more = tuple((_PER_ITERATION[name], place) for name, place in own.items() if name in _PER_ITERATION)
        exact = "#wrong" in own
        check = own.get("#wrong", own.get("error"))
        halves.append(_Half(inplace, start, own["algbw"], own["busbw"], check, exact, more))
    end = starts[-1] + width
    tail = tuple((name, end + place) for place, name in enumerate(names[end:]) if name in _TAIL)
    lead = {name: place for place, name in enumerate(names[: starts[0]])}
    fields = end + len(tail)
    unit = 1000.0 if words[0].lower() == "bytes" else 1.0
    return _Layout(fields, lead.get("redop"), lead.get("root"), tuple(halves), tail, unit, "cputime" in names)


def _half_width(names: Sequence[str]) -> int:
    known = {*_TIMES, "algbw", "busbw", "#wrong", "error", "copybw", *_PER_ITERATION, "i_cv%", "i_cv"}
    width = 1
    while width < len(names) and names[width] in known and names[width] not in _TIMES:
        width += 1
    return width


def _layout_by_number(tokens: Sequence[str]) -> _Layout | None:
    """Return the columns of a row whose heading is lost, None where it is no row."""
    if len(tokens) < 7 or not (tokens[0].isdecimal() and tokens[1].isdecimal()) or common.dtype(tokens[2]) is None:
        return None
    redop = tokens[3].isalpha()
    after = 4 if redop else 3
    root = "." not in tokens[after] and len(tokens) - after in (5, 9) and re.fullmatch(r"-?\d+", tokens[after])
    lead = ["size", "count", "type", *(["redop"] if redop else []), *(["root"] if root else [])]
    rest = len(tokens) - len(lead)
    if rest not in (4, 8):
        return None
    last = tokens[-1]
    check = "error" if "e" in last or (not redop or not root) else "#wrong"
    return _layout([*lead, *(["time", "algbw", "busbw", check] * (rest // 4))], "")


class _Device(NamedTuple):
    rank: int
    group: int
    host: str
    device: int
    bus: str
    name: str


@dataclass
class _Run:
    """What is said of the run that made a table, in no place of its own."""

    tuned: list[tuple[int, re.Match[str]]] = field(default_factory=list)
    asked: dict[str, str] = field(default_factory=dict)  # ALGO, PROTO: the last that is said, as of the command
    versions: dict[str, str] = field(default_factory=dict)
    backend: str | None = None
    command: str | None = None

    def line(self, number: int, text: str) -> None:
        """Take one line."""
        if "Bytes -> Algo" in text and (found := _TUNED.search(text)):
            self.tuned.append((number, found))
        elif found := _ASKED.search(text):
            self.asked[found[1]] = found[2]
        if "concluded" not in text and (found := _COMMAND.search(text)):
            self.command = common.collective(found[1])
        for backend, pattern, name in _VERSIONS:
            if name not in self.versions and (found := pattern.search(text)):
                self.versions[name] = found[1]
                self.backend = self.backend or backend


@dataclass
class _Section:
    """One table and what stands above and below it."""

    line: int
    run: _Run = field(default_factory=_Run)
    ours: dict[str, Any] = field(default_factory=dict)  # fields of a record that our own first lines state
    continued: bool = False  # a further table of one run of ours, whose first lines it shares
    layout: _Layout | None = None
    parameters: list[tuple[int, str]] = field(default_factory=list)
    headings: list[int] = field(default_factory=list)
    devices: list[_Device] = field(default_factory=list)
    device_lines: list[int] = field(default_factory=list)
    devices_cut: bool = False
    rows: list[Row] = field(default_factory=list)
    averages: list[tuple[int, str]] = field(default_factory=list)
    bounds: tuple[int, int, str] | None = None
    clipped: tuple[int, int] | None = None
    test: str | None = None
    largest: int | None = None
    iterations: int | None = None
    unreadable: list[int] = field(default_factory=list)
    no_heading: list[int] = field(default_factory=list)
    algorithm: tuple[str, str | None] | None = None

    @property
    def said(self) -> bool:
        """Whether there is anything to say of it."""
        return bool(self.rows or self.devices or self.parameters or self.averages or self.bounds or self.unreadable)

    @property
    def end(self) -> int:
        """The last line that is known to be of it."""
        lines = [self.line, *self.headings[-1:], *self.device_lines[-1:], *(line for line, _ in self.averages[-1:])]
        return max([*lines, *(line for line, _ in self.parameters[-1:]), *(row.line for row in self.rows[-1:])])


class _Stream:
    """The lines of one prefix, and the tables in them."""

    def __init__(self) -> None:
        self.sections: list[_Section] = [_Section(0)]
        self.pending: list[str] = []  # of a row that a log line split
        self.pending_line = 0
        self._above = ""
        self._words: dict[str, str | None] = {}

    @property
    def now(self) -> _Section:
        return self.sections[-1]

    def numbers(self, number: int, text: str) -> bool:
        """Take a line as a row, or as a part of one; False where it is neither."""
        log = _LOG.search(text) if "NCCL" in text or "UCX" in text else None
        if log:
            if not (text[:1].isdigit() and log.start()):
                return False
            text = _unglued(text[: log.start()], log["host"] or "")
        tokens = text.split()
        begins = len(tokens) > 2 and tokens[0].isdecimal() and tokens[1].isdecimal() and tokens[2] in _ROW_TYPES
        if begins:
            if self.pending:
                self.now.unreadable.append(self.pending_line)
            self.pending = []
        elif self.pending:
            if not tokens or not (text[0].isdigit() or text[0] == "-" or text.startswith("N/A")):
                return False
            number, tokens = self.pending_line, self.pending + tokens
            self.pending = []
        else:
            return False
        section = self.now
        layout = section.layout
        if layout is not None and len(tokens) in (layout.fields, layout.fields + 2):
            pass  # two more: a time stamp, which holds a space
        elif log or (layout is not None and len(tokens) < layout.fields):
            self.pending, self.pending_line = tokens, number
            return True
        elif layout is None and (layout := _layout_by_number(tokens)):
            section.no_heading.append(number)
        if layout is None or not self._row(section, layout, number, tokens):
            section.unreadable.append(number)
        return True

    def _row(self, section: _Section, layout: _Layout, number: int, tokens: Sequence[str]) -> bool:
        """Add a row's placements; False where a field is not what its column holds."""
        try:
            size, count = int(tokens[0]), int(tokens[1])
            kind = _ROW_TYPES[tokens[2]]
            redop = tokens[layout.redop] if layout.redop is not None else None
            root = int(tokens[layout.root]) if layout.root is not None else None
            if size > LARGEST or count > LARGEST or (redop is not None and redop not in _REDOPS):
                return False
            made = []
            for half in layout.halves:
                words = tokens[half.time], tokens[half.algbw], tokens[half.busbw]
                if words[0] == "N/A":
                    continue
                time, algbw, busbw = map(float, words)
                if not (0 <= time < _INF and 0 <= algbw < _INF and 0 <= busbw < _INF):  # nan is neither
                    return False
                time *= layout.unit
                wrong, status, reason = None, OK, ""
                more: dict[str, Any] = {}
                for name, place in half.more:
                    more[name] = _number(tokens[place])
                word = "N/A" if half.wrong is None else tokens[half.wrong]
                if word == "0" and half.exact:
                    wrong = 0
                elif word != "N/A":
                    if word.endswith("*"):
                        status, reason = WRONG, "the log marks the error as too large"
                    if half.exact:
                        wrong = int(float(word.rstrip("*")))
                        if wrong:
                            status, reason = WRONG, f"{wrong} elements are wrong"
                    else:
                        more["error"] = _number(word.rstrip("*"))
                for name, place in layout.tail:
                    if tokens[place] != "N/A":
                        more[name] = tokens[place]
                reduces, rooted = None if redop == "none" else redop, None if root == -1 else root
                measured = half.inplace, time, algbw, busbw, wrong, status, reason, more or None
                made.append(Row(number, size, count, kind, reduces, rooted, *measured))
        except (ValueError, OverflowError):
            return False
        section.rows += made
        return True

    def words(self, number: int, text: str) -> None:
        """Take a line that says something about a table."""
        section = self.now
        if _HEADING.match(text) and "time" in text:
            duplicated = len(section.parameters) > max(1, len(section.headings))
            if (section.rows and not duplicated) or (section.averages and not section.rows and not duplicated):
                section = self._new(number)
            section.headings.append(number)
            section.layout = _layout(text.lstrip("# ").split(), self._above) or section.layout
        elif found := _PARAMETERS.match(text):
            if section.rows or section.averages:
                section = self._new(number)
            section.parameters.append((number, text))
            section.largest = int(found[4])
            iterations = re.search(r"(?<!warmup )\biters: (\d+)", text)
            section.iterations = int(iterations[1]) if iterations else None
        elif found := _DEVICE.match(text):
            if (section.rows or section.averages) and len(section.parameters) <= 1:
                section = self._new(number)
            name = found["name"].strip()
            section.devices_cut |= name.endswith("...")
            section.device_lines.append(number)
            section.devices.append(
                _Device(
                    *(int(found["rank"]), int(found["group"] or 0), found["host"], int(found["device"])),
                    *(found["bus"], name.removesuffix("...").strip()),
                )
            )
        elif found := _AVERAGE.match(text):
            section.averages.append((number, found[1]))
        elif found := _BOUNDS.match(text):
            section.bounds = (number, int(found[1]), found[2])
        elif found := _CLIPPED.match(text):
            section.clipped = (number, int(found[1]))
        elif found := _TEST.match(text):
            if (section.rows or section.averages) and "starting" in text:
                section = self._new(number)
            section.test = common.collective(found[1])
        elif found := _OURS.match(text):
            if section.rows or section.averages:
                section = self._new(number)
            section.ours = {"backend": found[2], "library": found[3] or found[4], "simulated": bool(found[1])}
        elif section.ours and (found := _OUR_RANKS.match(text)):
            n, name = int(found[2]), common.collective(found[1]) or UNKNOWN
            section.ours |= {"collective": name, "nranks": n, "nnodes": int(found[3]), "method": found[4]}
        elif section.ours and (found := _OUR_GROUP.match(text)):
            if section.rows or section.averages:
                section = self._continue(number)
            section.ours = _of_group(section.ours, found[1], found[2])
        elif found := _OUR_ALGORITHM.match(text):
            if section.rows or section.averages:
                section = self._continue(number)
            section.algorithm = found[1], found[2]
        elif "device " in text and text.endswith("...") and section.devices:
            section.devices_cut = True
        self._above = text if "place" in text else ""

    def _new(self, number: int) -> _Section:
        self.sections.append(_Section(number))
        return self.now

    def _continue(self, number: int) -> _Section:
        """Begin another table of the same run of ours."""
        last = self.now
        self.sections.append(_Section(number, last.run, dict(last.ours), bool(last.ours)))
        if last.ours:
            self.now.devices, self.now.devices_cut = last.devices, last.devices_cut
            self.now.device_lines = last.device_lines
        return self.now


def _of_group(ours: dict[str, Any], name: str, ranks: str) -> dict[str, Any]:
    """Return what our first lines state, narrowed to a group."""
    ends = [part.split("-") for part in ranks.split(",")]
    n = sum(int(end[-1]) - int(end[0]) + 1 for end in ends)
    world = ours.get("world", (ours.get("nranks"), ours.get("nnodes")))
    narrowed = {"group": name, "ranks": ranks, "nranks": n, "nnodes": world[1] if n == world[0] else None}
    return {**ours, **narrowed, "world": world}


_ROW_TYPES = {
    word: name
    for word in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16", "bf16",
                 "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2", "char", "int")
    for name in [common.dtype(word) or "int32"]
}  # fmt: skip
_REDOPS = frozenset({"sum", "prod", "min", "max", "avg", "mulsum", "none"})


_INF = float("inf")


def _number(word: str) -> float:
    value = float(word)
    if not 0 <= value < _INF:
        raise ValueError(word)
    return value


def _unglued(text: str, host: str) -> str:
    """Take the end of a row's part off a host name that follows it without a space."""
    glued = re.match(r"(-?\d+|none)(?=[A-Za-z])", host)
    return f"{text}{glued[1]}" if glued and not text.endswith(" ") else f"{text} {glued[1]}" if glued else text


class _Log:
    """What a log says beside its tables."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str, str]] = []  # number, prefix, text
        self.failures: list[tuple[int, str, re.Match[str]]] = []

    def line(self, number: int, tag: str, text: str) -> None:
        """Take one line."""
        if "Test " in text and (found := _FAILURE.search(text)):
            self.failures.append((number, tag, found))
        if _OF_A_RUN.search(text):
            self.lines.append((number, tag, text))

    def share_out(self, streams: Mapping[str, _Stream]) -> None:
        """Give each table the lines from the end of the one before it to its own; the last one those after it too.

        A prefix that has no table, as those of other ranks than the first, speaks of the tables of all prefixes.
        """
        tables = {tag: [section for section in stream.sections if section.rows] for tag, stream in streams.items()}
        every = sorted((section for those in tables.values() for section in those), key=lambda section: section.end)
        ends = {tag: [section.end for section in those] for tag, those in tables.items()}
        ends_of_all = [section.end for section in every]
        for number, tag, text in self.lines:
            those, last = (tables[tag], ends[tag]) if tables[tag] else (every, ends_of_all)
            if those:
                those[min(bisect_left(last, number), len(those) - 1)].run.line(number, text)


def _finish(section: _Section, reading: Reading) -> None:
    """Make a section a table, once all of it is known."""
    if not section.continued:
        _say_header(section, reading)
    if section.unreadable:
        reading.say(
            *("row", DOUBT, section.unreadable),
            f"{len(section.unreadable)} rows are not of the columns that the heading names, and are left out",
            "have the library write its log elsewhere (NCCL_DEBUG_FILE)",
        )
    if section.no_heading:
        value = "rows stand without a heading: their columns were taken from their number"
        reading.say("heading", DOUBT, section.no_heading, value, "keep the lines above the table")
    if not section.rows:
        return
    alone, interleaved = _processes(section)
    name, n, how = _identify(section)
    named_by_file = name is None and (name := _name_by_file(section, reading.source)) is not None
    if alone:
        n = 1
    factor = None if name is None or n is None else common.factor(name, n)
    if factor is None and n is not None:
        factor = _factor_by_shape(section, n)
    printed = [row.busbw for row in section.rows if row.busbw is not None]
    section.rows = _checked(section, name, factor, alone, reading)
    _say_bounds(section, reading)
    _say_average(section, printed, reading)
    if name is None:
        value = "the log does not name the collective, and its columns fit more than one"
        reading.say("collective", DOUBT, section.headings, value, "keep the command line in the log")
    elif named_by_file:
        value = f"the log does not name the collective; {name} is from the file's name, and its columns fit that"
        reading.say("collective", NOTE, section.headings, value, "keep the command line in the log")
    if n is None:
        value = "the number of ranks is not stated, and the rates fit more than one"
        reading.say("ranks", NOTE, section.headings, value, "keep the lines of devices in the log")
    elif how:
        reading.say("ranks", NOTE, section.headings, f"{n} ranks: {how}", "keep the lines of devices in the log")
    if n == 1 and not alone:
        value = "one rank: the factor from algbw to busbw is 0, so busbw is 0 by definition"
        reading.say("one rank", NOTE, section.headings, value, "look at algbw")
    if interleaved:
        reading.say("interleaved", DOUBT, section.headings, interleaved, "give every run a file of its own")
    table = Table(_facts(section, name, n, factor), section.rows, _beside(section))
    reading.tables.append(table)
    _attach_columns(table, section.run)
    if section.algorithm is None:  # else what ran was held against it as it was measured
        _attach_tuning(table, _tuning(section.run))
    _say_substituted(table, reading)


def _facts(section: _Section, name: str | None, n: int | None, factor: float | None) -> dict[str, Any]:
    run = section.run
    hosts = list(dict.fromkeys(device.host for device in section.devices))
    names = " ".join(device.name for device in section.devices)
    backend = run.backend or ("rccl" if "AMD" in names else "nccl" if _NVIDIA.search(names) else "")
    library = {"rccl": "RCCL", "nccl": "NCCL"}.get(backend, "")
    version = run.versions.get(library, "")
    ours = {key: value for key, value in section.ours.items() if key not in ("collective", "nranks", "world")}
    of_all = "nranks" not in section.ours or section.ours.get("nnodes") is not None  # not of some of the ranks
    known = bool(hosts) and not section.devices_cut and of_all
    return {
        "collective": name or UNKNOWN,
        "backend": backend or UNKNOWN,
        "library": f"{library} {version}".strip() or UNKNOWN,
        "method": "nccl-tests",  # rccl-tests times in the same way
        "ranks": format_ranges(range(n)) if n and (section.devices or ours) else UNKNOWN,
        "hosts": ",".join(hosts) if known else UNKNOWN,
        "nranks": n,
        "nnodes": len(hosts) if known else None,
        "iterations": section.iterations,
        "busbw_factor": factor,
        **({"algorithm": section.algorithm[0], "protocol": section.algorithm[1]} if section.algorithm else {}),
        **ours,
    }


def _beside(section: _Section) -> dict[str, Any]:
    average = float(section.averages[0][1]) if section.averages and _is_number(section.averages[0][1]) else None
    return {"devices": [device._asdict() for device in section.devices], "average": average}


def _is_number(word: str) -> bool:
    try:
        return float(word) >= 0
    except ValueError:
        return False


def _processes(section: _Section) -> tuple[bool, str]:
    """Return whether every process was a run of one rank, and what shows that several runs share the lines."""
    ranks = [device.rank for device in section.devices]
    if len(ranks) > 1 and set(ranks) == {0} and len({device.group for device in section.devices}) == 1:
        return True, ""
    if len(set(ranks)) < len(ranks) and len({(d.rank, d.group) for d in section.devices}) < len(ranks):
        return False, f"{len(ranks)} device lines name {len(set(ranks))} ranks: several runs wrote into one file"
    if len(section.averages) > 1:
        return False, f"one table has {len(section.averages)} averages: several runs wrote into one file"
    return False, ""


def _say_header(section: _Section, reading: Reading) -> None:
    alone, _ = _processes(section)
    if alone:
        hosts = sorted({device.host for device in section.devices})
        value = f"{len(section.devices)} processes on {', '.join(hosts)} each report rank 0 of 1: MPI is not active"
        remedy = "build it anew with MPI=1, and start it with that MPI's mpirun; each ran alone, so no bandwidth counts"
        reading.say("rank 0 of 1", WITHDRAWN, section.device_lines, value, remedy)
    places: dict[tuple[str, int, str], list[int]] = {}
    for device, line in zip(section.devices, section.device_lines, strict=True):
        places.setdefault((device.host, device.device, device.bus), []).append(line)
    shared = {place: lines for place, lines in places.items() if len(lines) > 1}
    if shared:
        host, number, _ = next(iter(shared))
        value = f"ranks share a GPU: device {number} of {host} has {len(shared[next(iter(shared))])} of them"
        lines = [line for those in shared.values() for line in those]
        reading.say("shared gpu", DOUBT, lines, value, "one rank a GPU (-g 1 and as many ranks a node as it has GPUs)")
    if section.clipped:
        line, largest = section.clipped
        value = f"sizes end at {largest} B, since more does not fit the memory"
        reading.say("clipped", NOTE, [line], value, "free the GPUs, or ask for no more (-e)")
    if section.devices_cut:
        value = "the list of devices is cut off: hosts and ranks are not all known"
        reading.say("devices cut", NOTE, section.device_lines[-1:], value, "none: the tool keeps 2048 characters")


def _identify(section: _Section) -> tuple[str | None, int | None, str]:
    """Return collective and number of ranks, and how the latter is known where no line states it."""
    ours, share = section.ours, _share(section)
    if {"collective", "nranks"} <= ours.keys() and ours["collective"] != UNKNOWN:
        if share in (None, 1, ours["nranks"]) or share != int(share or 0):
            return ours["collective"], ours["nranks"], ""
        ours |= {"group": UNKNOWN, "ranks": UNKNOWN, "nnodes": None}  # a run of one group, which our text does not name
        return ours["collective"], int(share), "from size and count"
    rows = [row for row in section.rows if row.size and row.count]
    n = None
    if section.devices and not section.devices_cut:
        groups = len({device.group for device in section.devices})
        n = (max(device.rank for device in section.devices) + 1) // groups or 1
    name = section.test or section.run.command
    if name is None:
        name = _name_by_shape(section, share, n)
    if n is not None:
        return name, n, ""
    if share is not None and share != 1 and share == int(share):
        return name, int(share), "from size and count"
    if name == "allreduce":
        n = _ranks_by_ratio(rows)
        return name, n, "from busbw / algbw" if n else ""
    return name, None, ""


def _share(section: _Section) -> float | None:
    """Return how many of its blocks a size holds, in most rows: 1, or n where every rank has a share of it."""
    shares = Counter(row.size / (row.count * ITEMSIZES[row.dtype]) for row in section.rows if row.size and row.count)
    most = shares.most_common(1)
    return most[0][0] if most and 2 * most[0][1] > shares.total() else None


def _name_by_file(section: _Section, source: str) -> str | None:
    """Return the collective that the file is called by, where it is one of two that the columns fit."""
    rows = [row for row in section.rows if row.count]
    if not rows or any(row.redop or row.size <= (row.count or 0) * ITEMSIZES[row.dtype] for row in rows):
        return None
    rooted = any(row.root is not None for row in rows)
    hint = common.named_by_file(source)
    return hint if hint in (("gather", "scatter") if rooted else ("allgather", "alltoall")) else None


def _name_by_shape(section: _Section, share: float | None, n: int | None) -> str | None:
    """Return the collective that alone fits the columns, the sizes and the rates."""
    rows = section.rows
    reduces = any(row.redop for row in rows)
    rooted = any(row.root is not None for row in rows)
    fast = [row for row in rows if row.algbw and row.algbw > 1 and row.busbw]
    flat = bool(fast) and all(row.busbw == row.algbw for row in fast)
    if reduces and rooted:
        return "reduce"
    if share is None:
        return None
    if share == 1:
        if reduces:
            return "allreduce" if n != 1 else None
        if rooted:
            return "broadcast" if n != 1 else None
        return "sendrecv" if flat and n != 1 else None
    if reduces:
        return "reducescatter"
    if rooted:
        return None  # gather or scatter
    halves = {row.inplace: [r.wrong for r in rows if r.inplace == row.inplace] for row in rows}
    checked = any(wrong is not None for wrong in halves.get(False, []))
    errors = any((row.more or {}).get("error") is not None for row in rows if row.inplace)
    if checked and all(wrong is None for wrong in halves.get(True, [])) and not errors:
        return "alltoall"  # whose answer is not checked in place
    if errors or any(wrong is not None for wrong in halves.get(True, [])):
        return "allgather"
    return None


def _factor_by_shape(section: _Section, n: int) -> float | None:
    """Return busbw / algbw where the collective is one of several that share it."""
    rows = [row for row in section.rows if row.size and row.count]
    shared = rows and all(row.size == (row.count or 0) * ITEMSIZES[row.dtype] * n for row in rows)
    return (n - 1) / n if shared and n > 1 else None


def _ranks_by_ratio(rows: Iterable[Row]) -> int | None:
    """Return the one number of ranks that all rows' busbw / algbw = 2(n-1)/n allows."""
    low, high = 1.0, float("inf")
    for row in rows:
        if not row.algbw or not row.busbw or row.algbw < 1:
            continue
        off, bus_off = common.rate_rounding(row.algbw), common.rate_rounding(row.busbw)
        least, most = (row.busbw - bus_off) / (row.algbw + off), (row.busbw + bus_off) / (row.algbw - off)
        if most < 1 or least >= 2:
            continue  # no all-reduce: the check of each row says so
        low = max(low, 2 / (2 - least))
        high = min(high, 2 / (2 - most) if most < 2 else float("inf"))
    if high == float("inf") or low > high:
        return None
    fitting = [n for n in range(max(2, int(low)), int(high) + 1) if low <= n <= high]
    return fitting[0] if len(fitting) == 1 else None


def _checked(section: _Section, name: str | None, factor: float | None, alone: bool, reading: Reading) -> list[Row]:
    """Return the rows, those withdrawn that are wrong or contradict themselves."""
    if alone:
        reason = "the process was rank 0 of 1, one of several that each ran alone"
        return [row.withdrawn(FAILED, reason) for row in section.rows]
    rows = section.rows
    if section.layout is not None and section.layout.cpu:  # the rates are not made of this time
        rows = [
            row._replace(time_us=None, more={**(row.more or {}), "host_time_us": row.time_us}) for row in section.rows
        ]
    share = None if name == "alltoallv" else _share(section)  # whose ranks have shares of their own
    odd = [
        place
        for place, row in enumerate(rows)
        if share is not None and row.size != (row.count or 0) * ITEMSIZES[row.dtype] * share and row.status == OK
    ]
    if odd:
        rows = list(rows)
        lines = {rows[place].line for place in odd}
        for place in odd:
            rows[place] = rows[place].withdrawn(FAILED, "size and count do not fit those of the other rows")
        value = f"in {len(lines)} rows size and count do not fit those of the others: they are withdrawn"
        reading.say("count", WITHDRAWN, lines, value, "look at these lines: the file was changed or mixed up")
    return common.verified(rows, factor, reading)


def _say_bounds(section: _Section, reading: Reading) -> None:
    """Withdraw what a failed check of the whole table leaves in doubt."""
    if section.bounds is None or section.bounds[2] == "OK":
        return
    line, failed, _ = section.bounds
    if any(row.status == WRONG for row in section.rows):
        return  # said row by row
    section.rows = [
        row if (row.more or {}).get("error") == 0 else row.withdrawn(WRONG, "the log's check of its answers failed")
        for row in section.rows
    ]
    value = f"{failed} checks of answers failed: times and rates of all rows that may be wrong are withdrawn"
    reading.say("validation", WITHDRAWN, [line], value, "find which setting breaks it; update the library")


def _say_average(section: _Section, printed: Sequence[float], reading: Reading) -> None:
    mean = sum(printed) / len(printed)
    if not section.averages:
        last = section.rows[-1]
        short = f", and the last size is {last.size} B of {section.largest}" if _ends_early(section) else ""
        value = f"the table has no end (no average){short}; the mean of what is there is {mean:.6g} GB/s"
        reading.say("truncated", DOUBT, [last.line], value, "see whether the run ended well")
        return
    line, word = section.averages[0]
    if not _is_number(word) or abs(float(word) - mean) > 0.0051 + 1e-3 * mean:
        value = f"the stated average is {word}, and that of the rows {mean:.6g} GB/s"
        reading.say("average", DOUBT, [line], value, "rows are missing, changed or of several runs")


def _ends_early(section: _Section) -> bool:
    return section.largest is not None and 2 * section.rows[-1].size < section.largest and section.clipped is None


def _attach_columns(table: Table, run: _Run) -> None:
    """Turn the columns algo, proto and nchannels, and what was asked for, into fields of records."""
    asked = {kind: _single(value) for kind, value in run.asked.items()}
    if asked.get("ALGO"):
        table.facts.setdefault("algorithm", common.algorithm(asked["ALGO"] or ""))
    if asked.get("PROTO"):
        table.facts.setdefault("protocol", common.protocol(asked["PROTO"] or ""))
    for place, row in enumerate(table.rows):
        if row.more is None:
            continue
        more = dict(row.more)
        ran: dict[str, str] = {name: more.pop(name) for name in _TAIL if name in more}
        if ran:
            table.rows[place] = row._replace(more={**more, **_ran(ran, "column of rccl-tests")})


def _ran(words: dict[str, str], evidence: str) -> dict[str, Any]:
    found: dict[str, Any] = {"evidence": evidence}
    if "algo" in words:
        found["observed_algorithm"] = common.algorithm(words["algo"])
    if "proto" in words:
        found["observed_protocol"] = common.protocol(words["proto"])
    if words.get("nchannels", "").isdecimal():
        found["channels"] = int(words["nchannels"])
    return found


def _single(value: str) -> str | None:
    """Return the one algorithm that a variable forces, None where it leaves a choice."""
    return value if re.fullmatch(r"[A-Za-z]\w*", value) else None


_Tuning = dict[tuple[str | None, int], tuple[int, dict[str, Any]]]  # by collective and size: the line, what ran


def _tuning(run: _Run) -> _Tuning:
    """Return what the library's own lines say ran."""
    ran: _Tuning = {}
    for line, found in run.tuned:
        words = {"algo": found["algorithm"], "proto": found["protocol"]}
        if found["low"] is not None:
            words["nchannels"] = str(max(0, int(found["high"]) - int(found["low"]) + 1))
        name = common.collective(found["function"]) if found["function"] else None
        ran.setdefault((name, int(found["nbytes"])), (line, _ran(words, "library's log")))
    return ran


def _keep_tuning(log: _Log, reading: Reading) -> None:
    """Keep the library's lines of a log without rows as records without a time."""
    run = _Run()
    for line, _, text in log.lines:
        run.line(line, text)
    table = Table({"method": UNKNOWN, "backend": run.backend or UNKNOWN})
    reason = "the log says what ran, and holds no time"
    for (name, size), (line, more) in _tuning(run).items():
        if size <= LARGEST:
            nothing = (None, None, None, None, None, None, None)
            more = {**more, "collective": name or UNKNOWN}
            table.rows.append(Row(line, size, None, UNKNOWN, *nothing, NOT_MEASURED, reason, more))
    if table.rows:
        reading.tables.append(table)


def _attach_tuning(table: Table, ran: _Tuning) -> None:
    """Give rows what the library's own lines say ran."""
    if not ran:
        return
    name = table.facts["collective"]
    for place, row in enumerate(table.rows):
        if "observed_algorithm" in (row.more or {}):
            continue
        # Since NCCL 2.25 the library counts a rank's share, before it the larger of what is sent and received.
        share = (row.count or 0) * ITEMSIZES[row.dtype]
        for key in ((name, row.size), (name, share), (None, row.size), (None, share)):
            if key in ran:
                table.rows[place] = row._replace(more={**(row.more or {}), **ran[key][1]})
                break


def _say_substituted(table: Table, reading: Reading) -> None:
    asked = table.facts.get("algorithm"), table.facts.get("protocol")
    lines, seen = [], set()
    if not any(asked):
        return
    for place, row in enumerate(table.rows):
        more = row.more or {}
        ran = more.get("observed_algorithm"), more.get("observed_protocol")
        other = [one for one, two in zip(asked, ran, strict=True) if one and two and one != two]
        if other and row.status == OK:
            words = f"{'/'.join(filter(None, ran))} ran, not {'/'.join(filter(None, asked))}"
            table.rows[place] = row.withdrawn(SUBSTITUTED, words)
            lines.append(row.line)
            seen.add(words)
    if lines:
        value = f"not what was asked for: {'; '.join(sorted(seen))}"
        reading.say("substituted", WITHDRAWN, set(lines), value, "NCCL 2.24 and later refuse instead")


def _say_log(log: _Log, reading: Reading) -> None:
    """Say which failures the log holds, like with like."""
    alike: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for line, tag, found in log.failures:
        quoted = re.search(r"'([^']*)'", found["rest"])
        alike.setdefault((found["host"].rstrip(":"), quoted[1] if quoted else found[0].strip()), []).append((line, tag))
    for (host, what), places in alike.items():
        ranks = [tag for _, tag in places if tag]
        who = f" from ranks {', '.join(ranks)}" if ranks else ""
        value, remedy = f"{host}: {what} ({len(places)} lines{who})", "see the lines above it for the first cause"
        rule = "failure"
        if "invalid device ordinal" in what:
            rule = "ranks exceed gpus"
            remedy = "more ranks were started on this host than it has GPUs: set the slots of the host list"
        elif "timeout" in what.lower():
            rule = "timeout"
        reading.say(rule, DOUBT, [line for line, _ in places], value, remedy)
