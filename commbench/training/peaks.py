"""What devices compute at most, for the MFU: dense, in 16 bits, operations a second, from data sheets."""

from __future__ import annotations

# By what torch calls a device; the first that is part of its name. An MI250X is two devices, of half its figure each.
_PEAKS = (
    ("B200", 2250e12),
    ("H200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("A100", 312e12),
    ("L40S", 362e12),
    ("MI325X", 1307e12),
    ("MI300X", 1307e12),
    ("MI250X", 191.5e12),
)


def peak(device: str, dtype: str) -> float | None:
    """Return the operations a second of the device that torch calls `device`, None where no data sheet is known."""
    if dtype != "bfloat16":
        return None
    return next((figure for name, figure in _PEAKS if name.lower() in device.lower()), None)
