"""What ranks compute together is what one process computes alone, on the data of all of them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from commbench.training.inject import Injection, parse
from commbench.training.model import PRESETS, transformer
from commbench.training.workload import Replica, Workload, optimizer
from tests.mpi.launch import MPIRUN, launch, library
from tests.training.weights import STEPS, WORK, flat

pytestmark = pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed beside this interpreter")
needs_mpirun = pytest.mark.skipif(not library(), reason=f"no mpirun beside this interpreter ({MPIRUN})")
HEALTHY = Injection((), 0, 0)


def alone(shares: int) -> tuple[Any, list[float]]:
    """The weights after all steps of one process whose batch is the data of all shares, and its losses."""
    import torch

    model = transformer(WORK.preset, WORK.seed)
    update, losses = optimizer(model.parameters()), []
    for step in range(STEPS):
        parts = [WORK.draw(share, step, micro) for share in range(shares) for micro in range(WORK.accumulate)]
        update.zero_grad()
        loss = model(torch.cat(parts))
        loss.backward()
        update.step()
        losses.append(loss.item())
    return flat(model)[::37], losses


@needs_mpirun
@pytest.mark.mpi
def test_every_way_of_training_gives_what_one_process_gives_on_all_data() -> None:
    done = launch(3, "tests.training.weights", timeout=120)
    assert (done.code, done.left) == (0, 0), done.stderr
    (found,) = done.records

    before = flat(transformer(WORK.preset, WORK.seed))[::37]
    for way, shares, computing in (("ddp synchronous", 3, (0, 1, 2)), ("ps synchronous", 2, (1, 2))):
        weights, losses = alone(shares)
        moved = np.abs(weights - before).max()
        for rank in found[way]:  # the server and the workers hold the same weights
            # AdamW divides by the size of a gradient, so that a rounding error of a tiny one shows whole.
            assert np.abs(np.array(rank["weights"]) - weights).max() < 0.05 * moved
            assert np.median(np.abs(np.array(rank["weights"]) - weights)) < 1e-4 * moved
        mine = [[found[way][rank]["losses"][step] for rank in computing] for step in range(STEPS)]
        assert np.mean(mine, axis=1) == pytest.approx(losses, rel=1e-5)

    assert found["synchronous updates"] == STEPS
    assert found["asynchronous updates"] == STEPS * 2  # one for each push
    for way in ("ps synchronous", "ps asynchronous"):
        server, *workers = found[way]
        assert server["losses"] == server["exchanges"] == [None] * STEPS
        for queue, update, move in (exchange for worker in workers for exchange in worker["exchanges"]):
            assert queue >= 0 and update > 0 and move > 0
    ends = [np.array(rank["weights"]) for rank in found["ps asynchronous"]]
    assert any((ends[0] == one).all() for one in ends[1:])  # whoever came last has what the server has


def test_gradients_of_micro_batches_add_up_to_the_mean_over_all() -> None:
    import torch

    replica = Replica(WORK, share=1, device=torch.device("cpu"), injection=HEALTHY)
    loss = replica.gradients(step=4)
    whole = transformer(WORK.preset, WORK.seed)
    expected = whole(torch.cat([WORK.draw(1, 4, micro) for micro in range(WORK.accumulate)]))
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for mine, theirs in zip(replica.module.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_only_the_last_micro_batch_is_sent() -> None:
    import torch

    replica = Replica(WORK, share=0, device=torch.device("cpu"), injection=HEALTHY)
    held: list[str] = []

    class Hold:
        def __enter__(self) -> None:
            held.append("hold")

        def __exit__(self, *error: object) -> None:
            held.append("release")

    def net(tokens: Any) -> Any:
        held.append("forward")
        return replica.module(tokens)

    replica.gradients(0, net, Hold)
    assert held == ["hold", "forward", "release", "forward"]


def test_data_repeats_itself_and_differs_by_share_step_micro_batch_and_seed() -> None:
    places = [(share, step, micro) for share in range(2) for step in range(3) for micro in range(2)]
    found = [WORK.draw(*place).numpy() for place in places]
    assert all((WORK.draw(*place).numpy() == tokens).all() for place, tokens in zip(places, found, strict=True))
    assert len({tokens.tobytes() for tokens in found}) == len(places)
    other = Workload(WORK.preset, WORK.batch, WORK.sequence, WORK.accumulate, seed=2)
    assert (other.draw(0, 0, 0).numpy() != found[0]).any()
    assert found[0].shape == (2, 17)
    assert found[0].min() >= 0 and found[0].max() < WORK.preset.vocabulary


def test_products_in_16_bits_leave_weights_and_gradients_in_32() -> None:
    import torch

    work = Workload(WORK.preset, 2, 16, 1, dtype="bfloat16")
    replica = Replica(work, 0, torch.device("cpu"), HEALTHY)
    in_32 = Replica(WORK, 0, torch.device("cpu"), HEALTHY).gradients(0)
    loss = replica.gradients(0)
    assert {one.grad.dtype for one in replica.module.parameters()} == {torch.float32}
    assert loss.item() == pytest.approx(in_32.item(), rel=0.05)
    assert loss.item() != in_32.item()


def test_a_slow_rank_has_the_operations_that_its_factor_says() -> None:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    work = Workload(PRESETS["tiny"], batch=2, sequence=64, accumulate=2)
    counts = []
    for faults in ([], [parse("slow-compute=0:2.5")]):
        replica = Replica(work, 0, torch.device("cpu"), Injection(faults, 0, 0))
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            replica.gradients(0)
        counts.append(counter.get_total_flops())
    assert counts[0] == work.flops
    assert counts[1] / counts[0] == pytest.approx(2.5, rel=0.05)  # in whole matrix products
