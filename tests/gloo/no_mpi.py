"""A door where importing mpi4py is an error: `python -m tests.gloo.no_mpi NAME ...`."""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    sys.modules["mpi4py"] = None  # type: ignore[assignment]
    del sys.argv[0]
    runpy.run_module(f"commbench.{sys.argv[0]}", run_name="__main__")
