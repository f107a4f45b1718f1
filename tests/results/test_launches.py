"""Sets of launches, read back from their folders and matched."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import commbench
from commbench.errors import ResultsError
from commbench.results.launch import LAUNCH, launch_number
from commbench.results.launches import KEY, MAY_DIFFER, contrast, read_sets, versus
from commbench.results.record import Record
from commbench.results.stats import median_interval
from tests.fake_door import ROUNDS, write_run


def write_set(
    folder: Path, name: str, launches: int, *, scale: float = 1.0, sizes: Any = (8, 512), **facts: Any
) -> None:
    for number in range(1, launches + 1):
        chance = random.Random(f"{name} {number}")
        run = folder / f"{name}-{number:02d}"
        run.mkdir(parents=True)
        (run / LAUNCH).write_text(json.dumps({"launch": number, "set": name, "command": ["mpirun"], "code": 0}))
        times = {size: scale * size * chance.lognormvariate(0, 0.02) for size in sizes}
        write_run(run, times, chance, **facts).close()


def test_a_launch_is_numbered_by_the_file_in_its_folder(tmp_path: Path) -> None:
    assert launch_number(None) == launch_number(tmp_path) == launch_number(str(tmp_path / "nowhere")) == 0
    (tmp_path / LAUNCH).write_text('{"launch": 3}')
    assert launch_number(tmp_path) == 3


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"launch": "third"}', '{"launch": null}'])
def test_a_file_that_does_not_say_the_number_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / LAUNCH).write_text(text)
    with pytest.raises(ResultsError, match="does not say which launch this is"):
        launch_number(tmp_path)


def test_records_carry_the_launch(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    write_set(tmp_path, "a", 2)
    write_set(tmp_path, "b", 1)
    frame = commbench.load(tmp_path)
    launches = frame.groupby("run")["launch"].unique().map(list).to_dict()
    assert launches == {"a-01": [1], "a-02": [2], "b-01": [1]}


def test_a_cell_is_summed_up_over_its_launches(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    write_set(tmp_path, "a", 12)
    (one,) = read_sets(tmp_path)
    assert (one.name, one.command, len(one.launches), len(one.keys)) == ("a", ["mpirun"], 12, 2)
    frame = commbench.load(tmp_path)
    for key in one.keys:
        cell = one.cell(key)
        times = frame.loc[frame["size"] == cell["size"]].sort_values("launch")["time_us"]
        assert cell["times_us"] == times.tolist()
        assert cell["time_us"] == pytest.approx(times.median(), abs=1e-4)
        assert (cell["time_us_low"], cell["time_us_high"]) == median_interval(times.tolist())
        assert cell["spread"]["launches"] == pytest.approx(0.02, rel=0.6)
        assert sum(cell["share"].values()) == pytest.approx(1)
        assert {name: cell[name] for name in KEY} == dict(zip(KEY, key, strict=True))
        json.dumps(cell)


def test_launches_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (9, 10, 100):
        (tmp_path / f"a-{number}").mkdir()
        (tmp_path / f"a-{number}" / LAUNCH).write_text(json.dumps({"launch": number, "set": "a", "command": []}))
        write_run(tmp_path / f"a-{number}", {8: float(number)}, random.Random(1)).close()
    (one,) = read_sets(tmp_path)
    assert one.times(one.keys[0]) == sorted(time for time in one.times(one.keys[0]) if time)


def test_runs_that_were_begun_by_hand_are_one_set(tmp_path: Path) -> None:
    for name in ("monday", "tuesday"):
        write_run(tmp_path / name, {8: 10.0}, random.Random(name)).close()
    (one,) = read_sets(tmp_path)
    assert len(one.launches) == 2


def test_a_cell_that_a_launch_lacks_is_summed_up_over_the_others(tmp_path: Path) -> None:
    write_set(tmp_path, "a", 2)
    path = tmp_path / "a-02" / "visits.jsonl"
    cut = {"cell": 0, "round": 0, "session": 0, "status": "not_measured", "reason": "no time left"}
    others = [line for line in path.read_text().splitlines() if json.loads(line)["cell"] != 0]
    path.write_text("".join(line + "\n" for line in [json.dumps(cut), *others]))
    (one,) = read_sets(tmp_path)
    assert [one.cell(key)["launches"] for key in one.keys] == [1, 2]
    assert one.times(one.keys[0])[1] is None
    assert one.without == {("not_measured", "no time left"): 1}


def test_halves_of_equal_launches_are_not_different(tmp_path: Path) -> None:
    write_set(tmp_path, "a", 12)
    halves = read_sets(tmp_path)[0].halves(0.05)
    assert [len(comparisons) for comparisons in halves.values()] == [2, 2]
    assert {one.verdict for comparisons in halves.values() for one in comparisons} <= {"same", "cannot tell"}


def test_sets_are_matched_although_they_differ_in_one_thing_as_a_whole(tmp_path: Path) -> None:
    write_set(tmp_path, "a", 5, scale=1.3, algorithm="ring")
    write_set(tmp_path, "b", 5, sizes=(8, 512, 4096))
    a, b = read_sets(tmp_path)
    found = versus(a, b, 0.05)
    assert found.contrast == {"algorithm": ["ring", "auto"]}
    assert [one.verdict for one in found.comparisons] == ["different", "different"]
    assert [one.ratio for one in found.comparisons] == pytest.approx([1.3, 1.3], rel=0.05)


@pytest.mark.parametrize("facts", [{"method": "loop"}, {"simulated": True}, {"collective": "broadcast"}])
def test_what_is_never_compared_has_no_cell_in_common(tmp_path: Path, facts: dict[str, Any]) -> None:
    write_set(tmp_path, "a", 1)
    write_set(tmp_path, "b", 1, **facts)
    a, b = read_sets(tmp_path)
    with pytest.raises(ResultsError, match="a and b have no cell in common"):
        versus(a, b, 0.05)


def test_a_contrast_has_one_value_on_either_side() -> None:
    a, b = [{"x": 1, "y": 1, "z": 1}] * 2, [{"x": 2, "y": 1, "z": 1}, {"x": 2, "y": 1, "z": 2}]
    assert contrast(a, b, ["x", "y", "z"]) == ["x"]


def test_a_folder_without_times_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="holds no run"):
        read_sets(tmp_path)
    write_set(tmp_path, "a", 1)
    (tmp_path / "a-01" / "visits.jsonl").unlink()
    with pytest.raises(ResultsError, match=r"no cell of a in .* has a time: 2 not_measured: the run ended before"):
        read_sets(tmp_path)


def test_the_names_that_make_a_cell_are_those_of_a_record() -> None:
    names = set(Record.__dataclass_fields__)
    assert set(MAY_DIFFER) < set(KEY) < names
    assert ROUNDS > 1
