"""NVIDIA's GPUs by a library that answers as NVML does, AMD's by files as the driver has them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from commbench.attribution.counters import THROTTLED
from commbench.attribution.sources import Machine, Source, amd, nvidia

NVML = """
#include <string.h>
typedef struct { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; } nvmlPciInfo_t;
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
static int of[2] = {0, 1};
int nvmlInit_v2(void) { return INIT; }
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "Not Supported"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = COUNT; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **device) { *device = &of[number]; return number > 1 ? 3 : 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) { strncpy(name, "NVIDIA H200", length); return 0; }
int nvmlDeviceGetUUID(void *device, char *name, unsigned length) { strncpy(name, "GPU-1", length); return 0; }
int nvmlDeviceGetPciInfo_v3(void *device, nvmlPciInfo_t *pci) { strcpy(pci->bus_id, "00000000:1B:00.0"); return 0; }
int nvmlDeviceGetUtilizationRates(void *device, nvmlUtilization_t *used) {
    used->gpu = 93 + *(int *)device;
    used->memory = 40;
    return 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { *milliwatts = 512300; return 0; }
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz) { *mhz = kind == 1 ? 1980 : 0; return 0; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    *celsius = 61;
    return sensor == 0 ? 0 : 2;
}
int nvmlDeviceGetSupportedClocksNAMED(void *device, unsigned long long *bits) {
    *bits = *(int *)device ? 0x05 : 0x1ff;  /* the second one tells its power cap alone */
    return 0;
}
int nvmlDeviceGetCurrentClocksNAMED(void *device, unsigned long long *bits) { *bits = BITS; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    *millijoules = 7000000000ull;
    return *(int *)device ? 3 : 0;
}
"""


def library(folder: Path, init: int = 0, count: int = 3, bits: int = 0, named: str = "EventReasons") -> str:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler, which makes a library that answers as NVML does")
    (folder / "nvml.c").write_text(NVML.replace("NAMED", named))
    path = folder / f"libnvidia-ml-{init}-{count}-{bits}-{named}.so"
    given = [f"-DINIT={init}", f"-DCOUNT={count}", f"-DBITS={bits}"]
    words = ["-shared", "-fPIC", *given, "-o", str(path), str(folder / "nvml.c")]
    subprocess.run([compiler, *words], check=True)
    return str(path)


def values(source: Source) -> dict[str, tuple[float | None, str, bool]]:
    rows = zip(source.columns, source.read(), strict=True)
    return {
        column.name: (None if number is None else number * column.factor, column.unit, column.gauge)
        for column, number in rows
    }


def test_nvml_tells_of_every_gpu_and_what_it_does_not_is_left_out(tmp_path: Path) -> None:
    found = nvidia.find(Machine(nvml=library(tmp_path)))
    one, two = found.sources
    assert found.notes == ["gpu2: left out: Not Supported (NVML error 3)"]
    assert one.facts == {"name": "NVIDIA H200", "uuid": "GPU-1", "pci": "00000000:1B:00.0"}
    assert values(one) == {
        "gpu_busy": (93, "%", True),
        "memory_busy": (40, "%", True),
        "power": (pytest.approx(512.3), "W", True),
        "sm_clock": (1980, "MHz", True),
        "temperature": (61, "C", True),
        "throttle_thermal": (0, "%", True),
        "throttle_power": (0, "%", True),
        "throttle_hardware": (0, "%", True),
        "energy": (pytest.approx(7e6), "J", False),
    }
    assert values(two)["gpu_busy"][0] == 94 and "energy" not in values(two)


# The reasons as nvml.h numbers them.
@pytest.mark.parametrize("named", ["EventReasons", "ThrottleReasons"])
@pytest.mark.parametrize(
    ("bits", "thermal", "power", "hardware"),
    [
        (0x1 | 0x2 | 0x10 | 0x100, 0, 0, 0),  # idle, clocks that were set, those of a group, a display
        (0x4, 0, 100, 0),  # software's power cap
        (0x8 | 0x40, 100, 0, 100),  # the hardware's, for heat
        (0x8 | 0x80, 0, 100, 100),  # the hardware's, by the power brake
        (0x20 | 0x1, 100, 0, 0),  # software's, for heat
    ],
)
def test_throttling_is_told_by_what_lowered_the_clock(
    bits: int, thermal: int, power: int, hardware: int, named: str, tmp_path: Path
) -> None:
    one, two = nvidia.find(Machine(nvml=library(tmp_path, bits=bits, named=named))).sources
    told = [{name: value for name, (value, *_) in values(gpu).items() if name in THROTTLED} for gpu in (one, two)]
    assert told[0] == {"throttle_thermal": thermal, "throttle_power": power, "throttle_hardware": hardware}
    assert told[1] == {"throttle_power": power}


def test_why_there_is_no_nvidia_gpu_is_said(tmp_path: Path) -> None:
    asked = {
        str(tmp_path / "none.so"): f"nvidia: none: no {tmp_path}/none.so, which NVIDIA's driver brings",
        library(tmp_path, init=9): "nvidia: none: NVML does not start: Driver Not Loaded (NVML error 9)",
        library(tmp_path, count=0): "nvidia: none: NVML lists no GPU",
    }
    for path, words in asked.items():
        found = nvidia.find(Machine(nvml=path))
        assert (found.sources, found.notes) == ((), [words])


def test_amd_s_cards_tell_by_their_files(tmp_path: Path) -> None:
    pci = tmp_path / "devices" / "0000:c1:00.0"
    files = {"gpu_busy_percent": 87, "mem_busy_percent": 12, "hwmon/hwmon3/power1_average": 138000000}
    files |= {f"hwmon/hwmon3/{name}_input": of for name, of in [("freq1", 1_420_000_000), ("temp2", 74000)]}
    for name, number in files.items():
        (pci / name).parent.mkdir(parents=True, exist_ok=True)
        (pci / name).write_text(f"{number}\n")
    for name in ("card0", "card1", "card1-DP-1"):
        (tmp_path / "class" / "drm" / name).mkdir(parents=True)
    (tmp_path / "class" / "drm" / "card1" / "device").symlink_to(pci)
    (source,) = amd.find(Machine(sysfs=tmp_path)).sources
    assert (source.name, source.facts) == ("card1", {"pci": "0000:c1:00.0"})
    assert values(source) == {
        "gpu_busy": (87, "%", True),
        "memory_busy": (12, "%", True),
        "power": (pytest.approx(138), "W", True),
        "gfx_clock": (pytest.approx(1420), "MHz", True),
        "junction_temperature": (pytest.approx(74), "C", True),
    }


def test_no_amd_card_is_said(tmp_path: Path) -> None:
    found = amd.find(Machine(sysfs=tmp_path))
    assert found.notes == [f"amd: none: no card with gpu_busy_percent in {tmp_path}/class/drm"]
