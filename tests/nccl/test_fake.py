"""The fake library under mpirun, called as the real one is: through nccl4py, by the adapter that the backend uses."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.launch import launch

pytestmark = pytest.mark.mpi
RIGHT = [6.0] * 5  # the sum of 1, 2 and 3


def ranks(n: int, library: Path, task: str, bindings: str = "nccl4py", **injected: str) -> list[dict[str, Any]]:
    """Return what each of `n` ranks found in a task of tests/nccl/ranks.py."""
    env = {f"FAKE_NCCL_{name}": value for name, value in injected.items()}
    hidden = [] if bindings == "nccl4py" else [bindings]
    done = launch(n, "tests.nccl.ranks", str(library), task, *hidden, env=env)
    assert done.code == 0 and not done.left, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    for each in found:
        assert each.pop("bindings").lower().startswith(bindings)
    return found


@pytest.mark.parametrize("n", [2, 3])
def test_every_function_type_and_reduction_is_right(fake: Path, n: int) -> None:
    for found in ranks(n, fake, "collectives"):
        assert found["config"] and found["version"] >= 23100
        assert found["done"] == 10 * (3 * 5 + 6) and found["wrong"] == []


@pytest.mark.parametrize("n", [2, 3])
def test_an_old_library_is_right_too_and_takes_what_it_lacks_as_sends_and_receives(old_fake: Path, n: int) -> None:
    for found in ranks(n, old_fake, "collectives"):
        assert (found["config"], found["version"]) == (False, 22707)
        assert found["done"] == 10 * (3 * 5 + 6) and found["wrong"] == []


@pytest.mark.skipif(not find_spec("cupy"), reason="no CuPy in this environment: install cupy-cuda12x")
def test_cupy_carries_out_the_same_calls_and_passes_on_what_is_refused(old_fake: Path) -> None:
    for found in ranks(3, old_fake, "collectives", "cupy"):
        assert (found["config"], found["wrong"]) == (False, [])
    for found in ranks(2, old_fake, "variables", "cupy"):
        assert found["ring/simple"] == [[], []]
        assert found["tree/"][1][0] == 5 and "NCCL_ALGO was set to tree." in found["tree/"][1][1]
        assert found["warp/"][:2] == ["init", 5]
    for found in ranks(2, old_fake, "faults", "cupy", HANG_AT="2"):
        assert found["busy"] == [1, 0]
    assert all(found["made"] for found in ranks(2, old_fake, "memory", "cupy"))


def test_calls_in_place_are_right(fake: Path) -> None:
    assert ranks(3, fake, "in_place") == [{"right": [True] * 3}] * 3


def test_a_call_takes_what_exists_and_is_refused_what_does_not(fake: Path) -> None:
    for found in ranks(2, fake, "choices"):
        reduce = found["AllReduce"]
        for row in ("RING_LL", "RING_LL,RING_LL128,RING_SIMPLE", "tree"):
            assert reduce[row] == []
        for row in ("NVLS_SIMPLE", "NVLSTREE_SIMPLE", "COLLNET_DIRECT_SIMPLE"):  # not on this machine
            code, text = reduce[row]
            assert code == 4 and text.endswith("no algorithm in the selected set is available for AllReduce")
        for row in ("PAT_SIMPLE", "WITCHCRAFT"):  # nowhere
            code, text = reduce[row]
            assert code == 4 and f'config->algSelection "{row}" cannot be honored for AllReduce' in text
        assert found["AllGather"]["RING_LL128"] == []
        assert found["AllGather"]["TREE_LL"][0] == found["AllGather"]["PAT_SIMPLE"][0] == 4
        assert found["AlltoAll"]["RING_LL"][0] == 4
        assert found["after"] == [3.0] * 5  # a refusal leaves the communicator as it was


def test_a_communicator_takes_its_algorithm_from_the_environment(old_fake: Path) -> None:
    for found in ranks(2, old_fake, "variables"):
        assert found["ring/simple"] == found["^nvls/ll"] == found["/LL128"] == [[], []]
        reduce, gather = found["tree/"]
        assert reduce == [] and gather[0] == 5
        assert "No algorithm/protocol available for function AllGather" in gather[1]
        assert "NCCL_ALGO was set to tree." in gather[1]
        assert found["nvls/"][0][0] == 5
        assert [bool(refused) for refused in found["pat/"]] == [True, True]
        assert [bool(refused) for refused in found["allgather:pat/"]] == [False, True]  # not on this machine
        assert found["warp/"][:2] == ["init", 5] and 'Unrecognized element token "warp"' in found["warp/"][2]


def test_tuning_lines_say_what_ran_and_only_on_rank_0(fake: Path) -> None:
    first, *others = ranks(3, fake, "log")
    assert first == {
        "small": [["AllReduce", 20, "ring", "ll", 1]],
        "large": [["AllReduce", 65536, "tree", "simple", 2]],
        "gather": [["AllGather", 20, "ring", "ll", 1]],
        "sends": [],
        "tree ll128": [["AllReduce", 20, "tree", "ll128", 1]],
        "any ring": [["AllReduce", 65536, "ring", "simple", 2]],
    }
    for other in others:
        assert set(map(tuple, other.values())) == {()}


@pytest.mark.parametrize("form", ["2.30", "old", "rccl", "none"])
def test_tuning_lines_of_other_versions_are_read_too(fake: Path, form: str) -> None:
    first = ranks(2, fake, "log", LOG=form)[0]
    numbered = form in ("old", "rccl")
    function, channels, gathered = (None, None, 40) if numbered else ("AllReduce", 1, 20)
    if form == "none":
        assert set(map(tuple, first.values())) == {()}
        return
    assert first["tree ll128"] == [[function, 20, "tree", "ll128", channels]]
    assert first["gather"] == [[None if numbered else "AllGather", gathered, "ring", "ll", channels]]


def test_an_old_library_logs_channels_without_clusters(old_fake: Path) -> None:
    assert ranks(2, old_fake, "log")[0]["large"] == [["AllReduce", 65536, "tree", "simple", 2]]


def test_a_substitute_runs_without_a_word_but_in_the_log(fake: Path) -> None:
    first = ranks(2, fake, "log", SUBSTITUTE="ring")[0]
    assert first["tree ll128"] == [["AllReduce", 20, "ring", "ll128", 1]]
    assert ranks(2, fake, "choices", SUBSTITUTE="ring")[0]["AllReduce"]["NVLS_SIMPLE"] == []


def test_no_fault_unless_injected(fake: Path) -> None:
    for found in ranks(3, fake, "faults"):
        assert found == {"results": [RIGHT] * 5, "states": [0] * 5, "busy": [0, 0]}


def test_one_element_of_one_call_is_wrong_on_one_rank(fake: Path) -> None:
    found = ranks(3, fake, "faults", WRONG_AT="3", DEVICE_RANK="1")
    for rank, results in enumerate(each["results"] for each in found):
        wrong = [(call, element) for call in range(5) for element in range(5) if results[call][element] != 6.0]
        assert wrong == ([(2, 2)] if rank == 1 else [])


def test_an_asynchronous_error_shows_where_it_struck_and_the_others_wait(fake: Path) -> None:
    found = ranks(3, fake, "faults", ASYNC_ERROR_AT="2", DEVICE_RANK="2")
    for rank, each in enumerate(found):
        assert each["results"] == [RIGHT, *[[0.0] * 5] * 4]
        assert each["states"] == [0, *[2 if rank == 2 else 0] * 4]
        assert each["busy"] == [1, 0]  # until it is aborted


def test_a_hang_lasts_until_it_is_aborted(fake: Path) -> None:
    for each in ranks(3, fake, "faults", HANG_AT="5"):
        assert each == {"results": [RIGHT] * 4 + [[0.0] * 5], "states": [0] * 5, "busy": [1, 0]}


def test_communicators_of_some_ranks_and_of_one(fake: Path) -> None:
    first, second, third = ranks(3, fake, "groups")
    assert (first["pair"], second["pair"], third["pair"]) == ([], [5.0] * 5, [5.0] * 5)
    assert [each["alone"][0] for each in (first, second, third)] == [1.0, 2.0, 3.0]
    assert first["refused alone"] == []  # one rank reads no choice


def test_memory_is_allocated_and_registered_in_both_ways(fake: Path) -> None:
    for found in ranks(2, fake, "memory"):
        assert found["made"] and "must be aligned to 4096" in found["refused"]


def test_a_communicator_that_does_not_block_refuses_a_call_before_the_last_one_is_through(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found in ranks(2, fake, "unready"):
        assert found["at once"] == found["later"] == []
    monkeypatch.setenv("NCCL_COMM_BLOCKING", "0")
    for found in ranks(2, fake, "unready"):
        code, text = found["at once"]
        assert code == 4 and "Attempt to use communicator before the previous operation" in text
        assert found["later"] == []
