"""A cluster's topology: shown, drawn, checked, converted, discovered on the machines themselves.

python -m commbench.topology show h100-nvlink
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from commbench.command import run_command
from commbench.errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE, UsageError
from commbench.measure.parser import Parser
from commbench.results.findings import NOTE, Finding
from commbench.topology.shipped import find, shipped

if TYPE_CHECKING:
    from commbench.backends.world import World
    from commbench.measure.watchdog import Watchdog
    from commbench.topology.cluster import Cluster
    from commbench.topology.reading import Reading

NAME = "topology"
NEEDED = ("yaml", "ClusterShell", "defusedxml")
TIMEOUT = 300.0
OURS = "commbench_yaml"
EXAMPLES = """examples:
  python -m commbench.topology show h100-nvlink                     one of those that are shipped
  python -m commbench.topology show cluster.yaml --picture cluster.png
  python -m commbench.topology check topology.conf --strict         what is wrong with it, by line
  python -m commbench.topology convert cluster.yaml --to slurm_conf --out topology.conf
  python -m commbench.topology convert n1.xml n2.xml --to commbench_yaml      nodes, put together
  srun -N 4 --ntasks-per-node 1 python -m commbench.topology discover --out cluster.yaml

FILE is any description of a cluster or a node that is known here, told by what is in it, or a name of the shipped:
{shipped}.

