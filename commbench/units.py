"""Sizes and times in and out. Inside, a size is in bytes and a time in seconds; rates are GB/s with 1 GB = 1e9 B."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from contextlib import suppress

from commbench.errors import UsageError

_BINARY = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<prefix>[KMGT]?)(?:i?B)?", re.IGNORECASE)
LARGEST = 1 << 62  # sizes are signed 64-bit from end to end


def parse_size(text: str, what: str = "a size") -> int:
    """Return the bytes that `text` ("8", "64K", "1.5M", "2GiB") stands for; suffixes are binary, as in nccl-tests."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{what} is a number of bytes, with K, M, G or T behind it if need be (64K, 1M), not {text!r}")
    whole, _, decimals = match["number"].partition(".")
    size, rest = divmod(int(whole + decimals) * _BINARY[match["prefix"].upper()], 10 ** len(decimals))
    if size > LARGEST:
        raise UsageError(f"{what} is at most 2^62 bytes (4194304T), not {text!r}")
    if rest:
        raise UsageError(f"{what} is a whole number of bytes, not {text!r}")
    return size


def format_size(size: int) -> str:
    """Return `size` bytes with the largest binary suffix that is exact: 65536 is "64K", 65537 stays "65537"."""
    for prefix in "TGMK":
        unit = _BINARY[prefix]
        if size >= unit and size % unit == 0:
            return f"{size // unit}{prefix}"
    return str(size)


def approximate_size(size: float) -> str:
    """Return `size` bytes with about three digits for a person to read: 1536 is "1.5 KiB"."""
    for prefix in "TGMK":
        unit = _BINARY[prefix]
        if size >= unit:
            return f"{size / unit:.3g} {prefix}iB" if size < 1000 * unit else f"{size / unit:.0f} {prefix}iB"
    return f"{size:.0f} B"


def parse_number(text: str, what: str, *, least: float = 0.0) -> float:
    """Return the finite number that `text` holds, at least `least`; `what` names it in the error."""
    with suppress(ValueError):
        value = float(text)
        if math.isfinite(value) and value >= least:
            return value
    raise UsageError(f"{what} is a number of at least {least:g}, not {text!r}")


def parse_whole(text: str, what: str, *, least: int = 0, most: int = LARGEST) -> int:
    """Return the whole number that `text` holds, from `least` to `most`; `what` names it in the error."""
    with suppress(ValueError):
        value = int(text)
        if least <= value <= most:
            return value
    rule = f"of at least {least}" if most == LARGEST else f"from {least} to {most}"
    raise UsageError(f"{what} is a whole number {rule}, not {text!r}")


def format_ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers as ranges, in their order: 0, 1, 2, 8 are "0-2,8"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in parts)


def expand_ranges(text: str) -> list[int]:
    """Return the numbers that format_ranges made `text` of."""
    ends = [part.split("-") for part in text.split(",") if part]
    return [number for end in ends for number in range(int(end[0]), int(end[-1]) + 1)]


def gigabytes_per_second(size: int, seconds: float) -> float:
    """Return the rate of `size` bytes in `seconds`, in GB/s."""
    return size / seconds / 1e9
