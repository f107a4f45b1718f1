"""How fast a trace of PyTorch's profiler becomes layers, in how much memory; beside HolisticTraceAnalysis.

    python benchmarks/attribution_speed.py                                       # ours alone, up to a GiB
    python benchmarks/attribution_speed.py --sizes 16M,64M --hta venv-hta/bin/python

Traces are written here, as Kineto writes them: steps of operators, launches, arrows and kernels, an all-reduce every so
often. Each side reads one in a process of its own and splits the steps' time; its imports do not count. --hta names the
Python of an environment with HolisticTraceAnalysis==0.5.0 and pandas<3. It is given the sizes up to --hta-limit, since
a GiB takes it tens of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _launch import ROOT, add_options, head, publish, say, table

from commbench.errors import UsageError
from commbench.units import parse_size

RATE_BAR, GIB_BAR, BAR_SIZE = 40.0, 3.0, 1 << 30  # MB/s; GiB, at a GiB
FASTER_BAR, MEMORY_BAR = 5.0, 0.25  # than HTA, and of what it takes

MEASURED = """
import json, resource, sys, time
start, cpu = time.perf_counter(), time.process_time()
found = work(sys.argv[1])
found["wall_s"], found["cpu_s"] = time.perf_counter() - start, time.process_time() - cpu
peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
found["peak_gib"] = max(peaks) / 2**20
print(json.dumps(found))
"""
OURS = """
from commbench.attribution.classes import Ceilings, classify
from commbench.attribution.layers import layers, windows
from commbench.attribution.reading import read_file
def work(path):
    (trace,) = read_file(path)
    classes = classify(trace, Ceilings())
    found = layers(trace, windows(trace)[:-1], {}, classes)
    span = sum(one.window.end - one.window.start for one in found)
    return {"spans": len(trace.spans), "idle": sum(one.total("host") for one in found) / span}
