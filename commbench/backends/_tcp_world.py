"""The world without MPI: a star of TCP connections, rank 0 its hub.

Each rank has two lines to the hub. On the first, all collective calls go, one after another. The second, the alarm, is
silent but for its end: a thread listens there, so that a rank whose main thread is anywhere, in a library too, ends
when another one ended, with its code.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from commbench.backends._network import Channel
from commbench.backends._rendezvous import (
    Guest,
    Known,
    Meeting,
    Place,
    await_ranks,
    join,
    listen,
    meeting,
    own_addresses,
)
from commbench.backends.world import Launch, World, affinity, launch, quota
from commbench.errors import EXIT_FAILED, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WORK, _ALARM = "work", "alarm"
_SUBGROUP_SECONDS = 60.0
_LAST_WORDS = 3.0  # seconds for the alarm to end a rank whose line is dead, with the code that the others have
_BYE = 0


class TcpWorld(World):
    """Ranks that met over TCP."""

    def __init__(
        self, rank: int, size: int, seat: Mapping[str, Any], channels: Sequence[Channel], alarm: Alarm | None
    ) -> None:
        """`channels` lead, on rank 0, to ranks 1, 2, ...; elsewhere the only one leads to rank 0."""
        self.rank, self.size = rank, size
        self.node, self.node_rank, self.node_size = seat["node"], seat["node_rank"], seat["node_size"]
        self.nodes, self.cores, self.crowded = seat["nodes"], seat["cores"], seat["crowded"]
        self._firsts: list[int] = seat["firsts"]  # of each rank, the first rank of its node
        self._channels, self._alarm, self._whole = channels, alarm, True

    def broadcast(self, value: Any, root: int = 0) -> Any:
        if root and self.rank in (0, root):
            given = self.hand_over(value, root)
            value = given if self.rank == 0 else value
        received = self._down("broadcast", value)
        return value if self.rank in (0, root) else received

    def gather(self, value: Any) -> list[Any] | None:
        if self.rank:
            self._send(0, "gather", value)
            return None
        return [value, *(self._receive(rank, "gather")[0] for rank in range(1, self.size))]

    def hand_over(self, value: Any, giver: int) -> Any:
        if giver == 0:
            return value
        if self.rank == giver:
            self._send(0, "hand over", value)
            return None
        return self._receive(giver, "hand over")[0]

    def share_on_node(self, value: Any) -> Any:
        every = self.gather(value)
        if every is None:
            return self._receive(0, "share")[0]
        for rank in range(1, self.size):
            self._send(rank, "share", every[self._firsts[rank]])
        return value

    def meet(self) -> None:
        self.gather(None)
        self._down("meet", None)

    def meet_asleep(self) -> None:
        self.meet()  # who waits for a socket sleeps

    def meet_on_node(self) -> None:
        self.meet()  # when all of all nodes have come

    def subgroup(self, ranks: Sequence[int]) -> TcpWorld | None:
        """As in World, and collective over all ranks of this world: the group's first rank is its hub."""
        listener, place = None, None
        if self.rank == ranks[0] and len(ranks) > 1:
            listener = listen()
            place = Place(own_addresses(), listener.getsockname()[1], os.urandom(16).hex())
        told = self.broadcast([place.addresses, place.port, place.token] if place else None, root=ranks[0])
        if self.rank not in ranks:
            return None
        point = Known(Place(*told)) if told else None
        group = _met(ranks.index(self.rank), len(ranks), point, listener, (_WORK,), _SUBGROUP_SECONDS)
        group._alarm, group._whole = self._alarm, False
        return group

    def abort(self, code: int) -> NoReturn:
        os._exit(self._alarm.sound(code) if self._alarm else code)

    def close(self) -> None:
        self.meet()
        if self._alarm and self._whole:
            self._alarm.close()
        for channel in self._channels:
            channel.close()

    def _reduce(self, values: NDArray[Any], how: str) -> NDArray[Any]:
        import numpy as np

        if self.rank:
            self._send(0, how, None, values.tobytes())
            return values
        operation = {"sum": np.add, "min": np.minimum, "max": np.maximum}[how]
        reduced = values.copy()
        for rank in range(1, self.size):
            data = self._receive(rank, how)[1]
            operation(reduced, np.frombuffer(data, dtype=values.dtype).reshape(values.shape), out=reduced)
        return reduced

    def _allreduce(self, values: NDArray[Any], how: str) -> NDArray[Any]:
        import numpy as np

        reduced = self._reduce(values, how)
        if self.rank:
            return np.frombuffer(self._receive(0, "reduced")[1], dtype=values.dtype).reshape(values.shape)
        for rank in range(1, self.size):
            self._send(rank, "reduced", None, reduced.tobytes())
        return reduced

    def _down(self, what: str, value: Any) -> Any:
        """Return the hub's `value` on every rank."""
        if self.rank:
            return self._receive(0, what)[0]
        for rank in range(1, self.size):
            self._send(rank, what, value)
        return value

    def _send(self, rank: int, what: str, value: Any, data: bytes | memoryview = b"") -> None:
        try:
            self._channel(rank).send([what, value], data)
        except OSError as error:
            self._lost(rank, error)

    def _receive(self, rank: int, what: str) -> tuple[Any, bytearray]:
        try:
            message, data = self._channel(rank).receive()
        except OSError as error:
            self._lost(rank, error)
        if not isinstance(message, list) or len(message) != 2 or message[0] != what:
            raise RuntimeError(f"the ranks are out of step: rank {self.rank} is at {what!r}, rank {rank} is not")
        return message[1], data

    def _channel(self, rank: int) -> Channel:
        return self._channels[rank - 1 if self.rank == 0 else 0]

    def _lost(self, rank: int, error: OSError) -> NoReturn:
        if self._alarm:
            self._alarm.wait(_LAST_WORDS)  # it knows the code
        raise ConnectionError(f"rank {self.rank} lost the connection to rank {rank} ({error})") from None


