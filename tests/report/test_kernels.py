"""Runs of kernels in reports and comparisons: made-up ones whose answers are known, and one of the door itself."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("seaborn")
pytest.importorskip("jinja2")

import commbench
from commbench.errors import ResultsError
from commbench.read import main as read_door
from commbench.report.__main__ import main
from commbench.report.bounds import Links
from commbench.report.compare import SLOWER, compare
from commbench.report.content import Content, assemble
from commbench.report.drawing import drawings, style
from commbench.report.sides import letters, read_sides
from commbench.results.kernels import read
from tests.report import doors
from tests.report.kernel_runs import HEAD, LEVELS, SIZE, write_kernels
from tests.results.test_launches import write_set

SPEEDS = (4100.0, 4080.0, 4120.0, 3500.0, 4090.0)  # of rank 3 by 15 % less


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    write_kernels(folder / "h200", SPEEDS)
    amd = {**HEAD, "library": "CuPy 13.6.0, HIP 60342124"}
    write_kernels(folder / "mi300x", [4920.0] * 5, device="AMD Instinct MI300X", peak=5300.0, head=amd)
    other = {**HEAD, "backend": "numba_cuda", "library": "numba 0.68.1, numba-cuda 0.30.0"}
    write_kernels(folder / "numba", [2050.0] * 5, peak=None, head=other)
    write_kernels(folder / "larger", [4100.0] * 5, size=2 * SIZE)
    write_kernels(folder / "begun", [4100.0], rounds=0)
    write_set(folder / "collectives", "c", 1, sizes=(8, 512, 65536))
    return folder


def content(*folders: Path) -> Content:
    sides = [side for folder in folders for side in read_sides(folder)]
    by_letter = dict(zip(letters(len(sides)), sides, strict=True))
    return assemble(by_letter, dict.fromkeys(by_letter, Links()))


def axes_of(found: Content, name: str) -> Any:
    with style():
        (one,) = [one for one in drawings(found) if one.name == name]
        return one.draw().axes[0]


def points(axes: Any) -> list[tuple[float, float]]:
    """The places of all round marks: along, up."""
    lines = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata())]
    return [(float(x), float(y)) for line in lines for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]


@pytest.fixture
def say(top: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda *words: doors.say(main, top, monkeypatch, capsys, words)


def test_words_name_slow_devices_and_what_traffic_does_not_explain(say: Any) -> None:
    code, out, _ = say("h200", "--format", "md")
    assert code == 0
    assert "A: rank 3 (GPU-3) is slow: copy float16 at 0.85 of the others' median (0.85 to 0.85), and 1 more" in out
    assert (
        "more is lost than the bytes moved explain: stride 32 (0.020, predicted 0.050 to 0.060) of the baseline" in out
    )
    # 4090 is the median speed; rounds are faster by 1 % each, so that the middle one is by 2 %
    assert f"copy float16 {4090 * 1.02:.0f} GB/s (3570 to 4202, 0.80 of the same bytes copied, 0.87 of the data" in out


def test_a_page_of_kernels_speaks_of_no_bus_and_no_ranks_together(say: Any) -> None:
    _, out, _ = say("h200", "--format", "md")
    assert "busbw" not in out and "nodes" not in out and "1 rank" not in out
    assert "5 devices at once" in out


def test_the_table_has_every_row_of_every_device(say: Any) -> None:
    _, out, _ = say("h200", "--format", "md")
    table = out[out.index("## Kernels") :]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| A | ")]
    (line,) = [one for one in lines if one[3:6] == ["rank 0 (GPU-0)", "gather", "random"]]
    assert line[6:11] == [f"{4100 * 1.02 / 12.5:.2f}", "0.080", "0.080", "0.080", "0.050 to 0.11"]
    assert len([one for one in lines if "GPU-" in one[3]]) == 5 * (len(LEVELS) + 2)


def test_a_waterfall_shows_the_median_shares_and_what_is_predicted(top: Path) -> None:
    axes = axes_of(content(top / "h200"), "waterfall-A-weight_update adamw-float32")
    factors = [level for level in LEVELS if level[0] not in ("ceiling", "baseline")]
    assert [text.get_text() for text in axes.get_yticklabels()] == [f"{level[0]} {level[1]}" for level in factors]
    shares = sorted(points(axes), key=lambda one: one[1])
    assert [x for x, _ in shares] == pytest.approx([1 / level[4] for level in factors])
    brackets = [tuple(line.get_xdata()) for line in axes.lines if line.get_marker() == "|" and len(line.get_xdata())]
    assert brackets == [level[2:4] for level in factors if level[2] is not None]
    verticals = {round(float(line.get_xdata()[0]), 3) for line in axes.lines if list(line.get_ydata()) == [0, 1]}
    assert verticals == {1.0, 1.25, round(4800 / (4090 * 1.02), 3)}  # baseline, ceiling, data sheet


def test_bandwidth_is_drawn_for_each_device(top: Path) -> None:
    axes = axes_of(content(top / "h200"), "kernels")
    frame = commbench.load(top / "h200")
    for place, name in enumerate(("copy", "weight_update adamw")):
        expected = frame.loc[frame["algorithm"] == f"{name} baseline", "algbw"]
        drawn = [x for x, y in points(axes) if abs(y - place) < 0.5]
        assert drawn == pytest.approx(expected.tolist())
    bars = [bar.get_width() for bar in axes.patches if bar.get_width() > 100]
    assert sorted(bars) == pytest.approx(
        sorted(frame.loc[frame["algorithm"].str.endswith("ceiling"), "algbw"].tolist())
    )
    assert [text.get_text() for text in axes.texts] == ["rank 3", "rank 3"]


def test_two_devices_are_compared_row_by_row_whatever_library_ran(top: Path) -> None:
    first, *others = (read_sides(top / name)[0] for name in ("h200", "mi300x", "numba"))
    for found, speed in zip(compare([first, *others]), (4920.0, 2050.0), strict=True):
        assert len(found.rows) == 5 * (len(LEVELS) + 2) and not found.unmatched
        for row in found.rows:
            rank = int(row.cell.group.split()[1])
            assert row.ratio == pytest.approx(SPEEDS[rank] / speed, rel=1e-4)
            assert row.algorithms[0] == row.algorithms[1]
        assert {(band.dtype, band.band): band.cells for band in found.bands} == {
            **{("float16", "baseline"): 5, ("float16", "ceiling"): 5},
            **{("float32", "baseline"): 5, ("float32", "ceiling"): 5, ("float32", "factors"): 20},
        }


def test_two_ranks_at_once_are_not_held_against_one_alone(top: Path, tmp_path: Path) -> None:
    write_kernels(tmp_path / "two", [4100.0, 4100.0])
    write_kernels(tmp_path / "one", [4100.0])
    with pytest.raises(ResultsError, match=r"scale 2 devices at once and 1 device"):
        compare([read_sides(tmp_path / name)[0] for name in ("two", "one")])


def test_levels_whose_launches_take_most_of_the_time_are_held_against_nothing(tmp_path: Path, say: Any) -> None:
    write_kernels(tmp_path / "run", [4100.0], launch_us=60.0)  # stride 32 takes 6 us, gather and cache less
    found = {(one.factor, one.level): one for one in read(tmp_path / "run") if one.kernel.startswith("weight")}
    assert found["stride", "32"].by_launch and found["stride", "32"].launch_us == 60.0
    _, out, _ = say(str(tmp_path / "run"), "--format", "md")
    assert "empty launches take over a third of the time" in out
    assert "more is lost than the bytes moved explain" not in out


def test_words_say_how_much_bytes_moved_explain(say: Any) -> None:
    _, out, _ = say("h200", "--format", "md")
    assert "adamw float32: bytes moved explain 2 of 3 levels within 10% of what is predicted" in out


def test_ranks_of_one_cpu_are_one_cpu_and_their_threads_a_setting(tmp_path: Path) -> None:
    write_kernels(tmp_path / "cpu", [50.0, 50.0], device="Some CPU", identity="1 thread on cores 0-1", kind="cpu")
    settings = read_sides(tmp_path / "cpu")[0].settings
    assert settings["devices"] == {"1 x Some CPU"} and settings["threads a rank"] == {"1"}


def test_unlike_sizes_are_not_compared(top: Path) -> None:
    sides = [read_sides(top / name)[0] for name in ("h200", "larger")]
    with pytest.raises(ResultsError, match=r"give both the same --size, kernels and number of ranks$"):
        compare(sides)


def test_launches_of_kernels_are_tested_as_those_of_collectives(tmp_path: Path) -> None:
    for name, scale in (("before", 1.0), ("after", 0.8)):
        for launch in range(5):
            chance = random.Random(f"{name} {launch}")
            write_kernels(tmp_path / name / f"{launch}", [4000 * scale * chance.uniform(0.99, 1.01)])
    (found,) = compare([read_sides(tmp_path / name)[0] for name in ("before", "after")])
    assert {row.verdict for row in found.rows} == {SLOWER}
    axes = axes_of(content(tmp_path / "before"), "kernels")
    assert len(points(axes)) == 2 * 5


def test_two_sides_in_words(say: Any) -> None:
    code, out, _ = say("h200", "mi300x", "--format", "md")
    assert code == 0 and "busbw" not in out
    assert "kernels, 5 devices at once, float16, baselines, same kernel: B takes 0.807 times as long as A" in out
    assert "| useful bytes | kernel |" in out and "HIP 60342124" in out


def test_a_run_of_collectives_beside_kernels_stays_what_it_is(top: Path, say: Any) -> None:
    alone, beside = content(top / "collectives"), content(top / "collectives", top / "h200")
    new = ["kernels", "waterfall-B-weight_update adamw-float32"]
    assert [one.name for one in drawings(beside) if one.name not in new] == [one.name for one in drawings(alone)]
    code, out, _ = say("collectives", "h200", "--format", "md")
    assert code == 0 and "busbw" in out and "A: allreduce on " in out and "B: kernels on " not in out


def test_read_names_the_rank_of_each_row(
    top: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = doors.say(read_door, top, monkeypatch, capsys, ["h200"])
    assert code == 0 and out.count("each rank on its own device, all at once, method loop") == 1
    assert out.count("copy baseline, rank 3 ") == 1 and "ranks on" not in out


def test_a_run_that_has_only_begun_is_reported(say: Any, tmp_path: Path) -> None:
    code, out, _ = say("begun", "--format", "md")
    assert code == 0 and "no row has a time or a rate" in out and "not_measured" in out.replace("\\", "")
    assert say("begun", "-o", str(tmp_path / "begun.html"))[0] == 0


def test_a_page_holds_the_pictures(say: Any, tmp_path: Path) -> None:
    code, _, _ = say("h200", "mi300x", "-o", str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert code == 0 and page.count("<img ") == 3
    assert re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page) == []
    assert "slow" in page and 'id="kernels"' in page


def test_a_changed_plan_is_refused_in_one_line(tmp_path: Path) -> None:
    write_kernels(tmp_path / "run", [4100.0])
    path = tmp_path / "run" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["plan"]["cells"][0]["level"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(ResultsError, match="does not hold a run of kernels"):
        read(tmp_path / "run")


def test_a_report_says_what_the_door_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The door's own file beside the records is the oracle: it is written while the run is open."""
    pytest.importorskip("numba")
    import pandas

    from commbench.kernels._door import main as door
    from commbench.kernels.triad import PATTERNS

    words = ["--device", "cpu", "--size", "64K", "--factor", "stride", "--rounds", "5", "--peak", "60"]
    with pytest.raises(SystemExit) as raised:
        door(PATTERNS, [*words, "--out", str(tmp_path / "run"), "--progress", "off"])
    capsys.readouterr()
    assert raised.value.code == 0
    told = pandas.read_json(tmp_path / "run" / "kernels.jsonl", lines=True)
    assert [one.to_dict() for one in read(tmp_path / "run")] == [
        json.loads(line) for line in (tmp_path / "run" / "kernels.jsonl").read_text().splitlines()
    ]
    axes = axes_of(content(tmp_path / "run"), "waterfall-A-triad-float16")
    shares = [x for x, _ in sorted(points(axes), key=lambda one: one[1])]
    levels = told[~told["factor"].isin(["baseline", "ceiling"])]  # strides, and the row that they are held against
    assert shares == pytest.approx(levels["of_baseline"].tolist())
    rate = told.loc[told["factor"] == "baseline", "algbw"].item()
    assert told.loc[told["factor"] == "baseline", "of_peak"].item() == pytest.approx(rate / 60)
