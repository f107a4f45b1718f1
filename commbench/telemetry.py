"""Record counters of network ports, GPUs and processors while a command runs.

mpirun -n 8 python -m commbench.telemetry --out results/run1 -- python train.py
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, process_time, time_ns
from typing import TYPE_CHECKING, Any, NoReturn

from commbench import __version__
from commbench.attribution.counters import (
    FILES,
    FORMAT,
    Series,
    read_series,
)
from commbench.attribution.sources import Machine, Source, copied, find
from commbench.backends.world import Launch, launch, leave_the_word
from commbench.errors import EXIT_OK, EXIT_USAGE, ResultsError, UsageError, printable
from commbench.measure.parser import Parser
from commbench.measure.streams import Patient
from commbench.results import manifest
from commbench.results.journal import new_folder
from commbench.units import parse_number

if TYPE_CHECKING:
    from typing import BinaryIO

INTERVAL_MS = 100.0
SHARE = 0.01  # of a core, that sampling takes at most where no interval is asked for
NOT_FOUND, NOT_STARTED = 127, 126  # exit codes of shells for commands that are not there, and cannot be run
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ)  # which Python ignores, and a command would with it
LOOK = 0.1  # seconds between looks whether the command has ended: another thread may get the signal that says so

EXAMPLE = "python -m commbench.telemetry -- ./app"
EXAMPLES = """examples:
  python -m commbench.telemetry -- ./app
  mpirun -n 8 python -m commbench.telemetry --out results/run1 -- python train.py     one sampler on each node
  python -m commbench.telemetry --sysfs copy -- sleep 5                               counters of a copy of /sys
  python -m commbench.telemetry --show results/run1                                   what was recorded
  python -m commbench.telemetry --show before.txt after.txt                           two outputs of perfquery -x

