"""One launch: the backend opened, the plan made or taken up again, the sweep, and what is printed of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from commbench.backends.base import AUTO, MODEL, Backend, Reach, Settings, default, find, reachable
from commbench.backends.world import World
from commbench.errors import UsageError
from commbench.measure.cell import Cell, Group, batches
from commbench.measure.collective import Collective
from commbench.measure.door import on_rank_0
from commbench.measure.effort import Effort
from commbench.measure.options import Options
from commbench.measure.site import site
from commbench.measure.sweep import Sweep, Team
from commbench.measure.watchdog import RESTING, SETUP, Watchdog
from commbench.results.status import TIMEOUT


def run(world: World, watchdog: Watchdog, collective: Collective, options: Options, words: Sequence[str]) -> int:
    """Carry out one launch on every rank and return the exit code, the same on all."""
    if options.backend == MODEL:
        from commbench.measure.predict import predict

        return predict(world, collective, options, words)
    name, why = _choose(options.backend, world)
    settings = _settings(world, options)
    backend = _open(name, world, settings)
    teams: dict[str, Team] = {}
    lead = None
    if world.rank == 0:
        from commbench.measure.lead import Lead  # what only rank 0 needs, it alone loads

        lead = Lead(world, backend, collective, options, words)
    try:
        place = site(world, backend.allowance())
        plan = on_rank_0(world, lambda: lead.prepare(place) if lead else {})
        cells, effort = [Cell(**cell) for cell in plan["cells"]], Effort(**plan["effort"])
        groups = [Group(name, tuple(ranks)) for name, ranks in plan["groups"].items()]
        together = batches(cells, effort.concurrent)
        watchdog.tell(Guide(collective, cells, groups, teams, plan["folder"], plan["session"]))
        _join(teams, world, backend, settings, groups)
        if lead is not None:
            lead.say_first(f"{name}: {why}")
        watchdog.begin(SETUP)  # anew: taking memory, connecting and compiling have their own time
        _together(world, [team.backend.connect for team in teams.values()])
        crowded = plan["crowded"]
        sweep = Sweep(world, backend, teams, groups, collective, cells, together, effort, crowded, watchdog.begin)
        code = 0
        if lead is None:
            sweep.follow()
        else:
            code = lead.sweep(sweep, cells, together, effort)
        watchdog.begin(RESTING)  # whoever reads what is printed may take their time
        if lead is not None:
            code = max(code, lead.print_results())
        (code,) = world.command((code,))
        watchdog.begin(SETUP)
        sweep.close()
    except UsageError:  # on all ranks; after any other error this rank is alone, and closing together would wait
        _close(teams, backend)
        raise
    finally:
        if lead is not None:
            lead.close()
    _close(teams, backend)
    return code


def _settings(world: World, options: Options) -> Settings:
    """Return what the library is opened with: on --resume, algorithms are forced if the run's own plan has some."""
    if not options.resume:
        return options.settings
    forced = options.settings.forced
    if world.rank == 0:
        from commbench.measure.folder import forced_before

        forced = forced_before(options.out or "", forced)
    return replace(options.settings, forced=bool(world.command((forced,))[0]))


def _close(teams: Mapping[str, Team], backend: Backend) -> None:
    """Close the libraries, on every rank together."""
    for team in teams.values():
        if team.backend is not backend:
            team.backend.close()
            team.world.close()
    backend.close()


def _choose(name: str, world: World) -> tuple[str, str]:
    """Return the backend that `name` stands for, alike on all ranks, and why, as rank 0 knows it."""
    if name != AUTO:
        return name, "as asked"
    reach = reachable()
    if not world.largest(bool(reach.devices))[0]:  # a gather would cost rank 0 of many ranks seconds and memory
        return default([(world.node, reach)])
    seats = world.gather((world.node, *reach))
    choice = default([(node, Reach(vendor, devices)) for node, vendor, devices in seats]) if seats else ("", "")
    chosen, why = world.broadcast(choice)
    return chosen, why


def _join(teams: dict[str, Team], world: World, backend: Backend, settings: Settings, groups: Sequence[Group]) -> None:
    """Add the teams of this rank, by the name of their group: each has the library open among its ranks."""

    def join(group: Group) -> None:
        if group.ranks == tuple(range(world.size)):
            teams[group.name] = Team(world, backend)
            return
        own = world.subgroup(group.ranks)
        if own is not None:
            teams[group.name] = Team(own, backend.join(own, settings))

    _together(world, [partial(join, group) for group in groups])


def _together(world: World, steps: Iterable[Callable[[], None]]) -> None:
    """Take every step; raise UsageError on all ranks of the launch where one failed, as a group's ranks know alone."""
    trouble = ""
    for step in steps:
        try:
            step()
        except UsageError as error:
            trouble = trouble or str(error)
    if trouble := world.first_text(trouble):
        raise UsageError(trouble)


class Guide:
    """Names cells for the watchdog; a timeout goes into the run folder from whichever rank is left."""

    def __init__(
        self,
        collective: Collective,
        cells: Sequence[Cell],
        groups: Sequence[Group],
        teams: Mapping[str, Team],
        folder: str,
        session: int,
    ) -> None:
        self._collective, self._cells, self._folder, self._session = collective, cells, folder, session
        self._teams = teams
        self._members = {group.name: group.ranks for group in groups}

    def describe(self, cell: int) -> str:
        return f"at {self._collective.name} {self._cells[cell]}"

    def concerned(self, cell: int) -> Sequence[int]:
        return self._members[self._cells[cell].group]

    def give_up(self) -> None:
        for team in list(self._teams.values()):
            team.backend.give_up()

    def record(self, cell: int, number: int, reason: str) -> None:
        from pathlib import Path

        from commbench.results.journal import append_beside

        visit = {"cell": cell, "round": number, "session": self._session, "status": TIMEOUT, "reason": reason}
        append_beside(Path(self._folder), visit)


def _open(name: str, world: World, settings: Settings) -> Backend:
    """Return the backend called `name`, open; raise UsageError on every rank where one lacks it."""
    trouble = ""
    try:
        kind = find(name)
        available = kind.probe()
        trouble = "" if available.ok else f"backend {name} cannot run here: {available.reason}"
    except UsageError as error:
        trouble = str(error)
    if trouble := world.first_text(trouble):
        raise UsageError(trouble)
    backend = kind()
    backend.open(world, settings)
    return backend
