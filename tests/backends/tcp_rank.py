"""One rank of a world without MPI, as a process of its own: `python -m tests.backends.tcp_rank WHAT`.

The launcher's variables say who it is.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np

from commbench.backends._tcp_world import TcpWorld, open_tcp
from commbench.errors import RendezvousError, UsageError

SAMPLES = 1000


def samples(rank: int) -> Any:
    """What `rank` measured: shape (SAMPLES,), seconds."""
    return np.random.default_rng(rank).random(SAMPLES)


def agree(world: TcpWorld) -> None:
    """Try every way in which ranks agree, against NumPy over what all ranks hold."""
    me, n = world.rank, world.size
    every = range(n)
    assert (world.node, world.nodes, world.node_rank, world.node_size) == (0, 1, me, n)
    assert world.cores >= 1
    assert world.crowded == (n > world.cores)
    assert world.largest(me, -me, 2**62 - me) == (n - 1, 0, 2**62)
    assert world.total(me, 1, True) == (sum(every), n, n)
    assert world.command((me, 7, -(2**62))) == (0, 7, -(2**62))
    for speakers in ([], [n - 1], list(range(n // 2, n))):
        said = world.first_text(f"from {me}" if me in speakers else "")
        assert said == (f"from {speakers[0]}" if speakers else "")
    assert world.gather_text("é" * me) == (["é" * rank for rank in every] if me == 0 else None)
    assert world.gather({"rank": [me, None, 0.5]}) == ([{"rank": [r, None, 0.5]} for r in every] if me == 0 else None)
    for root in every:
        assert world.broadcast([me, "x" * 100_000], root) == [root, "x" * 100_000]
        given = world.hand_over(f"from {me}", root) if me in (0, root) else None
        assert given == (f"from {root}" if me == 0 else None)
    assert world.share_on_node(me) == 0
    world.meet_on_node()
    world.meet_asleep()
    held = np.array([samples(rank) for rank in every])
    oracles = {"rank0": held[0], "mean": held.mean(0), "min": held.min(0), "max": held.max(0)}
    for how, expected in oracles.items():
        merged = world.merge(samples(me), how)
        assert me or np.allclose(merged, expected, rtol=1e-14, atol=0), how
    assert (world.elementwise(samples(me), "min") == held.min(0)).all()
    assert (world.elementwise(samples(me), "max") == held.max(0)).all()
    assert world.elementwise(np.zeros(0), "max").shape == (0,)
    assert world.gather_numbers(me / 3) == ([rank / 3 for rank in every] if me == 0 else [])
    for ranks in ([0], [n - 1], list(reversed(every)), list(range(1, n)) or [0]):
        group = world.subgroup(ranks)
        assert (group is not None) == (me in ranks)
        if group is not None:
            place = ranks.index(me)
            assert (group.rank, group.size, group.node_rank, group.nodes) == (place, len(ranks), place, 1)
            assert group.command((me,)) == (ranks[0],)
            assert group.gather_text(str(me)) == ([str(rank) for rank in ranks] if place == 0 else None)
            assert group.total(me) == (sum(ranks),)
            group.close()
    assert world.total(1) == (n,)
    world.close()
    assert "mpi4py" not in sys.modules


def abort(world: TcpWorld) -> None:
    """The last rank ends the job with 77 while the others are somewhere else, for an hour."""
    world.meet()
    if world.rank == world.size - 1:
        world.abort(77)
    time.sleep(3600)


def abort_waiting(world: TcpWorld) -> None:
    """The last rank ends the job with 77 while the others wait for it in a call of the world."""
    world.meet()
    if world.rank == world.size - 1:
        world.abort(77)
    world.meet()


def die(world: TcpWorld) -> None:
    """The last rank is gone without a word; the others are somewhere else, for an hour."""
    world.meet()
    if world.rank == world.size - 1:
        os.kill(os.getpid(), 9)
    time.sleep(3600)


def hub_dies(world: TcpWorld) -> None:
    """Rank 0 is gone without a word."""
    world.meet()
    if world.rank == 0:
        os.kill(os.getpid(), 9)
    world.meet()


def out_of_step(world: TcpWorld) -> None:
    """The last rank makes another call than the others, who hear of it."""
    try:
        if world.rank == world.size - 1:
            world.gather(1)
        else:
            world.total(1)
    except RuntimeError as error:
        print(error, flush=True)
        world.abort(3)
    world.meet()


def main() -> None:
    what, place, *seconds = sys.argv[1:]
    try:
        world = open_tcp(place or None, float(seconds[0]) if seconds else 60.0)
    except (RendezvousError, UsageError) as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        raise SystemExit(9) from None
    globals()[what](world)


if __name__ == "__main__":
    main()
