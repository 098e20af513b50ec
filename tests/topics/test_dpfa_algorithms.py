"""Three DPFA algorithms recover simulated parameters, resume bit for bit, and score documents."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import isotherm
from isotherm.topics import expected_counts
from isotherm.topics.corpus import as_corpus, completion
from isotherm.topics.dpfa import local_gibbs
from isotherm.topics.dpfa.bcdf import DPFAFilter
from isotherm.topics.dpfa.gibbs import DPFAGibbs
from isotherm.topics.dpfa.model import DPFA
from isotherm.topics.dpfa.perplexity import DPFAScore
from isotherm.topics.dpfa.sgmcmc import DPFAChain, WeightsDivergedError
from isotherm.topics.lda import TopicsDivergedError
from isotherm.topics.perplexity import perplexity, unigram
from isotherm.topics.scir import SCIR
from marks import slow

MODEL = DPFA(200, layers=(6, 2), eta=0.05, gamma0=2.0, p=0.9)
DOCUMENTS = 1000


def truth():
    """Six topics with many tokens, switched on in two groups."""
    rng = np.random.default_rng(4)
    weights = np.array([[3.0, -1.0]] * 3 + [[-1.0, 3.0]] * 3)
    parameters = MODEL.draw(rng)._replace(
        weights=(weights,), biases=(np.full(6, -2.5), np.zeros(2)), rates=np.full(6, 2.0)
    )
    return parameters, MODEL.draw_documents(rng, parameters, DOCUMENTS)


PARAMETERS, SIMULATED = truth()
CORPUS = SIMULATED.corpus


def batches(size, rounds=1):
    return [CORPUS[i : i + size] for _ in range(rounds) for i in range(0, DOCUMENTS, size)]


TOPICS, NETWORK = SCIR(lambda t: 0.5 / (1 + t / 100), MODEL.eta), isotherm.msgnht(None, 0.02)
"""Built once: JAX compiles per sampler object."""


def run(algorithm, seed):
    """Learn with an algorithm; return an object with `parameters()`."""
    if algorithm == "gibbs":
        chain = DPFAGibbs(MODEL, CORPUS, seed=seed)
        chain.sweep(300)
    elif algorithm == "filter":
        chain = DPFAFilter(MODEL, rounds=60, burn_in=40, sweeps=4, seed=seed)
        for batch in batches(200):
            chain.step(batch)
    else:
        chain = DPFAChain(
            MODEL,
            TOPICS,
            NETWORK,
            data_size=DOCUMENTS,
            inner_steps=5,
            rate_step=0.05,
            sweeps=10,
            burn_in=5,
            seed=seed,
        )
        for batch in batches(50, rounds=20):
            chain.step(batch)
    return chain


def match(estimate):
    """Match topics with the true ones; return the matching and the correlations."""
    both = np.corrcoef(np.concatenate([PARAMETERS.topics, estimate]))[:6, 6:]
    rows, columns = linear_sum_assignment(-both)
    return columns, both[rows, columns]


@pytest.mark.parametrize(("algorithm", "seed"), [("gibbs", 1), ("filter", 3), slow("sgmcmc", 2)])
def test_recovers_topics_units_and_rates(algorithm, seed):
    """Chains can merge two topics for good: 4 of 4, 4 of 6 and 5 of 8 seeds found all six."""
    estimate = run(algorithm, seed).parameters()
    order, correlation = match(estimate.topics)
    assert correlation.min() > 0.9
    result = local_gibbs.sweep(local_gibbs.prepare_parameters(estimate), CORPUS, seed=0)
    on = result.units[0].mean(0)[:, order]
    assert np.corrcoef(on.ravel(), SIMULATED.units[0].ravel())[0, 1] > 0.9  # 0.97 at the truth
    together, expected = np.corrcoef(on.T), np.corrcoef(SIMULATED.units[0].T.astype(float))
    pairs = np.triu_indices(6, 1)
    assert np.corrcoef(together[pairs], expected[pairs])[0, 1] > 0.9
    assert np.abs(np.log(estimate.rates / 2)).max() < 0.5


def small(seed=0, **settings):
    model = DPFA(200, layers=(5, 3, 2), p=None)
    defaults = {"data_size": DOCUMENTS, "sweeps": 4, "burn_in": 2, "score_every": 2}
    return DPFAChain(model, SCIR(0.1), NETWORK, seed=seed, **defaults | settings)


def equal(a, b):
    assert a.keys() == b.keys()
    return all(np.array_equal(a[name], b[name]) for name in a)


def test_chain_resumes_bit_for_bit_with_any_number_of_threads(monkeypatch):
    monkeypatch.setattr(expected_counts, "MIN_THREADED_SECONDS", 0.0)
    whole, half, rest, other = small(), small(), small(threads=3), small(seed=1)
    for batch in batches(250):
        whole.step(batch)
        other.step(batch)
    for batch in batches(250)[:2]:
        half.step(batch)
    rest.load_state_dict(half.state_dict())
    for batch in batches(250)[2:]:
        rest.step(batch)
    assert equal(whole.state_dict(), rest.state_dict()) and not equal(
        whole.state_dict(), other.state_dict()
    )
    assert rest.documents_seen == DOCUMENTS and rest.num_batches == 4
    assert whole.prequential_perplexity() == rest.prequential_perplexity() < 200
    assert whole.predicted[1] == sum(
        completion(x, observed=0.8, seed=0).scored.num_tokens for x in batches(250)[::2]
    )
    assert np.isnan(small().prequential_perplexity())


def test_gibbs_and_filter_resume_bit_for_bit():
    model, corpus = DPFA(200, layers=(4, 2), p=None), CORPUS[:60]
    whole, half, rest = (DPFAGibbs(model, corpus) for _ in range(3))
    whole.sweep(4)
    half.sweep(2)
    rest.load_state_dict(half.state_dict())
    rest.sweep(2)
    assert equal(whole.state_dict(), rest.state_dict()) and rest.num_sweeps == 4
    whole, half, rest = (DPFAFilter(model, rounds=3, burn_in=1, sweeps=2) for _ in range(3))
    for batch in (corpus[:30], corpus[30:]):
        whole.step(batch)
    half.step(corpus[:30])
    rest.load_state_dict(half.state_dict())
    rest.step(corpus[30:])
    assert equal(whole.state_dict(), rest.state_dict())
    assert equal({"a": whole.draw(1).topics}, {"a": rest.draw(1).topics})
    np.testing.assert_allclose(whole.statistics.words.sum(), corpus.num_tokens)
    np.testing.assert_allclose(whole.statistics.tokens.sum(), corpus.num_tokens)
    assert (whole.statistics.used <= 60).all() and whole.documents_seen == 60


def test_fixed_rates_do_not_change():
    chain = DPFAChain(DPFA(200, layers=(3,), r=2.0, p=0.3), SCIR(0.1), data_size=60)
    chain.step(CORPUS[:60])
    estimate = chain.parameters()
    assert (estimate.rates == 2.0).all() and estimate.gamma0 == 1.0
    np.testing.assert_allclose(estimate.p, 0.3)
    filter = DPFAFilter(DPFA(200, layers=(3,), r=2.0, p=0.3), rounds=2, burn_in=1, sweeps=2)
    filter.step(CORPUS[:60])
    assert (filter.parameters().rates == 2.0).all()


def test_score_is_better_than_one_topic_and_resumes():
    rng = np.random.default_rng(9)
    split = completion(MODEL.draw_documents(rng, PARAMETERS, 80).corpus, observed=0.8, seed=0)
    whole, half, rest = (DPFAScore(split) for _ in range(3))
    for _ in range(4):
        whole.add(PARAMETERS)
    for _ in range(2):
        half.add(PARAMETERS)
    rest.load_state_dict(half.state_dict())
    for _ in range(2):
        rest.add(PARAMETERS)
    assert rest.result() == whole.result() and whole.result().num_draws == 4
    one = perplexity(unigram(CORPUS), split, alpha=1.0).value
    assert whole.result().value < 0.7 * one
    cold = DPFAScore(split, warm=False)
    cold.add(PARAMETERS)
    assert cold.local is None and "3 per draw" in whole.result().fold_in


def test_empty_documents_are_counted():
    chain = small()
    chain.step(as_corpus(np.zeros((3, 200), int)))
    assert np.isfinite(chain.parameters().topics).all() and chain.documents_seen == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_words": 0}, "`num_words` must be at least 1"),
        ({"layers": ()}, "`layers` must be one or more"),
        ({"layers": (3, 0)}, "`layers` must be one or more"),
        ({"eta": 0.0}, "`eta` must be positive"),
        ({"r": -1.0}, "`r` must be positive"),
        ({"p": 1.0}, "`p` must be between 0 and 1"),
    ],
)
def test_bad_models_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DPFA(**{"num_words": 3} | settings)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="`data_size` must be positive"):
        small(data_size=0)
    with pytest.raises(ValueError, match="`score_every` must not be negative"):
        small(score_every=-1)
    with pytest.raises(ValueError, match="`inner_steps` must be at least 1"):
        small(inner_steps=0)
    with pytest.raises(ValueError, match="does not have exactly one gradient"):
        network = isotherm.msgnht(None, 0.1, integrator="AKADBNBDAKA")
        DPFAChain(MODEL, SCIR(0.1), network, data_size=3)
    with pytest.raises(ValueError, match="`burn_in` must be"):
        small(burn_in=4)
    for learner in (small(), DPFAFilter(MODEL)):
        with pytest.raises(ValueError, match="`batch` has 3 words, the model 200"):
            learner.step(as_corpus([[1, 0, 0]]))
        with pytest.raises(ValueError, match="no documents"):
            learner.step(CORPUS[:0])
    with pytest.raises(ValueError, match="`corpus` has 3 words"):
        DPFAGibbs(MODEL, as_corpus([[1, 0, 0]]))
    with pytest.raises(ValueError, match="`corpus` has no documents"):
        DPFAGibbs(MODEL, CORPUS[:0])
    with pytest.raises(ValueError, match="other layers"):
        DPFAChain(MODEL, SCIR(0.1), data_size=3).load_state_dict(small().state_dict())
    with pytest.raises(ValueError, match="other layers"):
        DPFAFilter(MODEL).load_state_dict(DPFAFilter(DPFA(200, layers=(3,))).state_dict())


def test_divergence_raises():
    chain = small()
    chain.topics_state = chain.topics_state._replace(position=np.full((200, 5), np.nan, np.float32))
    with pytest.raises(TopicsDivergedError, match="topics are not finite"):
        chain.step(CORPUS[:5])
    with pytest.raises(TopicsDivergedError):
        chain.parameters()
    wild = DPFAChain(MODEL, SCIR(0.1), isotherm.msgnht(None, 50.0), data_size=1e6)
    with pytest.raises(WeightsDivergedError, match="have diverged"):
        for batch in batches(100):
            wild.step(batch)
