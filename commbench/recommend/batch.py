"""How a batch is split among unlike devices, so that a step of data-parallel training takes the least time.

A step lasts as long as its slowest rank needs for its micro-batches. Whole ones are given out one after another, each
to the rank that would then be done first, which is optimal: a shorter step would give each rank at most what it had
just before the micro-batch was given out that makes this one so long (ranks with room for more would be done as late
with one more), and micro-batches would be left over.

A rank with other than an equal share of the samples must not count as if it had one. Data-parallel libraries average
gradients over ranks (torch's DistributedDataParallel, Horovod): with n ranks and b of B samples on one, its loss, a
mean over its own samples, is to be multiplied by n * b / B. The average then is the gradient of the mean over all
samples, as on one process. Where samples count by their tokens, b and B are numbers of tokens.
"""

from __future__ import annotations

import csv
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.errors import UsageError
from commbench.units import parse_number, parse_whole

_COLUMNS = ("rank", "samples_per_second", "most_samples")


@dataclass(frozen=True)
class Device:
    """What one rank's device does: samples per second, as measured, and how many samples of a step it can hold."""

    throughput: float
    most: int | None = None  # None: its memory is no limit, as where micro-batches follow one another


@dataclass(frozen=True)
class Split:
    """A batch, split; tuples are by rank. Times are seconds of computing in one step."""

    samples: tuple[int, ...]
    weights: tuple[float, ...]  # what the rank's loss, a mean over its samples, is multiplied by
    seconds: float  # of the slowest rank
    bound: float  # with samples as divisible as one likes, and memory without end
    equal: tuple[int, ...]  # as equal a split as there is: the fastest devices have what is left over
    equal_seconds: float | None  # None: some device cannot hold its equal share
    micro_batch: int = 1

    @property
    def gain(self) -> float | None:
        """How many times as long a step takes with the equal split."""
        return None if self.equal_seconds is None else self.equal_seconds / self.seconds


def split(devices: Sequence[Device], batch: int, micro_batch: int = 1) -> Split:
    """Return the split of `batch` samples, in whole micro-batches, that has the shortest step.

    A slow device may get none: its rank then takes part in the communication with a gradient of zero. Raises UsageError
    where the batch is no multiple of the micro-batch, or the devices cannot hold it.
    """
    if not devices:
        raise UsageError("a batch is split among at least one device, and there is none")
    if batch < 1 or micro_batch < 1 or batch % micro_batch:
        raise UsageError(
            f"a batch is a multiple of its micro-batches, both at least 1, and {batch} is none of {micro_batch}: "
            "change one of them"
        )
    for rank, device in enumerate(devices):
        if not (math.isfinite(device.throughput) and device.throughput > 0) or (device.most or 0) < 0:
            raise UsageError(f"a device does some samples per second, and holds 0 or more; rank {rank} has {device}")
    count = batch // micro_batch
    shares = _shares(devices, count, micro_batch)
    equal = _equal(devices, count)
    samples = tuple(share * micro_batch for share in shares)
    fits = all(device.most is None or n * micro_batch <= device.most for device, n in zip(devices, equal, strict=True))
    equal_samples = tuple(share * micro_batch for share in equal)
    return Split(
        samples,
        tuple(len(devices) * own / batch for own in samples),
        _seconds(devices, samples),
        batch / math.fsum(device.throughput for device in devices),
        equal_samples,
        _seconds(devices, equal_samples) if fits else None,
        micro_batch,
    )


def _shares(devices: Sequence[Device], count: int, micro_batch: int) -> list[int]:
    """Return how many micro-batches each device has, by whose is done first."""
    shares = [0] * len(devices)
    # When each would be done with one more; of equals the first.
    done = [
        (micro_batch / device.throughput, rank)
        for rank, device in enumerate(devices)
        if device.most is None or device.most >= micro_batch
    ]
    heapq.heapify(done)
    for given in range(count):
        if not done:
            raise UsageError(
                f"the devices hold {given * micro_batch} samples in whole micro-batches of {micro_batch}, and the "
                f"batch has {count * micro_batch}: make it smaller, or accumulate gradients over several steps"
            )
        _, rank = done[0]
        shares[rank] += 1
        device, more = devices[rank], (shares[rank] + 1) * micro_batch
        if device.most is None or device.most >= more:
            heapq.heapreplace(done, (more / device.throughput, rank))
        else:
            heapq.heappop(done)
    return shares


def _equal(devices: Sequence[Device], count: int) -> list[int]:
    each, rest = divmod(count, len(devices))
    fastest = set(sorted(range(len(devices)), key=lambda rank: -devices[rank].throughput)[:rest])
    return [each + (rank in fastest) for rank in range(len(devices))]


def _seconds(devices: Sequence[Device], samples: Sequence[int]) -> float:
    return max(own / device.throughput for device, own in zip(devices, samples, strict=True))


def read(path: str | Path) -> tuple[Device, ...]:
    """Return the devices that a CSV file names, by rank: its columns are `rank`, `samples_per_second`, `most_samples`.

    The last one may be missing, or empty where memory is no limit. Ranks are 0 to n-1, in any order. Raises UsageError
    with the line that is wrong.
    """
    try:
        with open(path, newline="", encoding="utf-8") as stream:
            return _parsed(csv.DictReader(stream), str(path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from None


def _parsed(rows: csv.DictReader[str], source: str) -> tuple[Device, ...]:
    names = [name.strip() for name in rows.fieldnames or ()]
    if names not in (list(_COLUMNS), list(_COLUMNS[:2])):
        raise UsageError(f"{source}: the first line is {','.join(_COLUMNS)}, the last of which may be missing")
    rows.fieldnames = names
    found: dict[int, Device] = {}
    for row in rows:
        where = f"{source}:{rows.line_num}"
        if None in row or None in row.values():
            raise UsageError(f"{where}: a line has {len(names)} values, as the first one")
        rank = parse_whole(row["rank"], f"{where}: rank")
        if rank in found:
            raise UsageError(f"{where}: each rank stands once, and {rank} stood before")
        most = (row.get("most_samples") or "").strip()
        found[rank] = Device(
            parse_number(row["samples_per_second"], f"{where}: samples_per_second"),
            parse_whole(most, f"{where}: most_samples") if most else None,
        )
    if missing := set(range(max(found, default=0) + 1)) - found.keys():
        raise UsageError(f"{source}: ranks are 0 to n-1, and {min(missing)} is missing")
    return tuple(found[rank] for rank in range(len(found)))
