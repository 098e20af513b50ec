"""Shards draw all rows with equal probability and independently, on any device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import isotherm
from isotherm import random
from isotherm.batches.sharded import as_grid

ROWS = np.arange(12.0)


def mesh(*names):
    return Mesh(np.array(jax.devices()[:1]).reshape((1,) * len(names)), names)


def steps(batches, key, num):
    return np.asarray(jax.jit(jax.vmap(lambda t: batches.batch(key, t)))(jnp.arange(num)))


def test_rows_are_uniform_and_independent_with_less_noise_than_unsharded_batches(key):
    seen = steps(isotherm.sharded_batches(ROWS, 6, 3), key, 20_000)
    counts = np.bincount(seen.ravel().astype(int), minlength=12)
    assert abs(counts / counts.sum() - 1 / 12).max() < 5 * np.sqrt(1 / 12 / seen.size)
    x = seen.mean(1) - ROWS.mean()
    assert abs(x.mean()) < 5 * x.std() / np.sqrt(len(x))
    assert abs((x[1:] * x[:-1]).mean() / x.var()) < 5 / np.sqrt(len(x))
    within = ROWS.reshape(3, 4).var(1).mean()
    assert x.var() == pytest.approx(within / 6, rel=0.05)
    assert within < 0.2 * ROWS.var()


def test_every_shard_has_its_own_key(key):
    seen = steps(isotherm.sharded_batches(np.tile(np.arange(6.0), 2), 2, 2), key, 20_000)
    assert abs(np.corrcoef(seen.T)[0, 1]) < 5 / np.sqrt(len(seen))
    # The rows of shard 1 are a function of the key, the step and the number of the shard.
    own = random.indices(random.fold(random.fold(key, 7), 1), (1,), 6)
    assert seen[7, 1] == own[0]


def test_leaves_use_the_same_rows_and_shards_can_be_read_one_by_one(key):
    whole = isotherm.sharded_batches((ROWS, -ROWS), 6, 3)
    shards_read = []

    def read(shard):
        shards_read.append(shard)
        rows = ROWS[4 * shard : 4 * shard + 4]
        return rows, -rows

    for grid in (None, mesh("data"), mesh("chain", "data")):
        x, y = isotherm.sharded_batches(read, 6, 3, grid).batch(key, 5)
        np.testing.assert_array_equal(x, -y)
        np.testing.assert_array_equal(x, whole.batch(key, 5)[0])
    assert shards_read == 3 * [0, 1, 2]
    assert whole.data_size == 12


def test_a_mesh_gets_both_axes():
    for names in (("chain",), ("data",), ("data", "chain"), ("chain", "data")):
        assert as_grid(mesh(*names)).axis_names == ("chain", "data")
    with pytest.raises(ValueError, match="axes named `chain`, `data` or both, got \\('batch',\\)"):
        as_grid(mesh("batch"))
    with pytest.raises(ValueError, match=r"must be a jax.sharding.Mesh, got int"):
        as_grid(4)


@pytest.mark.parametrize(
    ("data", "size", "shards", "message"),
    [
        (ROWS, 5, 5, "`data` has 12 rows, which cannot be divided into 5 shards of equal size"),
        (ROWS, 5, 3, "`batch_size` must be a multiple of `num_shards`, got 5 and 3"),
        (ROWS, 0, 3, "`batch_size` must be at least 1, got 0"),
        (ROWS, 3, 0, "`num_shards` must be at least 1, got 0"),
        (ROWS, 15, 3, "`batch_size` is 15, but `data` has only 12 rows"),
        ((ROWS, ROWS[:6]), 3, 3, "same first axis, got \\[12, 6\\] rows"),
        (np.float32(1), 3, 3, "cannot be divided"),
        (ROWS[:0], 3, 3, "`data` is empty"),
        ((), 3, 3, "`data` is empty"),
        (lambda shard: ROWS[: 2 + shard], 3, 3, "the same number of rows, got \\[2, 3, 4\\]"),
    ],
)
def test_bad_shards_are_refused(data, size, shards, message):
    with pytest.raises(ValueError, match=message):
        isotherm.sharded_batches(data, size, shards)
