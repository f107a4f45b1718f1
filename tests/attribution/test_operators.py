"""Tests for commbench.attribution.operators: against products counted one by one, and PyTorch's shapes."""

from __future__ import annotations

import json
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.attribution.operators import TYPES, Work, work
from commbench.attribution.trace import Operator

SIDES = st.integers(1, 5)


def of(name: str, *shapes: tuple[int, ...], dtype: str = "float", values: dict[int, str] | None = None) -> Work | None:
    """The work of an operator whose tensors come first; `values`: what is no tensor, by its place."""
    places = max([len(shapes), *(place + 1 for place in values or {})])
    return work(
        Operator(
            f"aten::{name}",
            (*shapes, *[()] * (places - len(shapes))),
            (*[dtype] * len(shapes), *["ScalarList"] * (places - len(shapes))),
            tuple((values or {}).get(place, "") for place in range(places)),
        )
    )


def multiplied(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, int]:
    """The multiplications of one @ other, counted by multiplying ones, and the elements of the result."""
    result = np.ones(one) @ np.ones(other)
    return int(result.sum()), int(np.size(result))


@given(st.lists(SIDES, max_size=2), SIDES, SIDES, SIDES, st.booleans())
def test_a_product_takes_two_operations_a_multiplication(
    batch: list[int], rows: int, inner: int, columns: int, spread: bool
) -> None:
    one, other = (*batch, rows, inner), (*([1] * len(batch) if spread else batch), inner, columns)
    count, elements = multiplied(one, other)
    assert of("matmul", one, other) == Work(2 * count, 4 * (prod(one) + prod(other) + elements), "float32")


@pytest.mark.parametrize(("one", "other"), [((7,), (7,)), ((3, 7), (7,)), ((7,), (7, 2)), ((7,), (4, 7, 2))])
def test_vectors_are_multiplied_too(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    count, elements = multiplied(one, other)
    assert of("matmul", one, other) == Work(2 * count, 4 * (prod(one) + prod(other) + elements), "float32")


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mm", [(6, 5), (5, 4)]),
        ("addmm", [(4,), (6, 5), (5, 4)]),
        ("bmm", [(3, 6, 5), (3, 5, 4)]),
        ("baddbmm", [(1, 1, 1), (3, 6, 5), (3, 5, 4)]),
        ("linear", [(3, 6, 5), (4, 5), (4,)]),
    ],
)
def test_all_kinds_of_products(name: str, shapes: list[tuple[int, ...]]) -> None:
    batch = 3 if len(shapes[-2]) == 3 or len(shapes[0]) == 3 else 1
    moved = sum(map(prod, shapes)) + batch * 6 * 4
    assert of(name, *shapes, dtype="c10::BFloat16") == Work(2 * batch * 6 * 5 * 4, 2 * moved, "bfloat16")


@given(SIDES, st.integers(3, 9), SIDES, st.integers(1, 3), st.integers(1, 2), st.integers(0, 2), st.integers(1, 2))
def test_a_convolution_multiplies_each_tap_of_each_result(
    batch: int, side: int, channels: int, width: int, stride: int, padding: int, dilation: int
) -> None:
    reach = dilation * (width - 1) + 1
    starts = range(0, side + 2 * padding - reach + 1, stride)  # where a window fits, one side
    results = [(row, column) for row, column in product(starts, starts)]
    image, weight = (batch, 4, side, side), (channels, 2, width, width)  # two groups
    lists = {"stride": [stride] * 2, "padding": [padding] * 2, "dilation": [dilation] * 2}
    expected = Work(
        2 * batch * channels * len(results) * 2 * width * width,
        2 * (prod(image) + prod(weight) + batch * channels * len(results)),
        "float16",
    )
    for name, order, first in (
        ("convolution", ("stride", "padding", "dilation"), 3),
        ("mkldnn_convolution", ("padding", "stride", "dilation"), 3),
        ("cudnn_convolution", ("padding", "stride", "dilation"), 2),
    ):
        values = {first + place: json.dumps(lists[word]) for place, word in enumerate(order)}
        assert of(name, image, weight, dtype="c10::Half", values=values) == expected


def test_a_convolution_backward_is_two_of_them_or_the_one_asked_for() -> None:
    grad, image, weight = (2, 8, 16, 16), (2, 3, 32, 32), (8, 3, 3, 3)
    forward = of("convolution", image, weight, values={3: "[2, 2]", 4: "[1, 1]", 5: "[1, 1]"})
    assert forward is not None and forward.bytes == 4 * (prod(grad) + prod(image) + prod(weight))
    both = of("convolution_backward", grad, image, weight, values={10: "[True, True, False]"})
    assert both == Work(2 * forward.flops, 2 * forward.bytes, "float32")
    assert of("convolution_backward", grad, image, weight) == both
    first = of("convolution_backward", grad, image, weight, values={10: "[False, True, True]"})
    assert first == Work(forward.flops, forward.bytes, "float32")


