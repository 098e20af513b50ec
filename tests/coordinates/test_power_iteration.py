"""Power iteration finds the largest eigenvalue, compiled and in Python, for arrays and trees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isotherm.coordinates.power_iteration import largest_eigenvalue

ROOT = np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)
MATRIX = ROOT @ ROOT.T


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
def test_it_finds_the_largest_absolute_eigenvalue(compiled, sign):
    value = largest_eigenvalue(lambda v: sign * MATRIX @ v, jnp.ones(5), 60, compiled=compiled)
    assert float(value) == pytest.approx(np.linalg.eigvalsh(MATRIX)[-1], rel=1e-4)


def test_trees_are_treated_as_one_vector():
    def times(tree):
        flat = MATRIX @ jnp.concatenate([tree["a"], tree["b"].ravel()])
        return {"a": flat[:1], "b": flat[1:].reshape(2, 2)}

    start = {"a": jnp.ones(1), "b": jnp.ones((2, 2))}
    value = jax.jit(lambda s: largest_eigenvalue(times, s, 60))(start)
    assert float(value) == pytest.approx(np.linalg.eigvalsh(MATRIX)[-1], rel=1e-4)


def test_python_loops_accept_functions_that_cannot_be_traced():
    value = largest_eigenvalue(lambda v: MATRIX @ np.asarray(v), np.ones(5), 60, compiled=False)
    assert float(value) == pytest.approx(np.linalg.eigvalsh(MATRIX)[-1], rel=1e-4)
