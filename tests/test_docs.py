"""The README and docs/ are true: their commands run, and their tables are those of the code."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import fields
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from commbench import doctor, errors
from commbench.__main__ import doors
from commbench.allreduce import ALLREDUCE
from commbench.backends import _algorithms, _nccl_facts
from commbench.broadcast import BROADCAST
from commbench.measure.buffers import Arenas, layout
from commbench.measure.cli import parser
from commbench.measure.folder import session
from commbench.measure.visit import Visit
from commbench.results import record, status
from tests.fakes import FakeLibrary, call, effort
from tests.mpi.launch import MPIRUN, library, run

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_RUN = {  # a word behind the language of a fence
    "cluster": "needs a cluster",
    "gpu": "needs GPUs",
    "install": "installs packages",
    "scripts": "the scripts run these tests themselves, or take minutes",
}
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    words: tuple[str, ...]  # what else stands behind the fence
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    found = []
    lines = page.read_text(encoding="utf-8").splitlines()
    start, info = 0, ""
    for number, line in enumerate(lines, start=1):
        if line.startswith("```"):
            if start:
                language, *words = info.split() or [""]
                found.append(Block(page, start, language, tuple(words), "\n".join(lines[start : number - 1]) + "\n"))
                start = 0
            else:
                start, info = number, line.removeprefix("```")
    assert not start, f"{page.name}:{start}: this fence has no end"
    return found


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without the table's own head."""
    text = (ROOT / page).read_text(encoding="utf-8")
    _, found, rest = text.partition(f"# {heading}\n")
    assert found, f"{page} has no heading {heading!r}"
    lines = HEADING.split(rest)[0].splitlines()
    table = [re.split(r"(?<!\\)\|", line.strip("|")) for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in cells] for cells in table[2:]]


def code(cell: str) -> str:
    return cell.strip("`")


BLOCKS = [block for page in PAGES for block in blocks(page)]


@pytest.mark.mpi
@pytest.mark.skipif(not library(), reason=f"no mpirun beside this interpreter ({MPIRUN})")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    for block in blocks(page):
        if NOT_RUN.keys() & set(block.words):
            continue
        names = [word.removeprefix("file=") for word in block.words if word.startswith("file=")]
        if names:
            target = tmp_path / names[0]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
            continue
        command = {
            "sh": ["bash", "-euo", "pipefail", "-c", block.text],
            "python": [sys.executable, "-W", "error", "-c", block.text],
        }.get(block.language)
        if command:
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            done = run(command, cwd=tmp_path, env={"PATH": path}, timeout=180)
            assert done.code == 0, f"{block}\n{done.stdout}\n{done.stderr}"
            if "mpirun" in block.text:
                said = done.stdout + done.stderr
                assert re.search(" (cells|steps) ok", said), f"{block}\n{said}"


@pytest.mark.parametrize("block", [block for block in BLOCKS if NOT_RUN.keys() & set(block.words)], ids=str)
def test_a_command_that_is_not_run(block: Block) -> None:
    pytest.skip(next(NOT_RUN[word] for word in block.words if word in NOT_RUN))


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_fences_say_what_they_hold(block: Block) -> None:
    assert block.language in ("sh", "python", "text", "json")
    assert [word for word in block.words if word not in NOT_RUN and not word.startswith("file=")] == []


def test_the_design_names_the_files_of_the_package_and_no_other() -> None:
    (tree,) = [block.text for block in blocks(ROOT / "docs" / "design.md") if "commbench/\n" in block.text]
    named = set(re.findall(r"\w+\*?\.py", tree)) - {"setup.py"}
    files = {path.relative_to(ROOT) for path in (ROOT / "commbench").rglob("*.py") if path.name != "__init__.py"}
    files |= {Path("commbench", path.relative_to(ROOT)) for path in (ROOT / "kernels").glob("*.py")}  # by a symlink
    # Whose name is its registration needs to be in no list.
    registered = {
        *ROOT.glob("commbench/*.py"),
        *ROOT.glob("commbench/backends/[!_]*.py"),
        *ROOT.glob("commbench/kernels/[!_]*.py"),
        *ROOT.glob("commbench/*/*/*"),
    }
    inside = {path.name for path in files if ROOT / path not in registered}
    assert [name for name in sorted(inside) if not any(fnmatch(name, pattern) for pattern in named)] == []
    assert [pattern for pattern in sorted(named) if not any(fnmatch(path.name, pattern) for path in files)] == []


