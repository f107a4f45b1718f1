"""Where ranks sit and what they may use, told by the kernel."""

from __future__ import annotations

import os
import random
from itertools import pairwise
from typing import cast

import pytest

from commbench import cgroup
from commbench.backends.world import World
from commbench.measure import site

CHANCE = random.Random(17)


@pytest.mark.parametrize(
    ("cpus", "text"),
    [({0}, "0"), ({0, 1}, "0-1"), ({0, 1, 2, 3, 8}, "0-3,8"), ({2, 4, 6}, "2,4,6"), ({9, 10, 11, 0}, "0,9-11")],
)
def test_the_cpus_of_a_process_are_told_as_ranges(monkeypatch: pytest.MonkeyPatch, cpus: set[int], text: str) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cpus, raising=False)
    assert site.affinity() == text


def test_the_ranges_hold_each_cpu_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(100):
        cpus = set(CHANCE.sample(range(64), CHANCE.randint(1, 64)))
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cpus=cpus: cpus, raising=False)
        ends = [[int(end) for end in part.split("-")] for part in site.affinity().split(",")]
        assert [cpu for part in ends for cpu in range(part[0], part[-1] + 1)] == sorted(cpus)
        assert all(after[0] > before[-1] + 1 for before, after in pairwise(ends))


def test_where_affinity_is_unknown_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert site.affinity() == ""


MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\nBuffers: 1 kB"


@pytest.mark.parametrize(
    ("meminfo", "left", "available"),
    [
        *((MEMINFO, None, 8_192_000_000), (MEMINFO, 2000, 2000), (MEMINFO, 0, 0), (MEMINFO, 1 << 50, 8_192_000_000)),
        *(("", 2000, 2000), ("", None, None)),
    ],
)
def test_available_memory_is_the_kernels_estimate_within_the_control_groups_limit(
    monkeypatch: pytest.MonkeyPatch, meminfo: str, left: int | None, available: int | None
) -> None:
    monkeypatch.setattr(site, "_read", {"/proc/meminfo": meminfo}.__getitem__)
    monkeypatch.setattr(cgroup, "memory_left", lambda: left)
    assert site.memory_available() == available


class GatheringWorld:
    """Rank 0 of a launch whose ranks told where they sit."""

    node, node_rank, node_size, cores = 0, 0, 1, 1

    def __init__(self, told: list[str], crowded: bool) -> None:
        self._told, self.crowded = told, crowded

    def largest(self, *values: int) -> tuple[int, ...]:
        return values

    def gather_text(self, text: str) -> list[str]:
        return self._told


@pytest.mark.parametrize(
    ("told", "on_a_node", "crowded"),
    [
        (["a/0/0//0/m1", *(f"b/1/{cpu}//{cpu}/m2" for cpu in range(4))], False, False),  # one rank here, four there
        (["a/0/0//0/m1", *(f"b/1/{cpu}//0-2/m2" for cpu in range(4))], False, True),
        ([f"c{node}/{node}/{place}//0-1/m" for node in (0, 1) for place in (0, 1)], False, True),  # containers
        ([f"c{node}/{node}/0//{node}/m" for node in (0, 1)], False, False),
        (["a/0/0///m"] * 4, False, False),  # no masks here: what MPI's nodes say is all that is known
        (["a/0/0//0/m1"], True, True),  # a CPU quota
    ],
)
def test_the_ranks_of_each_machine_are_held_against_its_own_cpus(
    told: list[str], on_a_node: bool, crowded: bool
) -> None:
    assert site.site(cast(World, GatheringWorld(told, on_a_node)))["crowded"] is crowded
