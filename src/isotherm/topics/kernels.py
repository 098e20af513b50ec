r"""Gibbs sampling of topic assignments, one document at a time, in Numba.

*Semi-collapsed*, topics $\phi$ given and proportions integrated out:

$$ p(z_{ji} = k \mid \text{rest}) \propto (\alpha_k + n_{jk}^{-ji})\,\phi_{k w_{ji}} . $$

*Fully collapsed*, topics integrated out as well under a symmetric Dirichlet prior $\beta$:

$$ p(z_{ji} = k \mid \text{rest}) \propto (\alpha_k + n_{jk}^{-ji})\,
   \frac{n_{k w_{ji}}^{-ji} + \beta}{n_{k\cdot}^{-ji} + V\beta} . $$

A token whose assignment is -1 has none yet: the first sweep fills it in, given the tokens before it.
A semi-collapsed document makes all its sweeps in one call, from a random stream of its own
(`isotherm.topics.counter_rng`); so a call may be cut into threads anywhere, and as these run the same
compiled code without the interpreter's lock, any number of them gives the same bits.
`isotherm.topics.simd_categorical` makes the draws.

Layouts are those of `isotherm.topics.layout`. The compiled functions here check nothing;
`isotherm.topics.expected_counts` has the ones to call.

Numba keeps compiled code on disk and looks only at this file to see whether it is stale: after a change in
`lanes.py` or `counter.py`, touch this one.
"""

import numpy as np
from numba import njit

from isotherm.topics.counter_rng import increment, mix
from isotherm.topics.simd_categorical import draw_index

_ONE, _UNIT = np.float32(1), np.float32(2.0**-24)
_40 = np.uint64(40)


@njit(inline="always")
def uniform(state):
    """Turn the state of a stream into a number of [0, 1) with 24 bits."""
    return np.float32(mix(state) >> _40) * _UNIT


@njit(cache=True, nogil=True)
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
    alpha,
    assignments,
    fills,
    sweeps,
    burn_in,
    doc_topics,
    tally,
):
    r"""Run semi-collapsed sweeps over documents `first` to `last - 1`.

    Adds the counts of every sweep after the first `burn_in` to `doc_topics` (documents, padded) and,
    if `tally` has rows, to row `slots[i]` of `tally` for non-zero `i`. `fills` sweeps (0 or 1) come before
    all others. `starts` are the documents' streams, `token_starts` where their assignments begin.
    """
    num_topics = len(alpha)
    n, weights = np.empty(num_topics, np.float32), np.empty(num_topics, np.float32)
    longest = 0
    for j in range(first, last):
        longest = max(longest, token_starts[j + 1] - token_starts[j])
    words, rows = np.empty(longest, np.int64), np.empty(longest, np.int64)
    tallies = len(tally) > 0
    for j in range(first, last):
        begin = token_starts[j]
        length = 0
        n[:] = 0
        for i in range(indptr[j], indptr[j + 1]):
            for _ in range(counts[i]):
                words[length] = indices[i]
                rows[length] = slots[i] if tallies else 0
                if assignments[begin + length] >= 0:
                    n[assignments[begin + length]] += _ONE
                length += 1
        for k in range(num_topics):
            weights[k] = alpha[k] + n[k]
        state, gamma = starts[j], increment(starts[j])
        for sweep in range(-fills, sweeps):
            kept = sweep >= burn_in
            for t in range(length):
                k = assignments[begin + t]
                if k >= 0:
                    n[k] -= _ONE
                    weights[k] = alpha[k] + n[k]
                state += gamma
                k = draw_index(weights, topics, words[t], np.float32(0), uniform(state))
                assignments[begin + t] = k
                n[k] += _ONE
                weights[k] = alpha[k] + n[k]
                if kept and tallies:
                    tally[rows[t], k] += _ONE
            if kept:
                for k in range(num_topics):
                    doc_topics[j, k] += n[k]


