"""Transforms invert, satisfy their constraints, and have the Jacobians that JAX computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import dblquad

from isotherm.models import Constraints, Interval, Ordered, Positive, Real, Simplex

Z = np.random.default_rng(1).normal(size=(2, 4))
ALL = [Real(), Positive(), Interval(-2.0, 0.5), Ordered(), Simplex()]


@pytest.mark.parametrize("transform", ALL, ids=lambda t: type(t).__name__)
def test_inverse_and_jacobian(transform):
    with jax.enable_x64(True):
        z = jnp.asarray(Z)
        x = transform.constrain(z)
        np.testing.assert_allclose(transform.unconstrain(x), z, rtol=1e-10, atol=1e-12)

        def free(row):  # the last piece of a simplex follows from the others
            return transform.constrain(row)[: len(row)]

        exact = sum(np.linalg.slogdet(jax.jacfwd(free)(row))[1] for row in z)
        assert float(transform.log_jacobian(z)) == pytest.approx(exact, abs=1e-10)
        # The mutant: a Jacobian at another point.
        if not isinstance(transform, Real):
            assert abs(float(transform.log_jacobian(z + 0.1)) - exact) > 1e-3


def test_constraints_hold_far_from_zero():
    z = jnp.asarray(20 * Z, jnp.float32)
    assert np.all(np.asarray(Positive().constrain(z)) > 0)
    simplex = np.asarray(Simplex().constrain(z))
    assert simplex.shape == (2, 5) and np.all(simplex >= 0)
    np.testing.assert_allclose(simplex.sum(-1), 1, atol=1e-6)
    assert np.isfinite(Simplex().log_jacobian(10 * z))
    assert np.all(np.diff(np.asarray(Ordered().constrain(z)), axis=-1) >= 0)
    inside = np.asarray(Interval(-2.0, 0.5).constrain(z))
    assert inside.min() >= -2 and inside.max() <= 0.5


def test_a_dirichlet_distribution_integrates_to_one_over_unconstrained_numbers():
    alpha = np.array([1.5, 2.0, 3.0])
    constraints = Constraints("simplex")

    def log_density(x):
        return jnp.sum(jnp.asarray(alpha - 1) * jnp.log(x))

    with jax.enable_x64(True):
        log_prior = jax.jit(constraints.log_prior(log_density))
        constant = stats.dirichlet.logpdf([0.2, 0.3, 0.5], alpha) - np.sum(
            (alpha - 1) * np.log([0.2, 0.3, 0.5])
        )
        grid = np.linspace(-14, 14, 561)
        points = jnp.asarray(np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2))
        total = np.exp(np.asarray(jax.vmap(log_prior)(points)) + constant).sum() * 0.05**2
        assert total == pytest.approx(1, abs=1e-6)
        # The mutant: without the Jacobian.
        mutant = jax.vmap(lambda z: log_density(constraints.constrain(z)))(points)
        assert abs(np.exp(np.asarray(mutant) + constant).sum() * 0.05**2 - 1) > 0.1


@pytest.mark.slow
def test_order_statistics_integrate_to_one():
    """Two ordered normals have twice the density of two normals."""

    def density(second, first):
        x = np.array([first, first + np.exp(second)])
        return 2 * np.prod(stats.norm.pdf(x)) * np.exp(second)

    assert dblquad(density, -8, 8, -18, 4)[0] == pytest.approx(1, abs=1e-6)
    z = jnp.array([0.3, -0.2])
    x = Ordered().constrain(z)
    log_prior = Constraints(Ordered()).log_prior(lambda x: jnp.sum(jax.scipy.stats.norm.logpdf(x)))
    assert float(log_prior(z)) == pytest.approx(np.log(density(-0.2, 0.3) / 2), rel=1e-5)
    assert x[1] > x[0]


def test_transforms_of_a_pytree_by_leaf_and_by_subtree():
    constraints = Constraints({"noise": "positive", "net": "real", "mix": (Simplex(), "ordered")})
    position = {
        "noise": jnp.array(0.5),
        "net": {"w": jnp.ones((2, 2)), "b": jnp.zeros(2)},
        "mix": (jnp.zeros(2), jnp.zeros(3)),
    }
    values = constraints.constrain(position)
    assert float(values["noise"]) == pytest.approx(np.exp(0.5))
    assert values["net"]["w"] is position["net"]["w"] and values["mix"][0].shape == (3,)
    back = constraints.unconstrain(values)
    for one, other in zip(jax.tree.leaves(position), jax.tree.leaves(back), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    parts = 0.5 + float(Simplex().log_jacobian(jnp.zeros(2)))
    assert float(constraints.log_jacobian(position)) == pytest.approx(parts, rel=1e-5)


def test_bad_transforms_are_refused():
    with pytest.raises(ValueError, match=r"names of \('real', 'positive', 'ordered', 'simplex'\)"):
        Constraints({"noise": "postive"})
    with pytest.raises(ValueError, match="`low` must be below `high`"):
        Interval(1.0, 1.0)
