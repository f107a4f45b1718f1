"""What a training step sends: which ranks form groups, what each group carries out, of how many bytes, how often.

The ranks of a step are a grid. Its axes are named and given with the fastest varying one first, as Megatron-LM numbers
ranks (tensor, then context or expert, data, pipeline parallel: megatron/core/parallel_state.py):

    axes("tp=8,pp=4,dp=8")     rank = tp + 8 * (pp + 4 * dp)

The ranks that differ in one coordinate alone are a group of that axis, and all groups of an axis are at work at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from commbench.errors import UsageError, unknown_name
from commbench.units import approximate_size, parse_size, parse_whole

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

ALLREDUCE, ALLGATHER, REDUCESCATTER, ALLTOALL, SENDRECV = (
    "allreduce",
    "allgather",
    "reducescatter",
    "alltoall",
    "sendrecv",
)
MATRIX = "matrix"  # any bytes between any two ranks, all at once
COLLECTIVES = (ALLREDUCE, ALLGATHER, REDUCESCATTER, ALLTOALL, "broadcast", SENDRECV)
# What is carried out on an axis where nobody says otherwise. sendrecv: along the pipeline, and back, at once.
USUAL = {"tp": ALLREDUCE, "dp": ALLREDUCE, "pp": SENDRECV, "ep": ALLTOALL, "cp": ALLGATHER, "fsdp": ALLGATHER}
WITHIN = ("tp",)  # axes that some kernels and libraries want within a node, for more than its links
SIZE = 1 << 30  # bytes a step on an axis of which nobody said any
MOST_RANKS = 1 << 20


@dataclass(frozen=True)
class Flow:
    """One axis: groups of ranks, `members` (groups, n), that carry out a collective of `size` bytes `times` a step.

    Size is as nccl-tests counts; of a sendrecv it is what a rank sends to the next one, which it also gets back.
    """

    axis: str
    collective: str
    members: Ints
    size: float
    times: int = 1
    matrix: Floats | None = None  # (n, n) bytes from row to column, of the collective "matrix" alone

    @property
    def n(self) -> int:
        """How many ranks a group has."""
        return int(self.members.shape[1])

    @property
    def wraps(self) -> bool:
        """Whether the last rank of a group is the first one's neighbour."""
        return self.collective != SENDRECV


@dataclass(frozen=True)
class Traffic:
    """The flows of a step of `ranks` ranks, one after another; `axes` are sizes, the fastest varying one first.

    `assumed` are the axes of which nobody said what they send.
    """

    ranks: int
    flows: tuple[Flow, ...]
    axes: Mapping[str, int] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of it."""
        if not self.assumed:
            return ()
        some = ", ".join(self.assumed)
        return (f"nobody said what {some} sends in a step: {approximate_size(SIZE)} is assumed (--bytes, --preset)",)

    @property
    def unsure(self) -> bool:
        """Whether what is better depends on bytes that were assumed: which of several axes counts more."""
        return len(self.flows) > 1 and bool(self.assumed)


@dataclass(frozen=True)
class Model:
    """A model to be trained, as far as its traffic depends on it. `experts_per_token` 0: none."""

    parameters: float
    layers: int
    hidden: int
    sequence: int
    kv: float = 1.0  # heads of keys and values, as a fraction of those of queries
    experts_per_token: int = 0
    in_experts: float = 0.0  # of the parameters


PRESETS = {
    # Brown et al., 2020, table 2.1
    "gpt3-175b": Model(175e9, 96, 12288, 2048),
    # Touvron et al., 2023; config.json of Llama-2-7b: 32 heads of each
    "llama2-7b": Model(6.7e9, 32, 4096, 4096),
    # Grattafiori et al., 2024, table 3: 64 heads, 8 of keys and values
    "llama3-70b": Model(70.6e9, 80, 8192, 8192, kv=8 / 64),
    # Jiang et al., 2024, table 1, with sequences of 4096: 32 heads, 8 of keys and values; in each layer 8 experts of
    # three matrices of 4096 x 14336
    "mixtral-8x7b": Model(46.7e9, 32, 4096, 4096, 8 / 32, 2, 32 * 8 * 3 * 4096 * 14336),
}


def axes(text: str) -> dict[str, int]:
    """Return the axes that a text such as "tp=8,dp=16" names, in its order."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = part.strip().partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--axes is like tp=8,pp=4,dp=8, the fastest varying first, not {text!r}")
        if name in found:
            raise UsageError(f"--axes names each axis once, and {name} stands there twice")
        found[name] = parse_whole(size, f"the size of the axis {name}", least=1)
    if prod(found.values()) > MOST_RANKS:
        raise UsageError(f"--axes multiply to {prod(found.values()):,} ranks: at most {MOST_RANKS:,} are placed")
    return found


