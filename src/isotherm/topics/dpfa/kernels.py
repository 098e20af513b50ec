r"""Gibbs sweeps over the local variables of documents, all layers in one call, in Numba.

Intensities $\theta$ and the first binary layer are integrated out while tokens move. With $\pi_k$ the probability that unit $k$ is on
although its topic has no token,

$$ p(z_i = k \mid \text{rest}) \propto \phi_{k w_i}\,p_k \times
   \begin{cases} n_k^{-i} + r_k & n_k^{-i} > 0 \\ r_k\pi_k & n_k^{-i} = 0 \end{cases}, \qquad
   \frac{\pi_k}{1 - \pi_k} = e^{\psi_k}(1 - p_k)^{r_k} , $$

the conditional of token $i$ given the layers above. Then, given the tokens, layer 1 (on if $n_k > 0$, else with probability $\pi_k$), and each
unit of layers 2 to $L$ from its exact conditional (`isotherm.topics.dpfa.binary_units`). A sweep leaves $p(z, h \mid x)$ as it is. The last factor
in the formula, $p_k(n_k + r_k)$ or $p_kr_k\pi_k$, is $\mathrm E[\theta_k \mid z, h^{(2)}]$ when all tokens are counted.

Random numbers come from a document's own stream (`isotherm.topics.counter_rng`), so any number of threads gives the same bits. The functions here
check nothing; `isotherm.topics.dpfa.local_gibbs` has the ones to call. Numba looks only at this file to see whether compiled
code is stale: after a change in `units.py`, touch this one.
"""

import numpy as np
from numba import njit

from isotherm.topics.counter_rng import increment, mix
from isotherm.topics.dpfa.binary_units import mixture_product, multiply, split
from isotherm.topics.simd_categorical import draw_index

_ONE, _UNIT, _FLOOR = np.float32(1), np.float32(2.0**-24), 1e-20
_11, _40 = np.uint64(11), np.uint64(40)


@njit(error_model="numpy")
def uniform(state):
    """Turn the state of a stream into a number of [0, 1) with 24 bits."""
    return np.float32(mix(state) >> _40) * _UNIT


@njit(error_model="numpy")
def chance(state):
    """Turn the state of a stream into a number of [0, 1) with 53 bits."""
    return np.float64(mix(state) >> _11) * 2.0**-53


@njit(error_model="numpy")
def weigh(n, k, rates, p, empty):
    """Give the expected intensity of a topic with `n[k]` tokens."""
    return p[k] * (n[k] + rates[k]) if n[k] > 0 else empty[k]


@njit(error_model="numpy")
def fill_odds(odds, bias, up, units, layer, sizes, width):
    """Compute the odds of a layer from the units above it."""
    for j in range(width):
        odds[layer, j] = bias[layer, j]
    if layer + 1 < len(sizes):
        for k in range(sizes[layer + 1]):
            if units[layer + 1, k]:
                multiply(odds[layer], up[layer], k, width)


@njit(error_model="numpy")
def lay_out(j, indptr, indices, counts, slots, tallies, assignments, begin, words, rows, n):
    """Write out the tokens of a document, count those that have a topic; returns how many tokens there are."""
    length = 0
    n[:] = 0
    for i in range(indptr[j], indptr[j + 1]):
        for _ in range(counts[i]):
            words[length] = indices[i]
            rows[length] = slots[i] if tallies else 0
            if assignments[begin + length] >= 0:
                n[assignments[begin + length]] += _ONE
            length += 1
    return length


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
    zero,
    odds,
    sizes,
    n,
    weights,
    empty,
    idle,
    tally,
    tallied,
    state,
    gamma,
):
    """Draw the topic of every token given the layers above the first; returns the stream's state."""
    for k in range(sizes[0]):
        idle[k] = odds[0, k] * zero[k] / (1.0 + odds[0, k] * zero[k])
    for k in range(len(rates)):
        empty[k] = np.float32(max(p[k] * rates[k] * idle[k], _FLOOR)) if k < sizes[0] else 0
        weights[k] = weigh(n, k, rates, p, empty)
    for i in range(length):
        k = assignments[begin + i]
        if k >= 0:
            n[k] -= _ONE
            weights[k] = weigh(n, k, rates, p, empty)
        state += gamma
        k = draw_index(weights, topics, words[i], np.float32(0), uniform(state))
        assignments[begin + i] = k
        n[k] += _ONE
        weights[k] = weigh(n, k, rates, p, empty)
        if tallied:
            tally[rows[i], k] += _ONE
    return state


@njit(error_model="numpy")
def draw_first(units, n, idle, sizes, state, gamma):
    """Draw layer 1 given the tokens; returns the stream's state."""
    for k in range(sizes[0]):
        state += gamma
        units[0, k] = n[k] > 0 or chance(state) < idle[k]
    return state


@njit(error_model="numpy")
def keep(place, j, n, units, weights, sizes, theta, kept_counts, kept_units):
    """Write tokens per topic, units and expected intensities of a document to where they are kept."""
    for k in range(len(weights)):
        theta[j, k] += weights[k]
    for k in range(sizes[0]):
        kept_counts[place, j, k] = np.int32(n[k])
    for layer in range(len(sizes)):
        for k in range(sizes[layer]):
            kept_units[place, j, layer, k] = units[layer, k]


@njit(cache=True, nogil=True, error_model="numpy")
def flip_units(layer, units, odds, up, down, of_child, sizes, s, t, evidence, state, gamma):
    """Draw every unit of a layer above the first given all others; returns the stream's state."""
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
        chances = odds[layer, k] * evidence[k]
        if units[layer, k]:
            chances *= mixture_product(t, s, down[below], k, width)
        else:
            chances /= mixture_product(t, s, up[below], k, width)
        on = chance(state) * (1.0 + chances) < chances
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
    r"""Sweep documents `first` to `last - 1`, `len(keeps)` times.

    Sweep `i` is kept if `keeps[i]` is not negative: tokens per topic and units then go to row `keeps[i]` of `kept_counts` and
    `kept_units`, expected intensities are added to `theta` and, if `tally` has rows, tokens to row `slots[i]` of `tally` for
    non-zero `i`. With `fresh` the layers above the first are drawn from the prior, and a sweep that fills in
    assignments comes before all others.
    """
    num_topics, top, width = len(rates), len(sizes) - 1, bias.shape[1]
    n, weights = np.empty(num_topics, np.float32), np.empty(num_topics, np.float32)
    empty, idle = np.empty(num_topics, np.float32), np.empty(num_topics, np.float64)
    odds, s, t = np.empty((top + 1, width)), np.empty(width), np.empty(width)
    evidence = np.empty(width)
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
        for layer in range(top, -1, -1):
            fill_odds(odds, bias, up, mine, layer, sizes, width)
            if fresh and layer > 0:
                for k in range(sizes[layer]):
                    state += gamma
                    mine[layer, k] = chance(state) * (1.0 + odds[layer, k]) < odds[layer, k]
        for sweep in range(-fresh, len(keeps)):
            kept = sweep >= 0 and keeps[sweep] >= 0
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
                state = flip_units(
                    layer, mine, odds, up, down, of_child, sizes, s, t, evidence, state, gamma
                )
            if kept:
                keep(keeps[sweep], j, n, mine, weights, sizes, theta, kept_counts, kept_units)
