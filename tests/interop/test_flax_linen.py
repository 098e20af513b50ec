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


def test_arguments_that_the_module_does_not_have_are_refused(variables):
    with pytest.raises(ValueError, match=r"`trian` is not an argument of Net, whose .* x, train"):
        from_linen(Net(), variables, trian=False)
    with pytest.raises(ValueError, match="`mutable` is not an argument"):
        from_linen(Net(), variables, train=False, mutable=["batch_stats"])
    with pytest.raises(ValueError, match="`training` is not an argument"):
        from_linen(Net(), variables, train=False).recalibrated(X, training=True)


@pytest.mark.parametrize(
    "wrt",
    ["Dense_1", ["Dense_1"], ["Dense_1.kernel", "Dense_1.bias"], lambda path: "Dense_1" in path],
)
def test_some_parameters(variables, wrt):
    position, apply, put_back = from_linen(Net(), variables, wrt=wrt, train=False)
    assert list(position) == ["Dense_1"]
    np.testing.assert_array_equal(apply(position, X), Net().apply(variables, X, train=False))
    zeros = jax.tree.map(jnp.zeros_like, position)
    np.testing.assert_array_equal(apply(zeros, X), jnp.zeros((6, 2)))
    back = put_back(zeros)["params"]
    np.testing.assert_array_equal(
        back["Dense_0"]["kernel"], variables["params"]["Dense_0"]["kernel"]
    )
    assert jax.tree.structure(back) == jax.tree.structure(variables["params"])


def test_a_filter_that_matches_nothing_is_an_error(variables):
    with pytest.raises(ValueError, match="the filter matches no parameter"):
        from_linen(Net(), variables, wrt="Dense", train=False)


def test_statistics_that_were_never_trained_are_refused():
    variables = Net().init(jax.random.key(0), X, train=False)
    with pytest.raises(ValueError, match="never trained"):
        from_linen(Net(), variables, train=False)
    parts = from_linen(Net(), variables, train=False, statistics_from=(X, {"train": True}))
    hidden = X @ parts.position["Dense_0"]["kernel"]
    found = parts.put_back(parts.position)["batch_stats"]["BatchNorm_0"]
    np.testing.assert_allclose(found["mean"], hidden.mean(0), atol=1e-4)
    np.testing.assert_allclose(found["var"], hidden.var(0), rtol=1e-3)


def test_statistics_are_computed_again_at_every_draw(variables):
    parts = from_linen(Net(), variables, train=False)
    rows = 5 + 2 * jax.random.normal(jax.random.key(5), (50, 3))
    double = jax.tree.map(lambda leaf: 2 * leaf, parts.position)
    found = jax.jit(parts.recalibrated(rows, train=True))(double, X)
    hidden = rows @ double["Dense_0"]["kernel"] + double["Dense_0"]["bias"][None]
    statistics = {"BatchNorm_0": {"mean": hidden.mean(0), "var": hidden.var(0)}}
    expected = Net().apply({"params": double, "batch_stats": statistics}, X, train=False)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)


def test_a_transformed_pair_of_functions_makes_a_network():
    """Haiku and plain JAX: `init`, `apply` and a likelihood."""
    import isotherm

    def init(key, x):
        return {"linear": {"w": jax.random.normal(key, (x.shape[-1], 2)), "b": jnp.zeros(2)}}

    def apply(params, rng, x):
        assert rng is None
        return x @ params["linear"]["w"] + params["linear"]["b"][None]

    network = isotherm.models.Network(
        lambda w, x: apply(w, None, x), lambda key: init(key, X), likelihood="gaussian"
    )
    position = network.init(jax.random.key(0))
    y = jnp.ones((6, 2))
    grads = network.gradient(6)(position, (X, y))
    expected = X.T @ (y - apply(position, None, X)) - position["linear"]["w"]
    np.testing.assert_allclose(grads["linear"]["w"], expected, rtol=1e-4)
