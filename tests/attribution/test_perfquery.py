"""What perfquery prints, by files of ours and by a public one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commbench.attribution.counters import increments
from commbench.attribution.perfquery import kernel_name, read_perfquery, read_series
from commbench.errors import ResultsError

CASES = Path(os.environ.get("COMMBENCH_CASES") or Path(__file__).resolve().parents[3] / "shared" / "cases")
needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason="no public files: COMMBENCH_CASES names their folder")

SECOND = 1_000_000_000


def printed(data: int, wait: int, errors: object = 0) -> str:
    return f"""# Port extended counters: Lid 7 port 3 (CapMask: 0x5300 CapMask2: 0x0000002)
PortSelect:......................3
CounterSelect:...................0x0000
PortXmitData:....................{data}
SymbolErrorCounter:..............{errors}
CounterSelect2:..................0x00000000
PortXmitWait:....................{wait}
# PortRcvErrorDetails counters: Lid 7 port 3
PortSelect:......................3
PortMalformedPktErrors:..........2
"""


def test_counters_have_the_kernel_s_names() -> None:
    names = {
        "PortXmitData": "port_xmit_data",
        "PortRcvPkts": "port_rcv_packets",
        "PortUnicastXmitPkts": "unicast_xmit_packets",
        "SymbolErrorCounter": "symbol_error",
        "LinkErrorRecoveryCounter": "link_error_recovery",
        "LinkDownedCounter": "link_downed",
        "PortRcvSwitchRelayErrors": "port_rcv_switch_relay_errors",
        "LocalLinkIntegrityErrors": "local_link_integrity_errors",
        "VL15Dropped": "VL15_dropped",
        "QP1Dropped": "QP1_dropped",
        "PortDLIDMappingErrors": "port_dlid_mapping_errors",
    }
    assert {name: kernel_name(name) for name in names} == names


def test_blocks_of_one_port_are_one_port_and_no_number_is_named() -> None:
    (port,) = read_perfquery(printed(5, 9, "N/A"))
    assert (port.lid, port.port) == (7, "3")
    assert port.counters == {"port_xmit_data": 5, "port_xmit_wait": 9, "port_malformed_pkt_errors": 2}
    assert port.skipped == ("SymbolErrorCounter:..............N/A",)
    assert read_perfquery("ibwarn: [9] mad_rpc: timed out\n") == ()


def test_two_files_are_two_samples_at_their_times(tmp_path: Path) -> None:
    for name, data, when in (("b", 1_000_500, 20), ("a", 500, 10)):
        (tmp_path / name).write_text(printed(data, 3))
        os.utime(tmp_path / name, ns=(0, when * SECOND))
    (port,), notes = read_series([tmp_path / "b", tmp_path / "a"])
    assert (port.source, port.time.tolist(), notes) == ("lid 7/3", [10 * SECOND, 20 * SECOND], ())
    assert port.values["port_xmit_data"].tolist() == [2000, 4_002_000]
    assert increments(port, "port_xmit_data", 10 * SECOND, 20 * SECOND) == 4_000_000


def test_a_file_without_a_port_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("nothing\n")
    with pytest.raises(ResultsError, match="has no port of perfquery"):
        read_series([tmp_path / "x"])
    with pytest.raises(ResultsError, match="cannot read"):
        read_series([tmp_path / "y"])


@needs_cases
def test_the_public_file_of_a_switch() -> None:
    (port,), notes = read_series([CASES / "rdma" / "perfquery_0x506b4b03005c2740.out"])
    assert (port.source, port.facts, notes) == ("lid 2052/1", {"lid": "2052"}, ())
    values = {name: values[0] for name, values in port.values.items()}
    assert values["port_xmit_data"] == 715166628708940 == 4 * 178791657177235
    assert values["link_downed"] == 1
    assert values["port_rcv_switch_relay_errors"] == 7
    assert values["port_xmit_discards"] == 20046
    assert values["port_xmit_wait"] == 41864608


@needs_cases
def test_the_public_file_of_error_details() -> None:
    (port,) = read_perfquery((CASES / "rdma" / "perfquery_rcverr_0x506b4b03005c2740-1.out").read_text())
    assert (port.lid, port.port, len(port.counters), set(port.counters.values())) == (2052, "1", 6, {0})
