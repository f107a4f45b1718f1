"""Events of a trace of PyTorch's profiler, in columns as they come."""

from __future__ import annotations

import marshal
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from commbench.attribution.readers import _kineto_facts as facts
from commbench.attribution.readers._kineto_facts import Facts
from commbench.attribution.trace import (
    ANNOTATION,
    DEVICE_KINDS,
    KERNEL,
    MEMCPY,
    MEMSET,
    OPERATOR,
    RUNTIME,
    SYNC,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.int64]

_CATEGORIES = {
    **{"kernel": KERNEL, "gpu_memcpy": MEMCPY, "gpu_memset": MEMSET, "cpu_op": OPERATOR},
    **{"cuda_runtime": RUNTIME, "cuda_driver": RUNTIME, "hip_runtime": RUNTIME, "user_annotation": ANNOTATION},
    **{"xpu_runtime": RUNTIME, "privateuse1_runtime": RUNTIME},
    # Before 2022.
    **{"Kernel": KERNEL, "Memcpy": MEMCPY, "Memset": MEMSET, "Operator": OPERATOR, "Runtime": RUNTIME},
}
_VALUED = re.compile("conv|attention")  # operators whose stride, or mask, tells how much they do
_BLOCKING = re.compile(r"(cuda|hip|cu)(Device|Stream|Event|Ctx|Thread)Synchronize")


@dataclass(frozen=True)
class Found:
    """An event that says something of communication."""

    row: int  # as it was read
    role: int
    facts: Facts
    sequence: int | None = None


class Rows:
    """Events in columns, as they come."""

    def __init__(self) -> None:
        self.start: list[NDArray[np.float64]] = []  # us
        self.length: list[NDArray[np.float64]] = []  # us
        self.kind = array("B")
        self.name = array("i")
        self.lane = array("i")
        self.operator = array("i")
        self.correlation: list[Times] = []
        self.external: list[Times] = []
        self.names: dict[Any, int] = {}
        self.lanes: dict[tuple[Any, Any], int] = {}
        self.operators: dict[Any, int] = {}
        self.asked: list[tuple[int, tuple[tuple[int, ...], ...], tuple[str, ...], tuple[str, ...]]] = []
        self.found: list[Found] = []
        self.steps: list[int] = []  # rows
        self.malformed = 0
        self.others = 0
        self._roles: list[int] = []
        self._valued: list[bool] = []
        self._blocking: list[bool] = []
        self._categories = dict(_CATEGORIES)
        self._said: dict[bytes, Facts | None] = {}

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.kind)

    def add(self, events: Sequence[Any]) -> None:
        """Take in events; those that are none of work are counted."""
        start: list[Any] = []
        length: list[Any] = []
        correlation: list[Any] = []
        external: list[Any] = []
        categories, names, roles, lanes = self._categories, self.names, self._roles, self.lanes  # looked up per event
        for event in events:
            try:
                if event.get("ph") != "X" or (kind := categories.get(event.get("cat"))) is None:
                    self.others += 1
                    continue
                name = names.setdefault(event["name"], len(names))
                if name == len(roles):
                    self._learn(str(event["name"]))
                lane = lanes.setdefault((event.get("pid"), event.get("tid")), len(lanes))
                began = event["ts"]
                args = event.get("args") or {}
                link = args.get("correlation", -1)
                outer = args.get("External id")
                if outer is None:
                    outer = args.get("external id", -1)
                operator = self._asked(name, args) if kind == OPERATOR else -1
                if kind == RUNTIME and self._blocking[name]:
                    kind = SYNC
                if (role := roles[name]) or "Collective name" in args:
                    self._keep(kind, role, event["name"], args)
            except (AttributeError, KeyError, TypeError, ValueError):
                self.malformed += 1
                continue
            start.append(began)
            length.append(event.get("dur"))
            correlation.append(link)
            external.append(outer)
            self.kind.append(kind)
            self.name.append(name)
            self.lane.append(lane)
            self.operator.append(operator)
        self.start.append(_floats(start))
        self.length.append(_floats(length))
        self.correlation.append(_wholes(correlation))
        self.external.append(_wholes(external))

    def _learn(self, name: str) -> None:
        """Keep what a name tells, worked out only once."""
        self._roles.append(facts.role(name))
        self._valued.append(_VALUED.search(name) is not None)
        self._blocking.append(_BLOCKING.match(name) is not None)

    def _asked(self, name: int, args: Mapping[str, Any]) -> int:
        """Return the place of what an operator was asked."""
        shapes, dtypes = args.get("Input Dims"), args.get("Input type")
        values = args.get("Concrete Inputs") if self._valued[name] else None
        key = name if shapes is None else (name, marshal.dumps((shapes, dtypes, values), 2))
        place = self.operators.setdefault(key, len(self.operators))
        if place == len(self.asked):
            self.asked.append((name, *_inputs(shapes, dtypes, values)))
        return place

    def _keep(self, kind: int, role: int, name: str, args: Mapping[str, Any]) -> None:
        """Keep what an event says of communication or of steps."""
        row = self.count
        if kind in DEVICE_KINDS:
            if kind == KERNEL and (role == facts.KERNEL or "Collective name" in args):
                said = self._once(facts.described, args) or facts.named(name)
                self.found.append(Found(row, facts.KERNEL, said, facts.number(args.get("Seq"))))
        elif role == facts.STEP:
            self.steps.append(row)
        elif role == facts.DESCRIBED:
            if (said := self._once(facts.described, args)) is not None:
                self.found.append(Found(row, role, said, facts.number(args.get("Seq"))))
        elif role in (facts.ASKED, facts.MARKED, facts.RUN):
            say = facts.asked if role == facts.ASKED else facts.marked
            self.found.append(Found(row, role, self._once(say, args, name)))

    def _once(self, say: Any, args: Mapping[str, Any], *name: str) -> Any:
        """Return what arguments say, worked out only once for those that are alike."""
        key = marshal.dumps((name, [args.get(word) for word in facts.WORDS]), 2)
        if key not in self._said:
            self._said[key] = say(*name, args)
        return self._said[key]


def _inputs(
    shapes: Any, dtypes: Any, values: Any
) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...], tuple[str, ...]]:
    """Return the shapes of an operator's inputs, () for one that is no tensor, their types, and what else is told."""
    if not isinstance(shapes, list):
        return (), (), ()
    sizes = tuple(
        tuple(one) if isinstance(one, list) and all(type(size) is int and size < 1 << 63 for size in one) else ()
        for one in shapes
    )
    types, told = (tuple(map(str, one)) if isinstance(one, list) else () for one in (dtypes, values))
    return sizes, types, told


def _floats(values: list[Any]) -> NDArray[np.float64]:
    """Return numbers, NaN for what is none."""
    try:
        return np.array(values, dtype=np.float64).reshape(len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array([_float(value) for value in values], dtype=np.float64)


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _wholes(values: list[Any]) -> Times:
    """Return whole numbers, -1 for what is none."""
    try:
        return np.array(values, dtype=np.int64).reshape(len(values))
    except (TypeError, ValueError, OverflowError):
        numbers = map(facts.number, values)
        return np.array([-1 if number is None else number for number in numbers], dtype=np.int64)
