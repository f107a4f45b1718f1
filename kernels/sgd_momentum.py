"""SGD with momentum: m = mu m + g, p = p - rate m (as PyTorch has it); mixed precision, and all state in one type."""

from __future__ import annotations

from commbench.kernels._pattern import Pattern, reads, updates, writes

RULE = ("m = mu * m + g", "p = p - rate * m")
CONSTANTS = {"mu": 0.9, "rate": 1e-3}
MIXED = (writes("w"), reads("g"), updates("p", "float32"), updates("m", "float32"))
UNIFORM = (reads("g"), updates("p"), updates("m"))
HALF = ("float16", "bfloat16")

PATTERNS = (
    Pattern("sgd_momentum", "SGD with momentum, mixed", MIXED, (*RULE, "w = p"), CONSTANTS, "mixed", dtypes=HALF),
    Pattern("sgd_momentum", "SGD with momentum, all 16-bit", UNIFORM, RULE, CONSTANTS, "half", dtypes=HALF),
)

if __name__ == "__main__":
    from commbench.kernels._door import main

    main(PATTERNS)
