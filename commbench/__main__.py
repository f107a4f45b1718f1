"""`commbench NAME ...` does what `python -m commbench.NAME ...` does; without a name it lists the doors."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

from commbench import __version__
from commbench.errors import EXIT_OK, EXIT_USAGE, unknown_name


def doors() -> dict[str, str]:
    """Return every door's name and the first line of its docstring, read without importing any of them."""
    here = Path(__file__).parent
    files = {path.stem: path for path in here.glob("*.py") if not path.stem.startswith("_")}
    files |= {path.parent.name: path for path in here.glob("*/__main__.py")}
    found = {}
    for name, path in sorted(files.items()):
        text = path.read_text(encoding="utf-8")
        if path.name == "__main__.py" or '\nif __name__ == "__main__":' in text:
            found[name] = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return found


def _is_room_door(name: str) -> bool:
    """Whether a name with a dot is a file that can be run, in a room that is a door: kernels.copy."""
    room, _, stem = name.partition(".")
    here = Path(__file__).parent / room
    if not stem.isidentifier() or stem.startswith("_") or not (here / "__main__.py").exists():
        return False
    path = here / f"{stem}.py"
    return path.exists() and '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8")


def help_text() -> str:
    """Return what `commbench --help` prints."""
    rows = doors()
    width = max(map(len, rows))
    listing = "\n".join(f"  {name:<{width}}  {line}" for name, line in rows.items())
    return (
        f"commbench {__version__}: measures collective communication\n\n"
        "usage: commbench NAME [options]          one process\n"
        "       mpirun -n N commbench NAME ...    N ranks; the same as python -m commbench.NAME\n\n"
        f"{listing}\n\n"
        "example: mpirun -n 4 commbench allreduce -b 8 -e 1M -f 8 --algo ring,recursive_doubling\n"
        "`commbench NAME --help` shows the options of NAME."
    )


def main(argv: list[str] | None = None) -> None:
    """Run the door that the first argument names."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "--version"):
        from commbench.measure.streams import Patient

        sys.stdout = Patient(sys.stdout)  # a reader who left, as `head` does, is no error
        print(__version__ if "--version" in arguments[:1] else help_text(), flush=True)
        raise SystemExit(EXIT_OK if arguments else EXIT_USAGE)
    name = arguments[0]
    if name not in doors() and not _is_room_door(name):
        print(f"commbench: {unknown_name('command', name, doors())}", file=sys.stderr)
        raise SystemExit(EXIT_USAGE)
    sys.argv = [f"commbench {name}", *arguments[1:]]
    runpy.run_module(f"commbench.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
