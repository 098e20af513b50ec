r"""Exact Gibbs updates of binary units by products of odds, without logarithms.

Unit $k$ of a layer has children $j$ with logits $\psi_j$ and weights $w_{jk}$. Write
$E_j = e^{\psi_j}$, $s_j = \sigma(\psi_j)$, $t_j = 1 - s_j$ with the current value of $\psi_j$.
Because $\log p(h_j \mid \psi_j) = h_j\psi_j - \log(1 + e^{\psi_j})$, the odds that the unit is on
are

$$ \frac{\Pr(\text{on} \mid \text{rest})}{\Pr(\text{off} \mid \text{rest})} =
   E_k\,\prod_{j:\,h_j = 1} e^{w_{jk}} \times
   \begin{cases} \prod_j (t_j + s_j e^{w_{jk}})^{-1} & \text{if it is off,} \\
                 \prod_j (t_j + s_j e^{-w_{jk}}) & \text{if it is on,} \end{cases} $$

where $E_k$ belongs to the unit's own prior logit. All factors are sums of positive float64 numbers,
so there is no cancellation: with $m$ children the relative error of the odds is below
$(4m + 8)\,2^{-53}$, plus $2^{-53}$ for each flip since $E$ was last recomputed. That is 1e-13 for
128 children. No auxiliary variables are drawn. Products do not overflow while sums of absolute
weights stay below `LIMIT`.

The product is computed in eight SIMD lanes in a fixed order, so it has the same bits on every
processor.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

LIMIT = 200.0
"""Upper limit for the absolute weights to a unit's parents (with its bias) or children, summed."""
LANES = 8
_F64, _I32, _I64 = ir.DoubleType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_F64, LANES)


def _load(builder: Any, pointer: Any, index: Any) -> Any:
    address = builder.bitcast(builder.gep(pointer, [index]), _VECTOR.as_pointer())
    return builder.load(address, align=8)


def _product_of_lanes(builder: Any, lanes: Any) -> Any:
    """Return the product of all lanes, by three pairwise multiplications."""
    for half in (4, 2, 1):
        picks = ir.Constant(ir.VectorType(_I32, LANES), [(i + half) % LANES for i in range(LANES)])
        lanes = builder.fmul(lanes, builder.shuffle_vector(lanes, lanes, picks))
    return builder.extract_element(lanes, _I32(0))


def _mixture_product(typing_context: Any, t: Any, s: Any, factors: Any, row: Any, size: Any) -> Any:
    """Compute the product of `t[j] + s[j] * factors[row, j]` for `j < size`, a multiple of 8.

    Arrays are float64 and contiguous. For use inside compiled code.
    """
    signature = types.float64(t, s, factors, types.int64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        t, s, factors = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
        )
        width = builder.extract_value(factors.shape, 1)
        start = builder.gep(factors.data, [builder.mul(arguments[3], width)])
        total = cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, [1.0] * LANES))
        with cgutils.for_range(builder, builder.lshr(arguments[4], _I64(3))) as loop:
            j = builder.shl(loop.index, _I64(3))
            term = builder.fmul(_load(builder, s.data, j), _load(builder, start, j))
            term = builder.fadd(_load(builder, t.data, j), term)
            builder.store(builder.fmul(builder.load(total), term), total)
        return _product_of_lanes(builder, builder.load(total))

    return signature, codegen


mixture_product: Any = intrinsic(_mixture_product)


@njit(error_model="numpy")
def split(odds, s, t, size):
    """Convert odds to probabilities of on (`s`) and off (`t`), without cancellation."""
    for j in range(size):
        t[j] = 1.0 / (1.0 + odds[j])
        s[j] = odds[j] * t[j]


@njit(error_model="numpy")
def multiply(odds, factors, row, size):
    """Multiply odds by a row of factors, in place."""
    for j in range(size):
        odds[j] *= factors[row, j]


def exponentials(weights: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Return $e^{w}$ in a larger array, padded with ones."""
    out = np.ones(shape)
    out[: weights.shape[0], : weights.shape[1]] = np.exp(weights, dtype=np.float64)
    return out
