"""Groups of ranks: the first k, those of a node, a leaf or a rail, and those that a file names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from commbench.errors import UsageError
from commbench.measure.cell import ALL, Group
from commbench.measure.groups import check_concurrent, first_ranks, split
from commbench.measure.site import Seat, leaf_of_this_node


def seats(*nodes: int, host: str = "n{}", leaf: str = "") -> list[Seat]:
    """Ranks on these nodes, numbered on each in their order."""
    return [Seat(host.format(node), node, nodes[:rank].count(node), leaf) for rank, node in enumerate(nodes)]


def members(groups: Sequence[Group]) -> dict[str, tuple[int, ...]]:
    assert len({group.name for group in groups}) == len(groups)
    return {group.name: group.ranks for group in groups}


# --ranks


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("2,4,8", [2, 4, 8]),
        ("N", [8]),
        ("2,n", [2, 8]),
        (" 3 , 1 ", [1, 3]),
        ("8,2,N,2", [2, 8]),
    ],
)
def test_the_first_ranks_grow_and_come_once(text: str, sizes: list[int]) -> None:
    found = first_ranks(text, 8)
    assert [group.ranks for group in found] == [tuple(range(size)) for size in sizes]
    assert [group.name for group in found] == [ALL if size == 8 else f"first {size}" for size in sizes]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2,9", "--ranks names numbers of ranks up to the 8 of this launch, not 9"),
        ("0", "each of --ranks is a whole number of at least 1, not '0'"),
        ("-2", "each of --ranks is a whole number of at least 1, not '-2'"),
        ("2.5", "each of --ranks is a whole number of at least 1, not '2.5'"),
        ("2,,4", "each of --ranks is a whole number of at least 1, not ''"),
        ("", "each of --ranks is a whole number of at least 1, not ''"),
        ("M", "each of --ranks is a whole number of at least 1, not 'M'"),
    ],
)
def test_numbers_of_ranks_that_cannot_be_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        first_ranks(text, 8)
    assert str(raised.value) == message


# --groups node, leaf, rail


def test_the_ranks_of_a_node_are_a_group_however_they_are_placed() -> None:
    assert members(split("node", seats(0, 0, 1, 1))) == {"node n0": (0, 1), "node n1": (2, 3)}
    assert members(split("node", seats(0, 1, 2, 0, 1))) == {"node n0": (0, 3), "node n1": (1, 4), "node n2": (2,)}
    assert members(split("node", seats(0, 0))) == {"node n0": (0, 1)}


def test_nodes_that_share_a_host_name_go_by_number() -> None:
    assert members(split("node", seats(0, 0, 1, 1, host="localhost"))) == {"node 0": (0, 1), "node 1": (2, 3)}


def test_a_rail_joins_the_same_place_on_every_node() -> None:
    assert members(split("rail", seats(0, 0, 1, 1))) == {"rail 0": (0, 2), "rail 1": (1, 3)}
    # A node that has fewer ranks is missing from the last rails.
    assert members(split("rail", seats(0, 0, 1))) == {"rail 0": (0, 2), "rail 1": (1,)}


def test_one_node_has_no_rails() -> None:
    with pytest.raises(UsageError, match="--groups rail needs more than one node"):
        split("rail", seats(0, 0))


def test_a_leaf_joins_the_nodes_below_one_switch() -> None:
    below = [*seats(0, 0, 1, leaf="s1"), *seats(0, 0, leaf="s2")]
    assert members(split("leaf", below)) == {"leaf s1": (0, 1, 2), "leaf s2": (3, 4)}


@pytest.mark.parametrize("placed", [seats(0, 0), seats(0, 1), [*seats(0, leaf="s1"), *seats(1)]])
def test_without_a_known_topology_there_are_no_leaves(placed: list[Seat]) -> None:
    with pytest.raises(UsageError, match=r"--groups leaf needs a topology, and none is known: .* FILE"):
        split("leaf", placed)


@pytest.mark.parametrize(
    ("names", "kinds", "leaf"),
    [
        ("core.leaf7.n12", "switch.switch.node", "leaf7"),
        ("leaf7.n12", "switch.node", "leaf7"),
        ("n12", "node", ""),
        ("core..n12", "switch.switch.node", "core"),
        ("", "", ""),
    ],
)
def test_slurm_tells_the_leaf(names: str, kinds: str, leaf: str) -> None:
    environment = {"SLURM_TOPOLOGY_ADDR": names, "SLURM_TOPOLOGY_ADDR_PATTERN": kinds}
    assert leaf_of_this_node(environment) == leaf
    assert leaf_of_this_node({}) == ""


# --groups FILE


def from_file(folder: Path, text: str, n: int = 8) -> list[Group]:
    path = folder / "groups.txt"
    path.write_text(text, encoding="utf-8")
    return split(str(path), seats(*[0] * n))


def test_a_file_names_groups_of_any_ranks_in_any_order(tmp_path: Path) -> None:
    text = "# two halves\nleft: 0-2,7\n\n  right half : 6, 5-5 ,3  # without 4\nrack:1: 4\n"
    assert members(from_file(tmp_path, text)) == {"left": (0, 1, 2, 7), "right half": (6, 5, 3), "rack:1": (4,)}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 0-3\nb 4-7\n", 2, "a group is a name, a colon and ranks (left: 0-3,8), not 'b 4-7'"),
        (": 0-3\n", 1, "a group is a name, a colon and ranks (left: 0-3,8), not ': 0-3'"),
        ("a: 0-3\n\n# c\nb: 8\n", 4, "ranks are 0 to 7 in this launch, in rising order, not '8'"),
        ("a: 0-8\n", 1, "ranks are 0 to 7 in this launch, in rising order, not '0-8'"),
        ("a: 3-1\n", 1, "ranks are 0 to 7 in this launch, in rising order, not '3-1'"),
        ("a: 0,1-3,2\n", 1, "a rank stands twice in '0,1-3,2'"),
        ("a: 1,1\n", 1, "a rank stands twice in '1,1'"),
        ("a: x\n", 1, "a rank is a whole number of at least 0, not 'x'"),
        ("a: 1.5\n", 1, "a rank is a whole number of at least 0, not '1.5'"),
        ("a: 1,,2\n", 1, "a rank is a whole number of at least 0, not ''"),
        ("a:\n", 1, "a rank is a whole number of at least 0, not ''"),
        ("a: -1\n", 1, "a rank is a whole number of at least 0, not ''"),
        ("a: 1-\n", 1, "a rank is a whole number of at least 0, not ''"),
        ("a: 1-2-3\n", 1, "a rank is a whole number of at least 0, not '2-3'"),
        ("a: 0\nall: 0-3\n", 2, "'all' names all 8 ranks, not 0-3: take another name"),
        ("a: 0\x00\n", 1, "a rank is a whole number of at least 0, not "),
    ],
)
def test_a_bad_line_is_refused_by_file_and_number(tmp_path: Path, text: str, line: int, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        from_file(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path / 'groups.txt'}:{line}: {message}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "a: 0\nb: 1\na: 2\n"])
def test_a_file_without_groups_or_with_a_name_twice_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError) as raised:
        from_file(tmp_path, text)
    expected = f"{tmp_path / 'groups.txt'} must name at least one group, and each by a name of its own"
    assert str(raised.value) == expected


def test_the_name_of_the_whole_launch_is_for_all_ranks_in_any_order(tmp_path: Path) -> None:
    assert members(from_file(tmp_path, "all: 4-7,0-3\n")) == {"all": (4, 5, 6, 7, 0, 1, 2, 3)}


def test_a_file_that_cannot_be_read_is_refused_with_the_kinds_that_there_are(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "binary"):
        with pytest.raises(UsageError) as raised:
            split(str(path), seats(0, 0))
        assert str(raised.value).startswith(f"--groups is node, leaf, rail or a file, and '{path}' cannot be read (")
        assert "\n" not in str(raised.value)


# --concurrent on


def test_groups_that_share_a_rank_cannot_run_at_once() -> None:
    with pytest.raises(UsageError) as raised:
        check_concurrent([Group("a", (0, 1)), Group("b", (2,)), Group("c", (3, 1))])
    assert str(raised.value) == (
        "--concurrent on needs groups without common ranks, and rank 1 is in 'a' and 'c'; "
        "--concurrent off runs them one after another"
    )


def test_groups_without_common_ranks_can() -> None:
    check_concurrent([Group("a", (0, 2)), Group("b", (1, 3))])
