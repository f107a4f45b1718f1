"""What a launch keeps of itself and says at its end, and what it leaves open where one rank fails alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from commbench.backends.base import Reach, Settings
from commbench.errors import UsageError
from commbench.measure import folder, lead, pairs, run
from commbench.measure.watchdog import SETUP
from tests.fakes import effort
from tests.numpy_collectives import COLLECTIVES
from tests.runs import record

SITE: dict[str, Any] = {
    "seats": [{"host": "a", "node": 0, "on_node": place, "leaf": ""} for place in (0, 1)],
    **{"cpus": ["0", "1"], "cores": 2, "crowded": False, "allowance": 1 << 30},
}


def test_each_session_keeps_where_with_what_and_how_busy_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    session = json.loads(json.dumps(folder.session(["-b", "8"], SITE)))
    assert session.keys() == {"started", "arguments", "site", "environment", "load"}
    assert (session["arguments"], session["site"]) == (["-b", "8"], SITE)
    assert session["environment"]["NCCL_ALGO"] == "Ring"
    assert session["load"] >= 0


class Closing:
    """A library that says when it is closed, which all ranks must do together."""

    def __init__(self) -> None:
        self.closed = 0

    def open(self, *anything: Any) -> None:
        """Nothing to open."""

    def allowance(self) -> None:
        """Memory is the host's."""

    def close(self) -> None:
        self.closed += 1


class Pair:
    rank, size = 1, 2

    def first_text(self, text: str) -> str:
        return text


def test_what_a_group_alone_knows_ends_all_ranks_after_every_group_had_its_turn() -> None:
    class Launch(Pair):
        """Two ranks, of which the other one has trouble."""

        def first_text(self, text: str) -> str:
            return text or "said by rank 0"

    taken: list[int] = []

    def step(number: int) -> None:
        taken.append(number)
        if number == 1:
            raise UsageError("its own")

    world = cast(Any, Launch())
    with pytest.raises(UsageError, match="its own"):
        run._together(world, [partial(step, number) for number in (0, 1, 2)])
    assert taken == [0, 1, 2]
    with pytest.raises(UsageError, match="said by rank 0"):
        run._together(world, [])


@pytest.mark.parametrize(("algorithms", "forced"), [(["auto"], False), ([], True), (["ring"], True)])
def test_a_resumed_run_is_opened_as_its_own_plan_has_it(tmp_path: Path, algorithms: list[str], forced: bool) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"plan": {"asked": {"algorithms": algorithms}}}))
    world = cast(Any, SimpleNamespace(rank=0, command=lambda numbers: numbers))
    options = cast(Any, SimpleNamespace(resume=True, out=str(tmp_path), settings=Settings(forced=not forced)))
    assert run._settings(world, options) == Settings(forced=forced)
    (tmp_path / "manifest.json").write_text("{")
    assert run._settings(world, options) == Settings(forced=not forced)  # what is wrong with it, is said later


def run_a_sweep(options: Any) -> int:
    return run.run(cast(Any, Pair()), cast(Any, None), COLLECTIVES["allreduce"], options, [])


def run_pairs(options: Any) -> int:
    return pairs.run(cast(Any, Pair()), cast(Any, None), options, [], lambda folder: "")


@pytest.mark.parametrize(("error", "closed"), [(UsageError("told to all"), 1), (MemoryError("here alone"), 0)])
@pytest.mark.parametrize(("module", "work"), [(run, run_a_sweep), (pairs, run_pairs)])
def test_libraries_are_closed_together_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, module: Any, work: Callable[[Any], int], error: Exception, closed: int
) -> None:
    library = Closing()

    def fail(*anything: Any) -> Any:
        raise error

    monkeypatch.setattr(module, "find", lambda name: lambda: library, raising=False)
    monkeypatch.setattr(module, "_open", lambda *anything: library, raising=False)
    monkeypatch.setattr(module, "site", lambda *anything: {})
    monkeypatch.setattr(module, "on_rank_0", fail)
    with pytest.raises(type(error)):
        work(SimpleNamespace(backend="mpi", settings=None, out=None, resume=False))
    assert library.closed == closed


