"""What every sampler promises, checked over all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import isotherm
from isotherm import random
from isotherm.dynamics.integrators import NAMED_WORDS

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
THINGS = pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES.keys())


def position(dtype=jnp.float32):
    """A tree with a tuple, a matrix and a scalar; positive, so that sgrld takes it too."""
    return {
        "w": jnp.full((2, 3), 0.7, dtype),
        "b": (jnp.full((3,), 1.2, dtype), jnp.ones((), dtype)),
    }


def pull_to_one(tree, batch):
    return jax.tree.map(lambda x: 1 - x, tree)


@THINGS
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_tree_shapes_and_dtypes_stay_and_there_is_one_trace(key, factory, dtype):
    traces = []

    def counted(key, state, batch):
        traces.append(1)
        return sampler.step(key, state, batch)

    sampler = factory(pull_to_one, 0.1)
    state = start = sampler.init(position(dtype), key)
    step = jax.jit(counted)
    for i in range(3):
        state, info = step(random.fold(key, i), state, None)
    assert len(traces) == 1
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, start)
    assert jax.tree.map(lambda x: x.dtype, state) == jax.tree.map(lambda x: x.dtype, start)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(state.position))
    assert int(state.step_index) == 3
    assert float(info.step_size) == pytest.approx(0.1)
    assert info.virial.shape == (3,)
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in jax.tree.leaves(state))


@THINGS
def test_double_precision_stays_double(key, factory):
    with jax.enable_x64(True):
        sampler = factory(pull_to_one, 0.1)
        state = sampler.init(position(jnp.float64), key)
        state, _ = sampler.step(key, state, None)
        floats = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
        assert all(leaf.dtype == jnp.float64 for leaf in floats)


@THINGS
def test_same_key_same_draw_and_another_key_another(key, factory):
    sampler = factory(pull_to_one, 0.1)
    state = sampler.init(position(), key)
    step = jax.jit(sampler.step)
    one, again, other = (step(k, state, None)[0] for k in (key, key, random.fold(key, 1)))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    after = step(key, one, None)[0], step(key, other, None)[0]
    assert not np.allclose(after[0].position["w"], after[1].position["w"])


@THINGS
def test_no_key_is_used_twice(key, factory):
    """JAX's own checker sees `jax.random`; our fused generator is watched number by number."""
    seen = []

    def watched(key, like):
        seen.append(tuple(jax.random.key_data(key).tolist()))
        return random.gaussian(key, like)

    with jax.debug_key_reuse(True):
        sampler = factory(pull_to_one, 0.1, noise=watched)
        state = sampler.init(position(), key)
        for i in range(3):
            state, _ = sampler.step(random.fold(key, i + 10), state, None)
    assert len(seen) >= 3
    assert len(set(seen)) == len(seen)


@THINGS
def test_step_sizes_can_be_mapped_over(key, factory):
    def final(h):
        sampler = factory(pull_to_one, h)
        state = sampler.init(position(), key)
        for i in range(2):
            state, _ = sampler.step(random.fold(key, i), state, None)
        return state.position["w"]

    together = jax.jit(jax.vmap(final))(jnp.array([0.05, 0.1]))
    for i, h in enumerate([0.05, 0.1]):
        np.testing.assert_allclose(together[i], jax.jit(final)(h), rtol=2e-5, atol=2e-6)


@THINGS
def test_any_optax_schedule_is_a_step_size(key, factory):
    sampler = factory(pull_to_one, optax.linear_schedule(0.2, 0.1, 2))
    state = sampler.init(position(), key)
    sizes, step = [], jax.jit(sampler.step)
    for _ in range(4):
        state, info = step(key, state, None)
        sizes.append(float(info.step_size))
    np.testing.assert_allclose(sizes, [0.2, 0.15, 0.1, 0.1], rtol=1e-6)


@THINGS
@pytest.mark.parametrize("bad", [0.0, -1e-3, float("nan"), float("inf")])
def test_a_step_size_that_is_not_positive_is_refused(factory, bad):
    with pytest.raises(ValueError, match="`step_size` must be positive, got"):
        factory(pull_to_one, bad)


@THINGS
def test_a_gradient_of_another_tree_is_refused_by_leaf(key, factory):
    sampler = factory(lambda tree, batch: {"w": tree["w"]}, 0.1)
    with pytest.raises(ValueError, match=r"does not match the position's.*b\.0"):
        sampler.step(key, sampler.init(position(), key), None)
    sampler = factory(lambda tree, batch: {**tree, "w": tree["w"][0]}, 0.1)
    with pytest.raises(ValueError, match=r"gradient of leaf 'w' has shape \(3,\)"):
        sampler.step(key, sampler.init(position(), key), None)


@THINGS
def test_integer_leaves_and_empty_positions_are_refused(key, factory):
    sampler = factory(pull_to_one, 0.1)
    with pytest.raises(ValueError, match="leaf 'n' has dtype int32"):
        sampler.init({"n": jnp.arange(3)}, key)
    with pytest.raises(ValueError, match="nothing to sample"):
        sampler.init({}, key)


def test_bad_settings_are_refused_by_name():
    cases = [
        (lambda: isotherm.msgnht(None, 0.1, -1.0), "`diffusion` must not be negative"),
        (lambda: isotherm.msgnht(None, 0.1, temperature=-1.0), "`temperature` must not"),
        (lambda: isotherm.msgnht(None, 0.1, thermostat_mass=0.0), "`thermostat_mass` must be pos"),
        (lambda: isotherm.msgnht(None, 0.1, thermostat="scalar"), "`thermostat` must be one of"),
        (lambda: isotherm.sgnht(None, 0.1, thermostat="matrix"), "`thermostat` must be one of"),
        (lambda: isotherm.sghmc(None, 0.1, 1.0, noise_estimate=2.0), "at most `friction`"),
        (lambda: isotherm.msgnht(None, 0.1, noise="pink"), "`noise` must be one of"),
        (lambda: isotherm.psgld(None, 0.1, decay=1.0), "`decay` must be in"),
        (lambda: isotherm.psgld(None, 0.1, freeze_after=0), "`freeze_after` must be"),
        (lambda: isotherm.sgrld(None, 0.1, prior=0.0), "`prior` must be positive"),
    ]
    for build, message in cases:
        with pytest.raises(ValueError, match=message):
            build()


def test_sgrld_refuses_a_position_that_is_not_positive():
    with pytest.raises(ValueError, match="must be positive for sgrld"):
        isotherm.sgrld(None, 0.1).init(jnp.array([1.0, 0.0]))


def test_a_sampler_without_gradient_says_so(key):
    sampler = isotherm.msgnht(None, 0.1)
    with pytest.raises(ValueError, match="without a `grad_fn`"):
        sampler.step(key, sampler.init(jnp.zeros(2), key), None)


def test_zero_is_a_legal_thermostat_and_zero_diffusion_makes_no_noise(key):
    def loud(key, like):
        raise AssertionError("noise was asked for")

    sampler = isotherm.msgnht(pull_to_one, 0.1, 0.0, initial_thermostat=0.0, noise=loud)
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
def test_names_are_points_of_one_family(key, sampler, settings):
    """The law tests are of `langevin`; a named sampler is a call of it with nothing lost."""
    diffusion = 0.5 if settings.get("initial_thermostat") == 0.7 else 0.7
    family = isotherm.langevin(pull_to_one, 0.1, diffusion, **settings)
    one, other = (s.init(position(), key) for s in (sampler, family))
    for i in range(3):
        one, other = (
            jax.jit(s.step)(random.fold(key, i), x, None)[0]
            for s, x in ((sampler, one), (family, other))
        )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), one, other)
