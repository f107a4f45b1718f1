"""Fill: b = q; only writes. On CPUs a plain store reads its line first, which a streaming store does not."""

from __future__ import annotations

from commbench.kernels._pattern import Pattern, writes

PATTERNS = (
    Pattern(
        "fill",
        "fill",
        (writes("b"),),
        ("b = q",),
        constants={"q": 0.4},
        dtypes=("float16", "bfloat16", "float32", "float64"),
    ),
)

if __name__ == "__main__":
    from commbench.kernels._door import main

    main(PATTERNS)
