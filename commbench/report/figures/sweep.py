"""Time and rate against size, a line an algorithm."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from commbench.report.content import PLACES, Content, Frame, title
from commbench.report.drawing import Drawing, colours_and_markers, log_axis, plain, size_axis

PLACE = 2  # among the figures of a report
_DOTS = (1, 1.5)


def drawings(content: Content) -> Iterator[Drawing]:
    """Yield a picture for each family of each side."""
    for number, (side, family, rows) in enumerate(content.families()):
        if rows["size"].nunique() > 1:
            yield Drawing(f"sweep-{side}-{number}", f"{side}: {title(family)}", caption(rows), partial(draw, rows))


def caption(rows: Frame) -> str:
    """Return how the picture is to be read."""
    repeated = rows.duplicated(["size", "label", "place"]).any()
    band = "Lines are medians over launches or repeated rows, bands reach from the least to the most. " * bool(repeated)
    if not repeated and rows["time_us_low"].notna().any():
        band = "Bands: interval over rounds, within one launch (launches differ by more). "
    factor = rows["busbw_factor"].dropna().unique()
    how = f"busbw = algbw × {factor[0]:.4g}, algbw = size / time. " if len(factor) == 1 else "algbw = size / time. "
    bound = "Dashed grey: the most that the given links allow where no switch reduces. " * bool(
        rows["bound"].notna().any()
    )
    return f"{band}{how}{bound}Full lines out of place, dotted in place."


def draw(rows: Frame) -> Any:
    """Return the picture: time on the left, rate on the right."""
    import seaborn
    from matplotlib.figure import Figure

    rate = "busbw" if rows["busbw"].notna().all() else "algbw"
    data = rows.assign(
        label=[plain(label) for label in rows["label"]],
        place=[PLACES[place] for place in rows["place"]],
    )
    colours, markers = colours_and_markers(data["label"])
    figure: Any = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, column, text in ((left, "time_us", "time (us)"), (right, rate, f"{rate} (GB/s)")):
        for label, those in data.groupby("label", sort=False):
            seaborn.lineplot(
                those,
                x="size",
                y=column,
                style="place",
                dashes={"out of place": "", "in place": _DOTS, "place unknown": ""},
                color=colours[label],
                marker=markers[label],
                markersize=5,
                estimator="median",
                errorbar=("pi", 100),
                err_kws={"alpha": 0.15},
                legend=False,
                ax=axes,
            )
            _band(axes, those, column, colours[label])
        size_axis(axes, data["size"])
        axes.set_ylabel(text)
    log_axis(left)
    bound = rows["bound"] * (rows["busbw_factor"] if rate == "busbw" else 1.0)
    handles = [left.plot([], [], color=colours[one], marker=markers[one], label=one)[0] for one in colours]
    if "in place" in set(data["place"]):
        handles += left.plot([], [], color="black", linestyle=(0, _DOTS), label="in place")
    if bound.notna().any():
        text = "the most that the links allow where no switch reduces"
        handles.append(right.axhline(bound.max(), color="grey", linestyle="--", linewidth=1.2, label=text))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, len(handles)), frameon=False)
    return figure


def _band(axes: Any, rows: Frame, column: str, colour: Any) -> None:
    """Draw the interval over rounds, where each size has one row."""
    for _, those in rows.dropna(subset=["time_us_low", "time_us_high"]).groupby("place"):
        if those["size"].duplicated().any():
            continue
        ordered = those.sort_values("size")
        ends = [ordered["time_us_low"], ordered["time_us_high"]]
        if column != "time_us":  # a rate is highest where the time is lowest
            ends = [ordered[column] * ordered["time_us"] / end for end in ends]
        axes.fill_between(ordered["size"].astype(float), *ends, color=colour, alpha=0.15, linewidth=0)
