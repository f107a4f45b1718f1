"""Counters over time: units, windows, wraps, resets, and files of telemetry that were cut or are none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.attribution.counters import (
    Column,
    Series,
    data_rate,
    increments,
    make_series,
    means,
    rates,
    rdma_column,
    read_series,
)
from commbench.errors import ResultsError

SECOND = 1_000_000_000
START = 1_796_000_000 * SECOND


def made(numbers: Sequence[float | None], column: Column, every: int = SECOND) -> tuple[Series, list[str]]:
    """A series of one column, a sample a second."""
    raw = np.array([np.nan if number is None else number for number in numbers], dtype=np.float64)[:, None]
    time = START + every * np.arange(len(numbers), dtype=np.int64)
    return make_series("n1", "mlx5_0/1", "rdma", {}, [column], time, raw)


@pytest.mark.parametrize(
    ("name", "unit", "factor"),
    [
        ("port_xmit_data", "B", 4),
        ("port_rcv_data", "B", 4),
        ("port_xmit_data_64", "B", 4),
        ("port_rcv_data_64", "B", 4),
        ("port_xmit_wait", "ticks", 1),
        ("port_xmit_packets", "packets", 1),
        ("port_rcv_packets_64", "packets", 1),
        ("unicast_rcv_packets", "packets", 1),
        ("rdma_read_bytes", "B", 1),
        ("port_xmit_discards", "", 1),
        ("np_cnp_sent", "", 1),
        ("RcvHdrOvr10", "", 1),
    ],
)
def test_the_name_of_a_counter_tells_its_unit(name: str, unit: str, factor: float) -> None:
    assert rdma_column(name) == Column(name, unit, factor)


@pytest.mark.parametrize(
    ("rate", "layer", "gigabits"),
    [
        ("40 Gb/sec (4X QDR)", "InfiniBand", 32),
        ("40 Gb/sec (4X QDR)", "Ethernet", 40),
        ("2.5 Gb/sec (1X SDR)", "InfiniBand", 2),
        ("56 Gb/sec (4X FDR)", "InfiniBand", 56),
        ("100 Gb/sec (4X EDR)", "InfiniBand", 100),
        ("400 Gb/sec (4X NDR)", "InfiniBand", 400),
        ("200 Gb/sec", "Ethernet", 200),
        ("0 GB/sec", "Ethernet", None),
        ("", "", None),
    ],
)
def test_a_port_carries_its_rate_less_its_coding(rate: str, layer: str, gigabits: float | None) -> None:
    carries = data_rate({"rate": rate, "link_layer": layer})
    assert carries == (None if gigabits is None else pytest.approx(gigabits * 1e9 / 8))


def test_data_is_bytes_a_second_and_waits_are_ticks() -> None:
    data, _ = made([1000, 251_001_000, 501_001_000], rdma_column("port_xmit_data"))
    assert rates(data, "port_xmit_data", START, START + SECOND) == pytest.approx(4 * 251e6)
    assert increments(data, "port_xmit_data", START, START + 2 * SECOND) == pytest.approx(4 * 501e6)
    waits, _ = made([5, 105], rdma_column("port_xmit_wait"))
    assert rates(waits, "port_xmit_wait", START, START + SECOND) == pytest.approx(100)
    assert waits.units == {"port_xmit_wait": "ticks"}


def test_many_windows_at_once_have_their_share_of_an_interval() -> None:
    one, _ = made([0, 100, 300], Column("x"))
    starts = START + SECOND * np.array([0, 0.25, 0.5, 1.9])
    ends = START + SECOND * np.array([2, 0.5, 1.5, 2])
    assert increments(one, "x", starts, ends) == pytest.approx([300, 25, 150, 20])
    assert rates(one, "x", starts, ends) == pytest.approx([150, 100, 150, 200], rel=1e-6)


def test_what_was_not_sampled_is_not_known() -> None:
    one, _ = made([0, 100, 300], Column("x"))
    starts, ends = np.array([-1, 0, 3]) * SECOND + START, np.array([1, 3, 4]) * SECOND + START
    assert np.isnan(increments(one, "x", starts, ends)).all()
    assert np.isnan(increments(one, "y", START, START + SECOND))
    assert np.isnan(rates(one, "x", START, START))
    alone, _ = made([7], Column("x"))
    assert np.isnan(increments(alone, "x", START, START))


def test_a_sample_that_lacks_the_counter_is_passed_over() -> None:
    one, notes = made([0, None, 300], Column("x"))
    assert notes == [] and np.isnan(one.values["x"][1])
    assert increments(one, "x", START, START + SECOND) == pytest.approx(150)


@given(
    st.lists(st.integers(0, (1 << 31) - 1), min_size=1, max_size=20),
    st.integers(0, (1 << 32) - 2),
)
def test_a_counter_of_32_bits_that_begins_anew_goes_on(steps: list[int], start: int) -> None:
    told = [(start + sum(steps[:k])) % (1 << 32) for k in range(len(steps) + 1)]
    if (1 << 32) - 1 in told:  # at which others stay
        return
    one, notes = made(told, Column("np_cnp_sent"))
    assert notes == []
    assert np.diff(one.values["np_cnp_sent"]).tolist() == steps


def test_what_went_back_was_reset_and_is_not_known_meanwhile() -> None:
    one, notes = made([1000, 1100, 10, 30], Column("x"))
    assert notes == ["mlx5_0/1: x went back 1 times: it was reset, and what it counted meanwhile is not known"]
    at = START + SECOND * np.arange(4)
    found = increments(one, "x", at[:-1], at[1:])
    assert found[[0, 2]].tolist() == [100, 20] and np.isnan(found[1])
    assert np.isnan(increments(one, "x", at[0], at[3]))


@pytest.mark.parametrize(
    ("name", "top"),
    [
        ("port_xmit_data", (1 << 32) - 1),
        ("symbol_error", 65535),
        ("link_downed", 255),
        ("excessive_buffer_overrun_errors", 15),
    ],
)
def test_a_counter_at_its_largest_value_counts_no_more(name: str, top: int) -> None:
    one, notes = made([top - 5, top - 3, top, top], rdma_column(name))
    assert notes == [f"mlx5_0/1: {name} stays at its largest value, {top}: what it counts from there on is not known"]
    assert rates(one, name, START, START + SECOND) == 2 * (4 if name == "port_xmit_data" else 1)
    assert np.isnan(rates(one, name, START + SECOND, START + 3 * SECOND))


def test_a_clock_that_went_back_loses_samples_and_says_so() -> None:
    time = START + np.array([0, 2, 1, 3], dtype=np.int64)
    one, notes = make_series("n1", "cpu", "cpu", {}, [Column("x")], time, np.array([[0.0], [2], [5], [3]]))
    assert one.time.tolist() == [START, START + 2, START + 3]
    assert notes == ["cpu: 1 samples left out, as the clock of n1 went back"]


def test_a_gauge_has_a_mean_over_time() -> None:
    one, _ = made([0, 100, 100, 0], Column("gpu_busy", "%", 1, True))
    assert means(one, "gpu_busy", START, START + 3 * SECOND) == pytest.approx(200 / 3)
    starts, ends = START + SECOND * np.array([0.5, 1, 2.5]), START + SECOND * np.array([1, 2, 3])
    assert means(one, "gpu_busy", starts, ends) == pytest.approx([75, 100, 25])
    assert np.isnan(means(one, "gpu_busy", START - 1, START))
    with pytest.raises(ValueError, match="gauge"):
        increments(one, "gpu_busy", START, START + 1)


# Files


def telemetry(path: Path, lines: Sequence[Any], **head: Any) -> Path:
    sources = [
        {
            "source": "mlx5_0/1",
            "kind": "rdma",
            "facts": {"rate": "100 Gb/sec"},
            "columns": [["port_xmit_data", "B", 4, 0]],
        },
        {"source": "gpu0", "kind": "gpu", "facts": {}, "columns": [["gpu_busy", "%", 1, True]]},
    ]
    whole = [{"telemetry": 1, "host": "n1", "sources": sources, "notes": ["amd: none"], **head}, *lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in whole))
    return path


SAMPLES = [
    {"s": 0, "t": START, "v": {"port_xmit_data": 10}},
    {"s": 1, "t": START + 5, "v": {"gpu_busy": 90}},
    {"s": 0, "t": START + SECOND, "v": {}},
    {"s": 0, "t": START + 2 * SECOND, "v": {"port_xmit_data": 30}},
    {"s": 0, "t": START + 3 * SECOND, "v": {"port_xmit_data": None}},
]
END = {"end": {"code": 0, "notes": ["mlx5_0/1 went while the command ran"]}}


def test_a_file_is_read_back_with_what_did_not_change(tmp_path: Path) -> None:
    (port, gpu), notes = read_series(telemetry(tmp_path / "telemetry-n1.jsonl", [*SAMPLES, END]))
    assert (port.host, port.source, port.kind, port.facts) == ("n1", "mlx5_0/1", "rdma", {"rate": "100 Gb/sec"})
    assert port.time.tolist() == [START + k * SECOND for k in range(4)]
    assert port.values["port_xmit_data"][:3].tolist() == [40, 40, 120] and np.isnan(port.values["port_xmit_data"][3])
    assert gpu.gauges == {"gpu_busy"} and gpu.values["gpu_busy"].tolist() == [90]
    assert notes == (
        "telemetry-n1.jsonl: amd: none",
        "telemetry-n1.jsonl: mlx5_0/1 went while the command ran",
    )


def test_a_folder_holds_a_file_of_each_node(tmp_path: Path) -> None:
    for host in ("n2", "n1"):
        telemetry(tmp_path / f"telemetry-{host}.jsonl", [*SAMPLES, END], host=host, notes=[])
    series, _ = read_series(tmp_path)
    assert [one.host for one in series] == ["n1", "n1", "n2", "n2"]


def test_a_run_that_was_killed_is_read_as_far_as_it_came(tmp_path: Path) -> None:
    path = telemetry(tmp_path / "t.jsonl", SAMPLES, notes=[])
    (port, _), notes = read_series(path)
    assert len(port.time) == 4 and notes == ("t.jsonl: it has no end: the run was killed, or goes on",)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    (port, _), notes = read_series(path)
    assert len(port.time) == 3
    assert notes == ("t.jsonl: line 6 is cut, and left out: the run was killed while it was written",)
    for end in range(whole.index(b"\n") + 1, len(whole)):
        read_series((path.write_bytes(whole[:end]), path)[1])


def test_lines_that_are_no_samples_are_counted(tmp_path: Path) -> None:
    bad: list[Any] = [
        [1, 2],
        7,
        {"s": 2, "t": START, "v": {}},
        {"s": 0, "t": "x", "v": {}},
        {"s": 0, "t": 1 << 70, "v": {}},
        {"s": 0, "t": START, "v": {"port_xmit_data": [1]}},
        {"s": 0, "t": START, "v": {"unheard_of": 1}},
        {"s": 0, "v": {}},
    ]
    (port, _), notes = read_series(telemetry(tmp_path / "t.jsonl", [*bad, *SAMPLES, END], notes=[]))
    assert len(port.time) == 4
    assert notes[-1] == f"t.jsonl: {len(bad)} lines are no samples, and left out: the first is line 2"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no file of commbench.telemetry"),
        ("[]\n", "is no file of commbench.telemetry"),
        ('{"telemetry": 1}\n', "is no file of commbench.telemetry"),
        ('{"telemetry": 2, "host": "n", "sources": [], "notes": []}\n', "has format 2"),
        ("\x00\xff", "is no file of commbench.telemetry"),
    ],
)
def test_what_is_no_telemetry_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(ResultsError, match=words):
        read_series(tmp_path / "t.jsonl")


def test_what_is_no_text_is_refused_without_showing_it_all(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b"\xcb" * 10_000)
    with pytest.raises(ResultsError, match=r"is no file of commbench\.telemetry") as refused:
        read_series(tmp_path / "t.jsonl")
    assert len(str(refused.value)) < len(str(tmp_path)) + 200


def test_a_folder_without_telemetry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"holds no telemetry-\*\.jsonl"):
        read_series(tmp_path)
    with pytest.raises(ResultsError, match=r"cannot read .*: No such file"):
        read_series(tmp_path / "none.jsonl")
