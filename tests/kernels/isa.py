"""Which accesses of memory a kernel's machine code must have, and which it has."""

from __future__ import annotations

import re
from collections import Counter
from math import gcd

from commbench.kernels._pattern import Problem

Accesses = Counter[tuple[str, int]]  # ("load" or "store", bytes of a lane): how many instructions

NVIDIA = re.compile(r"\b(LDG|STG)\.E(\S*)")
NVIDIA_LOCAL = re.compile(r"\b(?:LDL|STL|LD|ST)\.")  # registers that were spilled, or addresses taken for anything
AMD = re.compile(r"\bglobal_(load|store)_(ushort|short|dword(?:x\d)?)\b(.*)")
AMD_LOCAL = re.compile(r"\b(?:scratch|flat|buffer)_(?:load|store)")
_AMD_BYTES = {"ushort": 2, "short": 2, "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}


def declared(problem: Problem) -> Accesses:
    """Return the accesses that a problem declares."""
    found = sum(steps(problem), Counter[tuple[str, int]]())
    if problem.pattern.sums:
        found["store", 8] += 1  # a block's sum
    return found


def steps(problem: Problem) -> list[Accesses]:
    """Return the accesses of each step of a thread: all of its vectors; one, of the last ones; one element."""
    walk = problem.access
    found = [_step(problem, walk.vector, walk.items)]
    found += [_step(problem, walk.vector, 1)] if walk.items > 1 else []
    return found + ([_step(problem, 1, 1)] if walk.vector > 1 else [])


def _step(problem: Problem, vector: int, times: int) -> Accesses:
    found = Counter[tuple[str, int]]()

    def moved(kind: str, nbytes: int, word: int) -> None:
        found[kind, min(nbytes, word)] += times * -(-nbytes // word)

    if problem.access.index:
        moved("load", 4, 16)
    if problem.access.layout == "whole":
        struct = problem.fields[1]
        if any(place.reads for place in problem.places):
            moved("load", struct, gcd(struct, 16))
        if any(place.writes for place in problem.places):
            moved("store", struct, gcd(struct, 16))
        return found
    for place in problem.places:
        if place.reads:
            moved("load", vector * place.itemsize, 16)
        if place.writes:
            moved("store", vector * place.itemsize, 16)
    return found


def waits_in_sass(function: str, problem: Problem) -> list[str]:
    """Return the instructions that need what a load brings before all loads of its step are issued."""
    found = []
    for lines in _between_loads(function, problem, NVIDIA):
        awaited: set[int] = set()
        for line in lines:
            load = NVIDIA.search(line)
            registers = [int(number) for number in re.findall(r"\bR(\d+)", line)]
            wide = {int(number) + 1 for number in re.findall(r"\bR(\d+)\.64", line)}
            if awaited & {*registers[bool(load) :], *wide}:  # the first register of a load is what it fills
                found.append(line)
            if load:
                (_, nbytes), *_ = in_sass(line)
                awaited |= set(range(registers[0], registers[0] + max(1, nbytes // 4)))
    return found


def waits_in_gcn(function: str, problem: Problem) -> list[str]:
    """Return the instructions that wait for all loads before all loads of a step are issued."""
    lines = [line for lines in _between_loads(function, problem, AMD) for line in lines]
    return [line for line in lines if "s_waitcnt" in line and "vmcnt(0)" in line]


def _between_loads(function: str, problem: Problem, accesses: re.Pattern[str]) -> list[list[str]]:
    """Return the lines from the first to the last load of each step. The place of an element is loaded before."""
    lines = function.splitlines()
    loads = [k for k, line in enumerate(lines) if (found := accesses.search(line)) and found[1] in ("LDG", "load")]
    parts = []
    for step in steps(problem):
        number = sum(times for (kind, _), times in step.items() if kind == "load")
        mine, loads = loads[:number], loads[number:]
        mine = mine[problem.access.items if problem.access.index else 0 :]
        if mine:
            parts.append(lines[mine[0] : mine[-1] + 1])
    assert not loads
    return parts


def in_sass(function: str) -> Accesses:
    """Return the accesses in a function as nvdisasm prints it."""
    found = Counter[tuple[str, int]]()
    for operation, suffixes in NVIDIA.findall(function):
        sizes = [int(bits) // 8 for bits in re.findall(r"\.U?(16|64|128)\b", suffixes)]
        found["load" if operation == "LDG" else "store", sizes[0] if sizes else 4] += 1
    return found


def in_gcn(function: str) -> Accesses:
    """Return the accesses in a function of AMD's assembly."""
    return Counter((kind, _AMD_BYTES[width]) for kind, width, _ in AMD.findall(function))


def sass_functions(text: str) -> dict[str, str]:
    """Return the functions of nvdisasm's output by their names."""
    parts = re.split(r"^//-+ \.text\.(\w+)\s*-+$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def gcn_functions(text: str) -> dict[str, str]:
    """Return the functions of clang's assembly for AMD by their names."""
    parts = re.split(r"^(\w+): +; @\1$", text, flags=re.MULTILINE)
    return {name: body.split(".Lfunc_end")[0] for name, body in zip(parts[1::2], parts[2::2], strict=True)}
