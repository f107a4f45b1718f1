"""What a device computes at most, by its vendor's data sheet: dense products, in matrix units where there are some.

Where a sheet prints a figure with sparsity, half of it is here. AMD's figures are compute units x clock x operations a
clock of its CDNA white papers too: 304 x 2.1 GHz x 2048 in 16 bits, of an MI300X. tf32 is float32 that matrix units
round.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_V100 = "NVIDIA V100 Tensor Core GPU data sheet"
_A100 = "NVIDIA A100 Tensor Core GPU data sheet"
_H100 = "NVIDIA H100 Tensor Core GPU data sheet"
_H200 = "NVIDIA H200 Tensor Core GPU data sheet"

# By data type, in this order; None: no such unit, or no figure of it.
DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8")
_ROWS: tuple[tuple[str, tuple[float | None, ...], str], ...] = (
    ("V100", (7.8, 15.7, None, 125, None, None), _V100),
    ("V100-PCIE", (7, 14, None, 112, None, None), _V100),
    ("V100S-PCIE", (8.2, 16.4, None, 130, None, None), _V100),
    ("T4", (None, 8.1, None, 65, None, None), "NVIDIA T4 Tensor Core GPU data sheet"),
    ("A10", (None, 31.2, 62.5, 125, 125, None), "NVIDIA A10 Tensor Core GPU data sheet"),
    ("A40", (None, 37.4, 74.8, 149.7, 149.7, None), "NVIDIA A40 data sheet"),
    ("A100", (19.5, 19.5, 156, 312, 312, None), _A100),
    ("L4", (None, 30.3, 60, 121, 121, 242.5), "NVIDIA L4 Tensor Core GPU data sheet"),
    ("L40", (None, 90.5, 90.5, 181, 181, 362), "NVIDIA L40 data sheet"),
    ("L40S", (None, 91.6, 183, 362, 362, 733), "NVIDIA L40S data sheet"),
    ("H100", (67, 67, 494.7, 989.4, 989.4, 1978.9), _H100),
    ("H100 PCIe", (51, 51, 378, 756, 756, 1513), _H100),
    ("H100 NVL", (60, 60, 417.5, 835.5, 835.5, 1670.5), _H100),
    ("H200", (67, 67, 494.7, 989.4, 989.4, 1978.9), _H200),
    ("H200 NVL", (60, 60, 417.5, 835.5, 835.5, 1670.5), _H200),
    ("GH200", (67, 67, 494.7, 989.4, 989.4, 1978.9), "NVIDIA GH200 Grace Hopper Superchip data sheet"),
    ("B200", (37, 75, 1125, 2250, 2250, 4500), "NVIDIA HGX B200 data sheet, of one of eight"),
    # An MI250 is two devices to a program, and so is an MI250X: half of the sheet's figures.
    ("MI210", (45.3, 45.3, None, 181, 181, None), "AMD Instinct MI210 data sheet"),
    ("MI250", (45.3, 45.3, None, 181, 181, None), "AMD Instinct MI250 data sheet, of one die"),
    ("MI250X", (47.9, 47.9, None, 191.5, 191.5, None), "AMD Instinct MI250X data sheet, of one die"),
    ("MI300A", (122.6, 122.6, 490.3, 980.6, 980.6, 1961.2), "AMD Instinct MI300A data sheet"),
    ("MI300X", (163.4, 163.4, 653.7, 1307.4, 1307.4, 2614.9), "AMD Instinct MI300X data sheet"),
    ("MI325X", (163.4, 163.4, 653.7, 1307.4, 1307.4, 2614.9), "AMD Instinct MI325X data sheet"),
    ("MI350X", (72.1, 144.2, None, 2306.9, 2306.9, 4613.7), "AMD Instinct MI350X data sheet"),
    ("MI355X", (78.6, 157.3, None, 2516.6, 2516.6, 5033.2), "AMD Instinct MI355X data sheet"),
)


class Peaks(NamedTuple):
    """What a device computes at most."""

    device: str  # as the table calls it
    flops: Mapping[str, float]  # FLOP/s by data type; without those that it has no figure of
    source: str  # the data sheet


def peaks(model: str) -> Peaks | None:
    """Return what the device computes that drivers call `model` (NVIDIA A100-SXM4-80GB); None where it is not known.

    The longest entry counts that is a word of its own in the name: a GH200 is no H200, an A4000 no A40.
    """
    found = [row for row in _ROWS if re.search(rf"(?<!\w){re.escape(row[0])}(?!\w)", model, re.IGNORECASE)]
    if not found:
        return None
    device, figures, source = max(found, key=lambda row: len(row[0]))
    known = zip(DTYPES, figures, strict=True)
    return Peaks(device, {dtype: figure * 1e12 for dtype, figure in known if figure is not None}, source)
