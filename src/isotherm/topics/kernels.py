r"""Gibbs sampling of topic assignments, one document at a time, in Numba.

*Semi-collapsed*, topics $\phi$ given and proportions integrated out:

$$ p(z_{ji} = k \mid \text{rest}) \propto (\alpha_k + n_{jk}^{-ji})\,\phi_{k w_{ji}} . $$

*Fully collapsed*, topics integrated out as well under a symmetric Dirichlet prior $\beta$:

$$ p(z_{ji} = k \mid \text{rest}) \propto (\alpha_k + n_{jk}^{-ji})\,
   \frac{n_{k w_{ji}}^{-ji} + \beta}{n_{k\cdot}^{-ji} + V\beta} . $$

An assignment of -1 means that the token has no topic yet: the first sweep initializes it, given the
tokens before it. All semi-collapsed sweeps of a document run in one call, with a random stream of
its own (`isotherm.topics.counter_rng`), so documents can be divided among threads in any way.
Threads run the same compiled code without the GIL, and any number of them gives the same bits.
`isotherm.topics.simd_categorical` draws the topics.

Memory layouts are those of `isotherm.topics.layout`. The compiled functions here do not check their
arguments; `isotherm.topics.expected_counts` has the checked functions to call.

Numba caches compiled code on disk, and compiles again only if this file has changed: after a change
in `simd_categorical.py` or `counter_rng.py`, touch this file.
"""

import numpy as np
from numba import njit

from isotherm.topics.counter_rng import increment, uniform24
from isotherm.topics.simd_categorical import draw_index, draw_two

_ONE = np.float32(1)


@njit
def token_buffers(first, last, token_starts, num_topics):
    """Allocate the buffers for sweeps over documents `first` to `last - 1`.

    Returns the tokens per topic and the weights, both (num_topics,), and the words and the rows of
    the tokens, both as long as the longest document.
    """
    longest = 0
    for j in range(first, last):
        longest = max(longest, token_starts[j + 1] - token_starts[j])
    n, weights = np.empty(num_topics, np.float32), np.empty(num_topics, np.float32)
    return n, weights, np.empty(longest, np.int64), np.empty(longest, np.int64)


@njit
def expand_tokens(j, indptr, indices, counts, word_rows, token_starts, assignments, words, rows, n):
    """List the tokens of document `j` in `words` and `rows`, and count those of each topic in `n`.

    Returns the index of the document's first assignment, and its number of tokens.
    """
    begin, length = token_starts[j], 0
    n[:] = 0
    for i in range(indptr[j], indptr[j + 1]):
        for _ in range(counts[i]):
            words[length] = indices[i]
            rows[length] = word_rows[i] if len(word_rows) > 0 else 0
            if assignments[begin + length] >= 0:
                n[assignments[begin + length]] += _ONE
            length += 1
    return begin, length


@njit(cache=True, nogil=True)
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
    alpha,
    assignments,
    init_sweeps,
    first_sweep,
    last_sweep,
    burn_in,
    doc_topics,
    word_topics,
):
    r"""Run semi-collapsed sweeps `first_sweep` to `last_sweep - 1` over a run of documents.

    The documents are `first` to `last - 1`. Sweeps count from `-init_sweeps` (0 or 1), as a sweep
    that initializes comes before sweep 0. Adds the counts of the sweeps from `burn_in` on to
    `doc_topics` (documents, padded) and, if `word_topics` has rows, to row `word_rows[i]` of
    `word_topics` for entry `i`. `starts` are the starts of the documents' random streams,
    `token_starts` the index of each document's first assignment.
    """
    num_topics = len(alpha)
    n, weights, words, rows = token_buffers(first, last, token_starts, num_topics)
    count_words = len(word_topics) > 0
    for j in range(first, last):
        begin, length = expand_tokens(
            j, indptr, indices, counts, word_rows, token_starts, assignments, words, rows, n
        )
        for k in range(num_topics):
            weights[k] = alpha[k] + n[k]
        gamma = increment(starts[j])
        state = starts[j] + gamma * np.uint64((first_sweep + init_sweeps) * length)
        for sweep in range(first_sweep, last_sweep):
            kept = sweep >= burn_in
            for t in range(length):
                k = assignments[begin + t]
                if k >= 0:
                    n[k] -= _ONE
                    weights[k] = alpha[k] + n[k]
                state += gamma
                k = draw_index(weights, topics, words[t], np.float32(0), uniform24(state))
                assignments[begin + t] = k
                n[k] += _ONE
                weights[k] = alpha[k] + n[k]
                if kept and count_words:
                    word_topics[rows[t], k] += _ONE
            if kept:
                for k in range(num_topics):
                    doc_topics[j, k] += n[k]


