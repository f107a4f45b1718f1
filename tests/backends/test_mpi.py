"""What the MPI backend does without MPI: the average, and where in-place data lies."""

from __future__ import annotations

import random

import numpy as np
import pytest

from commbench.backends.mpi import average
from commbench.measure.dtypes import DTYPES

CHANCE = random.Random("mpi")
INTEGERS = [dtype for dtype in DTYPES.values() if not dtype.is_float]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 127, 128, 255, 256, 300])
@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.name)
def test_the_average_of_integers_is_rounded_down(dtype: object, n: int) -> None:
    storage = str(getattr(dtype, "storage", ""))
    info = np.iinfo(storage)
    values = [
        info.min,
        info.max,
        0,
        1,
        info.max - 1,
        *(CHANCE.randint(int(info.min), int(info.max)) for _ in range(50)),
    ]
    total = np.array(values, storage)
    average(total, n, storage)
    assert total.tolist() == [int(value) // n for value in values]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 300])
@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_the_average_of_floats_is_the_nearest_number(name: str, n: int) -> None:
    values = np.array([0.0, 1.0, -3.0, 1000.0, 0.1, *(CHANCE.uniform(-9, 9) for _ in range(50))], name)
    total = values.copy()
    average(total, n, name)
    assert (total == (values.astype(np.longdouble) / n).astype(name)).all()


@pytest.mark.parametrize("n", [1, 2, 3, 7, 300])
def test_the_average_of_bfloat16_is_within_a_rounding(n: int) -> None:
    bits = np.array([CHANCE.randrange(0x3000, 0x5000) | CHANCE.choice([0, 0x8000]) for _ in range(200)], np.uint16)
    exact = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64) / n
    total = bits.copy()
    average(total, n, "bfloat16")
    got = (total.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    assert (np.abs(got - exact) <= np.abs(exact) * 2.0**-8).all()
