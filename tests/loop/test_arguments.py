"""For any arguments, `sample` runs or raises a documented error."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import isotherm
from isotherm.tree import count
from marks import slow

DOCUMENTED = (ValueError, isotherm.exceptions.DivergedError)
KEY = jax.random.key(0)
QUICK = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def minus(x, batch):
    return jax.tree.map(jnp.negative, x)


SAMPLER = isotherm.sgld(minus, 0.1)
GOOD = {"position": jnp.zeros(2), "num_draws": 1, "batches": isotherm.no_batches()}


def attempt(sampler=SAMPLER, key=KEY, **arguments):
    """Run without compiling; return the run, or the documented error."""
    arguments = GOOD | arguments
    with jax.disable_jit():
        try:
            return isotherm.sample(key, sampler, progress=False, **arguments)
        except DOCUMENTED as error:
            assert str(error).endswith((".", "`error.run`.")) or "numbers: " in str(error)
            return error


TYPES = ["float32", "bfloat16", "float64", "int32", "bool", "complex64", "object", "U3"]
SPECIAL = [0.0, 1.0, -1e30, 3e38, np.nan, np.inf, -np.inf]


@st.composite
def arrays(draw):
    shape = draw(st.sampled_from([(), (2,), (0,), (2, 0)]))
    value = draw(st.sampled_from(SPECIAL))
    dtype = draw(st.sampled_from(TYPES))
    with np.errstate(all="ignore"):
        wide = np.full(shape, 0.0 if dtype in ("int32", "bool") else value)
        return wide.astype(jnp.bfloat16 if dtype == "bfloat16" else dtype)


leaves = arrays() | st.sampled_from([None, "text", 1.5, 3, 10**400, object(), b"x", 1j])
trees = st.recursive(
    leaves,
    lambda inside: st.one_of(
        st.lists(inside, max_size=3),
        st.tuples(inside, inside),
        st.dictionaries(st.sampled_from(["w", "b", "", "a.b"]), inside, max_size=2),
    ),
    max_leaves=4,
)


def is_good(leaf):
    array = np.asarray(leaf)
    floating = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    with np.errstate(over="ignore"):
        return floating and array.size > 0 and np.isfinite(array.astype(np.float32)).all()


@pytest.mark.slow
@settings(QUICK, max_examples=30)  # a run takes a quarter of a second
@given(trees)
def test_positions_of_any_kind(position):
    found = attempt(position=position)
    numbers = jax.tree.leaves(position)
    if numbers and all(is_good(leaf) for leaf in numbers):
        assert isinstance(found, isotherm.loop.Run | isotherm.exceptions.DivergedError)
    else:
        assert isinstance(found, ValueError)
    if isinstance(found, isotherm.loop.Run):
        shapes = [np.shape(leaf) for leaf in numbers]
        assert [leaf.shape for leaf in jax.tree.leaves(found.draws)] == [(1, 1, *s) for s in shapes]
        assert jax.tree.structure(found.draws) == jax.tree.structure(position)


odd = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**63, 10**400, True, None, "2", b"2", 1j, [1]]),
    st.floats(),
    st.sampled_from([np.int64(2), np.float32(1), np.array([1]), np.array(2), jnp.int32(1)]),
)


@QUICK
@given(
    st.sampled_from(
        ["num_draws", "thin", "burn_in", "num_chains", "max_rollbacks", "checkpoint_keep"]
    ),
    odd,
)
def test_counts_of_any_kind(name, value):
    least = 0 if name in ("burn_in", "max_rollbacks") else 1
    try:
        number = count(name, value, least)
    except ValueError as error:
        assert f"`{name}` must be a whole number of at least {least}" in str(error)
        assert isinstance(attempt(**{name: value}), ValueError)
        return
    assert type(number) is int and number == value and number >= least


@pytest.mark.slow
def test_whole_numbers_of_any_type_are_accepted():
    counts = {"num_draws": 2.0, "thin": np.int64(2), "burn_in": np.array(1), "num_chains": True}
    found = attempt(**counts)
    assert (found.num_draws, found.thin, found.burn_in, found.num_chains) == (2, 2, 1, 1)


@QUICK
@given(
    st.sampled_from(
        ["key", "sampler", "batches", "collect", "state", "on_divergence", "checkpoint_seconds"]
    ),
    st.sampled_from(
        [
            *(
                -1,
                3.5,
                "x",
                b"x",
                object(),
                [1],
                {"a": 1},
                {1: isotherm.collect.draws()},
                np.zeros(2),
                np.nan,
            ),
            *(jax.random.split(KEY), jnp.zeros(2), lambda factor: factor, lambda: None, int),
        ]
    ),
)
def test_everything_else_of_any_kind(name, value):
    good = name == "checkpoint_seconds" and isinstance(value, float) and value >= 0
    result = attempt(**{name: value})
    assert isinstance(result, isotherm.loop.Run if good else ValueError)


@pytest.mark.parametrize("bad", [np.nan, slow(np.inf), slow(3e38)])
def test_data_that_are_not_finite_raise_diverged_error(bad):
    x = jnp.array([1.0, bad])
    grad_fn = isotherm.minibatch_gradient(lambda m, x: -0.5 * (x - m) ** 2, lambda m: -(m**2), 2)
    found = attempt(
        isotherm.sgld(grad_fn, 0.1), position=0.0, batches=isotherm.full_batch(x), num_draws=9
    )
    assert isinstance(found, isotherm.exceptions.DivergedError) or np.isfinite(found.draws).all()
    assert np.isfinite(bad) or isinstance(found, isotherm.exceptions.DivergedError)
