"""How ranks that speak no MPI find one another: rank 0 listens, the others come to it.

Where rank 0 is, a *meeting point* tells: a fixed host and port, a file, or the store of torchrun's agent. Who comes
shows a token and is shown in; what else knocks is sent away, and never keeps the others waiting.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import selectors
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol

from commbench.backends._network import HEAD, Channel, addresses, decoded, sizes
from commbench.backends.world import Launch
from commbench.errors import RendezvousError, UsageError

_HELLO = 1 << 16  # most bytes of one
_MANNERS = 10.0  # seconds in which who knocks must say hello, and who opens must answer
_KNOCK = 3.0  # seconds for a connection to be made
_NAP = 0.1
# Slurm gives no port: one outside of what kernels hand out by themselves (32768 to 60999), by job and step.
_PORTS = range(61000, 65500)
_REMEDY = "name a place by --rendezvous HOST:PORT, or by --rendezvous FILE on a file system that all nodes share"


@dataclass(frozen=True)
class Place:
    """Where rank 0 listens: any of its addresses, the port, and the token that it is known by."""

    addresses: Sequence[str]
    port: int
    token: str


class Meeting(Protocol):
    """A meeting point: rank 0 tells it its place, the others ask for it."""

    name: str
    port: int  # that rank 0 must listen on; 0: any

    def tell(self, port: int) -> Place:
        """Let the others know that rank 0 listens on `port`."""

    def ask(self) -> Place | None:
        """Return where rank 0 listens, None as long as nobody knows."""

    def end(self) -> None:
        """Forget it: all have come."""


class Known:
    """A place that all ranks know beforehand."""

    def __init__(self, place: Place, port: int = 0) -> None:
        self.name, self.port, self._place = f"{', '.join(place.addresses)}, port {place.port}", port, place

    def tell(self, port: int) -> Place:
        return self._place

    def ask(self) -> Place | None:
        return self._place

    def end(self) -> None:
        pass


class File:
    """A file on a file system that all ranks share. One that an earlier run left is not believed.

    It names its run, as far as launchers tell runs apart, and who listens there must know its token.
    """

    port = 0

    def __init__(self, path: str, run: str) -> None:
        self.name, self._path, self._run = path, Path(path), run
        if not self._path.parent.is_dir():
            raise UsageError(f"--rendezvous names a file in a folder that is there, not {path!r}: make {path}'s folder")

    def tell(self, port: int) -> Place:
        place = Place(own_addresses(), port, os.urandom(16).hex())
        if os.path.lexists(self._path) and not self._is_ours():
            raise UsageError(f"--rendezvous names a new file, and {self.name!r} holds something else: name another")
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            beside.write_text(json.dumps({"run": self._run, **asdict(place)}), encoding="utf-8")
            os.replace(beside, self._path)
        except OSError as error:
            raise UsageError(f"--rendezvous names a file that can be written, not {self.name!r} ({error})") from None
        self._token = place.token
        return place

    def _is_ours(self) -> bool:
        """Whether what lies at the path was written by `tell`, in whatever run."""
        with suppress(OSError, ValueError, TypeError):
            told = json.loads(self._path.read_text(encoding="utf-8")) if self._path.is_file() else {}
            return {"run", "token", "port"} <= told.keys()
        return False

    def ask(self) -> Place | None:
        with suppress(OSError, ValueError, TypeError, KeyError):
            told = json.loads(self._path.read_text(encoding="utf-8"))
            if told.pop("run") == self._run:
                return Place(**told)
        return None

    def end(self) -> None:
        place = self.ask()
        if place is not None and place.token == self._token:
            with suppress(OSError):
                self._path.unlink()


class AgentStore:
    """The store that torchrun's agent keeps at MASTER_ADDR:MASTER_PORT, spoken to by torch's own client."""

    port = 0

    def __init__(self, host: str, port: int, run: str, seconds: float) -> None:
        self.name = f"torchrun's store at {host}:{port}"
        try:
            from torch.distributed import TCPStore
        except ImportError as error:
            raise UsageError(
                f"torchrun's store is read by torch, which cannot be imported ({error}): {_REMEDY}"
            ) from None
        try:
            limit = timedelta(seconds=seconds)
            self._store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=limit)
        except RuntimeError as error:
            raise UsageError(f"{self.name} does not answer ({str(error).splitlines()[0]}): {_REMEDY}") from None
        self._key = f"commbench/{run}"

    def tell(self, port: int) -> Place:
        place = Place(own_addresses(), port, os.urandom(16).hex())
        self._store.set(self._key, json.dumps(asdict(place)))
        return place

    def ask(self) -> Place | None:
        with suppress(ValueError, TypeError):
            if self._store.check([self._key]):
                return Place(**json.loads(self._store.get(self._key)))
        return None

    def end(self) -> None:
        self._store.delete_key(self._key)


def own_addresses() -> list[str]:
    """Return the addresses by which a rank, be it on this host or another, may reach this one."""
    return list(dict.fromkeys([*addresses(), "127.0.0.1"]))


def _fixed(host: str, port: int, run: str) -> Known:
    return Known(Place([host], port, hashlib.sha256(run.encode()).hexdigest()[:32]), port)


def meeting(launched: Launch, rendezvous: str | None, seconds: float, environment: Mapping[str, str]) -> Meeting:
    """Return where the ranks of this launch meet; raise UsageError where nobody says."""
    run = run_of(environment)
    if rendezvous is not None:
        host, colon, port = rendezvous.rpartition(":")
        if not colon or "/" in rendezvous:
            if not rendezvous:
                raise UsageError("--rendezvous is HOST:PORT or a FILE, not ''")
            return File(rendezvous, run)
        if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise UsageError(f"--rendezvous HOST:PORT has a port from 1 to 65535, not {rendezvous!r}")
        return _fixed(host, int(port), run)
    if launched.launcher == "torchrun":
        host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
        if not host or not port.isdigit():
            raise UsageError(f"RANK and WORLD_SIZE are set, but MASTER_ADDR and MASTER_PORT are not: {_REMEDY}")
        if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return AgentStore(host, int(port), run, seconds)
        return _fixed(host, int(port), run)
    if launched.launcher == "Slurm":
        host, job = first_host(environment.get("SLURM_STEP_NODELIST", "")), environment.get("SLURM_JOB_ID", "")
        if not host or not job.isdigit():
            raise UsageError(f"srun does not tell SLURM_STEP_NODELIST and SLURM_JOB_ID: {_REMEDY}")
        step = environment.get("SLURM_STEP_ID", "")
        return _fixed(host, _PORTS[(int(job) * 101 + (int(step) if step.isdigit() else 0)) % len(_PORTS)], run)
    raise UsageError(f"{launched.launcher} does not tell where its ranks can meet without MPI: {_REMEDY}")


def run_of(environment: Mapping[str, str]) -> str:
    """Return what tells this launch from others, as far as its launcher says."""
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    return "/".join(environment.get(name, "") for name in names)


def first_host(hosts: str) -> str:
    """Return the first of a list of hosts as Slurm writes them: "n[03-04,7],m1" begins with n03."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts)
    return re.sub(r"\[(\d*)[^\]]*\]", r"\1", first[0] if first else "")


