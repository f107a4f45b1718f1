"""How a collective grows with the number of nodes: predicted on a topology, with what causes each bend.

python -m commbench.scaling --topology h100-nvlink --nodes 1-256 --size 8,25M
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from commbench.command import run_command
from commbench.errors import UsageError, unknown_name
from commbench.measure.parser import Parser

if TYPE_CHECKING:
    from commbench.model.scaling import Point

MOST = 1 << 14  # nodes
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall")
MARKS = "os^Dv*PX<>ph"  # matplotlib's, of algorithms in a picture
EXAMPLES = """examples:
  python -m commbench.scaling --topology h100-nvlink
  python -m commbench.scaling --topology my-cluster.yaml --nodes 1,2,4,8,16 --size 8,1M,1G --picture scaling.png
  python -m commbench.scaling --topology a100-mi250x --collective allgather --algo ring,hierarchical --json

A cluster of fewer nodes is repeated, unit by unit, under one more switch. What is printed is predicted, not measured.
exit codes: 0; 2 bad usage or input
"""


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    it = Parser(
        prog="commbench scaling",
        description="Predict how the time of a collective grows with the number of nodes.",
        epilog=EXAMPLES,
    )
    it.add_argument("--topology", required=True, metavar="T", help="a shipped topology's name, or a file")
    it.add_argument("--nodes", default="1-256", metavar="N", help="1-256: each power of two; or a list (default 1-256)")
    it.add_argument("--size", default="8,25M", metavar="S,...", help="bytes (default 8,25M)")
    it.add_argument("--collective", choices=COLLECTIVES, default="allreduce", help="default allreduce")
    it.add_argument("--library", metavar="L", help="nccl, rccl or mpi (default: that of the devices' vendor)")
    it.add_argument("--algo", metavar="A,...", help="algorithms to choose from (default: those of the library)")
    it.add_argument("--picture", metavar="FILE", help="draw it too: .png or .svg")
    it.add_argument("--json", action="store_true", help="print JSON")
    return it


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Print the table, and exit."""
    run_command("scaling", lambda: _carry_out(parser().parse_args(arguments)))


def _carry_out(options: argparse.Namespace) -> None:
    from commbench.model.library import find
    from commbench.model.scaling import scaling
    from commbench.model.schedule import names
    from commbench.topology import shipped
    from commbench.topology.reading import read
    from commbench.units import parse_size

    if options.picture:
        _check_picture(options.picture)
    cluster = read(shipped.find(options.topology)).cluster
    counts = _counts(options.nodes)
    sizes = [parse_size(text, "--size") for text in options.size.split(",")]
    algorithms = options.algo.split(",") if options.algo is not None else None
    for name in algorithms or ():
        if name not in names():
            raise unknown_name("algorithm", name, names())
    library = find(options.library) if options.library is not None else None
    found = {size: scaling(options.collective, cluster, counts, size, library, algorithms) for size in sizes}
    if options.picture:
        _draw(found, cluster.name, options.collective, options.picture)
    if options.json:
        print(json.dumps(_as_json(found, cluster.name, options.collective), indent=1))
    else:
        print(f"# {options.collective} on {cluster.name}: predicted, not measured")
        for size, points in found.items():
            _print(size, points)


def _counts(text: str) -> list[int]:
    from commbench.units import parse_whole

    if "-" in text:
        low, high = (parse_whole(end, "--nodes", least=1) for end in text.split("-", 1))
        if high > MOST or low > high:
            raise UsageError(f"--nodes is a range from 1 to at most {MOST}, not {text!r}")
        return sorted({low, high, *(1 << k for k in range(high.bit_length()) if low <= 1 << k <= high)})
    counts = sorted({parse_whole(one, "--nodes", least=1) for one in text.split(",")})
    if counts[-1] > MOST:
        raise UsageError(f"--nodes is at most {MOST}, not {counts[-1]}")
    return counts


def _print(size: int, points: Sequence[Point]) -> None:
    from commbench.model.scaling import turns
    from commbench.units import approximate_size

    print(f"\n# {approximate_size(size)}")
    print(f"{'nodes':>6}  {'ranks':>6}  {'time us':>10}  {'algorithm':<20}  {'growth':<12}  mostly")
    for point in points:
        mostly = ", ".join(f"{name} {100 * part / point.seconds:.0f} %" for name, part in point.parts[:2])
        time, name = (f"{point.seconds * 1e6:.1f}", point.algorithm) if point.algorithm else ("-", "none exists")
        print(f"{point.nodes:>6}  {point.ranks:>6}  {time:>10}  {name:<20}  {point.growth:<12}  {mostly}")
    for point in turns(points):
        because = f": what grew most since {point.nodes // 2} nodes is the {point.cause}" if point.cause else ""
        print(f"# at {point.nodes} nodes growth is {point.growth}{because}")


def _as_json(found: dict[int, list[Point]], name: str, collective: str) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "topology": name,
        "collective": collective,
        "predicted": True,
        "points": [
            {"size": size, **{**asdict(point), "seconds": point.seconds if point.algorithm else None}}
            for size, points in found.items()
            for point in points
        ],
    }


def _check_picture(path: str) -> None:
    """Refuse a picture that cannot be drawn, before anything is predicted."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise UsageError("a picture needs matplotlib: pip install 'commbench[report]'")
    if not path.endswith((".png", ".svg")):
        raise UsageError(f"--picture ends in .png or .svg, not {path!r}")


def _draw(found: dict[int, list[Point]], name: str, collective: str, path: str) -> None:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from commbench.units import approximate_size

    if not any(point.algorithm for points in found.values() for point in points):
        raise UsageError(f"--picture has nothing to draw: none of the algorithms does {collective} on {name} here")

    figure: Any = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    marks: dict[str, str] = {}  # of each algorithm: names beside points would hide others
    for size, points in found.items():
        there = [point for point in points if point.algorithm]
        times = [point.seconds * 1e6 for point in there]
        (line,) = axes.plot([point.nodes for point in there], times, label=approximate_size(size))
        for point, time in zip(there, times, strict=True):
            mark = marks.setdefault(point.algorithm, MARKS[len(marks) % len(MARKS)])
            axes.plot(point.nodes, time, mark, color=line.get_color())
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("nodes")
    axes.set_ylabel("predicted time (us)")
    axes.set_title(f"{collective} on {name}", loc="left")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(alpha=0.3)
    shapes = [Line2D([], [], color="gray", linestyle="", marker=mark, label=name) for name, mark in marks.items()]
    figure.legend(title="size", loc="outside right upper")
    figure.legend(handles=shapes, title="fastest", loc="outside right lower")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UsageError(f"--picture {path} cannot be written ({error.strerror})") from None


if __name__ == "__main__":
    main()
