"""A corpus that is small enough to enumerate, with its exact gradient and posterior."""

from itertools import product

import numpy as np
from scipy.special import gammaln, softmax

from isotherm.topics.corpus import as_corpus

CORPUS = as_corpus([[2, 1, 0], [0, 1, 2], [1, 0, 3], [3, 0, 0]])
ALPHA = np.array([0.4, 0.8])
MEAN, VARIANCE = 0.1, 1.0


def states(document, alpha=ALPHA):
    """Counts (states, topics, words) and log p(z | alpha) of all assignments of a document."""
    words = CORPUS[[document]].tokens()
    z = np.array(list(product(range(len(alpha)), repeat=len(words))))
    n = np.zeros((len(z), len(alpha), CORPUS.num_words))
    for i, word in enumerate(words):
        n[np.arange(len(z)), z[:, i], word] += 1
    return n, gammaln(alpha + n.sum(2)).sum(1) - gammaln(alpha).sum()


def expected_counts(topics):
    """Sum over documents of E[n | w], (topics, words), by enumeration."""
    total = 0
    for document in range(len(CORPUS)):
        n, prior = states(document)
        weight = softmax(prior + (n * np.log(topics)).sum((1, 2)))
        total = total + np.tensordot(weight, n, 1)
    return total


def log_likelihood(theta):
    """Log p(w | theta) up to a constant, for positions (draws, topics, words)."""
    log_topics = theta - np.logaddexp.reduce(theta, axis=2, keepdims=True)
    total = 0
    for document in range(len(CORPUS)):
        n, prior = states(document)
        total = total + np.logaddexp.reduce(
            prior + np.tensordot(log_topics, n, ((1, 2), (1, 2))), axis=1
        )
    return total


def gradient(theta):
    """Gradient of the log posterior of expanded-natural topics."""
    topics = softmax(theta, axis=1)
    n = expected_counts(topics)
    return (MEAN - theta) / VARIANCE + n - topics * n.sum(1, keepdims=True)


def posterior_moments(num_draws=400_000, seed=0):
    """Posterior means of topics and of their squares, by importance sampling from the prior."""
    rng = np.random.default_rng(seed)
    theta = MEAN + VARIANCE**0.5 * rng.standard_normal((num_draws, 2, 3))
    weight, topics = softmax(log_likelihood(theta)), softmax(theta, axis=2)
    assert 1 / (weight**2).sum() > 20_000, "too few effective draws"
    return np.tensordot(weight, topics, 1), np.tensordot(weight, topics**2, 1)
