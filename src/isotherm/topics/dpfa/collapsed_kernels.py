r"""Collapsed Gibbs sweeps over documents, topics integrated out, in Numba.

The conditional of a token is that of `isotherm.topics.dpfa.kernels` with topics integrated out,

$$ \phi_{kw} \to \frac{n_{kw}^{-i} + \eta}{n_{k\cdot}^{-i} + V\eta} , $$

as in collapsed Gibbs sampling of latent Dirichlet allocation (`isotherm.topics.kernels`). The units
do not depend on the topics given the tokens. A sweep leaves $p(z, h \mid x)$ invariant given
weights, biases and rates. Documents are swept one after the other, since they share the counts.
Numba compiles again only if this file has changed: after a change in `kernels.py` or in the files
that it names, touch this file.
"""

import numpy as np
from numba import njit

from isotherm.topics.counter_rng import increment, uniform24, uniform53
from isotherm.topics.dpfa.kernels import (
    draw_first_layer,
    expected_intensity,
    fill_odds,
    flip_units,
)
from isotherm.topics.simd_categorical import draw_index

_ONE, _FLOOR = np.float32(1), 1e-20


@njit(error_model="numpy")
def _token_weight(n, k, rates, p, unused_weight, totals, mass):
    """Return the weight of topic `k` for any word, which its count of the word multiplies."""
    return expected_intensity(n, k, rates, p, unused_weight) / (np.float32(totals[k]) + mass)


@njit(cache=True, nogil=True, error_model="numpy")
def sweep_documents(
    words,
    token_starts,
    streams,
    rates,
    p,
    prob_no_tokens,
    bias,
    up,
    down,
    of_child,
    sizes,
    eta,
    assignments,
    units,
    fresh,
    word_topics,
    totals,
):
    r"""Sweep documents once, in place.

    `word_topics` is $n_{kw}$, word-major in float32; `totals` is $n_{k\cdot}$, in int64, or in
    float64 if pseudo-counts are included in both. `streams` has the starts of the documents' random
    streams. With `fresh` the layers above the first are drawn from the prior, and a sweep over the
    tokens that initializes the assignments comes first.
    """
    num_words, num_topics = word_topics.shape
    top, width, mass = len(sizes) - 1, bias.shape[1], np.float32(num_words * eta)
    n, weights = np.empty(num_topics, np.float32), np.empty(num_topics, np.float32)
    unused_weight, on_if_unused = np.zeros(num_topics, np.float32), np.empty(num_topics, np.float64)
    odds, s, t = np.empty((top + 1, width)), np.empty(width), np.empty(width)
    evidence = np.empty(width)
    for j in range(len(token_starts) - 1):
        begin, end = token_starts[j], token_starts[j + 1]
        n[:] = 0
        for i in range(begin, end):
            if assignments[i] >= 0:
                n[assignments[i]] += _ONE
        state, gamma, doc_units = streams[j], increment(streams[j]), units[j]
        for layer in range(top, -1, -1):
            fill_odds(odds, bias, up, doc_units, layer, sizes, width)
            if fresh and layer > 0:
                for k in range(sizes[layer]):
                    state += gamma
                    doc_units[layer, k] = uniform53(state) * (1.0 + odds[layer, k]) < odds[layer, k]
        for k in range(sizes[0]):
            off = odds[0, k] * prob_no_tokens[k]
            on_if_unused[k] = off / (1.0 + off)
            unused_weight[k] = max(p[k] * rates[k] * on_if_unused[k], _FLOOR)
        for k in range(num_topics):
            weights[k] = _token_weight(n, k, rates, p, unused_weight, totals, mass)
        for _ in range(1 + fresh):
            for i in range(begin, end):
                w, k = words[i], assignments[i]
                if k >= 0:
                    word_topics[w, k] -= _ONE
                    totals[k] -= 1
                    n[k] -= _ONE
                    weights[k] = _token_weight(n, k, rates, p, unused_weight, totals, mass)
                state += gamma
                k = draw_index(weights, word_topics, w, eta, uniform24(state))
                assignments[i] = k
                word_topics[w, k] += _ONE
                totals[k] += 1
                n[k] += _ONE
                weights[k] = _token_weight(n, k, rates, p, unused_weight, totals, mass)
        state = draw_first_layer(doc_units, n, on_if_unused, sizes, state, gamma)
        for layer in range(1, top + 1):
            state = flip_units(
                layer, doc_units, odds, up, down, of_child, sizes, s, t, evidence, state, gamma
            )
