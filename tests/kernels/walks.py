"""Problems that the tests of the GPU back ends share: every kernel, and every factor of one of them."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

from commbench import kernels
from commbench.kernels._factors import FACTORS
from commbench.kernels._pattern import Access, Pattern, Problem


def patterns() -> list[Pattern]:
    """Return every kernel in every element type."""
    names = sorted(
        file.stem for folder in kernels.__path__ for file in Path(folder).glob("*.py") if file.stem[0] != "_"
    )
    every = [pattern for name in names for pattern in import_module(f"commbench.kernels.{name}").PATTERNS]
    return [pattern.of(dtype) for pattern in every for dtype in pattern.dtypes or ("",)]


def label(pattern: Pattern) -> str:
    """Return a name of letters, digits and underscores."""
    return "_".join([*pattern.label.split(), *pattern.dtypes])


def problems(total: int) -> dict[str, Problem]:
    """Return, by name, the baseline of every kernel, and every level of every factor of those with unlike streams."""
    found = {label(pattern): Problem(pattern, pattern.baseline(), total) for pattern in patterns()}
    for pattern in patterns():
        if label(pattern) not in VARIED:
            continue
        found[f"{label(pattern)}_ceiling"] = Problem(pattern.ceiling(), pattern.baseline(), total)
        for name, access in walks(pattern).items():
            found[f"{label(pattern)}_{name}"] = Problem(pattern, access, total)
    return found


# Mixed types, a struct of 12 bytes, two streams only, a sum.
VARIED = {
    "weight_update_adamw_float16",
    "sgd_momentum_mixed_bfloat16",
    "copy_float16",
    "read_float16",
}


def walks(pattern: Pattern) -> dict[str, Access]:
    """Return every level of every factor."""
    base = pattern.baseline()
    found = {
        "".join(letter if letter.isalnum() else "_" for letter in f"{name}_{level}"): access
        for name, factor in FACTORS.items()
        for level, access in factor.levels(pattern, base)
        # Not: the same kernel on less memory; CPUs; grids of thousands of blocks, instead of which two are enough.
        if not access.warm and not access.threads and not access.blocks
    }
    for name in ("stride_4", "stride_16", "elements_4_vectors"):  # no other kernels than those beside them
        del found[name]
    found["blocks"] = replace(base, blocks=2)
    found["elements_of_a_loop"] = replace(base, items=2, blocks=2)
    return found
