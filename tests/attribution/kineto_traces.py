"""Traces of PyTorch's profiler, written here in the forms that its releases have had."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from commbench.attribution.reading import read_file
from commbench.attribution.trace import Trace

HOST, WORKER = 100, 200  # threads

Event = dict[str, Any]


def span(kind: str, name: str, start: float, length: float, tid: int = HOST, pid: int = 1, **args: Any) -> Event:
    """A span; arguments are named with _ for blanks, and those of other names are given in `more`."""
    more = args.pop("more", {})
    event = {"ph": "X", "cat": kind, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": length}
    return {**event, "args": {**{key.replace("_", " "): value for key, value in args.items()}, **more}}


def kernel(name: str, start: float, length: float, number: int, stream: int = 7, **more: Any) -> list[Event]:
    """A kernel, its launch 5 us before it, and the arrows between them."""
    launch = span("cuda_runtime", "cudaLaunchKernel", start - 5, 2, correlation=number, External_id=number)
    ends = ((launch, "s"), (work := span("kernel", name, start, length, stream, 0, correlation=number, more=more), "f"))
    arrows = [
        {"ph": end, "id": number, "pid": at["pid"], "tid": at["tid"], "ts": at["ts"], "cat": "ac2g", "name": "ac2g"}
        for at, end in ends
    ]
    return [launch, work, *arrows]


def collective(name: str = "allreduce", count: int = 1000, ranks: Iterable[int] = (0, 1), **more: Any) -> Event:
    """Arguments of a collective, as PyTorch writes them since 2024."""
    group = list(ranks)
    return {
        **{"Collective name": name, "In msg nelems": count, "Out msg nelems": count, "Group size": len(group)},
        **{"dtype": "BFloat16", "In split size": "[]", "Out split size": "[]", "Process Group Name": "0"},
        **{"Process Group Description": "default_pg", "Process Group Ranks": str(group)},
        **more,
    }


def info(rank: int = 0, groups: Mapping[str, list[int]] | None = None, size: int = 2, backend: str = "nccl") -> Event:
    """What `distributedInfo` says."""
    told = groups or {"0": list(range(size))}
    configured = [
        {"pg_name": name, "pg_desc": "default_pg" if name == "0" else "undefined", "backend_config": f"cpu:{backend}"}
        | {"pg_size": len(ranks), "ranks": ranks}
        for name, ranks in told.items()
    ]
    return {"backend": backend, "rank": rank, "world_size": size, "pg_count": len(told), "pg_config": configured}


def asked(operation: str, start: float, inputs: list[Any], values: list[str], tid: int = HOST, **args: Any) -> Event:
    """A `c10d::` operator."""
    types = ["TensorList" if one and isinstance(one[0], list) else "float" if one else "" for one in inputs]
    more = {"Input Dims": inputs, "Input type": types, "Concrete Inputs": values}
    return span("cpu_op", f"c10d::{operation}", start, 2, tid, more=more, **args)


def gloo(operation: str, start: float, length: float, shapes: list[list[int]], tid: int = WORKER) -> Event:
    """The span of what Gloo does."""
    more = {"Input Dims": shapes, "Input type": ["float"] * len(shapes)}
    return span("user_annotation", f"gloo:{operation}", start, length, tid, more=more)


def text(events: Iterable[Event], **keys: Any) -> str:
    """The file."""
    return json.dumps({"schemaVersion": 1, **keys, "traceEvents": list(events)})


def read_text(folder: Path, content: str | bytes, name: str = "trace.json") -> Trace:
    """Read a file with this content."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (one,) = read_file(path)
    return one


def read_events(folder: Path, events: Iterable[Event], **keys: Any) -> Trace:
    """Read a file with these events."""
    return read_text(folder, text(events, **keys))
