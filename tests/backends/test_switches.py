"""How the two libraries are made to run an algorithm, held against control variables that are a dictionary."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from commbench.backends import _mpich, _openmpi
from commbench.backends._mpi_t import ControlVariables
from commbench.backends.base import Algorithm
from commbench.backends.mpi import Backend
from commbench.errors import Rejected, UsageError
from tests.numpy_collectives import COLLECTIVES

MPICH_VARIABLE, DEVICE = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM", "MPIR_CVAR_DEVICE_COLLECTIVES"
THROTTLE = "MPIR_CVAR_CH4_PROGRESS_THROTTLE"
DESCRIPTION = """Variable to select allreduce algorithm
auto - Internal algorithm selection
nb   - Force nonblocking algorithm
smp  - Force smp algorithm
ring - Force ring algorithm
ccl  - Force CCL algorithm"""
OPEN_MPI_VARIABLE = "coll_tuned_allreduce_algorithm"
CHOICES = {0: "ignore", 1: "basic_linear", 3: "recursive_doubling", 4: "ring"}
AUTO, RING = Algorithm("auto", "auto"), Algorithm("ring", "ring")


class Variables(dict[str, int]):
    """Control variables; some take no value."""

    fixed: tuple[str, ...] = ()

    def read(self, name: str) -> int:
        return self[name]

    def write(self, name: str, value: int) -> None:
        if name in self.fixed:
            raise Rejected(f"{name} is fixed")
        self[name] = value

    def setting(self, name: str) -> str:
        return ControlVariables.setting(cast(ControlVariables, self), name)

    def describe(self, name: str) -> tuple[str, dict[int, str]]:
        return DESCRIPTION, CHOICES


def mpich(crowded: bool = False, **more: int) -> tuple[_mpich.Switch, Variables]:
    variables = Variables({MPICH_VARIABLE: 0, DEVICE: 2, "MPIR_CVAR_COLLECTIVE_FALLBACK": 0, THROTTLE: 0} | more)
    return _mpich.Switch(cast(ControlVariables, variables), crowded), variables


def open_mpi(**more: int) -> tuple[_openmpi.Switch, Variables]:
    standing = {OPEN_MPI_VARIABLE: 0, "coll_tuned_use_dynamic_rules": 0, "coll_tuned_priority": 30}
    variables = Variables(standing | more)
    return _openmpi.Switch(cast(ControlVariables, variables), False), variables


# MPICH


def test_mpich_lists_what_its_description_lists_but_other_libraries() -> None:
    switch, _ = mpich()
    found = [(algorithm.name, algorithm.native) for algorithm in switch.algorithms("Allreduce")]
    assert found == [("auto", "auto"), ("nonblocking", "nb"), ("smp", "smp"), ("ring", "ring")]
    assert switch.algorithms("Scan") == [AUTO]


def test_mpich_runs_with_an_algorithm_until_it_is_released() -> None:
    switch, variables = mpich()
    before = dict(variables)
    switch.force("Allreduce", RING)
    assert (variables[MPICH_VARIABLE], variables[DEVICE]) == (3, 1)  # the device's collectives are off
    switch.release("Allreduce")
    assert variables == before
    switch.force("Allreduce", AUTO)
    assert variables == before


def test_mpich_is_told_to_say_what_it_replaces() -> None:
    assert mpich()[1]["MPIR_CVAR_COLLECTIVE_FALLBACK"] == 1


def test_a_waiting_rank_gives_a_crowded_core_away_unless_the_user_set_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(THROTTLE, raising=False)
    assert (mpich()[1][THROTTLE], mpich(crowded=True)[1][THROTTLE]) == (0, 1)
    monkeypatch.setenv(THROTTLE, "0")
    assert mpich(crowded=True)[1][THROTTLE] == 0


@pytest.mark.parametrize(
    ("module", "version", "crowded", "expected"),
    [
        (_mpich, (5, 0, 2), False, {}),
        (_mpich, (5, 0, 2), True, {THROTTLE: "1", f"{THROTTLE}_NO_PROGRESS_COUNT": "16"}),
        (_openmpi, (5, 0, 7), False, {}),
        (_openmpi, (5, 0, 7), True, {"OMPI_MCA_mpi_yield_when_idle": "1"}),
        (_openmpi, (4, 1, 6), False, {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1"}),
    ],
)
def test_what_is_set_before_mpi_starts_leaves_the_users_own(
    module: Any, version: tuple[int, ...], crowded: bool, expected: dict[str, str]
) -> None:
    environment: dict[str, str] = {}
    module.before_init(environment, version, crowded)
    assert environment == expected
    users = dict.fromkeys(expected, "mine")
    module.before_init(users, version, crowded)
    assert users == dict.fromkeys(expected, "mine")


def test_what_mpich_says_against_an_algorithm_is_taken_off_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    switch, _ = mpich()

    def run() -> None:
        os.write(2, b"User set collective algorithm is not usable for the provided arguments\n")
        os.write(2, b"Allreduce ring cannot be applied.\nsomething else\n")

    assert switch.witness(run) == "the library says: Allreduce ring cannot be applied"
    assert capfd.readouterr().err == "something else\n"
    assert switch.witness(lambda: None) == ""
    assert capfd.readouterr().err == ""


def test_standard_error_is_put_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        raise ValueError("it broke")

    with pytest.raises(ValueError, match="it broke"):
        mpich()[0].witness(run)
    os.write(2, b"back\n")
    assert capfd.readouterr().err == "back\n"


# Open MPI


class Comm:
    """A communicator that remembers the variables as it was made."""

    def __init__(self, variables: Variables) -> None:
        self._variables, self.made_with, self.freed = variables, dict(variables), False

    def Dup(self) -> Comm:
        return Comm(self._variables)

    def Free(self) -> None:
        self.freed = True


def test_open_mpi_lists_its_values_and_its_own_choice_first() -> None:
    found = [(algorithm.name, algorithm.native) for algorithm in open_mpi()[0].algorithms("Allreduce")]
    assert found == [
        *(("auto", "ignore"), ("linear", "basic_linear"), ("recursive_doubling", "recursive_doubling")),
        ("ring", "ring"),
    ]
    assert open_mpi()[0].algorithms("Scan") == [Algorithm("auto", "ignore")]


def test_open_mpi_has_a_communicator_for_an_algorithm_and_its_variables_back() -> None:
    switch, variables = open_mpi()
    before, base = dict(variables), Comm(variables)
    ring = switch.select("Allreduce", RING, base)
    assert ring is not base
    made = ring.made_with
    assert (made[OPEN_MPI_VARIABLE], made["coll_tuned_use_dynamic_rules"], made["coll_tuned_priority"]) == (4, 1, 99)
    assert variables == before
    assert switch.select("Allreduce", Algorithm("auto", "ignore"), base) is base
    assert (ring.freed, base.freed) == (True, False)


def test_open_mpi_that_lets_no_one_raise_the_priority_is_left_with_it() -> None:
    variables = Variables({OPEN_MPI_VARIABLE: 0, "coll_tuned_use_dynamic_rules": 1, "coll_tuned_priority": 30})
    variables.fixed = ("coll_tuned_priority", "coll_tuned_use_dynamic_rules")
    switch = _openmpi.Switch(cast(ControlVariables, variables), False)
    assert switch.select("Allreduce", RING, Comm(variables)).made_with[OPEN_MPI_VARIABLE] == 4
    assert variables[OPEN_MPI_VARIABLE] == 0


def test_a_value_that_open_mpi_does_not_take_leaves_the_variables_as_they_were() -> None:
    switch, variables = open_mpi()
    variables.fixed = (OPEN_MPI_VARIABLE,)
    before = dict(variables)
    with pytest.raises(Rejected):
        switch.select("Allreduce", RING, Comm(variables))
    assert variables == before


# What the user chose already


@pytest.mark.parametrize(("make", "name"), [(mpich, MPICH_VARIABLE), (open_mpi, OPEN_MPI_VARIABLE)])
def test_a_sweep_is_refused_where_the_environment_has_chosen_the_algorithm(make: Any, name: str) -> None:
    backend = Backend()
    backend._switch = make()[0]
    assert backend.algorithms(COLLECTIVES["allreduce"])[0].name == "auto"
    backend._switch = make(**{name: 4})[0]
    with pytest.raises(UsageError, match=rf"^the sweep chooses the algorithm, but {name}=4 is set, .*: unset it, and"):
        backend.algorithms(COLLECTIVES["allreduce"])
    assert backend.algorithms(COLLECTIVES["gather"])  # another function's is its own
