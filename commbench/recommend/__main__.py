"""Which nodes to take and which rank to put where, what that brings, and files that tell a launcher so.

python -m commbench.recommend --topology h100-nvlink --gpus 128 --axes tp=8,dp=16
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from commbench.command import run_command
from commbench.errors import UsageError, unknown_name
from commbench.measure.parser import Parser

if TYPE_CHECKING:
    from commbench.model.fit import Fit
    from commbench.recommend.advice import Advice, Wish
    from commbench.recommend.batch import Split
    from commbench.recommend.job import Done
    from commbench.recommend.plan import Choice
    from commbench.recommend.score import Judge
    from commbench.recommend.traffic import Traffic
    from commbench.results.reading import Reading
    from commbench.results.record import Record
    from commbench.system import System
    from commbench.topology.cluster import Cluster

NEEDED = ("scipy", "yaml", "ClusterShell")
LIKE = "h100-nvlink"
PICTURES = (".png", ".svg", ".pdf")
MICRO_BATCHES, MICRO_BATCH_SIZE = "8", "1"
# Options that are not read without another one, and those that a matrix of what is sent leaves nothing to say.
PARTNERS = {
    "--micro-batches": "--preset",
    "--batch": "--throughput",
    "--throughput": "--batch",
    "--micro-batch-size": "--batch",
    "--slurm-version": "--export",
    "--switches": "--export",
    "--wrapper": "--export",
    "--other-cluster": "--results",
}
SAID_BY_TRAFFIC = ("--axes", "--bytes", "--preset", "--micro-batches", "--collectives", "--algo")
SEARCH, SEARCH_IN_JOB = 5.0, 2.0  # seconds: while a job looks for its order, its nodes wait
EXAMPLES = """examples:
  python -m commbench.recommend --topology h100-nvlink --gpus 128 --axes tp=8,dp=16 --export out/
  python -m commbench.recommend --topology cluster.yaml --free 'n[01-20]' --gpus 64 --axes tp=8,pp=2,dp=4 \\
      --preset llama2-7b --current hosts --results results/
  python -m commbench.recommend --topology slurm --free slurm --nodes 16       what Slurm knows
  python -m commbench.recommend --allocation --axes tp=8,dp=16 --export out/   inside a job: order what it has