def test_the_options_are_those_of_the_parser() -> None:
    actions = {}
    for collective in (ALLREDUCE, BROADCAST):  # together they have -o and -r
        for action in parser(collective)._actions:
            default = re.search(r"\(default:? (.*)\)", action.help or "")
            text = default[1].replace(collective.name, "NAME") if default else ""
            actions[", ".join(f"`{option}`" for option in action.option_strings)] = text
    documented = {option: code(default) for option, _, default in rows("docs/measuring.md", "Options")}
    assert documented == actions


def test_the_keys_are_those_of_a_record() -> None:
    assert [code(row[0]) for row in rows("docs/results.md", "Record")] == [f.name for f in fields(record.Record)]


def test_the_keys_of_a_session_are_those_that_a_launch_keeps() -> None:
    documented = [code(row[0]) for row in rows("docs/results.md", "Manifest")]
    prefix = "sessions[]."
    keys = {key.removeprefix(prefix) for key in documented if key.startswith(prefix)}
    assert keys == session([], {}).keys()


def test_the_keys_of_a_visit_are_named() -> None:
    library = FakeLibrary()
    arenas = Arenas(library.backend, [layout(library.backend, call(), 0, 1)])
    kept = Visit(library.world, library.backend, arenas, call(), effort(), 0, True, False, None).carry_out(0.001, 3)
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    section = HEADING.split(text.partition("# Visit\n")[2])[0]
    assert {"cell", "round", "session", *kept} - set(re.findall(r"`(\w+)`", section)) == set()


def test_the_statuses_are_those_of_a_record() -> None:
    known = {value for name, value in vars(status).items() if name.isupper() and isinstance(value, str)}
    assert {code(row[0]) for row in rows("docs/results.md", "Statuses")} == known


def test_the_doors_are_those_that_there_are() -> None:
    table = {code(row[0]) for row in rows("docs/measuring.md", "Doors")}
    text = (ROOT / "docs" / "measuring.md").read_text(encoding="utf-8")
    others = set(re.findall(r"`(\w+)`", HEADING.split(text.partition("# Doors\n")[2])[0])) & set(doors()) - table
    assert table | others == set(doors())
    assert table == {name for name in doors() if hasattr(import_module(f"commbench.{name}"), name.upper())}


def test_the_checks_are_those_of_the_doctor() -> None:
    table = [(code(name), required == "yes") for name, required, _ in rows("docs/doctor.md", "Checks")]
    names = [name for checks in doctor.SECTIONS.values() for name in checks]
    assert table == [(name, name in doctor.REQUIRABLE) for name in names]


def test_the_names_of_algorithms_are_those_in_use() -> None:
    table = {code(native): code(name) for native, name in rows("docs/measuring.md", "Names of algorithms")}
    assert table == _algorithms._CANONICAL


def test_the_algorithms_of_nccl_are_those_that_are_known() -> None:
    table = [
        [
            f"`{name}`",
            f"`{fact.variable}`",
            _nccl_facts.version_text(fact.since),
            ", ".join(fact.functions),
            ", ".join(fact.protocols),
            "yes" if fact.rccl else "no",
        ]
        for name, fact in _nccl_facts.FACTS.items()
    ]
    assert rows("docs/nccl.md", "What exists") == table


def test_the_exit_codes_are_known_ones() -> None:
    known = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {int(row[0]) for row in rows("docs/measuring.md", "Exit codes")} <= known


def test_the_files_that_the_design_names_are_there() -> None:
    (rooms,) = [block.text for block in blocks(ROOT / "docs" / "design.md") if "setup.py" in block.text]
    places = (*ROOT.glob("*.py"), *(ROOT / "commbench").rglob("*.py"), *ROOT.glob("kernels/*.py"))
    known = {path.name for path in places}
    assert set(re.findall(r"\w+\.py", rooms)) - known == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists() and there.is_relative_to(ROOT), f"{page.name} links to {target}"
        if anchor:
            headings = HEADING.findall(there.read_text(encoding="utf-8"))
            assert anchor in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}, target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_holds_a_path_of_one_machine(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if re.search(r"(?<![\w.])(/home|/root|/tmp|/work|/Users)/|~/", line)] == []
