"""Logistic regression: probabilities, dense and sparse rows, large logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse, stats

import isotherm
from isotherm.models import logistic
from isotherm.models.logistic import SparseRows, as_rows, with_intercept


def features(rows=30, columns=100, seed=0):
    """Sparse enough for sparse rows to be chosen; some rows are empty."""
    rng = np.random.default_rng(seed)
    x = sparse.random_array((rows, columns), density=0.02, format="csr", rng=rng)
    x.data -= 0.5
    return x


def weights_of(kind, columns=100, seed=1):
    shape = {"binary": (columns,), "multinomial": (columns, 3)}[kind]
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def labels_of(kind, rows=30, seed=2):
    return np.random.default_rng(seed).integers(0, 2 if kind == "binary" else 3, size=rows)


KINDS = pytest.mark.parametrize("kind", ["binary", "multinomial"])


@KINDS
def test_sparse_and_dense_rows_agree(kind):
    x, weights, labels = features(), weights_of(kind), labels_of(kind)
    rows, dense = as_rows(x), as_rows(x.toarray())
    assert isinstance(rows, SparseRows) and not isinstance(dense, SparseRows)

    def total(weights, rows):
        return logistic.log_likelihood(weights, (rows, labels)).sum()

    def same(a, b):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

    same(logistic.logits(weights, rows), logistic.logits(weights, dense))
    same(logistic.predict_proba(weights, rows), logistic.predict_proba(weights, dense))
    same(jax.grad(total)(weights, rows), jax.grad(total)(weights, dense))
    assert logistic.log_likelihood(weights, (rows, labels)).shape == (30,)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("binary", bool), ("binary", np.float32), ("multinomial", np.int8), ("multinomial", int)],
)
def test_likelihoods_are_the_probabilities_of_the_labels(kind, dtype):
    x, weights, labels = as_rows(features()), weights_of(kind), labels_of(kind)
    probabilities = np.asarray(logistic.predict_proba(weights, x))
    assert probabilities.shape == (30, 2 if kind == "binary" else 3)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    values = logistic.log_likelihood(weights, (x, jnp.asarray(labels.astype(dtype))))
    np.testing.assert_allclose(
        values, np.log(probabilities[np.arange(30), labels]), rtol=1e-4, atol=1e-6
    )


def test_two_columns_equal_the_binary_model():
    x, binary, labels = as_rows(features()), weights_of("binary"), labels_of("binary")
    both = jnp.stack([0.3 * binary, 1.3 * binary], axis=1)
    one = logistic.log_likelihood(binary, (x, labels))
    two = logistic.log_likelihood(both, (x, labels))
    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)


@KINDS
@pytest.mark.parametrize("scale", [1e2, 1e30])
def test_large_logits_have_finite_values_and_gradients(kind, scale):
    """The log likelihood of a certain label is 0 if it is right, and minus its logit if wrong."""
    x = jnp.array([[scale], [scale]], jnp.float32)
    weights = jnp.ones(1) if kind == "binary" else jnp.array([[-1.0, 0.0]])
    labels = jnp.array([1, 0])
    value = logistic.log_likelihood(weights, (x, labels))
    np.testing.assert_allclose(value, [0, -scale], rtol=1e-6)
    gradient = jax.jacrev(logistic.log_likelihood)(weights, (x, labels))
    assert jnp.isfinite(gradient).all()
    assert jnp.isfinite(logistic.predict_proba(weights, x)).all()


def test_log_probabilities_close_to_zero_are_accurate():
    """At a logit of 20 the probability is 1 in float32, but its logarithm is accurate."""
    x = jnp.array([[20.0]], jnp.float32)
    value = logistic.log_likelihood(jnp.ones(1), (x, jnp.array([1])))
    np.testing.assert_allclose(value, -np.log1p(np.exp(-20.0)), rtol=1e-5)


@KINDS
def test_the_prior_is_normal(kind):
    weights = weights_of(kind)
    expected = stats.norm.logpdf(np.asarray(weights), scale=10**0.5).sum()
    np.testing.assert_allclose(logistic.log_prior(weights, 10.0), expected, rtol=1e-5)
    each = jnp.full_like(weights, 10.0)
    np.testing.assert_allclose(logistic.log_prior(weights, each), expected, rtol=1e-5)


def test_sparse_rows_are_used_for_wide_sparse_matrices_only():
    wide, narrow = features(columns=100), features(columns=10)
    assert isinstance(as_rows(wide), SparseRows)
    np.testing.assert_array_equal(as_rows(narrow), narrow.toarray().astype(np.float32))
    empty = as_rows(sparse.csr_array((5, 40)))
    assert empty.values.shape == (5, 1) and not empty.values.any()
    assert as_rows(np.eye(2), dtype=jnp.bfloat16).dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="`x` must have shape"):
        as_rows(np.ones(3))


def test_duplicate_entries_are_added_and_the_input_is_not_changed():
    twice = sparse.csr_array(([1.0, 2.0, 4.0], [7, 7, 3], [0, 3]), shape=(1, 64))
    rows = as_rows(twice)
    assert rows.columns.tolist() == [[3, 7]] and rows.values.tolist() == [[4.0, 3.0]]
    assert twice.nnz == 3


def test_with_intercept_appends_ones_and_keeps_sparsity_and_dtype():
    x = features()
    assert sparse.issparse(with_intercept(x)) and with_intercept(x).shape == (30, 101)
    np.testing.assert_array_equal(with_intercept(x).toarray(), with_intercept(x.toarray()))
    assert with_intercept(np.zeros((2, 1), np.float32)).dtype == np.float32


@pytest.mark.slow
def test_sparse_rows_work_in_batches_and_in_sample(key):
    x, labels = features(), labels_of("multinomial")
    batches = isotherm.independent_batches((as_rows(x), labels), batch_size=10)
    grad_fn = isotherm.minibatch_gradient(
        logistic.log_likelihood, lambda w: logistic.log_prior(w, 1.0), data_size=30
    )
    sampler = isotherm.msgnht(grad_fn, step_size=0.05, diffusion=1.0)
    start = jnp.zeros((100, 3))
    run = isotherm.sample(key, sampler, start, batches, num_draws=5, thin=4, num_chains=2)
    assert run.draws.shape == (2, 5, 100, 3) and np.isfinite(run.draws).all()