Times are predicted, of a step's communication. exit codes: 0; 2 bad usage or input
"""


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    it = Parser(
        prog="commbench recommend",
        description="Recommend nodes and the order of ranks on them, for a step's communication.",
        epilog=EXAMPLES,
    )
    where = it.add_argument_group("the cluster")
    where.add_argument("--topology", metavar="T", help="a file in any known format, a shipped one's name, or `slurm`")
    where.add_argument("--free", metavar="HOSTS", help="nodes to choose from: n[01-20], or `slurm`: what is idle "
                                                       "(default: all)")  # fmt: skip
    where.add_argument("--allocation", action="store_true", help="order the nodes of this job of Slurm's; the default "
                                                                 "in one without --topology and --free")  # fmt: skip
    where.add_argument("--current", metavar="FILE", help="the order in use: a host file, or a placement.json")
    where.add_argument("--results", metavar="PATH", nargs="+", help="measured runs of this cluster: figures are fitted "
                                                                    "to them, and algorithms chosen")  # fmt: skip
    where.add_argument(
        "--other-cluster", action="store_true", help="the results may be of other nodes: go on without them"
    )
    where.add_argument("--like", metavar="T", default=LIKE, help=f"the nodes of which to assume (default {LIKE})")
    where.add_argument(
        "--oversubscription", metavar="R", default="2", help="of uplinks that nobody described (default 2)"
    )
    where.add_argument("--gpus-per-node", metavar="N", help="where nobody said (default: as the assumed nodes have)")
    what = it.add_argument_group("the job")
    what.add_argument("--gpus", metavar="N", help="how many ranks")
    what.add_argument("--nodes", metavar="N", help="or how many nodes, all of their devices")
    what.add_argument("--axes", metavar="A=N,...", help="tp=8,pp=4,dp=8, the fastest varying rank first (default dp)")
    what.add_argument("--bytes", metavar="A=[Nx]S,...", help="what a group sends a step: tp=96x64M,dp=4G (default 1G)")
    what.add_argument("--preset", metavar="MODEL", help="bytes of a known model instead")
    what.add_argument("--micro-batches", metavar="N", help=f"a step, of a preset (default {MICRO_BATCHES})")
    what.add_argument("--collectives", metavar="A=C,...", help="dp=reducescatter (default: all-reduce; pp sendrecv, "
                                                               "ep all-to-all, cp and fsdp all-gather)")  # fmt: skip
    what.add_argument("--traffic", metavar="FILE", help="or a matrix of bytes from rank to rank, .npy or text")
    what.add_argument("--algo", metavar="A=X,...", help="tp=nvls,dp=ring (default: the fastest of the library)")
    what.add_argument("--library", metavar="L", help="nccl, rccl or mpi (default: that of the devices' vendor)")
    batch = it.add_argument_group("the batch, where devices are unlike")
    batch.add_argument("--batch", metavar="N", help="samples of a step, to be split by throughput")
    batch.add_argument("--throughput", metavar="FILE", help="CSV: rank,samples_per_second,most_samples of each "
                                                            "data-parallel rank")  # fmt: skip
    batch.add_argument("--micro-batch-size", metavar="N", help=f"samples that go together (default {MICRO_BATCH_SIZE})")
    how = it.add_argument_group("the answer")
    how.add_argument("--time", metavar="S", help="seconds to search for an order (default 5, in a job 2)")
    how.add_argument("--cores", metavar="N", help="of a node: tells ranges of cores near each device")
    how.add_argument("--export", metavar="DIR", help="write placement.json, and a file for each launcher")
    how.add_argument("--slurm-version", metavar="V", help="the Slurm that will read the export")
    how.add_argument("--partition", metavar="P", help="of Slurm: where --free slurm looks, and the exported job runs")
    how.add_argument("--switches", metavar="N[@T]", help="the exported job asks for any nodes on so few leaf switches, "
                     "and waits for them at most T (01:00:00), instead of the nodes recommended")  # fmt: skip
    how.add_argument(
        "--wrapper", action="store_true", help="the exported job seats ranks by a script: a Slurm may take no order"
    )
    how.add_argument("--picture", metavar="FILE", help="draw nodes by leaf before and after: .png, .svg or .pdf")
    how.add_argument("--json", action="store_true", help="print JSON")
    return it


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Print the advice, and exit."""
    run_command("recommend", lambda: _carry_out(parser().parse_args(arguments)))


def _need() -> None:
    from importlib.util import find_spec

    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UsageError(f"advice needs {', '.join(missing)}: pip install 'commbench[topology]'")


def _carry_out(options: argparse.Namespace) -> None:
    _need()
    _fit_together(options)
    from commbench.recommend import job, screen
    from commbench.recommend.advice import advise
    from commbench.system import System

    picture = _picture_file(options.picture) if options.picture else None
    system = System()
    granted = _granted(options, system)
    wanted = job.asked(options, bool(granted))
    cluster, notes = _described(options, system, granted)
    free, free_notes = _free(options, system, cluster, granted)
    runs, cluster, results_notes = _results(options, cluster)
    if cluster.nodes == 1:
        free = list(cluster.arrays.nodes)  # by the name that the results have for it
    cluster, fitted, wish_facts, fitted_notes = _fitted([run.records for run in runs], cluster)
    traffic = _traffic(options, cluster, free, bool(granted))
    fitted_notes += _beyond(fitted, traffic)
    split = _split(options, traffic)
    wish = _wish(options, cluster, free, traffic, wish_facts, bool(granted))
    choices, refused = _choices(runs)
    advice = advise(cluster, wish)
    plan = replace(
        advice.plan,
        notes=(*notes, *free_notes, *results_notes, *fitted_notes, *refused, *advice.plan.notes),
        choices=choices,
        samples=split.samples if split else (),
        weights=split.weights if split else (),
    )
    advice = replace(advice, plan=plan)
    if picture is not None:
        _draw(picture, advice, wish)
    done = job.hand_over(options, advice, cluster, wanted, bool(granted)) if options.export else None
    if options.json:
        print(json.dumps(_as_json(advice, split, done), indent=1))
    else:
        print("\n".join([*screen.lines(advice, bool(runs), split, bool(refused)), *(job.lines(done) if done else ())]))