"""
HTA = """
import logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
def work(path):
    analysis = TraceAnalysis(trace_files={0: path}, trace_dir="/")
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    return {"spans": len(analysis.t.get_trace(0)), "idle": float(row["idle_time_pctg"]) / 100}
"""

OPERATORS_A_BUCKET = 50  # an all-reduce after so many
OPERATORS_A_STEP = 1000
KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, "
    "3> >(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)"
)
GROUP = '"Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]"'
REDUCED = (
    '"Collective name": "allreduce", "In msg nelems": 6553600, "Out msg nelems": 6553600, "Group size": 2, '
    f'"dtype": "Float", "In split size": "[]", "Out split size": "[]", {GROUP}'
)
GEOMETRY = (
    '"queued": 0, "device": 0, "context": 1, "registers per thread": 32, "shared memory": 0, "blocks per SM": 7.4, '
    '"warps per SM": 29.629629, "grid": [800, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 46'
)
SHAPES = (
    '"Sequence number": 0, "Fwd thread id": 0, "Ev Idx": 0, "Input Dims": [[1024, 4096], [1024, 4096], []], '
    '"Input type": ["float", "float", "Scalar"]'
)


def span(kind: str, name: str, where: str, start: float, length: float, args: str) -> str:
    """Return a span as Kineto writes it."""
    return (
        f'  {{\n    "ph": "X", "cat": "{kind}", "name": "{name}", {where},\n'
        f'    "ts": {start:.3f}, "dur": {length:.3f},\n    "args": {{\n      {args}\n    }}\n  }}'
    )


def arrow(end: str, number: int, where: str, start: float) -> str:
    """Return one end of an arrow from a launch to its kernel."""
    return (
        f'  {{\n    "ph": {end}, "id": {number}, {where}, "ts": {start:.3f},\n    "cat": "ac2g", "name": "ac2g"\n  }}'
    )


def events() -> Iterator[str]:
    """Yield the events of one step after the other, without end; times in us."""
    host, device, network = ('"pid": 4242, "tid": 4242', '"pid": 0, "tid": 7', '"pid": 0, "tid": 20')
    at, free, number, step = 1000.0, 1000.0, 0, 0
    while True:
        began = at
        for place in range(OPERATORS_A_STEP):
            number += 3
            ids = f'"External id": {number}, "Record function id": 0, '
            yield span("cpu_op", "aten::linear", host, at, 18, ids + SHAPES)
            yield span("cpu_op", "aten::add", host, at + 1, 15, ids.replace(str(number), str(number + 1)) + SHAPES)
            link = f'"External id": {number + 1}, "cbid": 211, "correlation": {number}'
            yield span("cuda_runtime", "cudaLaunchKernel", host, at + 4, 6, link)
            yield arrow('"s"', number, host, at + 4)
            start, length = max(free, at + 9), 12 + place % 7
            free = start + length
            link = f'"External id": {number + 1}, "stream": 7, "correlation": {number}, '
            yield span("kernel", KERNEL, device, start, length, link + GEOMETRY)
            yield arrow('"f", "bp": "e"', number, device, start)
            at += 20
            if place % OPERATORS_A_BUCKET:
                continue
            number += 3
            ids = f'"External id": {number}, '
            yield span("cpu_op", "c10d::allreduce_", host, at, 30, ids + SHAPES)
            yield span("cpu_op", "record_param_comms", host, at + 2, 26, f'"External id": {number + 1}, {REDUCED}')
            link = f'"External id": {number + 1}, "cbid": 430, "correlation": {number}'
            yield span("cuda_runtime", "cudaLaunchKernelExC", host, at + 8, 9, link)
            link = f'"External id": {number + 1}, "stream": 20, "correlation": {number}, {REDUCED}, '
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            yield span("kernel", name, network, at + 20, 400, link + GEOMETRY)
            at += 35
        yield span("user_annotation", f"ProfilerStep#{step}", host, began, at - began, f'"External id": {number + 2}')
        step += 1
        at += 50


def write(path: Path, size: int) -> None:
    """Write a trace of so many bytes, of whole steps."""
    ranks = '"pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}]'
    with open(path, "w", encoding="utf-8") as out:
        out.write(
            '{\n  "schemaVersion": 1,\n  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2, '
            f'{ranks}}},\n  "baseTimeNanoseconds": 1767189312000000000,\n  "traceEvents": [\n'
        )
        written = steps = 0
        for text in events():
            written += out.write(text)
            steps += "ProfilerStep" in text
            if "ProfilerStep" in text and written >= size and steps > 1:  # the last step does not count
                break
            written += out.write(",\n")
        out.write("\n  ]\n}\n")


def measure(python: str, code: str, path: Path) -> dict[str, Any]:
    """Return what a process that carries out `code` says of a trace."""
    command = [python, "-c", code + MEASURED, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"attribution_speed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    size = path.stat().st_size / 1e6
    return {**found, "rate": size / found["wall_s"], "cpu_rate": size / found["cpu_s"]}


def row(who: str, size: int, found: dict[str, Any]) -> list[str]:
    """Return a line of the table."""
    figures = [f"{found[key]:.2f}" for key in ("wall_s", "cpu_s", "rate", "cpu_rate", "peak_gib")]
    return [who, f"{size / 1e6:.0f}", f"{found['spans']}", *figures, f"{100 * found['idle']:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes", default="16M,64M,256M,1G", metavar="SIZES", help="of the traces (default 16M,64M,256M,1G)"
    )
    parser.add_argument("--hta", metavar="PYTHON", help="a Python with HolisticTraceAnalysis==0.5.0 and pandas<3")
    parser.add_argument("--hta-limit", default="64M", metavar="SIZE", help="the largest trace HTA gets (default 64M)")
    add_options(parser)
    options = parser.parse_args()
    try:
        sizes = [parse_size(word) for word in options.sizes.split(",")]
        limit = parse_size(options.hta_limit)
    except UsageError as error:
        parser.error(str(error))
    lines = head(["benchmarks/attribution_speed.py", *sys.argv[1:]])
    cells, ratios, figures = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            trace = Path(folder, f"{size}.json")
            say(f"{size} bytes: writing")
            write(trace, size)
            real = trace.stat().st_size
            say(f"{size} bytes: ours")
            ours = measure(sys.executable, OURS, trace)
            cells.append(row("ours", real, ours))
            figures.append({"bytes": real, "ours": ours})
            if options.hta and size <= limit:
                say(f"{size} bytes: HTA")
                theirs = measure(options.hta, HTA, trace)
                cells.append(row("HTA", real, theirs))
                figures[-1]["hta"] = theirs
                wall, cpu = (theirs[key] / ours[key] for key in ("wall_s", "cpu_s"))
                memory = ours["peak_gib"] / theirs["peak_gib"]
                ratios.append(
                    f"# {real / 1e6:.0f} MB: {wall:.1f} times as fast as HTA, {cpu:.1f} in processor time, "
                    f"with {memory:.2f} of its memory"
                )
            trace.unlink()
    lines += table(["", "MB", "spans", "wall (s)", "cpu (s)", "MB/s", "MB/s of cpu", "peak (GiB)", "idle (%)"], cells)
    lines += ratios
    lines.append(
        f"# bars: {RATE_BAR:g} MB/s, {GIB_BAR:g} GiB at {BAR_SIZE >> 20} MiB; "
        f"{FASTER_BAR:g} times as fast as HTA in {MEMORY_BAR:g} of its memory"
    )
    publish("attribution_speed", lines, figures, options)


if __name__ == "__main__":
    main()
