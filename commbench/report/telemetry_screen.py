"""What telemetry recorded, in figures and as text: ports, processors, GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from commbench.attribution.counters import RECEIVED, SENT, TROUBLE, WAITS, Series, data_rate, increments, means
from commbench.errors import printable

_SHORTEST = 0.1  # seconds: ten ticks, in which the kernel counts the time of processors
_SHOWN = 12  # counters of a port that rose


def summarise(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Return of each source what its counters rose by and how fast, and its gauges' means; None where not known."""
    found = []
    for one in series:
        counters, gauges = {}, {}
        for name, values in one.values.items():
            there = one.time[values == values]  # but for NaN
            unit, window = one.units[name], (there[0], there[-1]) if len(there) else (0, 0)
            if name in one.gauges:
                gauges[name] = {"unit": unit, "mean": _known(means(one, name, *window))}
                continue
            risen = _known(increments(one, name, *window))
            seconds = float(window[1] - window[0]) / 1e9
            rate = None if risen is None or not seconds else risen / seconds
            counters[name] = {"unit": unit, "increment": risen, "rate": rate}
        about = {
            "host": one.host,
            "source": one.source,
            "kind": one.kind,
            "facts": dict(one.facts),
            "samples": len(one.time),
        }
        found.append({**about, "carries": data_rate(one.facts), "counters": counters, "gauges": gauges})
    return found


def _known(value: float) -> float | None:
    return float(value) if value == value else None


def head(host: str, seconds: float, samples: int, where: str) -> str:
    """Return the line above a recording: of which host it is, where that is known, and which files hold it."""
    every = f", {1e3 * seconds / (samples - 1):.0f} ms apart" if samples > 1 else ""
    named = f" of {host}" if host else ""
    return printable(f"# telemetry{named}: {seconds:.2f} s, {samples} sample{'s' * (samples != 1)}{every}; {where}")


def lines(sources: Sequence[Mapping[str, Any]], seconds: float) -> list[str]:
    """Return what `summarise` gave of one host's run of so many seconds as text: a line a port, processor and GPU."""
    return [*_ports(sources), *_processors(sources, seconds), *_gpus(sources)]


def totals(series: Sequence[Series]) -> list[str]:
    """Return a line for each source of which there is one sample: what its counters are, as no rate is known."""
    found = []
    for one in series:
        if len(one.time) == 1:
            values = {name: float(value[0]) for name, value in one.values.items() if value[0]}
            texts = [f"{name} {value:.0f} {one.units[name]}".rstrip() for name, value in values.items()]
            found.append(f"# {one.source}: one sample, so that no rate is known; totals: {', '.join(texts) or 'all 0'}")
    return found


def _ports(sources: Sequence[Mapping[str, Any]]) -> list[str]:
    ports = [one for one in sources if one["kind"] == "rdma"]
    if not ports:
        return []
    wide = max(8, *(len(one["source"]) for one in ports))
    lines = [
        f"# {'rdma':<{wide}}  carries    sends receives   sends receives      waits",
        f"# {'':<{wide}}   (GB/s)   (GB/s)   (GB/s)     (%)      (%)  (ticks/s)",
    ]
    for one in ports:
        carries, sends, receives = one["carries"], _data(one, SENT), _data(one, RECEIVED)
        if sends is not None or receives is not None or "/" in one["source"]:
            shares = [None if rate is None or not carries else 100 * rate / carries for rate in (sends, receives)]
            cells = [_number(rate, 8, 3, 1e-9) for rate in (carries, sends, receives)]
            cells += [_number(shares[0], 7, 1), _number(shares[1], 8, 1)]
            cells.append(_number(one["counters"].get(WAITS[0], {}).get("rate"), 10, 0))
            lines.append(f"  {one['source']:<{wide}} {' '.join(cells)}")
    risen = [(one["source"], _risen(one)) for one in ports if one["samples"] > 1]
    lines += [f"# {name} counted: {text}" for name, text in risen if text]
    quiet = [name for name, text in risen if not text]
    return [
        *lines,
        *([f"# no counter of errors, retransmissions or congestion rose: {', '.join(quiet)}"] if quiet else []),
    ]


def _data(one: Mapping[str, Any], names: Sequence[str]) -> float | None:
    """Return bytes/s by the first of these counters that a port has."""
    rates = (one["counters"][name]["rate"] for name in names if name in one["counters"])
    return next((rate for rate in rates if rate is not None), None)


def _risen(one: Mapping[str, Any]) -> str:
    """Return which counters of errors, retransmissions and congestion rose: those that tell of trouble first."""
    risen = {
        name: counter
        for name, counter in one["counters"].items()
        if counter["increment"] and not counter["unit"] and not name.endswith("_requests")  # these are traffic
    }
    names = sorted(risen, key=lambda name: (name not in TROUBLE, -risen[name]["increment"]))
    texts = [f"{name} {risen[name]['increment']:.0f} ({risen[name]['rate']:.3g}/s)" for name in names[:_SHOWN]]
    return ", ".join(texts) + (f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _processors(sources: Sequence[Mapping[str, Any]], seconds: float) -> list[str]:
    """Return what processors did, but of a run so short that the ticks in which they count would be all of it."""
    if seconds < _SHORTEST and any(one["kind"] == "cpu" for one in sources):
        return [f"# cpu: not told of less than {1e3 * _SHORTEST:g} ms"]
    lines = []
    for one in sources:
        if one["kind"] != "cpu":
            continue
        rates = {name: counter["rate"] for name, counter in one["counters"].items() if counter["rate"] is not None}
        cores = {name: rate for name, rate in rates.items() if name.startswith("cpu")}
        if not cores or "busy" not in rates:
            continue
        most = max(cores, key=cores.__getitem__)
        mean = rates["busy"] / len(cores)
        text = f"# cpu: {100 * mean:.1f} % of {len(cores)} cores busy"
        if cores[most] >= mean:  # each is counted in ticks of its own, which in a short run need not add up
            text += f", the most {most} ({100 * cores[most]:.1f} %)"
        text += f"; {rates.get('context_switches', 0.0):.0f} context switches/s"
        stalls = {
            name[9:-5]: rate for name, rate in rates.items() if name.startswith("pressure_") and name[-5:] == "_some"
        }
        if stalls:
            text += f"; tasks waited for {', '.join(f'{name} {100 * rate:.1f} %' for name, rate in stalls.items())}"
        lines.append(text)
    return lines


def _gpus(sources: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for one in sources:
        if one["kind"] == "gpu":
            gauges = [
                f"{name} {gauge['mean']:.1f} {gauge['unit']}"
                for name, gauge in one["gauges"].items()
                if gauge["mean"] is not None
            ]
            lines.append(f"# {one['source']}: {', '.join(gauges) or 'nothing told'}")
    return lines


def _number(value: float | None, width: int, decimals: int, factor: float = 1.0) -> str:
    return f"{'-':>{width}}" if value is None else f"{factor * value:{width}.{decimals}f}"