@dataclass(frozen=True)
class Guest:
    """A rank that came: its connections by their line, and what it says of itself."""

    channels: Mapping[str, Channel]
    about: Any


def listen(port: int = 0) -> socket.socket:
    """Return a socket that listens on `port`, on all interfaces; raise UsageError where it is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("", port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise UsageError(f"rank 0 cannot listen on port {port} ({error.strerror}): {_REMEDY}") from None
    return listener


def await_ranks(
    listener: socket.socket, point: Meeting, size: int, lines: Sequence[str], seconds: float
) -> dict[int, Guest]:
    """Return all ranks but this one, rank 0, by their number, once they came in by each of `lines`.

    Raise RendezvousError, which those that came hear of, where some do not come in time.
    """
    place = point.tell(listener.getsockname()[1])
    came: dict[int, dict[str, Channel]] = {rank: {} for rank in range(1, size)}
    about: dict[int, Any] = {}
    deadline = monotonic() + seconds
    with _Hall(listener) as hall:
        while missing := [rank for rank, channels in came.items() if len(channels) < len(lines)]:
            if monotonic() > deadline:
                text = f"{_ranks(missing)} of {size} did not come to {point.name} in {seconds:g} s"
                _send_away(came, text)
                raise RendezvousError(text)
            for channel, hello in hall.arrivals(min(1.0, max(0.0, deadline - monotonic()))):
                if not isinstance(hello, dict) or not hmac.compare_digest(str(hello.get("token")), place.token):
                    channel.close()
                    continue
                rank, line = int(hello["rank"]), str(hello["line"])
                if hello["size"] != size or rank not in came or line not in lines or line in came[rank]:
                    text = (
                        f"a launch has one size and each of its ranks once, but rank {rank} of {hello['size']} "
                        f"came to rank 0 of {size} at {point.name}: do two launches use one place? --rendezvous "
                        "names another"
                    )
                    with suppress(OSError):
                        channel.send({"refused": text})
                    _send_away(came, "")
                    raise UsageError(text)
                came[rank][line] = channel
                about[rank] = hello.get("about")
                channel.send({"welcome": line})
    point.end()
    return {rank: Guest(channels, about[rank]) for rank, channels in came.items()}


def join(point: Meeting, rank: int, size: int, about: Any, lines: Sequence[str], seconds: float) -> Guest:
    """Come to rank 0 by each of `lines`, saying `about`; return the connections, and what rank 0 says when all came."""
    deadline = monotonic() + seconds
    hello = {"rank": rank, "size": size, "about": about}
    channels: dict[str, Channel] = {}
    while not channels:
        place = point.ask()
        for address in place.addresses if place else ():
            assert place is not None
            channels = _knock(address, place, hello, lines)
            if channels:
                break
        else:
            if monotonic() > deadline:
                raise RendezvousError(
                    f"rank 0 was not at {point.name} in {seconds:g} s, as rank {rank} of {size} saw it"
                )
            sleep(_NAP)
    first = channels[lines[0]]
    first.socket.settimeout(seconds + _MANNERS)  # rank 0 may have begun only now to wait for the others
    try:
        answer, _ = first.receive()
    except OSError as error:
        raise RendezvousError(f"rank 0 left {point.name} ({error}), as rank {rank} of {size} saw it") from None
    first.socket.settimeout(None)
    if not isinstance(answer, dict) or "seat" not in answer:
        raise RendezvousError("")  # rank 0 says why
    return Guest(channels, answer["seat"])


def _knock(address: str, place: Place, hello: Mapping[str, Any], lines: Iterable[str]) -> dict[str, Channel]:
    """Return a connection to rank 0 for each line, or nothing where it is not at this address."""
    channels: dict[str, Channel] = {}
    try:
        for line in lines:
            connected = socket.create_connection((address, place.port), timeout=_KNOCK)
            channels[line] = Channel(connected)
            connected.settimeout(_MANNERS)
            channels[line].send({**hello, "token": place.token, "line": line})
            answer, _ = channels[line].receive()
            if isinstance(answer, dict) and "refused" in answer:
                raise UsageError(str(answer["refused"]))
            if answer != {"welcome": line}:
                raise ConnectionError("not rank 0")
            connected.settimeout(None)
    except OSError:
        for channel in channels.values():
            channel.close()
        return {}
    return channels


def _send_away(came: Mapping[int, Mapping[str, Channel]], text: str) -> None:
    """Tell those that came that nothing comes of it."""
    for channels in came.values():
        for channel in channels.values():
            with suppress(OSError):
                channel.send({"missing": text})
            channel.close()


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:16])) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
    return f"rank{'s' * (len(ranks) > 1)} {shown}"


class _Hall:
    """Where those wait who knocked and did not yet say hello; nobody there keeps others waiting."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._said: dict[socket.socket, tuple[bytearray, float]] = {}

    def __enter__(self) -> _Hall:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        return self

    def __exit__(self, *error: object) -> None:
        for waiting in list(self._said):
            self._dismiss(waiting)
            waiting.close()
        self._selector.close()
        self._listener.close()

    def arrivals(self, seconds: float) -> Iterable[tuple[Channel, Any]]:
        """Return who said hello within `seconds`, and what; send away who says anything else, or nothing."""
        found = []
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listener:
                with suppress(OSError):
                    knocked, _ = self._listener.accept()
                    knocked.setblocking(False)
                    self._said[knocked] = bytearray(), monotonic() + _MANNERS
                    self._selector.register(knocked, selectors.EVENT_READ)
                continue
            knocked = key.fileobj  # type: ignore[assignment]
            try:
                hello = self._heard(knocked)
            except OSError:
                self._dismiss(knocked)
                knocked.close()
                continue
            if hello is not None:
                self._dismiss(knocked)
                found.append((Channel(knocked), hello))
        for knocked in [one for one, (_, until) in self._said.items() if monotonic() > until]:
            self._dismiss(knocked)
            knocked.close()
        return found

    def _heard(self, knocked: socket.socket) -> Any:
        """Return the hello of `knocked`, None where it is not complete; raise OSError where it never will be."""
        said, _ = self._said[knocked]
        more = knocked.recv(HEAD.size + _HELLO + 1 - len(said))
        said += more
        if not more:
            raise ConnectionError("left")
        if len(said) < HEAD.size:
            return None
        text, _ = sizes(said[: HEAD.size], _HELLO, 0)
        if len(said) > HEAD.size + text:
            raise ConnectionError("says more than hello")
        return decoded(said[HEAD.size :]) if len(said) == HEAD.size + text else None

    def _dismiss(self, knocked: socket.socket) -> None:
        self._selector.unregister(knocked)
        del self._said[knocked]
