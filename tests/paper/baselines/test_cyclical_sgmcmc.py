"""Cyclical SG-MCMC: its law on Gaussian targets, its stages, and several modes."""

import jax.numpy as jnp
import numpy as np
import pytest

import isotherm
from isotherm.paper.baselines.cyclical_sgmcmc import cyclical_sgmcmc
from isotherm.references.conjugate import linear_posterior
from marks import slow

PRECISION = jnp.array([1.0, 4.0])


def gaussian(position, batch):
    del batch
    return -PRECISION * (position - 1)


@pytest.mark.parametrize("sampler", ["sghmc", slow("sgld")])
def test_the_sampling_stage_has_the_moments_of_the_target(key, sampler):
    """Steps are short at the end of a cycle, so that the bias there is small."""
    fit = cyclical_sgmcmc(
        key,
        gaussian,
        jnp.zeros(2),
        isotherm.no_batches(),
        learning_rate=0.08,
        num_cycles=5,
        steps_per_cycle=1000,
        draws_per_cycle=20,
        exploration=0.2,
        sampler=sampler,
        num_chains=200,
    )
    draws = fit.draws.reshape(200, 5, 20, 2)
    assert fit.draws.shape == (200, 100, 2)
    middle = draws[:, :, 12].reshape(-1, 2)  # after 700 of 1000 steps
    sd = np.asarray(PRECISION) ** -0.5
    np.testing.assert_allclose(middle.mean(0), 1, atol=0.15)
    np.testing.assert_allclose(middle.std(0), sd, rtol=0.12)


def test_exploration_has_no_noise(key):
    """Without a sampling stage chains end in the mode; draws right after it are still near."""
    settings = {"learning_rate": 0.1, "steps_per_cycle": 1000, "draws_per_cycle": 100}
    fit = cyclical_sgmcmc(
        key,
        gaussian,
        jnp.zeros(2),
        isotherm.no_batches(),
        num_cycles=2,
        exploration=0.9,
        sampler="sgld",
        num_chains=100,
        **settings,
    )
    draws = fit.draws.reshape(100, 2, 100, 2)
    # One step of SGLD from the mode: variance 2 h with h = 0.1 (1 + cos(0.9 pi)) / 2.
    variance = 0.1 * (1 + np.cos(0.9 * np.pi))
    first = draws[:, :, 0].reshape(-1, 2)
    np.testing.assert_allclose(first.var(0), variance, rtol=0.35)
    assert np.abs(first - 1).max() < 6 * variance**0.5


def test_cycles_visit_both_modes(key):
    """The log density -(x^2 - 4)^2: a barrier of 16 that a chain at constant step never crosses."""
    fit = cyclical_sgmcmc(
        key,
        lambda x, batch: -4 * x * (x**2 - 4),
        jnp.array(2.0),
        isotherm.no_batches(),
        learning_rate=0.11,
        num_cycles=40,
        steps_per_cycle=200,
        draws_per_cycle=2,
        exploration=0.5,
        sampler="sgld",
    )
    right = np.mean(fit.draws > 0)
    assert 0.2 < right < 0.8
    np.testing.assert_allclose(np.abs(fit.draws), 2, atol=1.2)


@pytest.mark.slow
def test_linear_regression_with_minibatches(key):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(100, 2)).astype(np.float32)
    y = (x @ np.array([1.0, -1.0]) + 0.5 * rng.normal(size=100)).astype(np.float32)
    exact = linear_posterior(x, y, 1.0, 0.25)
    grad_fn = isotherm.minibatch_gradient(
        lambda w, rows: -2 * (rows[1] - rows[0] @ w) ** 2, lambda w: -0.5 * jnp.sum(w**2), 100
    )
    fit = cyclical_sgmcmc(
        key,
        grad_fn,
        jnp.zeros(2),
        isotherm.shuffled_batches((x, y), 50),
        learning_rate=2e-4,
        num_cycles=4,
        steps_per_cycle=1000,
        draws_per_cycle=50,
        exploration=0.4,
        friction=20.0,
        num_chains=20,
    )
    draws = fit.draws.reshape(-1, 2)
    np.testing.assert_allclose(draws.mean(0), exact.mean, atol=0.25 * exact.sd.max())
    np.testing.assert_allclose(draws.std(0), exact.sd, rtol=0.15)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 0.0}, "`learning_rate` must be positive"),
        ({"exploration": 1.0}, "`exploration` must be at least 0 and below 1, got 1.0"),
        ({"sampler": "hmc"}, "`sampler` must be 'sghmc' or 'sgld', got 'hmc'"),
        ({"steps_per_cycle": 20}, "`steps_per_cycle` must leave 10 steps for sampling, got 20"),
        ({"num_cycles": 0}, "`num_cycles` must be at least 1"),
    ],
)
def test_bad_settings_raise(key, settings, message):
    given = {"learning_rate": 0.1, "steps_per_cycle": 100} | settings
    with pytest.raises(ValueError, match=message):
        cyclical_sgmcmc(key, gaussian, jnp.zeros(2), isotherm.no_batches(), **given)
