"""Settings of libraries: what they would do is told from the files by readers of ours, as the libraries read them."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.errors import UsageError
from commbench.recommend.export import mpich_settings, nccl_environment, nccl_tuner, openmpi_rules
from commbench.recommend.export._settings import NotExported, Settings
from commbench.recommend.exporting import texts
from commbench.recommend.plan import Choice, Plan
from tests.recommend.plans import choice, whole

CASES = Path(os.environ.get("COMMBENCH_CASES") or Path(__file__).resolve().parents[3] / "shared" / "cases")
needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason="no public files: COMMBENCH_CASES names their folder")
MIB = 1 << 20


def plan(*choices: Choice, vendor: str = "nvidia") -> Plan:
    return replace(whole(["n1", "n2"]), vendor=vendor, choices=choices)


REST = tuple(choice(name, "ring") for name in ("broadcast", "reduce", "allgather", "reducescatter"))
ALLREDUCE = (
    choice("allreduce", "tree", 0, MIB, "ll128", 4),
    choice("allreduce", "ring", MIB, 64 * MIB, "simple", 16),
    choice("allreduce", "nvls_tree", 64 * MIB, None, "simple", 24),
)


# NCCL and RCCL


@needs_cases
def test_the_example_of_nccl_is_read_as_its_plugin_does() -> None:
    rows = nccl_tuner.parse((CASES / "tuner" / "nccl_tuner.conf").read_text())
    assert len(rows) == 9
    assert rows[0] == nccl_tuner.Row("allreduce", 0, 65536, "tree", "simple", 2, 1, -1)
    assert max(row.most for row in rows) == 4294967295


def test_a_file_for_nccl_leaves_no_call_to_one_channel() -> None:
    made = nccl_tuner.files(plan(*ALLREDUCE, *REST), Settings())
    rows = nccl_tuner.parse(made["nccl_tuner.csv"])
    for collective in nccl_tuner.COLLECTIVES:
        for size in (0, 1, MIB - 1, MIB, 64 * MIB, 2**40, nccl_tuner.NO_END):
            for nodes, ranks in ((2, 16), (1, 8), (4, 64)):
                row = nccl_tuner.chosen(rows, collective, size, nodes, ranks)
                assert row is not None
                assert row.channels >= 1
    assert [nccl_tuner.chosen(rows, "allreduce", size, 2, 16) for size in (MIB - 1, MIB)] == [
        nccl_tuner.Row("allreduce", 0, MIB - 1, "tree", "ll128", 4, -1, -1),
        nccl_tuner.Row("allreduce", MIB, 64 * MIB - 1, "ring", "simple", 16, -1, -1),
    ]


def test_a_smaller_communicator_keeps_its_own_choice() -> None:
    small = choice("allreduce", "nvls", 0, None, "simple", 12, ranks=8, nodes=1)
    rows = nccl_tuner.parse(nccl_tuner.files(plan(*ALLREDUCE, *REST, small), Settings())["nccl_tuner.csv"])
    found = {place: nccl_tuner.chosen(rows, "allreduce", 8, *place) for place in ((1, 8), (2, 16), (1, 4))}
    assert {place: row and row.algorithm for place, row in found.items()} == {
        (1, 8): "nvls",
        (2, 16): "tree",
        (1, 4): "tree",
    }


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ((), "chooses no algorithm"),
        ((choice("alltoall", "pairwise"),), "chooses no algorithm"),
        (ALLREDUCE, "chooses nothing for broadcast of 0 bytes"),
        ((*ALLREDUCE[:1], ALLREDUCE[2], *REST), f"chooses nothing for allreduce of {MIB} bytes"),
        ((*ALLREDUCE[1:], *REST), "chooses nothing for allreduce of 0 bytes"),
        ((*ALLREDUCE[:2], *REST), f"chooses nothing for allreduce of {64 * MIB} bytes"),
        (
            (*ALLREDUCE, *REST[:3], replace(REST[3], channels=None)),
            r"of -1 NCCL's example plugin makes one \(\*nChannels = 1",
        ),
        ((*ALLREDUCE, *REST[:3], replace(REST[3], protocol=None)), "a rule has a protocol"),
        ((choice("allreduce", "pat"),), "allreduce has no algorithm 'pat'"),
        ((choice("broadcast", "tree"),), "broadcast has no algorithm 'tree'"),
        ((choice("allreduce", "nvls", protocol="ll"),), "nvls has no protocol 'll'"),
        ((choice("allreduce", "ring", channels=65),), "1 to 64 channels, not 65"),
        ((choice("allreduce", "ring,simple\nx", channels=6),), "has no algorithm"),
    ],
)
def test_no_file_for_nccl_is_better_than_one_that_does_harm(choices: tuple[Choice, ...], says: str) -> None:
    with pytest.raises(NotExported, match=says):
        nccl_tuner.files(plan(*choices), Settings())


def test_rccl_keeps_its_own_choice_where_no_rule_is() -> None:
    some = (choice("allreduce", "tree", MIB, 2 * MIB, "ll", None),)
    rows = nccl_tuner.parse(nccl_tuner.files(plan(*some, vendor="amd"), Settings())["rccl_tuner.csv"])
    assert rows == [nccl_tuner.Row("allreduce", MIB, 2 * MIB - 1, "tree", "ll", -1, 2, 16)]
    with pytest.raises(NotExported, match="not all of one of their vendors"):
        nccl_tuner.files(plan(*some, vendor="cpu"), Settings())


@pytest.mark.parametrize(
    "line",
    [
        "collective,min,max,algorithm,protocol,channels,nodes,ranks",  # a heading would be a rule
        "allreduce,0,1,ring,simple,1,1",
        "allreduce,0,1,ring,simple,1,1,1,1,1,1",
        "AllReduce,0,1,ring,simple,1,1,1",
        "allreduce,0,1,rings,simple,1,1,1",
        "allreduce,0,1,ring,ll256,1,1,1",
        "allreduce,0,x,ring,simple,1,1,1",
        f"allreduce,0,1,ring,simple,1,1,{' ' * 250}1",
    ],
)
def test_a_line_that_a_plugin_would_take_for_another_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match=r"^line 2: "):
        nccl_tuner.parse(f"# rules\n{line}\n")


def test_what_is_forced_makes_way_for_the_rules() -> None:
    made = openmpi_rules.files(plan(choice("allreduce", "ring"), choice("broadcast", "chain")), Settings())
    forced = {f"OMPI_MCA_coll_tuned_{name}_algorithm": "1" for name in ("allreduce", "bcast", "reduce")}
    command = ["bash", "-euc", f"{made['openmpi.env']}env"]
    said = subprocess.run(command, env={"PATH": "/bin:/usr/bin", **forced}, capture_output=True, text=True, check=True)
    found = {line.partition("=")[0] for line in said.stdout.splitlines() if line.startswith("OMPI_")}
    rules = {"OMPI_MCA_coll_tuned_use_dynamic_rules", "OMPI_MCA_coll_tuned_dynamic_rules_filename"}
    assert found == {"OMPI_MCA_coll_tuned_reduce_algorithm"} | rules


def test_an_environment_is_for_collectives_with_one_algorithm() -> None:
    made = nccl_environment.files(plan(*ALLREDUCE, REST[0], choice("allgather", "collnet_direct")), Settings())
    assert nccl_environment.parse(made["nccl.env"]) == {
        "NCCL_ALGO": {"broadcast": "ring", "allgather": "collnetdirect"},
        "NCCL_PROTO": {"broadcast": "simple", "allgather": "simple"},
    }
    command = ["bash", "-euc", f"{made['nccl.env']}echo $NCCL_ALGO"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == "broadcast:ring;allgather:collnetdirect\n"
    left = "\n# Left to the library: allreduce has 'tree' 'll128' with 16 ranks on 2 nodes from 0 to below 1M, "
    assert left in made["nccl.env"]
    with pytest.raises(NotExported, match="one algorithm for all sizes"):
        nccl_environment.files(plan(*ALLREDUCE), Settings())


OLDER = ("NCCL 2.21.5+cuda12.4", "RCCL 2.22.3", "NCCL 2.9.9", "NCCL 22304", "NCCL 2804", "NCCL v2.21", "nccl 2.18")


@pytest.mark.parametrize("library", [*OLDER, "NCCL\t2.18"])
def test_an_older_nccl_has_no_algorithm_for_one_collective_alone(library: str) -> None:
    old = replace(choice("allreduce", "tree"), library=library)
    with pytest.raises(
        NotExported, match=f"since 2.24, and these choices were measured with {re.escape(repr(library))}:"
    ):
        nccl_environment.files(plan(old), Settings())
    for later in ("NCCL 2.24.3", "NCCL 2.30.7+cuda13", "RCCL 2.27.7", "NCCL 22403", "nccl v3.0", ""):
        assert "nccl.env" in nccl_environment.files(plan(replace(old, library=later)), Settings())


UNREAD = (
    "NCCL",
    "NCCL 2",
    "NCCL " + "9" * 5000 + ".1",
    "NCCL 2." + "9" * 5000,
    "NCCL 2..30",
    "NCCL 22304.1",
    "NCCL new",
)


@pytest.mark.parametrize("library", UNREAD)
def test_an_nccl_whose_version_nobody_knows_may_be_an_older_one(library: str) -> None:
    with pytest.raises(NotExported, match="whose version is not known: measure with a later one"):
        nccl_environment.files(plan(replace(choice("allreduce", "tree"), library=library)), Settings())


FEW, MANY = choice("allreduce", "tree"), choice("allreduce", "tree", ranks=32, nodes=4)


def test_one_algorithm_for_several_numbers_of_ranks_is_one_for_all() -> None:
    made = nccl_environment.files(plan(FEW, replace(MANY, gain=3.0)), Settings())
    assert nccl_environment.parse(made["nccl.env"])["NCCL_ALGO"] == {"allreduce": "tree"}
    settings = mpich_settings.files(plan(FEW, MANY), Settings())["mpich.env"]
    assert mpich_settings.parse(settings)["MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"] == "tree"


@pytest.mark.parametrize("exporter", [nccl_environment, mpich_settings])
def test_where_ranks_differ_it_says_which_want_which(exporter: ModuleType) -> None:
    """Two that differ are in no file; what is said of them beside others is a remark, whatever a plan holds."""
    other = replace(MANY, algorithm="ring\nexport X=1;")
    with pytest.raises(NotExported) as refused:
        exporter.files(plan(FEW, other), Settings())
    both = (
        r"allreduce has 'tree' 'simple' with 16 ranks on 2 nodes, 'ring\nexport X=1;' 'simple' with 32 ranks on 4 nodes"
    )
    assert str(refused.value).endswith(f"; {both}")
    (text,) = exporter.files(plan(FEW, other, choice("allgather", "ring")), Settings()).values()
    assert f"# Left to the library: {both}\n" in text and "ALLREDUCE" not in text and "allreduce:" not in text
    assert all(line.startswith(("#", "export NCCL_", "export MPIR_CVAR_")) for line in text.splitlines())


def test_an_algorithm_that_nccl_has_not_does_not_end_an_export() -> None:
    made, done = texts(plan(Choice("allreduce", 4, 2, 0, None, "rabenseifner")), Settings())
    assert "job.sbatch" in made and "nccl.env" not in made
    assert done.refused["nccl_environment"] == (
        "no NCCL environment: allreduce has no algorithm 'rabenseifner' in NCCL"
    )


# Open MPI


@needs_cases
def test_public_rules_of_open_mpi_are_read() -> None:
    new = openmpi_rules.parse((CASES / "ompi" / "rules_v2_alltoall64.conf").read_text())
    rules = new.rules[3, 64]
    assert (new.version, len(rules)) == (2, 14)
    by_size = {rule.size: (rule.algorithm, rule.requests) for rule in rules}
    assert (by_size[512000], by_size[1572864000], by_size[2621440000][0]) == ((4, 64), (4, 1), 0)
    old = openmpi_rules.parse((CASES / "ompi" / "like_rules_v1_blank_line.conf").read_text())
    assert old.version == 1
    assert [(rule.size, rule.algorithm) for rule in old.rules[3, 96]] == [(0, 3), (256, 3), (4096, 4), (65536, 2)]


@pytest.mark.parametrize(("release", "version"), [((4, 1, 4), 1), ((5, 0, 6), 1), ((5, 0, 7), 2), (None, 1)])
def test_rules_are_written_as_the_version_reads_them(release: tuple[int, ...] | None, version: int) -> None:
    choices = (
        choice("allreduce", "rabenseifner", MIB, 4 * MIB),
        choice("allreduce", "ring", 8 * MIB),
        choice("broadcast", "binomial", 0, 64),
        choice("reducescatter", "recursive_halving", ranks=8),
    )
    made = openmpi_rules.files(plan(*choices), Settings(openmpi=release))
    found = openmpi_rules.parse(made["openmpi_rules.conf"])
    assert found.version == version
    assert {key: [(rule.size, rule.algorithm) for rule in rules] for key, rules in found.rules.items()} == {
        (2, 16): [(0, 0), (MIB, 6), (4 * MIB, 0), (8 * MIB, 4)],
        (7, 16): [(0, 6), (64, 0)],
        (13, 8): [(0, 3)],
    }
    assert {rule.requests for rules in found.rules.values() for rule in rules} == ({0} if version == 2 else {None})


@given(st.lists(st.integers(0, 2**40), min_size=2, max_size=8, unique=True), st.booleans())
def test_any_ranges_are_read_back(edges: list[int], endless: bool) -> None:
    """At each size the algorithm is the choice for it, and the library's own elsewhere."""
    ends = sorted(edges)
    known = list(openmpi_rules.ALGORITHMS["allreduce"])
    choices = [
        choice("allreduce", known[place % len(known)], *pair)
        for place, pair in enumerate(zip(ends[::2], ends[1::2], strict=False))
    ]
    if endless:
        choices[-1] = replace(choices[-1], below=None)
    made = openmpi_rules.files(plan(*choices), Settings(openmpi=(5, 0, 8)))
    rules = openmpi_rules.parse(made["openmpi_rules.conf"]).rules[2, 16]
    for size in sorted({0, *ends, *(end - 1 for end in ends if end), 2**41}):
        (wanted,) = [
            openmpi_rules.ALGORITHMS["allreduce"][one.algorithm]
            for one in choices
            if one.least <= size and (one.below is None or size < one.below)
        ] or [0]
        assert [rule.algorithm for rule in rules if rule.size <= size][-1] == wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1\n2\n1\n4\n1\n1 3 0 0\n", "rules begin with 0 bytes"),
        ("1\n2\n1\n4\n2\n0 3 0 0\n0 4 0 0\n", "rules begin with 0 bytes and ascend"),
        ("1\n2\n1\n4\n2\n0 3 0 0\n", "its end too soon"),
        ("1\n2\n1\n4\n1\n0 3 0 0\n7\n", "nothing follows the last rule"),
        ("rule-file-version-3\n1\n", "whole numbers to its end"),
    ],
)
def test_rules_that_open_mpi_would_not_understand_are_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        openmpi_rules.parse(text)


