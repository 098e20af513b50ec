"""Full-data HMC has the exact posterior of a linear model with learned noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isotherm.models import Gaussian, HalfCauchy, NormalPrior, mlp
from isotherm.paper.baselines.full_hmc import full_hmc
from isotherm.references.conjugate import linear_posterior_half_cauchy
from marks import slow

RNG = np.random.default_rng(5)
X = RNG.normal(size=(40, 2)).astype(np.float32)
Y = (X @ np.array([1.0, -0.5]) + 0.4 * RNG.normal(size=40)).astype(np.float32)
NETWORK = mlp((2, 1), likelihood=Gaussian(HalfCauchy(1.0)), prior=NormalPrior(1.0, None))


@pytest.fixture(scope="module")
def starts():
    return jax.vmap(NETWORK.init)(jax.random.split(jax.random.key(1), 20))


@pytest.mark.parametrize("step_size", [slow(1e-3), 0.5])
def test_linear_regression(key, starts, step_size):
    """From steps that are far too short or too long: the step size adapts."""
    run = full_hmc(
        key,
        NETWORK,
        starts,
        (X, Y),
        num_draws=200,
        burn_in=120,
        num_leapfrog=10,
        step_size=step_size,
        rounds=30,
    )
    assert 0.65 < run.accepted < 0.95
    exact = linear_posterior_half_cauchy(np.c_[X, np.ones(40)], Y, 1.0)
    draws = run.fitted.draws
    (layer,) = draws["network"]
    found = np.concatenate([layer.weights[..., 0], layer.bias], axis=-1).reshape(-1, 3)
    assert len(found) == 4000
    np.testing.assert_allclose(found.mean(0), exact.mean, atol=0.15 * exact.sd.max())
    np.testing.assert_allclose(found.std(0), exact.sd, rtol=0.1)
    noise = np.exp(2 * np.asarray(draws["shared"])).ravel()
    np.testing.assert_allclose(noise.mean(), exact.noise_mean, atol=0.15 * exact.noise_sd)
    np.testing.assert_allclose(noise.std(), exact.noise_sd, rtol=0.15)
    assert run.fitted.sample(key, 7)["shared"].shape == (1, 7, 1)
    assert jnp.isfinite(found).all()


def test_bad_settings_raise(key, starts):
    given = {"num_draws": 5, "burn_in": 5, "num_leapfrog": 3}
    for name in given:
        with pytest.raises(ValueError, match=f"`{name}` must be at least 1"):
            full_hmc(key, NETWORK, starts, (X, Y), **(given | {name: 0}))
    with pytest.raises(ValueError, match="`step_size` must be positive"):
        full_hmc(key, NETWORK, starts, (X, Y), step_size=0.0, **given)
