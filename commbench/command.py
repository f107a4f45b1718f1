"""The end of every command that reads and prints, and has no ranks: its streams, its errors, its exit code.

def main(arguments=None):
    run_command("compare", lambda: _carry_out(parser().parse_args(arguments)))
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from commbench.errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE, UsageError, printable
from commbench.measure.streams import Patient


def run_command(name: str, work: Callable[[], int | None]) -> NoReturn:
    """Carry out `work` and exit with the code that it returns, 0 for None; a UsageError is one line and exit 2.

    A reader who left does not change the code; a disk that is full where standard output goes is exit 1. Ctrl-C ends
    the command at once, without a traceback.
    """
    output = Patient(sys.stdout)
    sys.stdout, sys.stderr = output, Patient(sys.stderr)
    try:
        with _interruptible():
            code = work() or EXIT_OK
            output.flush()
    except UsageError as error:
        print(f"commbench {name}: error: {printable(str(error))}", file=sys.stderr, flush=True)
        code = EXIT_USAGE
    if output.trouble:
        print(f"commbench {name}: error: cannot write standard output: {output.trouble}", file=sys.stderr, flush=True)
        code = code or EXIT_FAILED
    raise SystemExit(code)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C do what it does to other programs; where it is ignored, as nohup and & do, it stays so.

    As an exception it would surface as whatever the library under way makes of it.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
