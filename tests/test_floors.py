"""Holds the floors of docs/design.md: who may import whom, and what may not be loaded by merely importing a file.

The files are read, never imported, so that an import inside a function counts as well. A new room goes into FLOORS.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# A room may use the rooms below it and those beside it (two beside each other not both ways).
FLOORS = {
    "cgroup": 0,
    "errors": 0,
    "system": 0,
    "units": 0,
    "topologies": 0,  # data only
    "results": 1,
    "topology": 1,
    "model": 1,
    "backends": 2,
    "diagnose": 2,
    "recommend": 2,
    "attribution": 2,
    "measure": 3,
    "report": 3,
    "kernels": 4,
    "training": 4,
}
DOORS = 5  # commbench/NAME.py, and a room's __main__.py

# Neither wing uses the other, so that reasoning runs on a laptop with no MPI and no GPU.
MEASURING = {"backends", "measure", "kernels", "training"}
REASONING = {"recommend", "attribution", "report"}

HEAVY = {"numpy", "mpi4py", "torch", "cupy", "llvmlite", "numba", "pandas", "matplotlib", "seaborn"}


def not_at_import(room: str, floor: int) -> set[str]:
    """The packages that a file of this room may import inside functions only."""
    if floor == DOORS or room in {"commbench", "cgroup", "diagnose", "errors", "system", "units"}:
        return HEAVY
    # Every measuring rank pays for what it loads, and reading results takes no MPI.
    if room in {"backends", "measure"}:
        return HEAVY - {"numpy", "mpi4py"}
    if room == "results":
        return HEAVY - {"numpy"}
    if room in REASONING or floor == FLOORS["model"]:
        return {"mpi4py", "torch", "cupy"}
    return set()


@dataclass(frozen=True)
class Import:
    module: str  # dotted and absolute
    line: int
    at_import: bool  # carried out by importing the file
    relative: bool


def imports(path: str, source: str) -> list[Import]:
    """Every import in a file, `import_module("...")` with a name that can be read included."""
    return list(_walk(ast.parse(source, path), package=list(Path(path).parent.parts), at_import=True))


def _walk(node: ast.AST, package: list[str], at_import: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno, at_import, False)
    elif isinstance(node, ast.ImportFrom):
        start = package[: len(package) - node.level + 1] if node.level else []
        base = ".".join([*start, *([node.module] if node.module else [])])
        # `from commbench import units` names a module, `from commbench.units import size` does not: the room decides.
        modules = [f"{base}.{alias.name}" for alias in node.names] if base == "commbench" else [base]
        for module in modules:
            yield Import(module, node.lineno, at_import, node.level > 0)
    elif isinstance(node, ast.Call) and (name := _imported_by_call(node)):
        yield Import(name, node.lineno, at_import, False)

    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        # Never carried out, but a floor is passed all the same.
        for child in node.body:
            yield from _walk(child, package, False)
        for child in node.orelse:
            yield from _walk(child, package, at_import)
        return
    inside = at_import and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for below in ast.iter_child_nodes(node):
        yield from _walk(below, package, inside)


def _imported_by_call(call: ast.Call) -> str | None:
    """`commbench.backends` of import_module(f"commbench.backends.{name}"), whole names likewise."""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    if called not in {"import_module", "__import__", "run_module"} or not call.args:
        return None
    name = call.args[0]
    if isinstance(name, ast.JoinedStr) and name.values:
        name = name.values[0]
    if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
        return None
    # "commbench." before a name that is known only when it runs: the package itself, which anyone may import.
    return name.value.rstrip(".") or None


def room_of(path: str) -> tuple[str, int | None]:
    """Room and floor of a file; the floor is None for a room that FLOORS does not name."""
    parts = Path(path).with_suffix("").parts[1:]
    if parts == ("__init__",):
        return "commbench", DOORS
    if len(parts) == 1:
        return parts[0], FLOORS.get(parts[0], DOORS)
    if parts[-1] == "__main__":
        return parts[0], DOORS
    return parts[0], FLOORS.get(parts[0])


def violations(files: dict[str, str]) -> list[str]:
    """What the files, source by path from the root, do that the floors do not allow."""
    doors = {room for room, floor in map(room_of, files) if floor == DOORS and room not in FLOORS} - {"commbench"}
    found: list[str] = []
    beside: dict[tuple[str, str], str] = {}
    for path, source in sorted(files.items()):
        room, floor = room_of(path)
        if floor is None:
            found.append(f"{path}: the room {room} stands on no floor; add it to FLOORS in tests/test_floors.py")
            continue
        for one in imports(path, source):
            top, _, rest = one.module.partition(".")
            if one.at_import and top in not_at_import(room, floor):
                found.append(f"{path} (floor {floor}) imports {top} outside a function, line {one.line}")
            if one.relative and room == "kernels":
                found.append(f"{path} has a relative import, line {one.line}, so that `python {path}` fails")
            target = rest.partition(".")[0]
            if top != "commbench" or target == room:
                continue
            if target in doors:
                below = DOORS
            elif target in FLOORS:
                below = FLOORS[target]
            else:
                continue  # the package itself, such as its __version__
            text = f"{path} (floor {floor}) imports commbench.{target} (floor {below}), line {one.line}"
            if below > floor:
                found.append(text)
            elif floor != DOORS and ({room, target} & MEASURING and {room, target} & REASONING):
                found.append(f"{text}; measuring and reasoning do not use each other")
            elif below == floor != DOORS:
                beside[room, target] = text
    found += [f"{text}, which imports {room}" for (room, target), text in beside.items() if (target, room) in beside]
    return found


def test_every_file_keeps_to_its_floor() -> None:
    files = {}
    for path in [*(ROOT / "commbench").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")]:
        # rglob follows the symlinks on some versions of Python and not on others; by name each file is there once.
        name = path.relative_to(ROOT).as_posix()
        files[name if name.startswith("commbench/") else f"commbench/{name}"] = path.read_text(encoding="utf-8")
    assert "commbench/__init__.py" in files
    assert violations(files) == []


REFUSED = [
    (
        "commbench/results/x.py",
        "import commbench.measure.stats",
        "commbench/results/x.py (floor 1) imports commbench.measure (floor 3), line 1",
    ),
    (
        "commbench/backends/x.py",
        "def f():\n    from ..measure.sweep import cells",
        "commbench/backends/x.py (floor 2) imports commbench.measure (floor 3), line 2",
    ),
    (
        "commbench/units.py",
        "from commbench import errors, results",
        "commbench/units.py (floor 0) imports commbench.results (floor 1), line 1",
    ),
    (
        "commbench/report/x.py",
        'import importlib\nimportlib.import_module(f"commbench.backends.{name}")',
        "commbench/report/x.py (floor 3) imports commbench.backends (floor 2), line 2;"
        " measuring and reasoning do not use each other",
    ),
    (
        "commbench/measure/x.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from commbench.report import html",
        "commbench/measure/x.py (floor 3) imports commbench.report (floor 3), line 3;"
        " measuring and reasoning do not use each other",
    ),
    (
        "commbench/model/x.py",
        "from commbench.allreduce import ALLREDUCE",
        "commbench/model/x.py (floor 1) imports commbench.allreduce (floor 5), line 1",
    ),
    (
        "commbench/allreduce.py",
        "class A:\n    import numpy as np",
        "commbench/allreduce.py (floor 5) imports numpy outside a function, line 2",
    ),
    (
        "commbench/diagnose/x.py",
        "import mpi4py",
        "commbench/diagnose/x.py (floor 2) imports mpi4py outside a function, line 1",
    ),
    (
        "commbench/__init__.py",
        "from pandas import DataFrame",
        "commbench/__init__.py (floor 5) imports pandas outside a function, line 1",
    ),
    (
        "commbench/attribution/__main__.py",
        "import numpy",
        "commbench/attribution/__main__.py (floor 5) imports numpy outside a function, line 1",
    ),
    (
        "commbench/measure/x.py",
        "try:\n    from numba import njit\nexcept ImportError:\n    pass",
        "commbench/measure/x.py (floor 3) imports numba outside a function, line 2",
    ),
    (
        "commbench/results/x.py",
        "from mpi4py import MPI",
        "commbench/results/x.py (floor 1) imports mpi4py outside a function, line 1",
    ),
    (
        "commbench/kernels/x.py",
        "from . import copy",
        "commbench/kernels/x.py has a relative import, line 1, so that `python commbench/kernels/x.py` fails",
    ),
    (
        "commbench/attic/x.py",
        "",
        "commbench/attic/x.py: the room attic stands on no floor; add it to FLOORS in tests/test_floors.py",
    ),
]


@pytest.mark.parametrize(("path", "source", "message"), REFUSED)
def test_what_breaks_a_rule_is_named(path: str, source: str, message: str) -> None:
    assert violations({"commbench/allreduce.py": "", path: source}) == [message]


def test_rooms_beside_each_other_may_not_use_each_other_both_ways() -> None:
    one = {"commbench/model/x.py": "import commbench.topology.cluster"}
    assert violations(one) == []
    assert violations({**one, "commbench/topology/y.py": "from commbench.model import cost"}) == [
        "commbench/model/x.py (floor 1) imports commbench.topology (floor 1), line 1, which imports model",
        "commbench/topology/y.py (floor 1) imports commbench.model (floor 1), line 1, which imports topology",
    ]


ALLOWED = [
    ("commbench/allreduce.py", "from commbench.measure.collective import Collective\ndef main():\n    import numpy"),
    ("commbench/compare.py", "from commbench.report import compare\nfrom commbench.measure import stats"),
    ("commbench/measure/x.py", "import numpy as np\nfrom commbench import __version__\nfrom .stats import median"),
    ("commbench/results/x.py", "def frame():\n    import pandas"),
    ("commbench/backends/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
    ("commbench/recommend/export/slurm.py", "from ...topology import cluster\nimport pandas"),
    (
        "commbench/kernels/x.py",
        "import numba\nfrom commbench.measure import stats\nfrom commbench.results import journal",
    ),
    ("commbench/__main__.py", 'import importlib\ndef main():\n    importlib.import_module(f"commbench.{name}")'),
]


@pytest.mark.parametrize(("path", "source"), ALLOWED)
def test_what_keeps_to_the_rules_is_let_through(path: str, source: str) -> None:
    assert violations({path: source}) == []
