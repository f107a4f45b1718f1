"""What the door writes for the job that is to run, and says of it: which files, what was refused, what comes next."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from commbench.errors import UsageError

if TYPE_CHECKING:
    from commbench.recommend.advice import Advice
    from commbench.recommend.exporting import Export, Settings
    from commbench.recommend.plan import Plan
    from commbench.topology.cluster import Cluster


def asked(options: argparse.Namespace, granted: bool) -> Settings:
    """Return what an exported job asks of Slurm; raise UsageError, before the search, where nothing would read it."""
    from commbench.recommend.export._settings import MOST_SWITCHES, version
    from commbench.recommend.exporting import Settings
    from commbench.units import parse_whole

    for name, text in (("--partition", options.partition), ("--switches", options.switches)):
        if text == "":
            raise UsageError(f"{name} says nothing: leave it out")
    if options.partition and not options.export and options.free != "slurm":
        raise UsageError("--partition is for --free slurm, and for the job that --export writes: give one of them too")
    if options.switches and (granted or options.wrapper):
        rest = "--wrapper seats ranks on those recommended" if options.wrapper else "this job has its nodes already"
        raise UsageError(f"--switches asks for any nodes, and {rest}: give one of the two")
    number, at, wait = (options.switches or "").partition("@")
    if at and not wait:
        raise UsageError(f"--switches is N or N@T, as 2@01:00:00, not {options.switches!r:.80}")
    return Settings(
        slurm=version(options.slurm_version, "--slurm-version") if options.slurm_version else None,
        partition=options.partition or "",
        nodelist=not options.switches,
        switches=parse_whole(number, "--switches", least=1, most=MOST_SWITCHES) if number or at else None,
        wait=wait,
        wrapper=options.wrapper,
    )


@dataclass(frozen=True)
class Done:
    """An export: what became of it, what to know of it, and the command that comes next, None where there is none."""

    folder: str
    plan: Plan
    export: Export
    measured: bool  # results were given to choose algorithms from
    notes: tuple[str, ...] = ()
    next: str | None = None


def hand_over(options: argparse.Namespace, advice: Advice, cluster: Cluster, wanted: Settings, granted: bool) -> Done:
    """Write the files."""
    from commbench.recommend.exporting import export

    settings = replace(wanted, openmpi=open_mpi(advice.plan), cluster=cluster)
    done = Done(options.export, advice.plan, export(advice.plan, settings, options.export), bool(options.results))
    return _submitted(done, options, cluster, granted) if "slurm" in done.export.files else done


def lines(done: Done) -> list[str]:
    """Return what to say of it on screen."""
    from commbench.recommend.exporting import exporters

    said = [f"# written to {done.folder}: placement.json"]
    said += [f"#   {name}: {', '.join(files)}" for name, files in sorted(done.export.files.items())]
    refused = dict(done.export.refused)
    if not done.plan.choices:  # for all of these there is one reason
        settings_of = [name for name in refused if hasattr(exporters()[name], "LIBRARIES")]
        if [refused.pop(name) for name in settings_of]:
            remedy = "" if done.measured else "; --results chooses from measurements"
            said.append(f"#   no settings of algorithms: the library's own choice stays{remedy}")
    reasons = dict.fromkeys(why for _, why in sorted(refused.items()))  # several targets may have one
    said += [f"#   {text}" for text in (*reasons, *done.notes)]
    return said if done.next is None else [*said, f"# next: {done.next}"]


def _submitted(done: Done, options: argparse.Namespace, cluster: Cluster, granted: bool) -> Done:
    """Return the export with what to know of the nodes that its job waits for, and how to start it: here, with them."""
    import shlex

    from commbench.recommend.export.slurm import JOB
    from commbench.topology.hosts import fold
    from commbench.topology.shipped import shipped

    out = shlex.quote(done.folder.rstrip("/") or "/")
    if granted:
        return replace(done, next=f"bash {out}/{JOB} COMMAND...")
    command, notes = f"sbatch {out}/{JOB} COMMAND...", []
    if options.switches:
        notes.append(f"{JOB} takes any nodes on so few switches, in Slurm's own order")
    elif cluster.nodes > 1 and options.topology and not (options.free or options.current or options.allocation):
        free = f"nobody said which nodes are free: all {cluster.nodes} are taken to be (--free slurm, or a host list)"
        notes.append(f"{free}; {JOB} waits for just {fold(done.plan.hosts)}")
    if options.topology in shipped() and not (options.switches or options.results):  # as results are of nodes by name
        made_up = f"{options.topology} is shipped, and its node names are made up: Slurm knows none of them"
        notes.append(f"{made_up}; for a job of yours give --topology slurm --free slurm instead")
        return replace(done, notes=tuple(notes))
    return replace(done, notes=tuple(notes), next=command)


def open_mpi(plan: Plan) -> tuple[int, ...] | None:
    """Return the version of Open MPI that algorithms were chosen for, None where it is another library or not read."""
    import re

    of = re.compile(r"Open MPI v?([0-9]{1,3}(?:\.[0-9]{1,3}){0,3})(?!\.?[0-9]|\.\.)")
    found = next((of.match(one.library) for one in plan.choices), None)
    return tuple(map(int, found[1].split("."))) if found else None


def as_json(done: Done) -> dict[str, Any]:
    """Return it as it is in JSON."""
    from commbench.recommend.plan import NAME

    files = dict.fromkeys(name for names in done.export.files.values() for name in names)
    return {
        "folder": done.folder,
        "files": [NAME, *files],
        "refused": dict(done.export.refused),
        "notes": list(done.notes),
        "next": done.next,
    }
