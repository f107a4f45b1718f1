"""Who is late: named from where each rank stands, over a node's shared memory and the line between nodes."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from commbench.backends._network import addresses
from commbench.backends.world import World
from commbench.measure import watchdog
from commbench.measure.watchdog import (
    BETWEEN,
    SETUP,
    Board,
    Guide,
    Line,
    Standing,
    Watchdog,
    culprits,
    visit_of,
)

WAITS = "Barrier (x.py:1) in _time (y.py:2)"
BUSY = "sleep (z.py:3) in run (y.py:4)"


def standing(place: str, cell: int = SETUP, number: int = 0) -> Standing:
    return Standing(place, cell, number)


@pytest.mark.parametrize(
    ("reports", "size", "said"),
    [
        (
            {0: WAITS, 1: WAITS, 2: ""},
            3,
            "rank 2 not arrived: no sign of life (stopped, or its node is gone)",
        ),
        ({0: WAITS}, 3, "ranks 1, 2 not arrived: no sign of life (stopped, or its node is gone)"),  # not heard of
        ({0: WAITS, 1: BUSY, 2: ""}, 3, "rank 2 not arrived: no sign of life (stopped, or its node is gone)"),
        (
            {0: WAITS, 1: BUSY, 2: WAITS},
            3,
            f"rank 1 at {BUSY} not arrived where the others wait, at {WAITS}",
        ),
        (
            {0: BUSY, 1: "other", 2: WAITS, 3: WAITS},
            4,
            f"rank 0 at {BUSY}; rank 1 at other not arrived where the others wait, at {WAITS}",
        ),
        ({0: BUSY, 1: WAITS, 2: WAITS, 3: WAITS, 4: BUSY}, 5, f"ranks 0, 4 at {BUSY} not arrived where the others"),
        ({0: WAITS, 1: WAITS}, 2, f"all ranks wait at the same place, {WAITS}: the library is stuck"),
        ({0: WAITS}, 1, f"all ranks wait at the same place, {WAITS}: the library is stuck"),
        ({1: WAITS, 0: BUSY}, 2, f"the ranks stand at different places: rank 0 at {BUSY}; rank 1 at {WAITS}"),
        ({0: WAITS}, 30, "ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 and 13 more not arrived"),
    ],
)
def test_the_ranks_that_the_others_wait_for_are_named(reports: dict[int, str], size: int, said: str) -> None:
    assert culprits(reports, range(size)).startswith(said)


def test_only_the_ranks_of_the_group_are_waited_for() -> None:
    reports = {0: "", 1: WAITS, 2: BUSY, 3: WAITS}
    assert culprits(reports, [1, 3]).startswith(f"all ranks wait at the same place, {WAITS}")
    assert culprits(reports, [3, 2, 1]) == f"rank 2 at {BUSY} not arrived where the others wait, at {WAITS}"
    assert culprits(reports, [0, 1]).startswith("rank 0 not arrived: no sign of life")


# A node's board


class Node:
    """The ranks of one node in one process: rank 0 makes the board, and the others open it before it loses its name."""

    def __init__(self, size: int, first: int = 0) -> None:
        self.size, self.path, self.boards = size, "", list[Board]()
        opened = list[Board]()

        def others() -> None:
            if opened:
                return  # they meet once more when all have it
            assert Path(self.path).stat().st_mode & 0o777 == 0o600
            opened.extend(Board(cast(World, NodeWorld(self, rank, first, lambda: None))) for rank in range(1, size))

        self.boards = [Board(cast(World, NodeWorld(self, 0, first, others)))]
        self.boards += opened

    def __enter__(self) -> list[Board]:
        return self.boards

    def __exit__(self, *error: object) -> None:
        for board in self.boards:
            board.close()


class NodeWorld:
    def __init__(self, node: Node, rank: int, first: int, meet: Callable[[], None]) -> None:
        self._node, self.node_rank, self.rank, self.node_size = node, rank, first + rank, node.size
        self.meet_on_node = meet

    def share_on_node(self, path: str) -> str:
        self._node.path = path or self._node.path
        return self._node.path


def test_a_board_has_no_name_once_all_have_it() -> None:
    node = Node(3)
    with node:
        assert node.path
        assert not os.path.exists(node.path)


def test_a_roll_call_on_one_rank_is_heard_by_all() -> None:
    with Node(3) as boards:
        assert not any(board.called() for board in boards)
        boards[1].call()
        assert all(board.called() for board in boards)


def test_who_answers_says_where_it_stands_and_who_does_not_is_empty() -> None:
    with Node(3, first=4) as boards:
        boards[0].answer(WAITS)
        boards[2].answer("x" * 1000)
        reports = boards[1].reports()
    assert reports.keys() == {4, 5, 6}
    assert (reports[4].place, reports[5].place) == (WAITS, "")
    assert set(reports[6].place) == {"x"}
    assert 100 < len(reports[6].place) < 256


def test_an_answer_stands_whatever_the_rank_turns_to() -> None:
    with Node(2) as boards:
        boards[0].answer(WAITS)
        boards[0].at(3, 1)
        assert boards[1].reports() == {0: standing(WAITS, 3, 1), 1: standing("")}


def test_the_visit_is_the_one_that_most_ranks_are_at() -> None:
    with Node(3) as boards:
        assert visit_of(boards[0].reports()) == (SETUP, 0)
        for board, cell in zip(boards, (5, 5, 4), strict=True):
            board.at(cell, 2)
        assert visit_of(boards[2].reports()) == (5, 2)
        boards[0].at(BETWEEN, 0)
        boards[1].at(BETWEEN, 0)
        assert visit_of(boards[2].reports()) == (
            4,
            2,
        )  # between two visits most have ended theirs: it is the one under way


# The line between nodes


class Nodes:
    """Ranks in threads, each the `node_rank`-th of a node of its own, that gather and broadcast."""

    def __init__(self, *node_ranks: int) -> None:
        self._node_ranks = node_ranks
        self._met = threading.Barrier(len(node_ranks), timeout=10)
        self._values: list[Any] = [None] * len(node_ranks)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = value
        self._met.wait()
        values = list(self._values)
        self._met.wait()
        return values

    def lines(self) -> list[Line]:
        made: dict[int, Line] = {}

        def make(rank: int) -> None:
            made[rank] = Line(cast(World, RankWorld(self, rank, self._node_ranks[rank])))

        threads = [threading.Thread(target=make, args=(rank,)) for rank in range(len(self._node_ranks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [made[rank] for rank in range(len(self._node_ranks))]


class RankWorld:
    def __init__(self, nodes: Nodes, rank: int, node_rank: int) -> None:
        self._nodes, self.rank, self.node_rank = nodes, rank, node_rank

    def gather(self, value: Any) -> list[Any] | None:
        values = self._nodes.exchange(self.rank, value)
        return None if self.rank else values

    def broadcast(self, value: Any) -> Any:
        return self._nodes.exchange(self.rank, value)[0]


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "addresses", lambda: ["127.0.0.1"])


def until(condition: Callable[[], bool]) -> bool:
    """Whether it comes true within a moment."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.usefixtures("loopback")
