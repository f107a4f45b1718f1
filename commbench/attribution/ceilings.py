"""What a device can do at most: its memory as our kernels measured it, its arithmetic as its vendor states it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from commbench.results.kernels import BASELINE, CEILING, KERNELS
from commbench.results.record import Record
from commbench.results.status import OK

_H100 = {"float64": 67, "float32": 67, "tf32": 494.7, "float16": 989.4, "bfloat16": 989.4, "float8": 1978.9}
_MI300X = {"float64": 163.4, "float32": 163.4, "tf32": 653.7, "float16": 1307.4, "bfloat16": 1307.4, "float8": 2614.9}
# TFLOP/s of dense products, in matrix units where there are some: vendors' data sheets, whose figures with sparsity are
# halved here. tf32 is float32 that matrix units round. The longest name that fits counts.
_SHEETS: dict[str, Mapping[str, float]] = {
    "V100": {"float64": 7.8, "float32": 15.7, "float16": 125},
    "T4": {"float32": 8.1, "float16": 65},
    "A10": {"float32": 31.2, "tf32": 62.5, "float16": 125, "bfloat16": 125},
    "A40": {"float32": 37.4, "tf32": 74.8, "float16": 149.7, "bfloat16": 149.7},
    "A100": {"float64": 19.5, "float32": 19.5, "tf32": 156, "float16": 312, "bfloat16": 312},
    "L4": {"float32": 30.3, "tf32": 60, "float16": 121, "bfloat16": 121, "float8": 242.5},
    "L40": {"float32": 90.5, "tf32": 90.5, "float16": 181, "bfloat16": 181, "float8": 362},
    "L40S": {"float32": 91.6, "tf32": 183, "float16": 362, "bfloat16": 362, "float8": 733},
    "H100": _H100,
    "H100 PCIe": {"float64": 51, "float32": 51, "tf32": 378, "float16": 756, "bfloat16": 756, "float8": 1513},
    "H100 NVL": {"float64": 60, "float32": 60, "tf32": 418, "float16": 835, "bfloat16": 835, "float8": 1671},
    "H200": _H100,
    "GH200": _H100,
    "B200": {"float64": 37, "float32": 75, "tf32": 1125, "float16": 2250, "bfloat16": 2250, "float8": 4500},
    "MI210": {"float64": 45.3, "float32": 45.3, "float16": 181, "bfloat16": 181},
    "MI250": {"float64": 45.3, "float32": 45.3, "float16": 181, "bfloat16": 181},  # of one die, which is one device
    "MI250X": {"float64": 47.9, "float32": 47.9, "float16": 191.5, "bfloat16": 191.5},  # of one die
    "MI300A": {
        "float64": 122.6,
        "float32": 122.6,
        "tf32": 490.3,
        "float16": 980.6,
        "bfloat16": 980.6,
        "float8": 1961.2,
    },
    "MI300X": _MI300X,
    "MI325X": _MI300X,
    "MI350X": {"float64": 72.1, "float32": 144.2, "float16": 2306.9, "bfloat16": 2306.9, "float8": 4613.7},
    "MI355X": {"float64": 78.6, "float32": 157.3, "float16": 2516.6, "bfloat16": 2516.6, "float8": 5033.2},
}
DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8")  # of products


@dataclass(frozen=True)
class Ceilings:
    """What the device can do at most."""

    bandwidth: float | None = None  # bytes/s, measured by our own kernels where there are records
    flops: Mapping[str, float] = field(default_factory=dict)  # FLOP/s by data type
    source: str = ""  # in words


def ceilings(
    model: str = "",
    records: Iterable[Record] = (),
    bandwidth: float | None = None,
    flops: Mapping[str, float] | None = None,
) -> Ceilings:
    """Return what a device can do, which its vendor calls `model`; "" is the host's processor.

    `records`: of kernels, from such a device: the best median of a baseline or ceiling counts, since those go through
    memory in the best way and through no cache. `bandwidth` (bytes/s) and `flops` (FLOP/s by data type) stand over
    both. What nobody measured or gave is left open: a data sheet's bandwidth is one that no kernel reaches.
    """
    words = []
    if bandwidth is not None:
        words.append(f"{bandwidth / 1e9:.0f} GB/s, given")
    elif rates := [one.algbw for one in records if one.algbw and _goes_through_memory(one, bool(model))]:
        bandwidth = max(rates) * 1e9
        words.append(f"{max(rates):.0f} GB/s, measured by {len(rates)} records of kernels")
    else:
        words.append("no bandwidth: measure it by python -m commbench.kernels on such a device")
    sheet = _sheet(model)
    known = {name: tera * 1e12 for name, tera in _SHEETS[sheet].items()} if sheet else {}
    if flops is not None:
        words.append("FLOP/s given")
    elif sheet:
        words.append(f"FLOP/s of the data sheet of {sheet}")
    else:
        words.append(f"no FLOP/s of {model or 'the processor'} are known: give them")
    return Ceilings(bandwidth, known | dict(flops or {}), "; ".join(words))


def _goes_through_memory(record: Record, on_device: bool) -> bool:
    right = record.collective == KERNELS and record.status == OK and not record.simulated
    return right and record.algorithm.endswith((BASELINE, CEILING)) and (record.buffer == "device") == on_device


def _sheet(model: str) -> str:
    """Return the longest entry that is a word of its own in a device's name: a GH200 is no H200, an A4000 no A40."""
    found = (name for name in _SHEETS if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", model))
    return max(found, key=len, default="")
