"""What a launch keeps of itself, and which folder it takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from commbench.measure import folder
from tests.fakes import launch

SITE: dict[str, Any] = {
    "seats": [{"host": "a", "node": 0, "on_node": place, "leaf": ""} for place in (0, 1)],
    **{"cpus": ["0", "1"], "cores": 2, "crowded": False, "allowance": 1 << 30},
}


def test_each_session_keeps_where_with_what_and_how_busy_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    session = json.loads(json.dumps(folder._session(launch(["-b", "8"], **SITE))))
    assert session.keys() == {"started", "arguments", "site", "environment", "load"}
    assert (session["arguments"], session["site"]) == (["-b", "8"], SITE)
    assert session["environment"]["NCCL_ALGO"] == "Ring"
    assert session["load"] >= 0
