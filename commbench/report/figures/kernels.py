"""What bandwidth each kernel gets on each device, beside a copy of the same bytes and the data sheet."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from commbench.report.content import Content, Frame
from commbench.report.drawing import Drawing, colours_and_markers, plain
from commbench.report.kernels import rate, studies
from commbench.results.kernels import BASELINE, CEILING

PLACE = 2.1  # among the figures of a report
_RED = "#b00020"
_NAMED = 3  # slow devices named beside their points, in each kernel


def drawings(content: Content) -> Iterator[Drawing]:
    """Yield one picture of all sides that have kernels."""
    import pandas

    parts = [rows for *_, rows in studies(content)]
    rows = pandas.concat(parts) if parts else content.kernels
    if len(rows) and (rows["factor"] == BASELINE).any():
        yield Drawing(
            "kernels",
            "bandwidth by kernel",
            "A point a device (and launch): useful bytes of the baseline a second; lines: interval over rounds. Bars: "
            "the same bytes copied on that device. Dotted: the data sheet's peak, where it is known. Red: surely 5 % "
            "below the median of the other devices.",
            partial(draw, content, rows),
        )


def draw(content: Content, rows: Frame) -> Any:
    """Return the picture: kernels up, each with a lane for each device of each side; GB/s along."""
    from matplotlib.figure import Figure

    names = {letter: f"{letter}: {_devices(content, letter)}" for letter in dict.fromkeys(rows["side"])}
    colours, markers = colours_and_markers(names)
    base, ceiling = (rows[rows["factor"] == factor] for factor in (BASELINE, CEILING))
    most = max(base["algbw"].max(), ceiling["algbw"].max())
    kernels = list(base.groupby(["kernel", "dtype"], sort=False))
    lanes = max(those.groupby(["side", "rank"]).ngroups for _, those in kernels)
    each = min(0.8 / lanes, 0.25)
    figure: Any = Figure(figsize=(8.5, 1.6 + len(kernels) * max(0.3, 0.11 * lanes)), layout="constrained")
    axes = figure.subplots()
    for place, ((kernel, dtype), those) in enumerate(kernels):
        if place % 2 == 0:
            axes.axhspan(place - 0.5, place + 0.5, color="grey", alpha=0.08, linewidth=0)
        copies = ceiling[(ceiling["kernel"] == kernel) & (ceiling["dtype"] == dtype)]
        copied = copies.groupby(["side", "rank"])["algbw"].median()
        devices = list(those.groupby(["side", "rank"], sort=False))
        named = 0
        for number, (device, launches) in enumerate(devices):
            y = place + (number - (len(devices) - 1) / 2) * each
            if device in copied.index:
                axes.barh(y, copied[device], height=0.85 * each, color=colours[device[0]], alpha=0.25, linewidth=0)
            slow = bool(launches["slow"].eq(True).any())
            _points(axes, y, launches, _RED if slow else colours[device[0]], markers[device[0]])
            if slow and named < _NAMED:
                named += 1
                _name(axes, y, launches, most, several=len(names) > 1)
    peaks = (base["algbw"] / base["of_peak"]).groupby(base["side"], sort=False).median().dropna()
    for side, peak in peaks.items():
        axes.axvline(peak, color=colours[side], linestyle=":", linewidth=1.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("bandwidth (GB/s)")
    axes.set_yticks(range(len(kernels)), [plain(" ".join(name)) for name, _ in kernels])
    axes.set_ylim(len(kernels) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    handles = [
        axes.plot([], [], markers[letter], color=colours[letter], label=plain(text))[0]
        for letter, text in names.items()
    ]
    handles.append(axes.barh(0, 0, color="grey", alpha=0.35, label="the same bytes copied"))
    for side, peak in peaks.items():
        label = f"data sheet of {side}, {rate(peak)} GB/s"
        handles += axes.plot([], [], color=colours[side], linestyle=":", label=label)
    if base["slow"].eq(True).any():
        handles += axes.plot([], [], "o", color=_RED, label="slow device")
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    return figure


def _points(axes: Any, y: float, launches: Frame, colour: Any, marker: str) -> None:
    """Draw a device's baselines, a point a launch, with the intervals over rounds that there are."""
    for row in launches.dropna(subset=["time_us_low", "time_us_high"]).to_dict("records"):
        ends = [row["algbw"] * row["time_us"] / row[name] for name in ("time_us_high", "time_us_low")]
        axes.plot(ends, (y, y), color=colour, linewidth=1.2)  # a rate is highest where the time is lowest
    axes.plot(launches["algbw"], [y] * len(launches), marker, color=colour, markersize=4.5)


def _name(axes: Any, y: float, launches: Frame, most: float, *, several: bool) -> None:
    """Name a slow device, before its point where there is room."""
    row = launches.iloc[0]
    left = launches["algbw"].min() > most / 4
    at = launches["algbw"].min() if left else launches["algbw"].max()
    axes.annotate(
        *(f"{row['side']} rank {int(row['rank'])}" if several else f"rank {int(row['rank'])}", (at, y)),
        **{"xytext": (-16 if left else 16, 0), "textcoords": "offset points", "va": "center"},
        **{"ha": "right" if left else "left", "fontsize": "x-small", "color": _RED},
    )


def _devices(content: Content, letter: str) -> str:
    side = content.sides[letter]
    return ", ".join(sorted(side.devices)) or side.name[-40:]
