"""Counters of network ports, devices and processors over time, as telemetry records them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Times = NDArray[np.int64]


@dataclass(frozen=True)
class Series:
    """One source's counters, sampled."""

    host: str
    source: str  # mlx5_0/1: a device and its port; gpu0; cpu
    kind: str  # "rdma", "gpu", "cpu"
    time: Times  # (samples,), ns since 1970
    values: Mapping[str, NDArray[np.float64]]  # (samples,) each; NaN where a sample lacks it
    facts: Mapping[str, str]  # rate, link_layer, state, ...
