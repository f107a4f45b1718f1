"""Copies of /sys with adapters in them, whose counters tests raise.

Figures of `fixtures` are those that prometheus/procfs keeps of real adapters, with data as the kernel writes it, in
words of 4 bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

MLX5 = {
    "rate": "25 Gb/sec (1X EDR)",
    "link_layer": "InfiniBand",
    "state": "4: ACTIVE",
    "counters/port_xmit_data": 2880761508848,
    "counters/port_rcv_data": 18126345378,
    "counters/port_xmit_packets": 10907922116,
    "counters/port_xmit_wait": 0,
    "counters/VL15_dropped": 0,
    "hw_counters/lifespan": 10,
    "hw_counters/duplicate_request": 41,
    "hw_counters/roce_adp_retrans": 99,
    "hw_counters/rx_read_requests": 175528982,
}
MLX4 = {
    "rate": "40 Gb/sec (4X QDR)",
    "link_layer": "InfiniBand",
    "state": "4: ACTIVE",
    "counters/port_xmit_data": 26509113295,
    "counters/port_rcv_data": 2221223609,
    "counters/port_xmit_wait": 3599,
    "counters/link_downed": 0,
}
HFI1 = {
    "rate": "100 Gb/sec (4X EDR)",
    "link_layer": "InfiniBand",
    "state": "4: ACTIVE",
    "counters/port_xmit_data": 273558326543,
    "counters/port_rcv_data": 345091702026,
    "hw_counters/RcvHdrOvr10": 0,
    "hw_counters/LinkState": "SwLinkUp,32",
}


def port(sysfs: Path, name: str, files: Mapping[str, object]) -> Path:
    """Write a port, mlx5_0/1, or a device, mlx5_0, and return its folder."""
    device, _, number = name.partition("/")
    folder = sysfs / "class" / "infiniband" / device / (f"ports/{number}" if number else "")
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(f"{text}\n")
    return folder


def fixtures(sysfs: Path) -> None:
    """Write the adapters of prometheus/procfs."""
    port(sysfs, "mlx5_0/1", MLX5)
    port(sysfs, "mlx4_0/1", MLX4)
    port(sysfs, "mlx4_0/2", MLX4 | {"counters/port_xmit_data": 26540356890, "counters/port_xmit_wait": 3846})
    port(sysfs, "hfi1_0/1", HFI1)


def put(path: Path, number: int) -> None:
    """Write a number where it stands, as the kernel does: whoever has the file open reads it."""
    file = os.open(path, os.O_WRONLY)
    os.pwrite(file, f"{number:020d}\n".encode(), 0)
    os.close(file)
