"""What counters say of a node's GPUs that ran slower than they can: by heat, by power, by the hardware itself.

A trace does not tell for certain which GPU of its node a rank has (CUDA_VISIBLE_DEVICES), so that all of the node are
told of. At full load a GPU may be at its power cap all the time: what tells is that one is, and the others are not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commbench.attribution.counters import THROTTLED, Series, means
from commbench.attribution.layers import Window
from commbench.attribution.trace import Trace
from commbench.topology.hosts import same_host
from commbench.topology.show import counted

_NO_GPUS = "the counters given tell nothing of throttling on its node in these steps"
_NAMED = 3  # GPUs in a message
_SHOWN = 0.05  # %: what is less is printed as none


def throttled(trace: Trace, windows: Sequence[Window], counters: Sequence[Series]) -> str:
    """Return in words what counters say of throttling on a trace's node in its windows."""
    edges = np.array([(one.start, one.end) for one in windows], dtype=np.int64).reshape(-1, 2)
    shares: dict[str, dict[str, float]] = {}  # of each GPU, by reason: % of the windows' time, of those that it knows
    of_node = [series for series in counters if trace.host and trace.unix and same_host(series.host, trace.host)]
    for series in of_node:
        if series.kind == "gpu":
            for name, reason in THROTTLED.items():
                share = means(series, name, *edges.T)
                if (known := ~np.isnan(share)).any():
                    mean = np.average(share[known], weights=np.diff(edges)[known, 0])
                    shares.setdefault(series.source, {})[reason] = float(mean)
    if not shares:
        return _NO_GPUS
    slow = {gpu: {reason: share for reason, share in its.items() if share >= _SHOWN} for gpu, its in shares.items()}
    worst = sorted((gpu for gpu in slow if slow[gpu]), key=lambda gpu: -max(slow[gpu].values()))
    if not worst:
        return f"no GPU of its node was throttled; {counted(len(shares), 'GPU')} recorded"
    parts = [
        f"{gpu} by {', '.join(f'{reason} {share:.1f} %' for reason, share in slow[gpu].items())}"
        for gpu in worst[:_NAMED]
    ]
    parts += [f"{len(worst) - _NAMED} more, for less"] * (len(worst) > _NAMED)
    parts += [f"{counted(len(shares) - len(worst), 'GPU')} not"] * (len(worst) < len(shares))
    return f"throttled on its node, of these steps' time: {'; '.join(parts)}"
