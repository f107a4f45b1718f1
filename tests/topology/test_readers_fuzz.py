"""Files that are broken, cut off, mixed up or meant to harm: a reading or an error with the rule, and soon."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench.errors import UsageError
from commbench.topology.reading import Reading, TopologyError, read_text
from commbench.topology.writers import slurm_conf, slurm_yaml
from tests.topology import test_ibnetdiscover, test_slurm_readers, test_topograph, test_validate

SEEDS = [
    test_validate.GOOD,
    "BlockName=b1 Nodes=n[01-04]\nBlockName=b2 Nodes=n[05-08]\nBlockSizes=4,8\n",
    test_slurm_readers.SHOWN,
    test_slurm_readers.ADDRESSES,
    test_slurm_readers.YAML,
    test_topograph.MODEL,
    test_topograph.graph({"id": "n1", "network_layers": ["a", "b"]}, {"id": "n2", "network_layers": ["c", "b"]}),
    test_ibnetdiscover.listing(*test_ibnetdiscover.SMALL),
    test_ibnetdiscover.ROWS,
]
SNIPPETS = ["[", "]", "n[1-", "-", ",", "=", ":", "{", "}", "\x00", "\ufffd", "\n", "#", "&a", "*a", "9" * 30, "0", '"']


@st.composite
def broken(draw: st.DrawFn) -> str:
    """One of the formats with lines moved, repeated, lost or taken from another, and characters changed."""
    lines = draw(st.sampled_from(SEEDS)).split("\n")
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["lose", "repeat", "swap", "splice", "insert", "cut", "drop"])):
            case "lose" if len(lines) > 1:
                del lines[place]
            case "repeat":
                lines.insert(draw(st.integers(0, len(lines))), lines[place])
            case "swap":
                other = draw(st.integers(0, len(lines) - 1))
                lines[place], lines[other] = lines[other], lines[place]
            case "splice":
                lines.insert(place, draw(st.sampled_from(draw(st.sampled_from(SEEDS)).split("\n"))))
            case "insert":
                at = draw(st.integers(0, len(lines[place])))
                lines[place] = lines[place][:at] + draw(st.sampled_from(SNIPPETS)) + lines[place][at:]
            case "cut":
                lines[place] = lines[place][: draw(st.integers(0, len(lines[place])))]
            case _:
                lines = lines[: place + 1]
    return "\n".join(lines)


@given(broken())
@settings(max_examples=300)
def test_a_broken_file_is_a_reading_or_an_error(text: str) -> None:
    try:
        reading = read_text(text, "x")
    except TopologyError as error:
        assert str(error).startswith("x")
        return
    assert isinstance(reading, Reading)
    for cluster in reading.clusters:
        assert len(cluster.arrays.nodes) == cluster.nodes
        for write in (slurm_conf.write, slurm_yaml.write):
            with suppress(UsageError):
                assert write(cluster)


@given(st.binary(max_size=400), st.sampled_from(SEEDS))
@settings(max_examples=100)
def test_bytes_of_any_kind_are_a_reading_or_an_error(data: bytes, seed: str) -> None:
    for text in (data.decode("utf-8", errors="replace"), seed + data.decode("latin-1")):
        with suppress(TopologyError):
            assert isinstance(read_text(text, "x"), Reading)


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in pairwise("abcdefgh")
)
HOSTILE = {
    "aliases": f"switches: {{}}\nblocks:\n{BOMB}",
    "tags": "switches: !!python/object/apply:os.system [true]\nblocks: []\n",
    "nested lists": "blocks: " + "[" * 100_000,
    "nested entries": "".join(f"{' ' * k}- topology:\n" for k in range(1000)),
    "huge range": "SwitchName=s Nodes=n[1-999999999]\n",
    "huge product": "SwitchName=s Nodes=a[1-9999]b[1-9999]\n",
    "huge number": f"SwitchName=s Nodes=n[1-{'9' * 10_000}]\n",
    "many brackets": "SwitchName=s Nodes=" + "n[1-2]" * 100_000 + "\n",
    "many commas": "SwitchName=s Nodes=" + "," * 1_000_000 + "\n",
    "long line": "SwitchName=s Nodes=" + "n" * 1_000_000 + "\n",
    "one line going on": "SwitchName=s \\\n" * 200_000,
    "comments": "# SwitchName=\n" * 1_000_000,
    "blanks": " " * 1_000_000 + "\n" * 1_000_000,
    "cycle of switches": "".join(f"SwitchName=s{k} Switches=s{(k + 1) % 50_000}\n" for k in range(50_000)),
    "long row": "SW 1 1 0x1 4x SDR - CA 1 1 0x2 ( '" + "' - '" * 200_000,
    "chain of switches": "".join(
        f'Switch 2 "S-{k:x}"\n[1] "S-{k - 1:x}"[2]\n[2] "S-{k + 1:x}"[1]\n' for k in range(1, 20_000)
    )
    + 'Ca 1 "H-f0000000"\t# "n1"\n[1] "S-1"[3]\n',
    "quotes": 'Switch 2 "S-1" # ' + '"' * 900 + "\n",
    "binary": "SwitchName=" + "".join(map(chr, range(256))) * 1000,
    "labels": '{"instances": [' + ",".join(['{"id": "\\u0061"}'] * 50_000) + "]}",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_files_that_are_meant_to_harm_are_refused_soon(kind: str) -> None:
    begin = time.process_time()
    with pytest.raises(TopologyError):
        read_text(HOSTILE[kind], "x")
    assert time.process_time() - begin < 60  # a second or two here; what these provoke takes hours, or gigabytes


def test_a_hundred_thousand_nodes_are_read_and_written() -> None:
    leaves = "".join(f"SwitchName=l{k} Nodes=n[{k * 32}-{k * 32 + 31}]\n" for k in range(3125))
    cluster = read_text(f"{leaves}SwitchName=s Switches=l[0-3124]\n", "x").cluster
    assert cluster.nodes == 100_000
    assert read_text(slurm_conf.write(cluster), "x").cluster.nodes == 100_000
