"""What the checks stand on: the machine they look at, and what they say of it.

Nothing here raises for what a machine lacks: a file that cannot be read is empty, a command that fails, crashes or
hangs is an answer.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import Any

BROKEN, FORCED, SLOW = "broken", "forced", "slow"
LEVELS = (BROKEN, FORCED, SLOW)  # worst first: does not work; changes what runs; makes times longer or less certain
_PACKAGES = str(Path(__file__).resolve().parents[2])  # where commbench lies, for children started elsewhere
_CHILD = "import sys; sys.path.append(sys.argv[1]); from commbench.diagnose._children import main; main(*sys.argv[2:])"
_GRACE = 2.0  # seconds for a killed process to go; one inside a broken driver never does


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
class Answer:
    """What a command printed; `trouble` says why it gave nothing, empty if it did."""

    text: str = ""
    trouble: str = ""


@dataclass(frozen=True)
class System:
    """A machine: its files below `root`, its commands by `environment`'s PATH, its libraries through `python`.

    `library` is an NCCL or RCCL file to look at before those that are found. `patience` is in seconds.
    """

    root: str = "/"
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    python: str = sys.executable
    library: str = ""
    patience: float = 20.0
    _running: set[subprocess.Popen[str]] = field(default_factory=set)
    _asked: dict[tuple[str, ...], Future[dict[str, Any]]] = field(default_factory=dict)
    _lock: Any = field(default_factory=Lock)
    _ended: Event = field(default_factory=Event)

    def path(self, path: str) -> str:
        """Return where the file that this machine calls `path` lies."""
        return os.path.join(self.root, path.lstrip("/"))

    def read(self, path: str) -> str:
        """Return a file's text without the blanks around it, empty where it cannot be read."""
        with suppress(OSError), open(self.path(path), encoding="utf-8", errors="replace") as file:
            return file.read().strip()
        return ""

    def glob(self, pattern: str) -> list[str]:
        """Return the files and folders that match, sorted, by this machine's names for them."""
        start = len(self.root.rstrip("/"))
        return sorted(found[start:] for found in glob.glob(self.path(pattern)))

    def target(self, link: str) -> str:
        """Return the last name of where a symbolic link leads: of a device, its address on the bus."""
        return os.path.basename(os.path.realpath(self.path(link))) if os.path.lexists(self.path(link)) else ""

    def commands(self, name: str) -> list[str]:
        """Return every file in PATH that `name` could mean, the one that runs first."""
        folders = self.environment.get("PATH", "").split(os.pathsep)
        found = [file for folder in folders if folder and (file := shutil.which(name, path=folder))]
        return list(dict.fromkeys(found))

    def run(self, *words: str, patience: float | None = None) -> Answer:
        """Return what a command prints; it is ended after `patience` seconds."""
        seconds = self.patience if patience is None else patience
        if not os.path.isabs(words[0]):
            paths = self.commands(words[0])
            if not paths:
                return Answer(trouble=f"{words[0]} is not in PATH")
            words = (paths[0], *words[1:])
        name = os.path.basename(words[0])
        text, errors, code = self._process(words, seconds)
        if code is None:
            return Answer(text, f"{name} did not answer within {seconds:g} s")
        if code:
            last = next((line for line in reversed((errors or text).splitlines()) if line.strip()), "")
            ended = f"was ended by {_signal_name(-code)}" if code < 0 else f"failed with exit code {code}"
            return Answer(text, f"{name} {ended}{last and f': {last.strip()}'}")
        return Answer(text)

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
        text, errors, code = self._process((self.python, "-c", _CHILD, _PACKAGES, *key), seconds)
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
            said = f"crashed ({_signal_name(-code)})"
        else:
            said = f"ended with exit code {code}"
        return {**facts, "trouble": f"{facts.get('doing', 'it')} {said}{last and f': {last}'}", "crash": True}

    def _process(self, words: tuple[str, ...], seconds: float) -> tuple[str, str, int | None]:
        """Return output, errors and exit code of a process; the code is None where it had to be ended."""
        try:
            with self._lock:
                if self._ended.is_set():
                    return "", "stopped", 1
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    env=dict(self.environment),
                    start_new_session=True,
                )
                self._running.add(process)
        except OSError as error:
            return "", str(error), 127
        try:
            output, errors = process.communicate(timeout=seconds)
            return output, errors, process.returncode
        except subprocess.TimeoutExpired:
            _kill(process)
            try:
                output, errors = process.communicate(timeout=_GRACE)
            except subprocess.TimeoutExpired as left:  # stuck in the kernel: leave it there
                output, errors = (str(part or b"", "utf-8", "replace") for part in (left.stdout, left.stderr))
            return output, errors, None
        finally:
            with self._lock:
                self._running.discard(process)

    def end(self) -> None:
        """End every process that still runs, and start no other."""
        with self._lock:
            self._ended.set()
            for process in self._running:
                _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
