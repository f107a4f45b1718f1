"""GPUs, links and adapters, as the vendors' commands and the kernel tell them."""

from __future__ import annotations

from itertools import combinations

import pytest

from commbench.diagnose import gpus
from commbench.diagnose.gpus import Gpu, Nic
from tests.diagnose.machines import OUTPUTS, Machine

QUERY = "--query-gpu=index,name,uuid,pci.bus_id,driver_version,mig.mode.current --format=csv"
ROCM = "--showproductname --showuniqueid --showbus --showdriverversion --json"


def output(name: str) -> str:
    return (OUTPUTS / name).read_text(encoding="utf-8")


def test_eight_h100_are_listed_with_their_address_and_driver(machine: Machine) -> None:
    machine.answers("nvidia-smi", {QUERY: "h100_query.csv"})
    found = gpus.nvidia(machine.system())
    assert found.ok
    assert found.text == "8 × NVIDIA H100 80GB HBM3, driver 550.54.15"
    assert found.facts["gpus"][4] == {
        "index": 4,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-5e0a6074-7b1d-4c52-9f0e-3d6a8b2c4e04",
        "pci": "0000:9d:00.0",
        "driver": "550.54.15",
        "mig": False,
    }
    assert found.findings == ()


def test_links_of_h100_are_nvlink_and_each_gpu_has_its_own_nearest_adapter() -> None:
    topology = gpus.read_topology(output("h100_topo.txt"))
    assert topology.links == dict.fromkeys(combinations(range(8), 2), "NV18")
    nearest = ["mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"]
    assert topology.nearest == {gpu: ("PXB", [name]) for gpu, name in enumerate(nearest)}
    assert topology.numa == {gpu: gpu // 4 for gpu in range(8)}


def test_a_table_whose_tabs_became_spaces_is_read_alike() -> None:
    text = output("h100_topo.txt")
    assert gpus.read_topology(text.expandtabs(8)) == gpus.read_topology(text)


def test_an_older_table_with_named_adapters_is_read_too(machine: Machine) -> None:
    machine.answers("nvidia-smi", {"topo -m": "a100_topo.txt"})
    found = gpus.links(machine.system())
    assert found.text == (
        "4 pairs SYS, 2 pairs NV12; nearest adapters "
        "GPU0 mlx5_0 (NODE), GPU1 mlx5_0 (NODE), GPU2 mlx5_1 (PHB), GPU3 mlx5_1 (PHB)"
    )
    kinds = {tuple(pair["gpus"]): pair["kind"] for pair in found.facts["pairs"]}
    assert kinds[0, 1] == kinds[2, 3] == "NV12"
    assert found.facts["numa"] == {"0": 0, "1": 0, "2": 1, "3": 1}


def test_mig_is_a_finding_with_the_instances_that_there_are(machine: Machine) -> None:
    machine.answers("nvidia-smi", {QUERY: "mig_query.csv", "-L": "mig_list.txt"})
    found = gpus.nvidia(machine.system())
    assert found.text.endswith("; MIG on 0: 1 × 3g.20gb, 2 × 2g.10gb")
    assert [one["uuid"][:12] for one in found.facts["mig"]] == ["MIG-0a7c3e52", "MIG-51f8b6d4", "MIG-c94e1f28"]
    (finding,) = found.findings
    assert (finding.level, finding.value) == ("forced", "MIG is on, GPU 0")


def test_a_driver_that_knows_no_mig_is_asked_without_it(machine: Machine) -> None:
    old = "index, name, uuid, pci.bus_id, driver_version\\n0, Tesla V100-SXM2-16GB, GPU-1, 00000000:15:00.0, 440.33.01"
    refusal = 'Field "mig.mode.current" is not a valid field to query.'
    machine.command("nvidia-smi", f"case \"$*\" in *mig*) echo '{refusal}'; exit 2;; esac; printf '{old}\\n'")
    assert gpus.nvidia(machine.system()).text == "1 × Tesla V100-SXM2-16GB, driver 440.33.01"


def test_a_driver_that_does_not_answer_is_quoted_beside_what_the_kernel_sees(machine: Machine) -> None:
    said = "Failed to initialize NVML: Driver/library version mismatch"
    machine.command("nvidia-smi", f"echo '{said}'; exit 18")
    machine.file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15\nGCC")
    machine.file("/proc/driver/nvidia/gpus/0000:1b:00.0/information", "Model: \t\t NVIDIA H100\nIRQ:   \t\t 90\n")
    found = gpus.nvidia(machine.system())
    assert not found.ok
    assert found.text == f"1 seen by the kernel; nvidia-smi failed with exit code 18: {said}"
    assert found.facts["kernel"] == [{"Model": "NVIDIA H100", "IRQ": "90"}]
    assert [(finding.level, finding.value) for finding in found.findings] == [
        ("broken", f"nvidia-smi failed with exit code 18: {said}")
    ]


def test_a_command_that_hangs_is_a_finding(machine: Machine) -> None:
    machine.command("nvidia-smi", "sleep 60")
    found = gpus.nvidia(machine.system(patience=0.3))
    assert [finding.value for finding in found.findings] == ["nvidia-smi did not answer within 0.3 s"]


def test_a_machine_without_gpus_says_so_and_that_is_no_finding(machine: Machine) -> None:
    found = {name: check(machine.system()) for name, check in gpus.CHECKS.items()}
    assert [check.ok for check in found.values()] == [False, False, None, None, None, False]
    assert all(check.findings == () for check in found.values())
    assert found["nvidia"].text == "none: nvidia-smi is not in PATH"


def test_each_die_of_an_mi250x_is_a_gpu(machine: Machine) -> None:
    machine.answers("rocm-smi", {ROCM: "mi250x_rocm_smi.json", "--showtopo --json": "mi250x_topo.json"})
    found = gpus.amd(machine.system())
    assert (found.ok, found.text) == (True, "8 × AMD Instinct MI250X, driver 6.7.0")
    assert gpus.read_rocm_smi(output("mi250x_rocm_smi.json"))[1] == Gpu(
        1, "AMD Instinct MI250X", "0x8f3a51d2c07be956", "0000:c6:00.0", "6.7.0"
    )
    machine.file("/sys/class/infiniband/cxi0/device/numa_node", "3")
    machine.file("/sys/class/infiniband/cxi0/ports/1/state", "4: ACTIVE")
    assert gpus.links(machine.system()).text == "28 pairs XGMI; nearest adapters GPU0 cxi0 (NODE), GPU1 cxi0 (NODE)"


def test_amd_smi_is_asked_where_there_is_no_rocm_smi(machine: Machine) -> None:
    machine.answers("amd-smi", {"static --asic --bus --driver --json": "mi300x_amd_smi.json"})
    found = gpus.amd(machine.system())
    assert (found.ok, found.text) == (True, "2 × AMD Instinct MI300X, driver 6.12.12")
    inside = f'{{"gpu_data": {output("mi300x_amd_smi.json")}}}'
    assert gpus.read_amd_smi(inside) == gpus.read_amd_smi(output("mi300x_amd_smi.json"))


def test_adapters_have_address_node_and_state_and_one_that_is_down_is_a_finding(machine: Machine) -> None:
    for name, address, state in (("mlx5_0", "0000:1a:00.0", "4: ACTIVE"), ("mlx5_1", "0000:9c:00.1", "1: DOWN")):
        device = f"/sys/devices/pci0000:15/{address}"
        machine.file(f"{device}/numa_node", "1\n")
        machine.link(f"/sys/class/infiniband/{name}/device", device)
        for file, text in (("state", state), ("rate", "400 Gb/sec (4X NDR)"), ("link_layer", "InfiniBand")):
            machine.file(f"/sys/class/infiniband/{name}/ports/1/{file}", text + "\n")
    assert gpus.adapters(machine.system())[0] == Nic(
        "mlx5_0", "0000:1a:00.0", 1, "InfiniBand", "ACTIVE", "400 Gb/sec (4X NDR)"
    )
    found = gpus.infiniband(machine.system())
    assert found.ok
    assert [finding.value for finding in found.findings] == ["not active: mlx5_1"]


def test_cards_that_no_vendor_command_lists_are_still_named(machine: Machine) -> None:
    machine.file("/sys/devices/0000:03:00.0/vendor", "0x1002\n")
    machine.link("/sys/class/drm/card1/device", "/sys/devices/0000:03:00.0")
    machine.file("/sys/class/drm/card1-DP-1/status", "connected")
    found = gpus.cards(machine.system())
    assert (found.text, found.facts["cards"]) == (
        "1 × AMD",
        [{"card": "card1", "vendor": "AMD", "pci": "0000:03:00.0"}],
    )


@pytest.mark.parametrize("value", ["", "-1"])
def test_a_variable_that_hides_every_gpu_is_a_finding(machine: Machine, value: str) -> None:
    found = gpus.visible(machine.system(CUDA_VISIBLE_DEVICES=value, ROCR_VISIBLE_DEVICES="0,1"))
    assert [finding.value for finding in found.findings] == [f"CUDA_VISIBLE_DEVICES={value!r} hides them all"]
    assert "ROCR_VISIBLE_DEVICES=0,1" in found.text


@pytest.mark.parametrize("reader", [gpus.read_query, gpus.read_rocm_smi, gpus.read_amd_smi])
@pytest.mark.parametrize("text", ["", "garbage", "{", "[]", "index\n", "{}", "\x00"])
def test_what_is_no_answer_holds_no_gpu(reader: object, text: str) -> None:
    assert callable(reader)
    assert reader(text) == []
