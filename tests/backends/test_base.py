"""Backends are found by their file's name, or as a module of the user's own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from commbench.backends import base
from commbench.backends.base import Reach, find, names
from commbench.errors import UsageError


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path for modules of the user's own."""
    (tmp_path / "mylab").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path / "mylab"


def test_the_backends_are_the_files_beside_the_contract() -> None:
    here = Path(base.__file__).parent
    modules = {path.stem for path in here.glob("*.py") if not path.stem.startswith("_")}
    assert "mpi" in names()
    assert set(names()) == {name for name in modules if hasattr_backend(here / f"{name}.py")}
    assert names() == sorted(names())


def hasattr_backend(path: Path) -> bool:
    return re.search(r"^class Backend\b(?!\(Protocol\))", path.read_text(encoding="utf-8"), re.MULTILINE) is not None


def test_every_backend_is_found_and_says_whether_it_can_run_without_raising() -> None:
    for name in names():
        kind = find(name)
        assert kind.name == name
        available = kind.probe()
        assert available.ok or available.reason


@pytest.mark.parametrize("name", ["mpy", "MPI", "mpich"])
def test_an_unknown_backend_is_refused_with_the_nearest_names(name: str) -> None:
    with pytest.raises(UsageError, match=rf"^unknown backend '{name}': did you mean .*mpi"):
        find(name)


@pytest.mark.parametrize("name", ["base", "world", "_mpich", "", "zzz"])
def test_support_files_are_no_backends(name: str) -> None:
    with pytest.raises(UsageError, match=rf"^unknown backend '{name}': (known: .*|did you mean )mpi"):
        find(name)


def test_a_backend_of_ones_own_goes_by_its_dotted_name(own: Path) -> None:
    (own / "ucx.py").write_text("class Backend:\n    name = 'ucx'\n")
    assert find("mylab.ucx").name == "ucx"


@pytest.mark.parametrize("name", ["mylab.nothing", "nolab.ucx", "mylab.ucx.deeper"])
def test_a_dotted_name_without_a_module_is_refused(own: Path, name: str) -> None:
    (own / "ucx.py").write_text("class Backend:\n    name = 'ucx'\n")
    with pytest.raises(UsageError, match=f"^unknown backend '{name}'"):
        find(name)


def test_what_a_backend_of_ones_own_lacks_is_not_taken_for_the_backend(own: Path) -> None:
    (own / "needy.py").write_text("import no_such_library\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        find("mylab.needy")


@pytest.mark.parametrize("name", ["os.path", ".mpi"])
def test_a_module_that_is_no_backend_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}'"):
        find(name)


# The default


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with four NVIDIA devices; CuPy is installed."""
    monkeypatch.setattr("importlib.util.find_spec", {"cupy": object()}.get)
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia10", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / "dev" / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (None, ["nvidia0", "nvidia1", "nvidia2", "nvidia10"]),
        ("1", ["nvidia1"]),
        ("3, 0", ["nvidia10", "nvidia0"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,-1,1", ["nvidia0"]),
        ("0,4,1", ["nvidia0"]),
        ("GPU-a1,MIG-b2", ["GPU-a1", "MIG-b2"]),
    ],
)
def test_nvidia_devices_are_those_that_the_variable_leaves(
    machine: Path, visible: str | None, devices: list[str]
) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert base.reachable(environment, str(machine)) == ("NVIDIA" if devices else "", devices or ())


def test_amd_devices_are_the_driver_s_nodes_that_are_gpus(machine: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia10"):
        (machine / "dev" / name).unlink()
    for node, gpu in enumerate(["0", "0", "51339", "12771", "4417"]):
        folder = machine / "sys/class/kfd/kfd/topology/nodes" / str(node)
        folder.mkdir(parents=True)
        (folder / "gpu_id").write_text(f"{gpu}\n")
    hidden = {"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "-1"}
    assert base.reachable({}, str(machine)) == ("AMD", ["kfd2", "kfd3", "kfd4"])
    assert base.reachable(hidden, str(machine)) == ("AMD", ["kfd3"])
    assert base.reachable({"ROCR_VISIBLE_DEVICES": "-1"}, str(machine)) == ("", ())


def test_without_cupy_or_a_driver_nothing_is_reached(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert base.reachable({"CUDA_VISIBLE_DEVICES": "GPU-a1"}, str(tmp_path / "bare")) == ("", ())
    monkeypatch.setattr("importlib.util.find_spec", {}.get)
    assert base.reachable({}, str(machine)) == ("", ())


def test_asking_what_is_reached_loads_nothing(tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("raise SystemExit('loaded')")
    code = "import sys; before = set(sys.modules); from commbench.backends.base import reachable; print(reachable())\n"
    code += "print(sorted({'cupy', 'numpy', 'mpi4py', 'nccl'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(base.__file__).parents[2]}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def reach(*devices: str, vendor: str = "NVIDIA") -> Reach:
    return Reach(vendor if devices else "", devices)


EIGHT = [f"nvidia{number}" for number in range(8)]


@pytest.mark.parametrize(
    ("reaches", "name", "why"),
    [
        ([(0, reach("nvidia0"))], "nccl", "every rank has an NVIDIA device"),
        ([(0, reach(*EIGHT))] * 8 + [(1, reach(*EIGHT))] * 8, "nccl", "every rank has an NVIDIA device"),
        ([(0, reach(device)) for device in EIGHT], "nccl", "every rank has an NVIDIA device"),
        ([(0, reach("kfd1", vendor="AMD"))], "rccl", "every rank has an AMD device"),
        ([(0, reach("nvidia0"))] * 4, "mpi", "node 0 shows 1 device to its 4 ranks"),
        ([(0, reach(*EIGHT))] * 8 + [(1, reach(*EIGHT))] * 9, "mpi", "node 1 shows 8 devices to its 9 ranks"),
        ([(0, reach("nvidia0", "nvidia1")), (0, reach())], "mpi", "rank 1 reaches no device by CuPy"),
        ([(0, reach())], "mpi", "rank 0 reaches no device by CuPy"),
        ([(0, reach("nvidia0")), (1, reach("kfd1", vendor="AMD"))], "mpi", "rank 1 reaches AMD's devices"),
    ],
)
def test_the_default_is_the_devices_library_where_each_node_has_one_for_each_rank(
    reaches: list[tuple[int, Reach]], name: str, why: str
) -> None:
    chosen, reason = base.default(reaches)
    assert chosen == name
    assert reason.startswith("the default") and why in reason
