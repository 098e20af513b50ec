"""Kernels have the exact law of their sweeps, with any number of threads.

The law of all assignments after a given number of sweeps is enumerated, so no burn-in is needed.
Power, measured over 20 seeds at these sizes: each mutant is rejected with 20 of 20.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
from gibbs_laws import (
    COLLAPSED_MUTANTS,
    FALSE_ALARM,
    MUTANTS,
    chi_square,
    exact_law,
    mutant,
    sweep,
    sweep_collapsed,
)

from isotherm.topics import expected_counts, kernels, layout
from isotherm.topics.corpus import as_corpus

TOPICS = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.3, 0.3, 0.4]])
ALPHA = np.array([0.3, 0.5, 0.9], np.float32)
WORDS = np.array([0, 0, 2])
STARTS, CORPUS, BETA = np.array([0, 2, 5]), np.array([0, 1, 0, 0, 2]), 0.4


def semi_collapsed(t, others):
    n = np.array([others.count(k) for k in range(3)])
    p = (ALPHA + n) * TOPICS[:, WORDS[t]]
    return p / p.sum()


def collapsed(t, others):
    document = np.searchsorted(STARTS, t, side="right")
    p = np.empty(2)
    for k in range(2):
        mine = [i for i, z in enumerate(others) if z == k]
        n = sum(np.searchsorted(STARTS, i, side="right") == document for i in mine)
        same = sum(CORPUS[i] == CORPUS[t] for i in mine)
        p[k] = (ALPHA[k] + n) * (same + BETA) / (len(mine) + 3 * BETA)
    return p / p.sum()


def semi_p_value(module, sweeps, seed=0):
    z, _, _ = sweep(module, np.tile(WORDS, (60_000, 1)), TOPICS, ALPHA, sweeps=sweeps, seed=seed)
    return chi_square(z, exact_law(3, 3, semi_collapsed, sweeps), 3)


def collapsed_p_value(module, sweeps, seed=0, replicates=20_000):
    words = np.tile(CORPUS, (replicates, 1))
    z = sweep_collapsed(module, words, STARTS, 3, ALPHA[:2], BETA, sweeps=sweeps, seed=seed)
    return chi_square(z, exact_law(2, 5, collapsed, sweeps), 2)


@pytest.mark.parametrize("sweeps", [0, 1, 4])
def test_semi_collapsed_sweeps_have_their_exact_law(sweeps):
    assert semi_p_value(kernels, sweeps) > FALSE_ALARM


@pytest.mark.parametrize("name", MUTANTS)
def test_semi_collapsed_mutant_is_rejected(name):
    assert semi_p_value(mutant(name), 4) < FALSE_ALARM


@pytest.mark.parametrize("sweeps", [0, 3])
def test_collapsed_sweeps_have_their_exact_law(sweeps):
    assert collapsed_p_value(kernels, sweeps) > FALSE_ALARM


@pytest.mark.parametrize("name", COLLAPSED_MUTANTS)
def test_collapsed_mutant_is_rejected(name):
    assert collapsed_p_value(mutant(name), 3) < FALSE_ALARM


def test_counts_are_averages_over_kept_sweeps():
    _, doc_topics, word_topics = sweep(
        kernels, np.tile(WORDS, (60_000, 1)), TOPICS, ALPHA, sweeps=5, burn_in=3
    )
    laws = [exact_law(3, 3, semi_collapsed, s) for s in (4, 5)]
    n, both = np.zeros(3), np.zeros((3, 3))
    for law in laws:
        for z, p in law.items():
            np.add.at(n, list(z), p)
            np.add.at(both, (WORDS, list(z)), p)
    error = doc_topics.std(0)[:3] / np.sqrt(len(doc_topics))
    assert np.abs((doc_topics.mean(0)[:3] - n) / error).max() < 4.5  # 2e-5 for all three
    np.testing.assert_allclose(word_topics[:, :3] / 60_000, both, atol=5 * error.max())
    np.testing.assert_array_equal(word_topics.sum(0, np.float64), doc_topics.sum(0, np.float64))


def test_fold_in_is_the_posterior_mean():
    corpus = as_corpus(np.tile([2, 0, 1], (60_000, 1)))
    theta = expected_counts.fold_in(
        layout.word_major(TOPICS), corpus, ALPHA, sweeps=4, burn_in=3, seed=0
    ).theta
    exact = np.zeros(3)
    for z, p in exact_law(3, 3, semi_collapsed, 4).items():
        exact += p * (ALPHA + np.bincount(z, minlength=3)) / (ALPHA.sum() + 3)
    error = theta.std(0) / np.sqrt(len(theta))
    assert np.abs((theta.mean(0) - exact) / error).max() < 4.5


def random_corpus(seed=0, documents=300, words=50):
    rng = np.random.default_rng(seed)
    return as_corpus(rng.poisson(0.4, (documents, words)))


@pytest.mark.parametrize("num_topics", [1, 3, 16, 30])
def test_results_do_not_depend_on_threads_or_batches(num_topics, monkeypatch):
    corpus = random_corpus()
    rng = np.random.default_rng(1)
    topics = layout.word_major(rng.dirichlet(np.ones(50), num_topics))
    alpha = np.full(num_topics, 0.2, np.float32)
    settings = {"sweeps": 6, "burn_in": 2, "seed": 5, "step": 3}
    one = expected_counts.gibbs_counts(topics, corpus, alpha, **settings)
    monkeypatch.setattr(expected_counts, "MIN_THREADED_SECONDS", 0.0)
    for threads in (2, 5):
        many = expected_counts.gibbs_counts(topics, corpus, alpha, **settings, threads=threads)
        for a, b in zip(one, many, strict=True):
            np.testing.assert_array_equal(a, b)
    rows = rng.permutation(300)[:40]
    part = expected_counts.gibbs_counts(topics, corpus[rows], alpha, **settings)
    np.testing.assert_array_equal(part.doc_topics, one.doc_topics[rows])


def test_batch_counts_are_sparse_and_sum_to_the_tokens():
    corpus = random_corpus(documents=3)
    topics = layout.word_major(np.full((4, 50), 0.02))
    words, counts, doc_topics, z = expected_counts.gibbs_counts(
        topics, corpus, np.ones(4), sweeps=3, burn_in=1, seed=0
    )
    np.testing.assert_array_equal(words, np.unique(corpus.words))
    assert counts.shape == (len(words), 4) and z.shape == (corpus.num_tokens,)
    np.testing.assert_allclose(counts.sum(1), corpus.to_csr().sum(0)[words], rtol=1e-6)
    np.testing.assert_allclose(doc_topics.sum(1), corpus.lengths, rtol=1e-6)


def test_padding_and_impossible_topics_are_never_drawn():
    topics = np.zeros((5, 6))
    topics[[0, 1, 2, 3, 4, 4], range(6)] = [1, 1, 1, 1, 0.5, 0.5]
    words = np.tile(np.arange(6), (5000, 1))
    z, _, _ = sweep(kernels, words, topics, np.full(5, 0.1), sweeps=3)
    np.testing.assert_array_equal(z, np.tile([0, 1, 2, 3, 4, 4], (5000, 1)))


def test_word_without_probability_in_any_topic_is_assigned_to_topic_0():
    z, _, _ = sweep(kernels, np.array([[0, 1]]), np.array([[1.0, 0.0]]), np.ones(1), sweeps=2)
    np.testing.assert_array_equal(z, [[0, 0]])


def test_fixed_point_satisfies_its_equation():
    corpus, topics = random_corpus(documents=20), np.random.default_rng(2).dirichlet(np.ones(50), 7)
    alpha = np.full(7, 0.3, np.float32)
    theta = expected_counts.fold_in_fixed_point(
        layout.word_major(topics), corpus, alpha, limit=2000, tolerance=1e-5
    ).theta
    g = theta * (corpus.lengths + alpha.sum())[:, None]
    for row, x in zip(g, corpus.to_csr().toarray(), strict=True):
        share = row[:, None] * topics / (row @ topics)
        np.testing.assert_allclose(alpha + share @ x, row, atol=2e-3)


def test_empty_document_gets_the_mean_of_the_prior():
    corpus, topics = as_corpus(np.zeros((2, 3), int)), layout.word_major(TOPICS)
    for theta in (
        expected_counts.fold_in(topics, corpus, ALPHA, sweeps=2, burn_in=1, seed=0).theta,
        expected_counts.fold_in_fixed_point(topics, corpus, ALPHA).theta,
    ):
        np.testing.assert_allclose(theta, np.tile(ALPHA / ALPHA.sum(), (2, 1)), rtol=1e-6)


def test_bad_arguments():
    corpus, topics = as_corpus([[1, 0, 2]]), layout.word_major(TOPICS)
    settings = {"sweeps": 2, "burn_in": 1, "seed": 0}
    with pytest.raises(
        ValueError, match="`burn_in` must be at least 0 and less than sweeps=2, got 2"
    ):
        expected_counts.gibbs_counts(topics, corpus, ALPHA, sweeps=2, burn_in=2, seed=0)
    with pytest.raises(ValueError, match="`topics` must be word-major"):
        expected_counts.gibbs_counts(TOPICS, corpus, ALPHA, **settings)
    with pytest.raises(ValueError, match="`threads` must be at least 1"):
        expected_counts.gibbs_counts(topics, corpus, ALPHA, **settings, threads=0)
    with pytest.raises(ValueError, match="one number per token, 3, got 2"):
        expected_counts.fold_in(
            topics, corpus, ALPHA, **settings, assignments=np.zeros(2, np.int32)
        )


PROGRAM = """
import numpy as np
from isotherm.topics.corpus import as_corpus
from isotherm.topics.gibbs import GibbsLDA
from isotherm.topics.expected_counts import gibbs_counts
from isotherm.topics.layout import word_major
corpus = as_corpus(np.random.default_rng(0).poisson(0.5, (300, 80)))
chain = GibbsLDA(corpus, 40)
chain.sweep(20)
counts = gibbs_counts(word_major(chain.topics()), corpus, chain.alpha, sweeps=20, burn_in=5, seed=0)
print(chain.assignments.tolist(), counts.assignments.tolist(), counts.counts.tolist())
"""


@pytest.mark.slow
def test_results_do_not_depend_on_the_vector_width_of_the_processor(tmp_path):
    """Compile for this machine and for a generic processor."""

    def run(**settings):
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(
            command, env=os.environ | settings, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    generic = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    assert run() == run(**generic, NUMBA_CACHE_DIR=str(tmp_path))
