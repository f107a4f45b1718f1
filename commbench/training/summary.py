"""What a launch of training says of itself: training.json, and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from commbench.results import manifest
from commbench.results.training import FORMAT
from commbench.topology.peaks import peaks
from commbench.topology.show import counted
from commbench.training.options import NAME, PS, Options
from commbench.units import approximate_size

if TYPE_CHECKING:
    from commbench.backends.world import World

LEARNS = 10  # steps, after which a loss that did not fall means that the training is wrong


def summary(
    world: World,
    options: Options,
    backend: str,
    device: str,
    mode: Any,
    told: Sequence[Mapping[str, Any]],
    words: Sequence[str],
) -> dict[str, Any]:
    """Return the content of training.json, on rank 0; `told`: what each rank has to tell. Times are seconds."""
    import torch

    work = options.work
    losses = [_mean(losses) for losses in zip(*(one["losses"] for one in told), strict=True)]
    computing = world.size - (options.mode == PS)
    wall = max(sum(one["seconds"]) for one in told)  # ranks work side by side
    speed = computing * work.tokens * options.steps / wall
    known = peaks(device)
    most = options.peak if options.peak is not None else known and known.flops.get(work.dtype)
    flops = work.preset.flops_per_token(work.sequence)
    return {
        "format": FORMAT,
        "time": manifest.now(),
        "command": [NAME, *words],
        "mode": options.mode,
        "updates": options.updates if options.mode == PS else None,
        "backend": backend,
        "ranks": world.size,
        "nodes": world.nodes,
        "device": device,
        "threads": torch.get_num_threads(),
        "preset": work.preset.name,
        "parameters": work.preset.parameters,
        "batch": work.batch,
        "sequence": work.sequence,
        "accumulate": work.accumulate,
        "dtype": work.dtype,
        "seed": work.seed,
        "bucket_bytes": getattr(mode, "bucket", None),
        "warmup": options.warmup,
        "faults": [fault.text for fault in options.faults],
        "alternate": options.alternate,
        "seconds": wall,
        "tokens_per_second": speed,
        "flops_per_token": flops,
        "peak_flops": most,
        "mfu": None if most is None else speed * flops / computing / most,
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "steps": [
            {
                "step": index,
                "injected": told[0]["injected"][index],
                "loss": losses[options.warmup + index],
                "seconds": [one["seconds"][index] for one in told],
                **({"exchange": [one["exchanges"][index] for one in told]} if options.mode == PS else {}),
            }
            for index in range(options.steps)
        ],
        "torch": torch.__version__,
        "machine": manifest.machine(),
        "environment": manifest.environment(),
    }


def _mean(losses: Sequence[float | None]) -> float:
    """Return the mean of the ranks that have data."""
    return fmean(loss for loss in losses if loss is not None)


def not_learnt(content: Mapping[str, Any]) -> str:
    """Return what to say where the loss did not fall, empty where it did, or where steps are too few to tell."""
    first, last, count = content["loss_first"], content["loss_last"], content["warmup"] + len(content["steps"])
    if last < first or count < LEARNS:
        return ""
    return f"the loss falls with training, and here it went from {first:.4f} to {last:.4f} in {count} steps"


def lines(content: Mapping[str, Any], why: str, folder: Path | None) -> list[str]:
    """Return what is printed."""
    steps, ranks = content["steps"], content["ranks"]
    servers = content["updates"] is not None
    how = f"parameter server, {content['updates']} updates" if servers else "DistributedDataParallel"
    buckets = f", buckets of {approximate_size(content['bucket_bytes'])}" if content["bucket_bytes"] else ""
    shape = f"{content['accumulate']} x {content['batch']} x {content['sequence']}"
    told = [
        f"# {how}{buckets}; {counted(ranks, 'rank')} on {counted(content['nodes'], 'node')}",
        f"# {content['backend']}: {why}",
        f"# preset {content['preset']}: {content['parameters']:,} parameters, AdamW; products in {content['dtype']} on "
        f"{content['device']}, {counted(content['threads'], 'thread')} a rank",
        f"# a step of a rank that computes: {shape} tokens (micro-batches, sequences, tokens of each)",
    ]
    if content["faults"]:
        which = "every other step" if content["alternate"] else "all steps"
        told.append(f"# faults: {', '.join(content['faults'])}, in {which}")
    faults = "  faults" if content["faults"] else ""
    told.append(f"{'step':>6}  {'slowest ms':>10}  {'rank':>5}  {'fastest ms':>10}  {'loss':>8}{faults}")
    for step in steps:
        times = step["seconds"]
        line = f"{step['step']:>6}  {max(times) * 1e3:>10.1f}  {times.index(max(times)):>5}  {min(times) * 1e3:>10.1f}"
        told.append(f"{line}  {step['loss']:>8.4f}{'  yes' * step['injected']}")
    for injected, name in ((False, "without faults"), (True, "with faults")):
        times = [max(step["seconds"]) for step in steps if step["injected"] == injected]
        if times:
            told.append(f"# {len(times)} steps {name}: median {median(times) * 1e3:.1f} ms, of the slowest rank")
    if servers:
        told += _exchanges(content)
    told.append(f"# {content['tokens_per_second']:,.0f} tokens/s over all steps; {_utilisation(content)}")
    if folder:
        told.append(f"# traces of {counted(ranks, 'rank')} in {folder}")
    told.append(f"# {len(steps)} steps ok, loss {content['loss_first']:.4f} -> {content['loss_last']:.4f}")
    return told


def _exchanges(content: Mapping[str, Any]) -> list[str]:
    """Return the shares of the workers' time in exchanges with the server."""
    workers = range(1, content["ranks"])
    total = sum(step["seconds"][rank] for step in content["steps"] for rank in workers)
    parts = [sum(step["exchange"][rank][part] for step in content["steps"] for rank in workers) for part in range(3)]
    queue, update, move = (100 * part / total for part in parts)
    return [
        f"# of the workers' time: {queue + update:.1f} % waiting ({queue:.1f} % until served, {update:.1f} % for the "
        f"update), {move:.1f} % moving gradients and weights"
    ]


def _utilisation(content: Mapping[str, Any]) -> str:
    rate = content["tokens_per_second"] * content["flops_per_token"]
    rate /= content["ranks"] - (content["updates"] is not None)
    text = f"{rate / 1e12:.3g} TFLOP/s a rank"
    if content["mfu"] is None:
        return f"{text}; no MFU: no peak known of {content['device']} in {content['dtype']} (--peak TFLOPS)"
    return f"{text}, MFU {100 * content['mfu']:.1f} % of {content['peak_flops'] / 1e12:g} TFLOP/s"
