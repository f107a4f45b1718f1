"""Axes, bytes, presets and matrices as flows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commbench.errors import UsageError
from commbench.recommend.traffic import amounts, axes, matrix, preset, step


def test_the_first_axis_varies_fastest() -> None:
    flows = {flow.axis: flow for flow in step(axes("tp=2,pp=3,dp=4")).flows}
    assert flows["tp"].members[0].tolist() == [0, 1]
    assert flows["pp"].members[0].tolist() == [0, 2, 4]
    assert flows["dp"].members[0].tolist() == [0, 6, 12, 18]
    for name, flow in flows.items():
        assert sorted(flow.members.ravel().tolist()) == list(range(24)), name
    assert (flows["pp"].collective, flows["dp"].collective) == ("sendrecv", "allreduce")


def test_bytes_are_how_often_and_how_many() -> None:
    assert amounts("tp=96x64M,dp=4G", {"tp": 2, "dp": 2}) == {"tp": (96, 64 << 20), "dp": (1, 4 << 30)}


def test_bytes_that_nobody_said_are_said() -> None:
    assert step({"tp": 2, "dp": 2}).notes == (
        "nobody said what tp, dp sends in a step: 1 GiB is assumed (--bytes, --preset)",
    )
    assert step({"tp": 1, "dp": 2}, {"dp": (1, 8)}).notes == ()


def test_bytes_of_some_axes_and_not_of_others_are_refused() -> None:
    with pytest.raises(UsageError, match=r"what tp sends and not what pp, dp does.*of every axis, or of none"):
        step({"tp": 2, "pp": 2, "dp": 2}, {"tp": (1, 8)})


@pytest.mark.parametrize(
    ("model", "grid", "micro_batches", "amounts"),
    [
        # 96 layers on 16 stages; 2 x 2048 x 12288 bytes of activations; 4 x 175e9 / 128 of gradients
        ("gpt3-175b", "tp=8,pp=16,dp=2", 4, {"tp": (96, 50331648), "pp": (4, 6291456), "dp": (1, 5468750000)}),
        # 32 layers; 2 x 2 x 4096 x 4096 of keys and values
        ("llama2-7b", "cp=4", 8, {"cp": (512, 67108864)}),
        # 80 layers on 4 stages; 2 x 2 x 8192 x 8192 / 4 of keys and values, which 8 of 64 heads have; half a sequence
        (
            "llama3-70b",
            "tp=4,cp=2,pp=4",
            3,
            {"tp": (240, 67108864), "cp": (120, 8388608), "pp": (3, 16777216)},
        ),
        # 3 times each of 32 layers in each micro-batch; 2 x 6.7e9 / 32 of a layer; 4 x 6.7e9 / 8 of gradients
        ("llama2-7b", "fsdp=8,dp=2", 5, {"fsdp": (480, 418750000), "dp": (1, 3350000000)}),
        ("llama2-7b", "tp=2,fsdp=8,pp=4", 5, {"fsdp": (120, 209375000), "tp": (160, 33554432), "pp": (5, 16777216)}),
        # 45,097,156,608 parameters in experts, an eighth of which each has: 7,239,987,968 with the rest
        ("mixtral-8x7b", "ep=8,dp=2", 2, {"ep": (256, 67108864), "dp": (1, 28959951872)}),
        (
            "mixtral-8x7b",
            "fsdp=4,ep=8,dp=2",
            1,
            {"fsdp": (96, 452499248), "ep": (128, 67108864), "dp": (1, 7239987968)},
        ),
        # two experts a token, half a sequence, half of the tokens on either tensor rank; 8 of 32 heads
        (
            "mixtral-8x7b",
            "tp=2,cp=2,ep=8,pp=2",
            3,
            {"tp": (192, 16777216), "cp": (96, 8388608), "ep": (192, 16777216), "pp": (3, 8388608)},
        ),
    ],
)
def test_a_preset_follows_its_formulas(
    model: str, grid: str, micro_batches: int, amounts: dict[str, tuple[int, int]]
) -> None:
    assert preset(model, axes(grid), micro_batches) == amounts


def test_a_model_without_experts_has_no_axis_of_them() -> None:
    with pytest.raises(UsageError, match="no experts"):
        preset("gpt3-175b", {"ep": 8})


def test_a_matrix_is_read(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("0,5,0\n1,9,2\n0,0,0\n")
    (flow,) = matrix(tmp_path / "m.csv").flows
    assert flow.size == 8 and flow.matrix is not None and flow.matrix[1].tolist() == [1, 0, 2]
    np.save(tmp_path / "m.npy", np.eye(2)[::-1])
    assert matrix(tmp_path / "m.npy").ranks == 2
    for text in ("1,2\n", "0,-1\n1,0\n", "0,0\n0,0\n", "a,b\n"):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(UsageError, match=r"bad\.csv"):
            matrix(tmp_path / "bad.csv")
