"""commbench measures collective communication: every algorithm, checked, on the libraries of a cluster.

`import commbench` loads nothing heavy: every rank of a large job pays for what stands here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commbench.results.frame import load as load

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    if name == "load":
        from commbench.results.frame import load

        return load
    raise AttributeError(f"module 'commbench' has no attribute {name!r}")
