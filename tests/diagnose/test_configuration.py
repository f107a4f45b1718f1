"""Settings that change what runs: variables, NCCL's files, plugins; secrets are not shown."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from commbench.diagnose import configuration
from commbench.diagnose.system import System
from tests.diagnose.machines import Machine


@pytest.mark.parametrize(
    "name",
    [
        *("NCCL_ALGO", "NCCL_PROTO", "RCCL_OVERRIDE_ALGO", "RCCL_OVERRIDE_PROTO", "NCCL_SYM_KERNEL"),
        *("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM", "OMPI_MCA_coll_tuned_allreduce_algorithm", "I_MPI_ADJUST_ALLREDUCE"),
    ],
)
def test_a_variable_that_forces_an_algorithm_is_a_finding(machine: Machine, name: str) -> None:
    found = configuration.variables(machine.system(more={name: "Ring", "NCCL_DEBUG": "INFO"}))
    assert found.facts == {name: "Ring", "NCCL_DEBUG": "INFO"}
    (finding,) = found.findings
    assert (finding.level, finding.value) == ("forced", f"{name}=Ring in the environment")
    assert finding.remedy == f"unset {name}"


@pytest.mark.parametrize(("name", "value"), [("NCCL_DEBUG", "INFO"), ("NCCL_ALGO", ""), ("NCCL_ALGORITHMS", "Ring")])
def test_others_are_shown_only(machine: Machine, name: str, value: str) -> None:
    assert configuration.variables(machine.system(more={name: value})).findings == ()


def test_no_secret_is_shown(machine: Machine) -> None:
    machine.file("/etc/nccl.conf", "NCCL_NET_TOKEN=hunter2\nNCCL_DEBUG=WARN\n")
    system = machine.system(NCCL_API_KEY="hunter2", AWS_SECRET_ACCESS_KEY="hunter2")
    checks = [check(system) for check in configuration.CHECKS.values()]
    assert "hunter2" not in repr(checks)
    assert "NCCL_NET_TOKEN=(not shown) NCCL_DEBUG=WARN" in checks[1].text


def test_nccl_files_are_read_in_the_order_of_nccl_and_the_environment_comes_first(machine: Machine) -> None:
    own = machine.file("/home/me/.nccl.conf", "# mine\nNCCL_ALGO=Tree\n\nNCCL_DEBUG = INFO\n")
    everyone = machine.file("/etc/nccl.conf", "NCCL_PROTO=LL\nno setting\n")
    found = configuration.nccl_files(machine.system(HOME="/home/me"))
    assert found.facts == {str(own): {"NCCL_ALGO": "Tree", "NCCL_DEBUG": "INFO"}, str(everyone): {"NCCL_PROTO": "LL"}}
    assert [(one.level, one.value) for one in found.findings] == [
        ("forced", f"NCCL_ALGO=Tree in {own}"),
        ("forced", f"NCCL_PROTO=LL in {everyone}"),
    ]
    shadowed = configuration.nccl_files(machine.system(HOME="/home/me", NCCL_ALGO="Ring"))
    assert [one.value for one in shadowed.findings] == [f"NCCL_PROTO=LL in {everyone}"]


def test_a_file_named_by_nccl_conf_file_takes_the_place_of_the_one_at_home(machine: Machine) -> None:
    machine.file("/home/me/.nccl.conf", "NCCL_ALGO=Tree\n")
    named = machine.file("/opt/site.conf", "NCCL_ALGO=Ring\n")
    found = configuration.nccl_files(machine.system(HOME="/home/me", NCCL_CONF_FILE=str(named)))
    assert list(found.facts) == [str(named)]


def test_a_named_file_that_is_not_there_is_a_finding(machine: Machine) -> None:
    found = configuration.nccl_files(machine.system(NCCL_CONF_FILE="/nowhere/nccl.conf"))
    assert [(one.level, one.value) for one in found.findings] == [("broken", "/nowhere/nccl.conf")]


def test_a_tuner_and_an_env_plugin_are_findings_and_others_are_shown(machine: Machine) -> None:
    system = machine.system(NCCL_TUNER_PLUGIN="ofi", NCCL_ENV_PLUGIN="none", NCCL_NET_PLUGIN="aws-ofi")
    found = configuration.plugins(system)
    assert found.text == "NCCL_TUNER_PLUGIN=ofi NCCL_NET_PLUGIN=aws-ofi"
    assert [one.value for one in found.findings] == ["NCCL_TUNER_PLUGIN=ofi"]
    assert configuration.plugins(machine.system()).text == "none"


def test_a_tuner_that_the_loader_finds_is_a_finding_too(machine: Machine) -> None:
    facts = '{"libnccl-tuner.so": "/opt/lib/libnccl-tuner.so"}\n{"libnccl-net.so": "/opt/lib/libnccl-net.so"}'
    python = machine.children({"nccl_plugins": facts})
    found = configuration.plugins(machine.system(python=python))
    assert found.text == "/opt/lib/libnccl-tuner.so, /opt/lib/libnccl-net.so"
    assert [one.value for one in found.findings] == ["/opt/lib/libnccl-tuner.so"]
    assert configuration.plugins(machine.system(python=python, NCCL_TUNER_PLUGIN="none")).findings == ()


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler (cc) to make a library with")
def test_the_loader_itself_is_asked_for_plugins(tmp_path: Path) -> None:
    library = tmp_path / "libnccl-env.so"
    subprocess.run(["cc", "-shared", "-o", str(library), "-xc", "-"], input=b"int x;", check=True)
    system = System(environment={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    assert configuration.plugins(system).facts["found"]["libnccl-env.so"] == str(library)
