"""Whether work is bound by arithmetic, by memory or by neither, and by which evidence.

By its roofline where an operator's shapes and the device's ceilings are known: arithmetic alone would take FLOPs /
(FLOP/s), memory alone bytes / (bytes/s), and the longer one is what binds. Else by name: products of matrices,
convolutions and attention are arithmetic, all else that is known goes through memory. That is wrong for thin products,
and for attention to one token. What no name tells either is counted as memory, with the evidence NONE: without products
a kernel does a few operations a byte, in whose time a device could do tens or hundreds.

Counters of a kernel's memory traffic would be better evidence; traces carry none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from math import inf, nan
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commbench.attribution.ceilings import Ceilings
from commbench.attribution.operators import Work, work
from commbench.attribution.trace import DEVICE_KINDS, KERNEL, OPERATOR, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Classes of a span: what is neither is communication, or not work at all (a wrapper, a call of the runtime).
NEITHER, COMPUTE_WORK, MEMORY_WORK = range(3)
# Evidence of a span's class, the best first.
ROOFLINE, NAME, NONE = EVIDENCE = ("roofline", "name", "none")
_BY_NAME = EVIDENCE.index(NAME)

LATENCY_BOUND = 0.3  # of its time: where arithmetic and memory alone would both take less, neither is what binds

# Names of kernels. Some say memory whatever else is in them: what an elementwise kernel computes is in its name too.
_PASSES_FIRST = re.compile(
    r"elementwise_kernel|reduce_kernel|multi_tensor_apply|triton_(poi|red|per)_|nchwtonhwc|nhwctonchw|split_?k_?reduce"
    r"|reduce_wgrad|gemv|im2col|col2im|depthwise|reshape_and_cache",
    re.IGNORECASE,
)
_MULTIPLIES = re.compile(
    r"(?<!fb)gemm|cutlass(_|::(device_)?kernel)|xmma|hmma|wgmma|mfma|cijk|nvjet|(?<![a-z])b?mm_|conv(?!ert)|winograd"
    r"|[wd]grad|fprop|scudnn|flash(?!infer::)|fmha|attn|attention|fused_moe|triton_tem_|lstm|(?<![a-z])rnn",
    re.IGNORECASE,
)
_PASSES = re.compile(
    r"elementwise|reduce|adam|norm|(?<![a-z])bn_|copy|cat(?![a-z])|catarray|softmax|memcpy|memset|fill|dropout|embedding"
    r"|index|scatter|gather|sort|scan|pool|permute|transpose|cast|quant|rotary|topk|arange|entropy|nll_loss|moments|gammabeta",
    re.IGNORECASE,
)
_ROUNDED = re.compile(r"tf32|s1688", re.IGNORECASE)  # of float32 in matrix units

# Names of operators. Some do nothing by themselves: they call others, wait, make room, or see a tensor in another way.
_WRAPS = re.compile(
    r"(torch::)?autograd::|torch(::|\.)|c10d::|profiler::"
    r"|aten::(_?(unsafe_)?view|_?reshape(_alias)?|as_strided|(new_)?empty(_\w+)?|t|transpose|numpy_T|detach|alias|slice"
    r"|select|narrow|expand(_as)?|permute|movedim|(un)?squeeze|(un)?flatten|(tensor_)?split(_with_sizes)?|chunk|unbind"
    r"|result_type|resolve_(conj|neg)|lift_fresh|resize|set|item|_local_scalar_dense|is_\w+|record_stream)_?$"
)
_PRODUCT = re.compile(r"aten::\w*(mm|mv|matmul|linear|einsum|tensordot|conv\w*|attention\w*|lstm\w*|gru\w*|rnn\w*)_?$")


@dataclass(frozen=True)
class Classes:
    """The class of each span of a trace; arrays as long as its spans."""

    work: NDArray[np.uint8]  # NEITHER, COMPUTE_WORK or MEMORY_WORK
    evidence: NDArray[np.uint8]  # a place in EVIDENCE; of what is NEITHER it says nothing
    latency_bound: NDArray[np.bool_]  # takes far longer than arithmetic or memory would; only a roofline tells


def classify(trace: Trace, ceilings: Ceilings) -> Classes:
    """Return the class of each span, by the best evidence at hand.

    Of a device its kernels, copies and fills are work, and the operators that launched them are not; without one the
    operators are. An operator's least work is that of all its kernels: those whose names are of another kind, as a
    copy within a product, are classed by name, and the others share what it takes alone by their durations.
    """
    spans = trace.spans
    kinds = DEVICE_KINDS if trace.on_device else (OPERATOR,)
    places = np.flatnonzero(np.isin(spans.kind, kinds) & (spans.call < 0))
    verdicts, which = _verdicts(trace, places, ceilings)
    kind, evidence, alone = np.array(verdicts, dtype=np.float64).reshape(-1, 3)[which].T

    classes = Classes(
        np.full(len(spans), NEITHER, dtype=np.uint8),
        np.full(len(spans), EVIDENCE.index(NONE), dtype=np.uint8),
        np.zeros(len(spans), dtype=np.bool_),
    )
    classes.work[places] = kind
    classes.evidence[places] = evidence
    known = places[~np.isnan(alone)]
    took = _together(trace, known) if trace.on_device else spans.end[known] - spans.start[known]
    classes.latency_bound[known] = alone[~np.isnan(alone)] * 1e9 < LATENCY_BOUND * took
    return classes


def _verdicts(trace: Trace, places: NDArray[np.int64], ceilings: Ceilings) -> tuple[list[_Verdict], NDArray[np.int64]]:
    """Return the verdicts on spans, alike ones once, and which of them holds for each span."""
    spans = trace.spans
    columns = [one[places].astype(np.int64) for one in (spans.kind, spans.name, spans.operator + 1)]
    key = (columns[0] * (len(trace.names) + 1) + columns[1]) * (len(trace.operators) + 1) + columns[2]
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    rows = zip(*(one[first].tolist() for one in columns), strict=True)
    least = [None, *map(work, trace.operators)]
    return [_verdict(kind, trace.names[name], least[operator], ceilings) for kind, name, operator in rows], which


class _Verdict(NamedTuple):
    work: int
    evidence: int
    alone: float = nan  # seconds that arithmetic or memory takes, the longer one; by a roofline only


def _verdict(kind: int, name: str, least: Work | None, ceilings: Ceilings) -> _Verdict:
    named = _by_operator(name) if kind == OPERATOR else _by_kernel(name)
    if least is None or ceilings.bandwidth is None or kind not in (KERNEL, OPERATOR):
        return named
    if least.flops and named[:2] == (MEMORY_WORK, _BY_NAME):
        return named
    dtype = "tf32" if least.dtype == "float32" and _ROUNDED.search(name) else least.dtype
    if least.flops and dtype not in ceilings.flops:
        return named
    arithmetic, memory = least.flops / ceilings.flops.get(dtype, inf), least.bytes / ceilings.bandwidth
    return _Verdict(
        COMPUTE_WORK if least.flops and arithmetic >= memory else MEMORY_WORK,
        EVIDENCE.index(ROOFLINE),
        max(arithmetic, memory),
    )


@cache
def _by_kernel(name: str) -> _Verdict:
    if _PASSES_FIRST.search(name):
        return _Verdict(MEMORY_WORK, _BY_NAME)
    if _MULTIPLIES.search(name):
        return _Verdict(COMPUTE_WORK, _BY_NAME)
    return _Verdict(MEMORY_WORK, _BY_NAME if _PASSES.search(name) else EVIDENCE.index(NONE))


@cache
def _by_operator(name: str) -> _Verdict:
    """What has no :: in its name is a range that somebody marked, or a node of autograd, which calls operators."""
    if "::" not in name or _WRAPS.match(name):
        return _Verdict(NEITHER, EVIDENCE.index(NONE))
    if name.startswith("aten::"):
        return _Verdict(COMPUTE_WORK if _PRODUCT.match(name) else MEMORY_WORK, _BY_NAME)
    return _by_kernel(name)


def _together(trace: Trace, kernels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return for each kernel the ns of all those that the same launch of its operator led to.

    An operator's launch is the last span of it that began before the kernel was launched.
    """
    spans = trace.spans
    launches = np.flatnonzero((spans.kind == OPERATOR) & (spans.operator >= 0))
    which = np.concatenate((launches, kernels))
    is_kernel = np.repeat((False, True), (len(launches), len(kernels)))
    operator, time = spans.operator[which], np.where(is_kernel, spans.launched[which], spans.start[which])
    order = np.lexsort((is_kernel, time, operator))
    here = np.arange(len(order))
    launch = np.maximum.accumulate(np.where(is_kernel[order], -1, here))
    found = (launch >= 0) & (operator[order][launch] == operator[order])
    launch = np.where(found, launch, here)  # a kernel whose operator was not seen is alone
    lasted = np.where(is_kernel, spans.end[which] - spans.start[which], 0)[order]
    together = np.empty(len(order))
    together[order] = np.bincount(launch, weights=lasted, minlength=len(order))[launch]
    return together[len(launches) :]
