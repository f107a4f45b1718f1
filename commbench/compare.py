"""Compare runs, or sets of launches, on matched cells only: ratios of times, and which differences are real.

python -m commbench.compare results/before results/after --fail-if-slower 5%
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from commbench.command import run_command
from commbench.errors import EXIT_CANNOT_TELL, EXIT_FAILED, EXIT_OK, UsageError, printable
from commbench.measure.parser import Parser
from commbench.units import parse_number

EXAMPLES = """examples:
  python -m commbench.compare results/before results/after
  python -m commbench.compare results/before results/after --fail-if-slower 5%
  python -m commbench.compare results/h100 results/mi250x --match nodes --format md > comparison.md
  python -m commbench.compare nccl-tests.log rccl-tests.log --link A=450 --link B=448
  python -m commbench.compare results/ring          a folder of `commbench.repeat --against`: its a against its b

exit codes: 0 compared, and with --fail-if-slower no cell is slower by more; 1 one is slower beyond chance, and by more
as measured; 2 bad input; 3 with --fail-if-slower: cannot tell of some cell
"""


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    it = Parser(
        prog="commbench compare",
        description="Compare runs, or sets of launches, on matched cells only; all later ones with the first.",
        epilog=EXAMPLES,
    )
    it.add_argument("paths", metavar="PATH", nargs="+", help="a run folder, a folder of equal launches, or logs")
    add_match(it)
    it.add_argument(
        "--fail-if-slower", metavar="P", help="exit 1 where a cell is slower beyond chance, and by more than P (5%%)"
    )
    add_links(it)
    output = it.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="one JSON object a line")
    output.add_argument("--format", choices=("text", "md", "csv"), default="text", help="of the tables (default text)")
    return it


def add_match(it: argparse.ArgumentParser) -> None:
    """Add the option that says what makes two launches of one scale."""
    it.add_argument(
        "--match",
        choices=("ranks", "nodes", "gpus"),
        default="ranks",
        help="what makes two launches one scale: as many ranks on as many nodes, nodes, or GPUs (default ranks)",
    )


def add_links(it: argparse.ArgumentParser) -> None:
    """Add the options that say what links carry."""
    it.add_argument(
        "--link",
        metavar="[SIDE=]GB/S",
        action="append",
        help="what a rank's links inside its node carry in one direction (450: H100, NVLink); A=450 for side A",
    )
    it.add_argument(
        "--nic",
        metavar="[SIDE=]GB/S",
        action="append",
        help="a rank's share of its node's network interfaces, in one direction (50: one of 400 Gb/s a rank)",
    )


def fraction(text: str, what: str) -> float:
    """Return the fraction that `text` stands for: 5% and 0.05 are the same; 5 may be either, and is refused."""
    percent = text.strip().endswith("%")
    value = parse_number(text.strip().removesuffix("%"), what)
    if not percent and value >= 1:
        raise UsageError(f"{what} is a part of the time: write {text}% for {text} hundredths, not {text!r}")
    return value / 100 if percent else value


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Compare, print, and exit."""
    run_command("compare", lambda: _carry_out(parser().parse_args(arguments)))


def _carry_out(options: argparse.Namespace) -> int:
    from commbench.report import compare_screen as screen
    from commbench.report.bounds import parse_links
    from commbench.report.compare import MARGIN, compare
    from commbench.report.sides import read_all, set_apart

    limit = None if options.fail_if_slower is None else fraction(options.fail_if_slower, "--fail-if-slower")
    sides, empty = set_apart(read_all(options.paths, options.match))
    for source in (reading.source for side in empty for reading in side.readings):
        print(printable(f"# note: {source} has no rows, and is left out"), file=sys.stderr)
    if len(sides) < 2:
        raise UsageError(f"a comparison takes two sides, and {sides[0].name} is one: name another folder beside it")
    margin = MARGIN if limit is None else limit
    letters = screen.names(sides)
    links = parse_links(options.link, options.nic, list(letters.values()))
    comparisons = compare(sides, margin, {name: links[letter] for name, letter in letters.items()})
    if options.json:
        print(screen.as_json(comparisons), end="")
    elif options.format == "csv":
        print(screen.as_csv(comparisons), end="")
    else:
        print(screen.text(sides, comparisons, margin, markdown=options.format == "md"), end="")
    if limit is None:
        return EXIT_OK
    gate = screen.gate(sides, comparisons, limit)
    sys.stdout.flush()
    print("\n".join(gate.lines), file=sys.stderr, flush=True)
    return EXIT_FAILED if gate.failing else EXIT_CANNOT_TELL if gate.open else EXIT_OK


if __name__ == "__main__":
    main()