def _fit_together(options: argparse.Namespace) -> None:
    """Raise UsageError for an option that would not be read beside the others, or without one that is not there."""

    def given(name: str) -> bool:
        return getattr(options, name.removeprefix("--").replace("-", "_")) not in (None, False)

    if given("--traffic") and (some := [name for name in SAID_BY_TRAFFIC if given(name)]):
        raise UsageError(f"--traffic says all that is sent, each to each: leave out {', '.join(some)}")
    for name, partner in PARTNERS.items():
        if given(name) and not given(partner):
            raise UsageError(f"{name} goes with {partner}: give both {name} and {partner}, or leave {name} out")


def _granted(options: argparse.Namespace, system: System) -> list[str]:
    """Return the nodes of the job of which the order is asked; none where nodes are to be chosen."""
    from commbench.recommend import slurm

    if not options.allocation and (options.free or options.topology or not slurm.in_job(system)):
        return []
    if options.free:
        raise UsageError("--allocation orders the nodes of a job, and --free names others: give one of them")
    return slurm.granted(system)


def _described(options: argparse.Namespace, system: System, granted: list[str]) -> tuple[Cluster, list[str]]:
    """Return the cluster, and what of it was assumed."""
    from commbench.recommend import slurm
    from commbench.recommend.assume import complete
    from commbench.topology.reading import read
    from commbench.topology.shipped import find
    from commbench.units import parse_number, parse_whole

    if options.topology == "slurm":
        cluster = slurm.topology(system)
    elif options.topology:
        cluster = read(find(options.topology)).cluster
    elif granted:
        cluster = slurm.topology_of_job(system, granted)
    else:
        raise UsageError("advice needs a topology: --topology FILE, the name of a shipped one, or slurm")
    each = options.gpus_per_node
    if each is None and granted and (told := system.environment.get("SLURM_GPUS_ON_NODE", "")).isdecimal():
        each = told
    like = read(find(options.like)).cluster
    ratio = parse_number(options.oversubscription, "--oversubscription", least=0.01)
    count = parse_whole(each, "--gpus-per-node", least=1) if each is not None else None
    if options.gpus_per_node and all(block.node_class for block in cluster.blocks):
        rule = "--gpus-per-node is for nodes nobody described"
        raise UsageError(f"{rule}, and {options.topology} describes its own: leave it out")
    return complete(cluster, like, ratio, count)


def _free(
    options: argparse.Namespace, system: System, cluster: Cluster, granted: list[str]
) -> tuple[list[str], list[str]]:
    """Return the nodes to choose from, or those of the job, and what to say."""
    from commbench.recommend import slurm
    from commbench.topology.hosts import expand

    nodes, name = cluster.arrays.nodes, cluster.name or "the topology"
    known = set(nodes)
    notes = []
    if options.free is None:
        free = granted or list(nodes)
    elif options.free == "slurm":
        found, bare = slurm.idle(system, options.partition or "")
        idle = [host for host in found if host in known]
        if not idle:
            raise UsageError(f"no node that Slurm says is idle is one of {name}: name some with --free")
        bare &= _with_gpus(cluster) & set(idle)  # of which the topology, or what was assumed, says otherwise
        free = [host for host in idle if host not in bare]
        if bare:
            text = f"{len(bare)} of {len(idle)} idle nodes have no GPU, says Slurm (gres/gpu)"
            if not free:
                raise UsageError(f"{text}: wait for others, or name nodes with --free")
            notes.append(f"{text}: left out")
    elif options.free.strip():
        free = list(dict.fromkeys(expand(options.free)))
    else:
        raise UsageError("--free names nodes to choose from, as n[01-20], and names none: leave it out for all")
    if unknown := [host for host in free if host not in known]:
        raise UsageError(
            f"{unknown[0]} is to be chosen from, and is no node of {name}, which has {', '.join(nodes[:3])}, ...: "
            "correct --free or --topology"
        )
    return free, notes


def _with_gpus(cluster: Cluster) -> set[str]:
    """Return the nodes that have GPUs, as the cluster is described."""
    kinds = [any(device.vendor != "cpu" for device in kind.devices) for kind in cluster.classes]
    return {name for name, kind in zip(cluster.arrays.nodes, cluster.arrays.node_class, strict=True) if kinds[kind]}


