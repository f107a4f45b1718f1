"""Read: the sum of all elements; only reads."""

from __future__ import annotations

from commbench.kernels._pattern import Pattern, reads

PATTERNS = (
    Pattern(
        "read",
        "read",
        (reads("a"),),
        (),
        sums="a",
        dtypes=("float16", "bfloat16", "float32", "float64"),
    ),
)

if __name__ == "__main__":
    from commbench.kernels._door import main

    main(PATTERNS)
