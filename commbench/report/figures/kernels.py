"""What bandwidth each kernel gets on each device, beside a copy of the same bytes and the data sheet."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from commbench.report.content import Content, Frame
from commbench.report.drawing import Drawing, colours_and_markers, plain
from commbench.report.kernels import studies
from commbench.results.kernels import BASELINE, CEILING

PLACE = 2.1  # among the figures of a report
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
            "A point a device (and launch): useful bytes of the baseline a second; lines: interval over rounds. Bars: the "
            "same bytes copied on that device. Dotted: the data sheet's peak, where it is known. Red: surely 5 % below "
            "the median of the other devices.",
            partial(draw, content, rows),
        )


def draw(content: Content, rows: Frame) -> Any:
    """Return the picture: kernels up, each with a lane for each device of each side; GB/s along."""
    from matplotlib.figure import Figure

    names = {letter: f"{letter}: {_devices(content, letter)}" for letter in dict.fromkeys(rows["side"])}
    colours, markers = colours_and_markers(names)
    kernels = list(dict.fromkeys(zip(rows["kernel"], rows["dtype"], strict=True)))
    base = rows[rows["factor"] == BASELINE]
    lanes = list(dict.fromkeys(zip(base["side"], base["rank"], base["source"], strict=True)))
    each = min(0.8 / len(lanes), 0.25)
    figure: Any = Figure(figsize=(8.5, 1.6 + len(kernels) * max(0.3, 0.09 * len(lanes))), layout="constrained")
    axes = figure.subplots()
    for place in range(0, len(kernels), 2):
        axes.axhspan(place - 0.5, place + 0.5, color="grey", alpha=0.08, linewidth=0)
    at = {
        (kernel, lane): place + (number - (len(lanes) - 1) / 2) * each
        for place, kernel in enumerate(kernels)
        for number, lane in enumerate(lanes)
    }
    named: dict[int, int] = {}
    for row in rows[rows["factor"].isin([BASELINE, CEILING])].to_dict("records"):
        kernel, lane = (row["kernel"], row["dtype"]), (row["side"], row["rank"], row["source"])
        if (kernel, lane) not in at:
            continue
        y, colour = at[kernel, lane], colours[row["side"]]
        if row["factor"] == CEILING:
            axes.barh(y, row["algbw"], height=0.85 * each, color=colour, alpha=0.25, linewidth=0)
            continue
        slow = row["slow"] is True
        if row["time_us_low"] and row["time_us_low"] == row["time_us_low"]:  # a rate is highest where time is lowest
            ends = [row["algbw"] * row["time_us"] / row[name] for name in ("time_us_high", "time_us_low")]
            axes.plot(ends, (y, y), color="#b00020" if slow else colour, linewidth=1.2)
        face = "#b00020" if slow else colour
        axes.plot(row["algbw"], y, markers[row["side"]], color=face, markersize=4.5, linestyle="none")
        if slow and named.setdefault(kernels.index(kernel), 0) < _NAMED:
            named[kernels.index(kernel)] += 1
            text = f"rank {int(row['rank'])}" if len(names) == 1 else f"{row['side']} rank {int(row['rank'])}"
            right = max(row["algbw"], row["algbw"] / (row["of_ceiling"] or 1))  # beyond the bar
            axes.annotate(
                *(text, (right, y)),
                **{"xytext": (14, 0), "textcoords": "offset points", "va": "center"},
                **{"fontsize": "x-small", "color": "#b00020"},
            )
    peaks = (base["algbw"] / base["of_peak"].astype(float)).groupby(base["side"], sort=False).median().dropna()
    for side, peak in peaks.items():
        axes.axvline(peak, color=colours[side], linestyle=":", linewidth=1.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("bandwidth (GB/s)")
    axes.set_yticks(range(len(kernels)), [plain(f"{kernel} {dtype}") for kernel, dtype in kernels])
    axes.set_ylim(len(kernels) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    handles = [
        axes.plot([], [], markers[letter], color=colours[letter], label=plain(text))[0]
        for letter, text in names.items()
    ]
    handles.append(axes.barh(0, 0, color="grey", alpha=0.35, label="the same bytes copied"))
    for side, peak in peaks.items():
        label = f"data sheet of {side}, {peak:.4g} GB/s"
        handles += axes.plot([], [], color=colours[side], linestyle=":", label=label)
    if base["slow"].eq(True).any():
        handles += axes.plot([], [], "o", color="#b00020", label="slow device")
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    return figure


def _devices(content: Content, letter: str) -> str:
    side = content.sides[letter]
    return ", ".join(sorted(side.devices)) or side.name[-40:]
