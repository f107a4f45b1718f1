"""Read anybody's logs: what they hold as one table, and what is wrong with them.

python -m commbench.read all_reduce.log osu.txt results/
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from typing import NoReturn

from commbench.command import run_command
from commbench.errors import ResultsError, UsageError, printable
from commbench.measure.parser import Parser
from commbench.results.collect import collect
from commbench.results.kernels import KERNELS
from commbench.results.reading import Reading
from commbench.results.record import Record
from commbench.topology.show import counted

FORMATS = ("table", "csv", "json")
EXAMPLES = """examples:
  python -m commbench.read all_reduce.log                 its records as a table, its findings on standard error
  python -m commbench.read --format csv logs/ > all.csv   all files of a folder that are of a known format
  python -m commbench.read --json 'logs/*.gz'             one object: records and findings

exit codes: 0 records or findings are there; 2 nothing was recognised, or bad usage
"""
HEAD = (
    "#       size         count      dtype   redop   root  place            algorithm  protocol"
    "       time    algbw    busbw   wrong\n"
    "#        (B)    (elements)                                                        "
    "              (us)   (GB/s)   (GB/s)"
)


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    it = Parser(
        prog="commbench read",
        description="Read anybody's logs: what they hold as one table, and what is wrong with them.",
        epilog=EXAMPLES,
    )
    it.add_argument("paths", nargs="+", metavar="FILE", help="files, gzipped or not, run folders, folders, patterns")
    it.add_argument("--format", choices=FORMATS, default="table", help="of the records (default: table)")
    it.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    return it


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Print what the files hold, and exit."""
    run_command("read", lambda: _carry_out(parser().parse_args(arguments)))


def _carry_out(options: argparse.Namespace) -> None:
    readings: list[Reading] = []
    for path in options.paths:
        try:
            readings += collect([path])
        except ResultsError as error:
            if len(options.paths) == 1:
                raise
            print(f"commbench read: {error}", file=sys.stderr, flush=True)
    if not readings:
        raise UsageError("nothing was recognised")
    {"table": print_table, "csv": print_csv, "json": print_json}[options.format](readings)
    if options.format != "json":
        for reading in readings:
            for found in reading.findings:
                print(f"# {printable(str(found))}", file=sys.stderr, flush=True)


def print_table(readings: Sequence[Reading]) -> None:
    """Print a table for each table of each file, with what its rows share above it."""
    for reading in readings:
        print(f"# {printable(reading.source)}: {reading.format}, {len(reading)} records")
        above = ""
        for table in reading.tables:
            for row in table.rows:
                record = table.record(row)
                head = _shared(record)
                if head != above:
                    print(f"# {head}\n{HEAD}")
                    above = head
                print(_line(record))
        print()


def _shared(record: Record) -> str:
    where = f"{_counted(record.nranks, 'rank')} on {_counted(record.nnodes, 'node')}"
    if record.collective == KERNELS:
        where = "each rank on its own device, all at once"
    kind = "SIMULATED, nothing was measured: " if record.simulated else ""
    return f"{kind}{record.collective}, {record.library} (backend {record.backend}), {where}, method {record.method}"


def _counted(number: int | None, what: str) -> str:
    return f"unknown {what}s" if number is None else counted(number, what)


def _line(record: Record) -> str:
    def cell(value: object, width: int) -> str:
        return ("-" if value is None else str(value)).rjust(width)

    def figure(value: float | None) -> str:
        return "-".rjust(9) if value is None else f"{value:9.2f}" if value >= 0.01 or not value else f"{value:9.2g}"

    ran = record.observed_algorithm
    algorithm = record.algorithm if ran in (None, record.algorithm) else f"{record.algorithm}>{ran}"
    if record.collective == KERNELS:
        algorithm = f"{algorithm}, {record.group}"
    place = None if record.inplace is None else "in" if record.inplace else "out"
    text = (
        f"{record.size:12d}  {cell(record.count, 12)}  {record.dtype:>9}  {cell(record.redop, 6)}"
        f"  {cell(record.root, 5)}  {cell(place, 5)}  {algorithm:>19}"
        f"  {cell(record.protocol or record.observed_protocol, 8)}"
        f"  {figure(record.time_us)}{figure(record.algbw)}{figure(record.busbw)}  {cell(record.wrong, 6)}"
    )
    return text if record.status == "ok" else f"{text}  {record.status}: {record.reason}"


def print_csv(readings: Sequence[Reading]) -> None:
    """Print one row a record: the source, the line in it, and the fields of a record."""
    writer = None
    for reading in readings:
        for record, line in reading.located():
            row = {"source": reading.source, "line": line, **record.to_dict()}
            if writer is None:
                writer = csv.DictWriter(sys.stdout, fieldnames=list(row), lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)


def print_json(readings: Sequence[Reading]) -> None:
    """Print one JSON object: of each file its format, its records with their lines, and its findings."""
    files = [
        {
            "source": reading.source,
            "format": reading.format,
            "records": [{"line": line, **record.to_dict()} for record, line in reading.located()],
            "findings": [found.to_dict() for found in reading.findings],
        }
        for reading in readings
    ]
    print(json.dumps({"files": files}, indent=1))


if __name__ == "__main__":
    main()
