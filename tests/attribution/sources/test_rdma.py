"""Ports of adapters, read from copies of /sys: real figures, names of any kind, files that come and go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commbench.attribution.sources import Machine, Source, copied, rdma
from commbench.errors import UsageError
from tests.attribution.adapters import MLX5, fixtures, port, put


def found(sysfs: Path) -> dict[str, Source]:
    return {source.name: source for source in rdma.find(copied(str(sysfs))).sources}


def values(source: Source) -> dict[str, float | None]:
    """The numbers of a source in their units."""
    rows = zip(source.columns, source.read(), strict=True)
    return {column.name: None if number is None else number * column.factor for column, number in rows}


def test_real_adapters_have_the_bytes_that_others_read(tmp_path: Path) -> None:
    fixtures(tmp_path)
    sources = found(tmp_path)
    assert list(sources) == ["hfi1_0/1", "mlx4_0/1", "mlx4_0/2", "mlx5_0/1"]
    # prometheus/procfs, sysfs/class_infiniband_test.go
    sent = {"hfi1_0/1": 1094233306172, "mlx4_0/1": 106036453180, "mlx4_0/2": 106161427560, "mlx5_0/1": 11523046035392}
    received = {"hfi1_0/1": 1380366808104, "mlx4_0/1": 8884894436, "mlx5_0/1": 72505381512}
    assert {name: values(source)["port_xmit_data"] for name, source in sources.items()} == sent
    assert {name: values(sources[name])["port_rcv_data"] for name in received} == received
    assert values(sources["mlx4_0/2"])["port_xmit_wait"] == 3846
    assert values(sources["mlx5_0/1"])["roce_adp_retrans"] == 99
    assert sources["mlx4_0/1"].facts["rate"] == "40 Gb/sec (4X QDR)"
    assert sources["mlx5_0/1"].facts["state"] == "4: ACTIVE"


def test_what_is_no_whole_number_is_left_out_and_named(tmp_path: Path) -> None:
    text = {"counters/port_xmit_data": 7, "hw_counters/LinkState": "SwLinkUp,32"}
    port(tmp_path, "hfi1_0/1", text)
    port(tmp_path, "i40iw0/1", {f"counters/{name}": "N/A (no PMA)" for name in ("a", "b", "c", "d")})
    known = rdma.find(copied(str(tmp_path)))
    assert [column.name for column in known.sources[0].columns] == ["port_xmit_data"]
    assert known.notes == [
        "hfi1_0/1: left out, as they are no whole numbers: LinkState ('SwLinkUp,32')",
        "i40iw0/1: left out, as they are no whole numbers: "
        "a ('N/A (no PMA)'), b ('N/A (no PMA)'), c ('N/A (no PMA)') and 1 more",
        "i40iw0/1: no counters",
    ]


def test_every_folder_of_counters_is_read_and_devices_have_their_own(tmp_path: Path) -> None:
    port(tmp_path, "mlx4_0/1", {"counters/port_xmit_data": 1, "counters_ext/port_xmit_data_64": 2, "counters/x": 3})
    port(tmp_path, "mlx4_0/1", {"hw_counters/x": 4, "counters/RcvHdrOvr10": 5})
    port(tmp_path, "mana_0", {"hw_counters/sent_cnps": 6})
    sources = found(tmp_path)
    assert values(sources["mlx4_0/1"]) == {
        "port_xmit_data": 4,
        "port_xmit_data_64": 8,
        "x": 3,
        "hw_counters/x": 4,
        "RcvHdrOvr10": 5,
    }
    assert values(sources["mana_0"]) == {"sent_cnps": 6}


def test_numbers_are_as_fresh_as_the_adapter_s(tmp_path: Path) -> None:
    port(tmp_path, "a/1", {"counters/x": 1})
    port(tmp_path, "b/1", {"hw_counters/x": 1})
    port(tmp_path, "c/1", {"hw_counters/x": 1, "hw_counters/lifespan": 250})
    assert [source.refresh_ms for source in found(tmp_path).values()] == [0, 10, 250]


def test_files_are_read_again_where_they_are(tmp_path: Path) -> None:
    folder = port(tmp_path, "mlx5_0/1", MLX5)
    source = found(tmp_path)["mlx5_0/1"]
    put(folder / "counters" / "port_xmit_data", 1000)
    assert values(source)["port_xmit_data"] == 4000


def test_ports_that_vanish_are_gone_and_are_found_again(tmp_path: Path) -> None:
    folder = port(tmp_path, "mlx5_0/1", {"counters/x": 1, "counters/y": 2})
    source = found(tmp_path)["mlx5_0/1"]
    assert source.read() == [1, 2]
    (folder / "counters" / "x").unlink()
    assert source.read() == [None, 2]
    (folder / "counters" / "x").write_text("5\n")
    assert source.read() == [5, 2]
    (folder / "counters" / "new").write_text("6\n")
    os.replace(folder / "counters" / "new", folder / "counters" / "y")
    assert source.read() == [5, 6]
    (folder / "counters" / "y").write_text("")  # while it is written anew
    assert source.read() == [5, None]


def test_no_device_is_said(tmp_path: Path) -> None:
    (tmp_path / "class" / "infiniband").mkdir(parents=True)
    nothing = rdma.find(copied(str(tmp_path)))
    assert (nothing.sources, nothing.notes) == ([], [f"rdma: none: no device in {tmp_path}/class/infiniband"])
    assert rdma.find(Machine(infiniband=tmp_path / "none")).notes == [f"rdma: none: no device in {tmp_path}/none"]


def test_a_copy_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    port(tmp_path / "sys", "mlx5_0/1", MLX5)
    infiniband = tmp_path / "sys" / "class" / "infiniband"
    for folder in (tmp_path, tmp_path / "sys", infiniband):
        machine = copied(str(folder))
        assert (machine.sysfs, machine.infiniband, machine.live) == (tmp_path / "sys", infiniband, False)
    infiniband.rename(tmp_path / "ports of n1")
    assert [source.name for source in rdma.find(copied(str(tmp_path / "ports of n1"))).sources] == ["mlx5_0/1"]
    for folder, words in ((tmp_path / "sys", "holds neither"), (tmp_path / "none", "is no folder")):
        with pytest.raises(UsageError, match=words):
            copied(str(folder))
