"""`commbench doctor`: the report in words and as JSON, --require, and that nothing takes it down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from commbench import doctor
from commbench.diagnose.system import BROKEN, FORCED, SLOW, Check, Finding, System
from commbench.errors import UsageError
from tests.diagnose.machines import Machine

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "commbench.doctor", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """The report on this machine, as JSON."""
    done = run("--json", NCCL_ALGO="Ring", NCCL_NET_TOKEN="hunter2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "hunter2" not in done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_report_has_every_check(report: dict[str, Any]) -> None:
    for section, checks in doctor.SECTIONS.items():
        assert report["sections"][section].keys() == checks.keys()
        for check in report["sections"][section].values():
            assert check.keys() == {"ok", "text", "remedy", "facts"}
            assert check["text"]
            assert check["ok"] is not False or check["remedy"]


def test_the_report_is_of_this_machine(report: dict[str, Any]) -> None:
    import numpy

    assert report["sections"]["libraries"]["numpy"]["facts"]["version"] == numpy.__version__
    assert report["sections"]["machine"]["cpu"]["facts"]["allowed"]
    assert report["software"]["executable"] == sys.executable


def test_a_forced_algorithm_is_among_the_findings(report: dict[str, Any]) -> None:
    found = [(one["check"], one["level"], one["value"]) for one in report["findings"]]
    assert ("variables", "forced", "NCCL_ALGO=Ring in the environment") in found


def test_no_check_of_its_own_fails(report: dict[str, Any]) -> None:
    assert [one for one in report["findings"] if "the check" in one["rule"]] == []


def test_a_machine_with_nothing_has_a_report(machine: Machine) -> None:
    found = doctor.examine(machine.system(python="/nowhere/python"))
    assert not any(check.ok for checks in found.values() for check in checks.values())
    text = doctor.as_text(found)
    assert "nvidia      no   none: nvidia-smi is not in PATH" in text
    assert max(map(len, text.splitlines())) <= doctor.WIDTH
    assert json.loads(doctor.as_json(found))["version"] == 1


def test_findings_come_worst_first_with_value_and_remedy() -> None:
    found = {
        "a": {"one": Check("x", findings=(Finding(SLOW, "r1", "v1", "m1"), Finding(BROKEN, "r2", "v2", "m2")))},
        "b": {"two": Check("y", True, findings=(Finding(FORCED, "r3", "v3", "m3"),)), "three": Check("z", False)},
    }
    text = doctor.as_text(found)
    assert text.partition("\n\n")[2] == (
        "# a\n"
        "  one         x\n"
        "\n"
        "# b\n"
        "  two    yes  y\n"
        "  three  no   z\n"
        "\n"
        "# findings: 3, worst first\n"
        "  broken  one: r2; here: v2\n"
        "          remedy: m2\n"
        "  forced  two: r3; here: v3\n"
        "          remedy: m3\n"
        "  slow    one: r1; here: v1\n"
        "          remedy: m1\n"
        "# broken does not work; forced changes what runs; slow makes times longer or less certain"
    )


def test_a_check_that_fails_is_a_finding_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(system: System) -> Check:
        raise KeyError("nobody thought of this")

    monkeypatch.setattr(doctor, "SECTIONS", {"some": {"bad": failing, "good": lambda system: Check("fine", True)}})
    found = doctor.examine(System())
    assert found["some"]["good"].ok
    ((name, finding),) = doctor.findings(found)
    assert (name, finding.level, finding.value) == ("bad", BROKEN, "KeyError: 'nobody thought of this'")


def test_what_is_required_and_there_is_no_error() -> None:
    assert run("--require", "numpy").returncode == 0


def test_what_is_required_and_missing_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    done = run("--require", "numpy, cupy,amd", PYTHONPATH=str(tmp_path), PATH="/usr/bin:/bin")
    assert done.returncode == 1
    assert done.stdout.startswith("# commbench ")
    cupy, amd = done.stderr.splitlines()
    assert cupy.startswith("commbench doctor: error: --require cupy: cannot be imported: ImportError: libcudart.so.12")
    assert amd.startswith("commbench doctor: error: --require amd: none: ")


@pytest.mark.parametrize(
    ("names", "answer"),
    [("ncll", "did you mean nccl"), ("mpi,gpu", "known: "), ("", "known: "), ("mpi,", "known: "), ("mem", "known: ")],
)
def test_an_unknown_name_is_answered_with_the_nearest(names: str, answer: str) -> None:
    with pytest.raises(UsageError, match=f"unknown name of --require .*: .*{answer}"):
        doctor.required_names(names)


@pytest.mark.parametrize("arguments", [["--frobnicate"], ["extra"], ["--library"], ["--require", "ncll"]])
def test_bad_usage_is_one_line_and_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        doctor.main(arguments)
    said = capsys.readouterr()
    assert (raised.value.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert said.err.startswith("commbench doctor: error: ")


def test_a_library_that_is_named_and_not_there_is_a_finding_and_no_error() -> None:
    done = run("--library", "/nowhere/libnccl.so.2", "--json")
    assert done.returncode == 0
    values = [one["value"] for one in json.loads(done.stdout)["findings"]]
    assert any(value.startswith("/nowhere/libnccl.so.2: OSError: ") for value in values)


def test_a_reader_that_leaves_is_no_error() -> None:
    door = [sys.executable, "-m", "commbench.doctor"]
    shell = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$@" | true', "-", *door], cwd=ROOT, capture_output=True, text=True
    )
    assert (shell.returncode, shell.stderr) == (0, "")


def test_a_terminal_without_the_signs_gets_others(tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("raise ImportError('libé')")
    done = run(PYTHONPATH=str(tmp_path), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "ImportError: lib\\xe9" in done.stdout


def test_help_has_examples() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "python -m commbench.doctor --require mpi,nccl" in done.stdout


def test_the_door_itself_loads_nothing_heavy() -> None:
    code = "import sys, commbench.doctor; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"numpy", "mpi4py", "torch", "cupy", "llvmlite", "pandas"} & set(loaded.stdout.split()) == set()


def test_stopping_it_ends_what_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    (tmp_path / "cupy.py").write_text(
        f"import os, time; open({str(pid)!r} + '.new', 'w').write(str(os.getpid()))\n"
        f"os.rename({str(pid)!r} + '.new', {str(pid)!r}); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    door = subprocess.Popen([sys.executable, "-m", "commbench.doctor"], cwd=ROOT, env=environment)
    try:
        for _ in range(600):
            if pid.exists():
                break
            time.sleep(0.05)
        door.send_signal(signal.SIGINT)
        assert door.wait(timeout=30) == 128 + signal.SIGINT
        assert not Path(f"/proc/{pid.read_text()}").exists()
    finally:
        door.kill()
        door.wait()
