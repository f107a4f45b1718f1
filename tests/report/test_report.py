"""`commbench.report`: what it says of made-up runs and logs, and that nothing in them reaches out of the page."""

from __future__ import annotations

import csv
import io
import os
import re
import stat
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("seaborn")
pytest.importorskip("jinja2")

import commbench
from commbench.report import html
from commbench.report.__main__ import main
from commbench.report.best import best
from commbench.report.content import assemble
from commbench.report.sides import letters, read_sides
from tests.report import doors
from tests.report.clock import write_clocked
from tests.results import logs
from tests.results.test_launches import write_set

SIZES = (8, 512, 65536, 1 << 20)
HOSTILE = "<script>alert(1)</script>$\\frac_x|`\\[a](javascript:b)\x1b[31m"


def times(scale: float = 1.0) -> list[tuple[int, float, float]]:
    return [(1 << p, scale * (10 + (1 << p) / 1e5), scale * (11 + (1 << p) / 1e5)) for p in range(10, 31, 4)]


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reported")
    (folder / "h100.log").write_text(logs.nccl_tests(times()))
    amd = logs.nccl_tests(times(1.5), device="AMD Instinct MI300X").replace(
        "# nThread", "# rccl-tests: Version 1\n# nThread"
    )
    (folder / "mi300x.log").write_text(amd)
    (folder / "hostile.log").write_text(logs.nccl_tests(times(), device=HOSTILE))
    (folder / "empty.log").write_text("")
    (folder / "prose.txt").write_text("nothing of the kind\n")
    write_set(folder / "before", "a", 6, sizes=SIZES)
    write_set(folder / "after", "b", 6, sizes=SIZES, scale=1.3)
    write_set(folder / "several", "a", 5, sizes=SIZES)
    write_set(folder / "several-2", "a", 5, sizes=SIZES, scale=0.5, algorithm="ring")
    write_set(folder / "model", "m", 1, sizes=SIZES, simulated=True)
    write_clocked(folder / "clock")
    return folder


class Page(HTMLParser):
    """The elements, ids, links and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.text = ""
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            if name == "id":
                self.ids[value or ""] += 1
            if name in ("href", "src", "action", "data", "srcset", "poster"):
                self.links.append(value or "")
        self._inside.append(tag)

    def handle_data(self, data: str) -> None:
        if not self._inside or self._inside[-1] not in ("script", "style"):
            self.text += data


def write(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], top: Path, *words: str) -> doors.Said:
    return doors.say(main, top, monkeypatch, capsys, words)


@pytest.fixture
def page(top: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    def make(*words: str) -> Page:
        code, out, err = write(monkeypatch, capsys, top, *words, "-o", str(tmp_path / "report.html"))
        assert (code, out) == (0, "") and err.startswith("# written to ")
        text = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert not re.search(r"""(?:https?:|//)[^\s"'<]*\.(?:js|css|woff)""", text)
        return Page(text)

    return make


def test_a_page_fetches_nothing_and_its_links_lead_somewhere(page: Any) -> None:
    found = page("h100.log", "mi300x.log")
    assert all(link.startswith(("#", "data:")) for link in found.links)
    assert {link[1:] for link in found.links if link.startswith("#")} <= found.ids.keys()
    assert set(found.ids.values()) == {1}
    assert found.tags["img"] >= 4 and found.tags["script"] == 1


def test_two_vendors_are_compared_by_what_each_chose(page: Any) -> None:
    text = page("h100.log", "mi300x.log").text
    assert "B takes 1.5 times as long as A (geometric mean of" in text
    assert "a test takes five launches of each side that commbench made itself" in text
    assert "allreduce, 8 ranks on 1 node, float32, sum, auto: A is faster from 1K to 1G, up to 1.5 times" in text
    assert "published for 8 x H100 SXM: 480 GB/s busbw (NVLS)" in text


def test_the_shortest_time_is_said_with_the_unit_of_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "some.log").write_text(logs.nccl_tests([(128, 34.53, 40.0), (4096, 36.0, 41.0)]))
    _, out, _ = write(monkeypatch, capsys, tmp_path, "some.log", "--format", "md")
    assert "A: allreduce on 8 ranks, 1 node: down to 34.53 us at 128 B (auto)" in out


def test_launches_are_tested_and_drawn(page: Any) -> None:
    text = page("before", "after").text
    assert "B is slower than A in 4 cells, by more than shuffled launches are apart (in 95 % of ways)" in text
    assert "allreduce: time of B over time of A" in text and "A: how far times scatter" in text


def test_hostile_words_of_a_log_stay_text(page: Any) -> None:
    found = page("hostile.log")
    assert found.tags["script"] == 1
    assert not any("javascript:" in link for link in found.links)
    assert "<script>alert(1)</script>" in found.text


def test_bounds_stand_beside_what_was_reached(page: Any) -> None:
    found = page("h100.log", "--link", "450")
    part = (
        commbench.load(Path.cwd() / "h100.log")["busbw"].max() / 450
    )  # of one node: busbw is what the links' rate is normalised to
    assert f"{part:.0%} of what the links allow where no switch reduces" in found.text


def test_late_ranks_are_drawn(page: Any) -> None:
    assert "A: how late each rank arrives: allreduce, 2 ranks, 1 node" in page("clock").text


