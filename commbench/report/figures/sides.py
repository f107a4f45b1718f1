"""The sides of a report beside each other: what each library chose, time and rate against size."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from commbench.report.content import PLACES, Content, Frame, scale
from commbench.report.drawing import Drawing, colours_and_markers, log_axis, plain, size_axis

PLACE = 0


def drawings(content: Content) -> Iterator[Drawing]:
    """Yield a picture for each collective that several sides have, measured in the same way."""
    if len(content.sides) < 2:
        return
    timed = content.timed
    chosen = timed[(timed["label"] == "auto") & (timed["size"] > 0) & timed["group"].eq("all")]
    alike = ["collective", "dtype", "redop", "root", "buffer", "method", "place"]
    for (name, *what, place), rows in chosen.groupby(alike, dropna=False, sort=False):
        if rows["side"].nunique() > 1:
            words = ", ".join(
                str(one) for one in (*what, PLACES[place]) if one == one and one not in (None, "unknown", PLACES[""])
            )
            yield Drawing(
                f"sides-{name}-{words}",
                f"{name}, what each library chose ({words})",
                "Lines are medians over launches, bands reach from the least to the most. Where the numbers of ranks "
                "differ, so does what busbw is computed with: compare times.",
                partial(draw, content, rows),
            )


def draw(content: Content, rows: Frame) -> Any:
    """Return the picture: time on the left, rate on the right, a line a side."""
    import seaborn
    from matplotlib.figure import Figure

    names = []
    for letter, n, k in zip(rows["side"], rows["nranks"], rows["nnodes"], strict=True):
        devices = ", ".join(sorted(content.sides[letter].devices)) or content.sides[letter].name[-40:]
        names.append(plain(f"{letter}: {scale(n, k)}, {devices}"))
    data = rows.assign(name=names)
    colours, markers = colours_and_markers(data["name"])
    rate = "busbw" if rows["busbw"].notna().all() else "algbw"
    figure: Any = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, column, text in ((left, "time_us", "time (us)"), (right, rate, f"{rate} (GB/s)")):
        for name, those in data.groupby("name", sort=False):
            seaborn.lineplot(
                *(those,),
                **{"x": "size", "y": column, "color": colours[name], "marker": markers[name], "markersize": 5},
                **{"estimator": "median", "errorbar": ("pi", 100), "err_kws": {"alpha": 0.15}},
                **{"legend": False, "ax": axes},
            )
        size_axis(axes, data["size"])
        axes.set_ylabel(text)
    log_axis(left)
    handles = [left.plot([], [], color=colours[one], marker=markers[one], label=one)[0] for one in colours]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=1 if max(map(len, colours)) > 50 else 2, frameon=False
    )
    return figure
