"""Work on many items by several processes at once, their results in order.

Not concurrent.futures: its processes share one pipe for their results, and where one is killed while it sends a large
one, as the kernel does when memory runs out, the reader waits forever.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Generator, Sequence
from multiprocessing import connection, get_context
from typing import TypeVar

from commbench.errors import UsageError

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
            ours, theirs = context.Pipe()
            child = context.Process(target=_serve, args=(theirs, work), daemon=True)
            child.start()
            children.append(child)
            theirs.close()  # so that the lane ends when the child does
            lanes[ours] = todo.popleft()
            ours.send(lanes[ours][1])
        for place in range(len(items)):
            while place not in done:
                for lane in connection.wait(list(lanes)):
                    assert isinstance(lane, connection.Connection)
                    done[lanes.pop(lane)[0]] = lane.recv()
                    if todo:
                        lanes[lane] = todo.popleft()
                        lane.send(lanes[lane][1])
            yield done.pop(place)
    except (EOFError, ConnectionError):
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


def _serve(lane: connection.Connection, work: Callable[[Item], Result]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a terminal's Ctrl-C reaches this process too: it ends without a word
    try:
        while True:
            lane.send(work(lane.recv()))
    except (EOFError, ConnectionError):  # the process that asked is gone
        return