@njit(error_model="numpy")
def begin_document(begin, end, assignments, totals, alpha, mass, n, weights):
    """Count the tokens of each topic in a document, and compute the weights of topics."""
    n[:] = 0
    for t in range(begin, end):
        if assignments[t] >= 0:
            n[assignments[t]] += _ONE
    for k in range(len(n)):
        weights[k] = (alpha[k] + n[k]) / (np.float32(totals[k]) + mass)


@njit(cache=True, nogil=True, error_model="numpy")
def sweep_collapsed(
    words, token_starts, assignments, word_topics, totals, alpha, beta, streams, num_sweeps
):
    r"""Run fully collapsed sweeps over a corpus, in place.

    `word_topics` is $n_{kw}$, word-major in float32; `totals` is $n_{k\cdot}$, in int64, or in
    float64 if pseudo-counts are included in both. `streams` has one row per sweep with the starts
    of the documents' random streams.
    """
    num_words, num_topics = word_topics.shape
    n, weights = np.empty(num_topics, np.float32), np.empty(num_topics, np.float32)
    mass = np.float32(num_words * beta)
    for sweep in range(num_sweeps):
        for j in range(len(token_starts) - 1):
            begin, end = token_starts[j], token_starts[j + 1]
            begin_document(begin, end, assignments, totals, alpha, mass, n, weights)
            state, gamma = streams[sweep, j], increment(streams[sweep, j])
            for t in range(begin, end):
                w, k = words[t], assignments[t]
                if k >= 0:
                    word_topics[w, k] -= _ONE
                    totals[k] -= 1
                    n[k] -= _ONE
                    weights[k] = (alpha[k] + n[k]) / (np.float32(totals[k]) + mass)
                state += gamma
                k = draw_index(weights, word_topics, w, beta, uniform24(state))
                assignments[t] = k
                word_topics[w, k] += _ONE
                totals[k] += 1
                n[k] += _ONE
                weights[k] = (alpha[k] + n[k]) / (np.float32(totals[k]) + mass)


@njit(cache=True, nogil=True, error_model="numpy")
def sweep_two_collapsed(
    words, token_starts, assignments, word_topics, totals, alpha, beta, streams
):
    r"""Run one fully collapsed sweep of each of two chains over the same corpus, in place.

    Does what two calls of `sweep_collapsed` do, token by token in turn, in about half the time.
    Arguments from `assignments` on are pairs; `streams` has the starts of the documents' streams.
    """
    # Without functions and pairs inside the loop, which would cost a third of the time.
    z0, z1 = assignments
    counts0, counts1 = word_topics
    totals0, totals1 = totals
    alpha0, alpha1 = alpha
    beta0, beta1 = beta
    starts0, starts1 = streams
    num_words, num_topics = counts0.shape
    n0, n1 = np.empty(num_topics, np.float32), np.empty(num_topics, np.float32)
    weights0, weights1 = np.empty(num_topics, np.float32), np.empty(num_topics, np.float32)
    mass0, mass1 = np.float32(num_words * beta0), np.float32(num_words * beta1)
    for j in range(len(token_starts) - 1):
        begin, end = token_starts[j], token_starts[j + 1]
        begin_document(begin, end, z0, totals0, alpha0, mass0, n0, weights0)
        begin_document(begin, end, z1, totals1, alpha1, mass1, n1, weights1)
        state0, gamma0 = starts0[j], increment(starts0[j])
        state1, gamma1 = starts1[j], increment(starts1[j])
        for t in range(begin, end):
            w, k, m = words[t], z0[t], z1[t]
            if k >= 0:
                counts0[w, k] -= _ONE
                totals0[k] -= 1
                n0[k] -= _ONE
                weights0[k] = (alpha0[k] + n0[k]) / (np.float32(totals0[k]) + mass0)
            if m >= 0:
                counts1[w, m] -= _ONE
                totals1[m] -= 1
                n1[m] -= _ONE
                weights1[m] = (alpha1[m] + n1[m]) / (np.float32(totals1[m]) + mass1)
            state0 += gamma0
            state1 += gamma1
            u0, u1 = uniform24(state0), uniform24(state1)
            k, m = draw_two(weights0, weights1, counts0, counts1, w, beta0, beta1, u0, u1)
            z0[t] = k
            counts0[w, k] += _ONE
            totals0[k] += 1
            n0[k] += _ONE
            weights0[k] = (alpha0[k] + n0[k]) / (np.float32(totals0[k]) + mass0)
            z1[t] = m
            counts1[w, m] += _ONE
            totals1[m] += 1
            n1[m] += _ONE
            weights1[m] = (alpha1[m] + n1[m]) / (np.float32(totals1[m]) + mass1)


