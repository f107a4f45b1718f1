"""Carries a door out in this process, as if from its command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

Said = tuple[int, str, str]


def say(
    main: Callable[[Sequence[str]], NoReturn],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: Sequence[str],
) -> Said:
    """The exit code, standard output and standard error of a door in a folder."""
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as raised:
        main(words)
    said = capsys.readouterr()
    assert isinstance(raised.value.code, int)
    return raised.value.code, said.out, said.err
