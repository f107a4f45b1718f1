"""A placement as it is handed on: which host and device each rank has, and what that is expected to bring.

It is written as `placement.json`, exported to launchers, and held against where ranks really sit (commbench.verify).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from commbench.errors import UsageError

FORMAT = 1
NAME = "placement.json"
LARGEST_FILE = 1 << 28  # bytes: a million ranks have an eighth of that
_HOST = re.compile(r"[!-~]{1,253}")  # as long as a name in the DNS; what exporters take is less (checked())


@dataclass(frozen=True)
class Seat:
    """Where one rank sits: the host, the device's place on it, and what is nearest to that."""

    host: str
    device: int
    nic: str = ""  # the id of the nearest NIC, empty: unknown
    cpus: str = ""  # ranges of cores near the device, empty: unknown


@dataclass(frozen=True)
class Choice:
    """The algorithm to ask for in a collective of `ranks` ranks on `nodes` nodes, of `least` bytes to below `below`."""

    collective: str
    ranks: int
    nodes: int
    least: int
    below: int | None  # None: no end
    algorithm: str
    protocol: str | None = None
    channels: int | None = None
    gain: float = 1.0  # the library's own choice took so many times as long
    source: str = ""  # "measured: 6 launches"
    library: str = ""  # of the records, with its version; empty: unknown


@dataclass(frozen=True)
class Plan:
    """A placement: `seats` by rank. Times are seconds of a step's communication, predicted; None where nobody knows."""

    topology: str
    seats: tuple[Seat, ...]
    vendor: str = ""  # of the devices: "nvidia", "amd", "cpu"; empty where there are several
    axes: Mapping[str, int] = field(default_factory=dict)  # sizes, the fastest varying rank first
    advice: str = ""  # "take it", "try it", or "keep what you have"
    seconds: Mapping[str, float] = field(default_factory=dict)  # "default", "current", "random", "recommended", "bound"
    gap: float | None = None  # recommended / bound - 1, proven, whether that order is this plan's or another is kept
    limits: tuple[str, ...] = ()  # what the order of this plan waits for, the largest part first
    notes: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()
    samples: tuple[int, ...] = ()  # of a step, by data-parallel rank; empty: as many for each
    weights: tuple[float, ...] = ()  # what the loss of each of them is multiplied by (batch.py); empty: 1

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts in use, each once, in the order in which ranks come to them."""
        return tuple(dict.fromkeys(seat.host for seat in self.seats))

    @property
    def per_host(self) -> dict[str, int]:
        """How many ranks each host has."""
        found: dict[str, int] = {}
        for seat in self.seats:
            found[seat.host] = found.get(seat.host, 0) + 1
        return found

    def to_json(self) -> str:
        """Return it as placement.json holds it, each seat on a line."""
        seats = ",\n  ".join(json.dumps(vars(seat)) for seat in self.seats)
        rest = json.dumps({"format": FORMAT, **asdict(replace(self, seats=()))}, indent=1)
        return rest.replace('"seats": []', f'"seats": [\n  {seats}\n ]', 1) + "\n"


def from_json(text: str, source: str) -> Plan:
    """Return the plan that `text` holds; UsageError where it is none."""
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise ValueError(f'it has no "format": {FORMAT}')
        unknown = set(data) - {one.name for one in fields(Plan)}
        if unknown:
            raise ValueError(f"it has {', '.join(sorted(map(repr, unknown)))}")
        seats = tuple(_seat(one) for one in data.pop("seats"))
        choices = tuple(Choice(**one) for one in data.pop("choices", ()))
        lists = {name: tuple(data.pop(name, ())) for name in ("limits", "notes", "samples", "weights")}
        if len(lists["samples"]) != len(lists["weights"]):
            raise ValueError(f"it has {len(lists['samples'])} samples, and {len(lists['weights'])} weights")
        if not seats:
            raise ValueError("it has no seats")
        for name, kind in (("topology", str), ("vendor", str), ("advice", str), ("axes", dict), ("seconds", dict)):
            if not isinstance(data.get(name, kind()), kind):
                raise ValueError(f"its {name} is no {'text' if kind is str else 'mapping'}")
        return Plan(seats=seats, choices=choices, **(data | lists))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(f"{source}: a placement is what `commbench recommend` writes, not this: {error}") from None


def read(path: str | Path) -> Plan:
    """Return the plan in a file, or in the folder of an export."""
    return from_json(text_of(path), str(path))


def text_of(path: str | Path) -> str:
    """Return the text of a file, of a folder's placement.json; UsageError where it cannot be read, or is too large for
    any placement.
    """
    if os.path.isdir(path):
        path = Path(path) / NAME
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_FILE + 1)  # no more: a device may have no end
        if len(content) > LARGEST_FILE:
            raise UsageError(f"{path}: a placement has at most {LARGEST_FILE >> 20} MiB")
        return content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from None


_TYPES = {"host": str, "device": int, "nic": str, "cpus": str}


def _seat(data: Any) -> Seat:
    if (
        not isinstance(data, dict)
        or not {"host", "device"} <= data.keys() <= _TYPES.keys()
        or any(type(value) is not _TYPES[name] for name, value in data.items())
        or not _HOST.fullmatch(data["host"])
        or data["device"] < 0
    ):
        raise ValueError(f"a seat has a host's name and a device's number, not {data!r:.80}")
    return Seat(**data)