class Alarm:
    """The second lines: what comes there is the code to end with, or, when all is over, a farewell."""

    def __init__(self, rank: int, channels: Mapping[int, Channel]) -> None:
        """`channels` by the rank at their other end."""
        self._rank = rank
        self._lock = threading.Lock()
        self._code: int | None = None  # what this rank ends with
        self._sockets = {other: channel.socket for other, channel in channels.items()}
        self._thread = threading.Thread(target=self._listen, name="commbench-alarm", daemon=True)
        self._thread.start()

    def sound(self, code: int) -> int:
        """Let all ranks end with `code` (rank 0 passes it on), or with the one that was sounded first; return it."""
        with self._lock:
            if self._code is None:
                self._code = code & 0xFF or EXIT_FAILED
                for line in self._sockets.values():
                    with suppress(OSError):
                        line.send(bytes([self._code]), socket.MSG_DONTWAIT)
            return self._code

    def wait(self, seconds: float) -> None:
        """Return when the alarm is over, or after `seconds`."""
        self._thread.join(seconds)

    def close(self) -> None:
        """Part in peace; all ranks do."""
        for line in self._sockets.values():
            line.send(bytes([_BYE]))
        self._thread.join()
        for line in self._sockets.values():
            line.close()

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            for rank, line in self._sockets.items():
                selector.register(line, selectors.EVENT_READ, rank)
            while selector.get_map():
                for key, _ in selector.select():
                    said = self._heard(key.data)
                    if said != bytes([_BYE]):
                        self._end(key.data, said)
                    selector.unregister(key.fileobj)

    def _heard(self, rank: int) -> bytes:
        with suppress(OSError):
            return self._sockets[rank].recv(1)
        return b""

    def _end(self, rank: int, said: bytes) -> NoReturn:
        """End this rank as rank `rank` did; the hub passes it on. Of a rank that is gone the lowest left speaks."""
        code = said[0] if said else EXIT_FAILED
        speaks = not said and self._code is None and self._rank == (1 if rank == 0 else 0)
        try:
            if self._rank == 0:
                code = self.sound(code)
            if speaks:
                text = f"commbench: error: rank {rank} ended without a word (killed, or its node is gone)\n"
                with suppress(OSError):
                    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())
        finally:
            os._exit(code)


