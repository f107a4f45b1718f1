"""What is written where: all into one folder, nothing over what is not ours."""

from __future__ import annotations

import itertools
import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from commbench.errors import UsageError
from commbench.recommend import plan as plans
from commbench.recommend.export._settings import Settings
from commbench.recommend.exporting import difference, export, exporters, texts, write
from tests.recommend.plans import choice, shuffled, whole


def test_each_target_is_a_file_with_a_title() -> None:
    assert {"slurm", "slurm_topology", "openmpi", "mpich", "torchrun", "nccl_tuner", "openmpi_rules"} <= set(
        exporters()
    )
    assert all(exporter.TITLE for exporter in exporters().values())


def test_a_folder_holds_the_plan_its_files_and_what_was_written(tmp_path: Path) -> None:
    plan = replace(whole(["n1", "n2"]), choices=(choice("allreduce", "ring"),))
    done = export(plan, Settings(), tmp_path / "out")
    names = {name for those in done.files.values() for name in those}
    assert set(os.listdir(tmp_path / "out")) == {*names, "placement.json", "export.json"}
    assert plans.read(tmp_path / "out" / "placement.json") == plan
    assert done.refused["slurm_topology"] == "no topology.conf: it is made of a cluster, and none was given"
    assert done.files.keys() | done.refused.keys() == set(exporters())
    for name in names:
        runs = bool(os.stat(tmp_path / "out" / name).st_mode & stat.S_IXUSR)
        assert runs == name.endswith((".sh", ".sbatch"))


def test_an_export_replaces_an_earlier_one_and_what_it_left(tmp_path: Path) -> None:
    export(whole(["n1", "n2"]), Settings(), tmp_path)
    assert (tmp_path / "torchrun.sh").exists()
    export(shuffled(["n1", "n2"]), Settings(), tmp_path)
    assert not (tmp_path / "torchrun.sh").exists()  # it would start another plan than the one beside it
    assert (tmp_path / "hosts.slurm").read_text() == "".join(f"{s.host}\n" for s in shuffled(["n1", "n2"]).seats)


