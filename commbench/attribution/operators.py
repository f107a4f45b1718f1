"""What an operator has to do at least: its floating-point operations and the bytes it moves, by its inputs' shapes.

Each input is read once and the result written once, as if a cache held all that is used again. An input that is
broadcast by a stride of zero counts as large as it looks. What the shapes do not tell is not guessed: lists of tensors
(`_foreach_...`, `_fused_adamw_`, `cat`) come without their type, a convolution needs its stride.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TypeAlias

from commbench.attribution.trace import Operator

Shape: TypeAlias = tuple[int, ...]

# The types of tensors as PyTorch's profiler spells them: commbench's name and bytes. Anything else is no tensor.
TYPES = {
    **{
        "double": ("float64", 8),
        "float": ("float32", 4),
        "c10::Half": ("float16", 2),
        "c10::BFloat16": ("bfloat16", 2),
    },
    **{f"c10::Float8_{kind}": ("float8", 1) for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")},
    **{"long": ("int64", 8), "long int": ("int64", 8), "int": ("int32", 4), "short": ("int16", 2)},
    **{"signed char": ("int8", 1), "unsigned char": ("uint8", 1), "bool": ("bool", 1)},
    **{"c10::complex<float>": ("complex64", 8), "c10::complex<double>": ("complex128", 16)},
}


@dataclass(frozen=True)
class Work:
    """What an operator has to do at least."""

    flops: int  # of multiplications and additions in products; 0: nothing beside the bytes
    bytes: int
    dtype: str  # that the arithmetic is in, by commbench's name


@dataclass(frozen=True)
class _Tensor:
    shape: Shape
    dtype: str
    itemsize: int

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.itemsize


@dataclass(frozen=True)
class _Inputs:
    """An operator's inputs: a tensor or None at each place, and what is no tensor in words."""

    places: Sequence[_Tensor | None]
    values: Sequence[str]

    @property
    def tensors(self) -> list[_Tensor]:
        return [one for one in self.places if one is not None]

    def tensor(self, place: int) -> _Tensor:
        """Return the tensor at a place; raise LookupError where there is none."""
        found = self.places[place]
        if found is None:
            raise LookupError(place)
        return found

    def numbers(self, place: int) -> list[int]:
        """Return the list of numbers at a place; raise LookupError or ValueError where there is none."""
        return [int(one) for one in json.loads(self.values[place])]

    def true(self, place: int) -> bool:
        return self.values[place : place + 1] == ("True",)


def work(operator: Operator) -> Work | None:
    """Return what an operator has to do at least; None where it or its shapes are not known."""
    rule = _RULES.get(operator.name.removeprefix("aten::").removesuffix("_"))
    if rule is None or "TensorList" in operator.dtypes or len(operator.shapes) != len(operator.dtypes):
        return None
    places = [
        _Tensor(shape, *TYPES[dtype]) if dtype in TYPES else None
        for shape, dtype in zip(operator.shapes, operator.dtypes, strict=True)
    ]
    try:
        return rule(_Inputs(places, operator.values))
    except (LookupError, ValueError, TypeError):  # inputs that the operator does not take: nobody knows what ran
        return None


def _work(flops: int, inputs: Sequence[_Tensor], elements: int) -> Work:
    """Return the work of inputs each read once, and of so many elements written in the type of the first."""
    return Work(flops, sum(one.bytes for one in inputs) + elements * inputs[0].itemsize, inputs[0].dtype)


def _product(inputs: _Inputs, first: int = 0, transposed: bool = False) -> Work:
    """a @ b, of the tensors at `first` and after it, as `matmul` broadcasts them: two operations a multiplication."""
    a, b = inputs.tensor(first), inputs.tensor(first + 1)
    left = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right = b.shape[::-1] if transposed else b.shape
    right = right if len(right) > 1 else (*right, 1)
    if left[-1] != right[-2]:
        raise ValueError(f"no product of {a.shape} and {b.shape}")
    elements = prod(_broadcast(left[:-2], right[:-2])) * left[-2] * right[-1]
    return _work(2 * elements * left[-1], inputs.tensors, elements)


def _broadcast(*shapes: Shape) -> Shape:
    longest = max(map(len, shapes))
    lined_up = [(1,) * (longest - len(shape)) + shape for shape in shapes]
    found = tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*lined_up, strict=True))
    if any(size not in (1, most) for shape in lined_up for size, most in zip(shape, found, strict=True)):
        raise ValueError(f"{shapes} do not fit")
    return found


