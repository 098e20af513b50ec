r"""Draw from a categorical distribution with given weights, in sixteen SIMD lanes.

Weights are the products $w_k = a_k (b_k + c)$ for $k < K$, $K$ a multiple of 16. They are never
normalized and never stored. Column sums over blocks of 16, $s_j = \sum_b w_{16b + j}$, need
vertical additions only; a prefix sum over the 16 lanes selects the lane, a scan over the
blocks of that lane selects $k$. There are no data-dependent branches, apart from a rare correction
after rounding.

All additions are emitted in a fixed order, without reassociation or contraction, so the result is
the same on every processor, whatever the width of its vectors. Plain Numba cannot do both: it does
not vectorize a sum without `fastmath`, and with it the order of additions is not fixed.

Most instructions of a draw wait for the one before. So `draw_two` draws from two distributions in
little more time than `draw_index` from one, with their instructions in turn; the results are equal.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR, _PICKS = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)
_LAST = LANES - 1


class _Rows:
    """Emits code that computes the weights from the two rows of factors and the constant."""

    def __init__(self, builder: Any, left: Any, right: Any, shift: Any) -> None:
        self.builder, self.left, self.right, self.shift = builder, left, right, shift
        self.splat_shift = splat(builder, shift)

    def _load(self, pointer: Any, index: Any) -> Any:
        address = self.builder.bitcast(self.builder.gep(pointer, [index]), _VECTOR.as_pointer())
        return self.builder.load(address, align=4)

    def products(self, index: Any) -> Any:
        """Compute the sixteen weights that start at `index`."""
        shifted = self.builder.fadd(self._load(self.right, index), self.splat_shift)
        return self.builder.fmul(self._load(self.left, index), shifted)

    def product(self, index: Any) -> Any:
        """Compute one weight."""
        b = self.builder
        right = b.load(b.gep(self.right, [index]))
        return b.fmul(b.load(b.gep(self.left, [index])), b.fadd(right, self.shift))


def splat(builder: Any, number: Any) -> Any:
    """Broadcast a number to all lanes."""
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, number, _I32(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_PICKS, [0] * LANES))


def _prefix_sums(builder: Any, lanes: list[Any]) -> list[Any]:
    """Compute inclusive prefix sums over the lanes, in four shifted additions."""
    zero = ir.Constant(_VECTOR, [0.0] * LANES)
    for shift in (1, 2, 4, 8):
        picks = [i - shift if i >= shift else LANES + i for i in range(LANES)]
        shifted = [builder.shuffle_vector(x, zero, ir.Constant(_PICKS, picks)) for x in lanes]
        lanes = [builder.fadd(x, y) for x, y in zip(lanes, shifted, strict=True)]
    return lanes


def _lane_sums(builder: Any, rows: list[_Rows], num_blocks: Any) -> list[Any]:
    zero = ir.Constant(_VECTOR, [0.0] * LANES)
    totals = [cgutils.alloca_once_value(builder, zero) for _ in rows]
    with cgutils.for_range(builder, num_blocks) as loop:
        index = builder.shl(loop.index, _I64(4))
        products = [row.products(index) for row in rows]
        for total, product in zip(totals, products, strict=True):
            builder.store(builder.fadd(builder.load(total), product), total)
    return [builder.load(total) for total in totals]


def _pick_lanes(
    builder: Any, prefixes: list[Any], targets: list[Any]
) -> tuple[list[Any], list[Any]]:
    """Return the lanes in which the targets fall, and the sums of the lanes before them."""
    last, mask = _I64(_LAST), ir.IntType(LANES)
    passed = [
        builder.fcmp_ordered("<=", prefix, splat(builder, target))
        for prefix, target in zip(prefixes, targets, strict=True)
    ]
    counts = [builder.zext(builder.ctpop(builder.bitcast(x, mask)), _I64) for x in passed]
    lanes = [builder.select(builder.icmp_unsigned(">", x, last), last, x) for x in counts]
    tables = [cgutils.alloca_once(builder, ir.ArrayType(_F32, 2 * LANES)) for _ in prefixes]
    for table, prefix in zip(tables, prefixes, strict=True):
        table.align = 4 * LANES  # a store across two cache lines would delay the load that follows
        builder.store(_F32(0.0), builder.gep(table, [_I64(0), _I64(_LAST)]))
        sums = builder.bitcast(builder.gep(table, [_I64(0), _I64(LANES)]), _VECTOR.as_pointer())
        builder.store(prefix, sums, align=4 * LANES)
    pointers = [
        builder.gep(table, [_I64(0), builder.add(lane, last)])
        for table, lane in zip(tables, lanes, strict=True)
    ]
    return lanes, [builder.load(pointer) for pointer in pointers]


def _pick_blocks(
    builder: Any, rows: list[_Rows], num_blocks: Any, lanes: list[Any], rests: list[Any]
) -> list[Any]:
    counts = [cgutils.alloca_once_value(builder, _I64(0)) for _ in rows]
    running = [cgutils.alloca_once_value(builder, _F32(0.0)) for _ in rows]
    with cgutils.for_range(builder, builder.sub(num_blocks, _I64(1))) as loop:
        start = builder.shl(loop.index, _I64(4))
        weights = [
            row.product(builder.add(start, lane)) for row, lane in zip(rows, lanes, strict=True)
        ]
        for weight, rest, count, total in zip(weights, rests, counts, running, strict=True):
            so_far = builder.fadd(builder.load(total), weight)
            builder.store(so_far, total)
            passed = builder.zext(builder.fcmp_ordered(">=", rest, so_far), _I64)
            builder.store(builder.add(builder.load(count), passed), count)
    return [builder.load(count) for count in counts]


def _picks(builder: Any, rows: list[_Rows], num_blocks: Any, uniforms: list[Any]) -> list[Any]:
    """Draw one index from each list of weights, with the instructions of all lists in turn."""
    prefixes = _prefix_sums(builder, _lane_sums(builder, rows, num_blocks))
    targets = [
        builder.fmul(u, builder.extract_element(prefix, _I32(_LAST)))
        for u, prefix in zip(uniforms, prefixes, strict=True)
    ]
    lanes, before = _pick_lanes(builder, prefixes, targets)
    rests = [builder.fsub(x, y) for x, y in zip(targets, before, strict=True)]
    blocks = _pick_blocks(builder, rows, num_blocks, lanes, rests)
    shifted = [builder.shl(block, _I64(4)) for block in blocks]
    return [builder.add(block, lane) for block, lane in zip(shifted, lanes, strict=True)]


def _nearest(left, right, row, shift, k):
    """Return the nearest index before `k`, or else after it, whose weight is not zero."""
    for near in range(k - 1, -1, -1):
        if left[near] * (right[row, near] + shift) > np.float32(0):
            return near
    for near in range(k + 1, len(left)):
        if left[near] * (right[row, near] + shift) > np.float32(0):
            return near
    return 0


def _emit(context: Any, builder: Any, types_: Any, arguments: list[Any]) -> list[Any]:
    """Emit draws; `types_` and `arguments` have `left, right, row, shift, u` of each, in groups."""
    left, right, row, shift, u = arguments
    lefts = [
        context.make_array(kind)(context, builder, x)
        for kind, x in zip(types_[0], left, strict=True)
    ]
    rights = [
        context.make_array(kind)(context, builder, x)
        for kind, x in zip(types_[1], right, strict=True)
    ]
    size = builder.extract_value(rights[0].shape, 1)
    rows = [
        _Rows(builder, a.data, builder.gep(b.data, [builder.mul(i, size)]), c)
        for a, b, i, c in zip(lefts, rights, row, shift, strict=True)
    ]
    drawn = []
    for i, k in enumerate(_picks(builder, rows, builder.lshr(size, _I64(4)), u)):
        result = cgutils.alloca_once_value(builder, k)
        # Rounding may select an index past the last positive weight: once in ten million draws.
        is_zero = builder.fcmp_unordered("<=", rows[i].product(k), _F32(0.0))
        with builder.if_then(is_zero, likely=False):
            kinds = types.int64(types_[0][i], types_[1][i], types.int64, types.float32, types.int64)
            values = [left[i], right[i], row[i], shift[i], k]
            builder.store(context.compile_internal(builder, _nearest, kinds, values), result)
        drawn.append(builder.load(result))
    return drawn


def _draw_index(typing_context: Any, left: Any, right: Any, row: Any, shift: Any, u: Any) -> Any:
    """Draw `k` with probability proportional to `left[k] * (right[row, k] + shift)`.

    Arrays are float32 and contiguous, with rows of a multiple of 16; `u` is uniform on [0, 1). An
    index of weight zero is never drawn, so `left` may be padded with zeros. Returns 0 if all
    weights are zero. For use inside compiled code.
    """
    signature = types.int64(left, right, types.int64, types.float32, types.float32)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = [[kind] for kind in signature.args[:2]]
        return _emit(context, builder, arrays, [[x] for x in arguments])[0]

    return signature, codegen


def _draw_two(
    typing_context: Any,
    left: Any,
    other_left: Any,
    right: Any,
    other_right: Any,
    row: Any,
    shift: Any,
    other_shift: Any,
    u: Any,
    other_u: Any,
) -> Any:
    """Draw two indices, one from each of two distributions, as two calls of `draw_index` would.

    The row is the same for both. Returns a pair.
    """
    arrays = [[left, other_left], [right, other_right]]
    signature = types.UniTuple(types.int64, 2)(
        *arrays[0], *arrays[1], types.int64, *[types.float32] * 4
    )

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, b, c, d, row, *others = arguments
        groups = [[a, b], [c, d], [row, row], others[:2], others[2:]]
        drawn = _emit(context, builder, arrays, groups)
        return context.make_tuple(builder, signature.return_type, drawn)

    return signature, codegen


draw_index: Any = intrinsic(_draw_index)
draw_two: Any = intrinsic(_draw_two)
