"""The element types, by nccl-tests' names and NumPy's.

A bfloat16 is kept in a uint16, since NumPy has none: what is computed with it goes through float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from commbench.errors import unknown_name


@dataclass(frozen=True)
class Dtype:
    """An element type: its canonical `name`, its `storage` in NumPy, and how exact it is."""

    name: str
    storage: str
    itemsize: int
    exact_bits: int  # whole numbers up to 2**exact_bits are exact; 0 for integers, which wrap
    short: str  # the name in nccl-tests' table

    @property
    def is_float(self) -> bool:
        return self.exact_bits > 0


DTYPES = {
    dtype.name: dtype
    for dtype in (
        Dtype("int8", "int8", 1, 0, "int8"),
        Dtype("uint8", "uint8", 1, 0, "uint8"),
        Dtype("int32", "int32", 4, 0, "int32"),
        Dtype("uint32", "uint32", 4, 0, "uint32"),
        Dtype("int64", "int64", 8, 0, "int64"),
        Dtype("uint64", "uint64", 8, 0, "uint64"),
        Dtype("float16", "float16", 2, 11, "half"),
        Dtype("bfloat16", "uint16", 2, 8, "bfloat16"),
        Dtype("float32", "float32", 4, 24, "float"),
        Dtype("float64", "float64", 8, 53, "double"),
    )
}
ALIASES = {"half": "float16", "float": "float32", "double": "float64"}


def find_dtype(name: str) -> Dtype:
    """Return the element type called `name`; raise UsageError with the nearest names where there is none."""
    key = name.lower()
    key = ALIASES.get(key, key)
    if key not in DTYPES:
        raise unknown_name("data type", name, [*DTYPES, *ALIASES])
    return DTYPES[key]
