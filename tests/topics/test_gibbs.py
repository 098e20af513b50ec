"""Collapsed Gibbs sampling recovers topics, resumes bit for bit, and has correct estimates."""

import numpy as np
import pytest
from scipy.special import gammaln

from isotherm.topics import expected_counts
from isotherm.topics.corpus import as_corpus
from isotherm.topics.gibbs import PRIOR_INTERVAL, GibbsLDA, sweep_chains


def simulated(seed=0, documents=200, length=60):
    """Five topics on disjoint words, and a corpus made of them."""
    rng = np.random.default_rng(seed)
    topics = np.kron(np.eye(5), np.ones((1, 8))) + 0.01
    topics /= topics.sum(1, keepdims=True)
    theta = rng.dirichlet(np.full(5, 0.2), documents)
    return topics, as_corpus(rng.multinomial(length, theta @ topics))


def test_recovers_distinct_topics():
    topics, corpus = simulated()
    chain = GibbsLDA(corpus, 5, alpha=0.2, seed=1)
    result = np.mean(list(chain.draws(10, thin=2, burn_in=100)), axis=0)
    match = np.corrcoef(np.concatenate([topics, result]))[:5, 5:]
    assert sorted(match.argmax(1)) == list(range(5)) and match.max(1).min() > 0.95


def test_resumes_bit_for_bit_and_depends_on_the_seed():
    _, corpus = simulated(documents=30)
    whole, half, other = (GibbsLDA(corpus, 4, seed=s) for s in (0, 0, 1))
    whole.sweep(12)
    half.sweep(5)
    rest = GibbsLDA(corpus, 4, seed=0)
    rest.load_state_dict(half.state_dict())
    rest.sweep(7)
    np.testing.assert_array_equal(rest.assignments, whole.assignments)
    np.testing.assert_array_equal(rest.topics(), whole.topics())
    assert rest.num_sweeps == 12
    other.sweep(12)
    assert not np.array_equal(other.assignments, whole.assignments)
    with pytest.raises(ValueError, match="another corpus or number of topics"):
        GibbsLDA(corpus, 2).load_state_dict(half.state_dict())


@pytest.mark.parametrize("num_topics", [3, 40])
@pytest.mark.parametrize("learned", [True, False])
def test_chains_swept_together_are_those_swept_alone(num_topics, learned, monkeypatch):
    _, corpus = simulated(documents=40)
    settings: dict = {"learn_alpha": "asymmetric", "learn_beta": True}
    if not learned:  # pseudo-counts need another type of totals
        counts = np.random.default_rng(0).random((num_topics, corpus.num_words))
        settings = {"prior_counts": counts, "alpha": 0.3}
    alone, together = (
        [GibbsLDA(corpus, num_topics, seed=s, **settings) for s in range(3)] for _ in range(2)
    )
    alone[1].sweep(2)  # chains may have made different numbers of sweeps
    together[1].sweep(2)
    monkeypatch.setattr(expected_counts, "MAX_CALL_SECONDS", 1e-4)
    for _ in range(5):
        sweep_chains(together)
    for a, b in zip(alone, together, strict=True):
        a.sweep(5)
        np.testing.assert_array_equal(a.assignments, b.assignments)
        np.testing.assert_array_equal(a.counts(), b.counts())
        np.testing.assert_array_equal(a.alpha, b.alpha)
        assert a.num_sweeps == b.num_sweeps and a.beta == b.beta and a.log_joint() == b.log_joint()
    assert not np.array_equal(alone[0].assignments, alone[2].assignments)


def test_priors_are_drawn_at_intervals_after_the_first_sweeps():
    _, corpus = simulated(documents=20)
    chain = GibbsLDA(corpus, 3, learn_alpha="asymmetric", learn_beta=True)
    chain.sweep(20)
    values = []
    for _ in range(3 * PRIOR_INTERVAL):
        chain.sweep()
        values.append((float(chain.alpha.sum()), chain.beta))
    assert len(set(values)) == 4  # those of the start, and three draws


def test_estimates_and_log_joint_agree_with_the_assignments():
    _, corpus = simulated(documents=20)
    chain = GibbsLDA(corpus, 3, alpha=[0.1, 0.2, 0.3], beta=0.5)
    chain.sweep(3)
    n = np.zeros((3, corpus.num_words))
    np.add.at(n, (chain.assignments, corpus.tokens()), 1)
    np.testing.assert_allclose(
        chain.topics(), (n + 0.5) / (n + 0.5).sum(1, keepdims=True), rtol=1e-5
    )
    document = np.repeat(np.arange(20), corpus.lengths)
    m, alpha = np.zeros((20, 3)), np.array([0.1, 0.2, 0.3])
    np.add.at(m, (document, chain.assignments), 1)
    theta = (m + alpha) / (m + alpha).sum(1, keepdims=True)
    np.testing.assert_allclose(chain.proportions(), theta, rtol=1e-5)
    joint = 0.0
    for rows, prior in ((n, np.full(corpus.num_words, 0.5)), (m, alpha)):
        for row in rows:
            joint += gammaln(row + prior).sum() - gammaln((row + prior).sum())
            joint += gammaln(prior.sum()) - gammaln(prior).sum()
    np.testing.assert_allclose(chain.log_joint(), joint, rtol=1e-6)


def test_estimates_before_the_first_sweep_are_those_of_the_prior():
    chain = GibbsLDA(as_corpus([[1, 2], [0, 0]]), 2)
    np.testing.assert_allclose(chain.topics(), 0.5)
    np.testing.assert_allclose(chain.proportions(), 0.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_topics": 0}, "`num_topics` must be at least 1"),
        ({"num_topics": 2, "beta": 0.0}, "`beta` must be positive"),
        ({"num_topics": 2, "alpha": -1.0}, "`alpha` must be positive"),
        ({"num_topics": 2, "alpha": [1.0]}, r"`alpha` must be a number or have shape \(2,\)"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        GibbsLDA(as_corpus([[1, 2]]), **settings)


def test_corpus_without_tokens_is_refused():
    with pytest.raises(ValueError, match="has no tokens"):
        GibbsLDA(as_corpus([[0, 0]]), 2)
