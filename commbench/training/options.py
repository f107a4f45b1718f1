"""The command line of `commbench.train`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from commbench.errors import UsageError
from commbench.measure.parser import Parser
from commbench.training import inject
from commbench.training.inject import Fault
from commbench.training.model import PRESETS, find
from commbench.training.parameter_server import ASYNCHRONOUS, UPDATES
from commbench.training.workload import Workload
from commbench.units import parse_number, parse_size, parse_whole

NAME = "train"
DDP, PS = "ddp", "ps"
AUTO, GLOO, NCCL = "auto", "gloo", "nccl"

EXAMPLES = """examples:
  mpirun -n 2 python -m commbench.train --mode ddp --profile out/
  mpirun -n 2 python -m commbench.train --mode ddp --inject slow-rank=1:50ms --alternate --steps 40 --profile slow/
  mpirun -n 3 python -m commbench.train --mode ps --accumulate 4 --updates synchronous
  torchrun --nproc-per-node 8 -m commbench.train --mode ddp --preset large --dtype bfloat16 --profile out/

exit codes: 0 trained; 1 the loss did not fall in 10 steps or more, or a rank died; 2 bad usage; 124 timeout
"""


@dataclass(frozen=True)
class Options:
    """The command line, understood."""

    mode: str
    updates: str
    backend: str
    work: Workload
    steps: int
    warmup: int
    bucket: int | None
    faults: tuple[Fault, ...]
    alternate: bool
    threads: int | None
    peak: float | None  # operations a second of one device
    profile: Path | None
    json: bool
    timeout: float
    needs_mpi: bool = False  # an mpirun's ranks meet by it, torchrun's without


def parser() -> argparse.ArgumentParser:
    """Return the options of the door. All values stay text here; `read` understands them."""
    it = Parser(
        prog=f"commbench {NAME}",
        description="Train a small decoder-only transformer for some steps, and leave traces of them.",
        epilog=EXAMPLES,
    )
    add = it.add_argument_group("what is trained").add_argument
    add("--mode", choices=(DDP, PS), default=DDP, help="data-parallel, or with a parameter server (default ddp)")
    add("--preset", metavar="P", default="small", help=f"{', '.join(PRESETS)} (default small)")
    add("--batch", metavar="N", help="sequences of a micro-batch (default: by the preset)")
    add("--sequence", metavar="N", help="tokens of a sequence (default: by the preset, at most that)")
    add("--accumulate", metavar="K", default="1", help="micro-batches of a step (default 1)")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="of matrix products (default float32)")
    add("--updates", choices=UPDATES, default=ASYNCHRONOUS, help=f"of a parameter server (default {ASYNCHRONOUS})")
    add("--bucket", metavar="SIZE", help="of DDP (default 25M, or a quarter of the gradients)")
    add("--seed", metavar="N", default="1", help="of weights, data and jitter (default 1)")
    add = it.add_argument_group("how").add_argument
    add("--steps", metavar="S", default="20", help="steps that are measured (default 20)")
    add("--warmup", metavar="W", default="3", help="steps before them (default 3)")
    add("--backend", choices=(AUTO, GLOO, NCCL), default=AUTO, help="nccl: a GPU each; gloo: CPUs (default auto)")
    add("--threads", metavar="N", help="of a rank on CPUs (default: its share of the node's cores)")
    add("-T", "--timeout", metavar="S", default="300", help="end the job when a step takes longer (default 300)")
    add = it.add_argument_group("faults").add_argument
    add(
        "--inject",
        metavar="F",
        action="append",
        default=[],
        help="slow-rank=R:50ms, late-data=R:50ms, slow-compute=R:FACTOR or jitter=R:5ms; R may be *; repeatable",
    )
    add("--alternate", action="store_true", help="faults act in every other step; the others are a control")
    add = it.add_argument_group("what comes out").add_argument
    add("--profile", metavar="DIR", help="leave traces in this folder")
    add("--peak", metavar="TFLOPS", help="of one device and --dtype, for the MFU (default: that of known GPUs)")
    add("--json", action="store_true", help="print one JSON object")
    return it


def read(arguments: Sequence[str]) -> Options:
    """Understand the command line; raise UsageError on the first thing that cannot be."""
    raw = parser().parse_args(arguments)
    if not find_spec("torch"):
        raise UsageError("training needs torch, which is not installed: pip install 'commbench[training]'")
    preset = find(raw.preset)
    sequence = preset.sequence if raw.sequence is None else parse_whole(raw.sequence, "--sequence", least=1)
    if sequence > preset.sequence:
        raise UsageError(f"--sequence is at most the {preset.sequence} tokens of preset {preset.name}, not {sequence}")
    work = Workload(
        preset=preset,
        batch=preset.batch if raw.batch is None else parse_whole(raw.batch, "--batch", least=1),
        sequence=sequence,
        accumulate=parse_whole(raw.accumulate, "--accumulate", least=1),
        dtype=raw.dtype,
        seed=parse_whole(raw.seed, "--seed"),
    )
    if raw.mode == PS and raw.backend == NCCL:
        raise UsageError("--mode ps moves gradients in host memory, by gloo: leave out --backend nccl")
    if raw.mode == PS and raw.bucket is not None:
        raise UsageError("--bucket is of --mode ddp: a parameter server's gradients move at once")
    faults = tuple(inject.parse(text) for text in raw.inject)
    steps = parse_whole(raw.steps, "--steps", least=1)
    if raw.alternate and not faults:
        raise UsageError("--alternate says in which steps faults act, and there is none: add --inject")
    if raw.alternate and steps < 2:
        raise UsageError("--alternate takes at least 2 steps, one with faults and one without: raise --steps")
    return Options(
        mode=raw.mode,
        updates=raw.updates,
        backend=raw.backend,
        work=work,
        steps=steps,
        warmup=parse_whole(raw.warmup, "--warmup"),
        bucket=None if raw.bucket is None else _bucket(raw.bucket),
        faults=faults,
        alternate=raw.alternate,
        threads=None if raw.threads is None else parse_whole(raw.threads, "--threads", least=1),
        peak=None if raw.peak is None else parse_number(raw.peak, "--peak", least=1e-6) * 1e12,
        profile=None if raw.profile is None else Path(raw.profile),
        json=raw.json,
        timeout=parse_number(raw.timeout, "-T", least=1),
    )


def _bucket(text: str) -> int:
    size = parse_size(text, "--bucket")
    if size < 4:
        raise UsageError(f"--bucket holds one float32 at least, 4 bytes, not {text!r}")
    return size
