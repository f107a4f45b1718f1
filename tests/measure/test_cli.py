"""The command line as text: every flag understood, every bad input answered with one line of ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from commbench.backends.base import Settings
from commbench.errors import UsageError
from commbench.measure.cli import _DEFAULTS, parser, read
from commbench.measure.collective import REDOPS
from commbench.measure.dtypes import DTYPES
from commbench.measure.options import Options
from tests.numpy_collectives import COLLECTIVES

ROOT = Path(__file__).resolve().parents[2]
ALLREDUCE, ALLGATHER, BROADCAST = COLLECTIVES["allreduce"], COLLECTIVES["allgather"], COLLECTIVES["broadcast"]

DEFAULTS: dict[str, Any] = {
    "smallest": 8,
    "largest": None,
    "factor": 8.0,
    "step": None,
    "dtypes": ["float32"],
    "redops": ["sum"],
    "algorithms": [],
    "inplace": [False],
    "ranks": None,
    "groups": None,
    "concurrent": False,
    "root": 0,
    "method": None,
    "iterations": None,
    "warmup": 1,
    "average": "max",
    "check": True,
    "rounds": None,
    "precision": 0.05,
    "max_seconds": 30.0,
    "budget": 120.0,
    "seed": 1,
    "protocols": None,
    "buffers": None,
    "graph": 0,
}


def options(line: str) -> Options:
    return read(BROADCAST if "-r" in line.split() or "--root" in line else ALLREDUCE, line.split())


def test_with_no_arguments_the_defaults_hold() -> None:
    bare = options("")
    assert bare.plan == DEFAULTS
    assert (bare.given, bare.backend, bare.format, bare.out) == (frozenset(), "auto", "table", None)
    assert (bare.resume, bare.progress, bare.timeout) == (False, "auto", 300.0)


FLAGS: list[tuple[str, dict[str, Any]]] = [
    ("--ranks 2,4,N", {"ranks": "2,4,N"}),
    ("--groups node", {"groups": "node"}),
    ("--concurrent on", {"concurrent": True}),
    ("--method clock", {"method": "clock"}),
    ("-b 64K", {"smallest": 65536}),
    ("--minbytes 1.5M", {"smallest": 3 << 19}),
    ("-e 2G", {"largest": 2 << 30}),
    ("--maxbytes 8", {"largest": 8}),
    ("-f 2", {"factor": 2.0}),
    ("--stepfactor 1.5", {"factor": 1.5}),
    ("-i 1K", {"step": 1024}),
    ("--stepbytes 3", {"step": 3}),
    ("-d double", {"dtypes": ["float64"]}),
    ("--datatype half,int8,float16", {"dtypes": ["float16", "int8"]}),
    ("-d all", {"dtypes": list(DTYPES)}),
    ("-o max", {"redops": ["max"]}),
    ("--op AVG,sum,avg", {"redops": ["avg", "sum"]}),
    ("-o all", {"redops": list(REDOPS)}),
    ("-r 3", {"root": 3}),
    ("--root 1", {"root": 1}),
    ("--algo ring,Tree,nvls", {"algorithms": ["ring", "tree", "nvls"]}),
    ("--algo all", {}),
    ("--inplace in", {"inplace": [True]}),
    ("--inplace both", {"inplace": [False, True]}),
    ("--inplace out", {}),
    ("--method loop", {"method": "loop"}),
    ("--method barrier", {"method": "barrier"}),
    ("-n 20", {"iterations": 20, "budget": None, "rounds": 5}),
    ("--iters 1 --rounds 7 --budget 9", {"iterations": 1, "rounds": 7, "budget": 9.0}),
    ("-w 0", {"warmup": 0}),
    ("--warmup_iters 5", {"warmup": 5}),
    ("-a 0", {"average": "rank0"}),
    ("-a 1", {"average": "mean"}),
    ("--average 2", {"average": "min"}),
    ("-a 3", {}),
    ("-c 0", {"check": False}),
    ("--check 1", {}),
    ("--rounds 30", {"rounds": 30}),
    ("--precision 0.01", {"precision": 0.01}),
    ("--max-seconds 2.5", {"max_seconds": 2.5}),
    ("--max-seconds 0", {"max_seconds": None}),
    ("--budget 600", {"budget": 600.0}),
    ("--budget 0", {"budget": None}),
    ("--seed 42", {"seed": 42}),
    ("--proto ll,Simple", {"protocols": ["ll", "simple"]}),
    ("--proto all", {"protocols": []}),
    ("--buffer plain,symmetric", {"buffers": ["plain", "symmetric"]}),
    ("--buffer all", {"buffers": []}),
    ("-R 1", {"buffers": ["registered"]}),
    ("--local_register 2", {"buffers": ["symmetric"]}),
    ("-n 40 -G 20 --rounds 7 --budget 9", {"graph": 20, "iterations": 40, "rounds": 7, "budget": 9.0}),
    ("--cudagraph 5 --iters 1 --rounds 7 --budget 9", {"graph": 5, "iterations": 1, "rounds": 7, "budget": 9.0}),
    ("--format nccl-tests", {"inplace": [False, True]}),
    ("--format nccl-tests --inplace in", {"inplace": [True]}),
    ("-e 4", {"smallest": 4, "largest": 4}),
    ("-b 8 -e 8", {"largest": 8}),
]


@pytest.mark.parametrize(("line", "changes"), FLAGS, ids=[line for line, _ in FLAGS])
def test_a_flag_changes_what_it_names_and_nothing_else(line: str, changes: dict[str, Any]) -> None:
    assert options(line).plan == DEFAULTS | changes


OUTSIDE: list[tuple[str, str, Any]] = [
    ("--format json", "format", "json"),
    ("--json", "format", "json"),
    ("--format csv", "format", "csv"),
    ("--out there", "out", "there"),
    ("--out there --resume", "resume", True),
    ("--progress off", "progress", "off"),
    ("--backend mylab.ucx", "backend", "mylab.ucx"),
    ("--rendezvous head:4000", "rendezvous", "head:4000"),
    ("-T 5", "timeout", 5.0),
    ("--library /opt/libnccl.so.2", "settings", Settings(library="/opt/libnccl.so.2")),
    ("--share-devices", "settings", Settings(share_devices=True)),
    ("--timeout 2.5", "timeout", 2.5),
    ("--backend model --topology h100-nvlink", "topology", "h100-nvlink"),
    ("--backend model --topology x --results runs", "results", "runs"),
    ("--backend model --topology x --per-node 4", "per_node", 4),
]


@pytest.mark.parametrize(("line", "name", "value"), OUTSIDE, ids=[line for line, *_ in OUTSIDE])
def test_flags_that_are_no_part_of_the_plan_leave_it_as_it_is(line: str, name: str, value: Any) -> None:
    assert getattr(options(line), name) == value
    assert options(line).plan == DEFAULTS
    assert options(line).given == frozenset()


def test_every_flag_is_tested_here() -> None:
    lines = [line for line, _ in FLAGS] + [line for line, _, _ in OUTSIDE]
    tested = set(" ".join(lines).split()) | {"-h", "--help"}
    for collective in COLLECTIVES.values():
        assert {flag for action in parser(collective)._actions for flag in action.option_strings} - tested == set()


def test_what_was_given_is_known_for_resuming() -> None:
    assert options("-b 16 --algo ring -n 5").given == {"smallest", "algorithms", "iterations"}
    assert options("-b 8 -d float --groups node --concurrent off").given == {
        *("smallest", "dtypes", "groups", "concurrent")  # what is given counts, be it the default
    }


def test_only_reductions_have_operators_and_only_rooted_collectives_a_root() -> None:
    for collective in COLLECTIVES.values():
        flags = {flag for action in parser(collective)._actions for flag in action.option_strings}
        assert ("-o" in flags) == collective.reduces
        assert ("-r" in flags) == collective.rooted
        assert read(collective, []).plan.keys() == DEFAULTS.keys()


# Bad input: rule, value, and the remedy where the rule is not one.

BAD = [
    ("-b 1M -e 1K", "-b must not be above -e, but 1M is above 1K"),
    ("-b 0", "-b is a size of at least 1 byte, not '0'"),
    ("-b -8", "-b is a number of bytes, with K, M, G or T behind it if need be (64K, 1M), not '-8'"),
    ("-b nan", "-b is a number of bytes, with K, M, G or T behind it if need be (64K, 1M), not 'nan'"),
    ("-e 8X", "-e is a number of bytes, with K, M, G or T behind it if need be (64K, 1M), not '8X'"),
    ("-e inf", "-e is a number of bytes, with K, M, G or T behind it if need be (64K, 1M), not 'inf'"),
    ("-e 5000000T", "-e is at most 2^62 bytes (4194304T), not '5000000T'"),
    ("-b 1.3", "-b is a whole number of bytes, not '1.3'"),
    ("-i 0", "-i is a size of at least 1 byte, not '0'"),
    ("-i x", "-i is a number of bytes, with K, M, G or T behind it if need be (64K, 1M), not 'x'"),
    ("-f 2 -i 8", "-f and -i exclude each other: sizes grow by a factor or by a step"),
    ("-f 1", "-f is a factor above 1, not '1'"),
    ("-f 0.5", "-f is a factor above 1, not '0.5'"),
    ("-f two", "-f is a factor above 1, not 'two'"),
    ("-f nan", "-f is a factor above 1, not 'nan'"),
    ("-f inf", "-f is a factor above 1, not 'inf'"),
    ("-f -2", "-f is a factor above 1, not '-2'"),
    ("-n 0", "-n is a whole number of at least 1, not '0'"),
    ("-n -1", "-n is a whole number of at least 1, not '-1'"),
    ("-n 1.5", "-n is a whole number of at least 1, not '1.5'"),
    ("-n nan", "-n is a whole number of at least 1, not 'nan'"),
    ("-G 4", "-G launches a graph that holds the iterations of -n: give -n too"),
    ("-n many", "-n is a whole number of at least 1, not 'many'"),
    ("-w -1", "-w is a whole number of at least 0, not '-1'"),
    ("-r -1", "-r is a whole number of at least 0, not '-1'"),
    ("-r 0.5", "-r is a whole number of at least 0, not '0.5'"),
    ("-a 4", "-a is a number from 0 to 3, not '4'"),
    ("-c 2", "-c is a number from 0 to 1, not '2'"),
    ("-c yes", "-c is a number from 0 to 1, not 'yes'"),
    ("--rounds 0", "--rounds is a whole number of at least 1, not '0'"),
    ("--precision -0.1", "--precision is a number of at least 0, not '-0.1'"),
    ("--precision nan", "--precision is a number of at least 0, not 'nan'"),
    ("--max-seconds -1", "--max-seconds is a number of at least 0, not '-1'"),
    ("--budget nan", "--budget is a number of at least 0, not 'nan'"),
    ("--budget soon", "--budget is a number of at least 0, not 'soon'"),
    ("-T 0", "-T is a number of at least 1, not '0'"),
    ("--seed -3", "--seed is a whole number of at least 0, not '-3'"),
    ("--seed 1.5", "--seed is a whole number of at least 0, not '1.5'"),
    ("-d flot", "unknown data type 'flot': did you mean float"),
    ("-d float,flot16", "unknown data type 'flot16': did you mean float16"),
    ("-d float,", "-d is a list of names with commas between them, not 'float,'"),
    ("-o maxx", "unknown reduction 'maxx': did you mean max"),
    ("-o sum,,max", "-o is a list of names with commas between them, not 'sum,,max'"),
    ("--algo ring,,tree", "--algo is a list of names with commas between them, not 'ring,,tree'"),
    ("--resume", "--resume goes on with the run in --out DIR: name its folder"),
    ("--format xml", "argument --format: invalid choice: 'xml'"),
    ("--method clok", "argument --method: invalid choice: 'clok'"),
    ("--inplace maybe", "argument --inplace: invalid choice: 'maybe'"),
    ("--iter 5", "unrecognized arguments: --iter 5 (--help shows the options)"),
    ("--frobnicate", "unrecognized arguments: --frobnicate (--help shows the options)"),
    ("8 1M", "unrecognized arguments: 8 1M (--help shows the options)"),
    ("-b", "argument -b/--minbytes: expected one argument (--help shows the options)"),
]


@pytest.mark.parametrize(("line", "message"), BAD, ids=[line for line, _ in BAD])
def test_bad_input_is_answered_with_rule_value_and_remedy(line: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        options(line)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-d", ""], "-d is a list of names with commas between them, not ''"),
        (["--algo", " "], "--algo is a list of names with commas between them, not ' '"),
        (["-b", " "], "-b is a number of bytes"),
        *(([flag, ""], f"{flag} is ") for flag in ("-b", "-e", "-f", "-i", "-n", "--rounds", "--budget", "--seed")),
    ],
)
def test_an_empty_value_is_no_value(words: Sequence[str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        read(ALLREDUCE, words)


def test_a_largest_size_of_nothing_is_answered_by_its_own_name() -> None:
    with pytest.raises(UsageError, match=r"-e is .* not '0'"):
        options("-e 0")


def test_a_seed_of_64_bits_is_kept_whole() -> None:
    assert options(f"--seed {2**53 + 1}").plan["seed"] == 2**53 + 1


@pytest.mark.parametrize("line", ["-d ALL", "-o ALL", "--algo ALL"])
def test_all_is_all_in_any_case(line: str) -> None:
    assert options(line).plan == options(line.lower()).plan


# --help


@pytest.mark.parametrize("collective", COLLECTIVES.values(), ids=list(COLLECTIVES))
def test_help_says_every_default(collective: Any) -> None:
    for action in parser(collective)._actions:
        if action.nargs == 0:
            continue  # --help, --resume and --json are on or off
        assert action.help is not None
        if action.dest == "groups":
            continue  # without it there is --ranks, which has one
        stated = re.search(r"\(default:? ?([^;)]*)", action.help)
        assert stated, f"{action.option_strings}: {action.help}"
        default = _DEFAULTS.get(action.dest, action.default)
        if default not in (None, "auto"):
            assert stated[1] == default


def test_the_defaults_that_help_states_are_those_that_hold() -> None:
    text = " ".join(parser(BROADCAST).format_help().split())
    for stated in ("smallest size, with K, M, G or T (default 8)", "times F (default 8)", "all (default float)"):
        assert stated in text
    for stated in ("(default 0.05)", "(default 120; with -n no limit)", "0: no limit (default 30)", "12; 5 with -n"):
        assert stated in text


def test_help_names_nccl_tests_flags_and_the_exit_codes() -> None:
    text = parser(ALLREDUCE).format_help()
    for flag in ("-b", "-e", "-f", "-i", "-n", "-w", "-c", "-o", "-d", "-a", "-T"):
        assert re.search(rf"^  {flag}[ ,]", text, re.MULTILINE), flag
    assert "exit codes: 0 every cell ran, or was rejected, not applicable or not measured; 1 a cell failed" in text


def door(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One rank of all-reduce, without a launcher."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI", "SLURM"))}
    command = [sys.executable, "-m", "commbench.allreduce", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)


def test_bad_input_is_one_line_on_standard_error_and_exit_2() -> None:
    done = door("-b", "1M", "-e", "1K")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "commbench allreduce: error: -b must not be above -e, but 1M is above 1K\n"


def test_help_is_printed_on_standard_output_and_exit_0() -> None:
    done = door("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: commbench allreduce [-h] [-b SIZE]")
    assert "mpirun -n 4 python -m commbench.allreduce -b 8 -e 1M -f 8" in done.stdout
    assert done.stderr == ""
