"""How MPICH (4.1 and later) is made to run a chosen algorithm: a control variable, read at each call.

An algorithm that does not apply to a call is replaced by another. With MPIR_CVAR_COLLECTIVE_FALLBACK=print the library
says so on stderr of one rank; `error` is no way, since it was seen to deadlock (all-reduce `smp`, MPICH 5.0.2).
Sources: the variables' own descriptions, and src/mpi/coll in MPICH.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

from commbench.backends._algorithms import canonical
from commbench.backends._mpi_t import ControlVariables
from commbench.backends.base import AUTO, Algorithm

_CHOICE = re.compile(r"^\s*(\w+)\s+-\s", re.MULTILINE)
_FALLBACK, _PRINT = "MPIR_CVAR_COLLECTIVE_FALLBACK", 1
_DEVICE, _NONE = "MPIR_CVAR_DEVICE_COLLECTIVES", 1
_REFUSED = re.compile(r"^(.*cannot be applied)\.?.*\n?", re.MULTILINE)
_PREAMBLE = "User set collective algorithm is not usable for the provided arguments\n"
# ccl hands over to NCCL or RCCL and returned success where neither was there: not an algorithm of MPICH's own.
_LEFT_OUT = ("ccl",)


_THROTTLE = {"MPIR_CVAR_CH4_PROGRESS_THROTTLE": 1, "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": 16}


def before_init(environment: MutableMapping[str, str], version: tuple[int, ...], crowded: bool) -> None:
    """Where ranks outnumber cores, let a rank that waits give its core away, unless the user set that.

    Without it a 1 KiB all-reduce of 256 ranks on two cores was seen to take 2.7 s, with it 0.05 to 0.1 s.
    """
    for name, value in _THROTTLE.items() if crowded else ():
        environment.setdefault(name, str(value))


class Switch:
    """Chooses MPICH's algorithms on one communicator."""

    evidence = "control variable read back, no fallback reported"

    def __init__(self, variables: ControlVariables, crowded: bool) -> None:
        self._variables = variables
        self._device = variables.read(_DEVICE) if _DEVICE in variables else None
        if _FALLBACK in variables:
            variables.write(_FALLBACK, _PRINT)
        for name, value in _THROTTLE.items() if crowded else ():  # for launchers that do not say how many ranks share
            if name in variables and name not in os.environ:
                variables.write(name, value)

    def algorithms(self, function: str) -> list[Algorithm]:
        """Return what this library lists for the MPI function: a value is a choice's place in the description."""
        return [
            Algorithm(AUTO if native == AUTO else canonical(native), native)
            for native in self._natives(function)
            if native not in _LEFT_OUT
        ]

    def chosen_already(self, function: str) -> str:
        """Return the control variable by which the user has chosen an algorithm for `function`, empty if none."""
        return self._variables.setting(_variable(function))

    def select(self, function: str, algorithm: Algorithm, comm: Any) -> Any:
        """Return the communicator to call: the same for every algorithm, since the variable is read at each call."""
        return comm

    def force(self, function: str, algorithm: Algorithm) -> None:
        """Make calls from now on run with `algorithm`. The device's collectives would come before a forced one."""
        if algorithm.name == AUTO or _variable(function) not in self._variables:
            return
        value = self._natives(function).index(algorithm.native)  # out of range would abort the job
        self._variables.write(_variable(function), value)
        if self._device is not None:
            self._variables.write(_DEVICE, _NONE)

    def release(self, function: str) -> None:
        """Leave the choice to the library again, for the control traffic between measurements too."""
        if _variable(function) in self._variables:
            self._variables.write(_variable(function), 0)
        if self._device is not None:
            self._variables.write(_DEVICE, self._device)

    def witness(self, run: Callable[[], Any]) -> str:
        """Run once and return what the library said against it on this rank, empty if nothing."""
        sys.stderr.flush()
        terminal = os.dup(2)
        with os.fdopen(os.memfd_create("commbench-witness"), "w+b") as kept:
            os.dup2(kept.fileno(), 2)
            try:
                run()
            finally:
                os.dup2(terminal, 2)
                os.close(terminal)
                kept.seek(0)
                text = kept.read().decode(errors="replace")
                rest = _REFUSED.sub("", text.replace(_PREAMBLE, "")).strip("\n")
                if rest:
                    print(rest, file=sys.stderr, flush=True)
        found = _REFUSED.search(text)
        return f"the library says: {found.group(1).strip()}" if found else ""

    def facts(self) -> dict[str, Any]:
        names = (_FALLBACK, _DEVICE, *_THROTTLE)
        return {name: self._variables.read(name) for name in names if name in self._variables}

    def close(self) -> None:
        pass

    def _natives(self, function: str) -> list[str]:
        name = _variable(function)
        if name not in self._variables:
            return [AUTO]
        return _CHOICE.findall(self._variables.describe(name)[0])


def _variable(function: str) -> str:
    return f"MPIR_CVAR_{function.upper()}_INTRA_ALGORITHM"