def amounts(text: str, known: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return (times, size) a step for each axis: "tp=96x64M,dp=4G" is 96 times 64 MiB on tp, and 4 GiB at once."""
    found = {}
    for name, value in by_axis(text, "--bytes", known).items():
        times, cross, size = value.rpartition("x")
        found[name] = (
            parse_whole(times, f"how often {name} communicates", least=1) if cross else 1,
            parse_size(size, f"the bytes of the axis {name}"),
        )
    return found


def collectives(text: str, known: Mapping[str, int]) -> dict[str, str]:
    """Return the collective of each axis that the text names: "dp=reducescatter"."""
    found = by_axis(text, "--collectives", known)
    for name in found.values():
        if name not in COLLECTIVES:
            raise unknown_name("collective", name, COLLECTIVES)
    return found


def by_axis(text: str, what: str, known: Mapping[str, int]) -> dict[str, str]:
    """Return what a text such as "tp=nvls,dp=ring" says of each axis; `what` is the option, for the error."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or not value:
            raise UsageError(f"{what} is like {next(iter(known), 'dp')}=VALUE,..., not {text!r}")
        if name not in known:
            raise unknown_name("axis", name, known)
        found[name] = value
    return found


def step(
    sizes: Mapping[str, int],
    told: Mapping[str, tuple[int, int]] | None = None,
    chosen: Mapping[str, str] | None = None,
) -> Traffic:
    """Return the traffic of a step on a grid; `told` is (times, bytes) of an axis, `chosen` its collective."""
    import numpy as np

    told, chosen = dict(told or {}), dict(chosen or {})
    if told and (untold := [name for name, size in sizes.items() if size > 1 and name not in told]):
        raise UsageError(
            f"--bytes says what {', '.join(told)} sends and not what {', '.join(untold)} does: which axis counts more "
            "follows from both, so say it of every axis, or of none"
        )
    ranks = prod(sizes.values())
    grid = np.arange(ranks).reshape(tuple(sizes.values())[::-1])
    flows, unsaid = [], []
    for place, (name, size) in enumerate(sizes.items()):
        if size < 2:
            continue
        collective = chosen.get(name) or USUAL.get(name, ALLREDUCE)
        if name not in told:
            unsaid.append(name)
        times, count = told.get(name, (1, SIZE))
        if times * count > 0:
            members = np.moveaxis(grid, grid.ndim - 1 - place, -1).reshape(-1, size)
            flows.append(Flow(name, collective, np.ascontiguousarray(members), float(count), times))
    if told and ranks > 1 and not flows:
        raise UsageError("--bytes says that no axis sends anything, and then all orders are alike: give one some")
    return Traffic(ranks, tuple(flows), dict(sizes), tuple(unsaid))


def preset(name: str, sizes: Mapping[str, int], micro_batches: int = 8) -> dict[str, tuple[int, int]]:
    """Return (times, bytes) a step of each axis when a model is trained in 16 bits, one sequence a micro-batch.

    With P parameters, L layers of width h and sequences of s tokens, on a grid of tp, pp, dp, fsdp, cp and ep:

    - activations have a = 2 s h / cp bytes;
    - a rank has p = P / (tp pp fsdp) of the parameters; ep divides those in experts, and no others, once more;
    - tp: an all-reduce of a in front of and behind each half of a layer, 4 L / pp a micro-batch (Shoeybi et al.,
      "Megatron-LM", 2019, section 3);
    - pp: a / tp to the next stage each micro-batch, and back (Narayanan et al., "Efficient large-scale language model
      training on GPU clusters using Megatron-LM", 2021, section 4.1: with their scatter and gather);
    - dp: an all-reduce of the gradients in 32 bits, 4 p, once a step (Megatron-LM's default);
    - fsdp: each micro-batch the weights of each layer, 2 p fsdp / (L / pp) in bytes, are gathered forwards and
      backwards, and as many bytes of gradients are reduced and scattered (Rajbhandari et al., "ZeRO", 2020, section
      7.2.2: three times the parameters), 3 L / pp;
    - cp: keys and values, as an all-gather of 2 x 2 s h kv / tp bytes before each layer and as much back, 2 L / pp a
      micro-batch, with kv heads of keys and values for each head of queries;
    - ep: tokens to their experts and back, 4 L / pp a micro-batch of k a / tp for k experts a token, forwards and
      backwards.

    An axis has one collective: a reduce-scatter counts as an all-gather of as many bytes. Gradients are summed along
    cp too, and outside experts along ep: that is not counted.
    """
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    it = PRESETS[name]
    tp, pp, cp, ep, fsdp = (sizes.get(axis, 1) for axis in ("tp", "pp", "cp", "ep", "fsdp"))
    if unknown := set(sizes) - {"tp", "pp", "dp", "cp", "ep", "fsdp"}:
        raise UsageError(f"a preset knows the axes tp, pp, dp, cp, ep and fsdp, not {', '.join(sorted(unknown))}")
    if "ep" in sizes and not it.experts_per_token:
        raise UsageError(f"{name} has no experts, and --axes has ep: leave it out")
    activations = 2 * it.sequence * it.hidden // cp
    layers = max(1, it.layers // pp)
    stage = (it.parameters - it.in_experts + it.in_experts / ep) / (tp * pp)
    return {
        axis: (times, max(1, int(size)))
        for axis, times, size in (
            ("tp", 4 * layers * micro_batches, activations),
            ("pp", micro_batches, activations / tp),
            ("dp", 1, 4 * stage / fsdp),
            ("fsdp", 3 * layers * micro_batches, 2 * stage / layers),
            ("cp", 2 * layers * micro_batches, 4 * it.sequence * it.hidden * it.kv / tp),
            ("ep", 4 * layers * micro_batches, it.experts_per_token * activations / tp),
        )
        if axis in sizes
    }


def matrix(path: str | Path) -> Traffic:
    """Return the traffic of a file of numbers, .npy or text with commas or blanks: bytes from row to column a step."""
    import numpy as np

    try:
        if str(path).endswith(".npy"):
            found = np.load(path, allow_pickle=False).astype(np.float64)
        else:
            text = Path(path).read_text(encoding="utf-8")
            found = np.loadtxt(text.replace(",", " ").splitlines(), ndmin=2)
    except (OSError, ValueError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: a traffic matrix is a square of numbers, .npy or text ({error})") from None
    if found.ndim != 2 or found.shape[0] != found.shape[1] or len(found) < 2:
        raise UsageError(f"{path}: a traffic matrix has as many rows as columns, two at least, not {found.shape}")
    if not np.isfinite(found).all() or (found < 0).any():
        raise UsageError(f"{path}: a traffic matrix has bytes, finite and not negative")
    np.fill_diagonal(found, 0.0)
    if not found.any():
        raise UsageError(f"{path}: nobody sends anything")
    n = len(found)
    flow = Flow(MATRIX, MATRIX, np.arange(n)[None, :], float(found.sum()), 1, found)
    return Traffic(n, (flow,))
