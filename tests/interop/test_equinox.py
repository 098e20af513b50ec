"""Equinox modules: only floating-point arrays change; the function is the same at every call."""

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isotherm.interop.equinox import from_equinox
from isotherm.tree import leaf_names

X = jax.random.normal(jax.random.key(4), (6, 3))


class Net(equinox.Module):
    body: equinox.nn.Linear
    norm: equinox.nn.BatchNorm
    drop: equinox.nn.Dropout
    counts: jax.Array
    power: int

    def __init__(self, key):
        self.body = equinox.nn.Linear(3, 4, key=key)
        self.norm = equinox.nn.BatchNorm(4, axis_name="batch", mode="ema")
        self.drop = equinox.nn.Dropout(0.5)
        self.counts = jnp.arange(4)
        self.power = 2

    def __call__(self, x, state, key=None):
        x, state = self.norm(self.body(x), state)
        return self.drop(x, key=key) ** self.power, state


def trained():
    net, state = equinox.nn.make_with_state(Net)(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), len(X))
    _, state = jax.vmap(net, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))(
        5 + X, state, keys
    )
    return net, state


def test_statistics_are_fixed_dropout_is_off_and_integers_do_not_change():
    net, state = trained()

    def call(module, x):
        return jax.vmap(lambda row: module(row, state)[0])(x)

    position, apply, put_back = from_equinox(net, call=call)
    assert leaf_names(position) == ["body.weight", "body.bias", "norm.weight", "norm.bias"]
    first = apply(position, X)
    np.testing.assert_array_equal(first, call(equinox.nn.inference_mode(net), X))
    alone = apply(position, X.at[2:].set(7.0))[:2]  # rows are independent
    np.testing.assert_array_equal(first[:2], alone)
    whole = put_back(jax.tree.map(jnp.zeros_like, position))
    np.testing.assert_array_equal(call(whole, X), jnp.zeros((6, 4)))
    np.testing.assert_array_equal(whole.counts, net.counts)
    assert whole.drop.inference
    assert not net.drop.inference


def test_only_selected_leaves_are_sampled():
    mlp = equinox.nn.MLP(3, 2, 5, 1, key=jax.random.key(0))
    nothing = jax.tree.map(lambda leaf: False, mlp)
    last = equinox.tree_at(lambda m: m.layers[-1].weight, nothing, replace=True)
    position, apply, _ = from_equinox(mlp, filter_spec=last)
    assert leaf_names(position) == ["layers.1.weight"]
    np.testing.assert_array_equal(apply(position, X), jax.vmap(mlp)(X))
    zero = jax.tree.map(jnp.zeros_like, position)
    np.testing.assert_array_equal(apply(zero, X), jnp.tile(mlp.layers[-1].bias, (6, 1)))


def test_a_filter_that_matches_nothing_is_an_error():
    layer = equinox.nn.Linear(3, 2, key=jax.random.key(0))
    with pytest.raises(ValueError, match="the filter matches no parameter"):
        from_equinox(layer, filter_spec=lambda leaf: False)
    with pytest.raises(ValueError, match="pass it on in `call`"):
        from_equinox(layer).recalibrated(jnp.ones((5, 3)))
