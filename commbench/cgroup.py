"""The limits that a container or a batch system puts on this process: Linux control groups, version 1 and 2.

A limit may stand at any level between the process's own group and the root, so all of them are looked at.
Source: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

_ROOT = "/sys/fs/cgroup"
_PROCESS = "/proc/self/cgroup"
_UNLIMITED = 1 << 62  # version 1 writes 2^63 less a page where there is no limit


def cores(root: str = _ROOT, process: str = _PROCESS) -> float | None:
    """Return the cores that the tightest CPU quota amounts to, or None without one."""
    found = []
    for folder in _folders("cpu", root, process):
        quota, period = [*_read(f"{folder}/cpu.max").split(), "", ""][:2]
        if not quota:
            quota, period = _read(f"{folder}/cpu.cfs_quota_us"), _read(f"{folder}/cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            found.append(int(quota) / int(period))
    return min(found, default=None)


def memory_left(root: str = _ROOT, process: str = _PROCESS) -> int | None:
    """Return the bytes that the tightest memory limit leaves, or None without one.

    Cached files count as used, but give way, as in the kernel's own estimate of what is available (MemAvailable).
    """
    found = []
    for folder in _folders("memory", root, process):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            top, current = _read(f"{folder}/{limit}"), _read(f"{folder}/{used}")
            if top.isdigit() and current.isdigit() and int(top) < _UNLIMITED:
                found.append(max(0, int(top) - max(0, int(current) - _cached(folder))))
    return min(found, default=None)


def _cached(folder: str) -> int:
    """Return the bytes of cached files in a group and those below it; version 1 has those sums under `total_`."""
    stat = dict(line.split(maxsplit=1) for line in _read(f"{folder}/memory.stat").splitlines() if " " in line)
    sums = (stat.get(f"total_{name}", stat.get(name, "")) for name in ("active_file", "inactive_file"))
    return sum(int(text) for text in sums if text.isdigit())


def _folders(controller: str, root: str, process: str) -> Iterator[str]:
    """Yield the folders of the groups this process is in, from its own up to the root."""
    for line in _read(process).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        top = os.path.join(root, controllers)
        names = [name for name in path.split("/") if name]
        for depth in range(len(names), -1, -1):
            yield os.path.join(top, *names[:depth])


def _read(path: str) -> str:
    with suppress(OSError, UnicodeDecodeError), open(path, encoding="ascii") as file:
        return file.read().strip()
    return ""
