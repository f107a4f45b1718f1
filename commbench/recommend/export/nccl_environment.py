"""NCCL or RCCL by environment lines, for collectives that have one algorithm at all sizes.

The form for each collective, allreduce:tree;allgather:ring, is NCCL's since 2.24, as is that a word which it does not
know ends the job. It holds for communicators of every size, and beats a tuner file.
"""

from __future__ import annotations

from commbench.recommend.export import nccl_tuner
from commbench.recommend.export._settings import NotExported, Settings
from commbench.recommend.plan import Choice, Plan

TITLE = "NCCL or RCCL environment"
LIBRARIES = ("NCCL", "RCCL")  # whose records it may be told of
NAME = "nccl.env"
SPELLED = {"collnet_direct": "collnetdirect", "collnet_chain": "collnetchain", "nvls_tree": "nvlstree"}


def files(plan: Plan, settings: Settings) -> dict[str, str]:
    """Return lines for the shell; raise NotExported where no collective has one algorithm for all sizes."""
    if plan.vendor not in ("nvidia", "amd"):
        raise NotExported("no NCCL environment: these devices are not all NVIDIA's or all AMD's")
    whole = [choice for choice in plan.choices if choice.collective in nccl_tuner.COLLECTIVES and _alone(choice, plan)]
    if not whole:
        raise NotExported("no NCCL environment: it has one algorithm for all sizes, and no collective of the plan has")
    said = {}
    for variable, words in (("NCCL_ALGO", _algorithms(whole)), ("NCCL_PROTO", _protocols(whole))):
        if words:
            said[variable] = ";".join(f"{collective}:{word}" for collective, word in words.items())
    lines = "".join(f"export {name}='{value}'\n" for name, value in said.items())
    return {NAME: f"# For NCCL 2.24 and later:  source {NAME}\n{lines}"}


def parse(text: str) -> dict[str, dict[str, str]]:
    """Return the word for each collective, by the variable."""
    found = {}
    for line in text.splitlines():
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            pairs = (part.partition(":") for part in value.strip("'").split(";"))
            found[name] = {collective: word for collective, _, word in pairs}
    return found


def _alone(it: Choice, plan: Plan) -> bool:
    others = [one for one in plan.choices if one.collective == it.collective]
    return it.least == 0 and it.below is None and others == [it]


def _algorithms(choices: list[Choice]) -> dict[str, str]:
    for one in choices:
        if one.collective not in nccl_tuner.ALGORITHMS.get(one.algorithm, ()):
            raise NotExported(f"no NCCL environment: {one.collective} has no algorithm {one.algorithm[:40]!r} in NCCL")
    return {one.collective: SPELLED.get(one.algorithm, one.algorithm) for one in choices}


def _protocols(choices: list[Choice]) -> dict[str, str]:
    return {one.collective: one.protocol for one in choices if one.protocol in nccl_tuner.PROTOCOLS}
