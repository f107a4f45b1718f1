"""`commbench.pairs` with one odd rank: late before it sends, wrong in what it sends, or stuck.

mpirun -n 4 python -m tests.mpi.odd_rank late -e 64K -n 3
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from commbench.backends.world import World
from commbench.measure import pairs
from commbench.measure.messages import Messages

ODD = 2
LATE = 0.05  # seconds


class OddComm:
    """A communicator that is odd in its calls."""

    def __init__(self, comm: Any, fault: str) -> None:
        self._comm, self._fault = comm, fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def Create_group(self, group: Any) -> OddComm:
        return OddComm(self._comm.Create_group(group), self._fault)

    def Send(self, buffer: Any, *where: int) -> None:
        self._before()
        self._comm.Send(buffer, *where)

    def Isend(self, buffer: Any, *where: int) -> Any:
        self._before()
        if self._fault == "wrong":
            buffer[buffer.size // 2] ^= 1
        return self._comm.Isend(buffer, *where)

    def Allreduce(self, send: Any, recv: Any, **options: Any) -> None:
        self._before()
        self._comm.Allreduce(send, recv, **options)

    def _before(self) -> None:
        if self._fault == "late":
            time.sleep(LATE)
        if self._fault == "stuck":
            time.sleep(3600)


def main() -> None:
    fault, *arguments = sys.argv[1:]
    init = Messages.__init__

    def odd(self: Messages, world: World, *others: Any) -> None:
        init(self, world, *others)
        if world.rank == min(ODD, world.size - 1):
            self._comm = OddComm(self._comm, fault)

    Messages.__init__ = odd  # type: ignore[method-assign,assignment]

    def no_picture(folder: Path) -> str:
        return f"no picture in {folder}"

    pairs.main(no_picture, arguments)


if __name__ == "__main__":
    main()
