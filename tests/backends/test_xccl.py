"""What NCCL and RCCL have in common, as far as it needs no library: devices, settings, the log, places in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from commbench.backends import _xccl, rccl
from commbench.backends._device import Identity
from commbench.backends._nccl_bindings import INVALID_ARGUMENT, INVALID_USAGE, Failure, Library
from commbench.backends.base import DEFAULTS, DEVICE_BUFFERS, Algorithm, Call, Selection, Settings, batching
from commbench.errors import Rejected, UsageError
from tests.numpy_collectives import COLLECTIVES

RING, AUTO = Algorithm("ring", "ring"), Algorithm("auto", "auto")


def seat(node: int, index: int, **changes: Any) -> dict[str, Any]:
    """A rank's device; each one of its own."""
    facts = {"host": f"h{node}", "node": node, "vendor": "NVIDIA", "name": "H200", "index": index}
    facts |= {"library": "NCCL 2.32.3", "bindings": "nccl4py 0.6.0", "per_call": True}
    return facts | {"bus": f"0000:{index:02x}:00.0", "uuid": f"uuid-{node}-{index}", "capability": [9, 0]} | changes


def call(collective: str, algorithm: Algorithm = RING, **changes: Any) -> Call:
    fields: dict[str, Any] = {"dtype": "float32", "itemsize": 4, "redop": "sum", "count": 6, "root": 0}
    return Call(COLLECTIVES[collective], algorithm, **(fields | {"inplace": True} | changes))


# Devices


def test_ranks_with_a_device_each_are_right() -> None:
    assert _xccl.faults([seat(node, index) for node in range(2) for index in range(4)], DEFAULTS) == ""


def test_two_ranks_on_one_device_are_named_with_it_and_the_remedies() -> None:
    fault = _xccl.faults([seat(0, 0), seat(1, 0), seat(1, 1), seat(1, 0)], DEFAULTS)
    assert "ranks 1, 3 have device 0 [0000:00:00.0] of h1, where 3 ranks see 2 devices" in fault
    for remedy in ("fewer ranks a node", "CUDA_VISIBLE_DEVICES", "--gpus-per-task=1", "--share-devices"):
        assert remedy in fault
    assert "where 2 ranks see 1 device:" in _xccl.faults([seat(0, 0), seat(0, 0)], DEFAULTS)


def test_a_device_may_be_shared_where_that_is_asked_for() -> None:
    assert _xccl.faults([seat(0, 0), seat(0, 0)], Settings(share_devices=True)) == ""


def test_partitions_of_one_device_are_devices_and_an_address_does_where_there_is_no_uuid() -> None:
    partitions = [seat(0, 0, bus="0000:01:00.0"), seat(0, 1, bus="0000:01:00.0")]
    assert _xccl.faults(partitions, DEFAULTS) == ""
    assert "ranks 0, 1 have" in _xccl.faults([each | {"uuid": ""} for each in partitions], DEFAULTS)


def test_devices_of_one_address_on_two_nodes_are_two() -> None:
    assert _xccl.faults([seat(node, 0, uuid="") for node in range(2)], DEFAULTS) == ""


def test_devices_of_two_vendors_are_refused_with_the_first_rank_of_each() -> None:
    seats = [seat(0, 0), seat(0, 1), seat(1, 0, vendor="AMD"), seat(1, 1, vendor="AMD")]
    fault = _xccl.faults(seats, Settings(share_devices=True))
    assert "rank 0 has NVIDIA's" in fault and "rank 2 has AMD's" in fault


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"library": "NCCL 2.27.7"}, "rank 2 NCCL 2.27.7 through"),
        ({"per_call": False, "bindings": "CuPy 14.0"}, "CuPy"),
    ],
)
def test_ranks_with_other_libraries_are_named(change: dict[str, Any], said: str) -> None:
    seats = [seat(0, 0), seat(0, 1), seat(1, 0, **change)]
    fault = _xccl.faults(seats, DEFAULTS)
    assert "rank 0 has NCCL 2.32.3 through nccl4py 0.6.0" in fault and said in fault and "--library" in fault
    assert _xccl.faults([seat(0, 0), seat(0, 1, bindings="nccl4py 0.7.0")], DEFAULTS) == ""


