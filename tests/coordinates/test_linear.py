"""Linear coordinates: `pull` is the transpose of `push`, and bases whiten the curvature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isotherm.coordinates.linear import (
    Dense,
    Diagonal,
    Identity,
    LowRank,
    diagonal,
    eigenbasis,
    low_rank,
)

POSITION = {"a": jnp.arange(2.0), "b": jnp.ones((2, 1))}
ROOT = np.random.default_rng(1).normal(size=(4, 4))
CURVATURE = ROOT @ ROOT.T + 0.1 * np.eye(4)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@pytest.mark.parametrize(
    "space",
    [
        Identity(),
        Diagonal({"a": jnp.array([2.0, 3.0]), "b": jnp.array([[0.5], [0.1]])}),
        Dense(jnp.asarray(ROOT, jnp.float32), POSITION),
        LowRank(jnp.asarray(ROOT[:, :2], jnp.float32), jnp.array([0.5, 0.9])),
    ],
    ids=lambda space: type(space).__name__,
)
def test_pull_is_the_transpose_of_push(key, space):
    direction = jax.tree.map(
        lambda x: jax.random.normal(key, x.shape), space.momentum_like(POSITION)
    )
    grads = jax.tree.map(lambda x: jax.random.normal(key, x.shape) + 1, POSITION)
    one = flat(space.push(direction)) @ flat(grads)
    other = flat(direction) @ flat(space.pull(grads))
    assert one == pytest.approx(other, rel=1e-5)
    assert jax.tree.structure(space.push(direction)) == jax.tree.structure(POSITION)


def test_the_eigenbasis_whitens_the_curvature_and_has_orthogonal_axes():
    basis = np.asarray(eigenbasis(CURVATURE, POSITION).basis)
    np.testing.assert_allclose(basis.T @ CURVATURE @ basis, np.eye(4), atol=1e-4)
    gram = basis.T @ basis
    np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-4)


def test_diagonal_scales_by_the_root_of_the_curvature():
    space = diagonal({"a": jnp.array([4.0, 9.0]), "b": jnp.full((2, 1), 25.0)})
    np.testing.assert_allclose(flat(space.scale), [0.5, 1 / 3, 0.2, 0.2], rtol=1e-6)


def test_directions_without_curvature_are_bounded():
    basis = eigenbasis(np.diag([1.0, 0.0, -0.5, 4.0]), POSITION, floor=0.01).basis
    lengths = np.sort(np.linalg.norm(basis, axis=0))
    np.testing.assert_allclose(lengths, [0.5, 1, 5, 5], rtol=1e-5)


@pytest.mark.parametrize("rows", [3, 9])
def test_low_rank_coordinates_make_the_stiffest_directions_as_stiff_as_the_next(rows):
    factor = np.random.default_rng(2).normal(size=(rows, 6)) * np.geomspace(30, 1, 6)
    curvature = np.eye(6) + factor.T @ factor
    space = low_rank(factor, 2)
    root = np.asarray(jax.vmap(space.push)(jnp.eye(6)))
    before, after = np.linalg.eigvalsh(curvature), np.linalg.eigvalsh(root @ curvature @ root)
    np.testing.assert_allclose(after[-3:], before[-3], rtol=1e-3)
    np.testing.assert_allclose(after[:3], before[:3], rtol=1e-3)


def test_low_rank_coordinates_leave_flat_directions_alone():
    space = low_rank(np.diag([100.0, 10.0, 0.0, 0.0]), 1)
    expected = np.diag([101**0.5 / 10_001**0.5, 1, 1, 1])
    np.testing.assert_allclose(jax.vmap(space.push)(jnp.eye(4)), expected, rtol=1e-5, atol=1e-6)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="`rank` must be between 1 and 2, got 3"):
        low_rank(np.ones((3, 4)), 3)
    with pytest.raises(ValueError, match="must be a 4 x 4 matrix"):
        eigenbasis(np.eye(3), POSITION)
    with pytest.raises(ValueError, match=r"positive eigenvalue, but the largest is -1\.0"):
        eigenbasis(-np.eye(4), POSITION)
