"""Commands and children that fail, crash or hang are answers, and none of them is left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from commbench.diagnose.system import System
from tests.diagnose.machines import Machine


def test_a_command_answers_or_says_why_not(machine: Machine) -> None:
    machine.command("good", "echo well")
    machine.command("bad", "echo first >&2; echo the reason >&2; exit 3")
    machine.command("crashing", "kill -SEGV $$")
    machine.command("broken", "").write_bytes(b"\x7fELF not a program")
    system = machine.system()
    assert system.run("good").text == "well\n"
    assert system.run("bad").trouble == "bad failed with exit code 3: the reason"
    assert system.run("crashing").trouble == "crashing was ended by SIGSEGV"
    assert system.run("broken").trouble.startswith("broken failed with exit code 127: ")
    assert system.run("absent").trouble == "absent is not in PATH"


def test_what_a_hanging_command_started_is_ended_with_it(machine: Machine) -> None:
    pid = machine.root / "pid"
    machine.command("hanging", f"echo before; sleep 60 & echo $! > {pid}; wait")
    answer = machine.system().run("hanging", patience=0.5)
    assert (answer.text, answer.trouble) == ("before\n", "hanging did not answer within 0.5 s")
    assert _gone(int(pid.read_text()))


def test_ending_a_system_ends_what_runs_and_starts_nothing_more(machine: Machine) -> None:
    machine.command("good", "echo well")
    system = machine.system()
    system.end()
    assert system.run("good").text == ""


def test_every_command_of_a_name_is_found_the_first_in_path_first(machine: Machine) -> None:
    one, other = (machine.command("mpirun", "", folder) for folder in ("one", "other"))
    system = System(environment={"PATH": f"{other.parent}:{one.parent}:{other.parent}::/nowhere"})
    assert system.commands("mpirun") == [str(other), str(one)]


PACKAGES = {
    "crashing": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it crashed (SIGSEGV)"),
    "hanging": ("import time; time.sleep(60)", "it did not end within 3 s"),
    "leaving": ("import os; os._exit(7)", "it ended with exit code 7"),
    "unlucky": ("raise ImportError('libx.so.3: cannot open shared object file\\nmore')",
                "ImportError: libx.so.3: cannot open shared object file; more"),
    "silent": ("import os; os._exit(0)", "it ended without an answer"),
    "strange": ("raise SystemExit('no')", "it ended with exit code 1: no"),
}  # fmt: skip


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_that_breaks_its_process_does_not_break_ours(tmp_path: Path, name: str) -> None:
    code, said = PACKAGES[name]
    (tmp_path / f"{name}.py").write_text(code)
    system = System(
        environment={**os.environ, "PYTHONPATH": str(tmp_path)}, patience=3.0 if name == "hanging" else 60.0
    )
    assert system.child("package", name)["trouble"] == said


def test_what_a_library_prints_is_not_taken_for_facts(tmp_path: Path) -> None:
    (tmp_path / "chatty.py").write_text("import os; os.write(1, b'{\"version\": \"9\"}\\n'); __version__ = '1'")
    system = System(environment={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert system.child("package", "chatty") == {"version": "1", "file": str(tmp_path / "chatty.py")}


def test_a_child_is_asked_once(machine: Machine) -> None:
    log = machine.root / "log"
    python = machine.command("python", f"echo $4 >> {log}; echo '{{\"version\": 1}}'")
    system = machine.system(python=str(python))
    assert [system.child("torch"), system.child("torch")] == [{"version": 1}] * 2
    assert log.read_text() == "torch\n"


def test_files_that_are_missing_or_no_text_are_read_as_something(machine: Machine) -> None:
    machine.file("/sys/x/good", " 1 \n")
    (machine.root / "sys/x/odd").write_bytes(b"\xff\xfe")
    system = machine.system()
    assert (system.read("/sys/x/good"), system.read("/sys/none"), system.read("/sys/x")) == ("1", "", "")
    assert system.read("/sys/x/odd")
    assert system.glob("/sys/x/*") == ["/sys/x/good", "/sys/x/odd"]
    assert system.target("/sys/none") == ""


def _gone(pid: int) -> bool:
    """Whether a process has ended, given a moment to do so."""
    for _ in range(100):
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except OSError:
            return True
        time.sleep(0.05)
    return False