def test_what_open_mpi_does_not_have_is_refused() -> None:
    with pytest.raises(NotExported, match=r"allreduce has linear, .* and not 'nvls'"):
        openmpi_rules.files(plan(choice("allreduce", "nvls")), Settings())
    with pytest.raises(NotExported, match="the plan chooses no algorithm"):
        openmpi_rules.files(plan(), Settings())
    with pytest.raises(NotExported, match="allreduce has two choices for 10 bytes with 16 ranks"):
        openmpi_rules.files(plan(choice("allreduce", "ring"), choice("allreduce", "ring", 10)), Settings())


def test_as_many_ranks_on_other_nodes_do_not_end_an_export() -> None:
    """The rules are those of the most nodes; what is chosen for the others is said where they would stand."""
    near, far = choice("allreduce", "ring", ranks=4, nodes=1), choice("allreduce", "linear", 1024, ranks=4, nodes=4)
    few = choice("allreduce", "ring", ranks=16, nodes=1)
    made, done = texts(plan(near, far, few, choice("broadcast", "chain", ranks=4, nodes=1)), Settings())
    rules = openmpi_rules.parse(made["openmpi_rules.conf"]).rules
    assert {key: [(rule.size, rule.algorithm) for rule in those] for key, those in rules.items()} == {
        (2, 4): [(0, 0), (1024, 1)],
        (7, 4): [(0, 2)],
    }
    remark = "2 # allreduce, as chosen for 4 ranks on 4 nodes, not for 4 on 1 node or 16 on 1 node\n"
    assert remark in made["openmpi_rules.conf"]
    made, done = texts(plan(near, replace(near, least=10)), Settings())
    assert "placement.json" in made and "openmpi_rules.conf" not in made
    assert done.refused["openmpi_rules"].startswith("no Open MPI rules: allreduce has two choices for 10 bytes")