def test_a_roll_call_on_one_node_wakes_the_others() -> None:
    one, other = Nodes(0, 0).lines()
    with closing(one), closing(other):
        assert not other.heard()
        one.say({})
        assert until(other.heard)
        assert other.gathered() == {}


@pytest.mark.usefixtures("loopback")
def test_reports_of_any_length_reach_every_node() -> None:
    one, other, third = Nodes(0, 1, 0).lines()
    report = {rank: standing("" if rank == 7 else f"{WAITS} {'é' * 80} {rank}", rank, 1 << 40) for rank in range(450)}
    with closing(one), closing(other), closing(third):
        one.say(report)
        for line in (one, other, third):
            assert until(lambda line=line: len(line.gathered()) == len(report))  # type: ignore[misc]
            assert line.gathered() == report


@pytest.mark.usefixtures("loopback")
def test_the_third_rank_of_a_node_says_and_does_not_hear() -> None:
    one, third = Nodes(0, 2).lines()
    with closing(one), closing(third):
        assert (one.listens, third.listens) == (True, False)
        third.say({3: standing(WAITS)})
        assert until(lambda: one.gathered() == {3: standing(WAITS)})
        one.say({0: standing(WAITS)})
        assert not third.heard()


@pytest.mark.usefixtures("loopback")
@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"\xff\xfe", b"[]", b"7", b"null", b"{}", b'{"token": "other", "report": [[0, "x"]]}'),
        *(b'{"token": TOKEN}', b'{"token": TOKEN, "report": 7}', b'{"token": TOKEN, "report": [["x", "y"]]}'),
        *(b'{"token": TOKEN, "report": [[0, "y"]]}', b'{"token": TOKEN, "report": [[0, ["y", 1]]]}'),
    ],
)
def test_what_strangers_send_is_passed_over(text: bytes) -> None:
    one, other = Nodes(0, 0).lines()
    with closing(one), closing(other), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        token = json.dumps(one._token).encode()
        stranger.sendto(text.replace(b"TOKEN", token), ("127.0.0.1", other._socket.getsockname()[1]))
        time.sleep(0.05)
        assert other.gathered() == {}
        one.say({0: standing(WAITS)})
        assert until(lambda: other.gathered() == {0: standing(WAITS)})


