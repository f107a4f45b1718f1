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
    """Return the accesses that a problem declares: by each thread's vectors, and by one element behind the last."""
    walk, found = problem.access, Counter[tuple[str, int]]()

    def moved(kind: str, nbytes: int, word: int, times: int) -> None:
        found[kind, min(nbytes, word)] += times * -(-nbytes // word)

    for vector, times in ((walk.vector, walk.items), (1, 1))[: 1 + (walk.vector > 1)]:
        if walk.index:
            moved("load", 4, 16, times)
        if walk.layout == "whole":
            struct = problem.fields[1]
            if any(place.reads for place in problem.places):
                moved("load", struct, gcd(struct, 16), times)
            if any(place.writes for place in problem.places):
                moved("store", struct, gcd(struct, 16), times)
            continue
        for place in problem.places:
            if place.reads:
                moved("load", vector * place.itemsize, 16, times)
            if place.writes:
                moved("store", vector * place.itemsize, 16, times)
    if problem.pattern.sums:
        found["store", 8] += 1  # a block's sum
    return found


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
