"""Tests for commbench.topology.peaks: a device is found by its name, and its figures are those of its units."""

from __future__ import annotations

import pytest

from commbench.topology.peaks import peaks


@pytest.mark.parametrize(
    ("model", "device", "bfloat16"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100", 312e12),
        ("NVIDIA A100-PG509-200", "A100", 312e12),
        ("NVIDIA H100 80GB HBM3", "H100", 989.4e12),
        ("NVIDIA H100 PCIe", "H100 PCIe", 756e12),
        ("NVIDIA H200", "H200", 989.4e12),
        ("NVIDIA H200 NVL", "H200 NVL", 835.5e12),
        ("NVIDIA GH200 480GB", "GH200", 989.4e12),
        ("NVIDIA L40S", "L40S", 362e12),
        ("AMD Instinct MI300X", "MI300X", 1307.4e12),
        ("AMD INSTINCT MI250X", "MI250X", 191.5e12),
    ],
)
def test_a_device_is_found_by_its_name(model: str, device: str, bfloat16: float) -> None:
    found = peaks(model)
    assert found is not None
    assert found.device == device
    assert found.flops["bfloat16"] == pytest.approx(bfloat16)


@pytest.mark.parametrize("model", ["CPU", "", "NVIDIA RTX A4000", "NVIDIA A10G", "NVIDIA GB200"])
def test_of_other_devices_nothing_is_known(model: str) -> None:
    assert peaks(model) is None


@pytest.mark.parametrize(
    ("model", "units", "ghz", "operations"),
    [  # of 16 bits, a unit and clock: NVIDIA's and AMD's architecture white papers
        ("V100", 80, 1.53, 1024),
        ("A100", 108, 1.41, 2048),
        ("H100", 132, 1.83, 4096),
        ("H100 PCIe", 114, 1.62, 4096),
        ("MI210", 104, 1.7, 1024),
        ("MI250X", 110, 1.7, 1024),
        ("MI300A", 228, 2.1, 2048),
        ("MI300X", 304, 2.1, 2048),
        ("MI350X", 256, 2.2, 4096),
        ("MI355X", 256, 2.4, 4096),
    ],
)
def test_figures_are_units_times_clock_times_operations(model: str, units: int, ghz: float, operations: int) -> None:
    found = peaks(model)
    assert found is not None
    assert found.flops["float16"] == pytest.approx(units * ghz * 1e9 * operations, rel=5e-3)


def test_a_type_without_a_figure_is_left_out() -> None:
    found = peaks("Tesla V100-PCIE-16GB")
    assert found is not None
    assert found.flops == {"float64": 7e12, "float32": 14e12, "float16": 112e12}
