"""Backends are found by their file's name, or as a module of the user's own."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from commbench.backends import base
from commbench.backends.base import find, names
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


@pytest.mark.parametrize(
    ("cupy", "files", "environment", "vendor"),
    [
        (True, ["nvidiactl"], {}, "NVIDIA"),
        (True, ["kfd"], {}, "AMD"),
        (True, ["nvidiactl"], {"CUDA_VISIBLE_DEVICES": "1"}, "NVIDIA"),
        (True, ["nvidiactl"], {"CUDA_VISIBLE_DEVICES": ""}, ""),
        (True, [], {}, ""),
        (False, ["nvidiactl"], {}, ""),
    ],
)
def test_a_device_is_reached_where_its_driver_and_cupy_are(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cupy: bool,
    files: list[str],
    environment: dict[str, str],
    vendor: str,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", {"cupy": object() if cupy else None}.__getitem__)
    for name in files:
        (tmp_path / name).touch()
    assert base.reachable(environment, str(tmp_path)) == vendor


def test_the_default_is_the_library_of_the_devices_and_what_is_named_is_taken() -> None:
    assert [base.resolve("auto", vendor)[0] for vendor in ("NVIDIA", "AMD", "")] == ["nccl", "rccl", "mpi"]
    assert base.resolve("gloo", "NVIDIA")[0] == "gloo"
