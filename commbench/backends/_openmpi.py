"""How Open MPI (4.1 and later) is made to run a chosen algorithm: control variables, latched by a new communicator.

Component coll/tuned reads them when a communicator is created. Others (coll/han across nodes, UCC, hcoll) would come
before it, so its priority is raised for the creation too. All variables are put back afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from commbench.backends._algorithms import canonical
from commbench.backends._mpi_t import ControlVariables
from commbench.backends.base import AUTO, Algorithm
from commbench.errors import Rejected

_DYNAMIC, _PRIORITY = "coll_tuned_use_dynamic_rules", "coll_tuned_priority"
_YIELD = "mpi_yield_when_idle"
_HIGHEST = 99  # above UCC (10), han (35), hcoll (90); values are clipped at 100, and portals4 has that


def before_init(environment: MutableMapping[str, str], version: tuple[int, ...], crowded: bool) -> None:
    """Set what the tool interface cannot set later, unless the user did.

    4.1 fixes the dynamic rules at the start; with nothing forced, they change nothing. Where ranks outnumber cores, a
    rank that waits gives its core away; mpirun says so itself only where it was told of the oversubscription.
    """
    if version < (5, 0, 0):
        environment.setdefault(f"OMPI_MCA_{_DYNAMIC}", "1")
    if crowded:
        environment.setdefault(f"OMPI_MCA_{_YIELD}", "1")


class Switch:
    """Chooses Open MPI's algorithms by making a communicator for each; one forced communicator lives at a time."""

    evidence = "control variable read back"

    def __init__(self, variables: ControlVariables, crowded: bool) -> None:
        self._variables = variables
        self._forced: Any = None
        self._fixed_priority = not self._writable(_PRIORITY)

    def _writable(self, variable: str) -> bool:
        try:
            self._variables.write(variable, self._variables.read(variable))
        except Rejected:
            return False
        return True

    def algorithms(self, function: str) -> list[Algorithm]:
        """Return what this library lists for the MPI function; value 0 is `ignore`: its own choice."""
        name = _variable(function)
        if name not in self._variables:
            return [Algorithm(AUTO, "ignore")]
        _, choices = self._variables.describe(name)
        return [
            Algorithm(AUTO if value == 0 else canonical(native), native) for value, native in sorted(choices.items())
        ]

    def chosen_already(self, function: str) -> str:
        """Return the control variable by which the user has chosen an algorithm for `function`, empty if none."""
        return self._variables.setting(_variable(function))

    def select(self, function: str, algorithm: Algorithm, comm: Any) -> Any:
        """Return a communicator whose `function` runs with `algorithm`."""
        self.close()
        if algorithm.name == AUTO:
            return comm
        name = _variable(function)
        _, choices = self._variables.describe(name)
        value = next(value for value, native in choices.items() if native == algorithm.native)
        wanted = {_DYNAMIC: 1, _PRIORITY: _HIGHEST, name: value}
        before = {variable: self._variables.read(variable) for variable in wanted}
        try:
            for variable, setting in wanted.items():
                self._set(variable, setting)
            self._forced = comm.Dup()
        finally:
            for variable, setting in before.items():
                self._set(variable, setting)
        return self._forced

    def force(self, function: str, algorithm: Algorithm) -> None:
        """Do nothing: the communicator has its algorithm."""

    def release(self, function: str) -> None:
        """Do nothing: other communicators never had it."""

    def _set(self, variable: str, value: int) -> None:
        """Write a variable unless it has the value. Open MPI 4.1 lets no one write the first two: see `before_init`."""
        if self._variables.read(variable) != value and not (variable == _PRIORITY and self._fixed_priority):
            self._variables.write(variable, value)

    def witness(self, run: Callable[[], Any]) -> str:
        """Run once; this library never says that it ran something else (see `_openmpi_rules` for when it does)."""
        run()
        return ""

    def facts(self) -> dict[str, Any]:
        return {name: self._variables.read(name) for name in (_DYNAMIC, _PRIORITY, _YIELD) if name in self._variables}

    def close(self) -> None:
        if self._forced is not None:
            self._forced.Free()
            self._forced = None


def _variable(function: str) -> str:
    return f"coll_tuned_{function.lower()}_algorithm"
