"""Scale: b = q a; one read and one write of each element, and arithmetic."""

from __future__ import annotations

from commbench.kernels._pattern import Pattern, reads, writes

PATTERNS = (
    Pattern(
        "scale",
        "scale",
        (reads("a"), writes("b")),
        ("b = q * a",),
        constants={"q": 0.4},
        dtypes=("float16", "bfloat16", "float32", "float64"),
    ),
)

if __name__ == "__main__":
    from commbench.kernels._door import main

    main(PATTERNS)
