r"""Gibbs sweeps over documents whose binary layers are a deep Boltzmann machine, in Numba.

$$ p(h) \propto \exp\Bigl(\sum_\ell c^{(\ell)\top}h^{(\ell)}
   + \sum_\ell h^{(\ell)\top}W^{(\ell)}h^{(\ell+1)}\Bigr) $$

Given layer 2 the units of layer 1 are independent with logits $W^{(1)}h^{(2)} + c^{(1)}$, as in the
belief network. So tokens and layer 1 are drawn by the formulas of `isotherm.topics.dpfa.kernels`. A
unit of any other layer depends only on the two neighbouring layers,

$$ \log\frac{\Pr(h^{(\ell)}_k = 1 \mid \text{rest})}{\Pr(h^{(\ell)}_k = 0 \mid \text{rest})} =
   c^{(\ell)}_k + \sum_j W^{(\ell)}_{kj}h^{(\ell+1)}_j + \sum_i W^{(\ell-1)}_{ik}h^{(\ell-1)}_i , $$

without the normalizing terms of a belief network, so all units of a layer are drawn at once. A
sweep leaves $p(z, h \mid x)$ invariant.

Arguments are those of `isotherm.topics.dpfa.kernels.sweep_documents`; `down` is not used. Numba
compiles again only if this file has changed: after a change in one of the modules it imports, touch
this file.
"""

import numpy as np
from numba import njit

from isotherm.topics.counter_rng import increment, uniform53
from isotherm.topics.dpfa.binary_units import multiply
from isotherm.topics.dpfa.kernels import draw_first_layer, fill_odds, store_sweep, sweep_tokens
from isotherm.topics.kernels import expand_tokens, token_buffers


@njit(cache=True, nogil=True, error_model="numpy")
def fill_layer(odds, bias, up, of_child, units, layer, sizes, width):
    """Compute the odds of a layer's units from the layers above and below."""
    fill_odds(odds, bias, up, units, layer, sizes, width)
    if layer > 0:
        for i in range(sizes[layer - 1]):
            if units[layer - 1, i]:
                multiply(odds[layer], of_child[layer - 1], i, sizes[layer])


@njit(error_model="numpy")
def draw_layer(odds, units, layer, sizes, state, gamma):
    """Draw all units of a layer with given odds; return the stream's state."""
    for k in range(sizes[layer]):
        state += gamma
        units[layer, k] = uniform53(state) * (1.0 + odds[layer, k]) < odds[layer, k]
    return state


@njit(cache=True, nogil=True, error_model="numpy")
def sweep_documents(
    first,
    last,
    indptr,
    indices,
    counts,
    word_rows,
    starts,
    token_starts,
    topics,
    rates,
    p,
    prob_no_tokens,
    bias,
    up,
    down,
    of_child,
    sizes,
    assignments,
    units,
    fresh,
    kept_index,
    theta,
    kept_counts,
    kept_units,
    word_topics,
):
    """Sweep documents `first` to `last - 1`, `len(kept_index)` times.

    With `fresh` the layers above the first are initialized from the top down, and a sweep that
    initializes the assignments comes before all others.
    """
    num_topics, top, width = len(rates), len(sizes) - 1, bias.shape[1]
    unused_weight, on_if_unused = np.zeros(num_topics, np.float32), np.empty(num_topics, np.float64)
    odds = np.empty((top + 1, width))
    n, weights, words, rows = token_buffers(first, last, token_starts, num_topics)
    count_words = len(word_topics) > 0
    for j in range(first, last):
        begin, length = expand_tokens(
            j, indptr, indices, counts, word_rows, token_starts, assignments, words, rows, n
        )
        state, gamma, doc_units = starts[j], increment(starts[j]), units[j]
        if fresh:
            for layer in range(top, 0, -1):
                fill_odds(odds, bias, up, doc_units, layer, sizes, width)
                state = draw_layer(odds, doc_units, layer, sizes, state, gamma)
        for sweep in range(-fresh, len(kept_index)):
            kept = sweep >= 0 and kept_index[sweep] >= 0
            fill_odds(odds, bias, up, doc_units, 0, sizes, width)
            state = sweep_tokens(
                length,
                begin,
                words,
                rows,
                assignments,
                topics,
                rates,
                p,
                prob_no_tokens,
                odds,
                sizes,
                n,
                weights,
                unused_weight,
                on_if_unused,
                word_topics,
                kept and count_words,
                state,
                gamma,
            )
            state = draw_first_layer(doc_units, n, on_if_unused, sizes, state, gamma)
            for layer in range(1, top + 1):
                fill_layer(odds, bias, up, of_child, doc_units, layer, sizes, width)
                state = draw_layer(odds, doc_units, layer, sizes, state, gamma)
            if kept:
                store_sweep(
                    kept_index[sweep],
                    j,
                    n,
                    doc_units,
                    weights,
                    sizes,
                    theta,
                    kept_counts,
                    kept_units,
                )
