"""Descriptions that were cut, reordered and corrupted: a reading or our error, and never a node that cannot be."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from commbench.topology.inside import findings, table
from commbench.topology.node import HUBS, LINKS
from commbench.topology.reading import Reading, TopologyError, read_text
from tests.topology import nodes

pytest.importorskip("defusedxml")
pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

MATRIX = [
    ["X", "NV4", "PIX", "SYS"],
    ["NV4", "X", "NODE", "PXB"],
    ["PIX", "NODE", "X", "SYS"],
    ["SYS", "PXB", "SYS", "X"],
]
TEXTS = (
    nodes.nccl(
        nodes.bridge("0000:01:00.0", nodes.nccl_gpu(0, nodes.nvlink(1, 4) + nodes.nvswitch(2)), nodes.nccl_nic(0)),
        nodes.nccl_gpu(1, nodes.nvlink(0, 4) + '<c2c bw="44712" count="10"/>') + nodes.nccl_nic(1, lanes=1),
    ),
    nodes.nccl(nodes.nccl_gpu(0, "") + nodes.nccl_nic(0), host='host_hash="0x1"', version=2),
    nodes.smi(MATRIX, ["GPU0", "GPU1", "NIC0", "NIC1"], affinity=["0-3\t0", "4-7\t1", "", ""]) + "NIC0: mlx5_0\n",
    nodes.ROCM,
    nodes.HWLOC,
)


def cut(text: str, rng: random.Random) -> str:
    ends = sorted(rng.choices(range(len(text) + 1), k=2))
    return text[: ends[0]] + text[ends[1] :]


def reorder(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    rng.shuffle(lines)
    return "".join(lines)


def swap_digits(text: str, rng: random.Random) -> str:
    places = [place for place, letter in enumerate(text) if letter.isdigit()]
    letters = list(text)
    for place in rng.sample(places, min(4, len(places))):
        letters[place] = rng.choice("0123456789")
    return "".join(letters)


def noise(text: str, rng: random.Random) -> str:
    place = rng.randrange(len(text) + 1)
    junk = "".join(chr(rng.choice((rng.randrange(128), rng.randrange(0x3000)))) for _ in range(rng.randrange(9)))
    return text[:place] + junk + text[place + rng.randrange(4) :]


def values(text: str, rng: random.Random) -> str:
    """Another value between quotes, or another word."""
    odd = rng.choice(
        ("nan", "inf", "-1", "1e400", "N/A", "", "9" * 40, "²", "0x", "NV999", "&amp;", "ffffffff:ffff:ff")
    )
    parts = text.split('"') if '"' in text else text.split(" ")
    joint = '"' if '"' in text else " "
    parts[rng.randrange(len(parts))] = odd
    return joint.join(parts)


def twice(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    place = rng.randrange(len(lines) or 1)
    return "".join(lines[:place] + lines[place : place + 3] + lines[place:])


HARM: tuple[Callable[[str, random.Random], str], ...] = (cut, reorder, swap_digits, noise, values, twice)


def accepted(reading: Reading) -> None:
    """Whatever was read, it is a node: ids are unique, links have ends, rates are numbers, and it can be looked at."""
    for node in reading.cluster.classes:
        known = set(node.vertices)
        assert node.devices
        assert len(known) == len(node.vertices)
        assert {hub.kind for hub in node.hubs} <= set(HUBS)
        for link in node.links:
            assert link.kind in LINKS
            assert {link.a, link.b} <= known
            assert link.a != link.b
            assert link.count >= 1
            assert link.gbps is None or 0 < link.gbps < 1e9
        for nic in node.nics:
            assert nic.gbps is None or 0 < nic.gbps < 1e15
        assert len(table(node)) == len(node.devices)
        assert all(str(one) for one in findings(node, "fuzz"))
    assert all(str(one) for one in reading.findings)
    assert reading.cluster.nodes >= 1


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_not_harmed_is_read(text: str) -> None:
    accepted(read_text(text, "fuzz"))


@settings(max_examples=300)
@given(st.sampled_from(TEXTS), st.lists(st.sampled_from(HARM), min_size=1, max_size=3), st.integers(0, 2**32))
def test_harm_never_makes_a_reader_fail_or_invent(text: str, harm: list[Callable[..., str]], seed: int) -> None:
    rng = random.Random(seed)
    for one in harm:
        text = one(text, rng) or " "
    try:
        reading = read_text(text, "fuzz")
    except TopologyError:
        return
    accepted(reading)


@settings(max_examples=100)
@given(st.sampled_from(TEXTS), st.binary(max_size=40), st.integers(0, 2**32))
def test_bytes_never_make_a_reader_fail(text: str, junk: bytes, seed: int) -> None:
    raw = text.encode()
    place = random.Random(seed).randrange(len(raw))
    try:
        reading = read_text((raw[:place] + junk + raw[place:]).decode("utf-8", "replace"), "fuzz")
    except TopologyError:
        return
    accepted(reading)
