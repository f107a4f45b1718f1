"""Copy: b = a, bit for bit; one read and one write of each element."""

from __future__ import annotations

from commbench.kernels._pattern import Pattern, reads, writes

PATTERNS = (
    Pattern(
        "copy",
        "copy",
        (reads("a"), writes("b")),
        ("b = a",),
        dtypes=("float16", "bfloat16", "float32", "float64"),
    ),
)

if __name__ == "__main__":
    from commbench.kernels._door import main

    main(PATTERNS)
