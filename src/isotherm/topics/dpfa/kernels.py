r"""Gibbs sweeps over the local variables of documents, all layers in one call, in Numba.

Intensities $\theta$ and the first binary layer are integrated out while topics of tokens are drawn.
With $\pi_k$ the probability that unit $k$ is on although its topic has no token,

$$ p(z_i = k \mid \text{rest}) \propto \phi_{k w_i}\,p_k \times
   \begin{cases} n_k^{-i} + r_k & n_k^{-i} > 0 \\ r_k\pi_k & n_k^{-i} = 0 \end{cases}, \qquad
   \frac{\pi_k}{1 - \pi_k} = e^{\psi_k}(1 - p_k)^{r_k} , $$

is the conditional of token $i$ given the layers above. Then layer 1 is drawn given the tokens (on
if $n_k > 0$, otherwise with probability $\pi_k$), and each unit of layers 2 to $L$ from its exact
conditional (`isotherm.topics.dpfa.binary_units`). A sweep leaves $p(z, h \mid x)$ invariant. The
last factor in the formula, $p_k(n_k + r_k)$ or $p_kr_k\pi_k$, is
$\mathrm E[\theta_k \mid z, h^{(2)}]$ when all tokens are counted.

Each document uses its own random stream (`isotherm.topics.counter_rng`), so any number of threads
gives the same bits. The functions here do not check their arguments;
`isotherm.topics.dpfa.local_gibbs` has the checked functions to call. Numba compiles again only if
this file has changed: after a change in `binary_units.py`, `counter_rng.py`, `simd_categorical.py`
or `isotherm/topics/kernels.py`, touch this file.
"""

import numpy as np
from numba import njit

from isotherm.topics.counter_rng import increment, uniform24, uniform53
from isotherm.topics.dpfa.binary_units import mixture_product, multiply, split
from isotherm.topics.kernels import expand_tokens, token_buffers
from isotherm.topics.simd_categorical import draw_index

_ONE, _FLOOR = np.float32(1), 1e-20


@njit(error_model="numpy")
def expected_intensity(n, k, rates, p, unused_weight):
    """Return the expected intensity of topic `k`, which has `n[k]` tokens."""
    return p[k] * (n[k] + rates[k]) if n[k] > 0 else unused_weight[k]


@njit(error_model="numpy")
def fill_odds(odds, bias, up, units, layer, sizes, width):
    """Compute the prior odds of a layer's units from the layer above."""
    for j in range(width):
        odds[layer, j] = bias[layer, j]
    if layer + 1 < len(sizes):
        for k in range(sizes[layer + 1]):
            if units[layer + 1, k]:
                multiply(odds[layer], up[layer], k, width)


@njit(error_model="numpy")
def sweep_tokens(
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
    count_words,
    state,
    gamma,
):
    """Draw the topic of every token given the layers above the first; return the stream's state."""
    for k in range(sizes[0]):
        on_if_unused[k] = odds[0, k] * prob_no_tokens[k] / (1.0 + odds[0, k] * prob_no_tokens[k])
    for k in range(len(rates)):
        unused_weight[k] = (
            np.float32(max(p[k] * rates[k] * on_if_unused[k], _FLOOR)) if k < sizes[0] else 0
        )
        weights[k] = expected_intensity(n, k, rates, p, unused_weight)
    for i in range(length):
        k = assignments[begin + i]
        if k >= 0:
            n[k] -= _ONE
            weights[k] = expected_intensity(n, k, rates, p, unused_weight)
        state += gamma
        k = draw_index(weights, topics, words[i], np.float32(0), uniform24(state))
        assignments[begin + i] = k
        n[k] += _ONE
        weights[k] = expected_intensity(n, k, rates, p, unused_weight)
        if count_words:
            word_topics[rows[i], k] += _ONE
    return state


@njit(error_model="numpy")
def draw_first_layer(units, n, on_if_unused, sizes, state, gamma):
    """Draw layer 1 given the tokens; return the stream's state."""
    for k in range(sizes[0]):
        state += gamma
        units[0, k] = n[k] > 0 or uniform53(state) < on_if_unused[k]
    return state


@njit(error_model="numpy")
def store_sweep(row, j, n, units, weights, sizes, theta, kept_counts, kept_units):
    """Store tokens per topic and units of a document, and add its expected intensities."""
    for k in range(len(weights)):
        theta[j, k] += weights[k]
    for k in range(sizes[0]):
        kept_counts[row, j, k] = np.int32(n[k])
    for layer in range(len(sizes)):
        for k in range(sizes[layer]):
            kept_units[row, j, layer, k] = units[layer, k]


@njit(cache=True, nogil=True, error_model="numpy")
def flip_units(layer, units, odds, up, down, of_child, sizes, s, t, evidence, state, gamma):
    """Draw every unit of a layer above the first given all others; return the stream's state."""
    below = layer - 1
    width = (sizes[below] + 15) // 16 * 16
    for k in range(sizes[layer]):
        evidence[k] = 1.0
    for j in range(sizes[below]):
        if units[below, j]:
            multiply(evidence, of_child[below], j, sizes[layer])
    split(odds[below], s, t, width)
    for k in range(sizes[layer]):
        state += gamma
        odds_on = odds[layer, k] * evidence[k]
        if units[layer, k]:
            odds_on *= mixture_product(t, s, down[below], k, width)
        else:
            odds_on /= mixture_product(t, s, up[below], k, width)
        on = uniform53(state) * (1.0 + odds_on) < odds_on
        if on != units[layer, k]:
            units[layer, k] = on
            multiply(odds[below], up[below] if on else down[below], k, width)
            split(odds[below], s, t, width)
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
    r"""Sweep documents `first` to `last - 1`, `len(kept_index)` times.

    Sweep `i` is kept if `kept_index[i]` is not negative: tokens per topic and units are then stored
    in row `kept_index[i]` of `kept_counts` and `kept_units`, expected intensities are added to
    `theta` and, if `word_topics` has rows, tokens of entry `k` to row `word_rows[k]` of
    `word_topics`. With `fresh` the layers above the first are drawn from the prior, and a sweep
    that initializes the assignments comes before all others.
    """
    num_topics, top, width = len(rates), len(sizes) - 1, bias.shape[1]
    unused_weight, on_if_unused = np.empty(num_topics, np.float32), np.empty(num_topics, np.float64)
    odds, s, t = np.empty((top + 1, width)), np.empty(width), np.empty(width)
    evidence = np.empty(width)
    n, weights, words, rows = token_buffers(first, last, token_starts, num_topics)
    count_words = len(word_topics) > 0
    for j in range(first, last):
        begin, length = expand_tokens(
            j, indptr, indices, counts, word_rows, token_starts, assignments, words, rows, n
        )
        state, gamma, doc_units = starts[j], increment(starts[j]), units[j]
        for layer in range(top, -1, -1):
            fill_odds(odds, bias, up, doc_units, layer, sizes, width)
            if fresh and layer > 0:
                for k in range(sizes[layer]):
                    state += gamma
                    doc_units[layer, k] = uniform53(state) * (1.0 + odds[layer, k]) < odds[layer, k]
        for sweep in range(-fresh, len(kept_index)):
            kept = sweep >= 0 and kept_index[sweep] >= 0
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
                state = flip_units(
                    layer, doc_units, odds, up, down, of_child, sizes, s, t, evidence, state, gamma
                )
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
