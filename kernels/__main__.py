"""Kernels: what memory bandwidth copies, sums and weight updates get, and what each access pattern costs."""

from __future__ import annotations

if __name__ == "__main__":
    from commbench.kernels._door import main

    main()
