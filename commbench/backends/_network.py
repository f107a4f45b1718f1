"""Sockets: this host's addresses, and messages on a connection.

A message is a value in JSON and, behind it, bytes. Nothing that comes from the network is ever run or unpickled.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from commbench.errors import UsageError

if TYPE_CHECKING:
    from commbench.backends.world import World

HEAD = struct.Struct("!4sIQ")  # magic, bytes of the value, bytes behind it
MAGIC = b"cbm1"
MOST_TEXT, MOST_BYTES = 1 << 28, 1 << 32  # a plan of 100,000 cells is some 30 MB
_SILENCE = 60  # seconds after which the kernel asks whether the other host is still there


class Channel:
    """One end of a connection to another rank."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", _SILENCE), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self.socket = connected

    def send(self, value: Any = None, data: bytes | memoryview = b"") -> None:
        """Send a value that JSON has, and bytes."""
        text = json.dumps(value).encode()
        self.socket.sendall(HEAD.pack(MAGIC, len(text), len(data)) + text)
        if data:
            self.socket.sendall(data)

    def receive(self) -> tuple[Any, bytearray]:
        """Return the next message; raise ConnectionError where the other end is gone or says what is none."""
        text, data = sizes(self._exactly(HEAD.size), MOST_TEXT, MOST_BYTES)
        value = decoded(self._exactly(text))
        return value, self._exactly(data)

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, size: int) -> bytearray:
        room = bytearray(size)
        view, got = memoryview(room), 0
        while got < size:
            more = self.socket.recv_into(view[got:])
            if not more:
                raise ConnectionError("the other end closed the connection")
            got += more
        return room


def sizes(head: bytes | bytearray, most_text: int, most_bytes: int) -> tuple[int, int]:
    """Return the two sizes that the head of a message tells; raise ConnectionError where it is none of ours."""
    magic, text, data = HEAD.unpack(head)
    if magic != MAGIC or text > most_text or data > most_bytes:
        raise ConnectionError("what came is no message of commbench")
    return text, data


def decoded(text: bytes | bytearray) -> Any:
    """Return the value of a message; raise ConnectionError where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ConnectionError("what came is no message of commbench") from None


def addresses() -> list[str]:
    """Return this host's IPv4 addresses but loopback, by interface; where there is none, loopback."""
    found = [address for address in interfaces() if not address.startswith("127.")]
    return found or ["127.0.0.1"]


def interfaces() -> dict[str, str]:
    """Return the interface of each of this host's IPv4 addresses."""
    import fcntl

    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
                found.setdefault(socket.inet_ntoa(answer[20:24]), name)
    return found


def route(world: World) -> tuple[str, str]:
    """Return the address by which the ranks of `world` reach its rank 0, and this rank's interface on that way.

    What counts is the way that the kernel takes, as a host's name may lead elsewhere: the ranks of other nodes try rank
    0's addresses. On one node it is the loopback's. Collective; raise UsageError where some rank reaches none.
    """
    if world.nodes == 1:
        return "127.0.0.1", interfaces().get("127.0.0.1", "lo")
    token = os.urandom(16)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        told = None
        if world.rank == 0:
            listener.bind(("", 0))
            listener.listen(1024)
            told = [addresses(), listener.getsockname()[1], token.hex()]
            answering = threading.Thread(target=_answer, args=(listener, token), daemon=True)
            answering.start()
        there, port, said = world.broadcast(told)
        reached = ("", "") if world.node == 0 else _reach(there, port, bytes.fromhex(said))
        trouble = (
            "" if world.node == 0 or reached[0] else f"rank {world.rank} reaches none of {', '.join(there)}, rank 0"
        )
        trouble = world.first_text(trouble)
        if world.rank == 0:
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
            answering.join()
    if trouble:
        raise UsageError(f"all ranks must reach rank 0 by IPv4: {trouble}")
    ways = [way for way in world.gather(list(reached)) or [] if way[0]]
    first = world.broadcast(ways[0][0] if world.rank == 0 else None)
    own = interfaces()
    if world.node == 0:
        return first, own.get(first, "")
    return reached[0], own.get(reached[1], "")


def _answer(listener: socket.socket, token: bytes) -> None:
    """Give who asks the token, as only rank 0 has it, until the listener is shut down."""
    while True:
        try:
            asking, _ = listener.accept()
        except OSError:
            return
        with asking, suppress(OSError):
            asking.sendall(token)


def _reach(there: Sequence[str], port: int, token: bytes) -> tuple[str, str]:
    """Return the first address at which the token is given, and this host's on the way there; nothing without one."""
    for address in there:
        with suppress(OSError), socket.create_connection((address, port), timeout=3.0) as asking:
            if asking.recv(len(token), socket.MSG_WAITALL) == token:
                return address, str(asking.getsockname()[0])
    return "", ""
