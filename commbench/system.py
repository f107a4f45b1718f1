"""The machine that commbench looks at: its files, its commands, and where a test may put others in their place.

Nothing here raises for what a machine lacks: a file that cannot be read is empty, a command that fails, crashes or
hangs is an answer.
"""

from __future__ import annotations

import glob
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any

_GRACE = 2.0  # seconds for a killed process to go; one inside a broken driver never does


@dataclass(frozen=True)
class Answer:
    """What a command printed; `trouble` says why it gave nothing, empty if it did."""

    text: str = ""
    trouble: str = ""


@dataclass(frozen=True)
class System:
    """A machine: its files below `root`, its commands by `environment`'s PATH; `patience` is in seconds."""

    root: str = "/"
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    patience: float = field(default=20.0, kw_only=True)
    _running: set[subprocess.Popen[str]] = field(default_factory=set, kw_only=True)
    _lock: Any = field(default_factory=Lock, kw_only=True)
    _ended: Event = field(default_factory=Event, kw_only=True)

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
        text, errors, code = self.process(words, seconds)
        if code is None:
            return Answer(text, f"{name} did not answer within {seconds:g} s")
        if code:
            last = next((line for line in reversed((errors or text).splitlines()) if line.strip()), "")
            ended = f"was ended by {signal_name(-code)}" if code < 0 else f"failed with exit code {code}"
            return Answer(text, f"{name} {ended}{last and f': {last.strip()}'}")
        return Answer(text)

    def process(self, words: tuple[str, ...], seconds: float) -> tuple[str, str, int | None]:
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


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
