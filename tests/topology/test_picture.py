"""A cluster as a picture: what is drawn, by the picture's own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from commbench.errors import UsageError
from commbench.topology.cluster import Cluster
from commbench.topology.reading import read, read_text
from commbench.topology.shipped import find, shipped

pytest.importorskip("matplotlib")

from commbench.topology.picture import save


def drawn(cluster: Cluster, folder: Path) -> str:
    """The text of the picture, which an SVG with words as words has."""
    import matplotlib

    matplotlib.rcParamsDefault["svg.fonttype"] = "none"
    try:
        save(cluster, folder / "it.svg")
    finally:
        matplotlib.rcParamsDefault["svg.fonttype"] = "path"
    return (folder / "it.svg").read_text(encoding="utf-8")


def test_every_node_switch_and_device_is_named(tmp_path: Path) -> None:
    picture = drawn(read(find("h100-nvlink")).cluster, tmp_path)
    wanted = ["spine", *(f"leaf{one}" for one in range(8)), *(f"n{one:02}" for one in range(1, 33))]
    wanted += [f"{part}{one}" for part in ("gpu", "nic", "bridge") for one in range(8)]
    wanted += ["nvswitch", "nvlink 3600 Gb/s", "network 400 Gb/s", "network 12800 Gb/s"]
    assert [word for word in wanted if f">{word}<" not in picture] == []


def test_a_large_cluster_is_drawn_in_few_boxes(tmp_path: Path) -> None:
    lines = ["version: 1", "switches:", '  top: {switches: "leaf[000-399]"}', "blocks:"]
    lines += [f'- {{switch: leaf{one:03}, nodes: "n{one:03}-[01-32]"}}' for one in range(400)]
    picture = drawn(read_text("\n".join(lines), "f").cluster, tmp_path)
    assert "12,800 nodes" in picture
    assert "leaf[000-399]" in picture
    assert picture.count("<text") < 20


@pytest.mark.parametrize("name", shipped())
def test_pictures_are_written_as_png(name: str, tmp_path: Path) -> None:
    save(read(find(name)).cluster, tmp_path / "it.png")
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")


def test_words_of_a_file_are_no_formula(tmp_path: Path) -> None:
    picture = drawn(
        read_text("version: 1\nswitches: {'$x_': }\nblocks: [{switch: '$x_', nodes: '$$a'}]", "f").cluster, tmp_path
    )
    assert "$x_" in picture
    assert "$$a" in picture


def test_a_name_of_no_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ends with \.png"):
        save(read(find("two-core")).cluster, tmp_path / "it.bmp")
    with pytest.raises(UsageError, match="cannot write"):
        save(read(find("two-core")).cluster, tmp_path / "missing" / "it.png")
