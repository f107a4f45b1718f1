"""The JSON of nccl-tests and of rccl-tests (-J), versions 1 to 3. Its `env` holds everything, and is never kept."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from commbench.results import reading as common
from commbench.results.findings import DOUBT, NOTE, WITHDRAWN
from commbench.results.reading import ITEMSIZES, SHARED, UNKNOWN, Reading, Row, Table
from commbench.results.status import OK, WRONG
from commbench.units import format_ranges

NAME = "nccl-tests JSON"

_DEVICE = {"hostname": "host", "device_info": "name"}
_BROKEN = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)


def recognise(head: Sequence[str]) -> float:
    """Return 1 for an object with nccl-tests' keys."""
    start = "".join(head)
    keys = '"results"' in start and ('"out_of_place"' in start or '"config"' in start)
    return float(keys and start.lstrip()[:1] == "{")


def read(lines: Iterable[str], source: str) -> Reading:
    """Return the file's table; of a file that a crash left open, the rows that are whole."""
    reading = Reading(source, NAME)
    text = "".join(lines)
    try:
        whole = json.loads(text)
        entries = whole["results"]
        places = _places(text)
    except _BROKEN:
        whole, entries, places = _cut(text)
        reading.say("truncated", DOUBT, (), "the JSON is not closed: the run did not end", "see what ended it")
    if not isinstance(whole, dict) or not isinstance(entries, list):
        reading.say("no rows", DOUBT, (), "there is no list of results", "look at what wrote the file")
        return reading
    facts, devices = _facts(whole)
    table = Table(facts, beside={"devices": devices})
    unreadable = []
    for place, entry in enumerate(entries):
        line = places[place] if place < len(places) else 1
        try:
            table.rows += _rows(line, entry)
        except _BROKEN:
            unreadable.append(line)
    _identify(table, facts, source)
    printed = [row.busbw for row in table.rows if row.busbw is not None]
    table.rows = common.verified(table.rows, facts["busbw_factor"], reading)
    if table.rows:
        reading.tables.append(table)
    else:
        reading.say("no rows", DOUBT, (), "the list of results is empty", "look at what ended the run")
    if unreadable:
        value = f"{len(unreadable)} results are not of the form that nccl-tests writes, and are left out"
        reading.say("row", DOUBT, unreadable, value, "look at these lines")
    _say_average(whole, printed, reading)
    return reading


def _cut(text: str) -> tuple[dict[str, Any], list[Any], list[int]]:
    """Return what can be read of a file that ends early: the top without results, and the whole results."""
    top, _, rest = text.partition('"results"')
    decoder, entries, lines = json.JSONDecoder(), [], []
    place = rest.find("{")
    while place >= 0:
        try:
            entry, end = decoder.raw_decode(rest, place)
        except (ValueError, RecursionError):
            break
        entries.append(entry)
        lines.append((top + rest[:place]).count("\n") + 1)
        after = rest[end:].lstrip()
        if not after.startswith(","):
            break
        place = rest.find("{", end)
    try:
        whole = json.loads(top.rstrip().rstrip(",") + "}")
    except (ValueError, RecursionError):
        whole = {}
    return whole if isinstance(whole, dict) else {}, entries, lines


def _places(text: str) -> list[int]:
    """Return the line on which each result begins."""
    return [text.count("\n", 0, found.start()) + 1 for found in re.finditer(r'\{\s*"size"', text)]


