"""Weight update: Adam and AdamW on 16-bit weights with FP32 masters, and with all state in one type.

Adam as in Kingma and Ba 2015, algorithm 1; AdamW as in Loshchilov and Hutter 2019, algorithm 2, with the decay taken
off the master weight as PyTorch does. The step is the tenth: c1 = 1 / (1 - beta1^10), c2 likewise.
"""

from __future__ import annotations

from commbench.kernels._pattern import Pattern, Stream, reads, updates, writes

BETA1, BETA2, RATE, STEP = 0.9, 0.999, 1e-3, 10
CONSTANTS = {
    "beta1": BETA1,
    "new1": 1 - BETA1,
    "beta2": BETA2,
    "new2": 1 - BETA2,
    "c1": 1 / (1 - BETA1**STEP),
    "c2": 1 / (1 - BETA2**STEP),
    "rate": RATE,
    "eps": 1e-8,
}
ADAM = (
    "m = beta1 * m + new1 * g",
    "v = beta2 * v + new2 * g * g",
    "p = p - rate * (c1 * m) / (sqrt(c2 * v) + eps)",
)
ADAMW = ("p = keep * p", *ADAM)
DECAYING = {**CONSTANTS, "keep": 1 - RATE * 1e-2}  # weight decay 0.01, PyTorch's default
MIXED = (
    *(writes("w"), reads("g")),
    *(updates("p", "float32"), updates("m", "float32"), updates("v", "float32", least=0.1)),
)
HALF = ("float16", "bfloat16")


def uniform(dtype: str) -> tuple[Stream, ...]:
    """Return the streams of an update whose state is all of one type: there is no weight beside the master."""
    return (reads("g", dtype), updates("p", dtype), updates("m", dtype), updates("v", dtype, least=0.1))


PATTERNS = (
    Pattern("weight_update", "AdamW, mixed", MIXED, (*ADAMW, "w = p"), DECAYING, "adamw", dtypes=HALF),
    Pattern("weight_update", "Adam, mixed", MIXED, (*ADAM, "w = p"), CONSTANTS, "adam", dtypes=HALF),
    Pattern("weight_update", "AdamW, all 16-bit", uniform("working"), ADAMW, DECAYING, "adamw16", dtypes=HALF),
    Pattern("weight_update", "AdamW, all FP32", uniform("float32"), ADAMW, DECAYING, "adamw32", dtypes=()),
)

if __name__ == "__main__":
    from commbench.kernels._door import main

    main(PATTERNS)