def test_attention_is_two_products_and_five_backward() -> None:
    q, k, v = (2, 8, 100, 16), (2, 2, 70, 16), (2, 2, 70, 32)
    pairs = 2 * 8 * 100 * 70
    moved = prod(q) + prod(k) + prod(v) + 2 * 8 * 100 * 32
    assert of("scaled_dot_product_attention", q, k, v) == Work(2 * pairs * (16 + 32), 4 * moved, "float32")
    half = of("scaled_dot_product_attention", q, k, v, values={5: "True"})
    assert half == Work(pairs * (16 + 32), 4 * moved, "float32")
    flash = of("_scaled_dot_product_flash_attention", q, k, v, values={3: "0.", 4: "True"})
    assert flash == half
    out = (2, 8, 100, 32)
    back = of("_scaled_dot_product_flash_attention_backward", out, q, k, v, out, values={11: "False"})
    moved = 2 * prod(out) + 2 * (prod(q) + prod(k) + prod(v))
    assert back == Work(2 * pairs * (3 * 16 + 2 * 32), 4 * moved, "float32")


@pytest.mark.parametrize(
    ("name", "shapes", "elements"),
    [
        ("add", [(8, 4), (8, 4)], 3 * 32),
        ("add_", [(8, 4), (4,)], 32 + 4 + 32),
        ("mul", [(8, 1), (1, 4)], 8 + 4 + 32),
        ("gelu", [(8, 4)], 64),
        ("copy_", [(8, 4), (8, 4)], 64),
        ("fill_", [(8, 4)], 32),
        ("sum", [(8, 4)], 32),
        ("_softmax", [(8, 4)], 64),
        ("native_layer_norm", [(8, 4), (4,), (4,)], 32 + 8 + 32),
    ],
)
def test_what_goes_through_memory_has_bytes_and_no_arithmetic(
    name: str, shapes: list[tuple[int, ...]], elements: int
) -> None:
    assert of(name, *shapes, dtype="double") == Work(0, 8 * elements, "float64")


def test_what_is_chosen_by_a_condition_is_written_in_the_type_of_the_choices() -> None:
    asked = Operator("aten::where", ((8, 4), (8, 4), (8, 4)), ("bool", "float", "float"))
    assert work(asked) == Work(0, 32 * (1 + 4 + 4 + 4), "float32")


@pytest.mark.parametrize("name", ["addbmm", "embedding_dense_backward", "_scaled_mm"])
def test_operators_whose_results_no_shape_tells_are_not_known(name: str) -> None:
    # A product that is summed over the batch, a table of unknown height, a product in a type of its own.
    assert of(name, (8, 64, 32), (8, 32, 16)) is None


def test_an_embedding_moves_the_rows_that_are_looked_up() -> None:
    asked = Operator("aten::embedding", ((1000, 64), (5, 7)), ("c10::Half", "long int"))
    assert work(asked) == Work(0, 5 * 7 * 8 + 2 * 5 * 7 * 64 * 2, "float16")


@pytest.mark.parametrize(
    "asked",
    [
        Operator("aten::mm"),  # without shapes
        Operator("aten::mm", ((2, 3), (4, 5)), ("float", "float")),
        Operator("aten::mm", ((2, 3),), ("float",)),
        Operator("aten::mm", ((2, 3), (3, 5)), ("float",)),
        Operator("aten::mm", ((2, 3), (3, 5)), ("float", "Scalar")),
        Operator("aten::convolution", ((1, 3, 8, 8), (4, 3, 3, 3)), ("float", "float")),
        Operator("aten::_foreach_add_", ((), ()), ("TensorList", "Scalar")),
        Operator("aten::add", ((3,), (4,)), ("float", "float")),
        Operator("aten::scaled_dot_product_attention", ((3, 4),) * 3, ("float",) * 3),
        Operator("fbgemm::permute_sparse_features", ((3, 4),), ("float",)),
        Operator("aten::convolution_backward", ((1, 2, 3),) * 3, ("float",) * 3, ("",) * 11),
    ],
)
def test_what_shapes_do_not_tell_is_not_guessed(asked: Operator) -> None:
    assert work(asked) is None


def test_every_type_has_the_bytes_that_numpy_gives_it() -> None:
    for name, size in TYPES.values():
        if name not in ("bfloat16", "float8"):
            assert np.dtype(name).itemsize == size