def _facts(whole: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what the rows share, and the devices, by the names that the text has for them."""
    config = whole.get("config") if isinstance(whole.get("config"), dict) else {}
    assert isinstance(config, dict)
    devices = [device for device in config.get("devices") or () if isinstance(device, dict)]
    words = " ".join(str(word) for word in whole.get("args") or ())
    named_hosts = [str(device["hostname"]) for device in devices if device.get("hostname")]
    hosts = list(dict.fromkeys(named_hosts)) if len(named_hosts) == len(devices) else []
    names = " ".join(str(device.get("device_info", "")) for device in devices)
    backend = "rccl" if "AMD" in names or "rccl" in words else "nccl" if names else UNKNOWN
    n = _ranks(config, devices)
    version = whole.get("nccl_version")
    library = {"rccl": "RCCL", "nccl": "NCCL"}.get(backend)
    named = library and isinstance(version, int) and not isinstance(version, bool)
    command = re.search(r"(\w+)_perf\b", words)
    iterations = config.get("iterations")
    facts = {
        "collective": (common.collective(command[1]) if command else None) or UNKNOWN,
        "backend": backend,
        "library": f"{library} {_version(version or 0)}" if named else library or UNKNOWN,
        "method": "nccl-tests",
        "ranks": format_ranges(range(n)) if n else UNKNOWN,
        "hosts": ",".join(hosts) or UNKNOWN,
        "nranks": n,
        "nnodes": len(hosts) or None,
        "iterations": iterations if isinstance(iterations, int) and iterations >= 0 else None,
        "busbw_factor": None,
    }
    return facts, [{_DEVICE.get(key) or key: value for key, value in device.items()} for device in devices]


def _ranks(config: Mapping[str, Any], devices: Sequence[Mapping[str, Any]]) -> int | None:
    """Return how many ranks there were: of each process only the first device is listed."""
    try:
        each = common.whole(config["nthreads"]) * common.whole(config["ngpus"])
        first = sorted(common.whole(device["rank"]) for device in devices)
        groups = len({device.get("group") for device in devices})
    except _BROKEN:
        return None
    n = len(first) * each
    if not first or groups != 1 or n < 1 or first != list(range(0, n, each)):
        return None
    return n


def _version(code: int) -> str:
    """Return 2.30.7 of 23007, as ncclGetVersion counts."""
    if code < 10000:
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"


def _rows(line: int, entry: Mapping[str, Any]) -> list[Row]:
    size, count = common.whole(entry["size"]), common.whole(entry["count"])
    dtype = common.dtype(str(entry["type"]).strip())
    if dtype is None:
        raise ValueError
    redop = str(entry.get("redop", "none")).strip()
    root = int(str(entry.get("root", "-1")).strip())
    made = []
    for name, inplace in (("out_of_place", False), ("in_place", True)):
        half = entry.get(name)
        if half is None:
            continue
        more: dict[str, Any] = {}
        if "time" in half:
            time: float | None = common.figure(half["time"])
        else:
            time, more["host_time_us"] = None, common.figure(half["cpu_time"])
        wrong = half.get("nwrong")
        wrong = None if wrong in (None, "N/A") else common.whole(int(wrong))
        status, reason = (WRONG, f"{wrong} elements are wrong") if wrong else (OK, "")
        if each := entry.get(f"{name}_per_iter"):
            columns = (("min_us", "time_us_min"), ("max_us", "time_us_max"), ("p99_us", "time_us_p99"))
            more |= {ours: common.figure(each[theirs]) for theirs, ours in columns if theirs in each}
        iterations = entry.get("actual_iterations")
        if isinstance(iterations, int) and not isinstance(iterations, bool) and iterations >= 0:
            more["iterations"] = iterations
        rates = common.figure(half["alg_bw"]), common.figure(half["bus_bw"])
        reduces, rooted = None if redop in ("none", "") else redop, None if root < 0 else root
        made.append(
            Row(line, size, count, dtype, reduces, rooted, inplace, time, *rates, wrong, status, reason, more or None)
        )
    return made


def _identify(table: Table, facts: dict[str, Any], source: str) -> None:
    """Give the table its factor, and its collective and ranks where sizes and counts say them."""
    n, name = facts["nranks"], facts["collective"]
    shares = {row.size / (row.count * ITEMSIZES[row.dtype]) for row in table.rows if row.count and row.size}
    share = shares.pop() if len(shares) == 1 else None
    if n is None and name in SHARED and share and share == int(share):
        n = facts["nranks"] = int(share)
    if name == UNKNOWN:
        hint = common.named_by_file(source)
        if hint and share and ((hint in SHARED) == (share != 1)):
            name = facts["collective"] = hint
    facts["busbw_factor"] = common.factor(name, n) if n else None


def _say_average(whole: Mapping[str, Any], printed: Sequence[float], reading: Reading) -> None:
    bounds, average = whole.get("out_of_bounds"), whole.get("average_bus_bandwidth")
    withdrawn = any(row.status == WRONG for table in reading.tables for row in table.rows)
    if isinstance(bounds, dict) and bounds.get("okay") == "false" and not withdrawn:
        for table in reading.tables:
            table.rows = [row.withdrawn(WRONG, "the log's check of its answers failed") for row in table.rows]
        value = f"{bounds.get('count')} checks of answers failed: all times and rates are withdrawn"
        reading.say("validation", WITHDRAWN, (), value, "find which setting breaks it; update the library")
    if not printed:
        return
    mean = sum(printed) / len(printed)
    stated = average.get("bandwidth") if isinstance(average, dict) else None
    if stated is None:
        value = f"the average is missing; the mean of what is there is {mean:.6g} GB/s"
        reading.say("truncated", DOUBT, (), value, "see whether the run ended well")
    elif isinstance(stated, bool) or not isinstance(stated, int | float) or abs(stated - mean) > 0.006 + 1e-3 * mean:
        value = f"the stated average is {stated}, and that of the rows {mean:.6g} GB/s"
        reading.say("average", DOUBT, (), value, "rows are missing, changed or of several runs")
    if whole.get("env"):
        value = "the file holds the whole environment of the run, passwords included; none of it was kept"
        reading.say("environment", NOTE, (), value, "take `env` out before you pass the file on")
