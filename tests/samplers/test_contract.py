"""The contract of all samplers, checked for each of them."""

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import isotherm
from isotherm import random
from isotherm.dynamics.integrators import NAMED_WORDS
from marks import slow

FACTORIES = {
    "sgld": isotherm.sgld,
    "psgld": isotherm.psgld,
    "sgrld": isotherm.sgrld,
    "sghmc": isotherm.sghmc,
    "sghmc-BAOAB": lambda g, h, **kw: isotherm.sghmc(g, h, integrator="BAOAB", **kw),
    "sgnht": isotherm.sgnht,
    "sgnht-per_tensor": lambda g, h, **kw: isotherm.sgnht(g, h, thermostat="per_tensor", **kw),
    **{
        f"msgnht-{word}": lambda g, h, w=word, **kw: isotherm.msgnht(g, h, integrator=w, **kw)
        for word in (
            "euler",
            *NAMED_WORDS,
            "NBKADKBN",
            "ADKBNBKDA",  # two kicks with one gradient
            "AKADODAKA",  # two gradients
        )
    },
    "msgnht-full": lambda g, h, **kw: isotherm.msgnht(g, h, thermostat="full_matrix", **kw),
}
ALL_SAMPLERS = pytest.mark.parametrize("name", FACTORIES)
ONE_OF_A_KIND = {
    "sgld",
    "psgld",
    "sgrld",
    "sghmc-BAOAB",
    "sgnht-per_tensor",
    "msgnht-ABOBA",
    "msgnht-AKADODAKA",
    "msgnht-full",
}
"""The quick samplers where samplers are compiled: all families, and words that begin with a drift,
with a kick, or have two gradients. The laws of named words have quick tests as well."""
SOME_QUICK = pytest.mark.parametrize(
    "name", [name if name in ONE_OF_A_KIND else slow(name) for name in FACTORIES]
)

jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""Compile without optimisation: these programs run for a few steps only."""


def position(dtype=jnp.float32):
    """A tree with a tuple, a matrix and a scalar; positive, as sgrld requires."""
    return {
        "w": jnp.full((2, 3), 0.7, dtype),
        "b": (jnp.full((3,), 1.2, dtype), jnp.ones((), dtype)),
    }


def pull_to_one(tree, batch):
    return jax.tree.map(lambda x: 1 - x, tree)


class Compiled(NamedTuple):
    """A sampler that is compiled once for all tests, and the dtypes of its traces."""

    init: Any
    step: Any
    traces: list


@cache
def compiled(name):
    traces = []

    @jit
    def step(key, state, h):
        traces.append(state.position["w"].dtype)
        return FACTORIES[name](pull_to_one, h).step(key, state, None)

    return Compiled(
        FACTORIES[name](pull_to_one, 0.1).init,
        lambda key, state, h=0.1: step(key, state, h),
        traces,
    )


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (dtype, name) if name in ONE_OF_A_KIND else slow(dtype, name)
        for dtype in (jnp.float32, jnp.bfloat16)
        for name in FACTORIES
    ],
)
def test_structure_shapes_and_dtypes_are_kept_with_one_trace(key, name, dtype):
    init, step, traces = compiled(name)
    state = start = init(position(dtype), key)
    for i in range(3):
        state, info = step(random.fold(key, i), state)
    assert traces.count(dtype) == 1
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, start)
    assert jax.tree.map(lambda x: x.dtype, state) == jax.tree.map(lambda x: x.dtype, start)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(state.position))
    assert int(state.step_index) == 3
    assert float(info.step_size) == pytest.approx(0.1)
    assert info.virial.shape == (3,)
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in jax.tree.leaves(state))


@ALL_SAMPLERS
def test_double_precision_is_kept(key, name):
    with jax.enable_x64(True):
        sampler = FACTORIES[name](pull_to_one, 0.1)
        state = jax.eval_shape(sampler.init, position(jnp.float64), key)
        state, _ = jax.eval_shape(sampler.step, key, state, None)
        floats = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
        assert all(leaf.dtype == jnp.float64 for leaf in floats)


@SOME_QUICK
def test_the_same_key_gives_the_same_draw_and_another_key_another(key, name):
    init, step, _ = compiled(name)
    state = init(position(), key)
    one, again, other = (step(k, state)[0] for k in (key, key, random.fold(key, 1)))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    after = step(key, one)[0], step(key, other)[0]
    assert not np.allclose(after[0].position["w"], after[1].position["w"])


@SOME_QUICK
def test_no_key_is_used_twice(key, name):
    """JAX checks the use of `jax.random`; the keys of our generator are recorded here."""
    used = []

    def recorded(key, like):
        used.append(jax.random.key_data(key))
        return random.gaussian(key, like)

    def three_steps(key):
        used.clear()
        sampler = FACTORIES[name](pull_to_one, 0.1, noise=recorded)
        state = sampler.init(position(), key)
        for i in range(3):
            state, _ = sampler.step(random.fold(key, i + 10), state, None)
        return jnp.stack(used)

    with jax.debug_key_reuse(True):
        keys = np.asarray(jit(three_steps)(key))
    assert len(keys) >= 3
    assert len(np.unique(keys, axis=0)) == len(keys)


@SOME_QUICK
def test_step_sizes_can_be_mapped_over(key, name):
    init, step, _ = compiled(name)
    start = init(position(), key)

    def two_steps(h):
        sampler = FACTORIES[name](pull_to_one, h)

        def advance(state, i):
            return sampler.step(random.fold(key, i), state, None)[0], None

        return jax.lax.scan(advance, start, jnp.arange(2))[0].position["w"]

    together = jit(jax.vmap(two_steps))(jnp.array([0.05, 0.1]))
    for i, h in enumerate([0.05, 0.1]):
        state = start
        for number in range(2):
            state, _ = step(random.fold(key, number), state, h)
        np.testing.assert_allclose(together[i], state.position["w"], rtol=2e-5, atol=2e-6)


@SOME_QUICK
def test_any_optax_schedule_is_a_step_size(key, name):
    sampler = FACTORIES[name](pull_to_one, optax.linear_schedule(0.2, 0.1, 2))

    @jit
    def step_sizes(state):
        sizes = []
        for _ in range(4):
            state, info = sampler.step(key, state, None)
            sizes.append(info.step_size)
        return sizes

    sizes = step_sizes(sampler.init(position(), key))
    np.testing.assert_allclose(sizes, [0.2, 0.15, 0.1, 0.1], rtol=1e-6)


@ALL_SAMPLERS
@pytest.mark.parametrize("bad", [0.0, -1e-3, float("nan"), float("inf")])
def test_a_step_size_that_is_not_positive_is_refused(name, bad):
    with pytest.raises(ValueError, match="`step_size` must be positive, got"):
        FACTORIES[name](pull_to_one, bad)


@ALL_SAMPLERS
def test_a_gradient_of_another_structure_or_shape_is_refused(key, name):
    state = jax.eval_shape(compiled(name).init, position(), key)
    sampler = FACTORIES[name](lambda tree, batch: {"w": tree["w"]}, 0.1)
    with pytest.raises(ValueError, match=r"must have the tree structure of the position.*b\.0"):
        jax.eval_shape(sampler.step, key, state, None)
    sampler = FACTORIES[name](lambda tree, batch: {**tree, "w": tree["w"][0]}, 0.1)
    with pytest.raises(ValueError, match=r"gradient of leaf 'w' has shape \(3,\)"):
        jax.eval_shape(sampler.step, key, state, None)


@ALL_SAMPLERS
def test_integer_leaves_and_empty_positions_are_refused(key, name):
    sampler = FACTORIES[name](pull_to_one, 0.1)
    with pytest.raises(ValueError, match="leaf 'n' has dtype int32"):
        sampler.init({"n": jnp.arange(3)}, key)
    with pytest.raises(ValueError, match="nothing to sample"):
        sampler.init({}, key)


def test_messages_name_the_bad_setting():
    cases = [
        (lambda: isotherm.msgnht(None, 0.1, -1.0), "`diffusion` must not be negative"),
        (lambda: isotherm.msgnht(None, 0.1, temperature=-1.0), "`temperature` must not"),
        (lambda: isotherm.msgnht(None, 0.1, thermostat_mass=0.0), "`thermostat_mass` must be pos"),
        (lambda: isotherm.msgnht(None, 0.1, thermostat="scalar"), "`thermostat` must be one of"),
        (lambda: isotherm.sgnht(None, 0.1, thermostat="matrix"), "`thermostat` must be one of"),
        (lambda: isotherm.langevin(None, 0.1, 1.0, thermostat="matrix"), "`thermostat` must be"),
        (lambda: isotherm.sghmc(None, 0.1, 1.0, noise_estimate=2.0), "at most `friction`"),
        (lambda: isotherm.msgnht(None, 0.1, noise="pink"), "`noise` must be one of"),
        (lambda: isotherm.psgld(None, 0.1, decay=1.0), "`decay` must be a number in"),
        (lambda: isotherm.psgld(None, 0.1, freeze_after=0), "`freeze_after` must be"),
        (lambda: isotherm.sgrld(None, 0.1, prior=0.0), "`prior` must be positive"),
    ]
    for build, message in cases:
        with pytest.raises(ValueError, match=message):
            build()


def test_sgrld_refuses_a_position_that_is_not_positive():
    with pytest.raises(ValueError, match="must be positive for sgrld"):
        isotherm.sgrld(None, 0.1).init(jnp.array([1.0, 0.0]))


def test_step_without_a_gradient_function_is_refused(key):
    sampler = isotherm.msgnht(None, 0.1)
    with pytest.raises(ValueError, match="without a `grad_fn`"):
        sampler.step(key, sampler.init(jnp.zeros(2), key), None)


def test_zero_is_a_legal_thermostat_and_zero_diffusion_draws_no_noise(key):
    def fail(key, like):
        raise AssertionError("noise was drawn")

    sampler = isotherm.msgnht(pull_to_one, 0.1, 0.0, initial_thermostat=0.0, noise=fail)
    state = sampler.init(jnp.zeros(2), key)
    assert state.thermostat.tolist() == [0.0, 0.0]
    sampler.step(key, state, None)


@pytest.mark.parametrize(
    ("sampler", "settings"),
    [
        (isotherm.sghmc(pull_to_one, 0.1, 0.7), {"thermostat": "fixed"}),
        (isotherm.sgnht(pull_to_one, 0.1, 0.7), {"thermostat": "scalar"}),
        (isotherm.msgnht(pull_to_one, 0.1, 0.7), {"thermostat": "per_coordinate"}),
        (
            isotherm.sgnht(
                pull_to_one,
                0.1,
                0.7,
                thermostat="per_tensor",
                thermostat_mass=2.0,
                integrator="euler",
                temperature=0.5,
                initial_thermostat=0.0,
                noise="three-point",
            ),
            {
                "thermostat": "per_tensor",
                "thermostat_mass": 2.0,
                "integrator": "euler",
                "temperature": 0.5,
                "initial_thermostat": 0.0,
                "noise": "three-point",
            },
        ),
        (
            isotherm.sghmc(pull_to_one, 0.1, 0.7, noise_estimate=0.2, integrator="OBABO"),
            {"thermostat": "fixed", "initial_thermostat": 0.7, "integrator": "OBABO"},
        ),
    ],
)
def test_named_samplers_equal_langevin_with_their_settings(key, sampler, settings):
    """The law tests are of `langevin`; a named sampler must pass all settings on to it."""
    diffusion = 0.5 if settings.get("initial_thermostat") == 0.7 else 0.7
    family = isotherm.langevin(pull_to_one, 0.1, diffusion, **settings)

    def three_steps(sampler):
        def step(state, i):
            return sampler.step(random.fold(key, i), state, None)[0], None

        return jax.lax.scan(step, sampler.init(position(), key), jnp.arange(3))[0]

    one, other = jit(lambda: (three_steps(sampler), three_steps(family)))()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), one, other)
