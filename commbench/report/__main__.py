"""One report of runs and logs: words, pictures and tables in a single HTML file that opens offline.

python -m commbench.report results/ nccl-tests.log -o report.html
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from commbench.command import run_command
from commbench.compare import add_links, add_match
from commbench.errors import UsageError, printable
from commbench.measure.parser import Parser

if TYPE_CHECKING:
    from commbench.report.content import Content

NEEDED = ("pandas", "matplotlib", "seaborn", "jinja2")
EXAMPLES = """examples:
  python -m commbench.report results/ -o report.html              one system
  python -m commbench.report h100.log mi300x.log -o report.html   two, compared cell by cell
  python -m commbench.report results/before results/after --format md > report.md
  python -m commbench.report results/ --format png -o pictures/   the pictures alone
  python -m commbench.report results/ --link 450 --nic 50 -o report.html    with the bounds of the hardware

exit codes: 0 the report is written, of no records too; 2 nothing was recognised, or bad usage
"""


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    it = Parser(
        prog="commbench report",
        description="Report on runs and logs, one system or several: words, pictures and tables.",
        epilog=EXAMPLES,
    )
    it.add_argument("paths", metavar="PATH", nargs="+", help="a side each: runs, sets of launches, logs, a pattern")
    it.add_argument("-o", "--out", metavar="FILE", help="where to write (default: report.html; md and csv: the screen)")
    it.add_argument(
        "--format", choices=("html", "md", "csv", "png"), default="html", help="default html; png: a folder"
    )
    add_match(it)
    add_links(it)
    return it


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Write the report, and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    run_command("report", lambda: _carry_out(parser().parse_args(words), f"commbench report {shlex.join(words)}"))


def _carry_out(options: argparse.Namespace, command: str) -> None:
    from importlib.util import find_spec

    needed = NEEDED[:1] if options.format in ("csv", "md") else NEEDED
    if missing := [name for name in needed if find_spec(name) is None]:
        raise UsageError(f"a report needs {', '.join(missing)}: pip install 'commbench[report]'")
    content = _content(options)
    if options.format == "png":
        _write_pictures(content, Path(options.out or "report"))
        return
    if options.format == "csv":
        columns = [name for name in content.frame.columns if name not in ("label", "place")]
        _write(content.frame.to_csv(columns=columns, index=False), options.out)
        return
    from commbench.report.best import best
    from commbench.report.summary import summary

    found = best(content)
    statements = summary(content, found)
    if options.format == "md":
        from commbench.report import markdown

        _write(markdown.render(content, statements, found, command), options.out)
        return
    from commbench.report import html

    _write(html.render(content, statements, found, command), options.out or "report.html")


def _content(options: argparse.Namespace) -> Content:
    from commbench.report.bounds import parse_links
    from commbench.report.content import assemble
    from commbench.report.sides import letters, read_all

    sides = read_all(options.paths, options.match)
    by_letter = dict(zip(letters(len(sides)), sides, strict=True))
    return assemble(by_letter, parse_links(options.link, options.nic, list(by_letter)))


def _write(text: str, out: str | None) -> None:
    """Write a text onto the screen, or into a file: whole or not at all, but for what is no regular file."""
    if out in (None, "-"):
        print(text, end="")
        return
    path = Path(out).resolve()  # a link stays one
    if path.is_dir():
        raise UsageError(f"{out} is a folder: name a file in it")
    special = path.exists() and not path.is_file()  # replacing would take a device's name from it
    beside = path if special else path.with_name(f".{path.name}.part")
    try:
        beside.write_text(text, encoding="utf-8", errors="surrogateescape")
        if not special:
            beside.replace(path)
    except OSError as error:
        if not special:
            beside.unlink(missing_ok=True)
        raise UsageError(f"cannot write {out}: {error.strerror or error}") from None
    print(f"# written to {printable(str(out))}", file=sys.stderr)


def _write_pictures(content: Content, folder: Path) -> None:
    from commbench.report.drawing import drawings, style
    from commbench.report.html import own_picture

    number = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with style():
            for one in drawings(content):
                number += 1
                name = "".join(sign if sign.isalnum() or sign in "-_" else "_" for sign in one.name)
                (folder / f"{number:02d}-{name[:80]}.png").write_bytes(own_picture(one))
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror or error}") from None
    for letter, side in content.sides.items():
        print(printable(f"# {letter}: {side.name}"), file=sys.stderr)
    print(f"# {number} pictures in {folder}", file=sys.stderr)


if __name__ == "__main__":
    main()