def _results(options: argparse.Namespace, cluster: Cluster) -> tuple[list[Reading], Cluster, list[str]]:
    """Return the results of this cluster, in which hosts are called as in its topology; the cluster, with one machine
    called as the results do; and what to say.
    """
    from commbench.results.collect import collect
    from commbench.topology.hosts import expand

    if not options.results:
        return [], cluster, []
    runs = collect(options.results)
    known = set(cluster.arrays.nodes)
    hosts = {host for run in runs for record in run.records for host in expand(record.hosts or "") if host}
    other = sorted(hosts - known)
    if not other:
        return runs, cluster, []
    if len(hosts) == 1 and cluster.nodes == 1:  # one machine, whatever either calls it
        blocks = tuple(replace(block, nodes=(other[0],)) if block.nodes else block for block in cluster.blocks)
        return runs, replace(cluster, blocks=blocks), [f"{cluster.arrays.nodes[0]} is {other[0]}, as the results say"]
    names = _names_here(other, hosts, known)
    if len(names) == len(other):
        more = f" and {len(names) - 1} more alike" if len(names) > 1 else ""
        said = f"the results call {names[other[0]]} {other[0]}{more}: the same hosts but for the domain"
        return [_renamed(run, names) for run in runs], cluster, [said]
    other = [host for host in other if host not in names]
    lacking = f"{cluster.name or 'the topology'} does not have ({', '.join(other[:3])})"
    text = f"{', '.join(options.results)} is of hosts that {lacking}"
    if not options.other_cluster:
        raise UsageError(f"{text}: results of another cluster say nothing of this one; --other-cluster goes on without")
    return [], cluster, [f"{text}: left out, as --other-cluster asks"]


def _names_here(other: Sequence[str], hosts: Collection[str], known: Collection[str]) -> dict[str, str]:
    """Return how the topology calls hosts whose names differ from its own by a domain alone, each of one host only."""
    from collections import Counter

    from commbench.topology.hosts import counterparts

    found = {host: its[0] for host, its in counterparts(other, known).items() if len(its) == 1}
    claimed = Counter(found.values())
    return {host: name for host, name in found.items() if claimed[name] == 1 and name not in hosts}


def _renamed(run: Reading, names: Mapping[str, str]) -> Reading:
    """Return results with other names of hosts."""
    from commbench.results.reading import Reading
    from commbench.topology.hosts import expand

    records = (
        replace(record, hosts=",".join(names.get(host, host) for host in expand(record.hosts or "")))
        for record in run.records
    )
    return Reading.of(run.source, run.format, records)


def _fitted(
    runs: Sequence[Sequence[Record]], cluster: Cluster
) -> tuple[Cluster, Fit | None, dict[str, Any], list[str]]:
    """Return the cluster with fitted figures, the fit, what of it a wish has, and what to say."""
    if not runs:
        return cluster, None, {}, []
    from statistics import median

    from commbench.model.fit import apply, fit
    from commbench.topology.hosts import expand

    fitted = fit(runs, cluster)
    facts: dict[str, Any] = {}
    if fitted.hold_outs:
        facts["error"] = max(one.median for one in fitted.hold_outs)
        facts["error_source"] = "how far off the fit is for records that it did not see"
    else:
        facts["error_source"] = "as of data sheets: too few records to tell how far off the fit is for others"
    slow: dict[int, list[float]] = {}
    for one in fitted.slow:
        for host in expand(one.hosts):
            slow.setdefault(cluster.arrays.places[host], []).append(one.factor - 1)
    facts["slow"] = {node: median(values) for node, values in slow.items()}
    notes = fitted.lines()
    if len(fitted.libraries) > 1:
        some = ", ".join(fitted.libraries)
        notes.append(f"fitted to records of {some} alike: name the folder of the one that will run")
    return apply(cluster, fitted), fitted, facts, notes


def _beyond(fitted: Fit | None, traffic: Traffic) -> list[str]:
    """Return what the step sends that is larger than what was measured."""
    if fitted is None:
        return []
    from commbench.units import approximate_size

    most = fitted.sizes[1]
    beyond = [f"{flow.axis} sends {approximate_size(flow.size)}" for flow in traffic.flows if flow.size > 2 * most]
    text = (
        f"{', '.join(beyond)} at once, and the largest record is of {approximate_size(most)}: no record bears that out"
    )
    return [text] if beyond else []


def _choices(runs: Sequence[Reading]) -> tuple[tuple[Choice, ...], list[str]]:
    """Return the algorithms that measured launches show to be faster, and what to say of those left out.

    Logs of others do not count, as nobody knows which of them are equal launches, nor does what was simulated.
    """
    from commbench.errors import ResultsError
    from commbench.recommend.algorithm import for_library_with_notes
    from commbench.results.collect import OWN

    own = [[record for record in run.records if not record.simulated] for run in runs if run.format == OWN]
    try:
        return for_library_with_notes([records for records in own if records])
    except ResultsError as error:
        return (), [f"no algorithm is chosen: {error}"]


