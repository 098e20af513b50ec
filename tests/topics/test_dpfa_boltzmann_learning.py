"""Learning of the deep Boltzmann machine: contrastive divergence, topic updates, resuming."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from boltzmann_law import all_layers, draw_layers
from dpfa_tools import FALSE_ALARM, TINY
from scipy import stats

import isotherm
from isotherm.topics import expected_counts
from isotherm.topics.corpus import as_corpus, completion
from isotherm.topics.dpfa import boltzmann_kernels, boltzmann_network, local_gibbs
from isotherm.topics.dpfa.belief_network import Network
from isotherm.topics.dpfa.boltzmann import DPFABoltzmann
from isotherm.topics.dpfa.boltzmann_topics import LogGamma, MultiStepUpdate
from isotherm.topics.dpfa.model import DPFA, draw_intensities
from isotherm.topics.dpfa.perplexity import DPFAScore
from isotherm.topics.dpfa.sgmcmc import WeightsDivergedError
from isotherm.topics.lda import TopicsDivergedError
from isotherm.topics.perplexity import perplexity, unigram
from isotherm.topics.scir import SCIR
from isotherm.topics.topic_updates import SamplerUpdate

SAMPLER = isotherm.msgnht(None, 0.005, 1.0, integrator="euler")
"""Built once: JAX compiles per sampler object."""


@partial(jax.jit, static_argnames="steps")
def _divergences(keys, network, units, steps):
    return jax.vmap(
        lambda key, h: boltzmann_network.contrastive_divergence(key, network, h, steps)
    )(keys, units)


def divergence(network, units, steps, groups=100):
    """Return mean and standard error of the contrastive divergence over many groups of rows."""
    units = tuple(h.reshape(groups, -1, h.shape[1]) for h in units)
    keys = jax.random.split(jax.random.key(0), groups)
    estimate = _divergences(keys, network, units, steps)
    return [(np.mean(x, 0), np.std(x, 0) / groups**0.5) for x in jax.tree.leaves(estimate)]


def largest_z(estimate, exact):
    return max(
        np.abs((mean - x) / error).max() for (mean, error), x in zip(estimate, exact, strict=True)
    )


LIMIT = 4.6
"""Limit of 17 z-scores: one is larger with a probability below 1e-4."""
NETWORK = Network(
    tuple(w.astype(np.float32) for w in TINY.weights),
    tuple(c.astype(np.float32) for c in TINY.biases),
)


@pytest.mark.slow
def test_contrastive_divergence_vanishes_if_layers_have_the_law_of_the_machine():
    """And only then: with other weights or biases it does not."""
    units = draw_layers(np.random.default_rng(0), TINY, 100_000)
    zeros = [np.zeros_like(x) for x in jax.tree.leaves(NETWORK)]
    assert largest_z(divergence(NETWORK, units, 1), zeros) < LIMIT
    for mutant in (
        NETWORK._replace(weights=(-NETWORK.weights[0], NETWORK.weights[1])),
        NETWORK._replace(biases=(*NETWORK.biases[:2], NETWORK.biases[2] + 0.2)),
    ):
        assert largest_z(divergence(mutant, units, 1), zeros) > 2 * LIMIT


def test_contrastive_divergence_converges_to_the_gradient():
    h, log_p = all_layers(TINY)
    law = np.exp(log_p - log_p.max()) / np.exp(log_p - log_p.max()).sum()
    data = np.tile([[1, 0, 1, 0, 1, 1, 0]], (100_000, 1))
    units = np.split(data, [3, 5], axis=1)
    model = [
        *(np.einsum("n,ni,nj->ij", law, a, b) for a, b in itertools.pairwise(h)),
        *(law @ x for x in h),
    ]
    exact = [
        *(np.outer(a[0], b[0]) for a, b in itertools.pairwise(units)),
        *(x[0] for x in units),
    ]
    exact = [x - y for x, y in zip(exact, model, strict=True)]
    assert largest_z(divergence(NETWORK, units, 40), exact) < LIMIT
    assert largest_z(divergence(NETWORK, units, 1), exact) > 2 * LIMIT


def test_optimizer_steps_and_decay_of_weights_only(monkeypatch):
    """Compare with the recursion of momentum 0.5, rate 0.01 and decay 0.005."""
    rng = np.random.default_rng(0)
    shapes = jax.tree.map(np.shape, NETWORK, is_leaf=lambda x: isinstance(x, np.ndarray))
    grads = jax.tree.map(
        lambda shape: rng.normal(size=shape).astype(np.float32),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple) and all(isinstance(n, int) for n in x),
    )
    monkeypatch.setattr(boltzmann_network, "contrastive_divergence", lambda *_: grads)
    update = boltzmann_network.ContrastiveDivergence(steps=7)  # not compiled by another test
    state = update.init(NETWORK)
    units = tuple(np.zeros((2, 5, len(c)), np.uint8) for c in NETWORK.biases)
    for _ in range(2):
        state = update.finish_step(0, update.begin_step(0, state), units, 1.0)
    for group, decay in (("weights", 0.005), ("biases", 0.0)):
        for x, g, estimate in zip(
            getattr(NETWORK, group),
            getattr(grads, group),
            getattr(state.position, group),
            strict=True,
        ):
            first = 0.01 * (g - decay * x)
            second = 0.01 * (g - decay * (x + first)) + 0.5 * first
            np.testing.assert_allclose(estimate, x + first + second, rtol=1e-5, atol=1e-6)
    assert int(state.step_index) == 2


def test_topics_have_the_dirichlet_prior_of_the_model():
    """The gradient is that of the density of θ, with the Jacobian."""
    rng, parametrization = np.random.default_rng(0), LogGamma(0.3)
    position, counts = rng.normal(size=(6, 2)), rng.integers(0, 9, (6, 2)).astype(float)

    def log_density(theta):
        gamma = jnp.exp(theta)
        prior = (0.3 - 1) * jnp.log(gamma) - gamma + theta
        return prior.sum() + (counts * jax.nn.log_softmax(theta, axis=0)).sum()

    estimate = parametrization.gradient(position, parametrization.topics(position), counts)
    np.testing.assert_allclose(estimate, jax.grad(log_density)(position), rtol=1e-4, atol=1e-5)
    start = np.exp(parametrization.init(jax.random.key(0), (2000, 3)))
    assert stats.kstest(start.ravel(), "expon").pvalue > FALSE_ALARM
    topics = rng.dirichlet(np.ones(6), 2).T
    np.testing.assert_allclose(
        parametrization.topics(parametrization.from_topics(topics)), topics, rtol=1e-5
    )


def test_inner_steps_are_steps_with_the_same_counts():
    counts, parametrization = (
        np.random.default_rng(0).integers(0, 9, (5, 3)).astype(np.float32),
        LogGamma(),
    )
    plain = SamplerUpdate(SAMPLER, parametrization)
    one = plain.init(3, (5, 3))
    for _ in range(3):
        one = plain.finish_step(3, plain.begin_step(3, one), counts, 2.0)
    update = MultiStepUpdate(SAMPLER, parametrization, 3)
    three = update.init(3, (5, 3))
    three = update.finish_step(3, update.begin_step(3, three), counts, 2.0)
    assert int(three.step_index) == 3
    np.testing.assert_allclose(three.position, one.position, rtol=1e-5, atol=1e-6)


MODEL = DPFA(200, layers=(6, 2), eta=0.05, gamma0=2.0, p=0.9)
TRUTH = MODEL.draw(np.random.default_rng(4))._replace(
    weights=(np.array([[3.0, -1.0]] * 3 + [[-1.0, 3.0]] * 3),),
    biases=(np.full(6, -2.5), np.zeros(2)),
    rates=np.full(6, 2.0),
)


def simulated(num_documents, seed):
    """Simulate documents with six topics that are on in two groups."""
    rng = np.random.default_rng(seed)
    h = draw_layers(rng, TRUTH, num_documents)[0]
    counts = rng.poisson(draw_intensities(rng, TRUTH, np.zeros(h.shape), h, prior=True))
    x = np.zeros((num_documents, 200), np.int64)
    for k, topic in enumerate(TRUTH.topics):
        x += rng.multinomial(counts[:, k], topic / topic.sum())
    return as_corpus(x), h


CORPUS, UNITS = simulated(1000, seed=0)


def chain(seed=0, topics=SAMPLER, **settings):
    defaults = {"data_size": 1000, "sweeps": 10, "burn_in": 5, "rate_step": 0.05}
    return DPFABoltzmann(MODEL, topics, seed=seed, **defaults | settings)


def learn(learner, split, rounds=20):
    """Learn in several passes; return the perplexity of the last passes."""
    score = DPFAScore(split, kernel=boltzmann_kernels.sweep_documents)
    for turn in range(rounds):
        for i in range(0, 1000, 50):
            learner.step(CORPUS[i : i + 50])
        if turn >= rounds - 8:
            score.add(learner.parameters())
    return score.result().value


@pytest.fixture(scope="module")
def split():
    """New documents; perplexity: truth 42, one topic 88, initial parameters 209 and more."""
    return completion(simulated(200, seed=1)[0], observed=0.8, seed=0)


@pytest.mark.slow
def test_thermostat_reduces_the_perplexity_of_new_documents(split):
    """Four seeds reached 60 to 72."""
    learner = chain(inner_steps=10, score_every=10, optimiser=optax.sgd(0.05))
    start = DPFAScore(split, kernel=boltzmann_kernels.sweep_documents)
    start.add(learner.parameters())
    estimate, one = learn(learner, split), perplexity(unigram(CORPUS), split, alpha=1.0).value
    assert estimate < 0.9 * one < 0.5 * start.result().value
    assert learner.prequential_perplexity() < start.result().value


def test_topics_units_and_groups_are_recovered(split):
    """A chain can merge two topics for good: six of eight seeds found all six."""
    topics = SCIR(lambda t: 0.5 / (1 + t / 100), MODEL.eta)
    learner = chain(topics=topics, optimiser=optax.sgd(0.05))
    assert learn(learner, split) < 44
    estimate = learner.parameters()
    both = np.corrcoef(np.concatenate([TRUTH.topics, estimate.topics]))[:6, 6:]
    order = both.argmax(1)
    assert sorted(order) == list(range(6)) and both.max(1).min() > 0.95
    assert np.abs(np.log(estimate.rates / 2)).max() < 0.5
    result = local_gibbs.sweep(
        local_gibbs.prepare_parameters(estimate),
        CORPUS,
        seed=0,
        kernel=boltzmann_kernels.sweep_documents,
    )
    on = result.units[0].mean(0)[:, order]
    assert np.corrcoef(on.ravel(), UNITS.ravel())[0, 1] > 0.9
    layers, log_p = all_layers(estimate)
    law, h = np.exp(log_p - log_p.max()), layers[0][:, order]
    together, expected = np.cov(h.T, aweights=law), np.cov(UNITS.T)
    pairs = np.triu_indices(6, 1)
    assert np.corrcoef(together[pairs], expected[pairs])[0, 1] > 0.7


def equal(a, b):
    assert a.keys() == b.keys()
    return all(np.array_equal(a[name], b[name]) for name in a)


def test_chain_resumes_bit_for_bit_with_any_number_of_threads(monkeypatch):
    monkeypatch.setattr(expected_counts, "MIN_THREADED_SECONDS", 0.0)
    whole, half, other = (chain(seed, score_every=2) for seed in (0, 0, 1))
    rest = chain(threads=3, score_every=2)
    batches = [CORPUS[i : i + 50] for i in range(0, 200, 50)]
    for batch in batches:
        whole.step(batch)
        other.step(batch)
    for batch in batches[:2]:
        half.step(batch)
    rest.load_state_dict(half.state_dict())
    for batch in batches[2:]:
        rest.step(batch)
    assert equal(whole.state_dict(), rest.state_dict()) and not equal(
        whole.state_dict(), other.state_dict()
    )
    assert rest.documents_seen == 200 and rest.num_batches == 4
    assert whole.prequential_perplexity() == rest.prequential_perplexity()
    moved = zip(chain().parameters().biases, whole.parameters().biases, strict=True)
    assert all((a != b).all() for a, b in moved)


def test_score_resumes_bit_for_bit():
    split, parameters = completion(CORPUS[:30], observed=0.8, seed=0), chain().parameters()
    whole, half, rest = (
        DPFAScore(split, kernel=boltzmann_kernels.sweep_documents) for _ in range(3)
    )
    for score, times in ((whole, 3), (half, 1)):
        for _ in range(times):
            score.add(parameters)
    rest.load_state_dict(half.state_dict())
    for _ in range(2):
        rest.add(parameters)
    assert rest.result() == whole.result() and whole.result().num_draws == 3


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="`divergence_steps` must be at least 1"):
        chain(divergence_steps=0)
    with pytest.raises(ValueError, match="`inner_steps` must be at least 1"):
        chain(inner_steps=0)
    with pytest.raises(ValueError, match="`inner_steps` is for samplers of the core, not for scir"):
        DPFABoltzmann(MODEL, SCIR(0.1), data_size=3, inner_steps=2)
    with pytest.raises(ValueError, match="`eta` must be positive"):
        LogGamma(0.0)
    with pytest.raises(ValueError, match="`data_size` must be positive"):
        chain(data_size=0)
    with pytest.raises(ValueError, match="`batch` has 3 words, the model 200"):
        chain().step(as_corpus([[1, 0, 0]]))
    with pytest.raises(ValueError, match="no documents"):
        chain().step(CORPUS[:0])


def test_divergence_of_topics_and_weights_raises():
    learner = chain()
    state = learner.topics_state
    learner.topics_state = state._replace(position=state.position * np.nan)
    with pytest.raises(TopicsDivergedError, match="topics are not finite"):
        learner.step(CORPUS[:5])
    wild = chain(optimiser=optax.sgd(1e4))
    with pytest.raises(WeightsDivergedError, match=r"have diverged.*rate of the `optimiser`"):
        for _ in range(3):
            wild.step(CORPUS[:50])
