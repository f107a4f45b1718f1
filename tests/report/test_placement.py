"""The picture of a placement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from commbench.errors import UsageError
from commbench.model.placement import Placement, fill
from commbench.recommend.traffic import step
from commbench.topology.cluster import Block, Cluster
from commbench.topology.reading import read
from commbench.topology.shipped import find

pytest.importorskip("matplotlib")
pytest.importorskip("seaborn")

from commbench.report.drawing import style
from commbench.report.figures.placement import MOST_NODES, Panel, picture

L40S = read(find("l40s-pcie")).cluster  # leaves of n01-n04, n05-n08, ...


def drawn(axes: dict[str, int], *orders: Sequence[int]) -> list[Any]:
    """The panels of orders of nodes of eight ranks each."""
    device = np.tile(np.arange(8), len(orders[0]))
    placed = [Placement(L40S, np.repeat(np.array(order), 8), device) for order in orders]
    with style():
        figure = picture(step(axes, {}, {}), np.arange(10), [Panel(f"p{i}", one) for i, one in enumerate(placed)])
        figure.canvas.draw()
    return list(figure.axes)


def test_arrows_that_leave_a_leaf_are_counted() -> None:
    before, after = drawn({"dp": 32}, (0, 4, 1, 5), (0, 1, 4, 5))
    assert before.get_title(loc="left") == "p0; 4 of 4 arrows leave a leaf"
    assert after.get_title(loc="left") == "p1; 2 of 4 arrows leave a leaf"


def test_nodes_are_named_with_their_ranks_and_leaves_and_free_ones_without() -> None:
    (panel,) = drawn({"dp": 16}, (0, 4))
    texts = {text.get_text() for text in panel.texts}
    assert {"n01: 0-7", "n05: 8-15", "n02", "n10", "leaf1", "leaf2", "leaf3"} <= texts
    assert "n11" not in texts and "leaf4" not in texts


def test_groups_on_the_same_nodes_have_one_colour_and_others_another() -> None:
    from matplotlib.patches import Rectangle

    (panel,) = drawn({"tp": 8, "pp": 2, "dp": 2}, (0, 1, 2, 3))  # stage 0 on n01 and n03, stage 1 on n02 and n04
    devices = [one for one in panel.patches if type(one) is Rectangle]
    colours = [{one.get_facecolor() for one in devices[8 * node : 8 * node + 8]} for node in range(4)]
    assert all(len(own) == 1 for own in colours)
    assert colours[0] == colours[2] != colours[1] == colours[3]


def test_the_way_back_through_a_long_leaf_and_the_title_stay_inside() -> None:
    """Sixteen nodes of one leaf group: the ring's last arrow goes from the lowest to the highest."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.text import Text

    cluster = read(find("h100-nvlink")).cluster
    with style():
        figure = picture(step({"tp": 8, "dp": 16}, {}, {}), np.arange(16), [Panel("p" * 50, fill(cluster, 128))])
        figure.draw_without_rendering()
    (panel,) = figure.axes
    arrows = [one for one in panel.patches if isinstance(one, FancyArrowPatch)]
    assert len(arrows) == 16
    assert max(arrow.get_window_extent().x1 for arrow in arrows) <= panel.get_window_extent().x1
    title = next(one for one in panel.get_children() if isinstance(one, Text) and one.get_text().startswith("ppp"))
    assert title.get_window_extent().x1 <= figure.bbox.x1


def test_more_nodes_than_can_be_told_apart_are_refused() -> None:
    names = tuple(f"n{i}" for i in range(MOST_NODES + 1))
    cluster = Cluster("many", L40S.classes, blocks=(Block(names, node_class="l40s"),))
    with pytest.raises(UsageError, match=f"up to {MOST_NODES} nodes, and {MOST_NODES + 1}"):
        picture(step({"dp": 2}, {}, {}), np.arange(MOST_NODES + 1), [Panel("one", fill(cluster, 2))])
