"""Geweke's test of the updates of all global parameters: r, p, gamma0, topics, weights and biases.

Topics (or units) are independent given their hyperparameters, so each is a chain: thousands of
chains in one call. A chain starts with a draw of all variables from the model; in each round the
parameters are updated given the data, then data are drawn given the parameters. The law of
functions of both must not change: two-sample z-tests against new draws, Bonferroni, level
`FALSE_ALARM`. Mutants are wrong settings or wrong data. Each was rejected with 5 of 5 seeds, the
largest p-value was 3e-11; the smallest of 35 p-values of correct code was 0.45.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest
from dpfa_tools import FALSE_ALARM
from gibbs_laws import two_sample_p_value
from scipy.special import expit

import isotherm
from isotherm.topics.dpfa import conjugate, rates
from isotherm.topics.dpfa.belief_network import Network, NetworkUpdate, gradient
from isotherm.topics.dpfa.model import DPFA

CHAINS, DOCUMENTS = 20_000, 6
MODEL = DPFA(1, layers=(CHAINS,), gamma0=2.0, r=None, p=None, c0=1.5, a0=3.0, b0=2.0)


def rate_data(rng, r, p):
    """Draw units and tokens (documents, topics)."""
    on = rng.random((DOCUMENTS, len(r))) < 0.6
    n = rng.poisson(rng.standard_gamma(r * on) * (p / (1 - p)))
    return n, on


def rate_prior(rng, model):
    size = model.num_topics
    r, p = rng.gamma(2.0, 1 / model.c0, size), rng.beta(model.a0, model.b0, size)
    p = p if model.p is None else np.full(size, model.p)
    return rates.Rates(r, 2.0, np.stack([p, 1 - p])), *rate_data(rng, r, p)


def rate_observables(state, n, on):
    r, p, m = state.rates, state.p, np.minimum(n, 6).mean(0)
    r = np.minimum(r, 6)
    return np.stack([r, r**2, p, p**2, m, m**2, r * m, p * m, r * p, r * on.mean(0)], axis=1)


def rate_p_value(update, *, model=MODEL, seed=0, rounds=2):
    rng = np.random.default_rng(seed)
    state, n, on = rate_prior(rng, model)
    for _ in range(rounds):
        state = update(rng, state, n, on)
        n, on = rate_data(rng, state.rates, state.p)
    fresh = rate_observables(*rate_prior(rng, replace(model, layers=(100_000,))))
    keep = fresh.std(0) > 1e-6
    return two_sample_p_value(rate_observables(state, n, on)[:, keep], fresh[:, keep])


def exact(model=MODEL, **wrong):
    return lambda rng, state, n, on: rates.gibbs_update(replace(model, **wrong), rng, state, n, on)


def diffused(model=MODEL, scale=1.0, steps=10, step_size=0.02, **wrong):
    """Take ten small steps; the masses start in equilibrium given p."""

    def update(rng, state, n, on):
        a = model.a0 + n.sum(0) + model.b0 + state.rates * on.sum(0)
        state = state._replace(masses=state.masses / state.masses.sum(0) * rng.standard_gamma(a))
        for _ in range(steps):
            state = rates.cir_update(
                replace(model, **wrong),
                rng,
                state,
                n[None],
                on[None],
                data_size=scale * DOCUMENTS,
                step_size=step_size,
            )
        return state

    return update


RATE_UPDATES = {
    "exact": exact(),
    "exact, p fixed": exact(replace(MODEL, p=0.6)),
    "diffusion": diffused(),
    "diffusion, p fixed": diffused(replace(MODEL, p=0.6)),
}
RATE_MUTANTS = {
    "r with another prior rate": exact(c0=2.0),
    "r with another prior shape": lambda rng, state, n, on: rates.gibbs_update(
        MODEL, rng, state._replace(gamma0=1.8), n, on
    ),
    "tokens instead of tables": lambda rng, state, n, on: rates.draw_from_sums(
        MODEL, rng, state, n.sum(0), n.sum(0), on.sum(0)
    ),
    "units that are off count as on": lambda rng, state, n, on: rates.gibbs_update(
        MODEL, rng, state, n, np.ones_like(on)
    ),
    "p with another prior": exact(a0=4.0),
    "diffusion, documents counted twice": diffused(scale=2.0),
    "diffusion, another prior rate": diffused(c0=3.0),
    "diffusion, p with another prior": diffused(b0=4.0),
}


@pytest.mark.parametrize("name", RATE_UPDATES)
def test_rate_updates_leave_the_joint_law_invariant(name):
    model = replace(MODEL, p=0.6) if "fixed" in name else MODEL
    assert rate_p_value(RATE_UPDATES[name], model=model) > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("name", RATE_MUTANTS)
def test_mutant_of_the_rates_is_rejected(name):
    assert rate_p_value(RATE_MUTANTS[name], rounds=5) < FALSE_ALARM


def gamma0_p_value(wrong, seed=0, chains=3000, topics=3):
    """Chains of (gamma0, r): draw gamma0 given r, then r given gamma0."""
    rng = np.random.default_rng(seed)
    model = DPFA(1, layers=(topics,), c0=1.5, e0=2.0, f0=1.0)
    other = replace(model, **wrong)
    result = np.empty((chains, 4))
    for i in range(chains):
        g = rng.gamma(2.0)
        for _ in range(2):
            r = rng.gamma(g, 1 / model.c0, topics)
            g = rates._draw_gamma0(other, rng, g, np.maximum(r, 1e-300))
        m = min(r.mean(), 6.0)
        result[i] = g, g**2, m, g * m
    g = rng.gamma(2.0, size=100_000)
    m = np.minimum(rng.gamma(g[:, None], 1 / model.c0, (len(g), topics)).mean(1), 6.0)
    return two_sample_p_value(result, np.stack([g, g**2, m, g * m], axis=1))


def test_gamma0_update_leaves_the_joint_law_invariant():
    assert gamma0_p_value({}) > FALSE_ALARM


@pytest.mark.parametrize("wrong", [{"c0": 2.5}, {"e0": 3.0}, {"f0": 2.0}], ids=str)
def test_mutant_of_gamma0_is_rejected(wrong):
    assert gamma0_p_value(wrong) < FALSE_ALARM


def units_given(rng, network, above):
    """Draw the lower layer given the upper one (documents, 2)."""
    logits = above @ network.weights[0].T + network.biases[0]
    return rng.random(logits.shape) < expit(logits)


def network_observables(network, below, above):
    """Weights and bias of each unit, and their products with its data."""
    w, c = np.asarray(network.weights[0], float), np.asarray(network.biases[0], float)
    mean, slope = below.mean(0), (below.T - 0.5) @ above
    parts = [w, w**2, c[:, None], c[:, None] ** 2, mean[:, None], w * slope, (c * mean)[:, None]]
    return np.concatenate([*parts, w[:, :1] * w[:, 1:]], axis=1)


def network_p_value(update, seed=0, chains=CHAINS, rounds=2, documents=8):
    rng = np.random.default_rng(seed)
    above = np.array([[0, 0], [0, 1], [1, 1], [0, 1]] * (documents // 4), bool)

    def prior(size):
        w, c = rng.standard_normal((size, 2)), rng.standard_normal(size)
        network = Network((w,), (c, np.zeros(2)))
        return network, units_given(rng, network, above)

    network, below = prior(chains)
    for _ in range(rounds):
        network = update(rng, network, (below, above))
        below = units_given(rng, network, above)
    fresh = network_observables(*prior(100_000), above)
    return two_sample_p_value(network_observables(network, below, above), fresh)


def regression(half=0.5, tilt=1.0):
    def update(rng, network, units):
        tilted = Network((tilt * network.weights[0],), network.biases)
        moments = conjugate.draw_moments(rng, tilted, units)
        shift = tuple(x + (0.5 - half) for x in moments.shift)
        return conjugate.draw_network(rng, moments._replace(shift=shift))

    return update


SAMPLER = isotherm.msgnht(None, 0.2)
"""Built once: JAX compiles per sampler object."""


def sampled(scale=1.0, steps=10):
    """Take steps of mSGNHT-S; momentum and thermostat start in equilibrium."""
    layers = (CHAINS, 2)
    network_update = NetworkUpdate(SAMPLER, layers, inner_steps=steps)

    def run(rng, network, units):
        position = jax.tree.map(lambda x: x.astype(np.float32), network)
        state = SAMPLER.init(position, jax.random.key(rng.integers(2**31)))
        thermostat = jax.tree.map(lambda x: np.float32(1 + rng.standard_normal(x.shape)), position)
        state = state._replace(thermostat=thermostat)
        seed = int(rng.integers(2**31))
        flat = tuple(x[None] for x in units)
        half = network_update.begin_step(seed, state)
        state = network_update.finish_step(seed, half, flat, scale * len(units[0]))
        return jax.tree.map(lambda x: np.asarray(x, float), state.position)

    return run


NETWORK_UPDATES = {"regressions": regression(), "mSGNHT-S": sampled()}
NETWORK_MUTANTS = {
    "regressions, labels not centred": regression(half=0.3),
    "regressions, Pólya-Gamma variables of other weights": regression(tilt=0.0),
    "mSGNHT-S, documents counted twice": sampled(scale=2.0),
}


@pytest.mark.parametrize("name", NETWORK_UPDATES)
def test_weight_updates_leave_the_joint_law_invariant(name):
    assert network_p_value(NETWORK_UPDATES[name]) > FALSE_ALARM


@pytest.mark.parametrize("name", NETWORK_MUTANTS)
def test_mutant_of_the_weights_is_rejected(name):
    assert network_p_value(NETWORK_MUTANTS[name]) < FALSE_ALARM


def topics_p_value(eta, seed=0):
    rng, prior = np.random.default_rng(seed), np.full(3, 0.5)
    phi = rng.dirichlet(prior, CHAINS)
    for _ in range(2):
        n = rng.multinomial(4, phi)
        phi = conjugate.draw_topics(rng, n.T, eta)
    n = rng.multinomial(4, phi)
    other = rng.dirichlet(prior, 100_000)
    m = rng.multinomial(4, other)
    return two_sample_p_value(*(np.hstack([a, a**2, a * b]) for a, b in ((phi, n), (other, m))))


def test_topic_draws_leave_the_joint_law_invariant_and_a_mutant_is_rejected():
    assert topics_p_value(0.5) > FALSE_ALARM
    assert topics_p_value(0.7) < FALSE_ALARM


def test_gradient_agrees_with_automatic_differentiation():
    rng = np.random.default_rng(0)
    layers = (5, 4, 3)
    units = tuple((rng.random((7, k)) < 0.5).astype(np.float32) for k in layers)
    network = Network(
        tuple(rng.standard_normal((a, b)).astype(np.float32) for a, b in ((5, 4), (4, 3))),
        tuple(rng.standard_normal(k).astype(np.float32) for k in layers),
    )

    def log_posterior(network):
        total = 0.0
        for layer, (h, c) in enumerate(zip(units, network.biases, strict=True)):
            psi = c[None].repeat(7, 0)
            if layer < 2:
                psi = units[layer + 1] @ network.weights[layer].T + c[None]
            total += 2.5 * (h * psi - jax.nn.softplus(psi)).sum()
        return total - sum((x**2).sum() / 2 for x in jax.tree.leaves(network))

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        jax.jit(jax.grad(log_posterior))(network),
        jax.jit(gradient)(network, units, 2.5),
    )


def test_mean_number_of_tables_agrees_with_its_formula():
    rng = np.random.default_rng(0)
    n, r = np.array([[3, 0], [7, 2]]), np.array([0.7, 2.0])
    result = np.array([rates.draw_tables(rng, n, r) for _ in range(4000)])
    z = (result.mean(0) - rates.expected_tables(n, r)) / (result.std(0) / 4000**0.5)
    assert np.abs(z).max() < 4.5
    assert result.min() >= 1 and result.max() <= 10
