"""Logs in the formats of others, written here from known times, so that a reader can be held against them."""

from __future__ import annotations

import json
from collections.abc import Sequence

HEAD = (
    "#       size         count      type   redop    root"
    "     time   algbw   busbw #wrong     time   algbw   busbw #wrong"
)
OLD = "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error"


def number(value: float, width: int) -> str:
    """As nccl-tests prints a time or rate."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text.rjust(width)
    return f"{value:.1e}".rjust(width)


def half(size: int, time: float, factor: float, check: str) -> str:
    algbw = size / time / 1e3
    return f"{number(time, 7)}  {number(algbw, 6)}  {number(algbw * factor, 6)}  {check:>5}"


def nccl_tests(
    times: Sequence[tuple[int, float, float]],
    n: int = 8,
    *,
    prefix: str = "",
    old: bool = False,
    device: str = "NVIDIA H100 80GB HBM3",
    end: bool = True,
    rows_only: bool = False,
) -> str:
    """An all-reduce of (size, time out of place, in place) over `n` ranks of one host."""
    factor = 2 * (n - 1) / n
    lines = [
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 8192 step: 2(factor) warmup iters: 5 iters: 20 validation: 1",
        "# Using devices",
        *(
            f"#  Rank {r:2d} Group  0 Pid {900 + r:6d} on node-a device {r:2d} [0000:{r:02x}:00] {device}"
            for r in range(n)
        ),
        "#                                                              out-of-place                       in-place",
        OLD if old else HEAD,
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
    ]
    rows = []
    for size, out, into in times:
        lead = f"{size:12d}  {size // 4:12d}  {'float':>8}  {'sum':>6}" + ("" if old else f"  {-1:6d}")
        check = "2e-07" if old else "0"
        rows.append(f"{lead}  {half(size, out, factor, check)}  {half(size, into, factor, check)}")
    rates = [float(number(s / t / 1e3 * factor, 6)) for s, *both in times for t in both]
    foot = ["# Out of bounds values : 0 OK", f"# Avg bus bandwidth    : {sum(rates) / len(rates):g}", "#"]
    whole = rows if rows_only else [*lines, *rows, *(foot if end else [])]
    return "".join(f"{prefix}{line}\n" for line in whole)


def osu(times: Sequence[tuple[int, float]], *, full: bool = True, n: int | None = None) -> str:
    """An all-gather, with -f -c -z where `full`, and the command above it where `n` is given."""
    head = "# Size  Avg Latency(us)  Min Latency(us)  Max Latency(us)  Iterations  Validation  P99 Tail Lat(us)"
    lines = [
        *([f"mpirun -np {n} ./osu_allgather -f -c -z"] if n else []),
        "",
        "# OSU MPI Allgather Latency Test v7.4",
        "# Datatype: MPI_CHAR.",
        head if full else "# Size       Avg Latency(us)",
    ]
    for size, time in times:
        more = f"{time * 0.9:20.2f}{time * 1.2:20.2f}{1000:12d}{'Pass':>16}{time * 1.1:20.2f}" if full else ""
        lines.append(f"{size:<10d}{time:20.2f}{more}")
    return "\n".join(lines) + "\n"


def imb(times: Sequence[tuple[int, float]], n: int = 4) -> str:
    """A broadcast, whose last size timed out."""
    lines = [
        "# Benchmarking Bcast",
        f"# #processes = {n}",
        "       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]",
        *(f"{size:13d} {1000:12d} {t * 0.9:12.2f} {t * 1.1:12.2f} {t:12.2f}" for size, t in times),
        f"{times[-1][0] * 2:13d} {10:12d} time-out.;",
    ]
    return "\n".join(lines) + "\n"


def inspector(times: Sequence[tuple[int, int]], n: int = 8) -> str:
    """An all-reduce a line."""
    lines = []
    for number, (size, time) in enumerate(times):
        algbw = size / time / 1e3
        perf = {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": size, "coll_exec_time_us": time}
        perf |= {"coll_algobw_gbs": round(algbw, 6), "coll_busbw_gbs": round(algbw * 2 * (n - 1) / n, 6)}
        header = {"id": "0x1", "rank": 0, "n_ranks": n, "nnodes": 1}
        lines.append(json.dumps({"header": header, "metadata": {"pid": 3}, "coll_perf": perf}))
    return "\n".join(lines) + "\n"


def nccl_json(times: Sequence[tuple[int, float, float]], n: int = 8, *, device: str = "NVIDIA H100") -> str:
    """Version 3 of nccl-tests' JSON."""
    factor = 2 * (n - 1) / n
    results = []
    for size, *both in times:
        entry: dict[str, object] = {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1"}
        for name, time in zip(("out_of_place", "in_place"), both, strict=True):
            algbw = size / time / 1e3
            entry[name] = {"time": time, "alg_bw": algbw, "bus_bw": algbw * factor, "nwrong": 0}
        results.append({**entry, "actual_iterations": 20})
    rates = [size / time / 1e3 * factor for size, *both in times for time in both]
    devices = [
        {"rank": r, "group": 0, "pid": 9 + r, "hostname": "node-a", "device": r, "device_info": device}
        for r in range(n)
    ]
    whole = {
        "version": 3,
        "args": ["./all_reduce_perf", "-g", "1"],
        "env": ["SECRET_TOKEN=do-not-keep"],
        "nccl_version": 23007,
        "config": {"nthreads": 1, "ngpus": 1, "iterations": 20, "devices": devices},
        "results": results,
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": sum(rates) / len(rates), "okay": "unchecked"},
        "errors": [],
    }
    return json.dumps(whole, indent=2) + "\n"


def rccl_csv(times: Sequence[tuple[int, float]], n: int = 8, *, old: bool = False) -> str:
    """The two generations of rccl-tests' CSV; the old heading is one column short."""
    head = (
        "collective, ranks, rankspernode, gpusperrank, size, type, redop, inplace, time, algbw, busbw, #wrong"
        if old
        else "numCycle,collective,nodes,ranks,ranksPerNode,gpusPerRank,size,type,redop,inplace,time,algbw,busbw,#wrong"
    )
    lines = [head]
    for size, time in times:
        algbw = size / time / 1e3
        words = ["AllReduce", "1", str(n), str(n), "1", str(size), "float", "sum", "1", f"{time:.2f}"]
        words += [f"{algbw:.2f}", f"{algbw * 2 * (n - 1) / n:.2f}", "0"]
        lines.append((", " if old else ",").join(words if old else ["0", *words]))
    return "\n".join(lines) + "\n"


def rccl_json(times: Sequence[tuple[int, float]], n: int = 8, *, old: bool = False) -> str:
    """The two kinds of rccl-tests' JSON: an object a line, an array."""
    entries = []
    for size, time in times:
        algbw = size / time / 1e3
        entry: dict[str, object] = {"numCycle": 0, "name": "AllReduce", "nodes": 1, "ranks": n, "ranksPerNode": n}
        entry |= {"gpusPerRank": 1, "size": size, "type": "float", "redop": "sum", "inPlace": 0, "time": f"{time:.2f}"}
        entry |= {"algBw": f"{algbw:.2f}", "busBw": f"{algbw * 2 * (n - 1) / n:.2f}", "wrong": "0"}
        entries.append(entry)
    return "".join(json.dumps(e) + "\n" for e in entries) if old else json.dumps(entries, indent=1) + "\n"
