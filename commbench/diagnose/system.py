"""What the checks stand on: the machine they look at, and what they say of it.

Nothing here raises for what a machine lacks: a file that cannot be read is empty, a command that fails, crashes or
hangs is an answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commbench import system as machine
from commbench.system import signal_name

BROKEN, FORCED, SLOW = "broken", "forced", "slow"
LEVELS = (BROKEN, FORCED, SLOW)  # worst first: does not work; changes what runs; makes times longer or less certain
_PACKAGES = str(Path(__file__).resolve().parents[2])  # where commbench lies, for children started elsewhere
_CHILD = "import sys; sys.path.append(sys.argv[1]); from commbench.diagnose._children import main; main(*sys.argv[2:])"


@dataclass(frozen=True)
class Finding:
    """Something to mend: the rule, the value that breaks it, and the remedy; `level` is one of LEVELS."""

    level: str
    rule: str
    value: str
    remedy: str


@dataclass(frozen=True)
class Check:
    """What one check found: in words, and as facts for a program.

    `ok` says whether what is checked can be used here, None where that is no question; `remedy` what to do if not.
    """

    text: str
    ok: bool | None = None
    remedy: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class System(machine.System):
    """A machine, and its libraries through `python`. `library` is an NCCL or RCCL file to look at before others."""

    python: str = sys.executable
    library: str = ""
    _asked: dict[tuple[str, ...], Future[dict[str, Any]]] = field(default_factory=dict)

    def child(self, probe: str, *arguments: str, patience: float | None = None) -> dict[str, Any]:
        """Return the facts that a probe of `_children.py` gives, asked once; "trouble" says what went wrong with it.

        It runs in a process of its own, since a library that is loaded may crash or hang. What it had said before
        is kept.
        """
        key = (probe, *arguments)
        with self._lock:
            asked = self._asked.get(key)
            future = self._asked.setdefault(key, Future())
        if asked is None:
            try:
                future.set_result(self._ask(key, self.patience if patience is None else patience))
            except BaseException as error:
                future.set_exception(error)
        return dict(future.result())

    def _ask(self, key: tuple[str, ...], seconds: float) -> dict[str, Any]:
        text, errors, code = self.process((self.python, "-c", _CHILD, _PACKAGES, *key), seconds)
        facts: dict[str, Any] = {}
        for line in text.splitlines():
            with suppress(ValueError):
                facts |= json.loads(line)
        if "trouble" in facts or (facts and code == 0):
            return facts
        *_, last = ["", *errors.strip().splitlines()]
        if code is None:
            said = f"did not end within {seconds:g} s"
        elif code == 0:
            said = "ended without an answer"
        elif code < 0:
            said = f"crashed ({signal_name(-code)})"
        else:
            said = f"ended with exit code {code}"
        return {**facts, "trouble": f"{facts.get('doing', 'it')} {said}{last and f': {last}'}", "crash": True}
