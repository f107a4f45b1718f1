"""The collectives in plain NumPy, carried out for all ranks at once: the oracle that answers are held against."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from commbench.__main__ import doors
from commbench.measure.collective import Collective

Array: TypeAlias = "NDArray[Any]"
Reduce: TypeAlias = Callable[[Sequence[Array]], Array]

# x[r] is what rank r sends, one row a block; what comes back is what each rank receives. `nothing` has no row.
_DEFINITIONS: dict[str, Callable[[list[Array], int, Reduce, Array], list[Array]]] = {
    "allreduce": lambda x, root, reduce, nothing: [reduce(x)] * len(x),
    "allgather": lambda x, root, reduce, nothing: [np.concatenate(x)] * len(x),
    "reducescatter": lambda x, root, reduce, nothing: np.split(reduce(x), len(x)),
    "broadcast": lambda x, root, reduce, nothing: [x[root]] * len(x),
    "reduce": lambda x, root, reduce, nothing: [reduce(x) if r == root else nothing for r in range(len(x))],
    "alltoall": lambda x, root, reduce, nothing: list(np.stack(x).swapaxes(0, 1)),
    "gather": lambda x, root, reduce, nothing: [np.concatenate(x) if r == root else nothing for r in range(len(x))],
    "scatter": lambda x, root, reduce, nothing: np.split(x[root], len(x)),
    "sendrecv": lambda x, root, reduce, nothing: [*x[-1:], *x[:-1]],
}


def carry_out(collective: Collective, sends: Sequence[Array], root: int, reduce: Reduce) -> list[Array]:
    """Return a copy of what each rank receives, shape (blocks, count)."""
    nothing = sends[root][:0]
    return [received.copy() for received in _DEFINITIONS[collective.name](list(sends), root, reduce, nothing)]


def _find() -> dict[str, Collective]:
    modules = [importlib.import_module(f"commbench.{name}") for name in doors()]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Collective)]
    return {collective.name: collective for collective in found}


COLLECTIVES = _find()
