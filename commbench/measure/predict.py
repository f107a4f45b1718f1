"""A sweep that is predicted: `--backend model --topology FILE`. The cells, records and formats of one that is measured.

One process, no MPI: every cell is a schedule's cost on the cluster, and its record is stamped `simulated`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from commbench import __version__
from commbench.backends import base
from commbench.backends.base import AUTO
from commbench.backends.model import EVIDENCE, Backend
from commbench.backends.world import World
from commbench.errors import EXIT_OK, UsageError
from commbench.measure import folder, screen
from commbench.measure.cell import ALL, PLANNED, Cell, Group
from commbench.measure.collective import Collective
from commbench.measure.groups import first_ranks
from commbench.measure.options import Options
from commbench.measure.plan import Request, build
from commbench.measure.site import Seat
from commbench.model import library as libraries
from commbench.model.cost import Cost
from commbench.results import manifest
from commbench.results.journal import Journal, new_folder
from commbench.results.launch import launch_number
from commbench.results.record import FORMAT, Record
from commbench.results.status import OK
from commbench.units import approximate_size, format_size

if TYPE_CHECKING:
    from commbench.model.fit import Fit

_FINE = 1024  # steps between two sizes in which a change of the best schedule is looked for
_PARTS = 3  # of a time that are named
_LEAST_PART = 0.05


def predict(world: World, collective: Collective, options: Options, words: Sequence[str]) -> int:
    """Predict what was asked for, print it, keep it in a run folder, and return the exit code."""
    if world.size > 1:
        raise UsageError(
            f"the model predicts any number of ranks in one process, and {world.size} were launched: leave mpirun out, "
            f"and say --ranks {world.size}"
        )
    try:
        backend, fit, notes = _backend(options)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--backend model needs {error.name}, which is not installed: pip install 'commbench[topology]'"
        ) from None
    most = _most(options, backend)
    backend.placement(most)  # refused before anything is made for each rank
    groups = first_ranks(options.plan["ranks"] or "N", most)
    cells: list[Cell] = []
    for group in groups:
        found, about = build(folder.pick(Request, options.plan), collective, cast(base.Backend, backend), group, None)
        cells += found
        notes += about if group.name == ALL else [f"{group.name}: {note}" for note in about]
    if instant := backend.instant():
        notes.append(
            f"nobody said the latency of {', '.join(instant)}: it counts as none, and small sizes come out too fast"
        )
    journal = _begin(collective, backend, groups, cells, notes, fit, options, words)
    try:
        _fill(journal, collective, backend, groups, cells, fit)
        journal.write_records()
        _print(journal, collective, backend, groups, fit, options)
    finally:
        journal.close()
    return EXIT_OK


def _backend(options: Options) -> tuple[Backend, Fit | None, list[str]]:
    """Return the model of the library on the cluster, fitted where results were given, and what to tell of it."""
    from commbench.topology.reading import read
    from commbench.topology.shipped import find

    cluster = read(find(options.topology or "")).cluster
    if not cluster.devices:
        raise UsageError(
            f"--topology {options.topology} describes no devices: a prediction needs nodes whose class says theirs"
        )
    chosen = libraries.of_vendors({device.vendor for one in cluster.classes for device in one.devices})
    if options.settings.library:
        chosen = libraries.find(options.settings.library)
    fit, notes = None, []
    if options.results is not None:
        from commbench.model import fit as fits

        fit = fits.fit(fits.records_of(options.results), cluster)
        cluster, notes = fits.apply(cluster, fit), list(fit.lines())
    return Backend(cluster, chosen, options.per_node), fit, notes


def _most(options: Options, backend: Backend) -> int:
    """Return how many ranks the largest group has: the largest number in --ranks, or all devices of the cluster."""
    numbers = [part.strip() for part in (options.plan["ranks"] or "N").split(",")]
    if "N" in map(str.upper, numbers):
        cluster = backend.cluster
        if options.per_node is None:
            return cluster.devices
        having = [block for block in cluster.blocks if block.node_class and cluster.by_class[block.node_class].devices]
        return sum(len(block.nodes) for block in having) * options.per_node
    return max((int(number) for number in numbers if number.isdecimal()), default=1)


def _begin(
    collective: Collective,
    backend: Backend,
    groups: Sequence[Group],
    cells: Sequence[Cell],
    notes: Sequence[str],
    fit: Fit | None,
    options: Options,
    words: Sequence[str],
) -> Journal:
    """Open the run folder with a manifest like that of a measured run; of this machine there is nothing in it."""
    seats = _seats(backend, max(len(group.ranks) for group in groups))
    shared: dict[str, Any] = {"collective": collective.name, "backend": backend.name, "library": backend.library}
    shared |= {"method": backend.method, "launch": launch_number(options.out), "simulated": backend.simulated}
    shared |= {"size": len(seats), "nodes": seats[-1].node + 1}
    about = {group.name: folder.group_facts(group.ranks, seats, collective.busbw(len(group.ranks))) for group in groups}
    contents = {
        "version": FORMAT,
        "plan": {
            "facts": {**shared, "groups": about},
            "asked": options.plan,
            "effort": {},
            "notes": list(dict.fromkeys(notes)),
            "cells": [cell.to_dict() for cell in cells],
        },
        "library": {"topology": options.topology, "habits": backend.habits.name, "fit": fit and fit.to_dict()},
        "machine": {"commbench": __version__},
        "sessions": [{"started": manifest.now(), "arguments": list(words), "site": {}, "environment": {}}],
    }
    place = Path(options.out) if options.out else new_folder(f"results/{manifest.now()}-{collective.name}-model")
    return Journal.create(place, contents)


def _seats(backend: Backend, n: int) -> list[Seat]:
    """Return where ranks sit, as a launch would tell it."""
    import numpy as np

    placement = backend.placement(n)
    hosts = placement.cluster.arrays.nodes
    begin = np.searchsorted(placement.node, placement.node)  # nodes are filled one after another
    places = (np.arange(n) - begin).tolist()
    return [Seat(hosts[node], node, place, "") for node, place in zip(placement.node.tolist(), places, strict=True)]


def _fill(
    journal: Journal,
    collective: Collective,
    backend: Backend,
    groups: Sequence[Group],
    cells: Sequence[Cell],
    fit: Fit | None,
) -> None:
    """Write a visit of each cell that has a schedule."""
    ranks = {group.name: len(group.ranks) for group in groups}
    likes: dict[tuple[str, str], list[int]] = {}
    for index, cell in enumerate(cells):
        if cell.status == PLANNED:
            likes.setdefault((cell.group, cell.algorithm), []).append(index)
    for (group, algorithm), some in likes.items():
        n = ranks[group]
        seconds, chosen = backend.predict(collective.name, algorithm, n, [cells[index].size for index in some])
        for index, taken, ran in zip(some, seconds.tolist(), chosen, strict=True):
            visit = {"cell": index, "round": 0, "session": 0, "status": OK, "predicted_us": round(taken * 1e6, 4)}
            beyond = ""
            if fit and isinstance(cost := backend.cost(collective.name, ran, n), Cost):
                beyond = fit.beyond(collective.name, ran, n, cells[index].size, cost.loaded)
            evidence = f"{EVIDENCE}, extrapolated: {beyond}" if beyond else EVIDENCE
            journal.append({**visit, "observed_algorithm": ran, "evidence": evidence})


def _print(
    journal: Journal,
    collective: Collective,
    backend: Backend,
    groups: Sequence[Group],
    fit: Fit | None,
    options: Options,
) -> None:
    records, aside = journal.records(), _aside(options)
    size, nodes = (journal.manifest["plan"]["facts"][name] for name in ("size", "nodes"))
    lines = [
        f"PREDICTED: nothing was measured; commbench {__version__}, backend model; {backend.library}",
        f"{collective.title} on {size} rank{'s' * (size > 1)}, {nodes} node{'s' * (nodes > 1)}; method model",
        *journal.manifest["plan"]["notes"],
        f"results in {journal.folder}",
    ]
    _say(lines, aside)
    if options.format == "json":
        print("".join(f"{screen.json_line(record)}\n" for record in records), end="", flush=True)
    elif options.format == "csv":
        screen.print_csv(records, sys.stdout)
    elif options.format == "nccl-tests":
        screen.print_nccl_tests(records, sys.stdout)
    else:
        screen.print_rows(records, sys.stdout)
    if options.format != "json":
        screen.print_rest(records, aside)
    for group in groups:
        _say(_about(collective, backend, group, records, several=len(groups) > 1), aside)
    extrapolated = [record for record in records if "extrapolated" in record.evidence]
    if extrapolated:
        reasons = dict.fromkeys(record.evidence.partition("extrapolated: ")[2] for record in extrapolated)
        more = "; ..." if len(reasons) > 3 else ""
        _say([f"{len(extrapolated)} cells are extrapolated: {'; '.join(list(reasons)[:3])}{more}"], aside)


def _about(
    collective: Collective, backend: Backend, group: Group, records: Sequence[Record], several: bool
) -> Iterator[str]:
    """Yield where the best schedule of a group changes, and what its time is made of at both ends."""
    n = len(group.ranks)
    sizes = sorted({r.size for r in records if r.group == group.name and r.algorithm == AUTO and r.status == OK})
    if not sizes:
        return
    place = f"{n} ranks: " if several else ""
    _, best = backend.predict(collective.name, AUTO, n, sizes)
    changes = [(a, b) for a, b in pairwise(range(len(sizes))) if best[a] != best[b]]
    text = best[0]
    for a, b in changes:
        crossing = _crossing(collective, backend, n, (best[a], sizes[a]), (best[b], sizes[b]))
        text += f" -> {best[b]} at {approximate_size(crossing)}"
    yield f"{place}best of {backend.habits.name}'s: {text}"
    for size, algorithm in {sizes[0]: best[0], sizes[-1]: best[-1]}.items():
        found = backend.cost(collective.name, algorithm, n)
        assert isinstance(found, Cost)
        parts = found.limits(size)
        whole = sum(seconds for _, seconds in parts)
        named = [f"{name} {seconds / whole:.0%}" for name, seconds in parts[:_PARTS] if seconds >= _LEAST_PART * whole]
        yield f"{place}{algorithm} at {format_size(size)} is made of {', '.join(named)}"


def _crossing(
    collective: Collective, backend: Backend, n: int, below: tuple[str, int], above: tuple[str, int]
) -> float:
    """Return the size from which on another schedule is the fastest, between two sizes with the fastest at each."""
    import numpy as np

    sizes = np.geomspace(below[1], above[1], _FINE + 1).round().astype(np.int64)
    before, after = (backend.predict(collective.name, name, n, sizes.tolist())[0] for name in (below[0], above[0]))
    return float(sizes[int(np.argmax(after < before))])


def _aside(options: Options) -> TextIO:
    """Return where comments go: standard output takes them only where its format has comments."""
    return sys.stdout if options.format in ("table", "nccl-tests") else sys.stderr


def _say(lines: Iterator[str] | Sequence[str], out: TextIO) -> None:
    print("".join(f"# {line}\n" for line in lines), file=out, end="", flush=True)
