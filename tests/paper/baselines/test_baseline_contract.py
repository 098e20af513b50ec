"""Every baseline for networks has the same interface and fits a problem that is not linear."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isotherm
from isotherm.diagnostics.calibration import classifier_scores
from isotherm.diagnostics.predictions import posterior_predictive
from isotherm.models.networks import mlp
from isotherm.paper.baselines.bayes_by_backprop import bayes_by_backprop, scale_mixture
from isotherm.paper.baselines.cyclical_sgmcmc import cyclical_sgmcmc
from isotherm.paper.baselines.deep_ensemble import deep_ensemble
from isotherm.paper.baselines.ivon import ivon
from isotherm.paper.baselines.kfac_laplace import kfac_laplace
from isotherm.paper.baselines.laplace import laplace
from isotherm.paper.baselines.mc_dropout import mc_dropout
from isotherm.paper.baselines.sgd import sgd
from isotherm.paper.baselines.swag import swag
from isotherm.paper.baselines.training import draw_outputs

RNG = np.random.default_rng(1)
SIZE = 300
X = RNG.normal(size=(2 * SIZE, 2)).astype(np.float32)
Y = (np.hypot(*X.T) > 1.2).astype(np.int32)  # a disc: not linearly separable
DATA, TEST = (X[:SIZE], Y[:SIZE]), (X[SIZE:], Y[SIZE:])
NETWORK = mlp((2, 20, 2))
BATCHES = isotherm.shuffled_batches(DATA, 50)
GRADIENT = NETWORK.gradient(SIZE)


def fit_sgd(key):
    return sgd(key, GRADIENT, NETWORK.init(key), BATCHES, num_steps=600)


def fit_bayes_by_backprop(key):
    grad_fn = isotherm.minibatch_gradient(NETWORK.log_likelihood, scale_mixture(), SIZE)
    return bayes_by_backprop(
        key, grad_fn, NETWORK.init(key), BATCHES, num_steps=2000, step_size=0.01
    )


def fit_mc_dropout(key):
    return mc_dropout(
        key, GRADIENT, NETWORK.init(key), BATCHES, num_steps=1500, rates=0.1, step_size=0.1
    )


def fit_deep_ensemble(key):
    return deep_ensemble(key, GRADIENT, NETWORK.init, BATCHES, num_steps=600, num_members=3)


def fit_laplace(key):
    return laplace(key, NETWORK, fit_sgd(key).position, DATA)


def fit_swag(key):
    start = fit_sgd(key).position
    return swag(key, GRADIENT, start, BATCHES, num_steps=600, step_size=0.1)


def fit_ivon(key):
    return ivon(key, GRADIENT, NETWORK.init(key), BATCHES, num_steps=1500, beta2=0.999)


def fit_kfac_laplace(key):
    return kfac_laplace(key, NETWORK, fit_sgd(key).position, DATA)


def fit_cyclical(key):
    return cyclical_sgmcmc(
        key,
        GRADIENT,
        NETWORK.init(key),
        BATCHES,
        learning_rate=1e-3,
        steps_per_cycle=500,
        friction=5.0,
    )


FITS = [
    fit_sgd,
    fit_bayes_by_backprop,
    fit_mc_dropout,
    fit_deep_ensemble,
    fit_laplace,
    fit_swag,
    fit_ivon,
    fit_kfac_laplace,
    fit_cyclical,
]


@pytest.mark.slow
@pytest.mark.parametrize("fit", FITS)
def test_draws_predict(key, fit):
    """Draws have the right shapes, are reproducible, and predict a disc."""
    fitted = fit(key)
    start, draws = NETWORK.init(key), fitted.sample(key, 9)
    assert jax.tree.structure(draws) == jax.tree.structure(start)
    for leaf, like in zip(jax.tree.leaves(draws), jax.tree.leaves(start), strict=True):
        assert leaf.shape == (1, 9, *like.shape) and leaf.dtype == like.dtype
        assert bool(jnp.all(jnp.isfinite(leaf)))
    jax.tree.map(np.testing.assert_array_equal, fitted.sample(key, 9), draws)
    outputs = draw_outputs(fitted, NETWORK, key, TEST[0], 9)
    assert outputs.shape == (9, SIZE, 2)
    p = np.asarray(NETWORK.output_likelihood.predict(outputs), np.float64)
    entropy = -np.sum(p * np.log(np.maximum(p, 1e-30)), axis=-1).mean(0)
    scores = classifier_scores(p.mean(0), TEST[1], entropy)
    assert scores["accuracy"] > 0.85 and scores["nll"] < 0.4
    assert (scores["epistemic"] > 1e-4) == (fit is not fit_sgd)
    if not hasattr(fitted, "outputs"):
        mean = posterior_predictive(NETWORK.predict, draws, TEST[0])
        np.testing.assert_allclose(mean, p.mean(0), atol=1e-5)
    with pytest.raises(ValueError, match="`num_draws` must be at least 1, got 0"):
        fitted.sample(key, 0)
