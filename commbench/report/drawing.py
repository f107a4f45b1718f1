"""What all figures share: a style that colour-blind readers and printers can tell apart, labels, axes of sizes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from commbench.units import format_size

if TYPE_CHECKING:
    from commbench.attribution.analyse import Attribution
    from commbench.report.content import Content

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
# How layers of a step are drawn, as in seaborn's colour-blind palette; waiting is hatched, for printers too.
LAYER_COLOURS: dict[str, dict[str, Any]] = {
    "compute": {"facecolor": "#0173b2", "linewidth": 0.0},
    "memory": {"facecolor": "#029e73", "linewidth": 0.0},
    "communication": {"facecolor": "#de8f05", "linewidth": 0.0},
    "waiting": {"facecolor": "#fbe0d0", "edgecolor": "#b03a00", "hatch": "/////", "linewidth": 0.0},
    "host": {"facecolor": "#d9d9d9", "linewidth": 0.0},
}
_LONGEST = 72  # characters of a name in a picture


@dataclass(frozen=True)
class Drawing:
    """One picture: how to draw it, and what to say of it."""

    name: str  # of a file
    title: str
    caption: str
    draw: Callable[[], Any]  # returns a matplotlib Figure


def drawings(content: Content) -> Iterator[Drawing]:
    """Yield all pictures of a report, by the files of `figures/`: each that has `drawings` is asked."""
    for module in _modules("drawings"):
        yield from module.drawings(content)


def drawings_of_steps(found: Attribution) -> Iterator[Drawing]:
    """Yield all pictures of an attribution, likewise: each file that has `of_steps` is asked."""
    for module in _modules("of_steps"):
        yield from module.of_steps(found)


@cache
def _modules(function: str) -> list[Any]:
    from commbench.report import figures

    found = [import_module(f"{figures.__name__}.{name}") for _, name, _ in iter_modules(figures.__path__)]
    return sorted((one for one in found if hasattr(one, function)), key=lambda one: one.PLACE)


@contextmanager
def style() -> Iterator[None]:
    """Draw inside in the style of a report."""
    os.environ["MPLBACKEND"] = "agg"  # before it is imported: a name that it does not know would end it
    import matplotlib
    import seaborn
    from cycler import cycler

    matplotlib.use("Agg")
    settings = seaborn.plotting_context("notebook", font_scale=0.85) | seaborn.axes_style("whitegrid")
    fixed = {
        "svg.hashsalt": "commbench",
        "axes.prop_cycle": cycler(color=seaborn.color_palette("colorblind")),
    }
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # not what a reader has set for other pictures, as text.usetex
        matplotlib.rcParams.update({**settings, **fixed})
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield


def colours_and_markers(labels: Iterable[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a colour and a marker for each label: beyond ten, only both together tell them apart."""
    import seaborn

    names = list(dict.fromkeys(labels))
    colours = seaborn.color_palette("colorblind", 10)
    shapes = [MARKERS[(i + i // 10) % 10] for i in range(len(names))]
    return {name: colours[i % 10] for i, name in enumerate(names)}, dict(zip(names, shapes, strict=True))


def plain(text: Any) -> str:
    """Return a text of a log as a label: no formula, no line of its own, not too long, not hidden from legends."""
    one = "".join(sign if sign.isprintable() else "?" for sign in str(text)).replace("$", r"\$")
    one = one if len(one) <= _LONGEST else f"{one[: _LONGEST - 3]}..."
    return f" {one}" if one.startswith("_") else one


def thinned(values: Mapping[int, float], most: int) -> list[int]:
    """Return at most so many of the keys, in order: those with the least and the largest values, and others evenly."""
    keys = list(values)
    if len(keys) <= most:
        return keys
    ranked = sorted(keys, key=lambda key: values[key])
    ends = {*ranked[: most // 4], *ranked[-(most // 4) :]}
    rest = [key for key in keys if key not in ends]
    wanted = most - len(ends)
    return sorted(ends | {rest[number * len(rest) // wanted] for number in range(wanted)})


def size_axis(axes: Any, sizes: Iterable[int]) -> None:
    """Make the horizontal axis one of sizes: logarithmic, with ticks where sizes were measured."""
    ticks = sorted({int(size) for size in sizes})
    step = -(-len(ticks) // 8)
    axes.set_xscale("log", base=2)
    shown = ticks[::step]
    axes.set_xticks(shown, [_tick(size) for size in shown], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("size (B)")


def log_axis(axes: Any) -> None:
    """Make the vertical axis logarithmic, with plain numbers: 57.5 and not 5.75×10¹."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _tick(size: int) -> str:
    exact = format_size(size)
    return exact if len(exact) <= 5 else f"{size:.2g}"
