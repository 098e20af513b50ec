"""DSVI finds the best Gaussian where it is known: the posterior, its mean field, a 1-d integral.

Limits are about three times the largest error over 10 other seeds, given in the comments.
"""

import exact_posteriors as exact
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import isotherm
from isotherm.paper.baselines import gaussian
from isotherm.paper.baselines.dsvi import dsvi
from isotherm.paper.baselines.gaussian import GaussianApproximation, evidence_bound
from marks import slow

GRADIENT = exact.linear_regression()
BATCHES = isotherm.independent_batches((exact.X, exact.Y), 60)
ZERO = jnp.zeros(exact.DIMENSION)
SETTINGS = {"num_steps": 20_000, "draws_per_step": 4}  # the same in most tests: compiled once


def is_best(approximation, covariance):
    """Return whether mean and sds (and the covariance, if full) are within their limits."""
    mean, deviations, whitened = exact.errors(approximation, covariance)
    good = mean < 0.25 and deviations < 0.07  # 0.08 and 0.023
    return good and (covariance == "diagonal" or whitened < 0.25)  # 0.08


@pytest.mark.parametrize(
    "optimizer",
    [None, slow(optax.adam(optax.cosine_decay_schedule(0.05, 20_000)))],
    ids=["rm", "adam"],
)
def test_full_covariance_is_that_of_the_posterior(key, optimizer):
    q = dsvi(key, GRADIENT, ZERO, BATCHES, **SETTINGS, optimizer=optimizer)
    assert is_best(q, "full")
    assert q.mean.dtype == q.scale.dtype == q.elbo.dtype == jnp.float32
    np.testing.assert_array_equal(q.scale, np.tril(q.scale))
    bound = evidence_bound(key, GRADIENT, q, (exact.X, exact.Y), num_draws=4000)
    gap = exact.log_evidence() - bound.value
    assert -5 * bound.standard_error < gap < 0.1