def test_this_host_has_addresses_that_can_be_bound() -> None:
    found = addresses()
    assert found
    for address in found:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))


class Member:
    """A rank of two nodes of two, whose threads start one after another: what they share is exchanged by hand."""

    size, nodes, node_size = 4, 2, 2

    def __init__(self, rank: int, boards: Sequence[Board], lines: Sequence[Line]) -> None:
        self.rank, self.node_rank = rank, rank % 2
        self.board, self.line = boards[rank], lines[rank]


@pytest.mark.usefixtures("loopback")
def test_a_group_of_another_node_is_blamed_for_its_own_visit(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with Node(2) as first, Node(2, first=2) as second:
        boards, lines = [*first, *second], Nodes(0, 1, 0, 1).lines()
        ended = threading.Barrier(5)
        monkeypatch.setattr(watchdog, "Board", lambda world: world.board)
        monkeypatch.setattr(watchdog, "Line", lambda world: world.line)
        monkeypatch.setattr(watchdog, "end", lambda world, guide: ended.wait(20))
        monkeypatch.setattr(Watchdog, "_position", lambda dog: {0: BUSY, 1: BUSY}.get(dog._world.rank, WAITS))
        told = Told()
        dogs = [Watchdog(cast(World, Member(rank, boards, lines)), timeout=1.0) for rank in range(4)]
        for dog in dogs:
            dog.tell(told)
            dog.begin(BETWEEN)  # the ranks of the first node wait for the next command
        for dog in dogs[2:]:
            dog.begin(7, 3)
        ended.wait(20)
        for dog in dogs:
            dog.close()
    assert told.kept == [(7, 3)]
    said = capfd.readouterr().err
    assert said.startswith(
        f"commbench: timeout (-T 1) at cell 7: no progress in 1 s: all ranks wait at the same place, {WAITS}"
    )
    assert len(said.splitlines()) == 1


class Told(Guide):
    def __init__(self) -> None:
        self.kept = list[tuple[int, int]]()

    def describe(self, cell: int) -> str:
        return f"at cell {cell}"

    def concerned(self, cell: int) -> Sequence[int]:
        return [2, 3]

    def record(self, cell: int, number: int, reason: str) -> None:
        self.kept.append((cell, number))

    def give_up(self) -> None:
        """Nothing hangs."""