@pytest.mark.parametrize("name", ["hosts.slurm", "placement.json"])
@pytest.mark.parametrize("earlier", [True, False])
def test_a_file_that_is_not_as_an_export_left_it_is_never_overwritten(tmp_path: Path, name: str, earlier: bool) -> None:
    if earlier:
        export(whole(["n1"]), Settings(), tmp_path)
    (tmp_path / name).write_text("mine\n")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UsageError, match=f"{name} is there already and not as an export left it"):
        export(whole(["n2"]), Settings(), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_changed_file_of_an_old_plan_is_left_alone(tmp_path: Path) -> None:
    export(whole(["n1", "n2"]), Settings(), tmp_path)
    (tmp_path / "torchrun.sh").write_text("mine\n")
    export(shuffled(["n1", "n2"]), Settings(), tmp_path)
    assert (tmp_path / "torchrun.sh").read_text() == "mine\n"


def _slurm_conf_inside(folder: Path) -> Path:
    (folder / "slurm.conf").write_text("")
    return folder


def _link_to_it(folder: Path) -> Path:
    real = folder / "real"
    real.mkdir()
    _slurm_conf_inside(real)
    (folder / "out").symlink_to(real)
    return folder / "out"


@pytest.mark.parametrize(
    "place",
    [
        lambda folder: Path("/etc/slurm"),
        lambda folder: Path("/etc"),
        lambda folder: folder / ".." / ".." / ".." / ".." / ".." / ".." / "etc" / "slurm" / "new",
        _slurm_conf_inside,
        _link_to_it,
    ],
)
def test_a_folder_that_configures_something_is_refused(tmp_path: Path, place: Callable[[Path], Path]) -> None:
    with pytest.raises(UsageError, match="holds a configuration that may be in use: export into a folder of its own"):
        write({"x.txt": "x"}, place(tmp_path))
    assert not Path("/etc/slurm/x.txt").exists()


def test_where_slurm_says_its_configuration_is_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    with pytest.raises(UsageError, match="may be in use"):
        write({"x.txt": "x"}, tmp_path)


def test_a_disk_that_fills_up_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(whole(["n1"]), Settings(), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    real = Path.write_bytes

    def full(self: Path, content: bytes) -> int:
        if "openmpi" in self.name:
            raise OSError(28, "No space left on device")
        return real(self, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UsageError, match="No space left on device"):
        export(whole(["n2"]), Settings(), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_who_is_killed_while_files_are_replaced_leaves_whole_ones_and_can_export_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    real, small, large = os.replace, whole(["n1"]), whole(["n1", "n2"])
    for last in range(len({text for plan in (small, large) for text in texts(plan, Settings())[0].values()})):
        out = tmp_path / str(last)
        here = Settings(folder=str(out))
        known = {text for plan in (small, large) for text in texts(plan, here)[0].values()}
        export(small, Settings(), out)
        moves = itertools.count()

        def killed(one: Path, other: Path, moves: Iterator[int] = moves, last: int = last) -> None:
            if next(moves) == last:
                raise Killed
            real(one, other)

        with monkeypatch.context() as patched, suppress(Killed):
            patched.setattr(os, "replace", killed)
            export(large, Settings(), out)
        assert {path.read_text() for path in out.iterdir() if path.name != "export.json"} <= known
        export(small, Settings(), out)
        assert plans.read(out / "placement.json") == small
        assert set(os.listdir(out)) == {*texts(small, Settings())[0], "export.json"}


def test_a_folder_that_others_use_is_refused_as_it_is(tmp_path: Path) -> None:
    for name in ("train.py", "README.md"):
        (tmp_path / name).write_text("mine\n")
    with pytest.raises(UsageError, match=r"a folder of its own, and .* has README\.md: name a new or an empty folder"):
        export(whole(["n1"]), Settings(), tmp_path)
    with pytest.raises(UsageError, match=r"train\.py is a file, and an export is written into a folder: name one"):
        export(whole(["n1"]), Settings(), tmp_path / "train.py")
    assert sorted(os.listdir(tmp_path)) == ["README.md", "train.py"]


def test_an_earlier_export_may_have_files_of_others_since_and_a_killed_one_hidden_ones(tmp_path: Path) -> None:
    (tmp_path / ".placement.json.1.1").write_text("")
    export(whole(["n1"]), Settings(), tmp_path)
    (tmp_path / "slurm-1.out").write_text("")
    export(whole(["n2"]), Settings(), tmp_path)
    assert plans.read(tmp_path) == whole(["n2"])  # of a folder, its placement.json


def test_a_folder_whose_name_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"an export's folder has a name in UTF-8, not .*\\udcff"):
        export(whole(["n1"]), Settings(), tmp_path / os.fsdecode(b"\xff"))


def test_where_other_nodes_come_nothing_names_hosts(tmp_path: Path) -> None:
    """But placement.json, which is the plan; what an earlier export said of hosts is gone."""
    plan = replace(whole(["n01", "n02"]), choices=(choice("allreduce", "ring"),))
    export(plan, Settings(), tmp_path)
    assert {"ranks.sh", "mpich.sh", "openmpi.sh", "torchrun.sh"} <= set(os.listdir(tmp_path))
    done = export(plan, Settings(nodelist=False, switches=1), tmp_path)
    named = {path.name for path in tmp_path.iterdir() if "n01" in path.read_text() and path.name != "placement.json"}
    assert named == set() and "nccl_environment" in done.files
    assert {done.refused[name] for name in ("mpich", "openmpi", "torchrun", "wrappers")} == {
        "no scripts for named hosts: which nodes come is known in the job, where --allocation plans on them"
    }
    head = (tmp_path / "job.sbatch").read_text().splitlines()[1]
    assert head.startswith("# 16 ranks on 2 nodes that Slurm chooses, in its own order, for Slurm")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "live.conf").write_text("live\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x.txt").symlink_to(tmp_path / "live.conf")
    with pytest.raises(UsageError, match="is there already"):
        write({"x.txt": "x"}, tmp_path / "out")
    assert (tmp_path / "live.conf").read_text() == "live\n"


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", ".hidden", ""])
def test_a_file_has_a_plain_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="plain name"):
        write({name: "x"}, tmp_path / "out")


def test_a_ledger_that_somebody_made_up_points_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("x")
    out = tmp_path / "out"
    out.mkdir()
    (out / "export.json").write_text(
        '{"../victim": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"}'
    )
    write({"x.txt": "x"}, out)
    assert (tmp_path / "victim").exists()


def test_a_difference_is_that_of_diff(tmp_path: Path) -> None:
    old = tmp_path / "topology.conf"
    old.write_text("SwitchName=a Nodes=n[1-4]\nSwitchName=s Switches=a\n")
    new = "SwitchName=a Nodes=n[1-8]\nSwitchName=s Switches=a\n"
    said = difference(new, old, "new")
    (tmp_path / "new").write_text(new)
    command = ["diff", "-u", "--label", str(old), "--label", "new", str(old), str(tmp_path / "new")]
    assert said == subprocess.run(command, capture_output=True, text=True).stdout
    assert "-SwitchName=a Nodes=n[1-4]\n+SwitchName=a Nodes=n[1-8]\n" in said
    assert difference(new, tmp_path / "new", "new") == ""
    with pytest.raises(UsageError, match="cannot be read"):
        difference(new, tmp_path / "none", "new")


def test_a_hundred_thousand_ranks_are_exported_soon() -> None:
    names = [f"node-{place:05}" for place in range(12_500)]
    begin = time.process_time()
    made, _ = texts(whole(names), Settings())
    assert made["hosts.slurm"].count("\n") == 100_000
    assert time.process_time() - begin < 60  # some seconds; a search in each search would take hours
