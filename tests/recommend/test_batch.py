"""The split of a batch: against all splits there are, and against the gradients of one process."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from commbench.errors import UsageError
from commbench.recommend.batch import Device, read, split

ROOT = Path(__file__).resolve().parents[2]


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to divide `total` things among `parts`."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        yield from ((first, *rest) for rest in compositions(total - first, parts - 1))


def longest(devices: list[Device], samples: tuple[int, ...]) -> float:
    return max(own / device.throughput for own, device in zip(samples, devices, strict=True))


@pytest.mark.parametrize("seed", range(300))
def test_no_split_has_a_shorter_step(seed: int) -> None:
    draw = random.Random(seed)
    micro, count = draw.randint(1, 3), draw.randint(1, 9)
    devices = [
        Device(draw.choice([1.0, 2.0, 3.0, draw.uniform(0.1, 10)]), draw.choice([None, draw.randint(0, 12)]))
        for _ in range(draw.randint(1, 4))
    ]
    ways = [tuple(n * micro for n in way) for way in compositions(count, len(devices))]
    possible = [way for way in ways if all(d.most is None or n <= d.most for n, d in zip(way, devices, strict=True))]
    if not possible:
        with pytest.raises(UsageError, match="make it smaller"):
            split(devices, count * micro, micro)
        return
    found = split(devices, count * micro, micro)
    assert found.samples in possible
    assert found.seconds == min(longest(devices, way) for way in possible)
    assert found.bound <= found.seconds * (1 + 1e-12)


def test_an_equal_split_is_what_the_gain_is_against() -> None:
    found = split([Device(300.0), Device(100.0)], 64, 4)
    assert found.samples == (48, 16) and found.equal == (32, 32)
    assert found.seconds == pytest.approx(0.16) and found.equal_seconds == pytest.approx(0.32)
    assert found.gain == pytest.approx(2.0) and found.weights == (1.5, 0.5)


def test_like_devices_get_what_they_have_anyway() -> None:
    found = split([Device(10.0)] * 3, 8)
    assert sorted(found.samples) == [2, 3, 3] and found.gain == 1.0


def test_an_equal_split_that_does_not_fit_has_no_time() -> None:
    found = split([Device(10.0), Device(10.0, most=2)], 8)
    assert found.samples == (6, 2) and found.equal == (4, 4)
    assert found.equal_seconds is None and found.gain is None


def test_weighted_losses_average_to_the_gradient_of_one_process() -> None:
    """Least squares: the mean over ranks of weight x gradient of the rank's mean is that of the mean over all."""
    rng = np.random.default_rng(1)
    found = split([Device(5.0), Device(2.0), Device(0.1), Device(2.5)], 24)
    assert 0 in found.samples  # the slowest has nothing to do
    x, y, w = rng.normal(size=(24, 3)), rng.normal(size=24), rng.normal(size=3)

    def gradient(rows: slice) -> np.ndarray:
        return 2 * x[rows].T @ (x[rows] @ w - y[rows]) / (rows.stop - rows.start)

    ends = np.cumsum(found.samples).tolist()
    parts = [slice(end - own, end) for own, end in zip(found.samples, ends, strict=True)]
    of_ranks = [gradient(part) if part.stop > part.start else np.zeros(3) for part in parts]
    averaged = np.mean([weight * own for weight, own in zip(found.weights, of_ranks, strict=True)], axis=0)
    np.testing.assert_allclose(averaged, gradient(slice(0, 24)), rtol=1e-12)
    assert not np.allclose(np.mean(of_ranks, axis=0), gradient(slice(0, 24)), rtol=1e-3)  # without the weights


@pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed beside this interpreter")
def test_distributed_data_parallel_gets_the_gradient_of_one_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.recommend.ddp_gradients", str(tmp_path / "rendezvous")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["weighted", "equal", "unweighted", "different"]


def test_a_file_names_the_devices(tmp_path: Path) -> None:
    file = tmp_path / "devices.csv"
    file.write_text("rank, samples_per_second, most_samples\n1,200,\n0,400.5,64\n")
    assert read(file) == (Device(400.5, 64), Device(200.0, None))
    file.write_text("rank,samples_per_second\n0,400\n")
    assert read(file) == (Device(400.0),)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "first line is rank,samples_per_second,most_samples"),
        ("rank,speed\n0,1\n", "first line is"),
        ("rank,samples_per_second\n0\n", ":2: a line has 2 values"),
        ("rank,samples_per_second\n0,1,2\n", ":2: a line has 2 values"),
        ("rank,samples_per_second\n0,fast\n", ":2: samples_per_second is a number"),
        ("rank,samples_per_second\n0,1\n0,1\n", ":3: each rank stands once"),
        ("rank,samples_per_second\n1,1\n", "0 is missing"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "devices.csv"
    file.write_text(text)
    with pytest.raises(UsageError, match=complaint):
        read(file)


@pytest.mark.parametrize(
    ("devices", "batch", "micro", "complaint"),
    [
        ([], 8, 1, "at least one device"),
        ([Device(1.0)], 8, 3, "8 is none of 3"),
        ([Device(1.0)], 0, 1, "at least 1"),
        ([Device(0.0)], 8, 1, "rank 0 has"),
        ([Device(float("nan"))], 8, 1, "rank 0 has"),
        ([Device(1.0, most=5), Device(1.0, most=1)], 8, 2, "hold 4 samples in whole micro-batches of 2"),
    ],
)
def test_what_cannot_be_split_is_refused(devices: list[Device], batch: int, micro: int, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        split(devices, batch, micro)
