"""Batch policies return the promised batches, as pure functions of the key and the step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isotherm

ROWS = np.arange(10.0)


def steps(batches, key, num):
    return np.asarray(jax.jit(jax.vmap(lambda t: batches.batch(key, t)))(jnp.arange(num)))


def test_independent_batches_are_independent_and_uniform(key):
    seen = steps(isotherm.independent_batches(ROWS, 4), key, 20_000)
    counts = np.bincount(seen.ravel().astype(int), minlength=10)
    assert abs(counts / counts.sum() - 0.1).max() < 5 * np.sqrt(0.09 / seen.size)
    x = seen.mean(1) - seen.mean()
    assert abs((x[1:] * x[:-1]).mean() / x.var()) < 5 / np.sqrt(len(x))
    assert x.var() == pytest.approx(ROWS.var() / 4, rel=0.05)


def test_shuffled_epochs_use_every_row_once(key):
    seen = steps(isotherm.shuffled_batches(ROWS, 5), key, 40).reshape(20, 10)
    assert all(sorted(epoch) == list(ROWS) for epoch in seen)
    assert len({tuple(epoch) for epoch in seen}) == 20


def test_different_rows_are_left_out_in_every_epoch(key):
    seen = steps(isotherm.shuffled_batches(ROWS, 4), key, 400).reshape(200, 8)
    assert all(len(set(epoch)) == 8 for epoch in seen)
    counts = np.bincount(seen.ravel().astype(int), minlength=10)
    assert abs(counts / 200 - 0.8).max() < 5 * np.sqrt(0.16 / 200)


def test_symmetric_sweeps_go_forwards_and_backwards(key):
    seen = steps(isotherm.symmetric_batches(ROWS, 5), key, 40).reshape(10, 2, 2, 5)
    np.testing.assert_array_equal(seen[:, 0], seen[:, 1, ::-1])
    assert len({tuple(sweep[0].ravel()) for sweep in seen}) == 10


@pytest.mark.parametrize(
    "policy", [isotherm.independent_batches, isotherm.shuffled_batches, isotherm.symmetric_batches]
)
def test_chains_get_different_batches_and_a_batch_can_be_reproduced(key, policy):
    batches = policy((ROWS, ROWS**2), 3)
    a, b = jax.random.split(key)
    x, y = batches.batch(a, 7)
    np.testing.assert_array_equal(y, x**2)
    np.testing.assert_array_equal(x, batches.batch(a, 7)[0])
    assert any(not np.array_equal(batches.batch(a, t)[0], batches.batch(b, t)[0]) for t in range(3))


def test_full_batch_is_the_data(key):
    np.testing.assert_array_equal(isotherm.full_batch(ROWS).batch(key, 3), ROWS)


@pytest.mark.parametrize(
    ("data", "size", "message"),
    [
        (np.zeros((0, 3)), 1, "`data` is empty"),
        ((), 1, "`data` is empty"),
        ((ROWS, ROWS[:5]), 2, "same first axis"),
        ((ROWS, np.float32(1)), 2, "same first axis"),
        (ROWS, 0, "`batch_size` must be a whole number of at least 1, got 0"),
        (ROWS, 11, "`batch_size` is 11, but `data` has only 10 rows"),
    ],
)
def test_bad_data_is_refused(data, size, message):
    with pytest.raises(ValueError, match=message):
        isotherm.independent_batches(data, size)