OMPI_INFO = Path(os.environ.get("COMMBENCH_OTHER_VENV", ""), "bin", "ompi_info")


@pytest.mark.mpi
@pytest.mark.skipif(not OMPI_INFO.is_file(), reason="no Open MPI: COMMBENCH_OTHER_VENV names its place")
def test_the_numbers_of_algorithms_are_those_of_open_mpi() -> None:
    from commbench.backends._algorithms import canonical

    command = [str(OMPI_INFO), "--param", "coll", "tuned", "-l", "9", "--parsable"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    functions = {"broadcast": "bcast", "reducescatter": "reduce_scatter_block"}
    for collective, known in openmpi_rules.ALGORITHMS.items():
        begin = f"mca:coll:tuned:param:coll_tuned_{functions.get(collective, collective)}_algorithm:enumerator:value:"
        listed = [line.removeprefix(begin).split(":") for line in text.splitlines() if line.startswith(begin)]
        assert {canonical(name): int(number) for number, name in listed if number != "0"} == known


# MPICH


def test_mpich_is_told_what_holds_for_all_sizes() -> None:
    some = (choice("allreduce", "rabenseifner"), choice("allgather", "bruck"), choice("broadcast", "binomial", MIB))
    made = mpich_settings.files(plan(*some), Settings())
    assert mpich_settings.parse(made["mpich.env"]) == {
        "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "reduce_scatter_allgather",
        "MPIR_CVAR_ALLGATHER_INTRA_ALGORITHM": "brucks",
        "MPIR_CVAR_DEVICE_COLLECTIVES": "none",
    }
    with pytest.raises(NotExported, match="is for all sizes"):
        mpich_settings.files(plan(*some[2:]), Settings())
    with pytest.raises(NotExported, match=r"allreduce has .*, and not 'nvls'"):
        mpich_settings.files(plan(choice("allreduce", "nvls")), Settings())
