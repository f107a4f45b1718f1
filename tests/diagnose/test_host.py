"""The machine around the libraries: what is read, and which settings are findings."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from commbench.diagnose import host
from commbench.diagnose.system import BROKEN, SLOW
from tests.diagnose.machines import Machine


def test_cores_are_those_allowed_of_those_there_are(machine: Machine) -> None:
    machine.file("/proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor\n")
    machine.file("/proc/self/status", "Name:\tpython\nCpus_allowed_list:\t0-3,8\n")
    for core in range(16):
        machine.file(f"/sys/devices/system/cpu/cpu{core}/online", "1")
    assert host.cpu(machine.system()).text == "AMD EPYC 9654 96-Core Processor; 5 of 16 cores allowed, no quota"


def test_a_quota_below_the_cores_allowed_is_a_finding(machine: Machine) -> None:
    machine.file("/proc/self/status", "Cpus_allowed_list:\t0-3\n")
    machine.file("/proc/self/cgroup", "0::/pod\n")
    quota = machine.file("/sys/fs/cgroup/pod/cpu.max", "150000 100000\n")
    (finding,) = host.cpu(machine.system()).findings
    assert (finding.level, finding.value) == (SLOW, "a quota of 1.5 cores on 4")
    quota.write_text("400000 100000\n")
    assert host.cpu(machine.system()).findings == ()


def test_memory_is_what_is_there_and_what_a_control_group_leaves(machine: Machine) -> None:
    machine.file("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n")
    assert host.memory(machine.system()).text == "16 GiB, no limit"
    machine.file("/proc/self/cgroup", "0::/pod\n")
    machine.file("/sys/fs/cgroup/pod/memory.max", str(4 << 30))
    machine.file("/sys/fs/cgroup/pod/memory.current", str(1 << 30))
    assert host.memory(machine.system()).text == "16 GiB, 3 GiB left below the limit of a control group"


@pytest.mark.parametrize(("value", "said", "count"), [("0", "off", 0), ("1", "on", 1), ("2", "on", 1)])
def test_pages_that_move_are_a_finding(machine: Machine, value: str, said: str, count: int) -> None:
    machine.file("/sys/devices/system/node/node0/cpulist", "0-31\n")
    machine.file("/sys/devices/system/node/node1/cpulist", "32-63\n")
    machine.file("/proc/sys/kernel/numa_balancing", f"{value}\n")
    found = host.numa(machine.system())
    assert found.text == f"2 nodes (0: 0-31, 1: 32-63); balancing {said}"
    assert len(found.findings) == count


@pytest.mark.parametrize(
    ("line", "text", "count"),
    [
        ("quiet", "on, translating", 1),
        ("quiet intel_iommu=on iommu=pt", "on, passthrough intel_iommu=on iommu=pt", 0),
        ("iommu.passthrough=1", "on, passthrough", 0),
    ],
)
def test_an_iommu_that_translates_is_a_finding_where_devices_talk(
    machine: Machine, line: str, text: str, count: int
) -> None:
    machine.file("/proc/cmdline", f"BOOT_IMAGE=/vmlinuz {line}\n")
    assert host.iommu(machine.system()).text.startswith("off")
    machine.file("/sys/class/iommu/dmar0/devices", "")
    found = host.iommu(machine.system())
    assert (found.text, found.findings) == (text, ())
    machine.file("/proc/driver/nvidia/gpus/0000:1b:00.0/information", "Model: NVIDIA H100\n")
    assert len(host.iommu(machine.system()).findings) == count


def test_a_governor_that_follows_the_load_is_a_finding(machine: Machine) -> None:
    file = machine.file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n")
    assert host.governor(machine.system()).findings == ()
    machine.file("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n")
    assert [one.value for one in host.governor(machine.system()).findings] == ["governor performance, powersave"]
    file.unlink()
    assert host.governor(machine.system()).text == "powersave"


def test_the_choice_of_huge_pages_is_the_one_in_brackets(machine: Machine) -> None:
    machine.file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    assert host.hugepages(machine.system()).text == "madvise"


@pytest.mark.parametrize(
    ("size", "free", "levels"),
    [(64 << 30, 63 << 30, []), (64 << 20, 64 << 20, [SLOW]), (64 << 20, 1 << 20, [BROKEN])],
)
def test_a_small_shared_memory_is_a_finding(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, size: int, free: int, levels: list[str]
) -> None:
    there = SimpleNamespace(f_frsize=4096, f_blocks=size // 4096, f_bavail=free // 4096)
    monkeypatch.setattr(os, "statvfs", lambda path: there)
    found = host.shared_memory(machine.system())
    assert [finding.level for finding in found.findings] == levels
    assert (found.facts["bytes"], found.facts["free_bytes"]) == (size, free)


def test_no_shared_memory_at_all_is_a_finding(machine: Machine) -> None:
    assert [finding.level for finding in host.shared_memory(machine.system()).findings] == [BROKEN]


def test_locked_memory_matters_where_there_is_an_adapter(machine: Machine) -> None:
    limits = machine.file(
        "/proc/self/limits", "Max locked memory         8388608              8388608              bytes\n"
    )
    assert (host.memlock(machine.system()).text, host.memlock(machine.system()).findings) == ("8 MiB", ())
    machine.file("/sys/class/infiniband/mlx5_0/fw_ver", "28.39.1002")
    assert [finding.level for finding in host.memlock(machine.system()).findings] == [BROKEN]
    limits.write_text("Max locked memory         unlimited            unlimited            bytes\n")
    assert (host.memlock(machine.system()).text, host.memlock(machine.system()).findings) == ("unlimited", ())


def test_what_a_killed_launcher_left_is_a_finding_and_what_runs_is_none(machine: Machine) -> None:
    machine.file("/tmp/ompi.3145/pmix.host.tool", "")
    machine.file("/tmp/ompi.notes/file", "")
    machine.file("/proc/3145/stat", "")
    assert (host.sessions(machine.system()).findings, host.sessions(machine.system()).facts) == ((), {"left": []})
    machine.file("/tmp/ompi.3146/pmix.host.tool", "")
    (finding,) = host.sessions(machine.system()).findings
    assert (finding.level, finding.remedy) == (BROKEN, "remove them")
    assert finding.value.endswith("gone: /tmp/ompi.3146")


@pytest.mark.parametrize("name", host.CHECKS)
@pytest.mark.parametrize("text", [None, "", "\x00\xff", "999999999999999999999", "a: b: c"])
def test_nothing_and_garbage_are_answers_too(machine: Machine, name: str, text: str | None) -> None:
    files = ("/proc/cpuinfo", "/proc/meminfo", "/proc/self/limits", "/proc/self/cgroup", "/proc/cmdline")
    for path in files if text is not None else ():
        machine.file(path, text or "")
    found = host.CHECKS[name](machine.system())
    assert found.text
    assert found.ok is None