exit codes: the command's own (128 + N where signal N ended it); 2 bad usage or input; 126, 127 it cannot be started
"""


def parser() -> Parser:
    """Return the options, which stand before `--`; the command stands behind it."""
    it = Parser(
        prog="commbench telemetry",
        usage="commbench telemetry [options] -- COMMAND ...",
        description="Record counters of network ports, GPUs and processors while a command runs.",
        epilog=EXAMPLES,
    )
    it.add_argument("--interval", metavar="MS", help="milliseconds between samples (default 100, or 1 %% of a core)")
    it.add_argument("--out", metavar="PATH", help="a folder, or a file.jsonl (default results/<UTC time>-telemetry)")
    it.add_argument("--sysfs", metavar="DIR", help="a copy of /sys, or of /sys/class/infiniband, to read instead")
    it.add_argument("--json", action="store_true", help="the summary as one JSON object, on standard error too")
    it.add_argument(
        "--show", metavar="PATH", nargs="+", help="no command: what was recorded, or what perfquery printed, in figures"
    )
    return it


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command, record meanwhile, print the summary on standard error, and exit with the command's code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it may be ignored, as nohup and & do
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stderr = Patient(sys.stderr)
    launched = launch()
    try:
        code = _carry_out(words, launched)
    except UsageError as error:
        code = EXIT_USAGE
        if _samples(launched):
            _say(f"commbench telemetry: error: {printable(str(error))}")
        leave_the_word(launched, speaks=_samples(launched))
    raise SystemExit(code)


def _samples(launched: Launch) -> bool:
    """Whether this process samples: one on each node; all where the launcher does not tell which is its first."""
    return not launched.node_rank


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _carry_out(words: list[str], launched: Launch) -> int:
    options, command = parser().parse_with_command(words, EXAMPLE)
    if options.show:
        if command:
            raise UsageError("--show runs no command: leave out what is behind --")
        _show(options.show, options.json)
        return EXIT_OK
    if not command:
        raise UsageError(f"the command is missing: put it behind -- ({EXAMPLE})")
    interval = None if options.interval is None else parse_number(options.interval, "--interval", least=1)
    machine = Machine() if options.sysfs is None else copied(options.sysfs)
    if shutil.which(command[0]) is None:
        return _not_started(command, FileNotFoundError(0, "no such command, or no permission to run it"), launched)
    if not _samples(launched):
        for number in DEFAULTS:
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            return _not_started(command, error, launched)
    return _record(command, machine, interval, options, launched)


def _record(
    command: list[str], machine: Machine, interval: float | None, options: argparse.Namespace, launched: Launch
) -> int:
    """Run the command while counters are sampled every `interval` ms, and say what became of it."""
    found = find(machine)
    notes = list(found.notes)
    refresh = max((source.refresh_ms for source in found.sources), default=0)
    asked = INTERVAL_MS if interval is None else interval
    if asked < refresh:
        notes.append(f"sampled every {refresh} ms rather than {asked:g}: adapters refresh their counters so often")
    every = max(asked, refresh)
    head, code = _head(command, every, found.sources, notes, launched), EXIT_OK
    try:
        path, recorder = _begin(options.out, launched, head, found.sources)
    except ResultsError as error:
        if launched.size == 1:
            raise
        # The other ranks' commands run already: without this one's they would wait in MPI_Init for ever.
        _say(f"commbench telemetry: error: {printable(str(error))}; the command runs all the same, and is not recorded")
        path, recorder = _begin(os.devnull, launched, head, found.sources)
        code = EXIT_USAGE
    with recorder.stream:
        try:
            ran = run(command, recorder, every / 1e3, SHARE if interval is None else None)
        except OSError as error:
            if not path.is_char_device():
                path.unlink()
            return _not_started(command, error, launched)
        after = find(machine).sources
        recorder.end({**asdict(ran), "notes": [*_changes(found.sources, after), *ran.notes]})
    _print_summary(path, recorder, ran, options.json)
    return ran.code or code


def _head(
    command: list[str], interval_ms: float, sources: Sequence[Source], notes: Sequence[str], launched: Launch
) -> dict[str, Any]:
    """Return the first line of a file."""
    return {
        **{"telemetry": FORMAT, "commbench": __version__, "host": os.uname().nodename},
        **{"rank": launched.rank, "ranks": launched.size, "time": manifest.now(), "command": command},
        "interval_ms": interval_ms,
        "sources": [
            {"source": one.name, "kind": one.kind, "facts": one.facts, "columns": one.columns} for one in sources
        ],
        "notes": notes,
    }


def _show(paths: Sequence[str], as_json: bool) -> None:
    """Print what files hold on standard output."""
    from commbench.attribution import perfquery
    from commbench.report import telemetry_screen as screen

    printed = [path for path in paths if perfquery.recognise(path)]
    folders = [Path(path) for path in paths if path not in printed]
    files = [file for path in folders for file in sorted(path.glob(FILES)) or [path]]
    recordings = [(str(file), *read_series(file)) for file in files]
    recordings += [(", ".join(printed), *perfquery.read_series(printed))] if printed else []
    found, text = [], []
    for where, series, notes in recordings:
        sources = screen.summarise(series)
        found += [{"file": where, **source} for source in sources]
        times = [one.time for one in series if len(one.time)]
        seconds = max((float(time[-1] - time[0]) / 1e9 for time in times), default=0.0)
        host, samples = next((one.host for one in series), ""), max(map(len, times), default=0)
        text += [screen.head(host, seconds, samples, where), *screen.lines(sources, seconds), *screen.totals(series)]
        text += [f"# note: {note.removeprefix(f'{Path(where).name}: ')}" for note in notes]
    if as_json:
        print(json.dumps({"sources": found, "notes": [note for *_, notes in recordings for note in notes]}))
    else:
        print("\n".join(text))


def _not_started(command: Sequence[str], error: OSError, launched: Launch) -> int:
    """Say on one rank of each node, which all fail alike, that the command cannot be started; return the exit code."""
    if _samples(launched):
        what = f"cannot start {printable(command[0])}: {error.strerror}"
        _say(f"commbench telemetry: error: {what}; is it in PATH, and executable?")
    leave_the_word(launched, speaks=_samples(launched))
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED


def _begin(
    out: str | None, launched: Launch, head: Mapping[str, Any], sources: Sequence[Source]
) -> tuple[Path, Recorder]:
    """Return the file of this node and what writes it; raise ResultsError where its first line cannot be written."""
    path, stream = _open(out, launched)
    recorder = Recorder(stream, head, sources)
    if recorder.lost:
        stream.close()
        raise ResultsError(f"cannot write to {path}: {recorder.lost}; name another place by --out")
    return path, recorder


def _open(out: str | None, launched: Launch) -> tuple[Path, BinaryIO]:
    """Return the file of this node and its stream: a new one, or a device such as /dev/null."""
    path = new_folder(f"results/{manifest.now()}-telemetry") if out is None else Path(out)
    try:
        if path.suffix != ".jsonl" and (path.is_dir() or not path.exists()):
            path.mkdir(parents=True, exist_ok=True)
            rank = f"-{launched.rank}" if launched.size > 1 and launched.node_rank is None else ""
            path /= FILES.replace("*", f"{os.uname().nodename}{rank}")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path, open(path, "wb" if path.is_char_device() else "xb", buffering=0)
    except FileExistsError:
        raise ResultsError(f"{path} is there already, and is kept: name another place by --out") from None
    except OSError as error:
        raise ResultsError(f"cannot write to {path}: {error.strerror}; name another place by --out") from None


class Recorder:
    """The file that samples go to, a line for each source; a line has what changed since the source's last one."""

    def __init__(self, stream: BinaryIO, head: Mapping[str, Any], sources: Sequence[Source]) -> None:
        self.stream, self._sources = stream, sources
        self._names = [[column.name for column in source.columns] for source in sources]
        self._last: list[dict[str, int | None]] = [{} for _ in sources]
        self.samples = 0
        self.lost = ""  # why nothing is written any more
        self._write([head])

    def sample(self) -> None:
        """Read every source once, and write it."""
        if self.lost:
            return
        lines = []
        for place, source in enumerate(self._sources):
            time, last = time_ns(), self._last[place]
            try:
                row = dict(zip(self._names[place], source.read(), strict=True))
            except OSError:  # a whole source that is gone
                row = dict.fromkeys(self._names[place])
            changed = {name: number for name, number in row.items() if last.get(name, self) != number}
            self._last[place] = row
            lines.append({"s": place, "t": time, "v": changed})
        self.samples += 1
        self._write(lines)

    def end(self, about: Mapping[str, Any]) -> None:
        """Write the last line."""
        if not self.lost:
            self._write([{"end": about}])

    def _write(self, lines: Sequence[Mapping[str, Any]]) -> None:
        data = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
        try:
            if self.stream.write(data) < len(data):
                self.lost = "the disk is full"
        except OSError as error:
            self.lost = str(error.strerror)