# What the environment has chosen


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without files; /etc/nccl.conf is left out."""
    read = Path.read_text

    def elsewhere(path: Path, *arguments: Any, **named: Any) -> str:
        if path == Path("/etc/nccl.conf"):
            raise FileNotFoundError
        return read(path, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", elsewhere)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name", ["NCCL_ALGO", "NCCL_PROTO", "NCCL_SYM_KERNEL", "RCCL_OVERRIDE_ALGO", "RCCL_OVERRIDE_PROTO"]
)
def test_a_variable_that_chooses_is_found(home: Path, name: str) -> None:
    assert _xccl.chosen_already({name: "Ring"}) == f"{name}=Ring in the environment"
    assert _xccl.chosen_already({name: "", "NCCL_DEBUG": "INFO"}) == ""


def test_a_file_that_chooses_is_found_and_comments_are_not_settings(home: Path) -> None:
    file = home / ".nccl.conf"
    file.write_text("# NCCL_ALGO=Ring\n\n  NCCL_DEBUG=WARN\n")
    assert _xccl.configuration({}) == {file: ["NCCL_DEBUG=WARN"]}
    assert _xccl.chosen_already({}) == ""
    file.write_text("NCCL_PROTO = LL\n")
    assert _xccl.chosen_already({}) == f"NCCL_PROTO = LL in {file}"


def test_a_named_file_is_read_instead_of_the_one_at_home(home: Path, tmp_path: Path) -> None:
    (home / ".nccl.conf").write_text("NCCL_ALGO=Ring\n")
    named = tmp_path / "ours.conf"
    named.write_text("NCCL_IB_HCA=mlx5\n")
    assert _xccl.configuration({"NCCL_CONF_FILE": str(named)}) == {named: ["NCCL_IB_HCA=mlx5"]}
    assert _xccl.configuration({"NCCL_CONF_FILE": str(tmp_path / "absent")}) == {}


class Opening(_xccl.Xccl):
    name, vendor = "nccl", "NVIDIA"
    count = classmethod(lambda cls: (1, ""))

    @staticmethod
    def device(index: int) -> Any:
        return SimpleNamespace(identity=Identity("NVIDIA", "H200", index, "0000:00:00.0", "uuid", None))


def opened_by_a_rank(told: str) -> str:
    """What `open` says on a rank, where another one has said `told`."""
    world = SimpleNamespace(node=0, node_rank=0, first_text=lambda text: text or told)
    with pytest.raises(UsageError) as error:
        Opening().open(cast(Any, world))
    return str(error.value)


def test_every_rank_looks_at_what_its_own_node_has_chosen(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = SimpleNamespace(vendor="NVIDIA", file="libnccl.so.2", name="NCCL", bindings="", has_call_config=True)
    monkeypatch.setattr(_xccl, "load", lambda path: loaded)
    for name in _xccl._CHOOSING:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NCCL_CONF_FILE", str(home / "ours.conf"))
    (home / "ours.conf").write_text("NCCL_ALGO=Ring\n")
    assert "NCCL_ALGO=Ring in" in opened_by_a_rank("")
    (home / "ours.conf").write_text("")
    assert opened_by_a_rank("rank 3 has chosen") == "rank 3 has chosen"


def test_a_library_of_the_other_vendor_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _xccl._CHOOSING:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("NCCL_CONF_FILE", raising=False)
    other = SimpleNamespace(vendor="AMD", file="/opt/librccl.so.1", name="RCCL 2.27.7")
    monkeypatch.setattr(_xccl, "load", lambda path: other)
    assert "NVIDIA devices, and /opt/librccl.so.1 is RCCL 2.27.7" in opened_by_a_rank("")


# What ran

_LINE = "host:1:1 [0] NCCL INFO {}: 20 Bytes -> Algo {} proto LL channel{{Lo..Hi}}={{0..{}}}\n"


def test_the_last_line_of_the_function_tells_what_ran() -> None:
    log = (
        _LINE.format("AllReduce", "RING", 3) + _LINE.format("AllReduce", "TREE", 1) + _LINE.format("Reduce", "RING", 0)
    )
    found = _xccl.selection(log, "AllReduce")
    assert (found.algorithm, found.protocol, found.channels) == ("tree", "ll", 2)
    assert found.evidence == "library's tuning log"


def test_without_a_line_nothing_is_claimed() -> None:
    for log in ("", "host:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2\n", _LINE.format("AllGather", "RING", 0)):
        found = _xccl.selection(log, "AllReduce")
        assert (found.algorithm, found.protocol, found.evidence) == (None, None, "unknown: no line in the tuning log")


def test_a_line_of_an_unknown_form_is_quoted() -> None:
    line = "host:1:1 [0] NCCL INFO AllReduce: 20 Bytes -> Method SPIRAL"
    found = _xccl.selection(f"nothing\n{line}\n", "AllReduce")
    assert found.algorithm is None and found.evidence.startswith("unknown: ") and found.evidence.endswith(line)


# Places in memory: NCCL's user guide, "In-place Operations", and nccl.h. In blocks: where input and output begin, as
# far as the rank has them.

_IN_PLACE: dict[str, Callable[[int, bool], tuple[int | None, int | None]]] = {
    "allreduce": lambda rank, is_root: (0, 0),  # sendbuff == recvbuff
    "broadcast": lambda rank, is_root: (0, 0),
    "reduce": lambda rank, is_root: (0, 0),
    "allgather": lambda rank, is_root: (rank, 0),  # sendbuff == recvbuff + rank * sendcount
    "reducescatter": lambda rank, is_root: (0, rank),  # recvbuff == sendbuff + rank * recvcount
    "gather": lambda rank, is_root: (rank, 0) if is_root else (0, None),  # sendbuff == recvbuff + root * count
    "scatter": lambda rank, is_root: (0, rank) if is_root else (None, 0),  # recvbuff == sendbuff + root * count
}


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("name", list(_IN_PLACE))
def test_in_place_is_where_the_library_has_it(name: str, n: int) -> None:
    root = n - 1
    for rank in range(n):
        places = _xccl.Xccl().shared_buffer(call(name, root=root), rank, n)
        assert places is not None
        for place, right in zip(places, _IN_PLACE[name](rank, rank == root), strict=True):
            assert right is None or place == right


@pytest.mark.parametrize("name", list(COLLECTIVES))
def test_out_of_place_there_are_two_buffers(name: str) -> None:
    assert _xccl.Xccl().shared_buffer(call(name, inplace=False), 0, 3) is None


# Batches


def test_a_sample_is_a_twentieth_of_the_iterations_or_a_launch_of_a_graph_or_with_a_barrier_one() -> None:
    assert batching("loop", 1000, 0) == (50, 20)
    assert batching("loop", 7, 0) == (1, 7)
    assert batching("barrier", 1000, 0) == (1, 1000)
    assert batching("loop", 100, 20) == batching("barrier", 100, 20) == (100, 20)  # a graph holds all, as nccl-tests'


# Refusals


class Opened(_xccl.Xccl):
    """A backend of two ranks past `open`, with a library that has aborted nothing yet."""

    name, vendor = "nccl", "NVIDIA"

    def __init__(self, nodes: Sequence[int] = (0, 0)) -> None:
        self.library = "NCCL 2.32.3"
        self._lib: Any = SimpleNamespace(
            version=23203,
            lacks=lambda kind: "",
            has_call_config=True,
            aborted=[],
            abort=lambda comm: self._lib.aborted.append(comm),
        )
        self._world: Any = SimpleNamespace(rank=1, size=2)
        self._seats = [seat(node, rank) for rank, node in enumerate(nodes)]
        self._device: Any = SimpleNamespace(identity=SimpleNamespace(capability=(8, 0)))
        self._comm, self._registered, self._seen, self.generation = 7, {}, {}, 3
        self._lost = self._given_up = False

    @property
    def aborted(self) -> list[int]:
        found: list[int] = self._lib.aborted
        return found

    def _logging(self, folder: str) -> Any:
        return nullcontext()


def test_what_does_not_exist_is_refused_with_the_facts_of_this_machine() -> None:
    backend = Opened()
    assert "and these have 8.0" in backend.refusal(call("allreduce", Algorithm("nvls", "nvls"), inplace=False), (0, 1))
    assert "has no AllGather by tree" in backend.refusal(
        call("allgather", Algorithm("tree", "tree"), redop=None), (0, 1)
    )
    assert backend.refusal(call("allreduce"), (0, 1)) == ""
    assert backend.refusal(call("alltoall", AUTO, redop=None), (0, 1)) == "NCCL 2.32.3 has no all-to-all in place"
    chain = Algorithm("collnet_chain", "collnet_chain")
    assert "this is one node" in backend.refusal(call("allreduce", chain), (0, 1))
    assert Opened((0, 1)).refusal(call("allreduce", chain), (0, 1)) == ""  # the library knows


def test_a_group_on_one_node_of_two_is_refused_what_joins_nodes() -> None:
    backend, chain = Opened((0, 0, 1, 1)), call("allreduce", Algorithm("collnet_chain", "collnet_chain"))
    assert "this is one node" in backend.refusal(chain, (2, 3))
    assert backend.refusal(chain, (1, 2)) == ""
    pat = call("allgather", Algorithm("pat", "pat"), redop=None, inplace=False)
    backend._device.identity.capability = (9, 0)
    assert "one GPU a node only" in backend.refusal(pat, range(4))
    assert backend.refusal(pat, (1, 3)) == ""


def test_kinds_of_memory_came_with_versions() -> None:
    backend = Opened()
    backend._lib.lacks = lambda kind: f"no {kind}" if kind == "symmetric" else ""
    assert backend.refusal(call("allreduce", buffer="symmetric"), (0, 1)) == "no symmetric"
    assert backend.refusal(call("allreduce", buffer="plain"), (0, 1)) == ""


@pytest.mark.parametrize(
    ("version", "lacking"),
    [(21805, ["registered", "symmetric"]), (21900, ["symmetric"]), (22605, ["symmetric"]), (22700, [])],
)
def test_memory_that_an_older_library_lacks_is_named_with_the_version_it_needs(
    version: int, lacking: list[str]
) -> None:
    every = dict.fromkeys(("ncclGetVersion", "ncclCommRegister", "ncclCommWindowRegister"))
    library = Library.__new__(Library)
    library._c, library.version, library.name = cast(Any, SimpleNamespace(**every)), version, "NCCL old"
    said = {kind: library.lacks(kind) for kind in DEVICE_BUFFERS}
    assert [kind for kind, text in said.items() if text] == lacking
    if "symmetric" in lacking:
        assert "came with NCCL 2.27.0" in said["symmetric"] and "this is NCCL old" in said["symmetric"]


def test_after_giving_up_the_main_thread_goes_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Opened()
    backend.pass_by()
    backend.give_up()
    assert backend.aborted == [7]

    class Parked(Exception):
        """Raised where a rank would sleep for ever."""

    def park(seconds: float) -> None:
        raise Parked

    monkeypatch.setattr(_xccl, "sleep", park)
    enqueued: list[int] = []
    plan = _xccl.XcclPlan(backend, call("allreduce"), [lambda: enqueued.append(1)])
    steps: list[Callable[[], Any]] = [*plan.runs, backend.enqueue_barrier, backend.pass_by]
    for step in steps:
        with pytest.raises(Parked):
            step()
    assert not enqueued


def test_a_plan_ends_with_its_communicator() -> None:
    backend = Opened()
    plan = _xccl.XcclPlan(backend, call("allreduce"), [lambda: pytest.fail("enqueued on a communicator that is gone")])
    backend.recover(failed=True)
    with pytest.raises(RuntimeError, match="that one is gone"):
        plan.runs[0]()


def test_a_new_communicator_is_looked_at_anew() -> None:
    backend = Opened()
    backend._seen[call("allreduce")] = Selection("ring", "seen before")
    backend.recover(failed=True)
    assert backend._seen == {}


def test_what_is_turned_off_is_said_for_auto_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rocm(Opened):
        side_paths = rccl.Backend.side_paths

    for name, value in Rocm.side_paths.items():
        monkeypatch.setenv(name, value)
    backend = Rocm()
    backend._forced = True
    *ranks, said = backend.devices()
    assert len(ranks) == 2 and "for auto too: RCCL_DDA_ENABLE=0" in said
    backend._forced = False
    assert len(backend.devices()) == 2


def test_ranks_of_one_device_share_what_is_free_there() -> None:
    backend = Opened()
    backend._device.free, backend._sharing = (lambda: 900), 3
    assert backend.allowance() == 300


def failing(code: int, algorithm: Algorithm) -> None:
    """A call inside `using` that fails with `code`."""
    backend = Opened()
    backend._function, backend._made_for = "AllReduce", ("", AUTO)
    with backend.using(COLLECTIVES["allreduce"], algorithm):
        raise Failure("NCCL 2.32.3: no", code)


@pytest.mark.parametrize("code", [INVALID_ARGUMENT, INVALID_USAGE])
def test_a_refusal_of_what_was_asked_for_is_a_rejection(code: int) -> None:
    with pytest.raises(Rejected, match="no"):
        failing(code, RING)


@pytest.mark.parametrize(("algorithm", "code"), [(AUTO, INVALID_ARGUMENT), (RING, 1), (RING, 3), (RING, 6)])
def test_another_error_is_no_rejection(algorithm: Algorithm, code: int) -> None:
    with pytest.raises(Failure, match="no") as error:
        failing(code, algorithm)
    assert not isinstance(error.value, Rejected)


@pytest.mark.parametrize(
    ("failed", "per_call", "aborted"), [(True, True, [7]), (True, False, [7]), (False, False, [7]), (False, True, [])]
)
def test_a_communicator_outlives_only_the_refusal_of_one_call(failed: bool, per_call: bool, aborted: list[int]) -> None:
    backend = Opened()
    backend._lib.has_call_config, backend._lost, generation = per_call, True, backend.generation
    backend.recover(failed)
    assert backend.aborted == aborted and not backend._lost
    assert (backend.generation > generation) == bool(aborted)


def test_the_log_is_off_again_after_a_call_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    backend, levels = Opened(), list[str]()
    backend._world.rank = 0
    backend._lib.reset_debug = lambda: levels.append(os.environ["NCCL_DEBUG"])
    with pytest.raises(Failure), _xccl.Xccl._logging(backend, str(tmp_path)):
        raise Failure("no", INVALID_USAGE)
    assert levels == ["INFO", "WARN"]


def test_a_call_that_was_seen_is_not_logged_again() -> None:
    ran: list[int] = []
    logged: list[str] = []

    class Logging(Opened):
        def _logging(self, folder: str) -> Any:
            logged.append(folder)
            (Path(folder) / "log").write_text(_LINE.format("AllReduce", "TREE", 1))
            return nullcontext()

    backend = Logging()
    first = backend.observe(call("allreduce"), lambda: ran.append(1))
    again = backend.observe(call("allreduce"), lambda: ran.append(2))
    assert first == again and first.algorithm == "tree"
    assert ran == [1, 2] and len(logged) == 1
    backend.observe(call("allreduce", count=7), lambda: ran.append(3))
    assert len(logged) == 2


def test_every_algorithm_is_offered_where_there_is_a_choice() -> None:
    names = [algorithm.name for algorithm in Opened().algorithms(COLLECTIVES["allreduce"])]
    assert names == ["auto", "ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat"]
    assert [algorithm.name for algorithm in Opened().algorithms(COLLECTIVES["gather"])] == ["auto"]
