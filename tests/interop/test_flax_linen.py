"""Linen modules: only `params` changes, and the function is the same at every call."""

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen
from flax.errors import InvalidRngError, ModifyScopeVariableError

from isotherm.interop.flax_linen import from_linen

X = jax.random.normal(jax.random.key(4), (6, 3))


class Net(linen.Module):
    @linen.compact
    def __call__(self, x, train):
        x = linen.BatchNorm(use_running_average=not train)(linen.Dense(4)(x))
        return linen.Dense(2)(linen.Dropout(0.5, deterministic=not train)(x))


@pytest.fixture
def variables():
    net = Net()
    variables = net.init(jax.random.key(0), X, train=False)
    _, moved = net.apply(
        variables, 5 + X, train=True, mutable=["batch_stats"], rngs={"dropout": jax.random.key(1)}
    )
    return {**variables, **moved}


def test_statistics_are_fixed_and_dropout_is_off(variables):
    position, apply, put_back = from_linen(Net(), variables, train=False)
    assert sorted(position) == ["BatchNorm_0", "Dense_0", "Dense_1"]
    first = apply(position, X)
    np.testing.assert_array_equal(first, Net().apply(variables, X, train=False))
    np.testing.assert_array_equal(first, Net().apply(put_back(position), X, train=False))
    zeros = jax.tree.map(jnp.zeros_like, position)
    back = put_back(zeros)
    assert back["params"] is zeros
    assert back["batch_stats"] == variables["batch_stats"]
    assert jnp.abs(back["batch_stats"]["BatchNorm_0"]["mean"]).max() > 0.01
    np.testing.assert_array_equal(apply(zeros, X), jnp.zeros((6, 2)))


def test_linen_refuses_to_update_statistics(variables):
    parts = from_linen(Net(), variables, train=True)
    with pytest.raises(ModifyScopeVariableError):
        parts.apply(parts.position, X)


def test_linen_refuses_dropout_that_is_on():
    net = linen.Sequential([linen.Dense(2), linen.Dropout(0.5, deterministic=False)])
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    parts = from_linen(net, net.init(keys, X))
    with pytest.raises(InvalidRngError):
        parts.apply(parts.position, X)


def test_frozen_dictionaries_are_accepted(variables):
    frozen = from_linen(Net(), flax.core.freeze(variables), train=False)
    thawed = from_linen(Net(), variables, train=False)
    assert jax.tree.structure(frozen.position) == jax.tree.structure(thawed.position)


def test_parameters_alone_are_not_variables(variables):
    with pytest.raises(ValueError, match=r"must have a collection 'params'.*BatchNorm_0"):
        from_linen(Net(), variables["params"])
