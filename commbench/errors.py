"""The exceptions, and the exit codes they become.

CommbenchError
├── UsageError            bad arguments, files or launch: exit 2
│   └── ResultsError      a results folder that cannot be written, read or resumed: exit 2
├── RendezvousError       ranks of a launch that did not come: exit 124
├── DiskError             a disk that fills up or breaks while measuring: exit 1
└── Rejected              the library refused, or would have run something else: a row that says so

A message states the rule, the value that broke it, and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterable

EXIT_OK = 0
EXIT_FAILED = 1  # a cell failed, was wrong or substituted
EXIT_USAGE = 2
EXIT_CANNOT_TELL = 3  # comparisons
EXIT_TIMEOUT = 124


class CommbenchError(Exception):
    """Base of all errors that commbench raises on purpose."""


class UsageError(CommbenchError):
    """Arguments, input or launch that cannot work."""


class ResultsError(UsageError):
    """A results folder that cannot be written, read or resumed."""


class RendezvousError(CommbenchError):
    """Ranks of a launch that did not come; without a text where another rank says which."""


class DiskError(CommbenchError):
    """A disk that fills up or breaks while results are being written."""


class Rejected(CommbenchError):
    """The library refused what was asked, or said that it would run something else."""


def unknown_name(kind: str, value: str, known: Iterable[str]) -> UsageError:
    """Return the error for a `value` that is none of the `known` names, with the nearest ones as the remedy."""
    import difflib

    names = sorted(set(known))
    near = difflib.get_close_matches(value.lower(), names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return UsageError(f"unknown {kind} {value!r}: {hint}")


def printable(text: str) -> str:
    """Return text of a file, or of its name, so that it is one line and no terminal obeys it."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
