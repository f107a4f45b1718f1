"""AMD's GPUs by the files of the amdgpu driver: how busy GPU and memory are, power, clock, temperature.

Source: the kernel's Documentation/gpu/amdgpu/thermal.rst (gpu_busy_percent, mem_busy_percent, and those of hwmon).
"""

from __future__ import annotations

import re
from pathlib import Path

from commbench.attribution.counters import Column
from commbench.attribution.sources import Files, Found, Machine, Source, text

KIND = "gpu"
_FILES = {
    "gpu_busy_percent": Column("gpu_busy", "%", 1, True),
    "mem_busy_percent": Column("memory_busy", "%", 1, True),
    "hwmon/hwmon*/power1_average": Column("power", "W", 1e-6, True),
    "hwmon/hwmon*/power1_input": Column("power", "W", 1e-6, True),  # where newer drivers have it
    "hwmon/hwmon*/freq1_input": Column("gfx_clock", "MHz", 1e-6, True),
    "hwmon/hwmon*/temp1_input": Column("temperature", "C", 1e-3, True),  # at the edge
    "hwmon/hwmon*/temp2_input": Column("junction_temperature", "C", 1e-3, True),  # where it is hottest
}


def find(machine: Machine) -> Found:
    """Return a source for each card that tells how busy it is, by the kernel's name of it."""
    folder = machine.sysfs / "class" / "drm"
    cards = [path for path in sorted(folder.glob("card*")) if re.fullmatch(r"card\d+", path.name)]
    found = [source for card in cards if (source := _source(card, machine.live))]
    return Found(found, () if found else [f"amd: none: no card with gpu_busy_percent in {folder}"])


def _source(card: Path, live: bool) -> Source | None:
    device = card / "device"
    paths: dict[Column, Path] = {}
    for pattern, column in _FILES.items():
        for path in sorted(device.glob(pattern))[:1]:
            try:
                int(text(path))
            except (OSError, ValueError):
                continue
            paths.setdefault(column, path)
    if not any(column.name == "gpu_busy" for column in paths):
        return None
    return Source(card.name, KIND, {"pci": device.resolve().name}, list(paths), Files(list(paths.values()), live))