def _traffic(options: argparse.Namespace, cluster: Cluster, free: Sequence[str], granted: bool) -> Traffic:
    from commbench.recommend import traffic
    from commbench.units import parse_whole

    asked = parse_whole(options.gpus, "--gpus", least=2) if options.gpus else None
    if options.nodes:
        if asked is not None:
            raise UsageError("--gpus and --nodes say the same in two ways: give one of them")
        asked = _devices_of(parse_whole(options.nodes, "--nodes", least=1), cluster, free)
    if options.traffic:
        found = traffic.matrix(options.traffic)
        if asked not in (None, found.ranks):
            raise UsageError(
                f"{options.traffic} is of {found.ranks} ranks, and {asked} GPUs are asked for: give one of both"
            )
        return found
    if options.axes:
        sizes = traffic.axes(options.axes)
        if asked not in (None, prod(sizes.values())):
            raise UsageError(
                f"--axes {options.axes} multiply to {prod(sizes.values())} ranks, and {asked} GPUs are asked for"
            )
    else:
        if asked is None and granted:
            asked = _devices_of(len(free), cluster, free)
        if asked is None:
            raise UsageError("how many? --gpus N, --nodes N or --axes")
        sizes = {"dp": asked}
    if prod(sizes.values()) < 2:
        raise UsageError("one rank has nobody to send to: ask for two at least")
    told: dict[str, tuple[int, int]] = {}
    if options.preset:
        number = MICRO_BATCHES if options.micro_batches is None else options.micro_batches
        told = traffic.preset(options.preset, sizes, parse_whole(number, "--micro-batches", least=1))
    if options.bytes:
        told |= traffic.amounts(options.bytes, sizes)
    chosen = traffic.collectives(options.collectives, sizes) if options.collectives else {}
    return traffic.step(sizes, told, chosen)


def _split(options: argparse.Namespace, traffic: Traffic) -> Split | None:
    """Return the split of the batch among the data-parallel ranks; among all ranks where there is no such axis."""
    from commbench.recommend import batch
    from commbench.units import parse_whole

    if options.batch is None:
        return None
    devices = batch.read(options.throughput)
    sizes = [size for name, size in traffic.axes.items() if name in ("dp", "fsdp")]
    ranks = prod(sizes) if sizes else traffic.ranks
    if len(devices) != ranks:
        raise UsageError(
            f"{options.throughput} has {len(devices)} ranks, and {ranks} share the batch: give a line to each"
        )
    size = MICRO_BATCH_SIZE if options.micro_batch_size is None else options.micro_batch_size
    each = parse_whole(size, "--micro-batch-size", least=1)
    return batch.split(devices, parse_whole(options.batch, "--batch", least=1), each)


def _devices_of(nodes: int, cluster: Cluster, free: Sequence[str]) -> int:
    """Return the devices on so many of the free nodes, which all must have equally many."""
    if nodes > len(free):
        raise UsageError(f"{nodes} nodes are asked for, and {len(free)} are free: ask for fewer")
    sizes = {len(cluster.classes[int(cluster.arrays.node_class[cluster.arrays.places[host]])].devices) for host in free}
    if len(sizes) > 1:
        raise UsageError(
            f"the free nodes have {', '.join(map(str, sorted(sizes)))} devices: say --gpus instead of --nodes"
        )
    return nodes * sizes.pop()


def _wish(
    options: argparse.Namespace, cluster: Cluster, free: Sequence[str], traffic: Traffic, facts: dict[str, Any],
    granted: bool,
) -> Wish:  # fmt: skip
    import numpy as np

    from commbench.recommend.advice import Wish
    from commbench.recommend.in_use import read
    from commbench.units import parse_number, parse_whole

    current = read(options.current, cluster, traffic.ranks) if options.current else ()
    if current and not options.free and not granted:
        free = list(dict.fromkeys(seat.host for seat in current))
    elif outside := sorted({seat.host for seat in current} - set(free)):
        raise UsageError(f"{options.current}: the order in use has {outside[0]}, which --free does not name")
    where = np.array([cluster.arrays.places[host] for host in free], dtype=np.int64)
    return Wish(
        _judge(options, cluster, where, traffic, granted),
        where,
        current,
        granted=granted,
        cores=parse_whole(options.cores, "--cores", least=1) if options.cores else None,
        seconds=parse_number(options.time, "--time") if options.time else SEARCH_IN_JOB if granted else SEARCH,
        **facts,
    )


