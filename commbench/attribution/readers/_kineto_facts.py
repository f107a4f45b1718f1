"""What single events of PyTorch's profiler say of communication.

Keys of arguments are those of PyTorch's ParamCommsUtils.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from commbench.attribution.readers import _values, _words
from commbench.attribution.trace import ROOTED

Shapes = tuple[tuple[int, ...], ...]

# What an event is to communication, by its name.
NOTHING, STEP, ASKED, DESCRIBED, MARKED, RUN, KERNEL = range(7)
_STEP = re.compile(r"ProfilerStep#(\d{1,18})")
_MARKED = re.compile(r"[a-z]*ccl:\w+")  # asking for it; the work itself is on a device
_RUN = re.compile(r"(?:gloo|mpi|ucc):\w+")  # the work itself, on a thread of the library or the caller's

# Which inputs of a `c10d::` operator are what a rank sends, what it receives, and the root or peer.
_OPERATORS: dict[str, tuple[int | None, int | None, int | None]] = {
    "allreduce_": (0, 0, None),
    "allreduce_coalesced_": (0, 0, None),
    "allgather_": (1, None, None),
    "_allgather_base_": (1, 0, None),
    "allgather_coalesced_": (1, None, None),
    "allgather_into_tensor_coalesced_": (1, 0, None),
    "reduce_scatter_": (None, 0, None),
    "_reduce_scatter_base_": (1, 0, None),
    "reduce_scatter_tensor_coalesced_": (1, 0, None),
    "alltoall_base_": (1, 0, None),
    "alltoall_": (1, 0, None),
    "broadcast_": (0, 0, 2),
    "reduce_": (0, 0, 3),
    "gather_": (1, None, 3),
    "scatter_": (None, 0, 3),
    "barrier": (None, None, None),
    "monitored_barrier_": (None, None, None),
    "send": (0, None, 2),
    "recv_": (None, 0, 2),
    "recv_any_source_": (None, 0, None),
}
WORDS = (  # arguments that are read here
    *("Collective name", "Process Group Name", "Process Group Description", "Process Group Ranks", "Group size"),
    *("Global rank start", "Global rank stride", "In msg nelems", "Out msg nelems", "In split size", "Out split size"),
    *("dtype", "Rank", "Src Rank", "Dst Rank", "Input Dims", "Input type", "Concrete Inputs"),
)
_NO_RANK = re.compile(r"\.\.\.|\d{10}")
_SPLITS = (3, 4)  # of alltoall_base_
_NO_OPERATION = ("wait", "init", "end_coalescing", "start_coalescing")


@dataclass(frozen=True)
class Facts:
    """What one event says of a collective. None, "" and UNKNOWN: nothing."""

    operation: str
    by_arguments: bool = False
    group_name: str = ""
    description: str = ""
    ranks: tuple[int, ...] | None = None
    size: int | None = None
    first: int | None = None  # rank of the group, and
    stride: int | None = None  # how far the next one is from it
    elements_in: int | None = None
    elements_out: int | None = None
    dtype: str = ""
    place: int | None = None  # of the root or the peer in the group
    peer: int | None = None  # a rank of the job
    coalesced: bool = False
    shapes: Shapes | None = None  # of what Gloo's span of it shows, where it shows something
    repeated: bool = False  # Gloo makes several spans of one
    ratio: int | None = None  # of a group's size, where its tensors tell


def role(name: str) -> int:
    """Return what an event of this name is to communication."""
    if name == "record_param_comms":
        return DESCRIBED
    if name.startswith("c10d::"):
        return ASKED
    if _STEP.fullmatch(name):
        return STEP
    if _MARKED.fullmatch(name):
        return MARKED
    if _RUN.fullmatch(name):
        return RUN
    return KERNEL if _words.COMMUNICATION.search(name) else NOTHING


def step(name: str) -> int:
    """Return the number of a step."""
    found = _STEP.fullmatch(name)
    assert found
    return int(found.group(1))


def described(args: Mapping[str, Any]) -> Facts | None:
    """Return what the arguments of a kernel or of `record_param_comms` say; None where they name no collective."""
    name = args.get("Collective name")
    if not isinstance(name, str) or not name or name in _NO_OPERATION:
        return None
    operation = _words.operation(name)
    ranks, whole = _ranks(args.get("Process Group Ranks"))
    split = any(_some(args.get(f"{way} split size")) for way in ("In", "Out"))
    peers = {"send": "Dst Rank", "recv": "Src Rank"}
    return Facts(
        operation,
        by_arguments=True,
        group_name=_text(args.get("Process Group Name")),
        description=_text(args.get("Process Group Description")),
        ranks=ranks if whole else None,
        size=ranks_in(args.get("Group size")),
        first=number(args.get("Global rank start")),
        stride=number(args.get("Global rank stride")),
        elements_in=number(args.get("In msg nelems")),
        elements_out=number(args.get("Out msg nelems")),
        dtype=_words.dtype(_text(args.get("dtype"))),
        place=number(args.get("Rank")) if operation in ROOTED else None,
        peer=number(args.get(peers[operation])) if operation in peers else None,
        coalesced=split or "coalesced" in name or "alltov" in name.replace("_", ""),
    )


def asked(name: str, args: Mapping[str, Any]) -> Facts:
    """Return what a `c10d::` operator was asked."""
    short = name.removeprefix("c10d::")
    send, receive, place = _OPERATORS.get(short, (None, None, None))
    shapes, dtypes, values = (_list(args.get(key)) for key in ("Input Dims", "Input type", "Concrete Inputs"))
    sent, received = _shapes(shapes, send), _shapes(shapes, receive)
    shown = None if short in ("scatter_", "barrier") else received if send is None else sent
    own = [_at(dtypes, position) for position in (send, receive) if position is not None]
    elements_in, elements_out = elements(sent), elements(received)
    ratio = None
    if short in ("_allgather_base_", "_reduce_scatter_base_") and elements_in and elements_out:
        ratio = max(elements_in, elements_out) // min(elements_in, elements_out)
    uneven = short == "alltoall_base_" and any(_some(_at(values, position)) for position in _SPLITS)
    return Facts(
        _words.operation(short),
        elements_in=elements_in,
        elements_out=elements_out,
        dtype=next((_words.dtype(word) for word in own if isinstance(word, str) and "List" not in word), ""),
        place=None if place is None else number(_at(values, place)),
        coalesced=uneven or "coalesced" in short,
        shapes=shown,
        repeated=short == "reduce_scatter_",
        ratio=ratio,
    )


def marked(name: str, args: Mapping[str, Any]) -> Facts:
    """Return what a span such as `gloo:all_reduce` or `nccl:all_reduce` says."""
    operation = _words.operation(name.partition(":")[2])
    given = _list(args.get("Input Dims"))
    shapes = tuple(shape for position in range(len(given)) for shape in _shapes(given, position) or ())
    count = elements(shapes) if shapes else None
    dtypes = _list(args.get("Input type"))
    return Facts(
        operation,
        elements_in=None if operation in ("scatter", "recv") else count,
        elements_out=count if operation in ("allreduce", "broadcast", "reduce", "recv") else None,
        dtype=_words.dtype(_text(_at(dtypes, 0))),
        coalesced="coalesced" in name,
        shapes=None if operation in ("scatter", "barrier") else shapes,
    )


def named(name: str) -> Facts:
    """Return what a kernel's name says."""
    return Facts(_words.operation_of_kernel(name))