def _convolution(inputs: _Inputs, stride: int, padding: int, dilation: int, transposed: int | None = None) -> Work:
    """`stride` and what follows are places of lists; a transposed one is not known."""
    if transposed is not None and inputs.true(transposed):
        raise ValueError("transposed")
    image, weight = inputs.tensor(0), inputs.tensor(1)
    sides = []
    steps = (inputs.numbers(place) for place in (stride, padding, dilation))
    for size, width, step, pad, apart in zip(image.shape[2:], weight.shape[2:], *steps, strict=True):
        reach = apart * (width - 1) + 1
        sides.append((size + 2 * pad - reach) // step + 1)
    elements = image.shape[0] * weight.shape[0] * prod(sides)
    return _work(2 * elements * prod(weight.shape[1:]), inputs.tensors, elements)


def _convolution_backward(inputs: _Inputs) -> Work:
    """Of the input's gradient and of the weight's, as far as they are asked for, each as much as forward."""
    grad, image, weight = (inputs.tensor(place) for place in range(3))
    forward = 2 * prod((image if inputs.true(7) else grad).shape) * prod(weight.shape[1:])
    mask = inputs.values[10:11]
    asked = json.loads(mask[0].lower()) if mask else [True, True]
    passes = [(grad, weight, image), (grad, image, weight)]
    moved = sum(one.bytes for each, wanted in zip(passes, asked, strict=False) if wanted for one in each)
    return Work(sum(map(bool, asked[:2])) * forward, moved, grad.dtype)


def _attention(inputs: _Inputs, causal: int, first: int = 0, products: tuple[int, int] = (1, 1)) -> Work:
    """softmax(q k') v, of (batch, heads, length, width); `products`: how many have q's width and how many v's.

    A causal mask leaves half of them. What heads of k and v share is read once.
    """
    q, k, v = (inputs.tensor(first + place) for place in range(3))
    batch, heads, queries, width = q.shape
    pairs = batch * heads * queries * k.shape[2]
    flops = 2 * pairs * (products[0] * width + products[1] * v.shape[3]) // (2 if inputs.true(causal) else 1)
    if first:  # backward: the gradient comes first, and three gradients are the result
        return Work(flops, sum(one.bytes for one in (*inputs.tensors, q, k, v)), q.dtype)
    return _work(flops, [q, k, v], prod(q.shape[:3]) * v.shape[3])


_BACKWARD = (3, 2)  # q k' anew, then the gradients of q and k; of v and of the weights


def _embedding(inputs: _Inputs) -> Work:
    """Rows of a table, each read and written."""
    table, index = inputs.tensor(0), inputs.tensor(1)
    return Work(0, index.bytes + 2 * prod(index.shape) * table.shape[-1] * table.itemsize, table.dtype)


def _through(inputs: _Inputs) -> Work:
    """All inputs in, and out what they broadcast to."""
    return _work(0, inputs.tensors, prod(_broadcast(*(one.shape for one in inputs.tensors))))


def _where(inputs: _Inputs) -> Work:
    """A condition and two choices in, and out what they broadcast to, in the choices' type."""
    condition, one, other = (inputs.tensor(place) for place in range(3))
    return _work(0, [one, other, condition], prod(_broadcast(condition.shape, one.shape, other.shape)))


def _as_first(inputs: _Inputs) -> Work:
    """All inputs in, and out what is as large as the first."""
    return _work(0, inputs.tensors, prod(inputs.tensor(0).shape))


def _overwrite(inputs: _Inputs) -> Work:
    """The first input is only written."""
    return _work(0, [inputs.tensor(0), *inputs.tensors[1:]], 0)


def _reduction(inputs: _Inputs) -> Work:
    """All inputs in, and next to nothing out."""
    return _work(0, inputs.tensors, 0)


def _each(names: str, rule: Callable[[_Inputs], Work]) -> dict[str, Callable[[_Inputs], Work]]:
    return dict.fromkeys(names.split(), rule)


# By the name without aten:: and the underscore of what works in place; signatures: PyTorch's native_functions.yaml.
_RULES: Mapping[str, Callable[[_Inputs], Work]] = {
    **_each("mm bmm matmul mv dot", _product),
    **_each("addmm baddbmm addmv", partial(_product, first=1)),
    "linear": partial(_product, transposed=True),
    **_each("conv1d conv2d conv3d", partial(_convolution, stride=3, padding=4, dilation=5)),
    **_each("convolution _convolution", partial(_convolution, stride=3, padding=4, dilation=5, transposed=6)),
    **_each("mkldnn_convolution miopen_convolution", partial(_convolution, padding=3, stride=4, dilation=5)),
    "cudnn_convolution": partial(_convolution, padding=2, stride=3, dilation=4),
    "convolution_backward": _convolution_backward,
    "scaled_dot_product_attention": partial(_attention, causal=5),
    **_each(
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu", partial(_attention, causal=4)
    ),
    **_each(
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention", partial(_attention, causal=6)
    ),
    **_each(
        "_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward",
        partial(_attention, causal=11, first=1, products=_BACKWARD),
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward": partial(_attention, causal=7, first=1, products=_BACKWARD),
    "_scaled_dot_product_cudnn_attention_backward": partial(_attention, causal=14, first=1, products=_BACKWARD),
    "embedding": _embedding,
    "where": _where,
    **_each(
        "add sub rsub mul div neg abs exp log sqrt rsqrt pow square reciprocal sin cos lerp addcmul addcdiv", _through
    ),
    **_each("relu leaky_relu gelu silu sigmoid tanh clamp clamp_min clamp_max masked_fill native_dropout", _through),
    **_each("threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward", _through),
    **_each("native_dropout_backward _softmax _log_softmax clone", _through),
    **_each("_softmax_backward_data _log_softmax_backward_data", _as_first),
    **_each("native_layer_norm native_group_norm native_batch_norm cudnn_batch_norm miopen_batch_norm", _as_first),
    **_each("_fused_rms_norm native_layer_norm_backward native_group_norm_backward", _as_first),
    **_each("native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward", _as_first),
    **_each("copy fill zero normal uniform", _overwrite),
    **_each("sum mean amax amin max min argmax argmin norm linalg_vector_norm var std prod", _reduction),
}
