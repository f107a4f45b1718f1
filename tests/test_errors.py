"""The tree of exceptions, and unknown names answered with the nearest."""

from __future__ import annotations

import inspect
import re

import pytest

from commbench import errors
from commbench.errors import CommbenchError, ResultsError, UsageError, unknown_name

NAMES = ["auto", "ring", "tree", "nvls", "nvls_tree", "recursive_doubling"]


def test_every_exception_is_one_of_ours() -> None:
    ours = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, Exception)]
    assert all(issubclass(one, CommbenchError) for one in ours)
    assert issubclass(ResultsError, UsageError)  # so that a folder that cannot be read is exit 2


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = re.findall(r"^[├└│ ─]*([A-Z]\w+(?:Error|ed|able))", errors.__doc__ or "", re.MULTILINE)
    defined = [one.__name__ for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, Exception)]
    assert sorted(drawn) == sorted(defined)


def test_exit_codes_are_those_that_scripts_rely_on() -> None:
    codes = (errors.EXIT_OK, errors.EXIT_FAILED, errors.EXIT_USAGE, errors.EXIT_CANNOT_TELL, errors.EXIT_TIMEOUT)
    assert codes == (0, 1, 2, 3, 124)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("rign", "unknown algorithm 'rign': did you mean ring?"),
        ("RING", "unknown algorithm 'RING': did you mean ring?"),
        ("nvl_tree", "unknown algorithm 'nvl_tree': did you mean nvls_tree or tree or nvls?"),
        ("recursivedoubling", "unknown algorithm 'recursivedoubling': did you mean recursive_doubling?"),
        ("zzz", "unknown algorithm 'zzz': known: auto, nvls, nvls_tree, recursive_doubling, ring, tree"),
        ("", "unknown algorithm '': known: auto, nvls, nvls_tree, recursive_doubling, ring, tree"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_or_all(value: str, text: str) -> None:
    assert str(unknown_name("algorithm", value, [*NAMES, "ring"])) == text


def test_the_answer_to_an_unknown_name_is_a_usage_error() -> None:
    assert isinstance(unknown_name("backend", "mpy", ["mpi"]), UsageError)
