"""The end of every command that reads and prints, and has no ranks: its streams, its errors, its exit code.

def main(arguments=None):
    run_command("compare", lambda: _carry_out(parser().parse_args(arguments)))
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from commbench.errors import EXIT_OK, EXIT_USAGE, UsageError, printable
from commbench.measure.streams import Patient


def run_command(name: str, work: Callable[[], int | None]) -> NoReturn:
    """Carry out `work` and exit with the code that it returns, 0 for None; a UsageError is one line and exit 2.

    A reader who left does not change the code. Ctrl-C ends the command as it does other programs, without a traceback.
    """
    sys.stdout, sys.stderr = Patient(sys.stdout), Patient(sys.stderr)
    try:
        code = work() or EXIT_OK
        sys.stdout.flush()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)  # so that a shell sees what it was, and ends its script
        raise
    except UsageError as error:
        print(f"commbench {name}: error: {printable(str(error))}", file=sys.stderr, flush=True)
        code = EXIT_USAGE
    raise SystemExit(code)
