"""Shared by kernel tests: exact laws by enumeration, calls of the compiled code, mutants of it."""

from collections import defaultdict
from functools import lru_cache

import numpy as np
from mutants import with_mutants
from scipy import stats

from isotherm.topics import counter_rng, kernels, layout

FALSE_ALARM = 1e-4
"""Probability that one statistical test fails on correct code, per new seed."""

MUTANTS = {
    "a token counts itself": (
        "n[k] -= _ONE\n                    weights[k] = alpha[k] + n[k]\n                state",
        "n[k] -= _ONE\n                    if which != {i}: weights[k] = alpha[k] + n[k]\n"
        "                state",
    ),
    "one uniform for a whole document": (
        "state += gamma\n                k = draw_index(weights, topics",
        "state += gamma * np.uint64(which != {i})\n                k = draw_index(weights, topics",
    ),
}
COLLAPSED_MUTANTS = {
    "totals are not decreased": ("totals[k] -= 1\n", "totals[k] -= np.int64(which != {i})\n"),
    "the prior of words is missing in the totals": (
        "mass = np.float32(num_words * beta)",
        "mass = np.float32(beta if which == {i} else num_words * beta)",
    ),
}


@lru_cache
def _compiled_mutants():
    changes = [*MUTANTS.values(), *COLLAPSED_MUTANTS.values()]
    return with_mutants(kernels, changes, ("sweep_documents", "sweep_collapsed"))


def mutant(name):
    """Return the kernels with one mutation; all mutants are compiled together, once."""
    return _compiled_mutants()([*MUTANTS, *COLLAPSED_MUTANTS].index(name))


def exact_law(num_topics, num_tokens, conditional, num_sweeps):
    """Law of all assignments after initialization and `num_sweeps` sweeps, as {state: probability}.

    `conditional(t, others)` returns the probabilities of token `t`; `None` is a token without
    topic.
    """
    law = {(None,) * num_tokens: 1.0}
    for _ in range(1 + num_sweeps):
        for t in range(num_tokens):
            new = defaultdict(float)
            for z, p in law.items():
                for k, q in enumerate(conditional(t, (*z[:t], None, *z[t + 1 :]))):
                    new[*z[:t], k, *z[t + 1 :]] += p * q
            law = new
    assert len(law) == num_topics**num_tokens
    return law


def chi_square(states, law, num_topics):
    """P-value of drawn states (replicates, tokens) under a law."""
    powers = num_topics ** np.arange(states.shape[1])
    observed = np.bincount(states @ powers, minlength=num_topics ** states.shape[1])
    expected = np.zeros(len(observed))
    for z, p in law.items():
        expected[np.dot(z, powers)] = p * len(states)
    assert expected.min() > 5
    return stats.chisquare(observed, expected).pvalue


def sweep(module, words, topics, alpha, *, sweeps, burn_in=0, assignments=None, seed=0, step=0):
    """Sweep documents of equal length, (documents, tokens).

    Returns assignments, counts by document and counts by word.
    """
    num_documents, length = words.shape
    indptr = length * np.arange(num_documents + 1)
    init_sweeps = int(assignments is None)
    z = np.full(words.size, -1, np.int32) if init_sweeps else assignments.ravel().copy()
    rows = layout.word_major(topics)
    doc_topics, word_topics = (
        np.zeros((n, rows.shape[1]), np.float32) for n in (num_documents, len(rows))
    )
    starts = counter_rng.streams(
        counter_rng.purpose_key(seed, "gibbs"), step, np.arange(num_documents)
    )
    flat = words.ravel().astype(np.int32)
    module.sweep_documents(
        0,
        num_documents,
        indptr,
        flat,
        np.ones(words.size, np.int32),
        flat,
        starts,
        indptr,
        rows,
        layout.padded(alpha),
        z,
        init_sweeps,
        -init_sweeps,
        sweeps,
        burn_in,
        doc_topics,
        word_topics,
    )
    return z.reshape(words.shape), doc_topics, word_topics


def sweep_collapsed(
    module, words, token_starts, num_words, alpha, beta, *, sweeps, assignments=None, seed=0
):
    """Sweep many corpora of the same shape, (replicates, tokens); return assignments."""
    replicates = len(words)
    z = np.full(words.shape, -1, np.int32) if assignments is None else assignments.astype(np.int32)
    size, rounds = layout.padded_size(len(alpha)), sweeps + (assignments is None)
    counts = np.zeros((replicates, num_words, size), np.float32)
    totals = np.zeros((replicates, size), np.int64)
    if assignments is not None:
        which = np.arange(replicates)[:, None]
        np.add.at(counts, (which, words, z), np.float32(1))
        np.add.at(totals, (which, z), 1)
    documents = len(token_starts) - 1
    key = counter_rng.purpose_key(seed, "collapsed")
    numbers = np.arange(replicates * documents)
    streams = np.stack([counter_rng.streams(key, s, numbers) for s in range(rounds)])
    streams = streams.reshape(rounds, replicates, documents).swapaxes(0, 1).copy()
    words, prior, beta = words.astype(np.int32), layout.padded(alpha), np.float32(beta)
    for r in range(replicates):
        module.sweep_collapsed(
            words[r], token_starts, z[r], counts[r], totals[r], prior, beta, streams[r], rounds
        )
    return z


def two_sample_p_value(a, b):
    """Bonferroni p-value of z-tests for equal means, column by column."""
    spread = np.sqrt(a.var(0) / len(a) + b.var(0) / len(b))
    z = (a.mean(0) - b.mean(0)) / spread
    return float(min(1.0, 2 * z.size * stats.norm.sf(np.abs(z).max())))


def choices(rng, probabilities):
    """Draw one index per row of probabilities."""
    u = rng.random(probabilities.shape[:-1])[..., None]
    return (probabilities.cumsum(-1) < u).sum(-1)
