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


def test_a_preset_follows_its_formulas() -> None:
    found = preset("gpt3-175b", {"tp": 8, "pp": 16, "dp": 2}, micro_batches=4)
    assert found["tp"] == (4 * 6 * 4, 2 * 2048 * 12288)  # 96 layers on 16 stages
    assert found["pp"] == (4, 2 * 2048 * 12288 // 8)
    assert found["dp"] == (1, int(4 * 175e9 / 128))
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
