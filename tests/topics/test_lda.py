"""LDA with every sampler: gradient and posterior are correct, chains are reproducible."""

from functools import lru_cache

import jax.numpy as jnp
import numpy as np
import pytest
import tiny_corpus as tiny
from scipy import stats

import isotherm
from isotherm.exceptions import DivergedError
from isotherm.topics.corpus import as_corpus, minibatch
from isotherm.topics.expected_counts import gibbs_counts
from isotherm.topics.layout import word_major
from isotherm.topics.lda import LDAChain
from isotherm.topics.scir import SCIR, transition
from isotherm.topics.topic_updates import ExpandedMean, ExpandedNatural
from marks import slow

BUILDERS = {
    "sgld": lambda h: isotherm.sgld(None, h),
    "psgld": lambda h: isotherm.psgld(None, h),
    "sghmc S": lambda h: isotherm.sghmc(None, h),
    "sghmc E": lambda h: isotherm.sghmc(None, h, integrator="euler"),
    "sgnht S": lambda h: isotherm.sgnht(None, h),
    "sgnht E": lambda h: isotherm.sgnht(None, h, integrator="euler"),
    "msgnht S": lambda h: isotherm.msgnht(None, h),
    "msgnht E": lambda h: isotherm.msgnht(None, h, integrator="euler"),
    "sgrld": lambda h: isotherm.sgrld(None, h, prior=0.5),
    "scir": lambda h: SCIR(h, prior=0.5),
}


@lru_cache
def build(name, step_size):
    """Build a sampler once per setting: JAX compiles per sampler object."""
    return BUILDERS[name](step_size)


def simulated(documents=60, seed=0):
    """Documents of three topics on disjoint words."""
    rng = np.random.default_rng(seed)
    topics = np.kron(np.eye(3), np.ones((1, 6))) + 0.01
    theta = rng.dirichlet(np.full(3, 0.1), documents)
    return as_corpus(rng.multinomial(40, theta @ (topics / topics.sum(1, keepdims=True))))


def make(sampler, corpus, **settings):
    return LDAChain(sampler, 3, corpus.num_words, data_size=len(corpus), **settings)


@pytest.mark.parametrize("name", [slow(name) if name[-1] == "E" else name for name in BUILDERS])
def test_every_sampler_learns_topics_and_resumes_bit_for_bit(name):
    corpus = simulated()
    sampler = build(name, 2e-3 if name == "sgld" else 0.02)
    whole, half, rest = (make(sampler, corpus, seed=1) for _ in range(3))
    before = whole.topics()
    whole.advance(corpus, 300, batch_size=10)
    half.advance(corpus, 100, batch_size=10)
    rest.load_state_dict(half.state_dict())
    rest.advance(corpus, 200, batch_size=10)
    np.testing.assert_array_equal(rest.topics(), whole.topics())
    assert rest.num_steps == whole.num_steps == 300

    def block_mass(topics):
        return topics.reshape(3, 3, 6).sum(2).max(1).mean()

    np.testing.assert_allclose(whole.topics().sum(1), 1, rtol=1e-4)
    assert block_mass(whole.topics()) > block_mass(before) + 0.2


@pytest.mark.parametrize("name", ["msgnht S", "scir"])
def test_results_depend_on_the_seed_and_not_on_threads(name, monkeypatch):
    monkeypatch.setattr("isotherm.topics.expected_counts.MIN_THREADED_SECONDS", 0.0)
    corpus, sampler = simulated(), build(name, 0.02)
    results = []
    for threads, seed in ((1, 0), (2, 0), (1, 1)):
        chain = make(sampler, corpus, threads=threads, seed=seed)
        chain.advance(corpus, 20, batch_size=30)
        results.append(chain.topics())
    np.testing.assert_array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])


def test_mean_gradient_of_batches_is_the_gradient_of_all_documents():
    theta = np.random.default_rng(0).standard_normal((2, 3))
    parametrization = ExpandedNatural(tiny.MEAN, tiny.VARIANCE)
    position = jnp.asarray(theta.T)
    topics = parametrization.topics(position)
    rows, result = word_major(np.asarray(topics).T), []
    for step in range(4000):
        batch = minibatch(tiny.CORPUS, 2, seed=0, step=step)
        n = gibbs_counts(rows, batch, tiny.ALPHA, sweeps=30, burn_in=10, seed=0, step=step)
        counts = np.zeros((3, 2), np.float32)
        counts[n.words] = n.counts
        result.append(
            np.asarray(parametrization.gradient(position, topics, len(tiny.CORPUS) / 2 * counts)).T
        )
    result = np.array(result)
    z = (result.mean(0) - tiny.gradient(theta)) / (result.std(0) / np.sqrt(len(result)))
    assert np.abs(z).max() < 4


