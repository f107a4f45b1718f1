"""The run folder at the start of a launch: a new plan, or an earlier one taken up again. Only rank 0 comes here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from commbench.backends.base import Backend
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
_SAME = {
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
    rounds = asked["rounds"] or (FEW_ROUNDS if launch.site["crowded"] else ROUNDS)
    groups = _groups(asked, [Seat(**seat) for seat in launch.site["seats"]])
    machine, session = manifest.machine(), _session(launch)
    notes = dict.fromkeys(regime.findings(launch.site, machine, session["load"]))
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
            "facts": _facts(launch, method) | {"groups": _group_facts(groups, launch), "launch": launch_number(out)},
            "asked": asked,
            "effort": asdict(pick(Effort, {**asked, "method": method, "rounds": rounds})),
            "notes": list(notes),
            "cells": [cell.to_dict() for cell in cells],
        },
        "library": backend.facts(),
        "machine": machine,
        "sessions": [session],
    }
    return Journal.create(Path(out) if out else new_folder(f"results/{manifest.now()}-{collective.name}"), contents)


def take_up(launch: Launch, out: str | None) -> Journal:
    """Open the folder of an earlier run; its plan stands, and this launch must be able to go on with it."""
    journal = Journal.reopen(Path(out or ""))
    check_plan(journal, launch.collective)
    launch.backend.algorithms(launch.collective)  # refuses settings that choose the algorithm already
    plan = journal.manifest["plan"]
    ours = _facts(launch, plan["facts"]["method"])
    for name, words in _SAME.items():
        if plan["facts"][name] != ours[name]:
            raise ResultsError(
                f"{journal.folder} was begun with {words} {plan['facts'][name]}, this launch has {ours[name]}: "
                "resume as it was begun, or start another run by another --out"
            )
    for name, kept in plan["facts"]["groups"].items():
        here = _group_facts([Group(name, tuple(kept["order"]))], launch)[name]
        if name != ALL and here["hosts"] != kept["hosts"]:
            raise ResultsError(
                f"in {journal.folder}, group {name} was on {kept['hosts']}, in this launch its ranks are on "
                f"{here['hosts']}: place the ranks as they were, or start another run by another --out"
            )
    for name in sorted(launch.given.difference(_RENEWABLE)):
        if launch.asked[name] not in (plan["asked"][name], plan["facts"].get(name)):
            raise ResultsError(
                f"{journal.folder} holds another plan: {name} is {plan['asked'][name]} there and {launch.asked[name]} "
                "here; --resume needs no arguments but --out, or start another run by another --out"
            )
    plan["effort"] |= {name: launch.asked[name] for name in launch.given.intersection(_RENEWABLE)}
    journal.begin_session(_session(launch))
    return journal


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


def _facts(launch: Launch, method: str) -> dict[str, Any]:
    """Return what all records of the run share, and who took part."""
    return {
        "collective": launch.collective.name,
        "backend": launch.backend.name,
        "library": launch.backend.library,
        "method": method,
        "launch": 0,
        "simulated": launch.backend.simulated,
        "size": launch.world.size,
        "nodes": launch.world.nodes,
    }


def _group_facts(groups: Sequence[Group], launch: Launch) -> dict[str, dict[str, Any]]:
    """Return what the records of each group share."""
    seats = [Seat(**seat) for seat in launch.site["seats"]]
    return {
        group.name: {
            "ranks": format_ranges(group.ranks),
            "order": list(group.ranks),
            "hosts": ",".join(dict.fromkeys(seats[rank].host for rank in group.ranks)),
            "nranks": len(group.ranks),
            "nnodes": len({seats[rank].node for rank in group.ranks}),
            "busbw_factor": launch.collective.busbw(len(group.ranks)),
        }
        for group in groups
    }


def _session(launch: Launch) -> dict[str, Any]:
    """Return what the manifest keeps of each launch that went into the run."""
    about = {"started": manifest.now(), "arguments": list(launch.words), "site": launch.site}
    return {**about, "environment": manifest.environment(), "load": os.getloadavg()[0]}
