"""ESS and R-hat agree with known values, and are NaN if undefined."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import lfilter

from isotherm.diagnostics.convergence import ess, rhat

KINDS = ("bulk", "tail", "mean", "sd")


def ar1(memory, shape=(4, 2000, 20), seed=0):
    noise = np.random.default_rng(seed).normal(size=shape)
    noise[:, 0] /= np.sqrt(1 - memory**2)  # start in equilibrium
    return lfilter([1], [1, -memory], noise, axis=1)


@pytest.mark.parametrize("memory", [-0.3, 0.0, 0.5, 0.9])
def test_ess_of_an_autoregression(memory):
    """Exact: n(1-a)/(1+a), the square's with a². Means of 20 coordinates: within 7 % on 5 seeds."""
    draws = ar1(memory)
    n = 4 * 2000
    for kind, a in (("bulk", memory), ("mean", memory), ("sd", memory**2)):
        assert ess(draws, kind).mean() == pytest.approx(n * (1 - a) / (1 + a), rel=0.12)


def test_shapes_follow_the_tree():
    draws = {"w": jnp.asarray(ar1(0.5, (2, 100, 6))).reshape(2, 100, 2, 3), "b": ar1(0, (2, 100))}
    for tree in (ess(draws), rhat(draws)):
        assert tree["w"].shape == (2, 3) and tree["b"].shape == ()
        assert tree["w"].dtype == np.float64
        assert np.isfinite(tree["w"]).all() and np.isfinite(tree["b"])


def test_ranks_are_invariant_under_monotone_maps():
    draws = ar1(0.5, (4, 500, 3))
    np.testing.assert_allclose(ess(np.exp(draws)), ess(draws))
    np.testing.assert_allclose(ess(3 * draws + 1, "mean"), ess(draws, "mean"))


def test_rhat_detects_chains_that_disagree():
    """Null: R-hat of 4 × 2000 independent draws is below 1.01 (largest of 1000: 1.0012)."""
    draws = ar1(0.0)
    assert rhat(draws).max() < 1.01
    shifted, scaled = draws.copy(), draws.copy()
    shifted[0] += 0.5
    scaled[0] *= 2
    assert rhat(shifted).min() > 1.01
    assert rhat(scaled).min() > 1.01  # same means: only the folded R-hat detects it


def test_a_single_chain():
    draws = ar1(0.0, (1, 2000, 5))
    assert np.all(ess(draws) > 1000)
    assert np.all(rhat(draws) < 1.01)
    drift = draws + np.linspace(0, 2, 2000)[None, :, None]
    assert np.all(rhat(drift) > 1.1)


def test_constant_chains_with_different_values():
    stuck = np.broadcast_to(np.arange(4.0)[:, None], (4, 50))
    assert rhat(stuck) > 1e3
    assert ess(stuck) < 5


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_undefined_coordinates_are_nan_and_the_others_unaffected(bad):
    draws = ar1(0.5, (4, 100, 4))
    draws[..., 1] = 3.0
    draws[2, 50, 2] = bad
    for statistic in (rhat, *(lambda x, k=k: ess(x, k) for k in KINDS)):
        result = statistic(draws)
        np.testing.assert_array_equal(np.isnan(result), [False, True, True, False])
        np.testing.assert_array_equal(result[[0, 3]], statistic(draws[..., [0, 3]]))


@pytest.mark.parametrize("num_chains", [1, 4])
@pytest.mark.parametrize("num_draws", [1, 2, 3])
def test_too_few_draws_are_nan(num_chains, num_draws):
    draws = ar1(0.0, (num_chains, num_draws, 2))
    assert np.isnan(rhat(draws)).all()
    for kind in KINDS:
        assert np.isnan(ess(draws, kind)).all()


def test_constant_and_empty_leaves():
    assert np.isnan(ess(np.ones((4, 10)))) and np.isnan(rhat(np.ones((1, 10))))
    assert ess(np.ones((4, 10, 0))).shape == (0,)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"leading axes \(chain, draw\), got shape \(3,\)"):
        ess(np.zeros(3))
    with pytest.raises(ValueError, match=r"leading axes \(chain, draw\), got shape \(3, 0\)"):
        rhat(np.zeros((3, 0)))
    with pytest.raises(
        ValueError, match="`kind` must be one of bulk, tail, mean, sd, got 'median'"
    ):
        ess(np.zeros((2, 10)), "median")  # type: ignore
    for complex_draws in (np.zeros((2, 10), complex), {"a": jnp.zeros((2, 10), jnp.complex64)}):
        for statistic in (ess, rhat):
            with pytest.raises(ValueError, match="`draws` must be real: pass the real and imag"):
                statistic(complex_draws)