def test_taking_memory_and_compiling_have_their_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = []

    class Told:
        def tell(self, guide: Any) -> None:
            """Nobody asks."""

        begin = staticmethod(events.append)

    def sweep(*anything: Any) -> Any:
        events.append("sweep")
        raise UsageError("far enough")

    plan = {"cells": [], "effort": asdict(effort()), "groups": {}, "folder": ".", "session": 0, "crowded": False}
    monkeypatch.setattr(run, "_open", lambda *anything: Closing())
    monkeypatch.setattr(run, "site", lambda *anything: {})
    monkeypatch.setattr(run, "on_rank_0", lambda world, work: plan)
    monkeypatch.setattr(run, "Sweep", sweep)
    options = cast(Any, SimpleNamespace(backend="mpi", settings=None, resume=False))
    with pytest.raises(UsageError, match="far enough"):
        run.run(cast(Any, Pair()), cast(Any, Told()), COLLECTIVES["allreduce"], options, [])
    assert events == [SETUP, "sweep"]


def test_drifting_cells_are_held_against_what_scatter_gives(capsys: pytest.CaptureFixture[str]) -> None:
    records = [record(rounds=6, drift=0.25), *[record(rounds=6)] * 18, record(rounds=5)]
    lead._say_last(records, cast(Any, SimpleNamespace(folder="run")), cast(Any, SimpleNamespace(format="table")))
    (said,) = [line for line in capsys.readouterr().out.splitlines() if "drifted" in line]
    assert (
        said == "# 1 cell drifted from the first rounds to the last (scatter alone gives up to 1.9): auto 1024 B +25%"
    )


@pytest.mark.parametrize(
    ("pandas", "said"), [(object(), ""), (None, ", which needs pandas: pip install 'commbench[report]'")]
)
def test_the_end_says_how_to_read_and_what_that_lacks(
    pandas: object, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lead, "find_spec", {"pandas": pandas}.__getitem__)
    lead._say_last([], cast(Any, SimpleNamespace(folder="run")), cast(Any, SimpleNamespace(format="table")))
    assert capsys.readouterr().out.splitlines()[-1] == f"# read with commbench.load('run'){said}"


class Gathered:
    """A world whose ranks said this; what rank 0 decides is what all get."""

    node = 0

    def __init__(self, seats: list[Any] | None, told: Any = None) -> None:
        self.seats, self.told = seats, told

    def largest(self, *values: int) -> tuple[int, ...]:
        self.asked = values
        return values if self.seats is None else (max(len(seat[2]) for seat in self.seats),)

    def gather(self, value: Any) -> list[Any] | None:
        self.said = value
        return self.seats

    def broadcast(self, value: Any) -> Any:
        return json.loads(json.dumps(value)) if self.seats is not None else self.told


def choose(name: str, world: Gathered) -> tuple[str, str]:
    return run._choose(name, cast(Any, world))


def test_the_default_is_chosen_by_what_all_ranks_reach_and_is_alike_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "reachable", lambda: Reach("NVIDIA", ["nvidia0"]))
    seats = [[0, "NVIDIA", ["nvidia0"]], [1, "NVIDIA", ["nvidia0"]]]
    first = Gathered(seats)
    assert choose("auto", first)[0] == "nccl"
    assert first.said == (0, "NVIDIA", ["nvidia0"])
    assert choose("auto", Gathered([*seats, [1, "NVIDIA", ["nvidia0"]]]))[0] == "mpi"
    assert choose("auto", Gathered(None, ["mpi", "because"])) == ("mpi", "because")


def test_where_no_rank_reaches_a_device_each_knows_the_default_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "reachable", lambda: Reach("", ()))
    world = Gathered([[0, "", []], [1, "", []]])
    assert choose("auto", world)[0] == "mpi"
    assert world.asked == (False,) and not hasattr(world, "said")  # nothing was gathered


def test_a_backend_that_is_named_is_taken_unasked() -> None:
    assert choose("gloo", cast(Any, None)) == ("gloo", "as asked")
