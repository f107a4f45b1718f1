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

import math
import mmap
import os
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, NamedTuple, NoReturn, Protocol

from commbench.backends._network import addresses
from commbench.backends.world import World, launch
from commbench.errors import EXIT_TIMEOUT

_HEADER = 64  # the roll call's flag
_ROW = 256  # a rank's: rank, cell, round, whether it answered; then where it stands
_VISIT = struct.Struct("qqq")
_FIELDS = struct.Struct("qqqq")
_TEXT = _ROW - _FIELDS.size
_LISTENERS = 2  # ranks of a node that hear other nodes: the first may be the stopped one
_DATAGRAM = 60_000
LONGEST_NAP = 1.0  # seconds between looks at the board
_GRACE = 3.0  # seconds after which MPI_Abort is taken to be stuck too
_PASSING_ON = 0.5  # seconds for launchers to pass the message on: mpirun drops what comes after word of an abort
_LISTENING = 0.05  # seconds between looks at the line during a roll call

# What a rank may be at beside a cell. While it rests nothing is due; setting up takes its time on a busy machine.
BETWEEN, SETUP, RESTING = -1, -2, -3
SETUP_SECONDS = 60.0
_STAGES = {BETWEEN: "between two visits", SETUP: "at the start or the end", RESTING: "while printing"}


class Standing(NamedTuple):
    """Where a rank stands, empty for one that did not answer, and what it is at."""

    place: str
    cell: int
    number: int


Report = dict[int, Standing]  # by rank


class Guide(Protocol):
    """What the watchdog must be told to name things."""

    def describe(self, cell: int) -> str:
        """Return the name of a cell."""

    def concerned(self, cell: int) -> Sequence[int]:
        """Return the ranks that visit a cell."""

    def record(self, cell: int, number: int, reason: str) -> None:
        """Keep the timeout of round `number` of a cell."""

    def give_up(self) -> None:
        """Let go of what hangs: the process is about to end."""


class Watchdog:
    """Watches over this rank, `timeout` seconds for each visit, from the ranks' meeting to their parting."""

    def __init__(self, world: World, timeout: float) -> None:
        self._world, self._timeout = world, timeout
        self._nap = min(LONGEST_NAP, timeout / 8)
        self._guide: Guide | None = None
        self._error_stream = os.dup(2)  # what is open now: a witness may have fd 2 when the time comes
        self._suspended = 0.0  # written by the thread alone, as the next line is by the main thread
        self._deadline = self._deadline_of(SETUP)
        self._board = Board(world)
        self._line = Line(world) if world.nodes > 1 else None
        self._main = threading.get_ident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="commbench-watchdog", daemon=True)
        self._thread.start()

    def tell(self, guide: Guide) -> None:
        """Say what the cells are that `begin` speaks of from now on."""
        self._guide = guide

    def begin(self, cell: int, number: int = 0) -> None:
        """Give this rank its time again, for round `number` of `cell`, or for one of the stages above."""
        self._board.at(cell, number)
        self._deadline = self._deadline_of(cell)

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join()
        if self._line:
            self._line.close()
        self._board.close()
        os.close(self._error_stream)

    def _deadline_of(self, cell: int) -> float:
        """Return the end of the time that starts now, on a clock that stands while the process is suspended."""
        if cell == RESTING:
            return math.inf
        return monotonic() - self._suspended + (max(self._timeout, SETUP_SECONDS) if cell == SETUP else self._timeout)

    def _watch(self) -> None:
        before = monotonic()
        while not self._stop.wait(self._nap):
            now = monotonic()
            # A nap far too long means that this process was suspended, most likely the whole job: it does not count.
            self._suspended += max(0.0, now - before - self._nap - 1.0)
            before = now
            called = self._board.called() or (self._line is not None and self._line.heard())
            if called or now - self._suspended > self._deadline:
                try:
                    self._roll_call(first=not called)
                finally:  # whatever went wrong, the job must end
                    end(self._world, self._guide)

    def _roll_call(self, first: bool) -> None:
        """Find out who is missing; the lowest rank alive that heard all says so. Made once, from the thread."""
        self._board.call()
        self._board.answer(self._position())
        if self._line and (first or self._line.listens):
            self._line.say({})  # wakes the other nodes
        self._listen(self._nap + 0.5)
        reports = self._board.reports()
        if self._line:
            if self._world.rank == min((rank for rank, stands in reports.items() if stands.place), default=-1):
                self._line.say(reports)
            self._listen(self._nap + 0.5)
            reports |= self._line.gathered()
        hearers = self._line.hearers if self._line else reports.keys()
        alive = [rank for rank, stands in reports.items() if stands.place]
        # Where no hearer is alive, each node speaks for itself.
        if self._world.rank == min((rank for rank in alive if rank in hearers), default=min(alive)):
            self._speak(reports)
        else:
            sleep(2.0)  # the message first

    def _speak(self, reports: Report) -> None:
        """Write the record and the message."""
        cell, number = visit_of(reports)
        known = self._guide if cell >= 0 else None
        concerned = known.concerned(cell) if known else range(self._world.size)
        where = known.describe(cell) if known else _STAGES.get(cell, "")
        limit = max(self._timeout, SETUP_SECONDS) if cell == SETUP else self._timeout
        places = {rank: stands.place for rank, stands in reports.items()}
        reason = f"no progress in {limit:g} s: {culprits(places, concerned)}"
        text = f"commbench: timeout (-T {self._timeout:g}) {where}: {reason}{launch().own_code(EXIT_TIMEOUT)}\n"
        with suppress(Exception):  # whatever the disk says
            if known:
                known.record(cell, number, reason)
        with suppress(OSError):
            os.write(self._error_stream, text.encode())
        sleep(_PASSING_ON)

    def _listen(self, seconds: float) -> None:
        """Let time pass, taking in what other nodes say, which a socket would not hold for long."""
        until = monotonic() + seconds
        while monotonic() < until:
            if self._line:
                self._line.heard()
            sleep(_LISTENING)

    def _position(self) -> str:
        """Return where the main thread stands: function and line of the innermost frame, and its caller's."""
        frame = sys._current_frames().get(self._main)
        places: list[str] = []
        while frame is not None and len(places) < 2:
            code = frame.f_code
            places.append(f"{code.co_name} ({os.path.basename(code.co_filename)}:{frame.f_lineno})")
            frame = frame.f_back
        return " in ".join(places) or "an unknown place"


