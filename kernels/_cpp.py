"""The C++ source of a problem for GPUs, one for NVRTC (NVIDIA) and HIPRTC (AMD); what all share is in _memory.hpp.

source = cpp.source(problem, threads=256)       # holds kernels `update`, `gate` and `total`
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import gcd
from pathlib import Path

from commbench.kernels._pattern import GUARD, Pattern, Problem

_SQRT = re.compile(r"\bsqrt\b")
SHARED = Path(__file__).with_name("_memory.hpp")


def source(problem: Problem, threads: int) -> str:
    """Return the source of a problem for blocks of `threads`, a power of two; elements lie as `problem.places` says.

    Kernel `update` takes the arenas in the order of `problem.arenas`, the first element and their number, where the
    pattern sums an array of float64 for the sum of each block, and the constants, in the type of the arithmetic. These
    are no literals: compilers leave out what multiplies by one and stores what was there.
    """
    return shared(threads) + kernel(problem, "update")


def shared(threads: int) -> str:
    return f"#define THREADS {threads}\n{SHARED.read_text(encoding='utf-8')}"


def kernel(problem: Problem, name: str) -> str:
    """Return the part of the source that is the problem's own; several may follow what is shared."""
    parts = (_rule(problem.pattern), _step(problem), _walk(problem, name))
    return f"\n// {problem.pattern.label}: {problem.access}\nnamespace {name}_parts {{\n\n{chr(10).join(parts)}\n}}\n"


def _rule(pattern: Pattern) -> str:
    """Return a function that is the update rule, on one element of every stream."""

    written = {stream.name for stream in pattern.streams if stream.writes}
    parameters = [
        f"{_register(pattern, stream.name)} {'&' if stream.name in written else ''}{stream.name}"
        for stream in pattern.streams
    ]
    if pattern.sums:
        parameters.append(f"{_arithmetic(pattern)} &sum_")
    parameters += _constants(pattern)
    lines = [f"{_register(pattern, name)} {name};" for name in pattern.values]
    lines += [f"{left} = {_SQRT.sub('root', right)};" for left, right in pattern.assignments]
    lines += [f"sum_ += {pattern.sums};"] if pattern.sums else []
    return _function(f"__device__ inline void rule({', '.join(parameters)})", lines)


def _constants(pattern: Pattern) -> list[str]:
    """Return the constants as parameters."""
    return [f"{_arithmetic(pattern)} {name}" for name in pattern.constants]


def _arithmetic(pattern: Pattern) -> str:
    return "double" if pattern.compute == "float64" else "float"


def _register(pattern: Pattern, name: str) -> str:
    """Return the type in which a value is held: elements that are only moved stay as they lie in memory."""
    return pattern.streams[0].dtype if pattern.moves else _arithmetic(pattern)


def _step(problem: Problem) -> str:
    """Return the struct of N neighbouring elements on their way: load, apply the rule, store."""
    pattern = problem.pattern
    whole = problem.access.layout == "whole"
    streaming = str(problem.access.hint == "streaming").lower()
    arenas = _parameters(problem)
    index = [f"at = ((const int *)(index + {GUARD}))[i];"] if problem.access.index else []
    members = ["int64 at; // where element i lies, by the index"] if problem.access.index else []
    load, store = list(index), []
    if whole:
        members.append(f"Moved<Struct, {gcd(problem.fields[1], 16)}, {streaming}> all;")
        first, struct = problem.places[0], problem.fields[1]
        address = f"structs + {first.offset - problem.fields[0][first.stream.name]} + {struct} * i"
        load += [f"all.load_from({address});", "all.keep_all();"] if pattern.bytes_read else []
        store += [f"all.store_to({address});"] if pattern.bytes_written else []
    else:
        for place in problem.places:
            name, at = place.stream.name, "at" if place.indexed else "i"
            address = f"{place.arena} + {place.offset} + {place.pitch} * {at}"
            if place.reads:
                members.append(f"Run<{place.stream.dtype}, N, {streaming}> in_{name};")
                load.append(f"in_{name}.load_from({address});")
            if place.writes:
                members.append(f"Run<{place.stream.dtype}, N, {streaming}> out_{name};")
                store.append(f"out_{name}.store_to({address});")
    apply = []
    for stream in pattern.streams:
        held = f"all.value.{stream.name}" if whole else f"in_{stream.name}.value.element[k]"
        value = held if pattern.moves else f"widen({held})"
        apply.append(f"{_register(pattern, stream.name)} {stream.name}{f' = {value}' if stream.reads else ''};")
    names = [*(stream.name for stream in pattern.streams), *(["sum_"] if pattern.sums else []), *pattern.constants]
    apply.append(f"rule({', '.join(names)});")
    for stream in pattern.streams:
        held = f"all.value.{stream.name}" if whole else f"out_{stream.name}.value.element[k]"
        if stream.writes:
            apply.append(f"{held} = {stream.name};" if pattern.moves else f"narrow({stream.name}, {held});")
    parameters = ([f"{_arithmetic(pattern)} &sum_"] if pattern.sums else []) + _constants(pattern)
    functions = [
        _function(f"__device__ void load({arenas}, int64 i)", [*load, "issued();"]),
        _function(
            f"__device__ void apply({', '.join(parameters)})",
            ["#pragma unroll", "for (int k = 0; k < N; k++) {", *(f"    {line}" for line in apply), "}"],
        ),
        _function(f"__device__ void store({arenas}, int64 i)", store),
    ]
    fields = "".join(f"    {stream.dtype} {stream.name};\n" for stream in pattern.streams)
    head = f"struct Struct {{\n{fields}}};\n\n" if whole else ""
    body = "\n".join([*members, "", *functions])
    return f"{head}template <int N> struct Step {{\n{_indented(body.splitlines())}\n}};\n"


