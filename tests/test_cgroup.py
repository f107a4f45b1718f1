"""The limits of control groups, read from made-up folders: both versions, every level, and what is no limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from commbench import cgroup

V2 = "0::/jobs/mine"
V1 = "7:cpu,cpuacct:/jobs/mine\n5:memory:/jobs/mine\n1:name=systemd:/user\n0::/"
STAT = "anon 2400\nactive_file 300\ninactive_file 200\nshmem 7"
STAT_1 = "active_file 1\ninactive_file 2\ntotal_active_file 300\ntotal_inactive_file 200"
NONE = str(2**63 - 4096)  # version 1's way to say that there is no limit


class Groups:
    """Files under a root of control groups, and the file that says in which groups a process is."""

    def __init__(self, folder: Path) -> None:
        self.root, self.process = folder / "cgroup", folder / "process"

    def write(self, process: str, files: dict[str, str]) -> None:
        self.process.write_text(process + "\n")
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")

    def cores(self) -> float | None:
        return cgroup.cores(str(self.root), str(self.process))

    def memory_left(self) -> int | None:
        return cgroup.memory_left(str(self.root), str(self.process))


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    return Groups(tmp_path)


@pytest.mark.parametrize(
    ("process", "files", "cores"),
    [
        (V2, {"jobs/mine/cpu.max": "150000 100000"}, 1.5),
        (V2, {"jobs/mine/cpu.max": "max 100000"}, None),
        (V2, {"jobs/mine/cpu.max": "max 100000", "jobs/cpu.max": "200000 100000"}, 2.0),  # a level above
        (V2, {"jobs/mine/cpu.max": "400000 100000", "jobs/cpu.max": "200000 100000"}, 2.0),  # the tightest
        (V2, {"jobs/mine/cpu.max": "50000 50000", "jobs/cpu.max": "200000 100000"}, 1.0),
        (V2, {"cpu.max": "300000 100000"}, 3.0),  # the root, as a container sees its own group
        (V2, {"jobs/other/cpu.max": "100000 100000"}, None),  # another one's
        (V1, {f"cpu,cpuacct/jobs/mine/cpu.cfs_{name}_us": text for name, text in [("quota", "250"), ("period", "100")]},
         2.5),
        (V1, {f"cpu,cpuacct/jobs/mine/cpu.cfs_{name}_us": text for name, text in [("quota", "-1"), ("period", "100")]},
         None),
        (V2, {"jobs/mine/cpu.max": "100000 0"}, None),
        (V2, {"jobs/mine/cpu.max": "much 100000"}, None),
        (V2, {}, None),
    ],
)  # fmt: skip
def test_the_cores_are_those_of_the_tightest_quota(
    groups: Groups, process: str, files: dict[str, str], cores: float | None
) -> None:
    groups.write(process, files)
    assert groups.cores() == cores


def memory(folder: str, top: str, used: str) -> dict[str, str]:
    return {f"{folder}memory.max": top, f"{folder}memory.current": used}


def memory_1(folder: str, top: str, used: str) -> dict[str, str]:
    return {f"memory/{folder}memory.limit_in_bytes": top, f"memory/{folder}memory.usage_in_bytes": used}


@pytest.mark.parametrize(
    ("process", "files", "left"),
    [
        (V2, memory("jobs/mine/", "3000", "1000"), 2000),
        (V2, memory("jobs/mine/", "max", "1000"), None),
        (V2, memory("jobs/mine/", "1000", "3000"), 0),
        (V2, memory("jobs/mine/", "3000", "2900") | {"jobs/mine/memory.stat": STAT}, 600),
        (V2, memory("jobs/mine/", "3000", "100") | {"jobs/mine/memory.stat": STAT}, 3000),
        (V2, memory("jobs/mine/", "3000", "2900") | {"jobs/mine/memory.stat": "nonsense"}, 100),
        (V2, memory("jobs/mine/", "3000", "1000") | memory("jobs/", "9000", "8500"), 500),
        (V2, memory("jobs/mine/", "max", "1000") | memory("jobs/", "9000", "8500"), 500),
        (V2, memory("", "3000", "1000"), 2000),
        (V2, {"jobs/mine/memory.max": "3000"}, None),  # how much of it is used is not known
        (V1, memory_1("jobs/mine/", "3000", "1000"), 2000),
        (V1, memory_1("jobs/mine/", "3000", "2900") | {"memory/jobs/mine/memory.stat": STAT_1}, 600),
        (V1, memory_1("jobs/mine/", NONE, "1000"), None),
        (V1, memory_1("jobs/mine/", NONE, "1000") | memory_1("jobs/", "9000", "8500"), 500),
        (V1, memory_1("user/", "3000", "1000"), None),  # the group of another controller
        (V2, {}, None),
    ],
)
def test_the_memory_is_what_the_tightest_limit_leaves(
    groups: Groups, process: str, files: dict[str, str], left: int | None
) -> None:
    groups.write(process, files)
    assert groups.memory_left() == left


def test_where_there_are_no_control_groups_there_is_no_limit(groups: Groups) -> None:
    assert (groups.cores(), groups.memory_left()) == (None, None)
    for text in ("", "nonsense", "0:", "::"):
        groups.write(text, {})
        assert (groups.cores(), groups.memory_left()) == (None, None)


def test_a_file_that_is_no_text_is_no_limit(groups: Groups) -> None:
    groups.write(V2, {"cpu.max": ""})
    (groups.root / "cpu.max").write_bytes(b"\xff\xfe")
    assert groups.cores() is None


def test_what_this_machine_says_is_a_limit_or_none() -> None:
    for limit in (cgroup.cores(), cgroup.memory_left()):
        assert limit is None or limit >= 0
