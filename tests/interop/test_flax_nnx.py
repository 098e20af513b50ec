"""NNX modules: only parameters change, and the function is the same at every call."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from sklearn.datasets import load_digits

import isotherm
from isotherm.interop.flax_nnx import from_nnx
from isotherm.interop.modules import library
from isotherm.tree import leaf_names


class Net(nnx.Module):
    def __init__(self, rngs):
        self.body = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.heads = nnx.List([nnx.Linear(4, 2, rngs=rngs) for _ in range(11)])

    def __call__(self, x):
        x = self.drop(self.norm(self.body(x)))
        return sum(head(x) for head in self.heads)


@pytest.fixture
def net():
    net = Net(nnx.Rngs(0))
    net(5 + 2 * jax.random.normal(jax.random.key(3), (100, 3)))  # changes the statistics
    return net


X = jax.random.normal(jax.random.key(4), (6, 3))


def test_statistics_are_fixed_dropout_is_off_and_the_module_is_not_changed(net):
    before = jax.tree.map(jnp.copy, nnx.to_pure_dict(nnx.state(net)))
    position, apply, put_back = from_nnx(net)
    first = apply(position, X)
    np.testing.assert_array_equal(first, apply(position, X))
    alone = apply(position, X.at[2:].set(7.0))[:2]  # rows are independent
    np.testing.assert_array_equal(first[:2], alone)
    np.testing.assert_array_equal(first, put_back(position)(X))
    after = nnx.to_pure_dict(nnx.state(net))
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), before, after))
    assert not net.drop.deterministic
    net.eval()
    np.testing.assert_array_equal(first, net(X))  # with the statistics of training
    np.testing.assert_array_equal(put_back(position).norm.mean[...], net.norm.mean[...])
    assert jnp.abs(net.norm.mean[...]).max() > 0.01


def test_the_position_is_the_parameters_by_name(net):
    names = leaf_names(from_nnx(net).position)
    assert names[:6] == [
        "body.bias",
        "body.kernel",
        "heads.0.bias",
        "heads.0.kernel",
        "heads.1.bias",
        "heads.1.kernel",
    ]
    assert names[-2:] == ["norm.bias", "norm.scale"]
    assert len(names) == 4 + 22


def test_new_values_go_to_their_own_variables(net):
    """Eleven heads: an order by name, 0, 1, 10, 2, … would permute them."""
    position, _, put_back = from_nnx(net)
    for i in range(11):
        position["heads"][i]["bias"] = jnp.full(2, float(i))
    heads = put_back(position).heads
    assert [float(head.bias[0]) for head in heads] == list(range(11))


def test_shared_parameters_are_one_leaf():
    class Tied(nnx.Module):
        def __init__(self, rngs):
            self.a = nnx.Linear(3, 3, rngs=rngs)
            self.b = self.a

        def __call__(self, x):
            return self.b(self.a(x))

    position, apply, _ = from_nnx(Tied(nnx.Rngs(0)))
    assert leaf_names(position) == ["a.bias", "a.kernel"]
    doubled = {"a": {"bias": jnp.zeros(3), "kernel": 2 * jnp.eye(3)}}
    np.testing.assert_array_equal(apply(doubled, X), 4 * X)


def test_some_parameters_and_another_call(net):
    position, apply, put_back = from_nnx(
        net,
        wrt=nnx.All(nnx.Param, nnx.PathContains("heads")),
        call=lambda module, x: module.heads[0](x["features"]),
    )
    assert list(position) == ["heads"]
    zeros = jax.tree.map(jnp.zeros_like, position)
    np.testing.assert_array_equal(apply(zeros, {"features": jnp.ones((5, 4))}), jnp.zeros((5, 2)))
    np.testing.assert_array_equal(put_back(zeros).body.kernel[...], net.body.kernel[...])


@pytest.mark.parametrize(
    "name", ["flax.nnx", "flax.core", "equinox", "numpyro", "numpyro.handlers"]
)
def test_a_missing_library_is_named_with_its_extra(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"needs {name.split('.')[0]}: pip install 'isotherm\["):
        library(name)


def test_an_error_inside_a_library_is_not_hidden(monkeypatch, tmp_path):
    (tmp_path / "broken_library.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        library("broken_library")


class Block(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(3, 3, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(jnp.tanh(self.linear(x)))


class Scanned(nnx.Module):
    """Blocks with a leading axis, which `nnx.scan` calls one after the other."""

    def __init__(self, rngs):
        make = nnx.vmap(Block, in_axes=(0,), out_axes=0)
        self.blocks = nnx.split_rngs(splits=2)(make)(rngs)

    def __call__(self, x):
        return nnx.scan(lambda x, block: block(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(
            x, self.blocks
        )


@pytest.mark.slow
def test_scanned_blocks_with_dropout_work_inside_a_compiled_program():
    """Before, NNX raised "Cannot extract graph node from different trace level"."""
    position, apply, _ = from_nnx(Scanned(nnx.Rngs(0)))
    x, blocks = X, position["blocks"]["linear"]
    for i in range(2):
        x = jnp.tanh(x @ blocks["kernel"][i] + blocks["bias"][i][None])
    np.testing.assert_allclose(jax.jit(apply)(position, X), x, rtol=1e-5)
    grads = jax.jit(jax.grad(lambda position: apply(position, X).sum()))(position)
    assert all(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads))


def test_a_filter_that_matches_nothing_is_an_error(net):
    with pytest.raises(ValueError, match="the filter matches no parameter"):
        from_nnx(net, wrt=nnx.All(nnx.Param, nnx.PathContains("haeds")))


def test_statistics_that_were_never_trained_are_refused():
    net = Net(nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"norm\.mean, norm\.var\) are those of a module that was"):
        from_nnx(net)
    rows = 5 + 2 * jax.random.normal(jax.random.key(3), (100, 3))
    norm = from_nnx(net, statistics_from=rows)
    hidden = net.body(rows)
    whole = norm.put_back(norm.position)
    np.testing.assert_allclose(whole.norm.mean[...], hidden.mean(0), rtol=1e-4)
    np.testing.assert_allclose(whole.norm.var[...], hidden.var(0), rtol=1e-3)


@pytest.mark.slow
def test_statistics_are_computed_again_at_every_draw(net):
    """As a module in training mode does, with dropout off and averages over batches."""
    parts = from_nnx(net)
    first, second = (i + jax.random.normal(jax.random.key(i), (50, 3)) for i in (5, 6))
    apply = parts.recalibrated([first, second])
    draws = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), parts.position)
    found = jax.jit(jax.vmap(apply, (0, None)))(draws, X)
    for i in range(2):
        module = parts.put_back(jax.tree.map(lambda leaf, i=i: leaf[i], draws))
        hidden = [module.body(rows) for rows in (first, second)]
        module.norm.mean[...] = sum(h.mean(0) for h in hidden) / 2
        module.norm.var[...] = sum(h.var(0) for h in hidden) / 2
        np.testing.assert_allclose(found[i], module(X), rtol=2e-3, atol=2e-3)
    assert jnp.abs(found[0] - parts.apply(parts.position, X)).max() > 0.1
    with pytest.raises(ValueError, match="nothing to recalibrate"):
        from_nnx(nnx.Linear(3, 2, rngs=nnx.Rngs(0))).recalibrated(X)


class Convolutional(nnx.Module):
    """A convolution, layer normalisation and a dense layer."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm = nnx.LayerNorm(4, rngs=rngs)
        self.dense = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.avg_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), (2, 2))
        return self.dense(x.reshape(x.shape[0], -1))


