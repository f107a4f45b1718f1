"""Machines made for tests: a tree of files, and commands that print what a real one did."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from commbench.diagnose.system import System

OUTPUTS = Path(__file__).parent / "outputs"


class Machine:
    """A machine in a folder. `system` is how checks see it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin = folder / "root", folder / "bin"
        self.root.mkdir()
        self.bin.mkdir()

    def file(self, path: str, text: str = "") -> Path:
        there = self.root / path.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(text, encoding="utf-8")
        return there

    def link(self, path: str, target: str) -> None:
        there = self.root / path.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.symlink_to(self.root / target.lstrip("/"))

    def command(self, name: str, script: str, folder: str = "") -> Path:
        """A command of this machine, a shell script."""
        there = self.bin / folder / name
        there.parent.mkdir(exist_ok=True)
        there.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        there.chmod(0o755)
        return there

    def answers(self, name: str, outputs: Mapping[str, str]) -> None:
        """A command that answers each of its command lines with a file of outputs/, and fails for any other."""
        cases = "\n".join(f"  {words!r}) cat {str(OUTPUTS / file)!r} ;;" for words, file in outputs.items())
        self.command(name, f'case "$*" in\n{cases}\n  *) echo "not known: $*" >&2; exit 2 ;;\nesac')

    def children(self, facts: Mapping[str, str]) -> str:
        """An interpreter whose probes, by name and arguments, print these lines; any other finds nothing."""
        cases = "\n".join(f"  {words!r}) cat <<'END'\n{lines}\nEND\n  ;;" for words, lines in facts.items())
        absent = """printf '{"trouble": "OSError: %s: No such file or directory"}' "$2" """
        missing = """printf '{"trouble": "ModuleNotFoundError: No module named %s"}' "'${2:-$1}'"  """
        others = f"  communicator*) {absent} ;;\n  nccl4py) set nccl; {missing} ;;\n  *) {missing} ;;"
        return str(self.command("python", f'shift 3\ncase "$*" in\n{cases}\n{others}\nesac'))

    def system(
        self,
        patience: float = 20.0,
        python: str = sys.executable,
        more: Mapping[str, str] = MappingProxyType({}),
        **environment: str,
    ) -> System:
        path = f"{self.bin}:/usr/bin:/bin"  # for the shell and its cat
        return System(str(self.root), {"PATH": path, **environment, **more}, python, patience=patience)
