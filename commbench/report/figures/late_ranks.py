"""How late each rank arrives at collectives: a map of ranks and steps, or of ranks and collectives."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from commbench.attribution.analyse import Attribution
from commbench.attribution.clocks import known
from commbench.report.attribution_words import ms
from commbench.report.drawing import Drawing

if TYPE_CHECKING:
    from commbench.attribution.collectives import Split

PLACE = 10.3  # among the figures of an attribution
_CELLS = 200  # at most, along and up: of more, neighbours share one


def of_steps(found: Attribution) -> Iterator[Drawing]:
    """Yield a map where several ranks met."""
    if len(found.traces) > 1 and _met(found):
        steps = _by_step(found)
        what = "step" if steps else "collective"
        off = known(max(one.error for one in found.alignments))
        clocks = (
            "Nothing tells how clocks are set against one another: nor does this."
            if off is None
            else f"Clocks agree to {ms(off)}; less than twice that means nothing."
        )
        yield Drawing(
            "late-ranks",
            f"how late each rank arrives, {what} by {what}",
            f"After the first of the group{', the mean over a step' if steps else ''}. Grey: "
            f"nothing is known. {clocks} Of more than {_CELLS} neighbours share a cell, which shows the latest.",
            partial(draw, found),
        )


def _met(found: Attribution) -> list[Split]:
    """Return where several ranks met, by clocks: durations alone tell no arrivals."""
    return [one for one in found.splits if len(one.places) > 1 and not one.durations_only]


def _by_step(found: Attribution) -> bool:
    return len(found.steps) > 2


def draw(found: Attribution) -> Any:
    """Return the picture: steps or collectives along, ranks up, lateness as colour."""
    import numpy as np
    import seaborn
    from matplotlib.figure import Figure

    values = late_by(found) / 1e6
    names: list[str] = (
        [str(step) for step in found.steps] if _by_step(found) else list(map(str, range(values.shape[1])))
    )
    each = [-(-size // _CELLS) for size in values.shape]
    values = _folded(_folded(values, each[0]).T, each[1]).T
    known = values[np.isfinite(values)]
    figure: Any = Figure(figsize=(10, 1.6 + min(7.0, max(1.2, 0.24 * len(values)))), layout="constrained")
    axes = figure.subplots()
    colours = seaborn.color_palette("cividis", as_cmap=True).with_extremes(bad="0.75")
    most = float(known.max()) if len(known) and known.max() > 0 else 1.0
    drawn = axes.imshow(
        np.ma.masked_invalid(values), aspect="auto", interpolation="nearest", cmap=colours, vmin=0, vmax=most
    )
    figure.colorbar(drawn, ax=axes, label="late by (ms)")
    ranks = [trace.rank for trace in found.traces][:: each[0]]
    up, along = (-(-size // most_ticks) for size, most_ticks in ((len(ranks), 24), (values.shape[1], 16)))
    axes.set_yticks(range(0, len(ranks), up), [str(rank) for rank in ranks[::up]])
    axes.set_xticks(range(0, values.shape[1], along), names[:: each[1]][::along])
    axes.set_ylabel("rank")
    axes.set_xlabel("step" if _by_step(found) else "collective, in order of time")
    axes.grid(visible=False)
    return figure


def late_by(found: Attribution) -> Any:
    """Return how late (ns) each trace arrived, (ranks, steps or collectives); NaN where that is not known."""
    import numpy as np

    met = _met(found)
    late = np.full((len(found.traces), len(met)), np.nan)
    for column, one in enumerate(met):
        late[list(one.places), column] = one.arrival - one.arrival.min()
    if not _by_step(found):
        return late
    steps = [found.step_of(one) for one in met]
    total = np.full((len(found.traces), len(found.steps)), np.nan)
    for column, step in enumerate(found.steps):
        its = late[:, [number for number, at in enumerate(steps) if at == step]]
        seen = np.isfinite(its).any(axis=1)
        total[seen, column] = np.nanmean(its[seen], axis=1)
    return total


def _folded(values: Any, each: int) -> Any:
    """Return rows of which so many neighbours became one: the largest of what is known."""
    import numpy as np

    if each == 1:
        return values
    rows = [values[first : first + each] for first in range(0, len(values), each)]
    return np.array(
        [np.where(np.isnan(row).all(axis=0), np.nan, np.nanmax(np.nan_to_num(row, nan=-1), axis=0)) for row in rows]
    )
