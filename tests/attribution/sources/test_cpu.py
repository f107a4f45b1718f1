"""Processors, by files of /proc as prometheus/procfs keeps them, and by this machine's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commbench.attribution.sources import Machine, cpu

STAT = """cpu  301854 612 111922 8979004 3552 2 3944 7 0 0
cpu0 44490 19 21045 1087069 220 1 3410 0 0 0
cpu1 47869 23 16474 1110787 591 0 46 0 0 0
intr 8885917 17 0 0 0 0 0 0 0 1 79281 0 0 0 0
ctxt 38014093
btime 1418183276
"""
PRESSURE = """some avg10=0.10 avg60=2.00 avg300=3.85 total=15
full avg10=0.20 avg60=3.00 avg300=4.95 total=25
"""


def machine(proc: Path, pressure: bool = True) -> Machine:
    proc.mkdir()
    (proc / "stat").write_text(STAT)
    for name in ("cpu", "memory") if pressure else ():
        (proc / "pressure").mkdir(exist_ok=True)
        (proc / "pressure" / name).write_text(PRESSURE)
    return Machine(proc=proc)


def values(proc: Path) -> dict[str, float | None]:
    (source,) = cpu.find(Machine(proc=proc)).sources
    rows = zip(source.columns, source.read(), strict=True)
    return {column.name: None if number is None else number * column.factor for column, number in rows}


def test_busy_is_neither_idle_nor_waiting_nor_stolen(tmp_path: Path) -> None:
    machine(tmp_path / "proc")
    tick = 1 / os.sysconf("SC_CLK_TCK")
    found = values(tmp_path / "proc")
    assert found == pytest.approx(
        {
            "busy": (301854 + 612 + 111922 + 2 + 3944) * tick,
            "iowait": 3552 * tick,
            "steal": 7 * tick,
            "cpu0": (44490 + 19 + 21045 + 1 + 3410) * tick,
            "cpu1": (47869 + 23 + 16474 + 46) * tick,
            "context_switches": 38014093,
            "pressure_cpu_some": 15e-6,
            "pressure_memory_some": 15e-6,
            "pressure_memory_full": 25e-6,
        }
    )


def test_a_core_that_is_taken_off_is_gone(tmp_path: Path) -> None:
    (source,) = cpu.find(machine(tmp_path / "proc")).sources
    (tmp_path / "proc" / "stat").write_text(STAT.replace("cpu1", "xxxx"))
    names = [column.name for column in source.columns]
    assert dict(zip(names, source.read(), strict=True))["cpu1"] is None


def test_a_kernel_without_pressure_says_so(tmp_path: Path) -> None:
    found = cpu.find(machine(tmp_path / "proc", pressure=False))
    assert found.notes == [f"cpu: no stalls: this kernel has no {tmp_path}/proc/pressure"]
    assert not any("pressure" in column.name for column in found.sources[0].columns)


def test_no_proc_is_said(tmp_path: Path) -> None:
    found = cpu.find(Machine(proc=tmp_path))
    assert (found.sources, found.notes) == ((), [f"cpu: none: {tmp_path}/stat: No such file or directory"])


def test_this_machine_s_cores_are_all_there_and_never_less_busy() -> None:
    (source,) = cpu.find(Machine()).sources
    first, then = source.read(), source.read()
    assert int(source.facts["cores"]) == os.sysconf("SC_NPROCESSORS_ONLN")
    assert all(b >= a for a, b in zip(first, then, strict=True) if a is not None and b is not None)
