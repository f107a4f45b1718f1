"""The run folder at the start of a launch: a new plan, or an earlier one taken up again. Only rank 0 comes here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from commbench.backends.base import AUTO, Backend
from commbench.backends.world import World
from commbench.errors import ResultsError, UsageError
from commbench.measure import groups as grouping
from commbench.measure.cell import ALL, PLANNED, Cell, Group
from commbench.measure.collective import Collective
from commbench.measure.dtypes import DTYPES
from commbench.measure.effort import FEW_ROUNDS, ROUNDS, Effort
from commbench.measure.plan import Request, build
from commbench.measure.site import Seat
from commbench.results import manifest, regime
from commbench.results.journal import Journal, new_folder
from commbench.results.launch import launch_number
from commbench.results.record import FORMAT
from commbench.results.status import NOT_APPLICABLE, NOT_MEASURED
from commbench.units import format_ranges

T = TypeVar("T")

# What may be asked for anew when a run is resumed: how long and how well, not what and how.
_RENEWABLE = ("rounds", "precision", "max_seconds", "budget", "warmup")
# What must be as it was, in words.
SAME = {
    "collective": "collective",
    "backend": "backend",
    "library": "library",
    "size": "number of ranks",
    "nodes": "number of nodes",
}


@dataclass(frozen=True)
class Launch:
    """What the start of a run depends on: who is there, the library, the door, and what was asked for."""

    world: World
    backend: Backend
    collective: Collective
    asked: Mapping[str, Any]  # Options.plan
    given: frozenset[str]  # the names in `asked` that the user gave
    words: Sequence[str]  # the command line
    site: Mapping[str, Any]


def begin(launch: Launch, out: str | None) -> Journal:
    """Resolve the plan of a new run and open its folder: `out`, or a new one by time and name."""
    asked, backend, collective = launch.asked, launch.backend, launch.collective
    method = asked["method"] or backend.method
    _check_method(method, asked["graph"], launch)
    rounds = asked["rounds"] or (FEW_ROUNDS if launch.site["crowded"] else ROUNDS)
    groups = _groups(asked, [Seat(**seat) for seat in launch.site["seats"]])
    machine, now = manifest.machine(), session(launch.words, launch.site)
    notes = dict.fromkeys(regime.findings(launch.site, machine, now["load"]))
    if asked["concurrent"]:
        notes["all groups run at once (--concurrent on): what one has the others lack"] = None
    cells: list[Cell] = []
    for group in groups:
        found, about = build(pick(Request, asked), collective, backend, group, launch.site["allowance"])
        cells += found
        notes |= dict.fromkeys(about if group.name == ALL else (f"{group.name}: {note}" for note in about))
    contents = {
        "version": FORMAT,
        "plan": {
            "facts": facts(collective.name, backend, launch.world, method)
            | {"groups": _group_facts(groups, launch), "launch": launch_number(out)},
            "asked": asked,
            "effort": asdict(pick(Effort, {**asked, "method": method, "rounds": rounds})),
            "notes": list(notes),
            "cells": [cell.to_dict() for cell in cells],
        },
        "library": backend.facts(),
        "machine": machine,
        "sessions": [now],
    }
    return Journal.create(Path(out) if out else new_folder(f"results/{manifest.now()}-{collective.name}"), contents)


def take_up(launch: Launch, out: str | None) -> Journal:
    """Open the folder of an earlier run; its plan stands, and this launch must be able to go on with it."""
    journal = Journal.reopen(Path(out or ""))
    check_plan(journal, launch.collective)
    launch.backend.algorithms(launch.collective)  # refuses settings that choose the algorithm already
    plan = journal.manifest["plan"]
    _check_method(plan["facts"]["method"], plan["effort"].get("graph", 0), launch)
    here = facts(launch.collective.name, launch.backend, launch.world, plan["facts"]["method"])
    check_same(journal.folder, plan["facts"], here, SAME)
    for name, kept in plan["facts"]["groups"].items():
        group = _group_facts([Group(name, tuple(kept["order"]))], launch)[name]
        if name != ALL and group["hosts"] != kept["hosts"]:
            raise ResultsError(
                f"in {journal.folder}, group {name} was on {kept['hosts']}, in this launch its ranks are on "
                f"{group['hosts']}: place the ranks as they were, or start another run by another --out"
            )
    if launch.given & {"groups", "ranks"}:  # a file may say something else by now
        kept = {name: tuple(group["order"]) for name, group in plan["facts"]["groups"].items()}
        asked = {
            group.name: group.ranks for group in _groups(launch.asked, [Seat(**seat) for seat in launch.site["seats"]])
        }
        if asked != kept:
            raise ResultsError(
                f"{journal.folder} was begun with other groups than those asked for now: resume as it was begun, or "
                "start another run by another --out"
            )
    renew(journal, launch.asked, launch.given, plan["asked"], _RENEWABLE)
    journal.begin_session(session(launch.words, launch.site))
    return journal


def forced_before(out: str, otherwise: bool) -> bool:
    """Return whether the plan in `out` has algorithms other than `auto`; `otherwise` where there is none to read."""
    import json

    try:
        plan = json.loads((Path(out) / "manifest.json").read_text(encoding="utf-8"))["plan"]
        return bool(plan["asked"]["algorithms"] != [AUTO])
    except (OSError, ValueError, KeyError, TypeError):  # `take_up` says what is wrong with it
        return otherwise


def _check_method(method: str, graph: int, launch: Launch) -> None:
    backend = launch.backend
    if method == "clock":
        if backend.on_device:
            raise UsageError(
                f"--method clock is timed by the host, and what {backend.name} enqueues by its device: take loop or "
                "barrier"
            )
        launch.world.need_mpi("--method clock")
    if graph and not backend.graphs:
        raise UsageError(f"-G launches a graph that a device captured, and {backend.name} has none here: leave it out")


def check_plan(journal: Journal, collective: Collective) -> None:
    """Raise ResultsError where the plan of a run folder is not one that this door made."""
    try:
        plan = journal.manifest["plan"]
        Effort(**plan["effort"])
        groups = {name: int(facts["nranks"]) for name, facts in plan["facts"]["groups"].items()}
        for cell in (Cell(**fields) for fields in plan["cells"]):
            share = DTYPES[cell.dtype].itemsize * collective.size_blocks(groups[cell.group])
            known = cell.status in (PLANNED, NOT_APPLICABLE, NOT_MEASURED)
            if not known or cell.count < 1 or cell.size != cell.count * share:
                raise ValueError(str(cell))
        for record in journal.records():
            record.to_dict()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ResultsError(
            f"{journal.folder} holds no plan of commbench {collective.name} ({type(error).__name__}: {error}): start "
            "another run by another --out"
        ) from None


def pick(kind: type[T], asked: Mapping[str, Any]) -> T:
    """Return a `kind` (a dataclass) made of those of the options that are its fields."""
    return kind(**{field.name: asked[field.name] for field in fields(kind)})  # type: ignore[arg-type]


def _groups(asked: Mapping[str, Any], seats: Sequence[Seat]) -> list[Group]:
    if asked["ranks"] is not None and asked["groups"] is not None:
        raise UsageError("--ranks and --groups exclude each other")
    if asked["ranks"] is not None:
        found = grouping.first_ranks(asked["ranks"], len(seats))
    elif asked["groups"] is not None:
        found = grouping.split(asked["groups"], seats)
    else:
        found = [Group(ALL, tuple(range(len(seats))))]
    if asked["concurrent"]:
        grouping.check_concurrent(found)
    return found


def _group_facts(groups: Sequence[Group], launch: Launch) -> dict[str, dict[str, Any]]:
    seats = [Seat(**seat) for seat in launch.site["seats"]]
    return {group.name: group_facts(group.ranks, seats, launch.collective.busbw(len(group.ranks))) for group in groups}


# What every door's run folder has: also that of pairs.


def facts(collective: str, backend: Backend, world: World, method: str) -> dict[str, Any]:
    """Return what all records of a run share, and who took part."""
    return {
        "collective": collective,
        "backend": backend.name,
        "library": backend.library,
        "method": method,
        "launch": 0,
        "simulated": backend.simulated,
        "size": world.size,
        "nodes": world.nodes,
    }


def group_facts(ranks: Sequence[int], seats: Sequence[Seat], busbw_factor: float) -> dict[str, Any]:
    """Return what the records of a group share."""
    return {
        "ranks": format_ranges(ranks),
        "order": list(ranks),
        "hosts": ",".join(dict.fromkeys(seats[rank].host for rank in ranks)),
        "nranks": len(ranks),
        "nnodes": len({seats[rank].node for rank in ranks}),
        "busbw_factor": busbw_factor,
    }


def session(words: Sequence[str], site: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the manifest keeps of each launch that went into a run."""
    about = {"started": manifest.now(), "arguments": list(words), "site": dict(site)}
    return {**about, "environment": manifest.environment(), "load": os.getloadavg()[0]}


def check_same(folder: Path, there: Mapping[str, Any], here: Mapping[str, Any], words: Mapping[str, str]) -> None:
    """Raise ResultsError where what `words` names is not the same in a run folder and in this launch."""
    for name, said in words.items():
        if there.get(name) != here[name]:
            raise ResultsError(
                f"{folder} was begun with {said} {there.get(name)}, this launch has {here[name]}: "
                "resume as it was begun, or start another run by another --out"
            )


def renew(
    journal: Journal,
    asked: Mapping[str, Any],
    given: frozenset[str],
    before: Mapping[str, Any],
    renewable: Sequence[str],
) -> None:
    """Ask anew for what is `renewable`; raise ResultsError where something else was given than `before`."""
    plan = journal.manifest["plan"]
    for name in sorted(given.difference(renewable)):
        if asked[name] not in (before[name], plan["facts"].get(name)):
            raise ResultsError(
                f"{journal.folder} holds another plan: {name} is {before[name]} there and {asked[name]} here; "
                "--resume needs no arguments but --out, or start another run by another --out"
            )
    plan["effort"] |= {name: asked[name] for name in given.intersection(renewable)}
