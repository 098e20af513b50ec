r"""Gibbs sweeps over documents whose binary layers are a deep Boltzmann machine, in Numba.

$$ p(h) \propto \exp\Bigl(\sum_\ell c^{(\ell)\top}h^{(\ell)} + \sum_\ell h^{(\ell)\top}W^{(\ell)}h^{(\ell+1)}\Bigr) $$

Given layer 2 the units of layer 1 are independent with logits $W^{(1)}h^{(2)} + c^{(1)}$, as in the belief network. So tokens and layer 1 are
drawn by the formulas of `isotherm.topics.dpfa.kernels`. A unit of any other layer hears its neighbours on both sides and nothing else,

$$ \log\frac{\Pr(h^{(\ell)}_k = 1 \mid \text{rest})}{\Pr(h^{(\ell)}_k = 0 \mid \text{rest})} =
   c^{(\ell)}_k + \sum_j W^{(\ell)}_{kj}h^{(\ell+1)}_j + \sum_i W^{(\ell-1)}_{ik}h^{(\ell-1)}_i , $$

without the normalising terms of a belief network, so a layer is drawn at once. A sweep leaves $p(z, h \mid x)$ as it is.

Arguments are those of `isotherm.topics.dpfa.kernels.sweep_documents`; `down` is not used. Numba looks only at this file to see whether compiled code is
stale: after a change in `kernels.py` or `units.py`, touch this one.
"""

import numpy as np
from numba import njit

from isotherm.topics.counter_rng import increment
from isotherm.topics.dpfa.binary_units import multiply
from isotherm.topics.dpfa.kernels import (
    chance,
    draw_first,
    fill_odds,
    keep,
    lay_out,
    sweep_tokens,
)


@njit(cache=True, nogil=True, error_model="numpy")
def fill_layer(odds, bias, up, of_child, units, layer, sizes, width):
    """Compute the odds of a layer from the units on both sides of it."""
    fill_odds(odds, bias, up, units, layer, sizes, width)
    if layer > 0:
        for i in range(sizes[layer - 1]):
            if units[layer - 1, i]:
                multiply(odds[layer], of_child[layer - 1], i, sizes[layer])


@njit(error_model="numpy")
def draw_layer(odds, units, layer, sizes, state, gamma):
    """Draw all units of a layer by their odds; returns the stream's state."""
    for k in range(sizes[layer]):
        state += gamma
        units[layer, k] = chance(state) * (1.0 + odds[layer, k]) < odds[layer, k]
    return state


@njit(cache=True, nogil=True, error_model="numpy")
def sweep_documents(
    first,
    last,
    indptr,
    indices,
    counts,
    slots,
    starts,
    token_starts,
    topics,
    rates,
    p,
    zero,
    bias,
    up,
    down,
    of_child,
    sizes,
    assignments,
    units,
    fresh,
    keeps,
    theta,
    kept_counts,
    kept_units,
    tally,
):
    """Sweep documents `first` to `last - 1`, `len(keeps)` times.

    With `fresh` the layers above the first are filled in from the top down, and a sweep that fills in assignments comes first.
    """
    num_topics, top, width = len(rates), len(sizes) - 1, bias.shape[1]
    n, weights = np.empty(num_topics, np.float32), np.empty(num_topics, np.float32)
    empty, idle = np.zeros(num_topics, np.float32), np.empty(num_topics, np.float64)
    odds = np.empty((top + 1, width))
    longest = 0
    for j in range(first, last):
        longest = max(longest, token_starts[j + 1] - token_starts[j])
    words, rows = np.empty(longest, np.int64), np.empty(longest, np.int64)
    tallies = len(tally) > 0
    for j in range(first, last):
        begin = token_starts[j]
        length = lay_out(
            j, indptr, indices, counts, slots, tallies, assignments, begin, words, rows, n
        )
        state, gamma, mine = starts[j], increment(starts[j]), units[j]
        if fresh:
            for layer in range(top, 0, -1):
                fill_odds(odds, bias, up, mine, layer, sizes, width)
                state = draw_layer(odds, mine, layer, sizes, state, gamma)
        for sweep in range(-fresh, len(keeps)):
            kept = sweep >= 0 and keeps[sweep] >= 0
            fill_odds(odds, bias, up, mine, 0, sizes, width)
            state = sweep_tokens(
                length,
                begin,
                words,
                rows,
                assignments,
                topics,
                rates,
                p,
                zero,
                odds,
                sizes,
                n,
                weights,
                empty,
                idle,
                tally,
                kept and tallies,
                state,
                gamma,
            )
            state = draw_first(mine, n, idle, sizes, state, gamma)
            for layer in range(1, top + 1):
                fill_layer(odds, bias, up, of_child, mine, layer, sizes, width)
                state = draw_layer(odds, mine, layer, sizes, state, gamma)
            if kept:
                keep(keeps[sweep], j, n, mine, weights, sizes, theta, kept_counts, kept_units)
