"""What a person or a script reads on rank 0's standard output: the table, nccl-tests' table, CSV, JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from commbench.backends.base import HOST
from commbench.measure.cell import ALL
from commbench.measure.dtypes import DTYPES
from commbench.results.record import Record
from commbench.results.status import OK
from commbench.units import format_size


def number(value: float | None, width: int) -> str:
    """Return a time or rate as nccl-tests prints it: two decimals, fewer as the width runs out, then an exponent."""
    if value is None:
        return "N/A".rjust(width)
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text.rjust(width)
    return f"{value:.1e}".rjust(width)


def json_line(record: Record) -> str:
    """Return the record as one line of JSON."""
    return json.dumps(record.to_dict())


def print_csv(records: Iterable[Record], out: TextIO) -> None:
    """Print one row a record under the record's own field names; what was not measured is empty."""
    import csv

    writer: Any = None
    for record in records:
        fields = record.to_dict()
        if writer is None:
            writer = csv.DictWriter(out, fieldnames=list(fields), lineterminator="\n")
            writer.writeheader()
        writer.writerow(fields)


_TABLE = (
    "#       size         count      type  redop   root  place                 algorithm  protocol"
    "      time      low     high   algbw   busbw  #wrong\n"
    "#        (B)    (elements)                                                                "
    "      (us)     (us)     (us)  (GB/s)  (GB/s)"
)


def print_table(records: Sequence[Record], out: TextIO) -> None:
    """Print nccl-tests' table with the algorithm's columns, group after group, then the best algorithm of each size."""
    print_rows(records, out)
    _print_best(records, out)


def print_rows(records: Sequence[Record], out: TextIO) -> None:
    """Print the table alone."""
    parts = dict.fromkeys((record.group, record.buffer) for record in records)
    groups, buffers = (len(set(names)) for names in zip(*parts, strict=True)) if parts else (0, 0)
    for group, buffer in parts:
        mine = [record for record in records if (record.group, record.buffer) == (group, buffer)]
        if groups > 1:
            print(f"# Group {group}: {mine[0].nranks} ranks ({mine[0].ranks}) on {mine[0].hosts}", file=out)
        if buffers > 1:
            print(f"# Memory: {buffer}", file=out)
        print(_TABLE, file=out)
        for record in mine:
            if record.status == OK:
                print(_row(record), file=out)
        print(file=out)


def _row(record: Record) -> str:
    ran = record.observed_algorithm
    algorithm = record.algorithm if ran in (None, record.algorithm) else f"{record.algorithm}>{ran}"
    return (
        f"{record.size:12d}  {record.count:12d}  {DTYPES[record.dtype].short:>8}  {record.redop or 'none':>5}  "
        f"{-1 if record.root is None else record.root:5d}  {'in' if record.inplace else 'out':>5}  {algorithm:>24}  "
        f"{record.protocol or record.observed_protocol or '-':>8}  "
        f"{number(record.time_us, 8)} {number(record.time_us_low, 8)} "
        f"{number(record.time_us_high, 8)} {number(record.algbw, 7)} {number(record.busbw, 7)}  "
        f"{'N/A' if record.wrong is None else record.wrong:>6}"
    )


def _print_best(records: Sequence[Record], out: TextIO) -> None:
    """Print the fastest algorithm of each size and kind of cell where several have a time."""
    rivals: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        if record.status == OK:
            rivals.setdefault((_kind(record), record.size), []).append(record)
    if not any(len(group) > 1 for group in rivals.values()):
        return
    kinds = {kind for kind, _ in rivals}
    width = max(map(len, kinds)) if len(kinds) > 1 else 0
    print(
        "# Best algorithm per size, within this launch (~: its interval meets theirs; ?: too few rounds to tell)",
        file=out,
    )
    for (kind, size), group in rivals.items():
        best, *others = sorted(group, key=lambda record: record.time_us or 0.0)
        label = f"  {kind:<{width}}" if width else ""
        near = [_name(record) for record in others if _overlap(best, record)]
        auto = next((record for record in others if record.algorithm == "auto"), None)
        gain = ""
        if auto and "auto" not in near and auto.time_us and best.time_us:
            gain = f"  auto {_microseconds(auto)} us ({auto.time_us / best.time_us:.2f} x)"
        mark = "?" if best.time_us_high is None else "~"
        more = f" and {len(near) - 3} more" if len(near) > 3 else ""
        doubt = f"  {mark} {', '.join(near[:3])}{more}" if near else ""
        line = f"# {format_size(size):>8}{label}  {_name(best):<24} {_microseconds(best):>9} us"
        print(f"{line}{gain}{doubt}", file=out)
    print(file=out)