def open_tcp(
    rendezvous: str | None, seconds: float, launched: Launch | None = None, environment: Mapping[str, str] = os.environ
) -> TcpWorld:
    """Return the world of this launch once all its ranks met; one rank meets nobody.

    Raise RendezvousError where some rank does not come in `seconds`, UsageError where there is no place to meet.
    """
    launched = launched or launch(environment)
    if not launched.launcher and (rendezvous is not None or {"RANK", "WORLD_SIZE"} & environment.keys()):
        given = ", ".join(f"{name}={environment.get(name, '')!r}" for name in ("RANK", "WORLD_SIZE"))
        raise UsageError(f"ranks started by hand need whole numbers in RANK and WORLD_SIZE, and here is {given}")
    if not 0 <= launched.rank < launched.size:
        raise UsageError(f"a rank is one of 0 to {launched.size - 1}, and {launched.launcher} says {launched.rank}")
    if launched.size == 1:
        return _met(0, 1, None, None, (), seconds)
    point = meeting(launched, rendezvous, seconds, environment)
    listener = listen(point.port) if launched.rank == 0 else None
    return _met(launched.rank, launched.size, point, listener, (_WORK, _ALARM), seconds)


def _met(
    rank: int,
    size: int,
    point: Meeting | None,
    listener: socket.socket | None,
    lines: Sequence[str],
    seconds: float,
) -> TcpWorld:
    """Return the world of `size` ranks that meet at `point`; rank 0 has the `listener`."""
    if rank and point:
        guest = join(point, rank, size, _about(), lines, seconds)
        alarm = Alarm(rank, {0: guest.channels[_ALARM]}) if _ALARM in lines else None
        return TcpWorld(rank, size, guest.about, [guest.channels[_WORK]], alarm)
    guests: dict[int, Guest] = {}
    if point and listener:
        _make_room(len(lines) * size)
        guests = await_ranks(listener, point, size, lines, seconds)
    seats = seated([_about(), *(guest.about for guest in guests.values())])
    for guest, seat in zip(guests.values(), seats[1:], strict=True):
        guest.channels[_WORK].send({"seat": seat})
    alarm = Alarm(0, {rank: guest.channels[_ALARM] for rank, guest in guests.items()}) if _ALARM in lines else None
    return TcpWorld(0, size, seats[0], [guest.channels[_WORK] for guest in guests.values()], alarm)


def _about() -> dict[str, Any]:
    """Return what rank 0 must know of this one: its node, and what it may use there.

    Ranks of one node share memory: containers of one machine may not, and are nodes of their own, as to MPI.
    """
    boot, memory = "", 0
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
        boot = file.read().strip()
    with suppress(OSError):
        memory = os.stat("/dev/shm").st_dev
    host = f"{os.uname().nodename}/{boot}/{memory}"
    return {"host": host, "cpus": sorted(affinity()), "quota": quota()}


def seated(ranks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return where each rank sits, of what they say about themselves."""
    hosts = [about["host"] for about in ranks]
    nodes = list(dict.fromkeys(hosts))
    members = {node: [rank for rank, name in enumerate(hosts) if name == node] for node in nodes}
    cores = {}
    for node, there in members.items():
        cpus = {cpu for rank in there for cpu in ranks[rank]["cpus"]}
        cores[node] = min(len(cpus), *(ranks[rank]["quota"] for rank in there))
    crowded = any(len(there) > cores[node] for node, there in members.items())
    firsts = [members[node][0] for node in hosts]
    return [
        {
            "node": nodes.index(node),
            "node_rank": members[node].index(rank),
            "node_size": len(members[node]),
            "nodes": len(nodes),
            "cores": cores[node],
            "crowded": crowded,
            "firsts": firsts,
        }
        for rank, node in enumerate(hosts)
    ]


def _make_room(connections: int) -> None:
    """Let this process have that many connections, as far as the system allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < connections + 128:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