def _walk(problem: Problem, name: str) -> str:
    """Return the kernel: which elements each thread takes."""
    walk = problem.access
    sums, number = bool(problem.pattern.sums), _arithmetic(problem.pattern)
    # Doubles are slow on many GPUs: a step is summed in the arithmetic's type, and so is a block of one pass. Each has
    # at most 65,536 elements, so that small whole numbers are summed exactly.
    total = "double" if walk.blocks else number
    arenas = ", ".join(problem.arenas)
    values = ", ".join((["sum_"] if sums else []) + list(problem.pattern.constants))
    one_pass = "{"
    grid_stride = "for (; begin < vectors; begin += blocks() * width) {"
    within = "if (vector < vectors) " if walk.items == 1 else ""
    step = f"""\
Step<{walk.vector}> step[{walk.items}];
#pragma unroll
for (int item = 0; item < {walk.items}; item++) {{
    const int64 vector = begin + item * THREADS + thread();
    {within}step[item].load({arenas}, first + vector * {walk.vector});
}}
#pragma unroll
for (int item = 0; item < {walk.items}; item++) {{
    const int64 vector = begin + item * THREADS + thread();
    {within}{{
        step[item].apply({values});
        step[item].store({arenas}, first + vector * {walk.vector});
    }}
}}
"""
    if walk.items > 1:  # a condition on each would have compilers load one after another
        step = f"""\
if (begin + width <= vectors) {{
{_indented(step.splitlines())}
}} else {{
#pragma unroll 1
    for (int64 vector = begin + thread(); vector < vectors; vector += THREADS) {{
        Step<{walk.vector}> step;
        step.load({arenas}, first + vector * {walk.vector});
        step.apply({values});
        step.store({arenas}, first + vector * {walk.vector});
    }}
}}
"""
    body = f"""
const int64 vectors = count / {walk.vector}, width = {walk.items} * THREADS;
{"int64" if walk.blocks else "const int64"} begin = block() * width;
{f"{total} all = 0;" if sums else ""}
{grid_stride if walk.blocks else one_pass}
    {f"{number} sum_ = 0;" if sums else ""}
{_indented(step.splitlines())}
    {"all += sum_;" if sums else ""}
}}
"""
    if walk.vector > 1:
        body += f"""\
// Elements behind the last whole vector.
const int64 alone = count - vectors * {walk.vector};
if (block() == 0 && thread() < alone) {{
    const int64 i = first + vectors * {walk.vector} + thread();
    {f"{number} sum_ = 0;" if sums else ""}
    Step<1> step;
    step.load({arenas}, i);
    step.apply({values});
    step.store({arenas}, i);
    {"all += sum_;" if sums else ""}
}}
"""
    if sums:
        body += """\
all = over_block(all);
if (thread() == 0)
    partial[block()] = all;
"""
    parameters = [_parameters(problem), "int64 first", "int64 count"]
    parameters += ["double *__restrict__ partial"] if sums else []
    parameters += _constants(problem.pattern)
    lines = [line for line in body.splitlines() if line.strip()]
    return _function(f'extern "C" __global__ BOUNDS void {name}({", ".join(parameters)})', lines)


def _parameters(problem: Problem) -> str:
    """Return the arenas as parameters; those that are never written are constant."""
    written = {place.arena for place in problem.places if place.writes}
    if problem.access.layout == "whole" and problem.pattern.bytes_written:
        written.add("structs")
    return ", ".join(f"{'' if name in written else 'const '}char *__restrict__ {name}" for name in problem.arenas)


def _function(head: str, lines: Iterable[str]) -> str:
    return f"{head} {{\n{_indented(lines)}\n}}\n"


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"    {line}" if line and not line.startswith("#") else line for line in lines)
