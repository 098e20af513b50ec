"""Geweke's joint-distribution test: sweeps and new words leave the joint law invariant.

Chains start with a draw of all variables from the model, so they are in equilibrium, and alternate
"topics given words" (the kernel) and "words given topics" (NumPy). After any number of rounds their
law must still be that of the model. Chains are independent, so there is no autocorrelation;
Bonferroni over the observables. Power, measured over 20 seeds: each mutant is rejected with 20 of
20.
"""

import itertools

import numpy as np
import pytest
from gibbs_laws import (
    COLLAPSED_MUTANTS,
    FALSE_ALARM,
    MUTANTS,
    choices,
    mutant,
    sweep,
    sweep_collapsed,
    two_sample_p_value,
)

from isotherm.topics import kernels

TOPICS = np.array([[0.6, 0.2, 0.1, 0.1], [0.1, 0.1, 0.2, 0.6], [0.25, 0.25, 0.25, 0.25]])
ALPHA = np.array([0.4, 0.7, 0.2], np.float32)
LENGTH, BETA, STARTS = 6, 0.5, np.array([0, 4, 8, 12])


def observables(z, w, num_topics, num_words):
    """Counts of topics and of pairs (topic, word), with their squares."""
    n = (z[:, :, None] == np.arange(num_topics)).sum(1)
    pairs = (z * num_words + w)[:, :, None] == np.arange(num_topics * num_words)
    m = pairs.sum(1)
    return np.concatenate([n, n**2, m, m**2], axis=1).astype(float)


def semi_prior(rng, size):
    theta = rng.dirichlet(ALPHA, size)
    z = choices(rng, np.repeat(theta[:, None], LENGTH, 1))
    return z, choices(rng, TOPICS[z])


def semi_p_value(module, seed=0, rounds=4, chains=30_000):
    rng = np.random.default_rng(seed)
    z, w = semi_prior(rng, chains)
    for r in range(rounds):
        z = z.astype(np.int32)
        z, _, _ = sweep(module, w, TOPICS, ALPHA, sweeps=1, assignments=z, seed=seed, step=r)
        w = choices(rng, TOPICS[z])
    expected = observables(*semi_prior(rng, 200_000), 3, 4)
    return two_sample_p_value(observables(z, w, 3, 4), expected)


def words_given_topics(rng, z):
    phi = rng.dirichlet(np.full(3, BETA), (len(z), 2))
    return choices(rng, phi[np.arange(len(z))[:, None], z])


def collapsed_prior(rng, size):
    theta = rng.dirichlet(ALPHA[:2], (size, 3))
    z = choices(rng, np.repeat(theta, 4, axis=1))
    return z, words_given_topics(rng, z)


def collapsed_observables(z, w):
    """Observables of the whole corpus, and of each document."""
    parts = [observables(z, w, 2, 3)]
    parts += [observables(z[:, a:b], w[:, a:b], 2, 3) for a, b in itertools.pairwise(STARTS)]
    return np.concatenate(parts, axis=1)


def collapsed_p_value(module, seed=0, rounds=3, chains=15_000):
    rng = np.random.default_rng(seed)
    z, w = collapsed_prior(rng, chains)
    for r in range(rounds):
        z = sweep_collapsed(
            module, w, STARTS, 3, ALPHA[:2], BETA, sweeps=1, assignments=z, seed=1000 * seed + r
        )
        w = words_given_topics(rng, z)
    expected = collapsed_observables(*collapsed_prior(rng, 100_000))
    return two_sample_p_value(collapsed_observables(z, w), expected)


def test_semi_collapsed_sweeps_leave_the_joint_law_invariant():
    assert semi_p_value(kernels) > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_semi_collapsed_mutant_is_rejected(name):
    assert semi_p_value(mutant(name)) < FALSE_ALARM


def test_collapsed_sweeps_leave_the_joint_law_invariant():
    assert collapsed_p_value(kernels) > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLAPSED_MUTANTS)
def test_collapsed_mutant_is_rejected(name):
    assert collapsed_p_value(mutant(name)) < FALSE_ALARM
