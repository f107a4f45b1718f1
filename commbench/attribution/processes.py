"""Work on many items by several processes at once, their results in order.

Not concurrent.futures: its processes share one pipe for their results, and where one is killed while it sends a large
one, as the kernel does when memory runs out, the reader waits forever.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_context, parent_process
from threading import Thread
from typing import TypeVar

from commbench.errors import UsageError

_SAFE = "PYTHONSAFEPATH"  # of Python 3.11 and newer
_FAREWELL = 0.5  # seconds for a process that has closed its lane to be gone
Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(
    work: Callable[[Item], Result], items: Sequence[Item], processes: int
) -> Generator[Result, None, None]:
    """Yield work(item) of each item; `work` is a function of a module, and does not raise.

    Raises UsageError where a process is killed. When the generator is closed, its processes are gone. They are
    spawned, since a fork would copy the locks of NumPy's threads.
    """
    context = get_context("spawn")
    children, lanes = [], {}
    todo = deque(enumerate(items))
    done: dict[int, Result] = {}
    try:
        for _ in range(min(processes, len(items))):
            try:
                ours, theirs = context.Pipe()
                child = context.Process(target=_serve, args=(theirs, work), daemon=True)
                with _apart():
                    child.start()
            except OSError:  # no more processes or files are allowed: those that there are do it
                break
            children.append(child)
            theirs.close()  # so that the lane ends when the child does
            lanes[ours] = todo.popleft()
            ours.send(lanes[ours][1])
        if not children:
            yield from map(work, items)
            return
        for place in range(len(items)):
            while place not in done:
                for lane in connection.wait(list(lanes)):
                    assert isinstance(lane, connection.Connection)
                    done[lanes.pop(lane)[0]] = lane.recv()
                    if todo:
                        lanes[lane] = todo.popleft()
                        lane.send(lanes[lane][1])
            yield done.pop(place)
    except (EOFError, OSError):
        for child in children:
            child.join(_FAREWELL)
        if not any((child.exitcode or 0) < 0 for child in children):  # of its own accord
            raise RuntimeError("a process that read traces ended; it has said why") from None
        raise UsageError(
            "a process that read traces was killed, perhaps for want of memory: read fewer of them at once "
            "(--processes 1)"
        ) from None
    finally:
        for child in children:
            child.kill()
            child.join()


@contextmanager
def _apart() -> Iterator[None]:
    """Let a process start without the current folder among its modules, as that may hold anybody's files.

    Ctrl-C is held back from it until it knows what to do then.
    """
    before = os.environ.get(_SAFE)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ[_SAFE] = "1"
    try:
        yield
    finally:
        del os.environ[_SAFE]
        os.environ.update({_SAFE: before} if before is not None else {})
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _serve(lane: connection.Connection, work: Callable[[Item], Result]) -> None:
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a terminal's Ctrl-C reaches it too: it ends without a word
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, ConnectionError):  # the process that asked is gone
        while True:
            lane.send(work(lane.recv()))


def _end_with_parent() -> None:
    """End this process when the one that started it has ended, however that did, and not when the file is read."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
