"""Descriptions of nodes that were written for tests."""

from __future__ import annotations

GPU = (
    '<pci busid="{bus}" class="0x030200" vendor="0x10de" link_speed="32.0 GT/s PCIe" link_width="{lanes}">'
    "{inside}</pci>"
)


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


def port(index: int, bus: str, speed: float, *inside: str) -> str:
    """A bridge of hwloc's."""
    about = f'bridge_type="1-1" pci_busid="{bus}" pci_type="0604 [8086:0001] [0000:0000] 00 00"'
    return f'<object type="Bridge" gp_index="{index}" {about} pci_link_speed="{speed}">{"".join(inside)}</object>\n'


def card(index: int, bus: str, kind: str, speed: float, *inside: str) -> str:
    """A PCI device of hwloc's."""
    about = f'pci_busid="{bus}" pci_type="{kind} [0000:0000] 00 00" pci_link_speed="{speed}"'
    return f'<object type="PCIDev" gp_index="{index}" {about}>{"".join(inside)}</object>\n'


def device(index: int, name: str, kind: int, inside: str = "") -> str:
    """An OS device of hwloc's."""
    return f'<object type="OSDev" gp_index="{index}" name="{name}" osdev_type="{kind}">{inside}</object>'


AMD_GPU, MELLANOX = "0380 [1002:740c]", "0207 [15b3:101b]"
HWLOC = f"""<?xml version="1.0" encoding="UTF-8"?>
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
{port(21, "0000:00:01.0", 31.507692, card(22, "0000:01:00.0", AMD_GPU, 15.753846, device(23, "rsmi0", 5)))}
{port(24, "0000:00:02.0", 31.507692, card(25, "0000:02:00.0", AMD_GPU, 31.507692, device(26, "rsmi1", 5)))}
{port(27, "0000:00:03.0", 15.753846,
      card(28, "0000:03:00.0", MELLANOX, 15.753846, device(29, "ib0", 2),
           device(30, "mlx5_0", 3, '<info name="NodeGUID" value="0000:0001"/>')),
      card(31, "0000:03:00.1", MELLANOX, 15.753846, device(32, "mlx5_1", 3)))}
      </object>
    </object>
  </object>
  <distances2 type="OSDev" nbobjs="2" kind="25" name="XGMIBandwidth" indexing="gp">
    <indexes length="5">23 26 </indexes>
    <u64values length="20">0 100000 100000 0 </u64values>
  </distances2>
</topology>
"""  # fmt: skip


def rocm_table(title: str, cells: list[list[str]]) -> str:
    """A matrix of rocm-smi --showtopo."""
    names = [f"GPU{place}" for place in range(len(cells))]
    rows = [["    ", *names], *([name, *row] for name, row in zip(names, cells, strict=True))]
    lines = ["".join(f"{cell:<13}" for cell in row) for row in rows]
    return "\n".join([f" {title} between two GPUs ".center(90, "="), *lines, ""])


ROCM = "\n".join(
    [
        " ROCm System Management Interface ".center(90, "="),
        rocm_table("Weight", [["0", "15", "30"], ["15", "0", "15"], ["30", "15", "0"]]),
        rocm_table("Hops", [["0", "1", "2"], ["1", "0", "1"], ["2", "1", "0"]]),
        rocm_table("Link Type", [["0", "XGMI", "XGMI"], ["XGMI", "0", "XGMI"], ["XGMI", "XGMI", "0"]]),
        " Numa Nodes ".center(90, "="),
        *(f"GPU[{gpu}]\t\t: (Topology) Numa {what}: {numa}" for gpu, numa in ((0, 0), (1, 1), (2, -1))
          for what in ("Node", "Affinity")),
        " End of ROCm SMI Log ".center(90, "="),
        "",
    ]
)  # fmt: skip