@njit(cache=True, nogil=True)
def sweep_collapsed(
    words, token_starts, assignments, word_topics, totals, alpha, beta, streams, num_sweeps
):
    r"""Run fully collapsed sweeps over a corpus, in place.

    `word_topics` is $n_{kw}$, word-major in float32; `totals` is $n_{k\cdot}$ in int64; `streams` has
    one row of document streams per sweep.
    """
    num_words, num_topics = word_topics.shape
    n, weights = np.empty(num_topics, np.float32), np.empty(num_topics, np.float32)
    mass = np.float32(num_words * beta)
    for sweep in range(num_sweeps):
        for j in range(len(token_starts) - 1):
            begin, end = token_starts[j], token_starts[j + 1]
            n[:] = 0
            for t in range(begin, end):
                if assignments[t] >= 0:
                    n[assignments[t]] += _ONE
            for k in range(num_topics):
                weights[k] = (alpha[k] + n[k]) / (np.float32(totals[k]) + mass)
            state, gamma = streams[sweep, j], increment(streams[sweep, j])
            for t in range(begin, end):
                w, k = words[t], assignments[t]
                if k >= 0:
                    word_topics[w, k] -= _ONE
                    totals[k] -= 1
                    n[k] -= _ONE
                    weights[k] = (alpha[k] + n[k]) / (np.float32(totals[k]) + mass)
                state += gamma
                k = draw_index(weights, word_topics, w, beta, uniform(state))
                assignments[t] = k
                word_topics[w, k] += _ONE
                totals[k] += 1
                n[k] += _ONE
                weights[k] = (alpha[k] + n[k]) / (np.float32(totals[k]) + mass)


@njit(cache=True, nogil=True)
def iterate_proportions(first, last, indptr, indices, counts, topics, alpha, limit, tolerance, out):
    r"""Iterate $g_k \leftarrow \alpha_k + \sum_w n_w\, g_k\phi_{kw} / \sum_l g_l\phi_{lw}$ per document.

    Stops after `limit` rounds, or when no $g_k$ moves by more than `tolerance` tokens.
    """
    num_topics = len(alpha)
    fresh = np.empty(num_topics, np.float32)
    for j in range(first, last):
        g = out[j]
        g[:] = alpha
        for _ in range(limit if indptr[j + 1] > indptr[j] else 0):
            fresh[:] = 0
            for i in range(indptr[j], indptr[j + 1]):
                row, total = topics[indices[i]], 0.0
                for k in range(num_topics):
                    total += g[k] * row[k]
                share = np.float32(counts[i] / total) if total > 0 else np.float32(0)
                for k in range(num_topics):
                    fresh[k] += share * row[k]
            moved = np.float32(0)
            for k in range(num_topics):
                new = alpha[k] + g[k] * fresh[k]
                moved = max(moved, abs(new - g[k]))
                g[k] = new
            if moved <= tolerance:
                break


@njit(cache=True, nogil=True)
def predict_cells(indptr, indices, topics, proportions, out):
    r"""Add $\sum_k \theta_{jk}\phi_{kw}$ to `out` for every non-zero of a corpus, in float64."""
    for j in range(len(indptr) - 1):
        for i in range(indptr[j], indptr[j + 1]):
            total = 0.0
            for k in range(proportions.shape[1]):
                total += proportions[j, k] * topics[indices[i], k]
            out[i] += total


@njit(cache=True)
def word_slots(indices, num_words):
    """List the words that occur, in order, and say which of them each non-zero is."""
    places = np.full(num_words, -1, np.int32)
    for word in indices:
        places[word] = 0
    found = 0
    for word in range(num_words):
        if places[word] == 0:
            places[word] = found
            found += 1
    words = np.empty(found, np.int32)
    slots = np.empty(len(indices), np.int32)
    for i in range(len(indices)):
        slots[i] = places[indices[i]]
        words[slots[i]] = indices[i]
    return words, slots