@pytest.mark.slow
def test_a_kronecker_start_does_not_ruin_a_convolutional_network_with_layer_normalisation():
    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32).reshape(-1, 8, 8, 1), y.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:1400], order[1400:]
    parts = isotherm.from_nnx(Convolutional(nnx.Rngs(0)))
    network = isotherm.models.Network(parts.apply, lambda key: parts.position)
    batches = isotherm.independent_batches((x[train], y[train]), 100)
    start_key, sample_key = jax.random.split(jax.random.key(0))
    start = isotherm.warm_start(
        start_key,
        network.gradient(1400),
        parts.position,
        batches,
        coordinates="kronecker",
        num_steps=500,
        rounds=2,
        steps_per_round=400,
    )
    assert [leaf.letters for leaf in start.coordinates.leaves] == ["r", "lllr", "r", "lr", "r", "r"]
    run = isotherm.sample(
        sample_key,
        isotherm.msgnht(start.grad_fn, **start.settings),
        start.position,
        batches,
        num_draws=20,
        thin=20,
        collect={"test": isotherm.collect.probabilities(network.predict, x[test])},
    )
    probabilities = np.asarray(run.collected["test"]["probabilities"]).mean(0)
    assert (probabilities.argmax(1) == y[test]).mean() > 0.94  # a ruined network had 0.107