exit codes: 0 fine, or doubts only; 1 check --strict: there are doubts; 2 a file that cannot be used, or bad usage
"""


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    it = Parser(
        prog=f"commbench {NAME}",
        description="Show, draw, check and convert descriptions of clusters, or discover one.",
        epilog=EXAMPLES.format(shipped=", ".join(shipped())),
    )
    verbs = it.add_subparsers(dest="verb", required=True, metavar="show|check|convert|discover")
    show = verbs.add_parser("show", help="as text, and as a picture")
    show.add_argument("files", nargs="+", metavar="FILE")
    show.add_argument("--picture", metavar="OUT.png", help="draw it too: .png, .svg or .pdf")
    show.add_argument("--json", action="store_true", help="one JSON object: all of each file")
    check = verbs.add_parser("check", help="say what is wrong, by line")
    check.add_argument("files", nargs="+", metavar="FILE")
    check.add_argument("--slurm-conf", metavar="FILE", help="its nodes are those that topology.conf should have")
    check.add_argument("--strict", action="store_true", help="exit 1 for doubts too")
    check.add_argument("--json", action="store_true", help="one JSON object: the findings of each file")
    convert = verbs.add_parser("convert", help="write another format")
    convert.add_argument("files", nargs="+", metavar="FILE", help="a cluster, or nodes that are put together")
    convert.add_argument("--to", required=True, choices=writers(), help="the format")
    convert.add_argument("--kind", choices=("tree", "block"), help="of Slurm's topologies (default: what there is)")
    convert.add_argument("--out", metavar="FILE", help="where to write (default: the screen)")
    discover = verbs.add_parser("discover", help="look at this machine, or at all of a launch")
    discover.add_argument("--out", metavar="FILE", help="where to write (default: the screen)")
    return it


def writers() -> list[str]:
    """Return the formats that can be written, by the names of their files."""
    from commbench.topology import writers as folder

    return sorted(one.name for one in pkgutil.iter_modules(folder.__path__) if not one.name.startswith("_"))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Carry out one of the verbs, and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["discover"] and not {"-h", "--help"} & set(words):
        from commbench.measure.door import run_door

        run_door(NAME, parser(), _read_discover, _discover, words)
    run_command(NAME, lambda: _carry_out(parser().parse_args(words)))


def _carry_out(options: argparse.Namespace) -> int:
    _need()
    verb: Callable[[argparse.Namespace], int] = {"show": _show, "check": _check, "convert": _convert}[options.verb]
    return verb(options)


def _need() -> None:
    from importlib.util import find_spec

    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UsageError(f"topologies need {', '.join(missing)}: pip install 'commbench[topology]'")


def _complain(text: str) -> None:
    print(f"commbench {NAME}: error: {text}", file=sys.stderr, flush=True)


def _say(findings: Sequence[Finding]) -> None:
    for one in findings:
        print(f"# {one}", file=sys.stderr, flush=True)


def _show(options: argparse.Namespace) -> int:
    from commbench.topology import picture
    from commbench.topology.reading import read
    from commbench.topology.show import text

    if options.picture is not None:
        picture.check(Path(options.picture))
        if len(options.files) > 1:
            raise UsageError(f"--picture draws one cluster, and {len(options.files)} files are given: name one")
    readings = [read(find(name)) for name in options.files]
    if options.json:
        print(json.dumps({"version": 1, "topologies": [_as_dict(one) for one in readings]}, default=str))
    else:
        parts = [text(cluster) for reading in readings for cluster in reading.clusters]
        print("\n\n".join(parts))
        _say([finding for one in readings for finding in one.findings])
    if options.picture is not None:
        picture.save(readings[0].cluster, Path(options.picture))
        print(f"# drawn to {options.picture}", file=sys.stderr)
    return EXIT_OK


def _as_dict(reading: Reading) -> dict[str, Any]:
    return {
        "source": reading.source,
        "format": reading.format,
        "clusters": [{"nodes": one.nodes, "devices": one.devices, **asdict(one)} for one in reading.clusters],
        "findings": [one.to_dict() for one in reading.findings],
    }


def _check(options: argparse.Namespace) -> int:
    from commbench.topology.reading import read
    from commbench.topology.show import counted

    nodes = None if options.slurm_conf is None else _nodes(options.slurm_conf)
    code = EXIT_OK
    said: list[dict[str, Any]] = []
    for name in options.files:
        try:
            reading = read(find(name), nodes)
        except UsageError as error:
            code = EXIT_USAGE
            faults = getattr(error, "faults", (str(error),))
            said.append({"source": str(name), "format": "", "error": str(error), "faults": faults, "findings": []})
            if not options.json:
                print("\n".join(f"refused: {fault}" for fault in faults), flush=True)
            continue
        doubts = [one for one in reading.findings if one.level != NOTE]
        said.append(
            {
                "source": reading.source,
                "format": reading.format,
                "error": None,
                "findings": [one.to_dict() for one in reading.findings],
            }
        )
        if options.strict and doubts:
            code = max(code, EXIT_FAILED)
        if not options.json:
            it = reading.cluster
            facts = ", ".join([counted(it.nodes, "node"), counted(len(it.switches), "switch"),
                               counted(len(it.classes), "node class")])  # fmt: skip
            print(f"{counted(len(doubts), 'doubt') if doubts else 'fine'}: {reading.source}: {reading.format}, {facts}")
            for one in reading.findings:
                print(f"  {one}")
    if options.json:
        print(json.dumps({"version": 1, "files": said}))
    return code


def _nodes(name: str) -> tuple[str, ...]:
    """Return the nodes that a slurm.conf declares."""
    from commbench.topology.readers.slurm_conf import node_names
    from commbench.topology.reading import text_of

    if found := node_names(text_of(Path(name)), name):
        return found
    raise UsageError(f"--slurm-conf names Slurm's own slurm.conf, and {name} has no line with NodeName=")


def _convert(options: argparse.Namespace) -> int:
    from commbench.topology.merge import merge
    from commbench.topology.reading import read

    readings = [read(find(name)) for name in options.files]
    reading = readings[0] if len(readings) == 1 else merge(readings)
    _say(reading.findings)
    for other in reading.clusters[1:]:
        print(f"# left out: {other.name or 'another cluster'} of the same file", file=sys.stderr)
    _put(_written(reading.cluster, options.to, options.kind), options.out)
    return EXIT_OK


def _written(cluster: Cluster, name: str, kind: str | None = None) -> str:
    writer = importlib.import_module(f"commbench.topology.writers.{name}")
    if kind is None:
        text: str = writer.write(cluster)
    elif "kind" in inspect.signature(writer.write).parameters:
        text = writer.write(cluster, kind=kind)
    else:
        raise UsageError(f"--kind is for Slurm's topologies, and {name} has none: leave it out")
    return text


def _put(text: str, out: str | None) -> None:
    """Write a text onto the screen, or into a file: whole or not at all, and not over another."""
    if out in (None, "-"):
        print(text, end="")
        return
    path = Path(out or "").resolve()  # a link stays one
    if path.exists() and not path.is_file():
        raise UsageError(f"--out names a file, and {out} is none")
    if path.exists() and path.read_bytes() != text.encode():
        raise UsageError(f"--out names a new file, and {out} is there with other content: remove it, or name another")
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise UsageError(f"cannot write {out}: {error.strerror or error}") from None
    print(f"# written to {out}", file=sys.stderr)


@dataclass(frozen=True)
class _Discover:
    out: str | None
    timeout: float = TIMEOUT
    needs_mpi: bool = False


def _read_discover(words: Sequence[str]) -> _Discover:
    _need()
    return _Discover(parser().parse_args(words).out)


def _discover(world: World, watchdog: Watchdog, options: _Discover, words: Sequence[str]) -> int:
    """Look at each rank's machine; rank 0 puts them together."""
    from commbench.measure.door import on_rank_0
    from commbench.topology.discover import discover
    from commbench.topology.merge import merge
    from commbench.topology.reading import Reading, read_text
    from commbench.topology.show import counted

    try:
        reading = discover()
        mine = [_written(reading.cluster, OURS), [one.to_dict() for one in reading.findings], ""]
    except UsageError as error:
        mine = ["", [], str(error)]
    gathered = world.gather(mine) or []

    def finish() -> None:
        for rank, (_, _, trouble) in enumerate(gathered):
            if trouble:
                raise UsageError(f"rank {rank}: {trouble}")
        readings = []
        for rank, (text, found, _) in enumerate(gathered):
            cluster = read_text(text, f"rank {rank}").cluster
            findings = tuple(Finding(**{**one, "lines": tuple(one["lines"])}) for one in found)
            readings.append(Reading((cluster,), findings, "discovered", cluster.blocks[0].nodes[0]))
        whole = merge(readings)
        _say(whole.findings)
        _put(_written(whole.cluster, OURS), options.out)
        if options.out not in (None, "-"):
            it = whole.cluster
            facts = (counted(it.nodes, "node"), counted(it.devices, "device"), counted(len(it.classes), "node class"))
            print(
                f"# {', '.join(facts)}; switches are not seen from a node: add them (docs/topology.md)", file=sys.stderr
            )
        sys.stdout.flush()

    on_rank_0(world, finish)
    return EXIT_OK


if __name__ == "__main__":
    main()