def _name(record: Record) -> str:
    return f"{record.algorithm} {record.protocol}" if record.protocol else record.algorithm


def _microseconds(record: Record) -> str:
    return f"{record.time_us:.2f}"


def _overlap(one: Record, other: Record) -> bool:
    """Whether two records' intervals meet; without an interval nothing is certain."""
    if None in (one.time_us_high, other.time_us_low):
        return True
    assert one.time_us_high is not None and other.time_us_low is not None
    return other.time_us_low <= one.time_us_high


def print_rest(records: Sequence[Record], out: TextIO) -> None:
    """Say what has no time, one line for each reason and set of cells; all lines together name every such cell."""
    kinds = {_kind(record) for record in records}
    sizes = sorted({record.size for record in records})
    cells: dict[tuple[str, str, str], set[tuple[str, int]]] = {}
    for record in records:
        if record.status != OK:
            cells.setdefault((record.status, record.reason, _name(record)), set()).add((_kind(record), record.size))
    alike: dict[tuple[str, str, frozenset[tuple[str, int]]], list[str]] = {}
    for (status, reason, algorithm), found in cells.items():
        alike.setdefault((status, reason, frozenset(found)), []).append(algorithm)
    if alike:
        print("# Without a time:", file=out)
    for (status, reason, same), algorithms in alike.items():
        mine = sorted({kind for kind, _ in same})
        where = "" if len(mine) == len(kinds) else f" ({'; '.join(mine[:3])}{' ...' * (len(mine) > 3)})"
        span = _span(sorted({size for _, size in same}), sizes)
        print(f"# {status:>14}  {', '.join(algorithms)} at {span}{where}: {reason}", file=out)
    if alike:
        print(file=out)


def _kind(record: Record) -> str:
    place = "in place" if record.inplace else "out of place"
    parts = (record.group, DTYPES[record.dtype].short, record.redop, place, record.buffer)
    return ", ".join(part for part in parts if part and part not in (ALL, HOST))


def _span(some: Sequence[int], every: Sequence[int]) -> str:
    """Return sizes as a range where none between is missing, else one by one."""
    if len(some) > 1 and list(some) == [size for size in every if some[0] <= size <= some[-1]]:
        return f"{format_size(some[0])} to {format_size(some[-1])}"
    return ", ".join(format_size(size) for size in some)


_NCCL_HEAD = (
    "#                                                              out-of-place                       in-place\n"
    "#       size         count      type   redop    root "
    "    time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                           "
    "    (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"
)


def print_nccl_tests(records: Sequence[Record], out: TextIO) -> None:
    """Print one table per algorithm in exactly nccl-tests' 13 columns, each with its average bus bandwidth.

    The average is nccl-tests' own: the arithmetic mean of busbw over all rows and both halves, small sizes included.
    """
    tables = dict.fromkeys((record.group, record.algorithm, record.protocol) for record in records)
    several = len({group for group, _, _ in tables}) > 1
    for group, algorithm, protocol in tables:
        mine = [r for r in records if (r.group, r.algorithm, r.protocol) == (group, algorithm, protocol)]
        rows: dict[tuple[Any, ...], dict[bool, Record]] = {}
        for record in mine:
            key = (record.size, record.count, record.dtype, record.redop, record.root)
            rows.setdefault(key, {})[bool(record.inplace)] = record
        if several or group != "all":
            print(f"#\n# Group: {group}, ranks {mine[0].ranks}", file=out)
        print(f"#\n# Algorithm: {algorithm}{f' {protocol}' if protocol else ''}\n#\n{_NCCL_HEAD}", file=out)
        for (size, count, dtype, redop, root), halves in rows.items():
            kind = f"{DTYPES[dtype].short:>8}  {redop or 'none':>6}  {-1 if root is None else root:6d}"
            print(f"{size:12d}  {count:12d}  {kind}  {_half(halves.get(False))}  {_half(halves.get(True))}", file=out)
        wrong = sum(record.wrong or 0 for record in mine)
        rates = [record.busbw for record in mine if record.busbw is not None]
        print(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}", file=out)
        average = f"{sum(rates) / len(rates):g}" if rates else "N/A"
        print(f"# Avg bus bandwidth    : {average}\n#", file=out)


def _half(record: Record | None) -> str:
    if record is None or (record.status != OK and record.wrong is None):
        return f"{'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>5}"
    wrong = "N/A" if record.wrong is None else f"{record.wrong:g}"
    return f"{number(record.time_us, 7)}  {number(record.algbw, 6)}  {number(record.busbw, 6)}  {wrong:>5}"


def note(text: str) -> None:
    """Say something beside the results: on standard error, so that standard output holds nothing but them."""
    print(f"# {text}", file=sys.stderr, flush=True)
