"""Messages between a few ranks, timed and checked: ping-pong, a stream one way, many senders to one, an all-reduce.

MPI only: the calls go straight to mpi4py's buffer interface, on a communicator of their own. Every visit sends data
that no other one does, into memory that holds the opposite of it, and what arrived is compared before and after the
timed messages. One rank of a cell keeps the time and says how many messages there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from commbench.backends.world import World
from commbench.measure.effort import FEWEST_ITERATIONS, fitting
from commbench.measure.timing import without_gc
from commbench.measure.tournament import ALLREDUCE, INCAST, PINGPONG, Duty
from commbench.measure.visit import summary
from commbench.results.status import OK, WRONG

if TYPE_CHECKING:
    from numpy.typing import NDArray

LATENCY_SECONDS, BANDWIDTH_SECONDS = 0.02, 0.05  # of timed messages that a visit aims at
WINDOW, ROOM = 8, 64 << 20  # messages on their way at once, and the bytes that a receiver has for them
KEPT_SAMPLES = 16  # of a visit: there are thousands of pairs
_PERIOD = 1021
_TAG = 78


class Messages:
    """What this rank has for its part in any cell of `duties`."""

    def __init__(self, world: World, duties: Sequence[Duty], iterations: int | None) -> None:
        self._world, self._mpi, self._iterations = world, world.mpi, iterations
        self._comm = world.comm.Dup()
        mine = [duty for duty in duties if world.rank in duty.ranks]
        self._send = np.empty(max((duty.size for duty in mine), default=0), dtype=np.uint8)
        self._recv = np.empty(max(map(room, mine), default=0), dtype=np.uint8)
        self._groups: dict[tuple[int, ...], Any] = {}

    def visit(self, duty: Duty, number: int) -> dict[str, Any] | None:
        """Do this rank's part of a cell in round `number`; return what the journal keeps, on the rank that timed it."""
        begin = perf_counter()
        with without_gc():
            if duty.kind == PINGPONG:
                samples, wrong = self._pingpong(duty, number)
            elif duty.kind == ALLREDUCE:
                samples, wrong = self._allreduce(duty, number)
            else:
                samples, wrong = self._stream(duty, number)
        if samples is None:
            return None
        kept = summary(np.array(samples) * 1e6)
        step = -(-len(kept["samples_us"]) // KEPT_SAMPLES)
        kept["samples_us"] = kept["samples_us"][::step]
        about = {"status": OK, "reason": "", "wrong": wrong, "loop": "plain"}
        if wrong:
            about |= {"status": WRONG, "reason": f"{wrong} bytes did not arrive as they were sent"}
        return {**about, **kept, "seconds": round(perf_counter() - begin, 6)}

    def close(self) -> None:
        for comm in self._groups.values():
            comm.Free()
        self._comm.Free()

    def _pingpong(self, duty: Duty, number: int) -> tuple[list[float] | None, int]:
        """Send there and back; a sample is half of a round trip."""
        first = self._world.rank == duty.ranks[0]
        peer = duty.ranks[first]
        send, recv = self._send[: duty.size], self._recv[: duty.size]
        send[:] = pattern(self._world.rank, number, duty.size)
        answer = pattern(peer, number, duty.size)
        recv[:] = ~answer
        if first:
            self._round_trips(peer, send, recv, 1)  # the first message of a pair may make its connection
            wrong = np.count_nonzero(recv != answer)
            (once,) = self._round_trips(peer, send, recv, 1)
            count = self._tell([peer], self._iterations or fitting(once, LATENCY_SECONDS))[0]
            recv[:] = ~answer
            samples = [taken / 2 for taken in self._round_trips(peer, send, recv, count)]
            return samples, int(wrong + np.count_nonzero(recv != answer)) + self._hear(peer)[0]
        self._replies(peer, send, recv, 1)
        wrong = np.count_nonzero(recv != answer)
        self._replies(peer, send, recv, 1)
        count = self._hear(peer)[0]
        recv[:] = ~answer
        self._replies(peer, send, recv, count)
        self._tell([peer], int(wrong + np.count_nonzero(recv != answer)))
        return None, 0

    def _round_trips(self, peer: int, send: NDArray[Any], recv: NDArray[Any], count: int) -> list[float]:
        there, back = self._comm.Send, self._comm.Recv
        taken = []
        for _ in range(count):
            start = perf_counter()
            there(send, peer, _TAG)
            back(recv, peer, _TAG)
            taken.append(perf_counter() - start)
        return taken

    def _replies(self, peer: int, send: NDArray[Any], recv: NDArray[Any], count: int) -> None:
        for _ in range(count):
            self._comm.Recv(recv, peer, _TAG)
            self._comm.Send(send, peer, _TAG)

    def _stream(self, duty: Duty, number: int) -> tuple[list[float] | None, int]:
        """Send windows of messages one way, from one rank or many to one; a sample is a message's part of a window.

        The receiver has room for each of them in time, and answers when a window is there. Of a stream the sender keeps
        the time, of an incast the receiver, which then begins each window.
        """
        incast = duty.kind == INCAST
        # Of an incast the first rank receives; of a stream, the one that is not its root.
        receiver = duty.ranks[0] if incast else next(rank for rank in duty.ranks if rank != duty.root)
        senders = [rank for rank in duty.ranks if rank != receiver]
        if self._world.rank != receiver:
            return self._senders_part(duty, number, receiver, keeps_time=not incast)
        return self._receivers_part(duty, number, senders, keeps_time=incast)

    def _senders_part(self, duty: Duty, number: int, receiver: int, keeps_time: bool) -> tuple[list[float] | None, int]:
        send = self._send[: duty.size]
        send[:] = pattern(self._world.rank, number, duty.size)
        self._send_windows(send, receiver, 1, 1, not keeps_time)
        (once,) = self._send_windows(send, receiver, 1, 1, not keeps_time)
        if keeps_time:
            windows, width = self._tell([receiver], *self._shape(duty, once))
        else:
            windows, width = self._hear(receiver)
        samples = self._send_windows(send, receiver, windows, width, not keeps_time)
        wrong = self._hear(receiver)[0]
        return (samples, wrong) if keeps_time else (None, 0)

    def _receivers_part(
        self, duty: Duty, number: int, senders: Sequence[int], keeps_time: bool
    ) -> tuple[list[float] | None, int]:
        self._poison(duty, number, senders, 1)
        self._receive_windows(duty, senders, 1, 1, keeps_time)
        wrong = self._differing(duty, number, senders, 1)
        (once,) = self._receive_windows(duty, senders, 1, 1, keeps_time)
        if keeps_time:
            windows, width = self._tell(senders, *self._shape(duty, once))
        else:
            windows, width = self._hear(senders[0])
        self._poison(duty, number, senders, width)
        samples = self._receive_windows(duty, senders, windows, width, keeps_time)
        wrong += self._differing(duty, number, senders, width)
        self._tell(senders, wrong)
        return (samples, wrong) if keeps_time else (None, 0)

    def _send_windows(self, send: NDArray[Any], receiver: int, windows: int, width: int, waits: bool) -> list[float]:
        """Return each window's seconds a message, as the sender sees them; one that `waits` is told when to begin."""
        isend, wait, recv = self._comm.Isend, self._mpi.Request.Waitall, self._comm.Recv
        nothing = bytearray()
        taken = []
        for _ in range(windows):
            if waits:
                recv(nothing, receiver, _TAG)
            start = perf_counter()
            wait([isend(send, receiver, _TAG) for _ in range(width)])
            recv(nothing, receiver, _TAG)
            taken.append((perf_counter() - start) / width)
        return taken

    def _receive_windows(
        self, duty: Duty, senders: Sequence[int], windows: int, width: int, begins: bool
    ) -> list[float]:
        wait, send = self._mpi.Request.Waitall, self._comm.Send
        peers = [peer for peer in senders for _ in range(width)]
        slots = list(zip(peers, self._slots(duty, senders, width), strict=True))
        nothing = b""
        taken = []
        posted = [self._comm.Irecv(slot, peer, _TAG) for peer, slot in slots]
        for window in range(windows):
            start = perf_counter()
            if begins:
                for peer in senders:
                    send(nothing, peer, _TAG)
            wait(posted)
            taken.append((perf_counter() - start) / width)
            if window + 1 < windows:  # before the senders may go on
                posted = [self._comm.Irecv(slot, peer, _TAG) for peer, slot in slots]
            for peer in senders:
                send(nothing, peer, _TAG)
        return taken

    def _shape(self, duty: Duty, once: float) -> tuple[int, int]:
        """Return how many windows of how many messages there should be, when a message takes `once` seconds."""
        count = self._iterations or fitting(once, BANDWIDTH_SECONDS)
        width = max(1, min(window(duty), count // FEWEST_ITERATIONS))
        return -(-count // width), width

    def _slots(self, duty: Duty, senders: Sequence[int], width: int) -> list[NDArray[Any]]:
        return [self._recv[i * duty.size : (i + 1) * duty.size] for i in range(len(senders) * width)]

    def _poison(self, duty: Duty, number: int, senders: Sequence[int], width: int) -> None:
        slots = iter(self._slots(duty, senders, width))
        for peer in senders:
            opposite = ~pattern(peer, number, duty.size)
            for _ in range(width):
                next(slots)[:] = opposite

    def _differing(self, duty: Duty, number: int, senders: Sequence[int], width: int) -> int:
        slots = iter(self._slots(duty, senders, width))
        wrong = 0
        for peer in senders:
            expected = pattern(peer, number, duty.size)
            wrong += sum(int(np.count_nonzero(next(slots) != expected)) for _ in range(width))
        return wrong

    def _allreduce(self, duty: Duty, number: int) -> tuple[list[float] | None, int]:
        """Sum over the ranks of a group; a sample is the time of the slowest rank, after a barrier."""
        comm = self._groups.get(duty.ranks)
        if comm is None:
            group = self._comm.Get_group().Incl(list(duty.ranks))
            comm = self._groups[duty.ranks] = self._comm.Create_group(group)
            group.Free()
        count = max(1, duty.size // 4)
        send, recv = np.empty(count, dtype=np.int32), np.full(count, -1, dtype=np.int32)
        send[:] = np.arange(count, dtype=np.int32) % _PERIOD + (self._world.rank + number)
        n = len(duty.ranks)
        answer = np.arange(count, dtype=np.int32) % _PERIOD * n + (sum(duty.ranks) + n * number)
        comm.Allreduce(send, recv)
        wrong = np.count_nonzero(recv != answer)
        start = perf_counter()
        comm.Allreduce(send, recv)
        shape = np.array([self._iterations or fitting(perf_counter() - start, BANDWIDTH_SECONDS)])
        comm.Bcast(shape)
        recv[:] = -1
        taken = np.empty(int(shape[0]))
        for i in range(taken.size):
            comm.Barrier()
            start = perf_counter()
            comm.Allreduce(send, recv)
            taken[i] = perf_counter() - start
        wrong += np.count_nonzero(recv != answer)
        slowest, every = np.empty_like(taken), np.array([wrong])
        comm.Allreduce(taken, slowest, op=self._mpi.MAX)
        comm.Allreduce(self._mpi.IN_PLACE, every)
        return (slowest.tolist(), int(every[0]) * 4) if self._world.rank == duty.ranks[0] else (None, 0)

    def _tell(self, peers: Sequence[int], *numbers: int) -> tuple[int, ...]:
        for peer in peers:
            self._comm.Send(np.array([*numbers, 0][:2], dtype=np.int64), peer, _TAG)
        return numbers

    def _hear(self, peer: int) -> tuple[int, int]:
        numbers = np.empty(2, dtype=np.int64)
        self._comm.Recv(numbers, peer, _TAG)
        return int(numbers[0]), int(numbers[1])


def window(duty: Duty) -> int:
    """Return how many messages of each sender may be on their way at once."""
    return max(1, min(WINDOW, ROOM // duty.volume)) if duty.kind != PINGPONG else 1


def room(duty: Duty) -> int:
    """Return the bytes that a rank needs to receive what comes at once."""
    return duty.volume * window(duty)


def pattern(rank: int, number: int, size: int) -> NDArray[Any]:
    """Return the bytes that `rank` sends in round `number`: a sequence, repeated, that no other has."""
    seed = np.random.SeedSequence([rank, number])
    sequence = np.frombuffer(np.random.Generator(np.random.PCG64(seed)).bytes(min(size, _PERIOD)), dtype=np.uint8)
    return np.resize(sequence, size)
