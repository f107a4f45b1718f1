"""What a person reads of `commbench.pairs`: matrices (of many places: their quantiles), and what is slow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from commbench import __version__
from commbench.backends.base import Backend
from commbench.measure.screen import number
from commbench.measure.tournament import HALVE, INCAST, PAIRS, Halving, Verdict
from commbench.results import matrix, suspects
from commbench.results.journal import Journal
from commbench.results.status import OK
from commbench.units import approximate_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUSPECTS = "suspects.json"
MOST_SHOWN = 16  # places of a matrix that is printed whole
WORST = 8
SLOWER_LATENCY = 0.6  # a latency's inverse as a part of the others': latencies differ more than bandwidths
_QUANTILES = (("least", 0.0), ("10 %", 0.1), ("median", 0.5), ("90 %", 0.9), ("most", 1.0))


def say_first(journal: Journal, backend: Backend, out: TextIO) -> None:
    """Say what is measured, and how."""
    plan = journal.manifest["plan"]
    effort, n, nodes = plan["effort"], len(plan["places"]), plan["facts"]["nodes"]
    who = f"{n} nodes, one rank each" if nodes > 1 else f"{n} ranks of one node"
    small, large = (approximate_size(effort[name]) for name in ("small", "large"))
    what = {
        PAIRS: f"latency: half of a round trip of {small}; bandwidth: messages of {large}, one way",
        INCAST: f"{effort['senders']} senders to one receiver, messages of {large}; bandwidth received",
        HALVE: f"all-reduce of {large} among halves, of which the slow one is halved again; the slowest rank's time",
    }[plan["mode"]]
    lines = [
        f"commbench {__version__}, MPI only; {backend.library}, {backend.library_file or 'path unknown'}",
        f"{plan['mode']} of {who}; up to {effort['rounds']} rounds, medians of the rounds' medians",
        what,
        *plan["notes"],
        f"results in {journal.folder}",
    ]
    print("".join(f"# {line}\n" for line in lines), file=out, end="", flush=True)


def print_table(journal: Journal, out: TextIO) -> None:
    """Print the results for a person."""
    plan = journal.manifest["plan"]
    if plan["mode"] != PAIRS:
        _print_groups(journal, out)
        return
    matrices = matrix.fold(plan, journal.visits)
    _print_matrix("Latency (us)", matrices.names, matrices.latency_us, False, out)
    _print_matrix("Bandwidth (GB/s), from row to column", matrices.names, matrices.bandwidth, True, out)


def findings(journal: Journal) -> list[str]:
    """Return a line for each thing that is slow, or one that says that nothing is."""
    plan = journal.manifest["plan"]
    if plan["mode"] == HALVE:
        return [_of_halving(Halving(plan["places"], plan["names"], plan["effort"]["large"]), journal)]
    found = _suspects(journal)
    of_ranks = plan["facts"]["nodes"] == 1
    lines = [
        suspects.sentence(suspect, plan["names"], what, of_ranks=of_ranks)
        for what, those in found.items()
        for suspect in those
    ]
    if lines:
        return lines
    if len(plan["names"]) < 3:
        return ["a pair alone has nothing to be held against: three nodes or more tell which is slow"]
    return [_nothing(journal)]


def keep(journal: Journal) -> None:
    """Write what is slow into the run folder, for scripts."""
    plan = journal.manifest["plan"]
    if plan["mode"] == HALVE:
        halving = Halving(plan["places"], plan["names"], plan["effort"]["large"])
        verdict = halving.verdict(journal.visits, plan["effort"]["rounds"])
        found: dict[str, Any] = {
            "allreduce": [] if verdict is None or not verdict.places else [_verdict(plan, verdict)]
        }
    else:
        found = {
            what: [{**suspect.to_dict(), "names": _names(plan, suspect.members)} for suspect in those]
            for what, those in _suspects(journal).items()
        }
    journal.write_beside(SUSPECTS, json.dumps(found, indent=1) + "\n")


def _suspects(journal: Journal) -> dict[str, list[suspects.Suspect]]:
    plan = journal.manifest["plan"]
    if plan["mode"] == PAIRS:
        matrices = matrix.fold(plan, journal.visits)
        crowded = any(session["site"]["crowded"] for session in journal.manifest["sessions"])
        if crowded:  # where ranks wait for a core, latencies and what a single pair gives are the scheduler's
            return {"bandwidth": [one for one in suspects.find(matrices.rate) if one.kind != suspects.LINK]}
        return {
            "bandwidth": suspects.find(matrices.rate),
            "latency": suspects.find(1 / matrices.latency, SLOWER_LATENCY),
        }
    return {"bandwidth": suspects.slow_places(_received(journal))}


def _received(journal: Journal) -> NDArray[Any]:
    """Return what each receiver got, GB/s [round, place]."""
    good = [visit for visits in journal.visits.values() for visit in visits if visit["status"] == OK]
    rates = np.full((1 + max((visit["round"] for visit in good), default=0), len(journal.cells)), np.nan)
    for visit in good:
        rates[visit["round"], visit["cell"]] = journal.cells[visit["cell"]]["size"] / visit["median_us"] / 1e3
    return rates


def _nothing(journal: Journal) -> str:
    plan = journal.manifest["plan"]
    if plan["mode"] == PAIRS:
        rates, what = matrix.fold(plan, journal.visits).bandwidth, "pair"
    else:
        rates, what = matrix.median(_received(journal)), "receiver"
    known = rates[~np.isnan(rates)]
    if not known.size:
        return "nothing was measured"
    return f"nothing stands out: the slowest {what} has {known.min() / np.median(known):.2g} of the median bandwidth"


def _of_halving(halving: Halving, journal: Journal) -> str:
    plan = journal.manifest["plan"]
    verdict = halving.verdict(journal.visits, plan["effort"]["rounds"])
    if verdict is None:
        return "the search is not at its end"
    if not verdict.places:
        rounds = plan["effort"]["rounds"]
        return f"no half was steadily slower over {rounds} rounds: no single node or rank shows (--rounds)"
    names = [plan["names"][place] for place in verdict.places]
    if len(names) > 1:
        return f"the search ends at {', '.join(names)}: one half of them is as slow as the other"
    shown = f"in {verdict.rounds_shown} of {plan['effort']['rounds']} rounds of each halving, or more"
    return f"{names[0]} is slow: all-reduce takes {verdict.factor:.2f} times as long with it ({shown})"


def _verdict(plan: Mapping[str, Any], verdict: Verdict) -> dict[str, Any]:
    names = [plan["names"][place] for place in verdict.places]
    found = {"places": list(verdict.places), "names": names, "times_as_long": verdict.factor, "p": verdict.p}
    return {**found, "rounds_shown": verdict.rounds_shown, "rounds": plan["effort"]["rounds"]}


def _names(plan: Mapping[str, Any], members: Sequence[Sequence[int]]) -> list[list[str]]:
    return [[plan["names"][place] for place in side] for side in members]


def _print_groups(journal: Journal, out: TextIO) -> None:
    records = [record for record in journal.records() if record.status == OK]
    width = max((len(record.group) for record in records), default=5)
    rate = journal.manifest["plan"]["mode"] == INCAST
    print(f"# {'group':<{width}}  {'time':>9} {'low':>9} {'high':>9}{'  received' * rate}", file=out)
    print(f"# {'':<{width}}  {'(us)':>9} {'(us)':>9} {'(us)':>9}{'    (GB/s)' * rate}", file=out)
    for record in records:
        times = " ".join(number(value, 9) for value in (record.time_us, record.time_us_low, record.time_us_high))
        print(f"  {record.group:<{width}}  {times}{f'  {_rate(record.algbw):>8}' * rate}", file=out)
    print(file=out)


def _print_matrix(title: str, names: Sequence[str], values: NDArray[Any], low_is_bad: bool, out: TextIO) -> None:
    n = len(names)
    show = _rate if low_is_bad else _microseconds
    if n > MOST_SHOWN:
        _print_summary(title, names, values, low_is_bad, out)
        return
    width = max(map(len, names))
    cells = [["-" if i == j else show(values[i, j]) for j in range(n)] for i in range(n)]
    column = max(max(len(cell) for row in cells for cell in row), *map(len, names)) if width <= 8 else 8
    heads = names if width <= 8 else [f"[{i}]" for i in range(n)]
    labels = names if width <= 8 else [f"[{i}] {name}" for i, name in enumerate(names)]
    margin = max(map(len, labels))
    print(f"# {title}", file=out)
    print(f"  {'':<{margin}}  {' '.join(head.rjust(column) for head in heads)}", file=out)
    for label, row in zip(labels, cells, strict=True):
        print(f"  {label:<{margin}}  {' '.join(cell.rjust(column) for cell in row)}", file=out)
    print(file=out)


def _print_summary(title: str, names: Sequence[str], values: NDArray[Any], low_is_bad: bool, out: TextIO) -> None:
    n = len(names)
    show = _rate if low_is_bad else _microseconds
    pairs = [(i, j) for i in range(n) for j in range(n) if (i != j if low_is_bad else i < j)]
    known = sorted((float(values[pair]), pair) for pair in pairs if not np.isnan(values[pair]))
    print(f"# {title}: {len(known)} of {len(pairs)} {'directions' if low_is_bad else 'pairs'} of {n} places", file=out)
    if known:
        points = np.quantile([value for value, _ in known], [q for _, q in _QUANTILES])
        for (label, _), value in zip(_QUANTILES, points.tolist(), strict=True):
            print(f"  {label:>8}  {show(value):>9}", file=out)
        print(f"# the {min(WORST, len(known))} worst", file=out)
        for value, (i, j) in known[:WORST] if low_is_bad else reversed(known[-WORST:]):
            print(f"  {show(value):>9}  {names[i]} {'>' if low_is_bad else '-'} {names[j]}", file=out)
    print(file=out)


def _microseconds(value: float | None) -> str:
    return "?" if value is None or np.isnan(value) else number(value, 7).strip()


def _rate(value: float | None) -> str:
    return "?" if value is None or np.isnan(value) else f"{value:.3g}" if value < 1000 else f"{value:.0f}"
