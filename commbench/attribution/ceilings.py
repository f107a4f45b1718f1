"""What a device can do at most: its memory as our kernels measured it, its arithmetic as its vendor states it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from commbench.results.kernels import BASELINE, CEILING, KERNELS
from commbench.results.record import Record
from commbench.results.status import OK
from commbench.topology.peaks import peaks


@dataclass(frozen=True)
class Ceilings:
    """What the device can do at most."""

    bandwidth: float | None = None  # bytes/s, measured by our own kernels where there are records
    flops: Mapping[str, float] = field(default_factory=dict)  # FLOP/s by data type
    source: str = ""  # in words


def ceilings(
    model: str = "",
    records: Iterable[Record] = (),
    bandwidth: float | None = None,
    flops: Mapping[str, float] | None = None,
) -> Ceilings:
    """Return what a device can do, which its vendor calls `model`; "" is the host's processor.

    `records`: of kernels, from such a device: the best median of a baseline or ceiling counts, since those go through
    memory in the best way and through no cache. `bandwidth` (bytes/s) and `flops` (FLOP/s by data type) stand over
    both. What nobody measured or gave is left open: a data sheet's bandwidth is one that no kernel reaches.
    """
    words = []
    if bandwidth is not None:
        words.append(f"{bandwidth / 1e9:.0f} GB/s, given")
    elif rates := [one.algbw for one in records if one.algbw and _goes_through_memory(one, bool(model))]:
        bandwidth = max(rates) * 1e9
        words.append(f"{max(rates):.0f} GB/s, measured by {len(rates)} records of kernels")
    else:
        words.append("no bandwidth: measure it by python -m commbench.kernels on such a device")
    sheet = peaks(model)
    if flops is not None:
        words.append("FLOP/s given")
    elif sheet:
        words.append(f"FLOP/s of {sheet.device} ({sheet.source})")
    else:
        words.append(f"no FLOP/s of {model or 'the processor'} are known: give them")
    known = sheet.flops if sheet else {}
    return Ceilings(bandwidth, {**known, **(flops or {})}, "; ".join(words))


def _goes_through_memory(record: Record, on_device: bool) -> bool:
    right = record.collective == KERNELS and record.status == OK and not record.simulated
    return right and record.algorithm.endswith((BASELINE, CEILING)) and (record.buffer == "device") == on_device
