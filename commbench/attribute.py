"""Where a training step's time goes: compute, memory, communication, waiting for one another, or the host.

python -m commbench.attribute traces/ --results results/ --out attribution/
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from commbench.command import run_command
from commbench.errors import UsageError, printable, unknown_name
from commbench.measure.parser import Parser
from commbench.units import expand_ranges, parse_number, parse_whole

if TYPE_CHECKING:
    from commbench.attribution.analyse import Attribution, Choice
    from commbench.attribution.trace import Trace

MOST_STEPS = 1_000_000  # of --steps: more than traces hold
MEMORY = "memory"  # of --peak: GB/s
NEEDED = ("matplotlib", "seaborn", "jinja2")  # by --out
MOST_PROCESSES = 32  # unless asked for more: each takes memory
SIDE_BY_SIDE = 64 << 20  # bytes of traces: reading fewer takes no longer than starting processes for them
EXAMPLES = """examples:
  python -m commbench.attribute traces/                          one trace a rank, of the PyTorch profiler and others
  python -m commbench.attribute traces/ --results results/ --rdma counters/ --out attribution/
  python -m commbench.attribute before/ --compare after/         what changed, layer by layer
  python -m commbench.attribute rank0.json --partial --window 100:250

exit codes: 0; 2 bad usage, or traces that are not one of each rank of one job
"""


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    it = Parser(
        prog="commbench attribute",
        usage="commbench attribute TRACE ... [options]",
        description="Say where the time of training steps goes, who is late, and why, from the traces of all ranks.",
        epilog=EXAMPLES,
    )
    it.add_argument("traces", metavar="TRACE", nargs="*", help="files, or folders of them: one of each rank of a job")
    add = it.add_argument_group("what is looked at").add_argument
    add("--steps", metavar="A-B,...", help="of the marked steps (default all)")
    add("--window", metavar="A:B", help="instead of steps: ms since the first work, or `all`")
    add("--partial", action="store_true", help="go on where traces of ranks are missing, double, or of another job")
    add("--compare", metavar="TRACE", nargs="+", help="traces of another run, to be compared with the first ones")
    add = it.add_argument_group("what it is held against").add_argument
    add(
        "--results",
        metavar="PATH",
        nargs="+",
        default=[],
        help="measured runs of this cluster: of collectives, for excess; of kernels, for the bandwidth of memory",
    )
    add("--peak", metavar="TYPE=N,...", help="what the device can do: bfloat16=989 (TFLOP/s), memory=2900 (GB/s)")
    add("--rdma", metavar="DIR", help="counters of ports and GPUs, recorded meanwhile: tell congestion and throttling")
    add = it.add_argument_group("what comes out").add_argument
    add(
        "--out",
        metavar="DIR",
        help="write report.html, pictures, tables as CSV, attribution.json, and trace.json for Perfetto",
    )
    add("--json", action="store_true", help="print JSON")
    add = it.add_argument_group("how it is done").add_argument
    add("--processes", metavar="N", help="traces that are read at once (default: a core each)")
    add("--progress", choices=("auto", "on", "off"), default="auto", help="a bar (default: where there is a terminal)")
    return it


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Print the attribution, and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    run_command("attribute", lambda: _carry_out(parser().parse_args(words), f"commbench attribute {shlex.join(words)}"))


def _carry_out(options: argparse.Namespace, command: str) -> None:
    if not options.traces:
        raise UsageError(
            "TRACE is missing: put it first (commbench attribute traces/ ...), as --results and --compare take all "
            "paths behind them"
        )
    from commbench.report import attribution_compare as compare
    from commbench.report import attribution_screen as screen

    if options.out:
        _need(options.out, [*options.traces, *(options.compare or ())])
    choice = _choice(options)
    found = _attribution(options.traces, options, choice)
    other = _attribution(options.compare, options, choice) if options.compare else None
    if options.json:
        about = screen.as_json(found)
        if other is not None:
            about = {"a": about, "b": screen.as_json(other), "comparison": compare.as_json(found, other)}
        print(json.dumps(about, indent=1))
    elif other is None:
        print(screen.text(found), end="")
    else:
        print("\n".join(screen.comparison_lines(found, other)))
    if options.out:
        from commbench.report.attribution import write

        names = write(found, options.out, command, other)
        print(f"# in {printable(options.out)}: {', '.join(names)}", file=sys.stderr)


def _need(folder: str, traces: Sequence[str]) -> None:
    """Refuse what --out cannot do, before the analysis."""
    from importlib.util import find_spec

    if os.path.realpath(folder) in map(os.path.realpath, traces):
        raise UsageError(f"--out {folder} holds the traces: name another folder, which will not be read as one of them")
    if Path(folder).exists() and not Path(folder).is_dir():
        raise UsageError(f"--out {folder} is a file: name a folder")
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UsageError(f"--out needs {', '.join(missing)}: pip install 'commbench[report]'")


def _choice(options: argparse.Namespace) -> Choice:
    from commbench.attribution.analyse import ALL, Choice

    steps = None if options.steps is None else _steps(options.steps)
    window: tuple[float, float] | str | None = options.window
    if window not in (None, ALL):
        first, colon, last = options.window.partition(":")
        if not colon:
            raise UsageError(f"--window is A:B in ms, such as 100:250, or all, not {options.window!r}")
        window = (parse_number(first, "A of --window A:B"), parse_number(last, "B of --window A:B"))
    if window is not None and steps is not None:
        raise UsageError("--window and --steps choose the same in two ways: give one of them")
    return Choice(window, steps, options.partial)


def _steps(text: str) -> frozenset[int]:
    """Return the numbers of the steps that --steps chooses."""
    if not re.fullmatch(r"\d{1,18}(-\d{1,18})?(,\d{1,18}(-\d{1,18})?)*", text):
        raise UsageError(f"--steps is numbers and ranges by comma, such as 3-10, not {text!r}")
    ends = [[*map(int, part.split("-"))] for part in text.split(",")]
    if any(one[0] > one[-1] for one in ends):
        raise UsageError(f"--steps has ranges from the first step to the last, such as 3-10, not {text!r}")
    if (count := sum(one[-1] - one[0] + 1 for one in ends)) > MOST_STEPS:
        raise UsageError(f"--steps chooses {MOST_STEPS} steps at most, not {count}: name those that the traces have")
    return frozenset(expand_ranges(text))


def _attribution(paths: Sequence[str], options: argparse.Namespace, choice: Choice) -> Attribution:
    from commbench.attribution.analyse import analyse, one_of_each_rank
    from commbench.attribution.clocks import read_readings
    from commbench.attribution.counters import read_series
    from commbench.attribution.injected import read_injection
    from commbench.results.collect import collect
    from commbench.results.training import CLOCKS

    records = [record for run in collect(options.results) for record in run.records if not record.simulated]
    counters, notes = read_series(options.rdma) if options.rdma else ((), ())
    bandwidth, flops = _peaks(options.peak)
    traces = _read(paths, options)
    used, _ = one_of_each_rank(traces, choice.partial)
    folders = dict.fromkeys(Path(trace.source).parent for trace in used)
    clocks = [path for folder in folders for path in sorted(folder.glob(CLOCKS))]
    return analyse(
        traces,
        read_readings(clocks),
        records,
        counters,
        bandwidth=bandwidth,
        flops=flops or None,
        choice=choice,
        injection=read_injection(folders),
        notes=notes,
    )


def _read(paths: Sequence[str], options: argparse.Namespace) -> list[Trace]:
    """Return the traces of the files, read by as many processes as there are cores where they are large."""
    from commbench.attribution.reading import choose, read_chosen
    from commbench.backends.world import affinity, quota
    from commbench.measure.progress import Progress

    chosen = choose(paths)
    if options.processes is None:
        large = sum(one.size for one in chosen) >= SIDE_BY_SIDE
        # Older Pythons start processes with the current folder among their modules, which may be that of the traces.
        processes = min(len(affinity()), quota(), MOST_PROCESSES) if large and sys.version_info >= (3, 11) else 1
    else:
        processes = parse_whole(options.processes, "--processes", least=1)
    with Progress(options.progress, sum(len(one.files) for one in chosen), "file") as progress:
        done = 0

        def told() -> None:
            nonlocal done
            done += 1
            progress.update(lambda: done, lambda: None)

        return read_chosen(chosen, processes, told)


def _peaks(text: str | None) -> tuple[float | None, dict[str, float]]:
    """Return the bandwidth of memory (bytes/s) and the FLOP/s by data type that --peak gives."""
    from commbench.topology.peaks import DTYPES

    bandwidth, flops = None, {}
    for part in text.split(",") if text else ():
        name, equals, number = part.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(f"--peak is TYPE=TFLOPS by comma, or memory=GB/S, such as bfloat16=989, not {part!r}")
        if name != MEMORY and name not in DTYPES:
            raise unknown_name("data type of --peak", name, (MEMORY, *DTYPES))
        value = parse_number(number, f"--peak {name}", least=1e-6)
        if name == MEMORY:
            bandwidth = value * 1e9
        else:
            flops[name] = value * 1e12
    return bandwidth, flops


if __name__ == "__main__":
    main()
