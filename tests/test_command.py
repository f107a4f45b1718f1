"""How commands that read and print end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from commbench.command import run_command
from commbench.errors import UsageError


def code_of(work: Callable[[], int | None]) -> int | str | None:
    out, err = sys.stdout, sys.stderr
    try:
        with pytest.raises(SystemExit) as left:
            run_command("name", work)
    finally:
        sys.stdout, sys.stderr = out, err
    return left.value.code


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (3, 3)])
def test_the_code_is_what_the_work_returns(returned: int | None, code: int) -> None:
    assert code_of(lambda: returned) == code


def test_an_error_is_one_line_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise UsageError("no file 'a\nb\x1b[2J'")

    assert code_of(refuse) == 2
    assert capsys.readouterr() == ("", "commbench name: error: no file 'a\\nb\\x1b[2J'\n")


def test_an_interrupt_ends_it_at_once_as_it_ends_other_programs() -> None:
    script = """
import time
from commbench.command import run_command

def work():
    print("under way", flush=True)
    while True:
        try:
            time.sleep(1000)
        except BaseException:  # as some libraries do
            pass

run_command("name", work)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "under way\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (-signal.SIGINT, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_standard_output_is_said() -> None:
    script = "from commbench.command import run_command\nrun_command('name', lambda: print('lost'))\n"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", script], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "commbench name: error: cannot write standard output: No space left on device\n"
