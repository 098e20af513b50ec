"""TLASGR has the law of its recursion, close to the posterior; two mutants are rejected."""

import numpy as np
import pytest

from isotherm.topics.corpus import as_corpus
from isotherm.topics.lda import LDAChain
from isotherm.topics.tlasgr import TLASGR, euler_step

SHAPE = np.array([40.0, 60.0, 90.0, 210.0], np.float32)
H, STEPS, CHAINS = 0.3, 25, 40_000


def scores(step, mass=400.0):
    """Return the largest z-score of mean and variance of independent topics, and the variance.

    For m = a/M the recursion is x' = x + h (m - x) + noise of covariance (2h/M)(diag x - x xᵀ): the
    mean is always m, and the variance satisfies v' = (1 - h)² v + (2h/M)(m (1 - m) - v).
    """
    rng, mean = np.random.default_rng(0), SHAPE.astype(float) / SHAPE.sum()
    x = np.repeat(mean[:, None].astype(np.float32), CHAINS, 1)
    shape, time = np.repeat(SHAPE[:, None], CHAINS, 1), np.full(CHAINS, H / mass, np.float32)
    variance = np.zeros(4)
    for _ in range(STEPS):
        x = step(rng, x, shape, time)
        variance = (1 - H) ** 2 * variance + 2 * H / mass * (mean * (1 - mean) - variance)
    z_mean = (x.mean(1) - mean) / np.sqrt(variance / CHAINS)
    z_variance = (x.var(1) / variance - 1) / np.sqrt(2 / CHAINS)
    return np.abs(np.concatenate([z_mean, z_variance])).max(), variance


def test_mean_and_variance_agree_with_the_recursion():
    """Eight z-scores below 5: one false alarm in 2e5 seeds."""
    largest, variance = scores(euler_step)
    assert largest < 5
    mean, total = SHAPE / SHAPE.sum(), SHAPE.sum()
    dirichlet = mean * (1 - mean) / (total + 1)
    np.testing.assert_allclose(
        variance, dirichlet * (total + 1) / (total * (1 - H / 2) + 1), rtol=1e-3
    )


def too_hot(rng, position, shape, time):
    moved = euler_step(rng, position, shape, time)
    steady = position + time * (shape - shape.sum(0) * position)
    return steady + np.float32(1.1**0.5) * (moved - steady)


def unprojected(rng, position, shape, time):
    noise = rng.standard_normal(position.shape, position.dtype) * np.sqrt(2 * time * position)
    return position + time * (shape - shape.sum(0) * position) + noise


@pytest.mark.parametrize("mutant", [too_hot, unprojected])
def test_mutant_is_rejected(mutant):
    assert scores(mutant)[0] > 10


def test_rare_and_common_topics_converge_at_the_same_rate():
    """Both cover the same fraction of the distance to the topics of the counts."""
    counts = np.array([[9e5, 90.0], [1e5, 10.0]], np.float32)
    update, ends = TLASGR(0.2, prior=1e-6), []
    for seed in range(200):
        state = update.init(seed, (2, 2), np.ones((2, 2)))
        for _ in range(3):
            state = update.finish_step(seed, update.begin_step(seed, state), counts, 1.0)
        np.testing.assert_allclose(state.mass, counts.sum(0), rtol=1e-5)
        ends.append(state.position[0])
    np.testing.assert_allclose(np.mean(ends, 0), 0.9 - 0.4 * 0.8**3, atol=0.015)


def test_chain_resumes_bit_for_bit_and_finds_topics():
    rng = np.random.default_rng(0)
    blocks = np.kron(np.eye(2), np.ones((30, 5))) * 2
    corpus = as_corpus(rng.poisson(blocks))
    whole, first = (LDAChain(TLASGR(0.1), 2, 10, data_size=60) for _ in range(2))
    whole.advance(corpus, 40, 20)
    first.advance(corpus, 15, 20)
    second = LDAChain(TLASGR(0.1), 2, 10, data_size=60)
    second.load_state_dict(first.state_dict())
    second.advance(corpus, 25, 20)
    np.testing.assert_array_equal(second.topics(), whole.topics())
    assert sorted(whole.topics()[:, :5].sum(1).round()) == [0, 1]
    np.testing.assert_allclose(whole.topics().sum(1), 1, rtol=1e-5)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="prior"):
        TLASGR(0.1, prior=0)
    with pytest.raises(ValueError, match="step_size"):
        TLASGR(-0.1)
