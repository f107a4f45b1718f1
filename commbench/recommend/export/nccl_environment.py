"""NCCL or RCCL by environment lines, for collectives that have one algorithm at all sizes.

The form for each collective, allreduce:tree;allgather:ring, is NCCL's since 2.24, as is that a word which it does not
know ends the job. It holds for communicators of every size, and one that cannot have the algorithm fails at its first
call; it beats a tuner file.
"""

from __future__ import annotations

import re

from commbench.recommend.export import nccl_tuner
from commbench.recommend.export._settings import NotExported, Settings, one_for_all
from commbench.recommend.plan import Choice, Plan

TITLE = "NCCL or RCCL environment"
LIBRARIES = ("NCCL", "RCCL")  # whose records it may be told of
NAME = "nccl.env"
SINCE = (2, 24)  # NCCL with a form for each collective
# As records name it, NCCL 2.30.7+cuda13, and as others do: nccl v2.21, or NCCL_VERSION_CODE (nccl.h: 22304 is 2.23.4;
# until 2.8 the middle number had one digit less).
_VERSION = re.compile(
    r"[NR]CCL\s+v?(?:(?P<major>[0-9]{1,3})\.(?P<minor>[0-9]{1,3})(?![0-9])|(?P<code>[0-9]{4,6})(?![0-9.]))",
    re.IGNORECASE,
)
SPELLED = {"collnet_direct": "collnetdirect", "collnet_chain": "collnetchain", "nvls_tree": "nvlstree"}


def files(plan: Plan, settings: Settings) -> dict[str, str]:
    """Return lines for the shell; raise NotExported where no collective has one algorithm for all sizes."""
    if plan.vendor not in ("nvidia", "amd"):
        raise NotExported("no NCCL environment: these devices are not all NVIDIA's or all AMD's")
    alike, others = one_for_all(one for one in plan.choices if one.collective in nccl_tuner.COLLECTIVES)
    if not alike:
        text = "no NCCL environment: it has one algorithm for all sizes and ranks, and no collective of the plan has"
        raise NotExported("; ".join([text, *others]))
    whole = list(alike.values())
    for library in dict.fromkeys(one.library for one in whole if one.library):
        release = _release(library)
        if release is None or release < SINCE:
            unknown = "" if release else ", whose version is not known"
            raise NotExported(
                f"no NCCL environment: NCCL takes an algorithm for each collective since {'.'.join(map(str, SINCE))}, "
                f"and these choices were measured with {library[:40]!r}{unknown}: measure with a later one"
            )
    said = {}
    for variable, words in (("NCCL_ALGO", _algorithms(whole)), ("NCCL_PROTO", _protocols(whole))):
        if words:
            said[variable] = ";".join(f"{collective}:{word}" for collective, word in words.items())
    lines = "".join(f"export {name}='{value}'\n" for name, value in said.items())
    head = f"# For NCCL {'.'.join(map(str, SINCE))} and later:  source {NAME}\n"
    head += "# A communicator that cannot have its algorithm fails at the first call: leave that collective out then.\n"
    return {NAME: head + "".join(f"# Left to the library: {text}\n" for text in others) + lines}


def parse(text: str) -> dict[str, dict[str, str]]:
    """Return the word for each collective, by the variable."""
    found = {}
    for line in text.splitlines():
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            pairs = (part.partition(":") for part in value.strip("'").split(";"))
            found[name] = {collective: word for collective, _, word in pairs}
    return found


def _release(library: str) -> tuple[int, int] | None:
    """Return the first two numbers of the version in a library's name, None where that cannot be read."""
    if (found := _VERSION.match(library)) is None:
        return None
    if found["code"] is None:
        return int(found["major"]), int(found["minor"])
    code = int(found["code"])
    major, rest = divmod(code, 10_000 if code >= 10_000 else 1000)
    return major, rest // 100


def _algorithms(choices: list[Choice]) -> dict[str, str]:
    for one in choices:
        if one.collective not in nccl_tuner.ALGORITHMS.get(one.algorithm, ()):
            raise NotExported(f"no NCCL environment: {one.collective} has no algorithm {one.algorithm[:40]!r} in NCCL")
    return {one.collective: SPELLED.get(one.algorithm, one.algorithm) for one in choices}


def _protocols(choices: list[Choice]) -> dict[str, str]:
    return {one.collective: one.protocol for one in choices if one.protocol in nccl_tuner.PROTOCOLS}
