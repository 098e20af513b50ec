"""Geweke's joint-distribution test of whole DPFA chains: all updates, then new words.

*Gibbs sampling* is exact: a chain starts with a draw of all variables, is swept, and its law must
be that of the model; two-sample z-tests against new draws. *Stochastic gradients* have a
discretization error: as in `test_geweke_sgmcmc.py`, functions of parameters and words have the same
mean before and after the steps, by t-tests over independent chains. Bonferroni over the
observables, level `FALSE_ALARM`.

There are few chains, so the power is low; the powerful tests are those of the conditionals
(`test_dpfa_kernel.py`, `test_dpfa_conditionals.py`), and these tests detect gross errors in their
combination. The two mutants were rejected with 2 of 2 and 3 of 3 seeds; documents with weight 3 or
0.1 were *not* distinguished from correct code.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest
from dpfa_tools import FALSE_ALARM, as_state, corpus_of
from gibbs_laws import choices, two_sample_p_value
from scipy import stats

import isotherm
from isotherm.topics.dpfa import conjugate, rates
from isotherm.topics.dpfa.belief_network import Network
from isotherm.topics.dpfa.gibbs import DPFAGibbs
from isotherm.topics.dpfa.model import DPFA, draw_intensities, draw_units
from isotherm.topics.dpfa.sgmcmc import DPFAChain
from isotherm.topics.scir import SCIR

MODEL = DPFA(4, layers=(3, 2), eta=1.0, p=None, c0=2.0, e0=6.0, f0=4.0, a0=3.0, b0=3.0)


def observables(parameters, corpus):
    """Functions of the parameters, of the words, and of both."""
    topics, w, r = parameters.topics, parameters.weights[0], np.minimum(parameters.rates, 4)
    n = corpus.to_csr().toarray()
    x = np.minimum(n.sum(0), 20)
    c = np.concatenate(parameters.biases)
    fit, c1 = topics @ x, parameters.biases[0]
    log_mean = np.log((topics * r[:, None]).sum(0) / r.sum())
    values = [
        (topics**2).sum(1).mean(),
        w.mean(),
        (w**2).mean(),
        c.mean(),
        (c**2).mean(),
        r.mean(),
        (r**2).mean(),
        parameters.gamma0,
        parameters.p.mean(),
        (parameters.p**2).mean(),
        x.mean(),
        (n > 0).mean(),
        (x * log_mean).mean(),
        r.mean() * x.mean(),
        parameters.p.mean() * x.mean(),
        parameters.biases[0].mean() * x.mean(),
        w.mean() * x.mean(),
        (r.mean() * (w**2)).mean(),
        (c1 * fit).mean(),
        (r * fit).mean(),
        (parameters.p * fit).mean(),
        (topics**2 @ x).mean(),
    ]
    return np.array(values)


def drawn(rng, parameters, documents):
    """Draw documents and the state of their local variables."""
    h = draw_units(rng, parameters, documents)
    theta = draw_intensities(rng, parameters, np.zeros(h[0].shape), h[0], prior=True)
    n = rng.poisson(theta)
    starts = np.concatenate([[0], np.cumsum(n.sum(1))])
    z = np.repeat(np.tile(np.arange(3), documents), n.ravel())
    corpus, z, _ = corpus_of(rng, choices(rng, parameters.topics[z]), starts, MODEL.num_words, z)
    return corpus, as_state(h, z)


def gibbs_p_value(*, seed=0, chains=400, rounds=3, documents=15):
    rng, result, fresh = np.random.default_rng(seed), [], []
    for i in range(chains):
        parameters = MODEL.draw(rng)
        for r in range(rounds):
            corpus, local = drawn(rng, parameters, documents)
            chain = DPFAGibbs(MODEL, corpus, seed=1000 * i + r, parameters=parameters)
            chain.start_from(*local)
            chain.sweep(2)
            parameters = chain.parameters()
        result.append(observables(parameters, drawn(rng, parameters, documents)[0]))
    for _ in range(3 * chains):
        parameters = MODEL.draw(rng)
        fresh.append(observables(parameters, drawn(rng, parameters, documents)[0]))
    return two_sample_p_value(np.array(result), np.array(fresh))


@pytest.mark.slow
def test_gibbs_sampling_leaves_the_joint_law_invariant():
    assert gibbs_p_value() > FALSE_ALARM


@pytest.mark.slow
def test_gibbs_sampling_with_on_and_off_exchanged_is_rejected(monkeypatch):
    draw = conjugate.draw_network

    def mutant(rng, moments):
        return draw(rng, moments._replace(shift=tuple(-x for x in moments.shift)))

    monkeypatch.setattr(conjugate, "draw_network", mutant)
    assert gibbs_p_value() < FALSE_ALARM


TOPICS, NETWORK = SCIR(0.05, MODEL.eta), isotherm.msgnht(None, 0.1)
SIZE = 20


def started(rng, parameters, corpus, seed, **settings):
    """Build a chain at given parameters, with momenta, thermostats and masses in equilibrium."""
    chain = DPFAChain(
        MODEL,
        TOPICS,
        NETWORK,
        **{"data_size": SIZE, "rate_step": 0.02, "seed": seed} | settings,
        sweeps=6,
        burn_in=3,
        thin=1,
    )
    mass = rng.standard_gamma(MODEL.num_words * MODEL.eta + corpus.num_tokens / 3, (1, 3))
    position = (parameters.topics.T * mass).astype(np.float32)
    chain.topics_state = chain.topics_state._replace(position=position)
    network = jax.tree.map(np.float32, Network(parameters.weights, parameters.biases))
    thermostat = jax.tree.map(lambda x: np.float32(1 + rng.standard_normal(x.shape)), network)
    chain.network_state = chain.network_state._replace(position=network, thermostat=thermostat)
    masses = np.stack([parameters.p, 1 - parameters.p]) * rng.standard_gamma(
        6 + corpus.num_tokens / 3, (1, 3)
    )
    chain.rates = rates.Rates(parameters.rates, parameters.gamma0, masses)
    return chain


def chain_p_value(*, seed=0, chains=30, steps=30, batch=SIZE, **settings):
    result = []
    for i in range(chains):
        rng = np.random.default_rng([seed, i])
        parameters = MODEL.draw(rng)
        corpus = MODEL.draw_documents(rng, parameters, SIZE).corpus
        chain = started(rng, parameters, corpus, 1000 * seed + i, **settings)
        for step in range(steps):
            rows = (step * batch + np.arange(batch)) % SIZE
            chain.step(corpus[rows])
        result.append(observables(chain.parameters(), corpus) - observables(parameters, corpus))
    result = np.array(result)
    result = result[:, result.std(0) > 0]
    return min(1.0, result.shape[1] * stats.ttest_1samp(result, 0).pvalue.min())


def test_chain_leaves_the_joint_law_invariant_with_batches_of_half_the_documents():
    assert chain_p_value(batch=SIZE // 2) > FALSE_ALARM


@pytest.mark.slow
def test_chain_with_a_wrong_scale_is_rejected():
    assert chain_p_value(data_size=100 * SIZE) < FALSE_ALARM


def test_rates_are_sampled_unless_they_are_fixed():
    assert MODEL.r is None and MODEL.gamma0 is None and MODEL.p is None
    assert replace(MODEL, r=1.0).draw(np.random.default_rng(0)).rates.tolist() == [1.0] * 3
