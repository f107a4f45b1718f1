"""NVIDIA's GPUs by NVML, which comes with the driver: how busy GPU and memory are, power, clock, throttling, energy.

Busy is the share of the last 1/6 to 1 second in which a kernel ran at all, or memory was read or written: it says
nothing of how full the GPU was. Throttling is 0 or 100 %, whose mean is the share of the time; that a GPU is idle,
or that its clocks were set, is none. Functions, structures and numbers are those of nvml.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

from commbench.attribution.counters import Column
from commbench.attribution.sources import Found, Machine, Source

KIND = "gpu"
_SM = 1  # NVML_CLOCK_SM
_GPU = 0  # NVML_TEMPERATURE_GPU
_REASONS = {  # bits of nvmlClocksEventReasons, by what they have in common
    "throttle_thermal": 0x20 | 0x40,  # SwThermalSlowdown, HwThermalSlowdown
    "throttle_power": 0x04 | 0x80,  # SwPowerCap, HwPowerBrakeSlowdown
    "throttle_hardware": 0x08,  # HwSlowdown: heat, the power brake, power drawn too fast, or a change of clocks
}
_BUS = slice(36, 68)  # of nvmlPciInfo_t, 68 bytes: busId behind busIdLegacy[16] and five numbers


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def find(machine: Machine) -> Found:
    """Return a source for each GPU of the node, whichever of them a job may use."""
    try:
        nvml = ctypes.CDLL(machine.nvml)
    except OSError:
        return Found(notes=[f"nvidia: none: no {machine.nvml}, which NVIDIA's driver brings"])
    if code := nvml.nvmlInit_v2():
        return Found(notes=[f"nvidia: none: NVML does not start: {_error(nvml, code)}"])
    count = ctypes.c_uint()
    if (code := nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))) or not count.value:
        return Found(notes=[f"nvidia: none: {_error(nvml, code) if code else 'NVML lists no GPU'}"])
    sources, notes = [], []
    for number in range(count.value):
        device = ctypes.c_void_p()
        if code := nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device)):
            notes.append(f"gpu{number}: left out: {_error(nvml, code)}")
            continue
        sources.append(_source(nvml, device, f"gpu{number}"))
    return Found(sources, notes)


def _error(nvml: ctypes.CDLL, code: int) -> str:
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    return f"{(nvml.nvmlErrorString(code) or b'').decode()} (NVML error {code})"


def _reasons(nvml: ctypes.CDLL, which: str) -> Callable[..., int]:
    """Return the function that tells why clocks are lowered, by its name or that of older drivers."""
    found: Callable[..., int] = getattr(nvml, f"nvmlDeviceGet{which}ClocksEventReasons", None) or getattr(
        nvml, f"nvmlDeviceGet{which}ClocksThrottleReasons"
    )
    return found


def _any(bits: int, reasons: ctypes.c_ulonglong) -> int:
    return int(reasons.value & bits != 0)


def _source(nvml: ctypes.CDLL, device: ctypes.c_void_p, name: str) -> Source:
    used, power, clock, energy = _Utilization(), ctypes.c_uint(), ctypes.c_uint(), ctypes.c_ulonglong()
    heat, reasons, supported = ctypes.c_uint(), ctypes.c_ulonglong(), ctypes.c_ulonglong()
    if _reasons(nvml, "Supported")(device, ctypes.byref(supported)):
        supported.value = sum(_REASONS.values())
    why = _reasons(nvml, "Current")
    # Each call, and the columns that it gives.
    calls: list[tuple[Callable[[], int], list[tuple[Column, Callable[[], int]]]]] = [
        (
            lambda: nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(used)),
            [
                (Column("gpu_busy", "%", 1, True), lambda: used.gpu),
                (Column("memory_busy", "%", 1, True), lambda: used.memory),
            ],
        ),
        (
            lambda: nvml.nvmlDeviceGetPowerUsage(device, ctypes.byref(power)),
            [(Column("power", "W", 1e-3, True), lambda: power.value)],
        ),
        (
            lambda: nvml.nvmlDeviceGetClockInfo(device, _SM, ctypes.byref(clock)),
            [(Column("sm_clock", "MHz", 1, True), lambda: clock.value)],
        ),
        (
            lambda: nvml.nvmlDeviceGetTemperature(device, _GPU, ctypes.byref(heat)),
            [(Column("temperature", "C", 1, True), lambda: heat.value)],
        ),
        (
            lambda: why(device, ctypes.byref(reasons)),
            [
                (Column(name, "%", 100, True), partial(_any, bits, reasons))
                for name, bits in _REASONS.items()
                if bits & supported.value
            ],
        ),
        (
            lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(energy)),
            [(Column("energy", "J", 1e-3), lambda: energy.value)],
        ),
    ]
    calls = [call for call in calls if call[0]() == 0]  # what this GPU does not tell is left out

    def read() -> list[int | None]:
        found: list[int | None] = []
        for call, values in calls:
            told = call() == 0
            found += [value() if told else None for _, value in values]
        return found

    facts = {}
    for key, ask in (("name", nvml.nvmlDeviceGetName), ("uuid", nvml.nvmlDeviceGetUUID)):
        text = ctypes.create_string_buffer(96)
        if ask(device, text, len(text)) == 0:
            facts[key] = text.value.decode()
    pci = ctypes.create_string_buffer(128)
    if nvml.nvmlDeviceGetPciInfo_v3(device, pci) == 0:
        facts["pci"] = pci.raw[_BUS].partition(b"\0")[0].decode()
    return Source(name, KIND, facts, [column for _, values in calls for column, _ in values], read)
