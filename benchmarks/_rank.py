"""One rank of startup.py: runs a module or a script as `python` would, and leaves what it cost in a file.

    python _rank.py HOW FILE commbench.allreduce OPTIONS ...
    python _rank.py HOW FILE benchmarks/bare.py ARGUMENTS ...

HOW is `memory` (the peak resident set), `audit` (what Python opens, by an audit hook, and what is mapped at the end)
or `strace` (everything that is opened, on ranks 0 and n-1; others just run). The file is FILE and the rank's number.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import runpy
import sys
from pathlib import Path

STRACE = ("strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=?open,openat,?openat2")


def rank_and_size() -> tuple[int, int]:
    for rank, size in (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")):
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def peak_bytes() -> int:
    """Return the peak of this process's resident memory, pages shared with other ranks included."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1]) << 10  # type: ignore[index]


def mapped() -> list[str]:
    """Return the files that are mapped into this process: its libraries."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        fields = (line.split(maxsplit=5) for line in maps)
        return sorted({entry[5].strip() for entry in fields if len(entry) > 5 and entry[5].startswith("/")})


def main() -> None:
    how, file, target, *arguments = sys.argv[1:]
    rank, size = rank_and_size()
    mine = f"{file}{rank}"
    if how == "strace" and rank in (0, size - 1):
        place = [target] if target.endswith(".py") else ["-m", target]
        os.execvp("strace", [*STRACE, "-o", mine, sys.executable, *place, *arguments])
    if how == "memory":
        atexit.register(lambda: Path(mine).write_text(json.dumps({"peak_bytes": peak_bytes()})))
    elif how == "audit":
        opened: list[str] = []
        sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
        atexit.register(lambda: Path(mine).write_text(json.dumps({"opened": list(opened), "mapped": mapped()})))
    sys.argv = [target, *arguments]
    if target.endswith(".py"):
        runpy.run_path(target, run_name="__main__")
    else:
        # As `python -m`: the target's own folder, not this one, is where modules are found first.
        sys.path[0] = os.getcwd()
        runpy.run_module(target, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
