"""No job hangs: when a visit outlasts its deadline, the ranks that did not arrive are named and the job ends with 124.

The library itself may be stuck, so this goes beside it. Each rank has a thread and a row on its node's *board*, a
shared memory that no file name outlives: what the rank is at, and whether it is alive. A thread sleeps, looks at its
deadline and one number of the board every second, and says nothing until a deadline passes, here or on another node.
Then there is a roll call: each thread that can still run writes where its main thread stands. A rank without an answer
is stopped; among those that answer, the few that stand elsewhere than the many are what the many wait for.

Nodes tell each other by UDP. The first two ranks of a node listen, on all its addresses, so that the kernel's routes
decide and no host name needs to resolve. The lowest rank alive that heard the others writes the record and the message.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, NoReturn

from commbench.backends.world import World
from commbench.errors import EXIT_TIMEOUT

_HEADER = 64  # the roll call's flag
_ROW = 256  # a rank's: rank, cell, round, whether it answered; then where it stands
_FIELDS = struct.Struct("qqqq")
_TEXT = _ROW - _FIELDS.size
_LISTENERS = 2  # ranks of a node that hear other nodes: the first may be the stopped one
_DATAGRAM = 60_000
LONGEST_NAP = 1.0  # seconds between looks at the board
_GRACE = 3.0  # seconds after which MPI_Abort is taken to be stuck too

Report = dict[int, str]  # rank: where it stands, empty for a rank that did not answer


class Watchdog:
    """Watches over this rank's visits, `timeout` seconds for each.

    `describe(cell)` names a cell, `concerned(cell)` its ranks; `record(cell, round, reason)` keeps its timeout.
    Cell -1 is what lies between visits.
    """

    def __init__(
        self,
        world: World,
        timeout: float,
        describe: Callable[[int], str],
        concerned: Callable[[int], Sequence[int]],
        record: Callable[[int, int, str], None],
    ) -> None:
        self._world, self._timeout = world, timeout
        self._describe, self._concerned, self._record = describe, concerned, record
        self._nap = min(LONGEST_NAP, timeout / 8)
        self._board = Board(world)
        self._line = Line(world) if world.nodes > 1 else None
        self._main = threading.get_ident()
        self._deadline = monotonic() + timeout
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="commbench-watchdog", daemon=True)
        self._thread.start()

    def begin(self, cell: int, number: int) -> None:
        """Give this rank its time again, for round `number` of `cell`."""
        self._board.at(cell, number)
        self._deadline = monotonic() + self._timeout

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join()
        if self._line:
            self._line.close()
        self._board.close()

    def _watch(self) -> None:
        before = monotonic()
        while not self._stop.wait(self._nap):
            now = monotonic()
            # A nap far too long means that this process was suspended, most likely the whole job: it does not count.
            self._deadline += max(0.0, now - before - self._nap - 1.0)
            before = now
            called = self._board.called() or (self._line is not None and self._line.heard())
            if called or monotonic() > self._deadline:
                self._roll_call()

    def _roll_call(self) -> NoReturn:
        """Find out who is missing, and end the job. Called at most once, from the thread."""
        self._board.call()
        self._board.answer(self._position())
        if self._line:
            self._line.say({})  # wakes the other nodes
        sleep(self._nap + 0.5)
        reports = self._board.reports()
        if self._line:
            speaks = self._world.rank == min((rank for rank, place in reports.items() if place), default=-1)
            if speaks:
                self._line.say(reports)
            sleep(self._nap + 0.5)
            reports |= self._line.gathered()
        lowest = min(rank for rank, place in reports.items() if place)
        if self._world.rank == lowest and (self._line is None or self._line.listens):
            cell, number = self._board.visit()
            reason = f"no progress in {self._timeout:g} s: {culprits(reports, self._concerned(cell))}"
            where = self._describe(cell)
            print(f"commbench: timeout (-T {self._timeout:g}) at {where}: {reason}", file=sys.stderr, flush=True)
            with suppress(Exception):  # whatever the disk says, the job must end
                self._record(cell, number, reason)
        else:
            sleep(2.0)  # the message first
        end(self._world)

    def _position(self) -> str:
        """Return where the main thread stands: function and line of the innermost frame, and its caller's."""
        frame = sys._current_frames().get(self._main)
        places: list[str] = []
        while frame is not None and len(places) < 2:
            code = frame.f_code
            places.append(f"{code.co_name} ({os.path.basename(code.co_filename)}:{frame.f_lineno})")
            frame = frame.f_back
        return " in ".join(places) or "an unknown place"


def culprits(reports: Mapping[int, str], concerned: Sequence[int]) -> str:
    """Say which of the `concerned` ranks the others wait for, from where each stands."""
    silent = sorted(rank for rank in concerned if not reports.get(rank))
    if silent:
        return f"{_ranks(silent)} not arrived: no sign of life (stopped, or its node is gone)"
    places: dict[str, list[int]] = {}
    for rank in sorted(concerned):
        places.setdefault(reports[rank], []).append(rank)
    if len(places) == 1:
        return f"all ranks wait at the same place, {next(iter(places))}: the library is stuck"
    most = max(map(len, places.values()))
    few = {place: ranks for place, ranks in places.items() if len(ranks) < most} or places
    parts = [f"{_ranks(ranks)} at {place}" for place, ranks in few.items()]
    if few is places:
        return f"the ranks stand at different places: {'; '.join(parts)}"
    many = next(place for place, ranks in places.items() if len(ranks) == most)
    return f"{'; '.join(parts)} not arrived where the others wait, at {many}"


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:16])) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
    return f"rank{'s' * (len(ranks) > 1)} {shown}"