def test_one_algorithm_takes_over_from_another(top: Path) -> None:
    """`ring` is twice as fast at every size; each size has both, five launches of each."""
    sides = [*read_sides(top / "several"), *read_sides(top / "several-2")]
    one = sides[0]
    for reading in sides[1].readings:
        one.read(reading)
    content = assemble(dict(zip(letters(1), [one], strict=True)), {"A": _links()})
    (found,) = best(content)
    assert (found.label, found.sizes, found.unsure) == ("ring", SIZES, {})
    assert found.auto is not None and not found.auto.unsure
    assert found.auto.ratio == pytest.approx(2.0, rel=0.1)


def _links() -> Any:
    from commbench.report.bounds import Links

    return Links()


def test_csv_holds_every_record(top: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = write(monkeypatch, capsys, top, "h100.log", "mi300x.log", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0 and Counter(row["side"] for row in rows) == {"A": 12, "B": 12}
    frame = commbench.load(top / "h100.log")
    assert [float(row["time_us"]) for row in rows[:12]] == frame["time_us"].tolist()


def test_markdown_has_the_words_and_the_tables(
    top: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = write(monkeypatch, capsys, top, "before", "after", "hostile.log", "--format", "md")
    assert code == 0 and "## Summary" in out and "## B against A" in out and "## Settings" in out
    assert "- **not compared**: C is not compared with A: " in out
    assert "<script>" not in out and "](javascript" in out and not re.search(r"(?<!\\)(?:\\\\)*\[a\]\(", out)


def test_pictures_alone_are_files(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = write(
        monkeypatch, capsys, top, "before", "after", "--format", "png", "-o", str(tmp_path / "pictures")
    )
    files = sorted((tmp_path / "pictures").iterdir())
    assert code == 0 and f"# {len(files)} pictures in " in err
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files) and len(files) >= 5


def test_a_picture_alone_says_of_what_it_is_and_what_its_lines_are(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures: list[Any] = []

    def keep(figure: Any, kind: str) -> bytes:
        figures.append(figure)
        return b""

    monkeypatch.setattr(html, "picture_bytes", keep)
    words = ("h100.log", "mi300x.log", "--link", "450", "--format", "png", "-o", str(tmp_path))
    _, _, err = write(monkeypatch, capsys, top, *words)
    assert err.startswith("# A: h100.log\n# B: mi300x.log\n")
    sweeps = {figure.get_suptitle(): figure for figure in figures if figure.get_suptitle()[:3] in ("A: ", "B: ")}
    assert list(sweeps) == [f"{side}: allreduce, 8 ranks, 1 node (float32, sum, nccl-tests)" for side in "AB"]
    for figure in sweeps.values():
        (legend,) = figure.legends
        named = [text.get_text() for text in legend.get_texts()]
        assert named == ["auto", "in place", "the most that the links allow where no switch reduces"]


def test_a_report_of_no_records_says_so(page: Any, top: Path) -> None:
    (top / "none.txt").write_text(
        "#  Rank  0 Group  0 Pid 1 on a device 0 [00:01:00] NVIDIA A100\n# nThread 1 nGpus 1 minBytes 8\n"
    )
    assert "there are no records: nothing was measured, or nothing could be read" in page("none.txt").text


def test_a_link_and_a_pipe_stay_what_they_are(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link.md").symlink_to(tmp_path / "target.md")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    for name in ("link.md", "pipe"):
        code, _, _ = write(monkeypatch, capsys, top, "h100.log", "--format", "md", "-o", str(tmp_path / name))
        assert code == 0
    assert os.read(reader, 1 << 16).startswith(b"# commbench report")
    os.close(reader)
    assert (tmp_path / "link.md").is_symlink() and (tmp_path / "target.md").read_text().startswith("# commbench report")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert not list(tmp_path.glob(".*"))


def test_settings_of_matplotlib_do_not_change_a_report(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import matplotlib

    monkeypatch.setenv("MPLBACKEND", "nonsense")
    with matplotlib.rc_context({"text.usetex": True}):
        code, _, err = write(monkeypatch, capsys, top, "h100.log", "-o", str(tmp_path / "x.html"))
    assert code == 0 and err.startswith("# written to ")


REFUSED = [
    (("before", "-o", "."), ". is a folder: name a file in it"),
    (("before", ""), "a path is empty"),
    ((), "the following arguments are required: PATH"),
    (("nowhere",), "nowhere"),
    (("empty.log",), "empty.log is empty"),
    (("prose.txt",), "is of no format that is known here"),
    (("before", "before"), "before is named twice"),
    (("before", "model"), "simulated results do not stand beside measured ones, and side B has simulated ones"),
    (("before", "--link", "B=3"), "there is no side 'B'; sides are A"),
    (("before", "--format", "pdf"), "invalid choice: 'pdf'"),
    (("before", "-o", "nowhere/at/all.html"), "cannot write nowhere/at/all.html"),
]


@pytest.mark.parametrize(("words", "answer"), REFUSED, ids=[" ".join(words) or "nothing" for words, _ in REFUSED])
def test_bad_input_is_refused_in_one_line(
    words: tuple[str, ...], answer: str, top: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = write(monkeypatch, capsys, top, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("commbench report: error: ") and answer in err
