"""Units of rates and times, and figures that count both directions."""

from __future__ import annotations

import pytest

from commbench.topology.figures import both_ways, gbps_of, us_of


@pytest.mark.parametrize(
    ("text", "gbps"),
    [
        ("900GB/s", 7200),
        ("450 GB/s", 3600),
        ("400Gb/s", 400),
        ("400 Gbps", 400),
        ("100Gbit/s", 100),
        ("1.8TB/s", 14400),
        ("1Mb/s", 0.001),
        ("1GiB/s", 8.58993),
        ("fast", None),
        ("1.2.3GB/s", None),
        ("400", None),
        ("", None),
    ],
)
def test_a_rate_with_a_unit_is_gigabits(text: str, gbps: float | None) -> None:
    assert gbps_of(text) == gbps


@pytest.mark.parametrize(
    ("text", "us"), [("600ns", 0.6), ("1.5 us", 1.5), ("2µs", 2), ("1ms", 1000), ("1s", 1e6), ("1", None)]
)
def test_a_time_with_a_unit_is_microseconds(text: str, us: float | None) -> None:
    assert us_of(text) == us


@pytest.mark.parametrize(
    ("kind", "arch", "gbps", "count", "each"),
    [
        ("nvlink", "sm90", 7200, 18, "3600"),
        ("nvlink", "sm80", 4800, 12, "2400"),
        ("nvlink", "sm100", 14400, 18, "7200"),
        ("nvlink", "", 7200, 1, "3600"),
        ("pcie", "sm90", 1024, 1, "512"),
        ("pcie", "sm89", 512, 1, "256"),
        ("xgmi", "gfx90a", 800, 1, "400"),
        ("xgmi", "gfx90a", 3200, 4, "1600"),
        ("xgmi", "gfx942", 1024, 1, "512"),
        ("c2c", "sm90", 7200, 1, "3600"),
    ],
)
def test_what_a_data_sheet_adds_up_is_known(kind: str, arch: str, gbps: float, count: int, each: str) -> None:
    assert both_ways(kind, arch, gbps, count).endswith(f": {each} each")


@pytest.mark.parametrize(
    ("kind", "arch", "gbps", "count"),
    [("nvlink", "sm90", 3600, 18), ("nvlink", "sm100", 7200, 18), ("pcie", "sm90", 512, 1), ("xgmi", "gfx90a", 800, 2)],
)
def test_what_goes_one_way_is_no_such_figure(kind: str, arch: str, gbps: float, count: int) -> None:
    assert both_ways(kind, arch, gbps, count) == ""
