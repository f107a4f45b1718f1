"""Triad: a = b + q c, as in STREAM (McCalpin 1995); two reads and one write of each element."""

from __future__ import annotations

from commbench.kernels._pattern import Pattern, reads, writes

PATTERNS = (
    Pattern(
        "triad",
        "triad",
        (reads("b"), reads("c"), writes("a")),
        ("a = b + q * c",),
        constants={"q": 0.4},
        dtypes=("float16", "bfloat16", "float32", "float64"),
    ),
)

if __name__ == "__main__":
    from commbench.kernels._door import main

    main(PATTERNS)