def test_gradient_of_expanded_mean_topics_has_no_prior():
    theta = np.random.default_rng(1).standard_normal((2, 3))
    counts = jnp.asarray(np.random.default_rng(2).poisson(3.0, (3, 2)), jnp.float32)
    gamma = jnp.exp(jnp.asarray(theta.T, jnp.float32))
    topics = ExpandedMean().topics(gamma)
    np.testing.assert_allclose(
        topics, ExpandedNatural().topics(jnp.asarray(theta.T, jnp.float32)), rtol=1e-5
    )
    flat = ExpandedNatural(0.0, 1e12).gradient(gamma, topics, counts)
    np.testing.assert_allclose(
        ExpandedMean().gradient(gamma, topics, counts), flat, rtol=1e-4, atol=1e-5
    )


def sampled_moments(data_size, num_draws=6_000):
    """Means of topics and of their squares on the tiny corpus, with standard errors over chains."""
    means = []
    sampler = isotherm.msgnht(None, 0.15, thermostat_mass=10.0)
    for seed in range(4):
        chain = LDAChain(
            sampler, 2, 3, data_size=data_size, alpha=tiny.ALPHA, sweeps=6, burn_in=2, seed=seed
        )
        chain.advance(tiny.CORPUS, 300, batch_size=4)
        draws = np.array(list(chain.draws(tiny.CORPUS, num_draws // 4, batch_size=4)))
        means.append([draws.mean(0), (draws**2).mean(0)])
    means = np.array(means)
    return means.mean(0), means.std(0, ddof=1) / 2


@pytest.mark.slow
def test_posterior_is_exact_and_a_missing_scale_is_detected():
    exact = np.array(tiny.posterior_moments())
    result, _ = sampled_moments(data_size=4, num_draws=12_000)
    assert np.abs(result - exact).max() < 0.03
    wrong, _ = sampled_moments(
        data_size=1, num_draws=2_000
    )  # counts of the batch are not scaled to all documents
    assert np.abs(wrong - exact).max() > 0.06


def test_scir_has_the_exact_transition_law_for_any_step_size():
    rng, start, shape = np.random.default_rng(0), 1.7, 0.6
    for h in (0.05, 0.7, 4.0):
        x = transition(rng, np.full(50_000, start), np.full(50_000, shape), h)
        growth = -np.expm1(-h)
        law = stats.ncx2(2 * shape, 2 * start * np.exp(-h) / growth, scale=growth / 2)
        assert stats.kstest(x, law.cdf).pvalue > 1e-4
    two = transition(
        rng, transition(rng, np.full(50_000, start), shape, 0.3), np.full(50_000, shape), 0.4
    )
    growth = -np.expm1(-0.7)
    law = stats.ncx2(2 * shape, 2 * start * np.exp(-0.7) / growth, scale=growth / 2)
    assert stats.kstest(two, law.cdf).pvalue > 1e-4
    euler = np.abs(
        start + 0.7 * (shape - start) + np.sqrt(2 * 0.7 * start) * rng.standard_normal(50_000)
    )
    assert stats.kstest(euler, law.cdf).pvalue < 1e-10  # the test has power


def test_scir_leaves_the_dirichlet_prior_invariant_without_data():
    chain = LDAChain(SCIR(0.5, prior=0.3), 2000, 3, data_size=1.0)
    empty = as_corpus(np.zeros((1, 3), int))
    for _ in range(20):
        chain.step(empty)
    marginal = stats.beta(0.3, 0.6)
    assert stats.kstest(chain.topics()[:, 0], marginal.cdf).pvalue > 1e-4


def test_divergence_raises_an_error_with_advice():
    corpus = simulated()
    chain = make(isotherm.msgnht(None, 3.0, integrator="euler"), corpus)
    with pytest.raises(
        DivergedError, match=r"msgnht euler diverged.*smaller `step_size`"
    ) as caught:
        chain.advance(corpus, 200, batch_size=5)
    assert caught.value.last_step == chain.num_steps < 200


def test_bad_settings_are_refused():
    corpus = simulated()
    with pytest.raises(ValueError, match="exactly one gradient"):
        make(isotherm.msgnht(None, 0.1, integrator="AKADBNBDAKA"), corpus)
    with pytest.raises(ValueError, match="`data_size` must be positive, got 0"):
        LDAChain(SCIR(0.1), 2, 3, data_size=0)
    with pytest.raises(ValueError, match="`batch` has 18 words, the chain 5"):
        LDAChain(SCIR(0.1), 2, 5, data_size=3).step(corpus)
    with pytest.raises(ValueError, match="no documents"):
        make(SCIR(0.1), corpus).step(corpus[:0])
    with pytest.raises(ValueError, match="has its own"):
        make(SCIR(0.1), corpus, parametrization=ExpandedNatural())
    with pytest.raises(ValueError, match="another sampler"):
        make(SCIR(0.1), corpus).load_state_dict(
            make(build("sgld", 2e-3), corpus[:10]).state_dict() | {"position": np.ones(3)}
        )
    with pytest.raises(ValueError, match="`prior` must be positive"):
        SCIR(0.1, prior=0.0)
