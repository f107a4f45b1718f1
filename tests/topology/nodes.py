"""Descriptions of nodes that were written for tests."""

from __future__ import annotations

GPU = '<pci busid="{bus}" class="0x030200" vendor="0x10de" link_speed="32.0 GT/s PCIe" link_width="{lanes}">{inside}</pci>'


def nccl_gpu(number: int, links: str, lanes: int = 16, sm: int = 90) -> str:
    inside = f'<gpu dev="{number}" sm="{sm}" rank="{number}" gdr="1">{links}</gpu>'
    return GPU.format(bus=f"0000:{0x10 + number:02x}:00.0", lanes=lanes, inside=inside)


def nvswitch(count: int) -> str:
    return f'<nvlink target="ffffffff:ffff:ff" count="{count}" tclass="0x068000"/>'


def nvlink(number: int, count: int) -> str:
    return f'<nvlink target="0000:{0x10 + number:02x}:00.0" count="{count}" tclass="0x030200"/>'


def nccl_nic(number: int, speed: int = 400000, lanes: int = 16, bus: str = "") -> str:
    return (
        f'<pci busid="{bus or f"0000:{0x90 + number:02x}:00.0"}" class="0x020000" link_speed="32.0 GT/s PCIe" '
        f'link_width="{lanes}"><nic><net name="mlx5_{number}" dev="{number}" speed="{speed}" port="1" '
        f'latency="0.000000" guid="0x{number + 1:x}" maxconn="131072" gdr="1"/></nic></pci>'
    )


def bridge(bus: str, *inside: str) -> str:
    return f'<pci busid="{bus}" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">{"".join(inside)}</pci>'


def nccl(*cpus: str, host: str = "", version: int = 1) -> str:
    """A system whose CPUs have these PCI devices."""
    text = "".join(
        f'<cpu {host} numaid="{numa}" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">'
        f"{inside}</cpu>\n"
        for numa, inside in enumerate(cpus)
    )
    return f'<system version="{version}">\n{text}</system>\n'


def smi(cells: list[list[str]], names: list[str], *, tab: str = "\t", affinity: list[str] | None = None) -> str:
    """A matrix of nvidia-smi topo -m; `affinity` has a row's last columns."""
    lines = [tab + tab.join([*names, "CPU Affinity", "NUMA Affinity"])]
    for place, (name, row) in enumerate(zip(names, cells, strict=True)):
        lines.append(tab.join([name, *row, *([affinity[place]] if affinity else [])]))
    return "\n".join(lines) + "\n"


HWLOC = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" nodeset="0x00000003">
    <info name="HostName" value="gpu-17"/>
    <object type="Package" os_index="0" nodeset="0x00000003">
      <object type="Group" nodeset="0x00000001"><object type="NUMANode" os_index="0" nodeset="0x00000001"/>
        <object type="Core" os_index="0" nodeset="0x00000001"/></object>
      <object type="Group" nodeset="0x00000002"><object type="NUMANode" os_index="1" nodeset="0x00000002"/>
        <object type="Core" os_index="1" nodeset="0x00000002"/></object>
      <object type="Bridge" gp_index="20" bridge_type="0-1" depth="0" bridge_pci="0000:[00-05]">
        <object type="Bridge" gp_index="21" bridge_type="1-1" pci_busid="0000:00:01.0" pci_type="0604 [8086:0001] [0:0] 0 0" pci_link_speed="31.507692">
          <object type="PCIDev" gp_index="22" pci_busid="0000:01:00.0" pci_type="0380 [1002:740c] [1002:0b0c] 01 00" pci_link_speed="15.753846">
            <object type="OSDev" gp_index="23" name="rsmi0" subtype="RSMI" osdev_type="5"/></object>
        </object>
        <object type="Bridge" gp_index="24" bridge_type="1-1" pci_busid="0000:00:02.0" pci_type="0604 [8086:0001] [0:0] 0 0" pci_link_speed="31.507692">
          <object type="PCIDev" gp_index="25" pci_busid="0000:02:00.0" pci_type="0380 [1002:740c] [1002:0b0c] 01 00" pci_link_speed="31.507692">
            <object type="OSDev" gp_index="26" name="rsmi1" subtype="RSMI" osdev_type="5"/></object>
        </object>
        <object type="Bridge" gp_index="27" bridge_type="1-1" pci_busid="0000:00:03.0" pci_type="0604 [8086:0001] [0:0] 0 0" pci_link_speed="15.753846">
          <object type="PCIDev" gp_index="28" pci_busid="0000:03:00.0" pci_type="0200 [15b3:1017] [15b3:0001] 00 00" pci_link_speed="15.753846">
            <object type="OSDev" gp_index="29" name="eth0" osdev_type="2"/>
            <object type="OSDev" gp_index="30" name="mlx5_0" osdev_type="3"><info name="NodeGUID" value="0000:0001"/></object></object>
          <object type="PCIDev" gp_index="31" pci_busid="0000:03:00.1" pci_type="0200 [15b3:1017] [15b3:0001] 00 00" pci_link_speed="15.753846">
            <object type="OSDev" gp_index="32" name="mlx5_1" osdev_type="3"/></object>
        </object>
      </object>
    </object>
  </object>
  <distances2 type="OSDev" nbobjs="2" kind="25" name="XGMIBandwidth" indexing="gp">
    <indexes length="5">23 26 </indexes>
    <u64values length="20">0 100000 100000 0 </u64values>
  </distances2>
</topology>
"""

ROCM = """============================ ROCm System Management Interface ============================
================================ Weight between two GPUs =================================
       GPU0         GPU1         GPU2         \nGPU0   0            15           30           
GPU1   15           0            15           \nGPU2   30           15           0            
================================= Hops between two GPUs ==================================
       GPU0         GPU1         GPU2         \nGPU0   0            1            2            
GPU1   1            0            1            \nGPU2   2            1            0            
=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2         \nGPU0   0            XGMI         XGMI         
GPU1   XGMI         0            XGMI         \nGPU2   XGMI         XGMI         0            
======================================= Numa Nodes =======================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[0]\t\t: (Topology) Numa Affinity: 0
GPU[1]\t\t: (Topology) Numa Node: 1
GPU[1]\t\t: (Topology) Numa Affinity: 1
GPU[2]\t\t: (Topology) Numa Node: -1
GPU[2]\t\t: (Topology) Numa Affinity: -1
================================== End of ROCm SMI Log ===================================
"""
