"""A sampler as an optimiser is the sampler, number for number."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import isotherm
from isotherm import random
from isotherm.dynamics.integrators import NAMED_WORDS

SAMPLERS = {
    "sgld": lambda g: isotherm.sgld(g, 0.2),
    "psgld": lambda g: isotherm.psgld(g, 0.2, freeze_after=3),
    "sgrld": lambda g: isotherm.sgrld(g, 0.2, 2.0),
    "sgnht": lambda g: isotherm.sgnht(g, 0.2),
    "schedule": lambda g: isotherm.msgnht(g, optax.linear_schedule(0.3, 0.1, 5)),
    **{w: lambda g, w=w: isotherm.msgnht(g, 0.2, integrator=w) for w in ("euler", *NAMED_WORDS)},
    "sghmc-BAOAB": lambda g: isotherm.sghmc(g, 0.2, integrator="BAOAB"),
}


def loss(params, batch):
    return 0.5 * jnp.sum((params["w"] - batch) ** 2) + 0.1 * params["b"] ** 4


START = {"w": jnp.array([1.0, 2.0]), "b": jnp.array(0.5)}


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_optimiser_is_the_sampler_step_by_step(key, name):
    """Update k + 1 (or k, if no half step comes first) ends where step k of the sampler does."""
    scale = 2.0  # the loop minimises half of -log density

    def grad_fn(params, batch):
        return jax.tree.map(lambda g: -scale * g, jax.grad(loss)(params, batch))

    sampler = SAMPLERS[name](grad_fn)
    state = sampler.init(START, random.fold(key, 2))
    optimizer = isotherm.as_optax(SAMPLERS[name](None), key, loss_scale=scale)
    params, memory = START, optimizer.init(START)
    update = jax.jit(optimizer.update)

    def one_update(params, memory, batch):
        updates, memory = update(jax.grad(loss)(params, batch), memory, params)
        return optax.apply_updates(params, updates), memory

    if sampler.halves.moves_before_gradient:
        params, memory = one_update(params, memory, jnp.nan)  # this gradient is not used
    step = jax.jit(sampler.step)
    for t in range(8):
        batch = jnp.float32(0.1 * t)
        params, memory = one_update(params, memory, batch)
        state, _ = step(random.fold(random.fold(key, 0), t), state, batch)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5),
            memory.chain._asdict(),
            state._asdict(),
        )
    assert memory.position is memory.chain.position


def test_one_changed_line_turns_training_into_sampling(key):
    """A plain optax loop on a Gaussian posterior: mean and variance come out right."""
    data = jax.random.normal(key, (100,)) + 3

    def mean_loss(mean):  # minus the log posterior with a flat prior, over N
        return 0.5 * jnp.mean((data - mean) ** 2)

    optimizer = isotherm.as_optax(isotherm.msgnht(None, 0.03, 10.0, thermostat_mass=0.1), key,
                                  loss_scale=len(data))  # fmt: skip

    def train_step(carry, _):
        params, memory = carry
        updates, memory = optimizer.update(jax.grad(mean_loss)(params), memory, params)
        return (optax.apply_updates(params, updates), memory), memory.position

    params = jnp.array(3.0)
    _, draws = jax.lax.scan(train_step, (params, optimizer.init(params)), length=60_000)
    assert float(draws.mean()) == pytest.approx(float(data.mean()), abs=0.01)
    assert float(draws.std()) == pytest.approx(0.1, rel=0.05)


def test_two_gradients_per_step_do_not_fit(key):
    with pytest.raises(ValueError, match="exactly one gradient per step"):
        isotherm.as_optax(isotherm.msgnht(None, 0.1, integrator="AKADODAKA"), key)


def test_params_are_needed(key):
    optimizer = isotherm.as_optax(isotherm.sgld(None, 0.1), key)
    with pytest.raises(ValueError, match="needs `params`"):
        optimizer.update(jnp.zeros(2), optimizer.init(jnp.zeros(2)))
