"""The matrix of `nvidia-smi topo -m`: NVLink between GPUs, and how near GPUs and NICs are over PCIe.

It tells no rates, so that NVLink has NCCL's default for GPUs of an unknown kind, and PCIe none. Formats: drivers 450 to
580; NICs are columns named mlx5_0 before 520, and NIC0 with a legend since.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from commbench.results.findings import DOUBT, NOTE, Finding, finding
from commbench.topology.draft import Draft, TooManyParts, one_node
from commbench.topology.node import DEFAULT, DISCOVERED, NVLINK, Device, Nic
from commbench.topology.rates import MOST_NVLINKS, nvlink_gbps
from commbench.topology.readers._closeness import LEVELS, tree
from commbench.topology.reading import Reading, TopologyError

TITLE = "the matrix of nvidia-smi topo -m"

MOST_ENDS = 256
_ESCAPE = re.compile(r"\x1b\[[\d;]*m")
_HEAD = re.compile(r"^\s*GPU\d+\s.*Affinity|^\s*GPU\d+(\s+(GPU|NIC|mlx)\w+)*\s*$")
_ROW = re.compile(r"^[ \t]*GPU\d+[ \t]+(X|NV\d+|PIX|PXB|PHB|NODE|SYS)\b", re.MULTILINE)
_LEGEND = re.compile(r"^[ \t]*(NIC\d+):[ \t]+(\S+)[ \t]*$", re.MULTILINE)
_TOKENS = ("X", *LEVELS, "SYS")


def recognise(text: str) -> float:
    """Return how surely `text` has this format: 0 to 1."""
    return 0.9 if _ROW.search(_ESCAPE.sub("", text)) else 0.0


@dataclass
class _Matrix:
    columns: list[str]
    head: int  # line
    cells: dict[tuple[str, str], str] = field(default_factory=dict)  # row, column
    rows: dict[str, int] = field(default_factory=dict)  # row -> line
    cpus: dict[str, str] = field(default_factory=dict)  # GPU -> its CPUs as they stand
    numa: dict[str, int] = field(default_factory=dict)
    short: list[int] = field(default_factory=list)  # lines with too few cells
    strange: list[int] = field(default_factory=list)  # lines with a word that is none of the legend's


def read(text: str, source: str) -> Reading:
    """Return the node whose matrix `text` holds."""
    text = _ESCAPE.sub("", text)
    matrix = _matrix(text, source)
    gpus = [name for name in matrix.columns if name.startswith("GPU")]
    nics = [name for name in matrix.columns if not name.startswith("GPU")]
    legend = dict(_LEGEND.findall(text))
    findings = _missing(matrix, source)
    draft = Draft()
    try:
        names = {gpu: draft.device(Device(f"gpu{gpu[3:]}", "nvidia", numa=matrix.numa.get(gpu))) for gpu in gpus}
        names |= {nic: draft.nic(Nic(legend.get(nic, nic), source=DISCOVERED)) for nic in nics}
        findings += _nvlinks(matrix, names, draft, source)
        findings += _host(matrix, names, draft, source)
    except TooManyParts as many:
        raise TopologyError(source, matrix.head, str(many)) from None
    return Reading((one_node(draft.build("node")),), tuple(findings))


def _matrix(text: str, source: str) -> _Matrix:
    matrix: _Matrix | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if matrix is None:
            if _HEAD.match(line):
                columns = line.split(" Affinity")[0].split("\tCPU")[0].split()
                if columns[-1] in ("CPU", "NUMA"):
                    columns.pop()
                matrix = _columns(columns, number, source)
            continue
        first, *cells = line.split() or [""]
        if first not in matrix.columns or not cells:
            continue
        if first in matrix.rows:
            raise TopologyError(source, number, f"{first} has a second row: give the matrix of one machine")
        matrix.rows[first] = number
        row, rest = cells[: len(matrix.columns)], cells[len(matrix.columns) :]
        if len(row) < len(matrix.columns):
            matrix.short.append(number)
        for column, cell in zip(matrix.columns, row, strict=False):
            if cell in _TOKENS or re.fullmatch(r"NV[1-9]\d{0,2}", cell):
                matrix.cells[first, column] = cell
            elif number not in matrix.strange:
                matrix.strange.append(number)
        if rest and first.startswith("GPU"):
            matrix.cpus[first] = rest[0]
            if len(rest) > 1 and rest[1].isdecimal() and len(rest[1]) < 6:
                matrix.numa[first] = int(rest[1])
    if matrix is None or not any(row.startswith("GPU") for row in matrix.rows):
        raise TopologyError(
            source, matrix.head if matrix else None, "there is no head GPU0 GPU1 ... with rows below it"
        )
    return matrix


def _columns(columns: list[str], line: int, source: str) -> _Matrix:
    if len(set(columns)) < len(columns) or len(columns) > MOST_ENDS:
        text = f"the head names each GPU and NIC once, {MOST_ENDS} at most"
        raise TopologyError(source, line, f"{text}: give the matrix of one machine")
    return _Matrix(columns, line)


def _missing(matrix: _Matrix, source: str) -> list[Finding]:
    found = []
    gpus = [name for name in matrix.columns if name.startswith("GPU")]
    rows = [name for name in matrix.rows if name.startswith("GPU")]
    if len(rows) < len(gpus):
        found.append(
            finding(
                "incomplete",
                DOUBT,
                source,
                [matrix.head],
                f"{len(rows)} rows for {len(gpus)} GPUs",
                "the rest is known from their columns only: give the whole output",
            )
        )
    if matrix.short:
        found.append(
            finding(
                "short-rows",
                DOUBT,
                source,
                matrix.short,
                "rows have fewer cells than the head names",
                "what is missing is unknown: give the whole output",
            )
        )
    if matrix.strange:
        found.append(
            finding(
                "unknown-word",
                DOUBT,
                source,
                matrix.strange,
                "words that are not in the legend",
                "they are taken as unknown",
            )
        )
    return found


def _pairs(matrix: _Matrix) -> tuple[dict[tuple[str, str], str], list[str]]:
    """Return what is said of each pair, once, and the pairs whose two cells differ."""
    found: dict[tuple[str, str], str] = {}
    unlike = []
    for (row, column), cell in matrix.cells.items():
        if row == column or cell == "X":
            continue
        if (column, row) in found:
            if found[column, row] != cell:
                unlike.append(f"{column}-{row}")
        else:
            found[row, column] = cell
    return found, unlike


def _nvlinks(matrix: _Matrix, names: Mapping[str, str], draft: Draft, source: str) -> list[Finding]:
    pairs, unlike = _pairs(matrix)
    links = {pair: int(cell[2:]) for pair, cell in pairs.items() if cell.startswith("NV")}
    findings = []
    if unlike:
        findings.append(
            finding(
                "unsymmetric",
                DOUBT,
                source,
                [matrix.head],
                f"{', '.join(unlike[:6])} differ by way",
                "the first is taken: run nvidia-smi topo -m anew",
            )
        )
    if not links:
        return findings
    each = nvlink_gbps("")
    total: dict[str, int] = {}
    for pair, count in links.items():
        for gpu in pair:
            total[gpu] = total.get(gpu, 0) + count
    if max(total.values()) > MOST_NVLINKS:
        # More links than a GPU has: they all go into NVSwitches, and any pair may use all.
        used = {gpu: max(count for pair, count in links.items() if gpu in pair) for gpu in total}
        for gpu, count in used.items():
            draft.nvlinks([names[gpu]], count * each, count, DEFAULT)
    else:
        for (a, b), count in links.items():
            draft.link(names[a], names[b], NVLINK, count * each, count=count, source=DEFAULT)
    findings.append(
        finding(
            "default-rates",
            NOTE,
            source,
            [],
            "the matrix has the number of NVLinks, not their rate",
            f"{each:g} Gb/s a link is taken, as NCCL does for a GPU it does not know",
        )
    )
    return findings


def _host(matrix: _Matrix, names: Mapping[str, str], draft: Draft, source: str) -> list[Finding]:
    """Add the PCIe tree, as far as the matrix shows it: not for GPUs that are known by NVLink alone."""
    pairs, _ = _pairs(matrix)
    near = {(names[a], names[b]): cell for (a, b), cell in pairs.items() if cell in _TOKENS}
    # GPUs near to the same CPUs are together, whichever NUMA node that is.
    known: Mapping[str, int | str] = matrix.numa or matrix.cpus
    numa = {names[gpu]: on for gpu, on in known.items()}
    ends = [end for end in names.values() if end in numa or any(end in pair for pair in near)]
    against = tree(ends, near, numa, draft)
    if not against:
        return []
    value = f"{', '.join(against[:6])}, but other cells join them"
    return [finding("contradiction", DOUBT, source, [matrix.head], value, "the nearer way is taken")]
