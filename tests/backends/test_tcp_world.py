"""Ranks that meet without MPI: as processes, each started by the test with a launcher's variables."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import pytest

from commbench.backends._network import HEAD, MAGIC, Channel
from commbench.backends._rendezvous import File, first_host, listen, meeting
from commbench.backends._tcp_world import open_tcp, seated
from commbench.backends.world import Launch
from commbench.errors import RendezvousError, UsageError

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60


@contextmanager
def ranks(
    what: str,
    size: int,
    place: str,
    *,
    only: Sequence[int] | None = None,
    seconds: float = 60,
    env: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start ranks of a launch (all, or `only` some), and leave none of them behind."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI", "SLURM"))}
    command = [sys.executable, "-m", "tests.backends.tcp_rank", what, place, str(seconds)]
    with ExitStack() as stack:
        started = []
        for rank in range(size) if only is None else only:
            about = {"RANK": str(rank), "WORLD_SIZE": str(size), "PYTHONPATH": str(ROOT), **env}
            process = subprocess.Popen(
                command, env=kept | about, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            started.append(process)
        yield started


def ends(started: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """The exit codes of ranks, and what they said."""
    said = [process.communicate(timeout=SECONDS) for process in started]
    return [(process.returncode, out, err) for process, (out, err) in zip(started, said, strict=True)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_come_to_one_answer_by_a_file(tmp_path: Path, size: int) -> None:
    with ranks("agree", size, str(tmp_path / "place")) as started:
        for code, _, err in ends(started):
            assert code == 0, err
    assert list(tmp_path.iterdir()) == []


def test_ranks_come_to_one_answer_by_host_and_port() -> None:
    with ranks("agree", 3, f"127.0.0.1:{free_port()}") as started:
        assert [code for code, _, _ in ends(started)] == [0, 0, 0]


def test_master_addr_and_port_are_the_place_where_no_agent_listens_there() -> None:
    master = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    with ranks("agree", 2, "", env=master) as started:
        assert [code for code, _, _ in ends(started)] == [0, 0]


def test_ranks_of_srun_meet_on_the_first_host_of_the_step() -> None:
    step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "3", "SLURM_STEP_NODELIST": "localhost"}
    with ExitStack() as stack:
        started = []
        for rank in range(2):
            task = {**step, "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2", "RANK": "", "WORLD_SIZE": ""}
            started += stack.enter_context(ranks("agree", 2, "", only=[rank], env=task))
        assert [code for code, _, _ in ends(started)] == [0, 0]


def test_what_an_earlier_run_left_in_the_file_is_not_believed(tmp_path: Path) -> None:
    """There a server listens that takes everybody in, and the file names it with a token that nobody knows."""
    place = tmp_path / "place"
    with listen() as other:
        stale = {"run": "///", "addresses": ["127.0.0.1"], "port": other.getsockname()[1], "token": "0" * 32}
        place.write_text(json.dumps(stale))
        with ranks("agree", 2, str(place), only=[1]) as late:
            other.settimeout(SECONDS)
            taken, _ = other.accept()
            with ranks("agree", 2, str(place), only=[0]) as first:
                time.sleep(0.2)
                taken.close()
                assert [code for code, _, _ in ends([*first, *late])] == [0, 0]


def test_a_file_of_another_run_is_passed_over(tmp_path: Path) -> None:
    place = tmp_path / "place"
    File(str(place), "7/0//").tell(1)
    assert File(str(place), "8/0//").ask() is None
    found = File(str(place), "7/0//").ask()
    assert found is not None and found.port == 1


@pytest.mark.parametrize("what", ["abort", "abort_waiting"])
def test_all_ranks_end_with_the_code_of_the_one_that_aborts(tmp_path: Path, what: str) -> None:
    with ranks(what, 4, str(tmp_path / "place")) as started:
        assert [code for code, _, _ in ends(started)] == [77] * 4


def test_a_rank_that_dies_ends_the_others_wherever_they_are_and_is_named(tmp_path: Path) -> None:
    with ranks("die", 3, str(tmp_path / "place")) as started:
        found = ends(started)
    assert [code for code, _, _ in found] == [1, 1, -signal.SIGKILL]
    assert [err for _, _, err in found] == [
        "commbench: error: rank 2 ended without a word (killed, or its node is gone)\n",
        "",
        "",
    ]


def test_rank_0_that_dies_ends_the_others(tmp_path: Path) -> None:
    with ranks("hub_dies", 3, str(tmp_path / "place")) as started:
        found = ends(started)
    assert [code for code, _, _ in found] == [-signal.SIGKILL, 1, 1]
    assert "rank 0 ended without a word" in found[1][2]


def test_ranks_out_of_step_are_told_so(tmp_path: Path) -> None:
    with ranks("out_of_step", 3, str(tmp_path / "place")) as started:
        found = ends(started)
    assert [code for code, _, _ in found] == [3, 3, 3]
    assert "out of step" in found[0][1]


def test_ranks_that_never_come_are_named_once(tmp_path: Path) -> None:
    place = str(tmp_path / "place")
    with ranks("agree", 4, place, only=[0, 2], seconds=3) as started:
        found = ends(started)
    assert [code for code, _, _ in found] == [9, 9]
    assert found[0][1] == f"RendezvousError: ranks 1, 3 of 4 did not come to {place} in 3 s\n"
    assert found[1][1] == "RendezvousError: \n"


def test_rank_0_that_never_comes_is_named(tmp_path: Path) -> None:
    place = str(tmp_path / "place")
    with ranks("agree", 2, place, only=[1], seconds=1) as started:
        assert ends(started)[0][:2] == (
            9,
            f"RendezvousError: rank 0 was not at {place} in 1 s, as rank 1 of 2 saw it\n",
        )


def test_two_launches_at_one_place_are_told_apart() -> None:
    place = f"127.0.0.1:{free_port()}"
    with ranks("agree", 3, place, only=[0]) as one, ranks("agree", 2, place, only=[1]) as other:
        for code, out, _ in ends([*one, *other]):
            assert code == 9
            assert out.startswith("UsageError: a launch has one size") and "--rendezvous" in out


HELLO = json.dumps({"rank": 1, "size": 2, "line": "work", "token": "0" * 32, "about": {}}).encode()
HOSTILE = {
    "noise": os.urandom(64) + b"\0" * 4096,
    "HTTP": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "half a head": MAGIC,
    "a huge size": HEAD.pack(MAGIC, 1 << 31, 0),
    "no JSON": HEAD.pack(MAGIC, 4, 0) + b"\xff{}\x80",
    "no hello": HEAD.pack(MAGIC, 2, 0) + b"[]",
    "deep": HEAD.pack(MAGIC, 60_000, 0) + b"[" * 60_000,
    "a wrong token": HEAD.pack(MAGIC, len(HELLO), 0) + HELLO,
    "bytes behind": HEAD.pack(MAGIC, len(HELLO), 8) + HELLO + struct.pack("q", 0),
    "a pickle": b"\x80\x04\x95\x1e\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93.",
}


def test_who_knocks_and_is_no_rank_is_sent_away(tmp_path: Path) -> None:
    """All of them at once, some of them silent; the launch goes on."""
    port = free_port()
    place = f"127.0.0.1:{port}"
    with ranks("agree", 2, place, only=[0]) as first, ExitStack() as stack:
        deadline = time.monotonic() + SECONDS
        knocking: list[socket.socket] = []
        while not knocking and time.monotonic() < deadline:
            with suppress(OSError):
                knocking.append(stack.enter_context(socket.create_connection(("127.0.0.1", port))))  # says nothing
        for said in HOSTILE.values():
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            with suppress(OSError):
                stranger.sendall(said)
            stranger.settimeout(SECONDS)
            if said != MAGIC:
                with suppress(ConnectionError):
                    assert stranger.recv(1) == b"", said
        with ranks("agree", 2, place, only=[1]) as second:
            assert [code for code, _, _ in ends([*first, *second])] == [0, 0]


@pytest.mark.parametrize(
    "name", [name for name in HOSTILE if name not in ("no hello", "a wrong token", "bytes behind")]
)
def test_a_channel_takes_no_message_that_is_none(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    with one, other:
        one.sendall(HOSTILE[name])
        one.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionError):
            Channel(other).receive()


# Where ranks meet


def where(launcher: str, rendezvous: str | None = None, **environment: str) -> str:
    return meeting(Launch(launcher, 0, 2), rendezvous, 1.0, environment).name


def test_the_place_is_as_asked_or_as_the_launcher_tells(tmp_path: Path) -> None:
    slurm = {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "1", "SLURM_STEP_NODELIST": "n[03-04,7],m1"}
    assert where("Slurm", **slurm) == f"n03, port {61000 + (12 * 101 + 1) % 4500}"
    assert where("torchrun", MASTER_ADDR="n1", MASTER_PORT="29500") == "n1, port 29500"
    assert where("Slurm", "head:4000", **slurm) == "head, port 4000"
    assert where("torchrun", str(tmp_path / "place")) == str(tmp_path / "place")
    assert where("torchrun", f"{tmp_path}/place:4000") == f"{tmp_path}/place:4000"


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("n1", "n1"), ("n1,n2", "n1"), ("n[3-4,7],m", "n3"), ("n[007]", "n007"), ("r[1-2]n[04-05]", "r1n04"), ("", "")],
)
def test_the_first_host_of_a_list(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


@pytest.mark.parametrize("place", ["", ":4000", "head:0", "head:70000", "head:x", "/no such folder/place"])
def test_a_place_that_is_none_is_refused_with_the_rule(place: str) -> None:
    with pytest.raises(UsageError, match="--rendezvous"):
        where("torchrun", place)


@pytest.mark.parametrize(
    ("launcher", "environment"),
    [("torchrun", {}), ("torchrun", {"MASTER_ADDR": "n1"}), ("Slurm", {}), ("Slurm", {"SLURM_JOB_ID": "7"})],
)
def test_where_nobody_tells_the_remedy_is_named(launcher: str, environment: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--rendezvous HOST:PORT"):
        where(launcher, **environment)


def test_a_port_that_is_taken_is_refused_with_the_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on port {port} .*--rendezvous"):
            open_tcp(f"127.0.0.1:{port}", 1.0, Launch("torchrun", 0, 2), {})


def test_ranks_that_do_not_come_are_an_error_of_their_own() -> None:
    with pytest.raises(RendezvousError, match=r"^rank 1 of 2 did not come to 127\.0\.0\.1, port \d+ in 0\.1 s$"):
        open_tcp(f"127.0.0.1:{free_port()}", 0.1, Launch("torchrun", 0, 2), {})


def test_nodes_are_those_of_one_name_and_boot_numbered_by_their_lowest_ranks() -> None:
    def rank(host: str, *cpus: int, quota: int = 1 << 30) -> dict[str, object]:
        return {"host": host, "cpus": list(cpus), "quota": quota}

    seats = seated([rank("b", 0), rank("a", 0, 1), rank("b", 0), rank("a", 1, 2, quota=2), rank("c", 5)])
    assert [seat["node"] for seat in seats] == [0, 1, 0, 1, 2]
    assert [seat["node_rank"] for seat in seats] == [0, 0, 1, 1, 0]
    assert [seat["node_size"] for seat in seats] == [2, 2, 2, 2, 1]
    assert [seat["cores"] for seat in seats] == [1, 2, 1, 2, 1]
    assert {seat["nodes"] for seat in seats} == {3}
    assert {seat["crowded"] for seat in seats} == {True}  # two ranks of b share a core
    assert seats[0]["firsts"] == [0, 1, 0, 1, 4]
    assert not seated([rank("a", 0), rank("a", 1), rank("b", 0)])[0]["crowded"]
