"""For any arguments, public functions work or raise an error of isotherm's own that says why not.

Few examples, always the same; `make soak` tries many, different each time (`ISOTHERM_EXAMPLES`).
Arguments of `isotherm.sample` are in tests/loop/test_arguments.py.
"""

import inspect
import os
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse

import isotherm
from isotherm.topics.corpus import as_corpus

MANY = int(os.environ.get("ISOTHERM_EXAMPLES", "0"))
KEY = jax.random.key(0)
hostile = settings(
    max_examples=MANY or 40,
    derandomize=not MANY,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


PACKAGE = str(Path(isotherm.__file__).parent)


def is_deliberate(error):
    """Return whether isotherm raised an error itself, or scikit-learn's validation did."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    ours = innermost.filename.startswith(PACKAGE) and innermost.line.startswith("raise ")
    return ours or f"sklearn{os.sep}utils{os.sep}" in innermost.filename


def attempt(function, *arguments, **more):
    """Call; return the result, or the error if isotherm raised it deliberately."""
    try:
        return function(*arguments, **more)
    except (ValueError, TypeError, isotherm.exceptions.DivergedError) as error:
        message = str(error)
        assert len(message) > 15, f"not a sentence: {message!r}"
        if not is_deliberate(error):
            raise AssertionError(f"not an error of isotherm: {message}") from error
        return error


def refused(result):
    return isinstance(result, Exception)


numbers = st.one_of(
    st.floats(width=32),
    st.integers(-3, 5),
    st.sampled_from([True, None, "1", b"1", 1j, [], {}, object(), np.nan, np.float32(2), 10**9]),
    st.sampled_from(
        [np.array([1.0, 2.0]), np.array("a"), np.array(None, object), jnp.float32(0.5)]
    ),
)


letters = st.text("ABDKNO", min_size=1, max_size=4)
palindromes = st.builds(lambda half, odd: half + half[::-1][odd:], letters, st.integers(0, 1))


@hostile
@given(palindromes | st.text("ABODx2 ", max_size=6) | st.sampled_from(["ABOBA", "euler"]) | numbers)
def test_words(word):
    result = attempt(isotherm.parse_integrator, word)
    if not refused(result):
        assert word == "euler" or word == word[::-1]
        assert result.num_gradients >= 1 and result.order in (1, 2)
    elif isinstance(word, str):
        assert word not in ("ABOBA", "BAOAB", "OBABO", "euler")


def is_positive(value):
    return np.isrealobj(value) and bool(np.all(np.asarray(value, float) > 0))


@hostile
@given(st.sampled_from(["halving", "polynomial", "cyclical"]), numbers, numbers)
def test_schedules(name, step_size, other):
    result = attempt(getattr(isotherm.schedules, name), step_size, other)
    if not refused(result):
        assert callable(result) and is_positive(step_size) and is_positive(other)
        assert all(np.isfinite(np.asarray(result(t))).all() for t in (0, 1, 10))


FACTORIES = ["sgld", "psgld", "sgrld", "sghmc", "sgnht", "msgnht"]
SETTINGS = [
    (name, setting)
    for name in FACTORIES
    for setting in inspect.signature(getattr(isotherm, name)).parameters
    if setting != "grad_fn"
]


@hostile
@given(st.sampled_from(SETTINGS), numbers | st.text(max_size=6))
def test_settings_of_samplers(which, value):
    name, setting = which
    result = attempt(
        getattr(isotherm, name), lambda x, batch: -x, **({"step_size": 0.1} | {setting: value})
    )
    if not refused(result):
        like = attempt(one_step, result)
        assert refused(like) or (like.shape, like.dtype) == ((2,), jnp.float32)


def one_step(sampler):
    """Trace a step without running it."""
    return jax.eval_shape(
        lambda: sampler.step(KEY, sampler.init(jnp.ones(2), KEY), None)[0].position
    )


@st.composite
def arrays(draw):
    shape = draw(st.sampled_from([(), (0,), (1,), (3,), (3, 2), (0, 2), (3, 0), (2, 2, 2)]))
    dtype = draw(st.sampled_from(["f4", "f8", "i4", "u1", "?", "c8", "O", "U2", "M8[s]", "V3"]))
    value = draw(st.sampled_from([0, 1, -1, 0.5, 1e300, np.nan, np.inf, -np.inf]))
    if dtype in ("f4", "f8", "c8", "O"):
        with np.errstate(over="ignore"):
            return np.full(shape, value).astype(dtype)
    return np.zeros(shape, dtype)


POLICIES = ["independent_batches", "shuffled_batches", "symmetric_batches", "full_batch"]
data = (
    arrays() | st.tuples(arrays(), arrays()) | st.sampled_from([None, {}, "text", 3, [[1, 2], [3]]])
)


@hostile
@given(st.sampled_from(POLICIES), data, numbers)
def test_batches(name, data, batch_size):
    more = () if name == "full_batch" else (batch_size,)
    with np.errstate(over="ignore"):  # values too large for single precision
        policy = attempt(getattr(isotherm, name), data, *more)
    if not refused(policy):
        rows = len(jax.tree.leaves(data)[0])
        batch = policy.batch(KEY, jnp.int32(3))
        assert jax.tree.structure(batch) == jax.tree.structure(data)
        wanted = rows if name == "full_batch" else int(batch_size)
        assert {len(leaf) for leaf in jax.tree.leaves(batch)} == {wanted}


@hostile
@given(st.sampled_from(["ess", "rhat", "kinetic_temperature"]), data)
def test_diagnostics(name, draws):
    if any(np.iscomplexobj(leaf) for leaf in jax.tree.leaves(draws)):
        return
    with np.errstate(over="ignore"):  # values too large for single precision
        result = attempt(getattr(isotherm.diagnostics, name), draws)
    if not refused(result):
        assert all(np.asarray(leaf).dtype.kind == "f" for leaf in jax.tree.leaves(result))


@hostile
@given(arrays(), arrays(), numbers)
def test_stein_discrepancies(draws, scores, scale):
    with np.errstate(over="ignore"):  # values too large for single precision
        result = attempt(isotherm.diagnostics.ksd, draws, scores, scale=scale)
    assert refused(result) or np.shape(result) == ()


@hostile
@given(arrays() | st.sampled_from([[[1, 2], [3]], None, "text", [["a"]]]), st.booleans())
def test_counts(counts, as_sparse):
    if (
        as_sparse
        and isinstance(counts, np.ndarray)
        and counts.ndim == 2
        and counts.dtype.kind in "fiu"
    ):
        counts = sparse.csr_array(counts)
    result = attempt(as_corpus, counts)
    if not refused(result):
        dense = counts.toarray() if sparse.issparse(counts) else np.asarray(counts)
        np.testing.assert_array_equal(result.to_csr().toarray(), dense.astype(np.int64))


ESTIMATORS = [
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianMLPClassifier",
    "BayesianMLPRegressor",
    "BayesianLDA",
    "BayesianDPFA",
]
GOOD_X, GOOD_Y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 0])


def is_table(x):
    """Return whether an estimator can be fitted: two or more rows, finite in single precision."""
    try:
        x = np.asarray(x)
    except ValueError:
        return False
    if not (x.ndim == 2 and x.shape[1] and len(x) >= 2):
        return False
    if x.dtype.kind not in "fiubO":
        return False
    with np.errstate(over="ignore"):
        return bool(np.isfinite(x.astype(np.float32)).all())


@hostile
@given(st.sampled_from(ESTIMATORS), data, st.none() | arrays())
def test_estimators_refuse_data_that_cannot_be_fitted(name, x, y):
    """Valid tables have tests of their own: they take seconds."""
    y = GOOD_Y if y is None else y
    if is_table(x) and (name in ("BayesianLDA", "BayesianDPFA") or np.shape(y) == (len(x),)):
        return
    assert refused(attempt(getattr(isotherm, name)().fit, x, y))


UNCHECKED = {"verbose", "standardize"}
"""Any value is used as true or false."""


@pytest.mark.parametrize("name", ESTIMATORS[:-1])
def test_wrong_settings_of_estimators_are_refused_by_fit(name):
    estimator, x = getattr(isotherm, name), np.array([[0, 1], [2, 0], [1, 1]])
    for setting in inspect.signature(estimator).parameters.keys() - UNCHECKED:
        result = attempt(estimator(**{setting: object()}).fit, x, GOOD_Y)
        assert refused(result), setting
