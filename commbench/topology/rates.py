"""How fast links of a kind are: what standards fix, and the defaults for links of which only the number is known.

Gb/s per direction throughout. A vendor's data sheet often adds both directions up.
"""

from __future__ import annotations

import re

from commbench.topology.node import C2C, NVLINK, PCIE, XGMI, Link

# GT/s of a lane -> share of the bits that are not coding. PCI Express base specification: 8b/10b, then 128b/130b; from
# 6.0 flits of 256 bytes, of which 242 carry packets.
_PCIE_CODING = {2.5: 8 / 10, 5.0: 8 / 10, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130, 64.0: 242 / 256}

# GB/s of one NVLink as NCCL counts on it, by compute capability: NCCL 2.28 to 2.30, src/graph/topo.h.
_NVLINK_GBYTES = ((100, 40.1), (90, 20.6), (87, 20.0), (86, 12.0), (80, 20.0), (70, 20.0), (60, 18.0))
_NVLINK_UNKNOWN = 20.0  # what it takes for any other
# GB/s of one xGMI link as RCCL counts on it: RCCL of ROCm 6 and 7, src/graph/topo.h.
_XGMI_GBYTES = (("gfx95", 48.0), ("gfx94", 48.0), ("gfx90a", 36.0))
_XGMI_OTHER = 24.0

# GB/s between the sockets (or NUMA nodes) of a machine, ibidem.
_ARM_GBYTES, _POWER_GBYTES, _INTEL_OLD_GBYTES = 6.0, 32.0, 6.0

# Gb/s that a single cable (of PCIe: sixteen lanes) carries per direction in the fastest generation on sale: NVLink 5,
# the xGMI of MI350, PCIe 6.0, NVLink-C2C of Grace (all of its lanes). More is most likely both directions together.
FASTEST = {NVLINK: 400.0, XGMI: 640.0, PCIE: 968.0, C2C: 3600.0}

MOST_NVLINKS = 18  # of one GPU: Hopper and Blackwell (their data sheets)


def pcie_gbps(speed: str, lanes: int) -> float | None:
    """Return what a slot carries, None if unknown: `speed` as the kernel writes it, such as "16.0 GT/s PCIe"."""
    found = re.match(r"\s*(\d+(?:\.\d+)?) *GT/s", speed)
    rate = float(found[1]) if found and len(found[1]) < 9 else 0.0
    coding = _PCIE_CODING.get(rate)
    return rate * coding * lanes if coding and 0 < lanes <= 32 else None


def nvlink_gbps(arch: str) -> float:
    """Return NCCL's default for one NVLink of a GPU, such as "sm90"."""
    found = re.fullmatch(r"sm(\d{2,3})", arch)
    capability = int(found[1]) if found else 0
    return 8 * next((rate for least, rate in _NVLINK_GBYTES if capability >= least), _NVLINK_UNKNOWN)


def xgmi_gbps(arch: str) -> float | None:
    """Return RCCL's default for one xGMI link of a GPU, such as "gfx942"; None where the GPU is not known."""
    if not arch:
        return None
    return 8 * next((rate for begin, rate in _XGMI_GBYTES if arch.startswith(begin)), _XGMI_OTHER)


def socket_gbps(arch: str, vendor: str, family: int, model: int) -> float | None:
    """Return NCCL's default between the CPUs of a machine; `family` and `model` as NCCL's XML and CPUID have them."""
    if arch == "arm64":
        return 8 * _ARM_GBYTES
    if arch == "ppc64":
        return 8 * _POWER_GBYTES
    if vendor == "GenuineIntel":
        # Granite Rapids and Sierra Forest are newer than Emerald Rapids, with lower numbers.
        newest = model >= 0xCF or model in (0xAD, 0xAE, 0xAF)
        rate = 40.0 if newest else 22.0 if model >= 0x8F else 10.0 if model >= 0x55 else _INTEL_OLD_GBYTES
        return 8 * (rate if family == 6 else _INTEL_OLD_GBYTES)
    if vendor == "AuthenticAMD":  # Zen 5, Zen 3 and 4, before; the large numbers are those of older RCCL
        return 8 * (32.0 if family in (26, 0xBF) else 24.0 if family in (25, 0xAF) else 16.0)
    return None


def counts_both(link: Link) -> bool:
    """Whether a link is said to carry more than any of its kind does in one direction.

    A single NVLink may be all of a GPU's, where nobody counted them.
    """
    most = FASTEST.get(link.kind)
    cables = 1 if link.kind == C2C else max(1, link.count)
    if link.kind == NVLINK and cables == 1:
        cables = MOST_NVLINKS
    return link.gbps is not None and most is not None and link.gbps > 1.001 * most * cables