@pytest.mark.slow
def test_diagonal_covariance_is_the_mean_field(key):
    q = dsvi(key, GRADIENT, ZERO, BATCHES, **SETTINGS, covariance="diagonal")
    assert is_best(q, "diagonal")
    # 49, 54, 18 and 19 % too small: the known effect of ignoring correlations.
    assert np.all(np.asarray(q.standard_deviations()) < 0.9 * exact.DEVIATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_mutant_without_the_entropy_is_caught(key, covariance, monkeypatch):
    """Without the entropy term of the bound the Gaussian collapses to the mode."""
    monkeypatch.setattr(gaussian, "log_volume", lambda factor: jnp.zeros((), factor.dtype))
    q = dsvi(
        key,
        exact.linear_regression(),
        ZERO,
        BATCHES,
        num_steps=4000,
        covariance=covariance,
        draws_per_step=4,
        scale=exact.MEAN_FIELD,
    )
    assert not is_best(q, covariance)
    assert np.all(np.asarray(q.standard_deviations()) < 0.5 * exact.MEAN_FIELD)


@pytest.mark.slow
def test_logistic_regression_matches_quadrature(key):
    grad_fn, data = exact.logistic_regression(), (exact.A, exact.B)
    q = dsvi(key, grad_fn, jnp.zeros(1), isotherm.full_batch(data), num_steps=20_000)
    mean, deviation, best, evidence = exact.best_logistic()
    assert abs(q.mean[0] - mean) < 0.03  # 0.011
    assert abs(q.standard_deviations()[0] / deviation - 1) < 0.04  # 0.014
    # The result is within 0.003 nats of the best, by quadrature and by our own estimate.
    reached = exact.logistic_bound(float(q.mean[0]), float(q.scale[0, 0]))
    assert best - 0.003 < reached <= best < evidence
    estimate = evidence_bound(key, grad_fn, q, data, num_draws=20_000)
    assert abs(estimate.value - reached) < 5 * estimate.standard_error
    # The trace rises and ends at the bound: its mean over many steps is an estimate too.
    tail = np.asarray(q.elbo[-5000:], np.float64)
    assert q.elbo[:3].mean() < tail.mean() - 0.5
    assert abs(tail.mean() - best) < 0.1


@pytest.mark.slow
def test_a_tree_gives_the_same_result_as_a_flat_array(key):
    def unflatten(tree):
        return jnp.concatenate([tree["a"], tree["b"][None], tree["c"].ravel()])

    tree = {"a": jnp.zeros(2), "b": jnp.zeros(()), "c": jnp.zeros((1, 1))}
    flat = dsvi(key, GRADIENT, ZERO, BATCHES, **SETTINGS)
    q = dsvi(key, exact.linear_regression(unflatten), tree, BATCHES, **SETTINGS)
    np.testing.assert_allclose(unflatten(q.mean), flat.mean, rtol=1e-3)
    np.testing.assert_allclose(
        unflatten(q.standard_deviations()), flat.standard_deviations(), rtol=1e-3
    )
    draws = q.sample(key, 7)
    assert {name: leaf.shape for name, leaf in draws.items()} == {
        "a": (1, 7, 2),
        "b": (1, 7),
        "c": (1, 7, 1, 1),
    }


@pytest.mark.slow
def test_half_precision_is_kept(key):
    position = {"w": jnp.zeros(exact.DIMENSION, jnp.bfloat16)}
    grad_fn = exact.linear_regression(lambda tree: tree["w"].astype(jnp.float32))
    q = dsvi(key, grad_fn, position, BATCHES, num_steps=20)
    assert q.mean["w"].dtype == q.sample(key, 3)["w"].dtype == jnp.bfloat16
    assert q.scale.dtype == jnp.float32


@pytest.mark.slow
def test_seeds_and_step_sizes_vectorise(key):
    def fit(key, step_size):
        return dsvi(key, GRADIENT, ZERO, BATCHES, step_size=step_size, **SETTINGS)

    qs = jax.vmap(fit)(jax.random.split(key, 3), jnp.array([0.1, 0.2, 0.5]))
    assert qs.mean.shape == (3, exact.DIMENSION)
    one = fit(jax.random.split(key, 3)[1], 0.2)
    np.testing.assert_allclose(qs.mean[1], one.mean, rtol=1e-3)


@pytest.mark.slow
def test_invariance_to_the_units_of_features(key):
    """Scaling a feature by a power of two scales its coefficient and changes nothing else."""
    units = np.array([1.0, 64.0, 0.25, 1024.0], np.float32)
    prior = jnp.asarray(np.diag(exact.PRIOR) * units.astype(np.float64) ** 2, jnp.float32)
    scaled = isotherm.minibatch_gradient(
        GRADIENT.log_likelihood, lambda w: -0.5 * jnp.sum(prior * w**2), exact.SIZE
    )
    batches = isotherm.independent_batches((exact.X * units, exact.Y), 60)
    plain = dsvi(key, GRADIENT, ZERO, BATCHES, **SETTINGS)
    other = dsvi(key, scaled, ZERO, batches, **SETTINGS)
    np.testing.assert_allclose(other.mean * units, plain.mean, atol=0.05 * exact.DEVIATIONS.min())
    np.testing.assert_allclose(
        other.standard_deviations() * units, plain.standard_deviations(), rtol=0.02
    )


def test_draws_have_the_moments_of_the_gaussian(key):
    scale = jnp.array([[2.0, 0.0], [-1.0, 0.5]])
    q = GaussianApproximation(jnp.array([1.0, -1.0]), scale, jnp.zeros(1))
    draws = np.asarray(q.sample(key, 100_000)[0], np.float64)
    np.testing.assert_allclose(draws.mean(0), q.mean, atol=0.03)
    np.testing.assert_allclose(np.cov(draws.T), scale @ scale.T, atol=0.08)
    np.testing.assert_allclose(q.covariance, scale @ scale.T, rtol=1e-6)
    np.testing.assert_allclose(q.standard_deviations() ** 2, np.diag(q.covariance), rtol=1e-6)
    gauss = 0.5 * np.linalg.slogdet(2 * np.pi * np.e * np.asarray(scale @ scale.T))[1]
    assert q.entropy() == pytest.approx(gauss, rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"covariance": "banded"}, "`covariance` must be 'full' or 'diagonal', got 'banded'"),
        ({"num_steps": 0}, "`num_steps` must be at least 1, got 0"),
        ({"draws_per_step": 0}, "`draws_per_step` must be at least 1"),
        ({"step_size": -0.1}, "`step_size` must be positive, got -0.1"),
        ({"factor_rate": 0.0}, "`factor_rate` must be positive"),
        ({"average": 1.0}, "`average` must be at least 0 and below 1, got 1.0"),
        ({"scale": "large"}, "`scale` must be 'per-coordinate', 'uniform', a number"),
        ({"scale": -1.0}, "`scale` must be positive"),
        ({"scale": jnp.ones(3)}, r"`scale` must be one number or have the shapes"),
    ],
)
def test_bad_settings_raise(key, settings, message):
    with pytest.raises(ValueError, match=message):
        dsvi(key, GRADIENT, ZERO, BATCHES, **settings)


@pytest.mark.slow
def test_bad_targets_and_divergence_raise(key):
    with pytest.raises(ValueError, match=r"`grad_fn` must come from `isotherm.minibatch_gradient`"):
        dsvi(key, lambda w, batch: -w, ZERO, BATCHES)
    with pytest.raises(ValueError, match="leaf 'position' has dtype int32"):
        dsvi(key, GRADIENT, jnp.zeros(4, jnp.int32), BATCHES)
    with pytest.raises(FloatingPointError, match=r"DSVI diverged \(the bound is not finite from"):
        dsvi(
            key,
            GRADIENT,
            ZERO,
            BATCHES,
            num_steps=2000,
            scale=exact.DEVIATIONS,
            step_size=lambda t: 100.0,
        )
