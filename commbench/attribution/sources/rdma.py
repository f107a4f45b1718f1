"""Ports of InfiniBand, RoCE, iWARP and Omni-Path adapters: every counter that the kernel has of them, by its name.

    DEVICE/ports/N/counters, counters_ext (before Linux 4.5), hw_counters      DEVICE/hw_counters

Source: the kernel's Documentation/ABI (sysfs-class-infiniband).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from commbench.attribution.counters import rdma_column
from commbench.attribution.sources import Files, Found, Machine, Source, text

KIND = "rdma"
FOLDERS = ("counters", "counters_ext", "hw_counters")
REFRESH_MS = 10  # of hw_counters, where `lifespan` does not say
SHOWN = 3  # of what was left out


def find(machine: Machine) -> Found:
    """Return a source for each port, and one for each device with counters of its own."""
    sources, notes = [], []
    for name, folder, facts in _places(machine.infiniband):
        source, said = _source(name, folder, facts, machine.live)
        notes += said
        if source:
            sources.append(source)
    if not sources and not notes:
        notes.append(f"rdma: none: no device in {machine.infiniband}")
    return Found(sources, notes)


def _places(infiniband: Path) -> Iterator[tuple[str, Path, Mapping[str, str]]]:
    """Yield names, folders and facts of all ports and devices."""
    for device in sorted(infiniband.glob("*")):
        about = _facts(device, ("fw_ver", "hca_type", "board_id"))
        for port in sorted(device.glob("ports/*"), key=lambda path: (len(path.name), path.name)):
            facts = _facts(port, ("rate", "link_layer", "state", "phys_state"))
            yield f"{device.name}/{port.name}", port, {**facts, **about}
        if (device / "hw_counters").is_dir():
            yield device.name, device, about


def _facts(folder: Path, names: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in names:
        with suppress(OSError):
            found[name] = text(folder / name)
    return found


def _source(name: str, folder: Path, facts: Mapping[str, str], live: bool) -> tuple[Source | None, list[str]]:
    paths: dict[str, Path] = {}
    refresh, left_out = 0, []
    for part in FOLDERS:
        if part == "hw_counters" and (folder / part).is_dir():
            refresh = REFRESH_MS
        for path in sorted((folder / part).glob("*")):
            try:
                said = text(path)
            except OSError as error:  # a folder, or what this adapter does not count
                left_out.append(f"{path.name} ({error.strerror})")
                continue
            if not (said.isascii() and said.isdigit()):
                left_out.append(f"{path.name} ({said[:40]!r})")
            elif path.name == "lifespan":
                refresh = int(said)
            else:
                paths[path.name if path.name not in paths else f"{part}/{path.name}"] = path
    notes = []
    if left_out:
        more = f" and {len(left_out) - SHOWN} more" if len(left_out) > SHOWN else ""
        notes.append(f"{name}: left out, as they are no whole numbers: {', '.join(left_out[:SHOWN])}{more}")
    if not paths:
        return None, [*notes, f"{name}: no counters"]
    columns = [rdma_column(counter) for counter in paths]
    return Source(name, KIND, facts, columns, Files(list(paths.values()), live), refresh), notes
