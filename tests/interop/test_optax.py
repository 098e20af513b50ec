"""A sampler as an optax optimiser computes the same chain."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import isotherm
from isotherm import random
from isotherm.dynamics.integrators import NAMED_WORDS
from isotherm.models.networks import mlp
from marks import slow

SAMPLERS = {
    "sgld": lambda g: isotherm.sgld(g, 0.2),
    "psgld": lambda g: isotherm.psgld(g, 0.2, freeze_after=3),
    "sgrld": lambda g: isotherm.sgrld(g, 0.2, 2.0),
    "sgnht": lambda g: isotherm.sgnht(g, 0.2),
    "schedule": lambda g: isotherm.msgnht(g, optax.linear_schedule(0.3, 0.1, 5)),
    **{w: lambda g, w=w: isotherm.msgnht(g, 0.2, integrator=w) for w in ("euler", *NAMED_WORDS)},
    "sghmc-BAOAB": lambda g: isotherm.sghmc(g, 0.2, integrator="BAOAB"),
}
QUICK = ("sgld", "psgld", "sgrld", "schedule", "euler", "ABOBA", "BADODAB")
"""All families, and words that begin with a drift and with a kick."""


def loss(params, batch):
    return 0.5 * jnp.sum((params["w"] - batch) ** 2) + 0.1 * params["b"] ** 4


START = {"w": jnp.array([1.0, 2.0]), "b": jnp.array(0.5)}


@pytest.mark.parametrize("name", [name if name in QUICK else slow(name) for name in SAMPLERS])
def test_the_optimiser_equals_the_sampler_step_by_step(key, name):
    """Update k + 1 (or k, if no half step comes first) ends at the state of step k."""
    scale = 2.0  # the loop minimises half of -log density

    def grad_fn(params, batch):
        return jax.tree.map(lambda g: -scale * g, jax.grad(loss)(params, batch))

    sampler = SAMPLERS[name](grad_fn)
    state = sampler.init(START, random.fold(key, 2))
    optimizer = isotherm.as_optax(SAMPLERS[name](None), key, loss_scale=scale)
    params, optimizer_state = START, optimizer.init(START)
    update = jax.jit(optimizer.update)

    def one_update(params, optimizer_state, batch):
        grads = jax.grad(loss)(params, batch)
        updates, optimizer_state = update(grads, optimizer_state, params)
        return optax.apply_updates(params, updates), optimizer_state

    if sampler.halves.moves_before_gradient:
        # the first gradient is not used
        params, optimizer_state = one_update(params, optimizer_state, jnp.nan)
    step = jax.jit(sampler.step)
    for t in range(8):
        batch = jnp.float32(0.1 * t)
        params, optimizer_state = one_update(params, optimizer_state, batch)
        state, _ = step(random.fold(random.fold(key, 0), t), state, batch)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5),
            optimizer_state.chain._asdict(),
            state._asdict(),
        )
    assert optimizer_state.position is optimizer_state.chain.position


def test_one_changed_line_turns_training_into_sampling(key):
    """A plain optax loop on a Gaussian posterior gives its mean and variance."""
    data = jax.random.normal(key, (100,)) + 3

    def mean_loss(mean):  # minus the log posterior with a flat prior, over N
        return 0.5 * jnp.mean((data - mean) ** 2)

    optimizer = isotherm.as_optax(
        isotherm.msgnht(None, 0.03, 10.0, thermostat_mass=0.1), key, loss_scale=len(data)
    )

    def train_step(carry, _):
        params, state = carry
        updates, state = optimizer.update(jax.grad(mean_loss)(params), state, params)
        return (optax.apply_updates(params, updates), state), state.position

    params = jnp.array(3.0)
    _, draws = jax.lax.scan(train_step, (params, optimizer.init(params)), length=60_000)
    assert float(draws.mean()) == pytest.approx(float(data.mean()), abs=0.01)
    assert float(draws.std()) == pytest.approx(0.1, rel=0.05)


TRAINING = """
optimizer = optax.adam(1e-2)
state = optimizer.init(params)

@jax.jit
def update(params, state, batch):
    updates, state = optimizer.update(jax.grad(mean_loss)(params, batch), state, params)
    return optax.apply_updates(params, updates), state

history = []
for batch in stream:
    params, state = update(params, state, batch)
    history.append((params, state))
"""


@pytest.mark.slow
def test_a_training_script_of_a_network_samples_after_one_changed_line(key):
    """The script differs in one line, and its draws are those of `isotherm.run_chain`."""
    size, x = 40, jax.random.normal(key, (40, 2))
    network, num_steps = mlp((2, 8, 3)), 25
    batches = isotherm.independent_batches((x, jnp.arange(size) % 3), batch_size=10)
    stream = [batches.batch(random.fold(key, 1), max(t - 1, 0)) for t in range(num_steps + 1)]

    def mean_loss(params, batch):
        return -jnp.mean(network.log_likelihood(params, batch)) - network.log_prior(params) / size

    def run(script):
        names = {**globals(), "mean_loss": mean_loss, "stream": stream, "key": key, "size": size}
        names["params"] = network.init(key)
        exec(script, names)
        return names["history"]

    changed = TRAINING.replace(
        "optax.adam(1e-2)", "isotherm.as_optax(isotherm.msgnht(None, 0.02), key, loss_scale=size)"
    )
    lines = zip(TRAINING.splitlines(), changed.splitlines(), strict=True)
    assert sum(before != after for before, after in lines) == 1
    run(TRAINING)
    found = [state.position for _, state in run(changed)[1:]]  # the first update only moves
    sampler = isotherm.msgnht(network.gradient(size), 0.02)
    draws, _ = jax.jit(
        lambda: isotherm.run_chain(key, sampler, network.init(key), batches, num_draws=num_steps)
    )()
    for i, leaves in enumerate(map(jax.tree.leaves, found)):
        for ours, theirs in zip(leaves, jax.tree.leaves(draws), strict=True):
            np.testing.assert_allclose(ours, theirs[i], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("sampler", "copies"),
    [
        (isotherm.sgld(None, 0.1), 1),
        (isotherm.sghmc(None, 0.1), 2),
        (isotherm.msgnht(None, 0.1), 3),
    ],
    ids=["sgld", "sghmc", "msgnht"],
)
def test_the_state_has_the_documented_size(key, sampler, copies):
    params = jnp.zeros(10_000)
    state = isotherm.as_optax(sampler, key).init(params)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert copies * params.nbytes <= size < copies * params.nbytes + 100


def test_two_gradients_per_step_are_refused(key):
    with pytest.raises(ValueError, match="exactly one gradient per step"):
        isotherm.as_optax(isotherm.msgnht(None, 0.1, integrator="AKADODAKA"), key)


def test_params_are_required(key):
    optimizer = isotherm.as_optax(isotherm.sgld(None, 0.1), key)
    with pytest.raises(ValueError, match="needs `params`"):
        optimizer.update(jnp.zeros(2), optimizer.init(jnp.zeros(2)))