@njit(cache=True, nogil=True)
def iterate_proportions(first, last, indptr, indices, counts, topics, alpha, limit, tolerance, out):
    r"""Iterate $g_k \leftarrow \alpha_k + \sum_w n_w\, g_k\phi_{kw} / \sum_l g_l\phi_{lw}$.

    $g$ of document `j` is written to `out[j]`. Stops after `limit` iterations, or when no $g_k$
    changes by more than `tolerance` tokens.
    """
    num_topics = len(alpha)
    share_sums = np.empty(num_topics, np.float32)
    for j in range(first, last):
        g = out[j]
        g[:] = alpha
        for _ in range(limit if indptr[j + 1] > indptr[j] else 0):
            share_sums[:] = 0
            for i in range(indptr[j], indptr[j + 1]):
                row, total = topics[indices[i]], 0.0
                for k in range(num_topics):
                    total += g[k] * row[k]
                share = np.float32(counts[i] / total) if total > 0 else np.float32(0)
                for k in range(num_topics):
                    share_sums[k] += share * row[k]
            change = np.float32(0)
            for k in range(num_topics):
                new = alpha[k] + g[k] * share_sums[k]
                change = max(change, abs(new - g[k]))
                g[k] = new
            if change <= tolerance:
                break


@njit(cache=True, nogil=True)
def predict_cells(indptr, indices, topics, proportions, out):
    r"""Add $\sum_k \theta_{jk}\phi_{kw}$ to `out` for every entry of a corpus, in float64."""
    for j in range(len(indptr) - 1):
        for i in range(indptr[j], indptr[j + 1]):
            total = 0.0
            for k in range(proportions.shape[1]):
                total += proportions[j, k] * topics[indices[i], k]
            out[i] += total


@njit(cache=True)
def distinct_words(indices, num_words):
    """Return the distinct words in increasing order, and the index of each entry among them."""
    index = np.full(num_words, -1, np.int32)
    for word in indices:
        index[word] = 0
    num_distinct = 0
    for word in range(num_words):
        if index[word] == 0:
            index[word] = num_distinct
            num_distinct += 1
    words = np.empty(num_distinct, np.int32)
    word_rows = np.empty(len(indices), np.int32)
    for i in range(len(indices)):
        word_rows[i] = index[indices[i]]
        words[word_rows[i]] = indices[i]
    return words, word_rows


@njit(cache=True, nogil=True)
def documents_with_at_least(token_starts, assignments, num_topics):
    """Count the documents with at least `i` tokens of a topic, for `i` = 1, 2, … up to the largest.

    Returns the counts of all topics one after the other, and where those of each topic start.
    Tokens without a topic (-1) are not counted.
    """
    n, most = np.zeros(num_topics, np.int64), np.zeros(num_topics, np.int64)
    starts = np.zeros(num_topics + 1, np.int64)
    at_least = np.zeros(0, np.int64)
    for counting in range(2):
        for j in range(len(token_starts) - 1):
            for t in range(token_starts[j], token_starts[j + 1]):
                k = assignments[t]
                if k >= 0:
                    if counting:
                        at_least[starts[k] + n[k]] += 1
                    n[k] += 1
                    most[k] = max(most[k], n[k])
            for t in range(token_starts[j], token_starts[j + 1]):
                if assignments[t] >= 0:
                    n[assignments[t]] = 0
        if not counting:
            starts[1:] = np.cumsum(most)
            at_least = np.zeros(starts[-1], np.int64)
    return at_least, starts


@njit(cache=True, nogil=True)
def cells_with_at_least(word_topics):
    """Count the cells of a table of whole numbers with at least `i`, for `i` = 1, 2, …."""
    largest = np.float32(0)
    for count in word_topics.flat:
        largest = max(largest, count)
    at_least = np.zeros(int(largest) + 1, np.int64)
    for count in word_topics.flat:
        if count > 0:
            at_least[int(count)] += 1
    for i in range(len(at_least) - 2, 0, -1):
        at_least[i] += at_least[i + 1]
    return at_least[1:]