def _judge(options: argparse.Namespace, cluster: Cluster, free: Any, traffic: Traffic, granted: bool) -> Judge:
    from commbench.model.library import find, of_vendors
    from commbench.model.schedule import names
    from commbench.recommend.score import Judge
    from commbench.recommend.traffic import by_axis

    library = find(options.library) if options.library else of_vendors(_vendors(cluster, free, traffic.ranks, granted))
    known = {flow.axis: flow.n for flow in traffic.flows}
    asked = by_axis(options.algo, "--algo", known) if options.algo else {}
    for name in asked.values():
        if name not in names():
            raise unknown_name("algorithm", name, names())
    return Judge(traffic, library, asked)


def _vendors(cluster: Cluster, free: Any, ranks: int, granted: bool) -> set[str]:
    """Return the vendors of the devices that will be taken: of those of several, `choose` takes one's where it can.

    Of nodes that were granted any may be filled.
    """
    from commbench.recommend.nodes import choose
    from commbench.recommend.tree import tree

    def of(nodes: Any) -> set[str]:
        numbers = set(cluster.arrays.node_class[nodes].tolist())
        return {device.vendor for number in numbers for device in cluster.classes[number].devices}

    found = of(free)
    return found if len(found) == 1 or granted else of(choose(cluster, tree(cluster), free, ranks).nodes)


def _picture_file(name: str) -> Path:
    """Return the file of a picture; raise UsageError, before the search, where none could be drawn into it."""
    from importlib.util import find_spec

    if missing := [one for one in ("matplotlib", "seaborn") if find_spec(one) is None]:
        raise UsageError(f"a picture needs {', '.join(missing)}: pip install 'commbench[report]'")
    if Path(name).suffix not in PICTURES:
        raise UsageError(f"a picture is named {', '.join(f'NAME{one}' for one in PICTURES)}, not {Path(name).name!r}")
    return Path(name)


def _draw(path: Path, advice: Advice, wish: Wish) -> None:
    """Draw the placement before and after."""
    from commbench.recommend.advice import KEEP, RECOMMENDED, SHOWN
    from commbench.report.drawing import style
    from commbench.report.figures.placement import Panel, picture

    seconds = advice.plan.seconds
    before = advice.reference
    names = {before: SHOWN[before], RECOMMENDED: RECOMMENDED}
    if advice.plan.advice == KEEP:
        names = {before: f"kept, as it is {names[before]}"}
    places = {before: advice.before, RECOMMENDED: advice.after}
    panels = [Panel(f"{text}: {seconds[name] * 1e3:.4g} ms predicted", places[name]) for name, text in names.items()]
    with style():
        figure = picture(wish.judge.traffic, wish.free, panels)
        try:
            figure.savefig(path, dpi=110)
        except OSError as error:
            raise UsageError(f"{path} cannot be written ({error.strerror}): name another file") from None


def _as_json(advice: Advice, split: Split | None, done: Done | None) -> dict[str, Any]:
    from commbench.recommend import job

    left = advice.left
    return {
        "predicted": True,
        "plan": json.loads(advice.plan.to_json()),
        "how": advice.how,
        "recommended": {"how": advice.found.how, "nodes": list(advice.hosts)},
        "gain": advice.held.gain,
        "gain_if_the_library_runs": advice.held.otherwise,
        "left": {
            "how": left.found.how,
            "gain": left.gain,
            "gain_if_the_library_runs": left.otherwise,
            "splits": list(advice.torn),
        }
        if left
        else None,
        "doubts": list(advice.doubts),
        "algorithms": {name: score.algorithms for name, score in advice.scores.items()},
        "nodes": {
            **{key: value for key, value in asdict(advice.nodes).items() if key != "nodes"},
            "names": list(advice.plan.hosts),
        },
        "error": advice.error,
        "error_source": advice.error_source,
        "batch": {**asdict(split), "gain": split.gain} if split else None,
        "export": job.as_json(done) if done else None,
    }


if __name__ == "__main__":
    main()
