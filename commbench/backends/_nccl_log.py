"""What NCCL and RCCL say in their log that they ran.

One line a collective on rank 0, while NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS holds TUNING (COLL too, for RCCL's paths
beside ring and tree). Sends and receives, and communicators of one rank, leave none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from commbench.backends._algorithms import canonical

# nccl_tuner.h: what the numbers of older lines stand for
_ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
_PROTOCOLS = ("ll", "ll128", "simple")
# rcclGetAlgoName, rccl_wrap.cc (2.30), and RING* in its enqueue.cc
_RCCL = {
    "CE": "copy_engine",
    "DDA": "dda",
    "Direct": "direct",
    "Hier": "hierarchical",
    "SYM": "symmetric",
    "RING*": "warpspeed_ring",
}


@dataclass(frozen=True)
class Tuned:
    """What ran, as one line of the log has it; None is what the line does not say.

    `nbytes` is the library's count: since 2.25 the call's elements times their size (a rank's share in all-gather and
    reduce-scatter), before that the larger of what a rank sends and receives.
    """

    function: str | None
    nbytes: int | None
    algorithm: str
    protocol: str | None
    channels: int | None


def _named(found: re.Match[str]) -> Tuned:
    low, high = found["low"], found["high"]
    channels = int(high) - int(low) + 1 if low else None
    return Tuned(
        found["function"], int(found["nbytes"]), _name(found["algorithm"]), found["protocol"].lower(), channels
    )


def _numbered(found: re.Match[str]) -> Tuned:
    algorithm, protocol = _ALGORITHMS[int(found["algorithm"])], _PROTOCOLS[int(found["protocol"])]
    return Tuned(found["function"], int(found["nbytes"]), algorithm, protocol, None)


def _symmetric(found: re.Match[str]) -> Tuned:
    kernel = found["kernel"].removeprefix(found["function"] + "_")  # AllReduce_AGxLL_R is row SYMK_AGxLL_R
    return Tuned(found["function"], int(found["nbytes"]), f"symk_{kernel.lower()}", None, int(found["channels"]))


def _copied(found: re.Match[str]) -> Tuned:
    algorithm = "hierarchical_copy_engine" if found["engine"] == "Hierarchical CE" else "copy_engine"
    return Tuned(found["function"], int(found["nbytes"]), algorithm, None, None)


def _beside(found: re.Match[str]) -> Tuned:
    return Tuned(found["function"], None, _name(found["algorithm"]), None, None)


def _name(native: str) -> str:
    return _RCCL.get(native, canonical(native))


_BYTES = r"(?P<nbytes>\d+) Bytes -> "
_FORMATS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Tuned]], ...] = (
    # 2.31 and later add cgaClusterSize, which is not kept: scheduleCollTasksToPlan, src/enqueue.cc since 2.25
    (
        re.compile(
            r"(?P<function>\w+): " + _BYTES + r"Algo (?P<algorithm>[A-Za-z]\S*) proto (?P<protocol>[A-Za-z]\w*)"
            r"(?: channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\}|(?! channel))(?!\S)"
        ),
        _named,
    ),
    # topoGetAlgoInfo, src/enqueue.cc before 2.25; the function since 2.23
    (
        re.compile(
            r"(?:(?P<function>\w+): )?" + _BYTES + r"Algo (?P<algorithm>[0-6]) proto (?P<protocol>[0-2])(?: time \S+)?$"
        ),
        _numbered,
    ),
    # src/scheduler/symmetric_sched.cc (2.28), src/enqueue.cc (2.27)
    (
        re.compile(
            r"(?P<function>\w+) \[Symmetric\]: " + _BYTES + r"Kernel (?P<kernel>\S+) nchannels (?P<channels>\d+)(?!\S)"
        ),
        _symmetric,
    ),
    # scheduler of the copy engine, src/ce_coll.cc, src/enqueue.cc since 2.28
    (
        re.compile(
            r"(?P<function>\w+) \[(?P<engine>Copy Engine|Hierarchical CE)\]: "
            + _BYTES
            + r"(?:cudaMemcpy|hipMemcpy|RMA proxy|Rail )"
        ),
        _copied,
    ),
    # RCCL's own paths, collectives.cc (2.30), under COLL
    (re.compile(r"(?P<function>\w+) impl selected: algo (?P<algorithm>\S+)"), _beside),
)
_MESSAGE = re.compile(r"NCCL INFO +(.*)")
_TUNING = re.compile(r"\d Bytes -> |impl selected: algo ")


def _messages(text: str) -> Iterator[tuple[str, Tuned | None]]:
    """Go through the lines that look as if they said what ran."""
    for line in text.splitlines():
        message = _MESSAGE.search(line)
        if message is None or not _TUNING.search(line):
            continue
        found = ((reading, pattern.match(message[1].rstrip())) for pattern, reading in _FORMATS)
        yield line, next((reading(match) for reading, match in found if match), None)


def parse(text: str) -> list[Tuned]:
    """Return what a log says was run, in its order."""
    return [tuned for _, tuned in _messages(text) if tuned]


def unknown(text: str) -> str | None:
    """Return the first line that seems to say what ran, in a form that is not known here."""
    return next((line for line, tuned in _messages(text) if tuned is None), None)
