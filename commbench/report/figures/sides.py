"""The sides of a report beside each other: what each library chose, time and rate against size."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from commbench.report.content import Content, Frame
from commbench.report.drawing import Drawing, looks, plain, size_axis
from commbench.report.summary import scale

PLACE = 0


def drawings(content: Content) -> Iterator[Drawing]:
    """Yield a picture for each collective that several sides have, measured in the same way."""
    if len(content.sides) < 2:
        return
    timed = content.timed
    chosen = timed[(timed["label"] == "auto") & (timed["size"] > 0) & timed["group"].eq("all")]
    for (name, dtype, redop, place, method), rows in chosen.groupby(
        ["collective", "dtype", "redop", "place", "method"], dropna=False, sort=False
    ):
        if rows["side"].nunique() > 1:
            where = f"{place} of place" if place == "out" else "in place"
            words = ", ".join(str(one) for one in (dtype, redop, where, method) if one == one and one)
            yield Drawing(
                f"sides-{name}-{dtype}-{redop}-{place}",
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
        devices = ", ".join(sorted(content.sides[letter].settings.get("devices", ()))) or content.sides[letter].name
        names.append(plain(f"{letter}: {scale(n, k)}, {devices}"))
    data = rows.assign(name=names)
    colours, markers = looks(data["name"])
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
    left.set_yscale("log")
    handles = [left.plot([], [], color=colours[one], marker=markers[one], label=one)[0] for one in colours]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(2, len(handles)), frameon=False)
    return figure
