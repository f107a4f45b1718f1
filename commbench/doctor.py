"""Say what can run on this machine and why not: libraries, GPUs, the machine, settings.

python -m commbench.doctor
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from textwrap import fill
from typing import Any, NoReturn

from commbench import __version__
from commbench.command import run_command
from commbench.diagnose import configuration, gpus, host, libraries
from commbench.diagnose.system import BROKEN, LEVELS, Check, Finding, System
from commbench.errors import EXIT_FAILED, EXIT_OK, unknown_name
from commbench.measure.parser import Parser
from commbench.results import manifest

SECTIONS: dict[str, dict[str, Callable[[System], Check]]] = {
    "libraries": libraries.CHECKS,
    "gpus and network": gpus.CHECKS,
    "machine": host.CHECKS,
    "settings": configuration.CHECKS,
}
REQUIRABLE = (*libraries.CHECKS, "nvidia", "amd", "infiniband")
AT_ONCE = 4  # checks at a time: most wait for a process
WIDTH = 120

EXAMPLES = """examples:
  python -m commbench.doctor                              what to send with a bug report
  python -m commbench.doctor --require mpi,nccl           exit 1 unless both can be used here
  python -m commbench.doctor --library /opt/nccl/lib/libnccl.so.2
  srun -N 4 --ntasks-per-node 1 python -m commbench.doctor --json > nodes.json

exit codes: 0 the report is there, whatever it says; 1 something of --require cannot be used; 2 bad usage
"""
LEGEND = {"broken": "does not work", "forced": "changes what runs", "slow": "makes times longer or less certain"}


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    it = Parser(
        prog="commbench doctor",
        description="Say what can run on this machine and why not: libraries, GPUs, the machine, settings.",
        epilog=EXAMPLES,
    )
    it.add_argument("--json", action="store_true", help="the report as one JSON object")
    it.add_argument("--require", metavar="NAMES", help=f"exit 1 unless these can be used: {', '.join(REQUIRABLE)}")
    it.add_argument("--library", metavar="PATH", default="", help="an NCCL or RCCL file to look at before others")
    return it


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Print the report and exit."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    run_command("doctor", lambda: _carry_out(parser().parse_args(arguments)))


def _carry_out(options: argparse.Namespace) -> int:
    required = required_names(options.require)
    report = examine(System(library=os.path.abspath(options.library) if options.library else ""))
    print(as_json(report) if options.json else as_text(report), flush=True)
    missing = {name: check for name in required if not (check := _find(report, name)).ok}
    for name, check in missing.items():
        why = check.text if check.remedy in check.text else f"{check.text}; {check.remedy}"
        print(f"commbench doctor: error: --require {name}: {why}", file=sys.stderr, flush=True)
    return EXIT_FAILED if missing else EXIT_OK


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def required_names(text: str | None) -> list[str]:
    """Return the names of --require; raise UsageError for one that no check has."""
    names = [name.strip() for name in text.split(",")] if text is not None else []
    for name in names:
        if name not in REQUIRABLE:
            raise unknown_name("name of --require", name, REQUIRABLE)
    return names


Report = dict[str, dict[str, Check]]  # section -> name -> check


def examine(system: System) -> Report:
    """Return what every check found; one that fails itself is a finding like any other."""
    checks = [(section, name, check) for section, those in SECTIONS.items() for name, check in those.items()]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            found = list(pool.map(lambda one: _guarded(one[1], partial(one[2], system)), checks))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            system.end()
            raise
    report: Report = {section: {} for section in SECTIONS}
    for (section, name, _), result in zip(checks, found, strict=True):
        report[section][name] = result
    return report


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:
        value = f"{type(error).__name__}: {error}"
        remedy = "report this as a bug of commbench, with the whole of this report"
        found = Finding(BROKEN, f"the check {name} of this command ends well", value, remedy)
        return Check(f"the check itself failed: {value}", False, remedy, {}, (found,))


def findings(report: Report) -> list[tuple[str, Finding]]:
    """Return every finding with the name of its check, worst first."""
    found = [(name, one) for checks in report.values() for name, check in checks.items() for one in check.findings]
    return sorted(found, key=lambda pair: LEVELS.index(pair[1].level))


def as_text(report: Report) -> str:
    """Return the report as a table in words."""
    facts = manifest.machine()
    lines = [f"# commbench {__version__} doctor, {manifest.now()}; {facts['system']}"]
    lines.append(f"# Python {facts['python']}, {facts['executable']}")
    wide = max(len(name) for checks in report.values() for name in checks)
    for section, checks in report.items():
        lines += ["", f"# {section}"]
        for name, check in checks.items():
            mark = {True: "yes", False: "no", None: ""}[check.ok]
            start = f"  {name:<{wide}}  {mark:<3}  "
            lines.append(_wrapped(check.text, start, " " * len(start)))
    found = findings(report)
    lines += ["", f"# findings: {len(found) or 'none'}{', worst first' if len(found) > 1 else ''}"]
    for name, one in found:
        lines.append(_wrapped(f"{one.rule}; here: {one.value}", f"  {one.level:<6}  {name}: ", " " * 10))
        lines.append(_wrapped(one.remedy, " " * 10 + "remedy: ", " " * 18))
    used = [f"{level} {LEGEND[level]}" for level in LEVELS if level in {one.level for _, one in found}]
    return "\n".join([*lines, *([f"# {'; '.join(used)}"] if used else [])])


def _wrapped(text: str, first: str, others: str) -> str:
    return fill(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def as_json(report: Report) -> str:
    """Return the report as a JSON object: what a manifest has of the machine, sections, findings."""
    sections: dict[str, Any] = {
        section: {
            name: {"ok": check.ok, "text": check.text, "remedy": check.remedy, "facts": check.facts}
            for name, check in checks.items()
        }
        for section, checks in report.items()
    }
    found = [{"check": name, **asdict(one)} for name, one in findings(report)]
    whole = {"version": 1, "time": manifest.now(), "software": manifest.machine(), "sections": sections}
    return json.dumps({**whole, "findings": found})


def _find(report: Report, name: str) -> Check:
    return next(checks[name] for checks in report.values() if name in checks)


if __name__ == "__main__":
    main()