def end(world: World) -> NoReturn:
    """End the job with 124: by MPI_Abort, since launchers were seen to report other codes for a plain exit."""
    threading.Thread(target=_exit_later, daemon=True).start()
    world.abort(EXIT_TIMEOUT)
    os._exit(EXIT_TIMEOUT)


def _exit_later() -> None:
    sleep(_GRACE)
    os._exit(EXIT_TIMEOUT)


class Board:
    """A node's shared memory: a flag for the roll call, and a row for each of its ranks."""

    def __init__(self, world: World) -> None:
        size = _HEADER + world.node_size * _ROW
        path = ""
        if world.node_rank == 0:
            folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else os.environ.get("TMPDIR", "/tmp")
            path = f"{folder}/commbench-{os.getpid()}-{os.urandom(8).hex()}"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.posix_fallocate(descriptor, 0, size)  # a full disk shows here, not as a dying rank
        path = world.share_on_node(path)
        if world.node_rank:
            descriptor = os.open(path, os.O_RDWR)
        self._memory = mmap.mmap(descriptor, size)
        os.close(descriptor)
        self._ranks = world.node_size
        self._start = _HEADER + world.node_rank * _ROW
        self._rank = world.rank
        self.at(-1, 0)
        world.meet_on_node()  # all have it open
        if world.node_rank == 0:
            os.unlink(path)

    def at(self, cell: int, number: int) -> None:
        """Note what this rank is at."""
        _FIELDS.pack_into(self._memory, self._start, self._rank, cell, number, 0)

    def visit(self) -> tuple[int, int]:
        """Return the cell and round that most of this node's ranks are at."""
        rows = (_FIELDS.unpack_from(self._memory, _HEADER + i * _ROW) for i in range(self._ranks))
        visits = Counter((cell, number) for _, cell, number, _ in rows)
        return max(visits, key=lambda visit: (visit[0] >= 0, visits[visit]))

    def called(self) -> bool:
        """Whether somebody on this node called the roll."""
        return self._memory[0] != 0

    def call(self) -> None:
        """Call the roll."""
        self._memory[0] = 1

    def answer(self, place: str) -> None:
        """Say that this rank is alive and where its main thread stands."""
        text = place.encode()[: _TEXT - 1]
        start = self._start + _FIELDS.size
        self._memory[start : start + _TEXT] = text.ljust(_TEXT, b"\0")
        struct.pack_into("q", self._memory, self._start + 24, 1)

    def reports(self) -> Report:
        """Return where this node's ranks stand; empty for those that did not answer."""
        found = {}
        for i in range(self._ranks):
            start = _HEADER + i * _ROW
            rank, _, _, answered = _FIELDS.unpack_from(self._memory, start)
            text = self._memory[start + _FIELDS.size : start + _ROW].rstrip(b"\0").decode(errors="replace")
            found[rank] = text if answered else ""
        return found

    def close(self) -> None:
        self._memory.close()


class Line:
    """The line between nodes: datagrams to the listeners of the first nodes."""

    def __init__(self, world: World) -> None:
        import socket

        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        mine: dict[str, Any] | None = None
        self.listens = world.node_rank < _LISTENERS
        if self.listens:
            self._socket.bind(("", 0))
            mine = {"port": self._socket.getsockname()[1], "addresses": addresses()}
        every = [entry for entry in world.broadcast(world.gather(mine)) if entry]
        self._peers = [(address, entry["port"]) for entry in every for address in entry["addresses"]]
        self._token = world.broadcast(os.urandom(8).hex())
        self._received: Report = {}
        self._woken = False

    def say(self, report: Report) -> None:
        """Send where ranks stand to every listener; an empty report only wakes them."""
        import json

        items = list(report.items())
        while True:
            part, items = items[:200], items[200:]
            text = json.dumps({"token": self._token, "report": part}, ensure_ascii=False).encode()[:_DATAGRAM]
            for peer in self._peers:
                with suppress(OSError):
                    self._socket.sendto(text, peer)
            if not items:
                return

    def heard(self) -> bool:
        """Whether another node called the roll; takes in what came so far."""
        import json

        while self.listens:
            try:
                text, _ = self._socket.recvfrom(1 << 16)
                message = json.loads(text)
                if message["token"] == self._token:
                    self._woken = True
                    self._received |= {int(rank): str(place) for rank, place in message["report"]}
            except BlockingIOError:
                break
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return self._woken

    def gathered(self) -> Report:
        """Return what the other nodes said."""
        self.heard()
        return self._received

    def close(self) -> None:
        self._socket.close()


def addresses() -> list[str]:
    """Return this host's IPv4 addresses but loopback, by interface; where there is none, loopback."""
    import fcntl
    import socket

    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                request = struct.pack("256s", name.encode()[:15])
                found.append(socket.inet_ntoa(fcntl.ioctl(probe.fileno(), 0x8915, request)[20:24]))  # SIOCGIFADDR
    return [address for address in found if not address.startswith("127.")] or ["127.0.0.1"]
