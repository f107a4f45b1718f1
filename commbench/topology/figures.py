"""What a figure of a link can be: its unit, its bounds, and figures of data sheets that count both directions."""

from __future__ import annotations

import re

from commbench.topology.node import C2C, NVLINK, PCIE, XGMI

MOST_GBPS = 100_000  # of one cable: eight times the fastest link of a GPU there is
MOST_US = 1_000_000  # a second

LONG_US = 100  # more than any link within a building takes: nanoseconds, most likely
# Gb/s below which a link is rather stated in GB/s: PCIe 3.0 x8, and one cable of NVLink 1 and of xGMI at a third.
SLOW_GBPS = {PCIE: 64.5, NVLINK: 60.0, XGMI: 60.0}

# Bandwidth that data sheets print for both directions together: link, architecture ("": not said), GB/s, what it is of.
BOTH_WAYS = (
    (NVLINK, "sm70", 300, "a V100's NVLink"),
    (NVLINK, "sm80", 600, "an A100's NVLink"),
    (NVLINK, "sm80", 400, "an A800's NVLink"),
    (NVLINK, "sm90", 900, "an H100's or H200's NVLink"),
    (NVLINK, "sm90", 600, "an H100 NVL's NVLink"),
    (NVLINK, "sm90", 400, "an H800's NVLink"),
    (NVLINK, "sm100", 1800, "a B200's NVLink"),
    (NVLINK, "sm103", 1800, "a B300's NVLink"),
    (NVLINK, "", 1800, "a B200's NVLink"),
    (NVLINK, "", 900, "an H100's or H200's NVLink"),
    (NVLINK, "", 600, "an A100's NVLink"),
    (C2C, "sm90", 900, "a GH200's NVLink-C2C"),
    (C2C, "", 900, "a GH200's NVLink-C2C"),
    (PCIE, "sm70", 32, "PCIe 3.0 x16"),
    *((PCIE, arch, 64, "PCIe 4.0 x16") for arch in ("sm80", "sm86", "sm89", "gfx908", "gfx90a")),
    *((PCIE, arch, 128, "PCIe 5.0 x16") for arch in ("sm90", "sm100", "gfx942", "gfx950", "")),
    (XGMI, "gfx908", 92, "one of an MI100's links"),
    (XGMI, "gfx90a", 100, "one of an MI250X's links"),
    (XGMI, "gfx942", 128, "one of an MI300X's links"),
    (XGMI, "gfx950", 153.6, "one of an MI355X's links"),
)

_RATE = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*([kMGT]?)(i?)(b|B|bit|byte|bytes)(?:/s|ps|/sec)?")
_TIME = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*(ns|us|µs|μs|ms|s)")
_POWERS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4}
_MICROSECONDS = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "μs": 1.0, "ms": 1e3, "s": 1e6}


def gbps_of(text: str) -> float | None:
    """Return the Gb/s that a rate with a unit stands for: "900GB/s" is 7200, "400Gb/s" 400; None for no rate."""
    found = _RATE.fullmatch(text.strip())
    if not found:
        return None
    base = 1024 if found[3] else 1000
    bits = float(found[1]) * base ** _POWERS[found[2]] * (1 if found[4] in ("b", "bit") else 8)
    return float(f"{bits / 1e9:.6g}")


def us_of(text: str) -> float | None:
    """Return the microseconds that a time with a unit stands for: "600ns" is 0.6; None for no time."""
    found = _TIME.fullmatch(text.strip())
    if not found:
        return None
    return float(f"{float(found[1]) * _MICROSECONDS[found[2]]:.6g}")


def in_bytes(kind: str, gbps: float, count: int = 1) -> str:
    """Return what is odd about a link so slow that GB/s may be meant, "" where nothing is; as `both_ways` has it."""
    one = gbps / count if kind != PCIE else gbps
    if one >= SLOW_GBPS.get(kind, 0.0):
        return ""
    return f"{gbps:g} Gb/s is little for {kind}: if GB/s are meant it is {8 * gbps:g}"


def both_ways(kind: str, arch: str, gbps: float, count: int = 1) -> str:
    """Return what `gbps` is known to be where it counts both directions, "" where it is nothing known.

    gbps: of all `count` cables of a link together, as Link has it; xGMI is known by the cable.
    """
    one = gbps / count if kind == XGMI else gbps
    for of, on, known, what in BOTH_WAYS:
        if (of, on) == (kind, arch) and abs(one - 8 * known) <= 0.01 * known:
            each = 4 * known * (count if kind == XGMI else 1)
            return f"{gbps:g} Gb/s is what {what} has in both directions together: {each:g} each"
    return ""
