"""What a launch keeps of itself, and which folder it takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commbench.measure import run


def test_each_session_keeps_where_with_what_and_how_busy_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    site = {"hosts": ["a", "a"], "cpus": ["0", "1"], "cores": 2, "crowded": False, "allowance": 1 << 30}
    session = json.loads(json.dumps(run._session(["-b", "8"], site)))
    assert session.keys() == {"started", "arguments", "site", "environment", "load"}
    assert (session["arguments"], session["site"]) == (["-b", "8"], site)
    assert session["environment"]["NCCL_ALGO"] == "Ring"
    assert session["load"] >= 0


def test_a_run_that_is_not_named_has_a_folder_of_its_own(tmp_path: Path) -> None:
    path = str(tmp_path / "now-allreduce")
    for name in ("now-allreduce", "now-allreduce-2", "now-allreduce-3"):
        found = run._unused(path)
        assert found.name == name
        found.mkdir()
