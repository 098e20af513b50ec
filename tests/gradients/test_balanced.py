"""Balanced gradients: what their theory says, which inputs they take, and which they refuse."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.linalg import solve_discrete_lyapunov
from scipy.optimize import brentq

import isotherm
from isotherm import gradients, random
from isotherm.exceptions import PolicyWarning
from laws import SPELLED, opens_with_kick
from marks import slow

TEMPERATURE = 1.3
THETA, P, FORCE = range(3)


def stationary(word, h, c, friction, diffusion, curvature=1.0, weighted=True):
    """Return the covariance of position, momentum and force times h, before and after each letter.

    The target is Gaussian, and the noise of a kick has the variance 4TC. The friction is linear: a
    kick that begins at p is h g + noise - 2C p, or h g + noise if rows are not `weighted`.
    """
    letters = SPELLED[word].replace("D", "")
    known, steps = opens_with_kick(letters), []
    for letter in letters:
        t = h / letters.count(letter)
        if letter in "KE" and not known:
            evaluate = np.eye(3)
            evaluate[FORCE] = [-h * curvature, -2 * c * weighted, 0]
            steps.append((evaluate, np.diag([0, 0, 4 * TEMPERATURE * c]), False))
            known = True
        a, noise = np.eye(3), 0.0
        if letter == "A":
            a[THETA, P], known = t, False
        elif letter == "K":
            a[P, FORCE] = t / h
        elif letter == "B":
            a[P, P] = np.exp(-friction * t)
        elif letter == "N":
            noise = 2 * diffusion * TEMPERATURE * t
        elif letter == "O":
            a[P, P] = np.exp(-friction * t)
            noise = diffusion * TEMPERATURE * -np.expm1(-2 * friction * t) / friction
        elif letter == "E":
            a[P, P], a[P, FORCE] = 1 - friction * t, 1
            noise = 2 * diffusion * TEMPERATURE * t
        steps.append((a, np.diag([0, noise, 0]), True))
    matrix, noise = np.eye(3), np.zeros((3, 3))
    for a, q, _ in steps:
        matrix, noise = a @ matrix, a @ noise @ a.T + q
    assert np.abs(np.linalg.eigvals(matrix)).max() < 1
    path = [solve_discrete_lyapunov(matrix, noise)]
    covariance = path[0]
    for a, q, is_letter in steps:
        covariance = a @ covariance @ a.T + q
        if is_letter:
            path.append(covariance)
    return np.array(path)


def held(word, h, c, diffusion):
    """Return the covariances at the friction at which a thermostat finds the momenta at T."""
    letters = SPELLED[word]
    seen = [len(letters[:i].replace("D", "")) for i, x in enumerate(letters) if x == "D"]

    def excess(friction):
        path = stationary(word, h, c, friction, diffusion)
        return path[seen, P, P].mean() - TEMPERATURE

    return stationary(word, h, c, brentq(excess, 0.5 * diffusion, diffusion + 1 / h), diffusion)


@pytest.mark.parametrize("h", [1e-3, 0.5, 1.5])
@pytest.mark.parametrize("c", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("diffusion", [0.1, 3.0, 200.0])
def test_abdodba_is_exact_on_a_gaussian_target(h, c, diffusion):
    curvature = 0.8
    path = stationary("ABDODBA", h, c, diffusion, diffusion, curvature)
    end, middle = path[-1], path[[2, 3], P, P]  # letters A K O K A: before and after O
    np.testing.assert_allclose(end[THETA, THETA], TEMPERATURE / curvature, rtol=1e-9)
    np.testing.assert_allclose(middle, TEMPERATURE, rtol=1e-9)
    at_end = TEMPERATURE / (1 - c - h**2 * curvature / 4)
    np.testing.assert_allclose(end[P, P], at_end, rtol=1e-9)


@pytest.mark.parametrize("word", ["ABOBA", "OABAO", "BADODAB", "OBABO", "euler"])
def test_a_thermostat_that_measures_beside_the_kick_cools_positions_by_c(word):
    """Without a thermostat positions are at T, and momenta before the kick at T/(1 - C)."""
    h, c, diffusion = 1e-4, 0.02, 1.0
    letters = SPELLED[word].replace("D", "")
    kick = max(letters.find("K"), letters.find("E"))
    kick = letters.rindex("K") if opens_with_kick(letters) else kick
    fixed = stationary(word, h, c, diffusion, diffusion)
    assert fixed[-1, THETA, THETA] == pytest.approx(TEMPERATURE, rel=1e-3)
    assert fixed[kick, P, P] == pytest.approx(TEMPERATURE / (1 - c), rel=1e-3)
    adaptive = held(word, h, c, diffusion)
    error = adaptive[-1, THETA, THETA] / TEMPERATURE - (1 - c)
    assert abs(error) < 1.5 * c**2 + 1e-4
    assert held("ABDODBA", h, c, diffusion)[-1, THETA, THETA] == pytest.approx(TEMPERATURE)


@pytest.mark.parametrize("word", ["ABDODBA", "ABOBA", "BADODAB", "OBABO", "OABAO", "euler"])
def test_balanced_kicks_have_the_order_of_the_word_and_plain_kicks_order_one(word):
    """The noise of a gradient does not depend on h, so C is proportional to its square."""

    def bias(h, weighted):
        end = stationary(word, h, 0.5 * h**2, 1.0, 1.0, 1.0, weighted)[-1]
        return np.linalg.norm(end[:2, :2] / TEMPERATURE - np.eye(2))

    orders = [np.log2(bias(0.02, w) / bias(0.01, w)) for w in (True, False)]
    assert orders == pytest.approx([1 if word == "euler" else 2, 1], abs=0.1)


ROWS = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)


def log_likelihood(position, batch):
    """Nonlinear in a tree with a matrix, a vector and a number."""
    u = jnp.tanh(batch @ position["w"].T.astype(batch.dtype)) @ position["b"][0]
    return -((u - position["b"][1]) ** 2)


def log_prior(position):
    return -0.5 * sum(jnp.sum(x.astype(jnp.float32) ** 2) for x in jax.tree.leaves(position))


def position(dtype=jnp.float32):
    return {
        "w": jnp.full((2, 3), 0.7, dtype),
        "b": (jnp.array([1.2, -0.6], dtype), jnp.ones((), dtype)),
    }


PLAIN = isotherm.minibatch_gradient(log_likelihood, log_prior, 4)
BALANCED = isotherm.balanced(PLAIN)


@pytest.mark.parametrize("batch_size", [3, 4], ids=["all-rows", "every-second-row"])
def test_the_mean_over_batches_is_the_gradient_minus_half_the_noise(batch_size, monkeypatch):
    r"""For short kicks $E\hat g = g - \frac{t}{2T}\Sigma v$, here over all batches of this size.

    Batches of four estimate the noise from two of their rows, as large ones of large networks do.
    """
    monkeypatch.setattr(gradients.balanced, "LARGE_POSITION", 1)
    monkeypatch.setattr(gradients.balanced, "ENOUGH_ROWS", 4)
    with jax.enable_x64(True):
        x = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), position())
        v = jax.tree.map(jnp.cos, x)

        def flat(tree):
            return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])

        picks = list(itertools.product(range(4), repeat=batch_size))
        all_batches = jnp.asarray(ROWS.astype(np.float64)[np.array(picks)])
        t, temperature = 1e-5, 0.7
        kicks, plain = jax.jit(
            jax.vmap(
                lambda rows: (
                    flat(BALANCED.at_velocity(x, rows, v, t, temperature)),
                    flat(BALANCED(x, rows)),
                )
            )
        )(all_batches)
        friction = np.asarray(kicks - plain).mean(0)
        sigma = np.cov(np.asarray(plain).T, bias=True)
        expected = -t / (2 * temperature) * sigma @ np.asarray(flat(v))
        np.testing.assert_allclose(friction, expected, rtol=1e-4, atol=1e-12)


THERMOSTATS = ("fixed", "scalar", "per_tensor", "per_coordinate", "full_matrix")


def sampler_of(thermostat, step_size=0.01, temperature=0.8, gradient=BALANCED):
    return isotherm.langevin(
        gradient, step_size, 1.0, thermostat=thermostat, temperature=temperature
    )


@pytest.mark.parametrize(
    ("thermostat", "dtype"),
    [
        (kind, jnp.float32) if kind == "full_matrix" else slow(kind, jnp.float32)
        for kind in THERMOSTATS
    ]
    + [("per_coordinate", jnp.bfloat16)],
)
def test_states_keep_shapes_and_dtypes_and_chains_can_be_mapped_over(key, thermostat, dtype):
    sampler = sampler_of(thermostat, optax.linear_schedule(0.02, 0.01, 2))

    def chain(key):
        def step(state, i):
            return sampler.step(random.fold(key, i), state, ROWS[:3])

        start = sampler.init(position(dtype), random.fold(key, 9))
        return start, *jax.lax.scan(step, start, jnp.arange(3))

    options = {"xla_backend_optimization_level": 0}
    run = jax.jit(jax.vmap(chain), compiler_options=options)
    start, state, info = run(jax.random.split(key, 2))
    described = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)  # noqa: E731
    assert described(start) == described(state)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(state.position))
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in jax.tree.leaves(state))
    assert info.kinetic.shape == (2, 3, 3)
    np.testing.assert_allclose(info.step_size[0], [0.02, 0.015, 0.01], rtol=1e-6)
    assert not np.array_equal(state.momentum["w"][0], state.momentum["w"][1])


@pytest.mark.parametrize("thermostat", THERMOSTATS)
def test_double_precision_is_kept(key, thermostat):
    with jax.enable_x64(True):
        sampler = sampler_of(thermostat)
        state = jax.eval_shape(sampler.init, position(jnp.float64), key)
        rows = jax.ShapeDtypeStruct((3, 3), jnp.float64)
        state, _ = jax.eval_shape(sampler.step, key, state, rows)
        floats = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
        assert all(leaf.dtype == jnp.float64 for leaf in floats)


def one_step(key, gradient, rows, thermostat="fixed"):
    """Trace a step without running it."""
    sampler = sampler_of(thermostat, gradient=gradient)
    state = jax.eval_shape(sampler.init, position(), key)
    return jax.eval_shape(sampler.step, key, state, rows)


def test_gradients_that_cannot_be_balanced_are_refused(key):
    with pytest.raises(ValueError, match="`grad_fn` must come from isotherm"):
        isotherm.balanced(lambda x, batch: x)
    with pytest.raises(ValueError, match="`grad_fn` is balanced already"):
        isotherm.balanced(BALANCED)
    with pytest.raises(ValueError, match="`num_shards` must be"):
        isotherm.balanced(PLAIN, num_shards=0)
    total = isotherm.minibatch_gradient(
        lambda x, batch: jnp.sum(log_likelihood(x, batch)), log_prior, 4
    )
    with pytest.raises(ValueError, match=r"one value per datum, shape \(n,\), got shape \(\)"):
        one_step(key, isotherm.balanced(total), ROWS)


def test_batches_with_too_few_rows_are_refused(key):
    with pytest.raises(ValueError, match="at least two rows, got 1"):
        one_step(key, BALANCED, ROWS[:1])
    two = isotherm.balanced(PLAIN, num_shards=2)
    for rows in (2, 3):
        with pytest.raises(ValueError, match=f"from each of the 2 shards, got {rows}"):
            one_step(key, two, ROWS[:rows])


@jax.custom_vjp
def identity(x):
    return x


identity.defvjp(lambda x: (x, None), lambda _, g: (g,))


def repeated(x):
    return jax.lax.scan(lambda c, _: (identity(c), None), x, None, length=2)[0]


@pytest.mark.parametrize("wrap", [identity, jax.jit(identity), repeated], ids=["", "jit", "scan"])
def test_a_likelihood_without_forward_mode_is_refused_with_a_remedy(key, wrap):
    reverse_only = isotherm.minibatch_gradient(
        lambda x, batch: wrap(log_likelihood(x, batch)), log_prior, 4
    )
    jax.eval_shape(reverse_only, position(), ROWS)  # the plain gradient works
    with pytest.raises(ValueError, match=r"`jax\.custom_vjp`.*`jax\.custom_jvp`"):
        one_step(key, isotherm.balanced(reverse_only), ROWS)


def test_other_type_errors_of_a_likelihood_are_not_hidden(key):
    wrong = isotherm.minibatch_gradient(lambda x, batch: len(batch, x), log_prior, 4)
    with pytest.raises(TypeError, match="exactly one argument"):
        one_step(key, isotherm.balanced(wrong), ROWS)


def test_samplers_that_cannot_use_a_balanced_gradient_refuse_it(key):
    for build in (isotherm.sgld, isotherm.psgld, isotherm.sgrld):
        with pytest.raises(ValueError, match="has no momentum"):
            build(BALANCED, 0.1)
    with pytest.raises(ValueError, match=r"2 gradients per step.*'ABDODBA'"):
        isotherm.msgnht(BALANCED, 0.1, integrator="AKADODAKA")
    with pytest.raises(ValueError, match="`temperature` must be positive with a balanced"):
        isotherm.sghmc(BALANCED, 0.1, temperature=0.0)
    with pytest.raises(ValueError, match="optax passes only the mean gradient"):
        isotherm.as_optax(isotherm.msgnht(BALANCED, 0.1), key)


def sampled(key, batches, gradient=BALANCED):
    sampler = isotherm.msgnht(gradient, 0.01)
    return isotherm.sample(key, sampler, position(), batches, num_draws=2, progress=False)


def test_full_batches_are_refused_and_dependent_rows_cause_a_warning(key):
    with pytest.raises(ValueError, match="a full batch has no noise"):
        sampled(key, isotherm.full_batch(ROWS))
    for policy in (isotherm.shuffled_batches, isotherm.symmetric_batches):
        with pytest.warns(PolicyWarning, match="rows drawn independently"):
            sampled(key, policy(ROWS, 2))


def test_another_number_of_shards_causes_a_warning(key):
    shards = isotherm.sharded_batches(ROWS, 4, 2)
    with pytest.warns(PolicyWarning, match=r"rows of 2 shards.*num_shards=2"):
        sampled(key, shards)
    sampled(key, shards, isotherm.balanced(PLAIN, num_shards=2))
    with pytest.warns(PolicyWarning, match="rows of 1 shards"):
        sampled(key, isotherm.independent_batches(ROWS, 4), isotherm.balanced(PLAIN, num_shards=2))