def visit_of(reports: Report) -> tuple[int, int]:
    """Return the cell and round that most ranks are at: between two visits most have ended theirs, and do not count."""
    visits = Counter((stands.cell, stands.number) for stands in reports.values())
    return max(visits, key=lambda visit: (visit[0] >= 0, visits[visit]))


def culprits(reports: Mapping[int, str], concerned: Sequence[int]) -> str:
    """Say which of the `concerned` ranks the others wait for, from where each stands."""
    silent = sorted(rank for rank in concerned if not reports.get(rank))
    if silent:
        return f"{_ranks(silent)} not arrived: no sign of life (stopped, or its node is gone)"
    places: dict[str, list[int]] = {}
    for rank in sorted(concerned):
        places.setdefault(reports[rank], []).append(rank)
    if len(places) == 1:
        place = next(iter(places))
        return f"all ranks wait at the same place, {place}: the library is stuck, or only slow (-T allows more)"
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


def end(world: World, guide: Guide | None = None) -> NoReturn:
    """End the job with 124: by MPI_Abort where there is MPI, as launchers were seen to report other codes for an exit.

    The standard does not allow this call from a second thread of a FUNNELED process; it is made all the same, as the
    last one, and where it does not return the process exits.
    """
    threading.Thread(target=_exit_later, daemon=True).start()
    if guide is not None:
        with suppress(Exception):
            guide.give_up()
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
        path = world.share_on_node(path)
        try:
            self._memory = _map(path, size, create=world.node_rank == 0, ready=world.meet_on_node)
        finally:
            if world.node_rank == 0:
                with suppress(OSError):
                    os.unlink(path)  # all have it open: no name outlives this
        self._ranks = world.node_size
        self._start = _HEADER + world.node_rank * _ROW
        self._rank = world.rank
        self.at(SETUP, 0)

    def at(self, cell: int, number: int) -> None:
        """Note what this rank is at. An answer stands: the main thread may go on after a roll call, too late."""
        _VISIT.pack_into(self._memory, self._start, self._rank, cell, number)

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
        struct.pack_into("q", self._memory, self._start + _VISIT.size, 1)

    def reports(self) -> Report:
        """Return where this node's ranks stand."""
        found = {}
        for i in range(self._ranks):
            start = _HEADER + i * _ROW
            rank, cell, number, answered = _FIELDS.unpack_from(self._memory, start)
            text = self._memory[start + _FIELDS.size : start + _ROW].rstrip(b"\0").decode(errors="replace")
            found[rank] = Standing(text if answered else "", cell, number)
        return found

    def close(self) -> None:
        self._memory.close()


def _map(path: str, size: int, create: bool, ready: Callable[[], None]) -> mmap.mmap:
    """Return the shared memory at `path`, once all ranks of the node have it; `ready` waits for them."""
    if create:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.posix_fallocate(descriptor, 0, size)  # where memory is short, that shows here, not as a dying rank
    ready()
    if not create:
        descriptor = os.open(path, os.O_RDWR)
    memory = mmap.mmap(descriptor, size)
    os.close(descriptor)
    ready()
    return memory


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
        gathered = world.broadcast(world.gather(mine))
        every = [entry for entry in gathered if entry]
        self.hearers = frozenset(rank for rank, entry in enumerate(gathered) if entry)
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
                    self._received |= {
                        int(rank): Standing(str(place), int(cell), int(number))
                        for rank, (place, cell, number) in message["report"]
                    }
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