@dataclass(frozen=True)
class Ran:
    """How the command ran, and what recording it took."""

    code: int  # 128 + N where signal N ended it
    seconds: float
    own_cpu_s: float  # of this process while the command ran
    before_cpu_s: float  # of this process before that
    command_cpu_s: float
    samples: int
    notes: tuple[str, ...] = ()


def run(command: Sequence[str], recorder: Recorder, interval: float, share: float | None) -> Ran:
    """Run a command and sample every `interval` seconds, or less often where that took more than `share` of a core.

    The command has this process's standard streams and process group. Signals that another process sends to this one
    are passed on; the terminal sends its own (Ctrl-C) to both. Raises OSError for a command that cannot be started.
    """
    watched = {*FORWARDED, signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)  # they are waited for, between samples
    try:
        before = process_time()
        recorder.sample()
        began, longest = monotonic(), 0.0
        child = os.posix_spawnp(command[0], list(command), os.environ, setsigmask=mask, setsigdef=DEFAULTS)
        due, started = began + interval, process_time()
        while True:
            told = signal.sigtimedwait(watched, min(max(0.0, due - monotonic()), LOOK))
            ended, status, usage = os.wait4(child, os.WNOHANG)
            if ended:
                break
            if told and told.si_signo in FORWARDED and told.si_code <= 0:  # what processes send; the kernel's are above
                os.kill(child, told.si_signo)
            if monotonic() >= due:
                spent = process_time()
                recorder.sample()
                now, used = monotonic(), process_time()
                # When another sample, as dear as this one, is within the share.
                within = began + (used - started + used - spent) / share if share else now
                due = max(due + interval, within, now)
                longest = max(longest, due - now)
        seconds = monotonic() - began
        recorder.sample()
        own = process_time() - before
    finally:
        while signal.sigtimedwait(watched, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    notes = []
    if longest > 1.5 * interval:
        why = (
            f"lest it take more than {100 * share:g} % of a core"
            if share
            else "as samples, or the system, took so long"
        )
        notes.append(f"sampled up to {1e3 * longest:.0f} ms apart, {why}")
    code = os.waitstatus_to_exitcode(status)
    cpu = usage.ru_utime + usage.ru_stime
    return Ran(128 - code if code < 0 else code, seconds, own, before, cpu, recorder.samples, tuple(notes))


def _changes(before: Sequence[Source], after: Sequence[Source]) -> list[str]:
    """Return what is to be said of sources that came, went or changed while the command ran."""
    old, new = ({source.name: source for source in sources} for sources in (before, after))
    notes = [f"{name} came while the command ran, and was not sampled" for name in new.keys() - old.keys()]
    notes += [f"{name} went while the command ran" for name in old.keys() - new.keys()]
    for name in old.keys() & new.keys():
        facts = new[name].facts
        differ = {key: value for key, value in old[name].facts.items() if facts.get(key) != value}
        notes += [f"{name}: {key} was {value!r} at first, and {facts.get(key)!r} then" for key, value in differ.items()]
    return sorted(notes)


def _print_summary(path: Path, recorder: Recorder, ran: Ran, as_json: bool) -> None:
    from commbench.report.telemetry_screen import head, lines, summarise

    series: Sequence[Series] = ()
    notes: list[str] = [f"{path}: nothing was written any more: {recorder.lost}"] if recorder.lost else []
    if path.is_file():
        series, said = read_series(path)
        notes += [note.removeprefix(f"{path.name}: ") for note in said]
    else:
        notes.append(f"no summary: {path} keeps nothing that could be read again")
    sources = summarise(series)
    if as_json:
        about = {"telemetry": FORMAT, "host": os.uname().nodename, "file": str(path), **asdict(ran)}
        _say(json.dumps({**about, "sources": sources, "notes": notes}))
        return
    _say(head(os.uname().nodename, ran.seconds, ran.samples, str(path)))
    share = 100 * ran.own_cpu_s / ran.seconds
    _say(f"# own CPU: {share:.2f} % of a core while the command ran, {ran.before_cpu_s:.2f} s before")
    for line in lines(sources, ran.seconds):
        _say(line)
    for note in notes:
        _say(f"# note: {note}")


if __name__ == "__main__":
    main()
