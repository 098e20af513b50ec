r"""Draw from a categorical distribution with given weights, in sixteen SIMD lanes.

Weights are the products $w_k = a_k (b_k + c)$ for $k < K$, $K$ a multiple of 16. They are never
normalized and never stored. Column sums over blocks of 16, $s_j = \sum_b w_{16b + j}$, need
vertical additions only; a prefix sum over the 16 lanes selects the lane, a scan over the
blocks of that lane selects $k$. There are no data-dependent branches, apart from a rare correction
after rounding.

All additions are emitted in a fixed order, without reassociation or contraction, so the result is
the same on every processor, whatever the width of its vectors. Plain Numba cannot do both: it does
not vectorize a sum without `fastmath`, and with it the order of additions is not fixed.
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


def _prefix_sums(builder: Any, lanes: Any) -> Any:
    """Compute inclusive prefix sums over the lanes, in four shifted additions."""
    zero = ir.Constant(_VECTOR, [0.0] * LANES)
    for shift in (1, 2, 4, 8):
        picks = [i - shift if i >= shift else LANES + i for i in range(LANES)]
        shifted = builder.shuffle_vector(lanes, zero, ir.Constant(_PICKS, picks))
        lanes = builder.fadd(lanes, shifted)
    return lanes


def _lane_sums(builder: Any, rows: _Rows, num_blocks: Any) -> Any:
    total = cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, [0.0] * LANES))
    with cgutils.for_range(builder, num_blocks) as loop:
        products = rows.products(builder.shl(loop.index, _I64(4)))
        builder.store(builder.fadd(builder.load(total), products), total)
    return builder.load(total)


def _pick_lane(builder: Any, prefix: Any, target: Any) -> tuple[Any, Any]:
    """Return the lane in which the target falls, and the remainder of the target inside it."""
    passed = builder.fcmp_ordered("<=", prefix, splat(builder, target))
    count = builder.zext(builder.ctpop(builder.bitcast(passed, ir.IntType(LANES))), _I64)
    lane = builder.select(builder.icmp_unsigned(">", count, _I64(_LAST)), _I64(_LAST), count)
    table = cgutils.alloca_once(builder, ir.ArrayType(_F32, LANES + 1))
    builder.store(_F32(0.0), builder.gep(table, [_I64(0), _I64(0)]))
    sums = builder.bitcast(builder.gep(table, [_I64(0), _I64(1)]), _VECTOR.as_pointer())
    builder.store(prefix, sums, align=4)
    before = builder.load(builder.gep(table, [_I64(0), lane]))
    return lane, builder.fsub(target, before)


def _pick_block(builder: Any, rows: _Rows, num_blocks: Any, lane: Any, rest: Any) -> Any:
    count = cgutils.alloca_once_value(builder, _I64(0))
    running = cgutils.alloca_once_value(builder, _F32(0.0))
    with cgutils.for_range(builder, builder.sub(num_blocks, _I64(1))) as loop:
        weight = rows.product(builder.add(builder.shl(loop.index, _I64(4)), lane))
        so_far = builder.fadd(builder.load(running), weight)
        builder.store(so_far, running)
        passed = builder.zext(builder.fcmp_ordered(">=", rest, so_far), _I64)
        builder.store(builder.add(builder.load(count), passed), count)
    return builder.load(count)


def _nearest(left, right, row, shift, k):
    """Return the nearest index before `k`, or else after it, whose weight is not zero."""
    for near in range(k - 1, -1, -1):
        if left[near] * (right[row, near] + shift) > np.float32(0):
            return near
    for near in range(k + 1, len(left)):
        if left[near] * (right[row, near] + shift) > np.float32(0):
            return near
    return 0


def _draw_index(typing_context: Any, left: Any, right: Any, row: Any, shift: Any, u: Any) -> Any:
    """Draw `k` with probability proportional to `left[k] * (right[row, k] + shift)`.

    Arrays are float32 and contiguous, with rows of a multiple of 16; `u` is uniform on [0, 1). An
    index of weight zero is never drawn, so `left` may be padded with zeros. Returns 0 if all
    weights are zero. For use inside compiled code.
    """
    signature = types.int64(left, right, types.int64, types.float32, types.float32)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        left_type, right_type = signature.args[:2]
        left = context.make_array(left_type)(context, builder, arguments[0])
        right = context.make_array(right_type)(context, builder, arguments[1])
        size = builder.extract_value(right.shape, 1)
        start = builder.gep(right.data, [builder.mul(arguments[2], size)])
        rows = _Rows(builder, left.data, start, arguments[3])
        num_blocks = builder.lshr(size, _I64(4))
        prefix = _prefix_sums(builder, _lane_sums(builder, rows, num_blocks))
        total = builder.extract_element(prefix, _I32(_LAST))
        lane, rest = _pick_lane(builder, prefix, builder.fmul(arguments[4], total))
        block = _pick_block(builder, rows, num_blocks, lane, rest)
        k = builder.add(builder.shl(block, _I64(4)), lane)
        result = cgutils.alloca_once_value(builder, k)
        # Rounding may select an index past the last positive weight: once in ten million draws.
        is_zero = builder.fcmp_unordered("<=", rows.product(k), _F32(0.0))
        with builder.if_then(is_zero, likely=False):
            kinds = types.int64(*signature.args[:4], types.int64)
            near = context.compile_internal(builder, _nearest, kinds, [*arguments[:4], k])
            builder.store(near, result)
        return builder.load(result)

    return signature, codegen


draw_index: Any = intrinsic(_draw_index)
