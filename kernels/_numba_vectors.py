"""What the sources for a CPU call, as LLVM instructions: 16-bit numbers converted, and a rule on whole vectors.

The vectoriser of LLVM leaves stores past the cache scalar, and Numba has no vectors of its own. So `vectors` writes the
loop of a problem that streams: it loads a vector of each stream, carries out the rule, and stores from registers.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from commbench.kernels._pattern import Place, Problem

# Contraction and reassociation are what a C compiler does for an FMA and a vectorised sum; NaN and infinity stay.
FAST_MATH = ("contract", "reassoc", "nsz")
_LINE = 64  # bytes of a line, and of the widest register of x86-64


def lanes(streamed: Sequence[Place]) -> int:
    """Return how many elements a vector holds: a line of the narrowest of what is stored past the cache."""
    return _LINE // min(place.itemsize for place in streamed)


@cache
def scalars() -> dict[str, Any]:
    """Return the functions that convert one 16-bit number, and `fence`."""
    from numba.core import types
    from numba.extending import intrinsic

    def convert(take: Any, give: Any, emit: Callable[[Any, Any], Any]) -> Any:
        @intrinsic  # type: ignore[untyped-decorator, unused-ignore]
        def converted(typing: Any, value: Any) -> Any:
            return give(take), lambda context, builder, signature, values: emit(builder, values[0])

        return converted

    @intrinsic  # type: ignore[untyped-decorator, unused-ignore]
    def fence(typing: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            builder.fence("seq_cst")  # streaming stores are weakly ordered: what is read next must find them
            return context.get_dummy_value()

        return types.void(), code

    return {
        "half_to_float": convert(types.uint16, types.float32, _from_half),
        "float_to_half": convert(types.float32, types.uint16, _to_half),
        "bfloat_to_float": convert(types.uint16, types.float32, _from_bfloat),
        "float_to_bfloat": convert(types.float32, types.uint16, _to_bfloat),
        "fence": fence,
    }


def vectors(problem: Problem, streamed: Sequence[Place]) -> Any:
    """Return vectors(low, high, index, addresses, constants), which updates elements `low` to `high` of a problem.

    `low + offset` and `high - low` are multiples of `lanes`. `index` is the address of the list, or 0; `addresses` has
    that of element 0 of each place. Stores to places that are `streamed` go past the cache.
    """
    from llvmlite import ir
    from numba.core import cgutils, types
    from numba.extending import intrinsic

    pattern, n = problem.pattern, lanes(streamed)
    byte, i64 = ir.IntType(8), ir.IntType(64)

    @intrinsic  # type: ignore[untyped-decorator, unused-ignore]
    def function(typing: Any, low: Any, high: Any, index: Any, addresses: Any, constants: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            starts = [builder.inttoptr(one, byte.as_pointer()) for one in cgutils.unpack_tuple(builder, values[3])]
            listed = builder.inttoptr(values[2], ir.IntType(32).as_pointer())
            given = dict(zip(pattern.constants, cgutils.unpack_tuple(builder, values[4]), strict=True))
            fixed = {name: _splat(builder, value, n) for name, value in given.items()}
            nothing = _splat(builder, _unknown_zero(builder), n)
            flag = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])

            def pointer(start: Any, place: Place, i: Any, kind: Any) -> Any:
                at = builder.gep(start, [builder.mul(i, ir.Constant(i64, place.pitch))])
                return builder.bitcast(at, kind.as_pointer())

            def load(start: Any, place: Place, i: Any) -> Any:
                kind = _bits(place)
                if not place.indexed:
                    wide = ir.VectorType(kind, n)
                    return builder.load(pointer(start, place, i, wide), align=place.itemsize)
                value = ir.Constant(ir.VectorType(kind, n), ir.Undefined)
                for k in range(n):
                    lane = builder.add(i, ir.Constant(i64, k))
                    j = builder.zext(builder.load(builder.gep(listed, [lane])), i64)
                    one = builder.load(pointer(start, place, j, kind))
                    value = builder.insert_element(value, one, ir.Constant(ir.IntType(32), k))
                return value

            step = ir.Constant(i64, n)
            with cgutils.for_range_slice(builder, values[0], values[1], step, i64) as (i, _):
                names = dict(fixed)
                for start, place in zip(starts, problem.places, strict=True):
                    if place.reads:
                        bits = load(start, place, i)
                        names[place.stream.name] = bits if pattern.moves else _widen(builder, bits, place.stream.dtype)
                for name, expression in pattern.assignments:
                    names[name] = _value(builder, ast.parse(expression, mode="eval").body, names)
                for start, place in zip(starts, problem.places, strict=True):
                    if place.writes:
                        value = names[place.stream.name]
                        bits = value if pattern.moves else _narrow(builder, value, place.stream.dtype)
                        past = place in streamed
                        align = n * place.itemsize if past else place.itemsize
                        if past and place.stream.dtype == "float16" and not pattern.moves:
                            bits = builder.or_(bits, nothing)
                        stored = builder.store(bits, pointer(start, place, i, bits.type), align=align)
                        if past:
                            stored.set_metadata("nontemporal", flag)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.uint64, addresses, constants), code

    return function


# Instructions for one number or a vector of them.


def _value(builder: Any, node: ast.expr, names: dict[str, Any]) -> Any:
    """Return what an expression of a rule gives on values that have its names."""
    from llvmlite import ir
    from numba.core import cgutils

    match node:
        case ast.Name(id=name):
            return names[name]
        case ast.BinOp(left=left, op=operator, right=right):
            method = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}[type(operator)]
            operands = [_value(builder, one, names) for one in (left, right)]
            return getattr(builder, method)(*operands, flags=FAST_MATH)
        case ast.Call(func=ast.Name(id="sqrt"), args=[argument]):
            value = _value(builder, argument, names)
            kind = value.type
            called = f"llvm.sqrt.v{kind.count}f{32 if kind.element == ir.FloatType() else 64}"
            function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind]), called)
            return builder.call(function, [value])
    raise ValueError(f"a rule has names, + - * /, sqrt() and parentheses, not {ast.unparse(node)}")


def _bits(place: Place) -> Any:
    from llvmlite import ir

    return ir.IntType(8 * place.itemsize)


def _unknown_zero(builder: Any) -> Any:
    """Return 16 bits that are zero, which LLVM does not know.

    Or-ed to the bits of halves it keeps them from being halves again: where a CPU has registers for these (AVX512-FP16)
    LLVM has no store of them past the cache, and takes an ordinary one.
    """
    from llvmlite import ir

    kind = ir.IntType(16)
    return builder.asm(ir.FunctionType(kind, [kind]), "", "=r,0", [ir.Constant(kind, 0)], side_effect=False)


def _splat(builder: Any, value: Any, n: int) -> Any:
    from llvmlite import ir

    wide = ir.Constant(ir.VectorType(value.type, n), ir.Undefined)
    first = builder.insert_element(wide, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, wide, ir.Constant(ir.VectorType(ir.IntType(32), n), [0] * n))


def _as(value: Any, kind: Any) -> Any:
    """Return type `kind`, or a vector of as many of them as `value` is."""
    from llvmlite import ir

    return ir.VectorType(kind, value.type.count) if isinstance(value.type, ir.VectorType) else kind


def _number(value: Any, bits: int, number: int) -> Any:
    """Return a whole number of so many bits, in as many lanes as `value` has."""
    from llvmlite import ir

    kind = _as(value, ir.IntType(bits))
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


def _widen(builder: Any, bits: Any, dtype: str) -> Any:
    from llvmlite import ir

    if dtype in ("float16", "bfloat16"):
        return (_from_half if dtype == "float16" else _from_bfloat)(builder, bits)
    return builder.bitcast(bits, _as(bits, ir.FloatType() if dtype == "float32" else ir.DoubleType()))


def _narrow(builder: Any, value: Any, dtype: str) -> Any:
    from llvmlite import ir

    if dtype in ("float16", "bfloat16"):
        return (_to_half if dtype == "float16" else _to_bfloat)(builder, value)
    return builder.bitcast(value, _as(value, ir.IntType(32 if dtype == "float32" else 64)))


def _from_half(builder: Any, bits: Any) -> Any:
    from llvmlite import ir

    return builder.fpext(builder.bitcast(bits, _as(bits, ir.HalfType())), _as(bits, ir.FloatType()))


def _to_half(builder: Any, value: Any) -> Any:
    from llvmlite import ir

    return builder.bitcast(builder.fptrunc(value, _as(value, ir.HalfType())), _as(value, ir.IntType(16)))


def _from_bfloat(builder: Any, bits: Any) -> Any:
    from llvmlite import ir

    wide = builder.shl(builder.zext(bits, _as(bits, ir.IntType(32))), _number(bits, 32, 16))
    return builder.bitcast(wide, _as(bits, ir.FloatType()))


def _to_bfloat(builder: Any, value: Any) -> Any:
    from llvmlite import ir

    bits = builder.bitcast(value, _as(value, ir.IntType(32)))
    odd = builder.and_(builder.lshr(bits, _number(value, 32, 16)), _number(value, 32, 1))
    rounded = builder.add(bits, builder.add(odd, _number(value, 32, 0x7FFF)))  # to nearest, ties to even
    quiet = builder.or_(bits, _number(value, 32, 1 << 22))
    kept = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
    return builder.trunc(builder.lshr(kept, _number(value, 32, 16)), _as(value, ir.IntType(16)))
