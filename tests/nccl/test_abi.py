"""The numbers and layouts that commbench and nccl4py use are those of the real nccl.h, as a C compiler sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from commbench.backends import _nccl_bindings
from tests.nccl.build import compile_c

pytestmark = pytest.mark.usefixtures("wheels")
# In a process of its own, which loads the wheel's library.
_OF_BINDINGS = """
import json
from nccl.bindings import nccl
def layout(dtype): return {name: offset for name, (_, offset) in dtype.fields.items()}
print(json.dumps({
    "sizes": [nccl.config_dtype.itemsize, nccl.coll_config_dtype.itemsize, nccl.unique_id_dtype.itemsize],
    "config": layout(nccl.config_dtype), "call": layout(nccl.coll_config_dtype),
    "types": {each.name: int(each) for each in nccl.DataType},
    "reductions": {each.name: int(each) for each in nccl.RedOp},
}))
"""
_NAMES = {
    **{"magic": "magic", "version": "version", "minCTAs": "min_ctas", "maxCTAs": "max_ctas", "CTAPolicy": "cta_policy"},
    **{"cgaClusterSize": "cga_cluster_size", "algSelection": "alg_selection", "ext": "ext", "blocking": "blocking"},
    **{"forceAlgSelection": "force_alg_selection", "nvlsCTAs": "nvls_ctas", "userProfilerTag": "user_profiler_tag"},
    **{"launchCompletionEvent": "launch_completion_event_handle", "netName": "net_name", "splitShare": "split_share"},
    **{"collnetEnable": "collnet_enable", "nvlsHostMode": "nvls_host_mode"},
}


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    program = compile_c(Path(__file__).with_name("abi.c"), tmp_path_factory.mktemp("abi") / "abi")
    lines = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    return {name: int(value) for name, value in map(str.split, lines)}


def test_structures_of_nccl4py_are_those_of_the_header(header: dict[str, int]) -> None:
    done = subprocess.run([sys.executable, "-c", _OF_BINDINGS], capture_output=True, text=True, check=True)
    bindings = json.loads(done.stdout)
    assert bindings["sizes"] == [header["config"], header["call"], header["id"]]
    compared = 0
    for name, offset in header.items():
        structure, _, field = name.partition(".")
        if field:
            assert bindings[structure][_NAMES[field]] == offset, name
            compared += 1
    assert compared >= 20
    for name, value in bindings["types"].items():
        assert header.get(f"nccl{name}", value) == value
    for name in ("Sum", "Prod", "Max", "Min", "Avg"):
        assert header[f"nccl{name}"] == bindings["reductions"][name]


def test_numbers_of_commbench_are_those_of_the_header(header: dict[str, int]) -> None:
    for name, value in _nccl_bindings.DTYPES.items():
        assert header[f"nccl{name.capitalize()}"] == value
    for name, value in _nccl_bindings.REDOPS.items():
        assert header[f"nccl{name.capitalize()}"] == value
    codes = ("Success", "InvalidArgument", "InvalidUsage")
    ours = (_nccl_bindings.SUCCESS, _nccl_bindings.INVALID_ARGUMENT, _nccl_bindings.INVALID_USAGE)
    assert tuple(header[f"nccl{code}"] for code in codes) == ours
    assert header["NCCL_WIN_COLL_SYMMETRIC"] == _nccl_bindings.SYMMETRIC
    assert header["id"] == 128
