"""The NCCL backend's whole sweep over a fake library: what was asked, what ran, what is refused, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commbench.measure.collective import REDOPS
from tests.mpi.launch import launch
from tests.nccl import build

DOORS = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall", "gather", "scatter", "sendrecv")


def missing() -> str:
    reason = build.missing()
    if not reason:
        try:
            import nccl.bindings.nccl  # noqa: F401
        except ImportError as error:
            reason = f"nccl4py cannot be imported ({error}): install nccl4py"
    return reason


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="session")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.build(tmp_path_factory.mktemp("new"))


@pytest.fixture(scope="session")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.build(tmp_path_factory.mktemp("old"), old=True)


class Run:
    """One sweep over a fake library, which left JSON lines."""

    def __init__(self, library: Path, n: int, door: str, *options: str, **environment: str) -> None:
        command = ["--backend", "tests.nccl.fake", "--library", str(library), "--rounds", "1", "--json", *options]
        done = launch(n, f"commbench.{door}", *command, env=environment, timeout=120)
        self.code, self.err = done.code, done.stderr
        self.records: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.left == 0

    def only(self, **fields: Any) -> dict[str, Any]:
        (found,) = [r for r in self.records if all(r[name] == value for name, value in fields.items())]
        return found


def statuses(run: Run) -> dict[str, str]:
    return {f"{r['algorithm']} {r['protocol']}": r["status"] for r in run.records}


@pytest.mark.parametrize(("door", "n"), [(door, 2 + i % 3) for i, door in enumerate(DOORS)] + [("allreduce", 1)])
def test_every_door_has_right_answers(new: Path, door: str, n: int) -> None:
    run = Run(new, n, door, "-b", "8", "-e", "4K", "-f", "16", "--inplace", "both")
    assert run.code == 0, run.err
    assert {r["status"] for r in run.records} <= {"ok", "not_applicable", "rejected"}, run.err
    assert any(r["status"] == "ok" and r["wrong"] == 0 for r in run.records)
    assert all(r["simulated"] for r in run.records)
    assert "SIMULATED" in run.err.splitlines()[0]


@pytest.mark.parametrize("which", ["new", "old"])
def test_each_algorithm_and_protocol_says_what_was_asked_and_what_ran(
    request: pytest.FixtureRequest, which: str
) -> None:
    run = Run(request.getfixturevalue(which), 3, "allreduce", "-b", "1K", "-e", "64K", "-f", "64", "--proto", "all")
    assert run.code == 0, run.err
    for size in (1024, 65536):  # the library itself would take ll for the one, simple for the other
        for algorithm in ("ring", "tree"):
            for protocol in ("ll", "ll128", "simple"):
                found = run.only(algorithm=algorithm, protocol=protocol, size=size)
                ran = found["observed_algorithm"], found["observed_protocol"]
                assert (found["status"], *ran) == ("ok", algorithm, protocol)
                assert found["evidence"] == "library's tuning log"
                assert found["channels"] >= 1
        nvls = run.only(algorithm="nvls", protocol="simple", size=size)
        assert nvls["status"] == "rejected" and "invalid" in nvls["reason"]
        assert run.only(algorithm="nvls", protocol="ll", size=size)["status"] == "not_applicable"
        assert run.only(algorithm="pat", protocol="simple", size=size)["status"] == "not_applicable"
    assert run.only(algorithm="auto", size=1024)["observed_algorithm"] == "ring"
    assert run.only(algorithm="auto", size=65536)["observed_algorithm"] == "tree"


def test_an_all_gather_has_no_tree(new: Path) -> None:
    run = Run(new, 2, "allgather", "-b", "1K", "-e", "1K", "--algo", "ring,tree")
    assert statuses(run) == {"ring None": "ok", "tree None": "not_applicable"}
    assert "tree" in run.only(algorithm="tree")["reason"]


@pytest.mark.parametrize("dtype", ["half", "bfloat16", "int8", "double"])
def test_every_reduction_of_every_type_is_right(new: Path, dtype: str) -> None:
    run = Run(new, 3, "allreduce", "-b", "960", "-e", "960", "-d", dtype, "-o", "all", "--algo", "auto")
    assert run.code == 0, run.err
    assert {r["redop"]: (r["status"], r["wrong"]) for r in run.records} == dict.fromkeys(REDOPS, ("ok", 0))


def test_what_ran_instead_is_caught(new: Path) -> None:
    run = Run(new, 2, "allreduce", "-b", "1K", "-e", "1K", "--algo", "tree", FAKE_NCCL_SUBSTITUTE="ring")
    assert run.code == 1
    assert run.only(algorithm="tree")["status"] == "substituted"
    assert run.only(algorithm="tree")["observed_algorithm"] == "ring"
    assert run.only(algorithm="tree")["busbw"] is None


@pytest.mark.parametrize("format", ["2.32", "2.30", "old", "rccl"])
def test_the_log_of_every_generation_is_read(new: Path, format: str) -> None:
    run = Run(new, 2, "allreduce", "-b", "1K", "-e", "1K", "--algo", "tree", FAKE_NCCL_LOG=format)
    assert run.only(algorithm="tree")["observed_algorithm"] == "tree", run.err


def test_without_a_line_in_the_log_nothing_is_claimed(new: Path) -> None:
    run = Run(new, 2, "allreduce", "-b", "1K", "-e", "1K", "--algo", "tree", FAKE_NCCL_LOG="none")
    found = run.only(algorithm="tree")
    assert (found["status"], found["observed_algorithm"]) == ("ok", None)
    assert found["evidence"].startswith("unknown")


def test_a_wrong_element_withdraws_the_bandwidth(new: Path) -> None:
    for call in range(1, 30):  # whichever call is the check of the answer
        run = Run(
            new, 2, "allreduce", "-b", "1K", "-e", "1K", "-n", "5", "--algo", "tree", FAKE_NCCL_WRONG_AT=str(call)
        )
        if run.only(algorithm="tree")["status"] == "wrong":
            assert run.code == 1
            assert run.only(algorithm="tree")["busbw"] is None
            return
    pytest.fail("no wrong element was found")


def test_an_asynchronous_error_alone_fails_its_cell(new: Path) -> None:
    run = Run(new, 1, "allreduce", "-b", "1K", "-e", "1K", "-n", "3", FAKE_NCCL_ASYNC_ERROR_AT="5")
    assert run.code == 1
    (failed,) = run.records[-1:]
    assert failed["status"] == "failed" and "system error" in failed["reason"]


@pytest.mark.parametrize(("code", "status"), [(1, "failed"), (2, "failed"), (6, "failed"), (4, "rejected")])
def test_only_a_refused_choice_is_a_rejection(new: Path, code: int, status: str) -> None:
    options = ("-b", "1K", "-e", "2K", "-f", "2", "-n", "3", "--algo", "ring")
    run = Run(new, 2, "allreduce", *options, FAKE_NCCL_ERROR_AT="1", FAKE_NCCL_ERROR=str(code))
    assert run.code == (status == "failed"), run.err
    assert [r["status"] for r in run.records] == [status, "ok"]
    assert "injected" in run.records[0]["reason"]


def test_what_a_choice_of_the_librarys_own_was_refused_is_a_failure(new: Path) -> None:
    options = ("-b", "1K", "-e", "1K", "-n", "3", "--algo", "auto")
    run = Run(new, 2, "allreduce", *options, FAKE_NCCL_ERROR_AT="1", FAKE_NCCL_ERROR="4")
    assert run.code == 1 and run.records[0]["status"] == "failed"


@pytest.mark.parametrize("at", ["1", "2", "4", "8"])  # witness, warm-up, timed loop, last check
def test_a_lost_communicator_is_not_used_again_and_the_next_cell_has_a_new_one(new: Path, at: str) -> None:
    options = ("-b", "1K", "-e", "2K", "-f", "2", "-n", "3", "--algo", "auto")
    run = Run(new, 1, "allreduce", *options, FAKE_NCCL_LATE_ERROR_AT=at)
    assert run.code == 1 and "used after its end" not in run.err
    assert [r["status"] for r in run.records] == ["failed", "ok"]


@pytest.mark.parametrize("which", ["new", "old"])
def test_ranks_stay_in_step_where_one_lost_the_communicator_in_the_last_call(
    request: pytest.FixtureRequest, which: str
) -> None:
    options = ("-b", "1K", "-e", "2K", "-f", "2", "-n", "3", "--algo", "ring", "-T", "20")
    library = request.getfixturevalue(which)
    run = Run(library, 2, "allreduce", *options, FAKE_NCCL_LATE_ERROR_AT="8", FAKE_NCCL_DEVICE_RANK="1")
    assert run.code == 1, run.err
    assert [r["status"] for r in run.records] == ["failed", "ok"]
    assert "rank 1: NCCL" in run.err


def test_an_asynchronous_error_of_one_rank_ends_the_job_that_waits_for_it(new: Path) -> None:
    options = ("-b", "1K", "-e", "1K", "-n", "3", "--algo", "ring", "-T", "3")
    run = Run(new, 2, "allreduce", *options, FAKE_NCCL_ASYNC_ERROR_AT="5", FAKE_NCCL_DEVICE_RANK="1")
    assert run.code == 124
    assert "rank 1: NCCL" in run.err and "system error" in run.err
    assert "at allreduce ring" in run.err


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_call_that_hangs_ends_the_job_with_124_and_names_the_cell(new: Path, rank: str) -> None:
    options = ("-b", "1K", "-e", "1K", "-n", "3", "--algo", "ring,tree", "-T", "3")
    run = Run(new, 2, "allreduce", *options, FAKE_NCCL_HANG_AT="12", FAKE_NCCL_DEVICE_RANK=rank)
    assert run.code == 124, run.err
    assert "timeout" in run.err and "allreduce" in run.err


def test_kinds_of_memory_and_graphs_are_measured_beside_one_another(new: Path) -> None:
    run = Run(new, 2, "allreduce", "-b", "1K", "-e", "1K", "--algo", "auto", "--buffer", "all", "-G", "5", "-n", "20")
    assert run.code == 0, run.err
    assert {r["buffer"]: (r["status"], r["loop"], r["batch"], r["iterations"]) for r in run.records} == dict.fromkeys(
        ("plain", "registered", "symmetric"), ("ok", "graph", 20, 5)
    )


@pytest.mark.parametrize("door", ["allreduce", "reducescatter"])  # in place, a second run would add to the first
def test_the_answer_of_a_graph_is_checked(new: Path, door: str) -> None:
    options = ("-b", "1K", "-e", "1K", "--algo", "auto", "-G", "2", "-n", "12", "--inplace", "both")
    assert {r["status"] for r in Run(new, 2, door, *options).records} == {"ok"}
    lost = Run(new, 2, door, *options, FAKE_NCCL_GRAPH="lost")
    assert lost.code == 1 and {r["status"] for r in lost.records} == {"wrong"}


def test_the_common_clock_is_not_for_devices(new: Path) -> None:
    run = Run(new, 2, "allreduce", "-b", "1K", "-e", "1K", "--method", "clock")
    assert run.code == 2 and "take loop or barrier" in run.err


@pytest.mark.parametrize("kind", ["registered", "symmetric"])
@pytest.mark.parametrize("door", ["broadcast", "scatter", "gather", "reduce", "allreduce"])
def test_memory_is_registered_with_the_communicator_of_each_group(new: Path, kind: str, door: str) -> None:
    options = ("-b", "1K", "-e", "1K", "-n", "3", "--algo", "auto", "--ranks", "2,N", "-T", "20")
    run = Run(new, 3, door, *options, "--buffer", kind, FAKE_NCCL_NEEDS=kind)
    assert run.code == 0, run.err
    assert {r["group"]: r["status"] for r in run.records} == {"first 2": "ok", "all": "ok"}


def test_the_kinds_of_memory_are_told_apart(new: Path) -> None:
    options = ("-b", "1K", "-e", "1K", "-n", "3", "--algo", "auto", "--buffer", "all")
    run = Run(new, 2, "allreduce", *options, FAKE_NCCL_NEEDS="symmetric")
    assert {r["buffer"]: r["status"] for r in run.records} == {
        "plain": "failed",
        "registered": "failed",
        "symmetric": "ok",
    }
    assert "a buffer is not symmetric" in run.only(buffer="plain")["reason"]


def test_groups_have_the_devices_of_the_launch(new: Path, tmp_path: Path) -> None:
    file = tmp_path / "groups"
    file.write_text("odd: 1,3\neven: 0,2\nlast: 3\n")
    options = ("-b", "1K", "-e", "1K", "-n", "3", "--algo", "auto", "--groups", str(file))
    run = Run(new, 4, "allreduce", *options, FAKE_NCCL_DEVICES="4")  # a process takes one device only, once
    assert run.code == 0, run.err
    assert {r["group"]: r["status"] for r in run.records} == {"odd": "ok", "even": "ok", "last": "ok"}


def test_a_group_that_cannot_connect_ends_all_ranks_with_its_words(new: Path) -> None:
    options = ("-b", "1K", "-e", "1K", "--ranks", "2,N", "-T", "20")
    run = Run(new, 3, "allreduce", *options, FAKE_NCCL_INIT_ERROR="2")
    assert run.code == 2 and run.err.count("error: NCCL") == 1
    assert "no communicator of 2 ranks" in run.err and "rank 1: NCCL" in run.err


def test_without_an_id_all_ranks_say_why_and_end(new: Path) -> None:
    run = Run(new, 2, "allreduce", "-b", "1K", "-e", "1K", "-T", "20", FAKE_NCCL_ID_ERROR="1")
    assert run.code == 2 and "no socket interface found" in run.err


def test_the_devices_memory_is_what_sizes_are_planned_by(new: Path) -> None:
    options = ("--algo", "auto", "-n", "3", "-e", "512K", "-b", "512K")
    roomy = Run(new, 2, "allreduce", *options, FAKE_NCCL_MEMORY=str(20 << 20))
    assert roomy.code == 0, roomy.err
    for more, devices in (("--buffer=all", "2"), ("--share-devices", "1")):  # three times as much; half as much each
        tight = Run(new, 2, "allreduce", *options, more, FAKE_NCCL_MEMORY=str(16 << 20), FAKE_NCCL_DEVICES=devices)
        assert tight.code == 2 and "-e 512K does not fit the memory" in tight.err


def test_two_ranks_on_one_device_are_refused_unless_allowed(new: Path) -> None:
    options = ("-b", "1K", "-e", "1K", "--algo", "auto")
    run = Run(new, 2, "allreduce", *options, FAKE_NCCL_DEVICES="1")
    assert run.code == 2
    assert "ranks 0, 1 have device 0" in run.err and "--share-devices" in run.err
    assert Run(new, 2, "allreduce", *options, "--share-devices", FAKE_NCCL_DEVICES="1").code == 0


def test_no_device_is_said_in_one_line(new: Path) -> None:
    run = Run(new, 2, "allreduce", "-b", "1K", "-e", "1K", FAKE_NCCL_DEVICES="0")
    assert run.code == 2
    assert run.err.count("error:") == 1


@pytest.mark.parametrize("variable", ["NCCL_ALGO", "NCCL_PROTO"])
def test_an_algorithm_that_the_environment_chose_is_refused(new: Path, variable: str) -> None:
    run = Run(new, 2, "allreduce", "-b", "1K", "-e", "1K", **{variable: "ring"})
    assert run.code == 2 and f"{variable}=ring" in run.err


def test_communicators_that_do_not_block_are_refused(new: Path) -> None:
    run = Run(new, 2, "allreduce", "-b", "1K", "-e", "1K", NCCL_COMM_BLOCKING="0")
    assert run.code == 2 and "unset NCCL_COMM_BLOCKING" in run.err


def test_an_algorithm_that_a_file_chose_is_refused(new: Path, tmp_path: Path) -> None:
    file = tmp_path / "nccl.conf"
    file.write_text("# ours\nNCCL_ALGO=Tree\n")
    run = Run(new, 2, "allreduce", "-b", "1K", "-e", "1K", NCCL_CONF_FILE=str(file))
    assert run.code == 2 and f"NCCL_ALGO=Tree in {file}" in run.err


@pytest.mark.parametrize(("file", "said"), [("/etc/hostname", "cannot load"), ("libm.so.6", "no NCCL")])
def test_a_library_that_is_none_is_refused(new: Path, file: str, said: str) -> None:
    run = Run(new, 1, "allreduce", "-b", "1K", "-e", "1K", "--library", file)
    assert run.code == 2 and said in run.err
