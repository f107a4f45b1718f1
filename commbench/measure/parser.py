"""The parser of a door's command line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from commbench.errors import UsageError


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, found without shutil: argparse asks for a width even where no help is shown."""

    def __init__(self, prog: str) -> None:
        width = 80
        with suppress(OSError, ValueError, AttributeError):
            width = os.get_terminal_size(sys.__stdout__.fileno()).columns  # type: ignore[union-attr]
        super().__init__(prog, width=width - 2)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are ours: one line, once, from rank 0."""

    def __init__(self, **about: Any) -> None:
        super().__init__(formatter_class=_Help, allow_abbrev=False, **about)

    def parse_with_command(self, words: Sequence[str], example: str) -> tuple[argparse.Namespace, list[str]]:
        """Return the options, which stand before `--`, and the command that stands behind it."""
        place = words.index("--") if "--" in words else len(words)
        options, others = self.parse_known_args(words[:place])
        if others and not others[0].startswith("-"):
            raise UsageError(f"{others[0]!r} is no option: put the command behind -- ({example})")
        if others:
            self.error(f"unrecognized arguments: {' '.join(others)}")
        return options, list(words[place + 1 :])

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (--help shows the options)")
