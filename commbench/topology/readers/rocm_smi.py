"""The matrices of `rocm-smi --showtopo`: xGMI or PCIe between GPUs, hops, and the NUMA node of each GPU.

No rate is told, and neither is the kind of GPU: rates stay unknown. Formats: ROCm 3 to 6; a section may be missing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from commbench.results.findings import DOUBT, NOTE, Finding, finding
from commbench.topology.draft import Draft, TooManyParts, one_node
from commbench.topology.node import XGMI, Device
from commbench.topology.readers._closeness import tree
from commbench.topology.reading import Reading, TopologyError

TITLE = "rocm-smi --showtopo"

MOST_GPUS = 128
_SECTION = re.compile(r"=+ *(Weight|Hops|Link Type) between two GPUs *=+", re.IGNORECASE)
_OTHER = re.compile(r"=+ *\S.*=+")
_NUMA = re.compile(r"GPU *\[?(\d{1,4})\]?\s*: *\(Topology\) Numa Node: *(-?\d{1,5})\s*$")


@dataclass
class _Tables:
    cells: dict[str, dict[tuple[int, int], str]] = field(default_factory=dict)  # section -> row, column -> cell
    lines: dict[str, int] = field(default_factory=dict)
    numa: dict[int, int] = field(default_factory=dict)
    gpus: set[int] = field(default_factory=set)
    short: list[int] = field(default_factory=list)
    rows: dict[str, set[int]] = field(default_factory=dict)


def recognise(text: str) -> float:
    """Return how surely `text` has this format: 0 to 1."""
    return 1.0 if _SECTION.search(text) or re.search(r"GPU *\[?\d+\]?\s*: *\(Topology\)", text) else 0.0


def read(text: str, source: str) -> Reading:
    """Return the node that `text` describes."""
    tables = _tables(text, source)
    if not tables.gpus:
        raise TopologyError(source, None, "no section of rocm-smi --showtopo names a GPU")
    findings = _missing(tables, source)
    kinds, hops = tables.cells.get("link type", {}), tables.cells.get("hops", {})
    pairs = sorted({(min(pair), max(pair)) for pair in (*kinds, *hops) if pair[0] != pair[1]})
    draft = Draft()
    try:
        names = {
            gpu: draft.device(Device(f"gpu{gpu}", "amd", numa=tables.numa.get(gpu))) for gpu in sorted(tables.gpus)
        }
        near: dict[tuple[str, str], str] = {}
        for a, b in pairs:
            kind = _either(kinds, a, b)
            far = _either(hops, a, b)
            if kind == "XGMI":
                if far in ("", "1"):  # more are forwarded by GPUs between
                    draft.link(names[a], names[b], XGMI)
            elif kind == "PCIE" and far == "2" and not tables.numa:
                near[names[a], names[b]] = "PHB"  # GPU, CPU, GPU
            elif kind == "PCIE" and far.isdecimal() and int(far) > 2:
                near[names[a], names[b]] = "SYS"
        numa = {names[gpu]: number for gpu, number in tables.numa.items()}
        known = [name for name in names.values() if name in numa or any(name in pair for pair in near)]
        against = tree(known, near, numa, draft)
    except TooManyParts as many:
        raise TopologyError(source, None, str(many)) from None
    if against:
        findings.append(
            finding(
                "contradiction",
                DOUBT,
                source,
                [],
                f"{', '.join(against[:6])}, but on one NUMA node",
                "the NUMA nodes are believed",
            )
        )
    return Reading((one_node(draft.build("node")),), tuple(findings))


def _either(cells: dict[tuple[int, int], str], a: int, b: int) -> str:
    return cells.get((a, b)) or cells.get((b, a), "")


def _tables(text: str, source: str) -> _Tables:
    tables = _Tables()
    section = ""
    columns: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        if found := _SECTION.search(line):
            section, columns = found[1].lower(), []
            tables.lines[section] = number
            continue
        if found := _NUMA.search(line):
            gpu, numa = int(found[1]), int(found[2])
            tables.gpus.add(gpu)
            if numa >= 0:
                tables.numa[gpu] = numa
        elif _OTHER.match(line.strip()):
            section = ""
        elif section:
            first, *cells = line.split() or [""]
            if not re.fullmatch(r"GPU\d{1,4}", first):
                continue
            if not columns and all(re.fullmatch(r"GPU\d{1,4}", cell) for cell in cells):
                columns = [int(name[3:]) for name in (first, *cells)]
                tables.gpus |= set(columns)
                continue
            tables.rows.setdefault(section, set()).add(int(first[3:]))
            if len(cells) < len(columns):
                tables.short.append(number)
            for column, cell in zip(columns, cells, strict=False):
                tables.cells.setdefault(section, {})[int(first[3:]), column] = cell.upper()
        if len(tables.gpus) > MOST_GPUS:
            raise TopologyError(source, number, f"a node has at most {MOST_GPUS} GPUs: give one machine's output")
    tables.gpus |= {row for rows in tables.rows.values() for row in rows}
    return tables


def _missing(tables: _Tables, source: str) -> list[Finding]:
    found = []
    for section, without in (
        ("link type", "which GPUs xGMI joins is unknown"),
        ("hops", "every pair on xGMI is taken to have a link of its own"),
    ):
        if section not in tables.cells:
            found.append(
                finding(
                    "missing-section",
                    DOUBT if section == "link type" else NOTE,
                    source,
                    [],
                    f"there is no section {section.capitalize()} between two GPUs",
                    without,
                )
            )
    if not tables.numa:
        found.append(
            finding(
                "missing-section",
                NOTE,
                source,
                [],
                "there is no NUMA node of any GPU",
                "what is near to what is told by hops alone",
            )
        )
    short = [section for section, rows in tables.rows.items() if len(rows) < len(tables.gpus)]
    if short or tables.short:
        lines = tables.short or [tables.lines[section] for section in short]
        found.append(
            finding(
                "incomplete",
                DOUBT,
                source,
                lines,
                "rows or cells of a matrix are missing",
                "what is missing is unknown: give the whole output",
            )
        )
    return found