def ranks_in(value: Any) -> int | None:
    """Return how many ranks something has; None for what is no number of them."""
    found = number(value)
    return found if found and found <= _values.MOST_RANKS else None


def number(value: Any) -> int | None:
    """Return a whole number from 0 on, written as a number or as text; None for another value."""
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if 0 <= found < 1 << 62 else None


def elements(shapes: Shapes | None) -> int | None:
    """Return how many elements tensors have together; None where their shapes are not told."""
    if shapes is None:
        return None
    return number(sum(math.prod(shape) for shape in shapes))


def _ranks(value: Any) -> tuple[tuple[int, ...], bool]:
    """Return the ranks in a list, or in one's text, and whether all of them are there: PyTorch writes 30 at most."""
    if isinstance(value, str):
        found = [int(word) for word in re.findall(r"\d{1,9}", value)]
        return tuple(found), bool(found) and not _NO_RANK.search(value)
    found = [rank for rank in map(number, _list(value)) if rank is not None]
    return tuple(found), bool(found)


def _shapes(inputs: list[Any], position: int | None) -> Shapes | None:
    """Return the shapes of the tensors that one input is: itself, or those of a list."""
    value = _at(inputs, position)
    if not isinstance(value, list):
        return None
    tensors = value if value and all(isinstance(one, list) for one in value) else [value]
    return tuple(tuple(number(size) or 0 for size in tensor) for tensor in tensors)


def _at(values: list[Any], position: int | None) -> Any:
    return values[position] if position is not None and position < len(values) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _some(value: Any) -> bool:
    """Whether a list, or the text of one, has something in it."""
    return bool(value) and value != "[]"
