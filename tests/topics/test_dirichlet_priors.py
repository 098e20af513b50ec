"""Learned priors of LDA: exact conditionals, Minka's fixed point, recovery, resuming."""

import numpy as np
import pytest
from gibbs_laws import FALSE_ALARM, two_sample_p_value
from scipy.special import gammaln

from isotherm.topics import dirichlet_priors as priors
from isotherm.topics import kernels
from isotherm.topics.bcdf import BCDFLDA
from isotherm.topics.corpus import as_corpus
from isotherm.topics.gibbs import GibbsLDA

ALPHA = np.array([0.05, 0.3, 1.2])


def doc_topics(rng, alpha=ALPHA, documents=4000, length=50):
    return rng.multinomial(length, rng.dirichlet(alpha, documents))


def tokens(n):
    """Tokens with the given counts of topics, (documents, topics)."""
    starts = np.concatenate([[0], np.cumsum(n.sum(1))])
    return starts, np.repeat(np.tile(np.arange(n.shape[1]), len(n)), n.ravel()).astype(np.int32)


def log_posterior(n, alpha):
    """Log density of alpha given the counts of documents, with the gamma hyperprior."""
    total, lengths = alpha.sum(), n.sum(1)
    likelihood = (gammaln(n + alpha) - gammaln(alpha)).sum()
    likelihood += (gammaln(total) - gammaln(total + lengths)).sum()
    return likelihood + ((priors.HYPER_SHAPE - 1) * np.log(alpha) - priors.HYPER_RATE * alpha).sum()


def fixed_point(n, shape, rounds=300):
    alpha = np.full(n.shape[1], 0.5)
    for _ in range(rounds):
        alpha = np.broadcast_to(priors.document_sums(n, alpha, shape).value(), alpha.shape)
    return alpha


def test_fixed_point_recovers_alpha_and_is_stationary():
    n = doc_topics(np.random.default_rng(0))
    alpha = fixed_point(n, "asymmetric")
    np.testing.assert_allclose(alpha, ALPHA, rtol=0.1)
    # The gamma hyperprior enters as Gamma(a, b) of the fixed point: a maximum in log alpha.
    for k in range(3):
        step = 1e-4 * np.eye(3)[k]
        up, down = (
            log_posterior(n, alpha * np.exp(s)) + np.log(alpha * np.exp(s)).sum()
            for s in (step, -step)
        )
        assert abs(up - down) / 2e-4 < 0.1
    symmetric = fixed_point(doc_topics(np.random.default_rng(1), np.full(3, 0.4)), "symmetric")
    assert np.ptp(symmetric) == 0
    np.testing.assert_allclose(symmetric, 0.4, rtol=0.05)


def geweke_p_value(shape, draw, seed=0, chains=4000, rounds=6):
    """Alternate counts given alpha and alpha given counts, started in equilibrium."""
    rng = np.random.default_rng(seed)
    size, documents = (1, 3) if shape == "symmetric" else (2, 3)

    def prior(number):
        alpha = rng.gamma(priors.HYPER_SHAPE, 1 / priors.HYPER_RATE, (number, size))
        return np.maximum(np.broadcast_to(alpha, (number, 2)), priors.SMALLEST)

    def observables(alpha):
        some = alpha[:, :size]
        return np.concatenate([some, np.sqrt(some), np.log(some)], axis=1)

    alphas = prior(chains).copy()
    for _ in range(rounds):
        for i, alpha in enumerate(alphas):
            n = rng.multinomial(5, rng.dirichlet(alpha, documents))
            alphas[i] = draw(rng, n, alpha, shape)
    return two_sample_p_value(observables(alphas), observables(prior(100_000)))


def draw_through_tokens(rng, n, alpha, shape):
    return priors.draw_document_prior(rng, *tokens(n), alpha, shape)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["asymmetric", "symmetric"])
def test_draws_of_alpha_leave_the_joint_law_invariant(shape):
    assert geweke_p_value(shape, draw_through_tokens) > FALSE_ALARM


def draw_through_words(rng, n, alpha, shape):
    """The step of beta: topics in place of documents, words in place of topics."""
    assert shape == "symmetric"
    drawn = priors.draw_word_prior(rng, n.T.astype(np.float32), n.sum(1), alpha[0])
    return np.full(n.shape[1], drawn)


@pytest.mark.slow
def test_draws_of_beta_leave_the_joint_law_invariant():
    assert geweke_p_value("symmetric", draw_through_words) > FALSE_ALARM


def without_rate(rng, n, alpha, shape):
    """A mutant: the beta variables are left out."""
    found = kernels.documents_with_at_least(*tokens(n), len(alpha))
    tables = priors.draw_table_sums(rng, *found, alpha)
    return rng.gamma(priors.HYPER_SHAPE + tables) / (priors.HYPER_RATE + len(n))


@pytest.mark.slow
def test_a_mutant_is_rejected():
    assert geweke_p_value("asymmetric", without_rate) < FALSE_ALARM


def test_documents_with_at_least_some_tokens_are_counted():
    starts, z = np.array([0, 4, 4, 7, 9]), np.array([2, 0, 2, 2, 2, 0, -1, 2, 0], np.int32)
    at_least, begins = kernels.documents_with_at_least(starts, z, 4)
    assert begins.tolist() == [0, 1, 1, 4, 4]  # topics 1 and 3 have no tokens
    assert at_least.tolist() == [3, 3, 1, 1]


def test_table_sums_have_the_expected_mean():
    rng, n, r = np.random.default_rng(0), np.array([[7, 0], [3, 2]]), np.array([0.4, 1.5])
    found = kernels.documents_with_at_least(*tokens(n), 2)
    draws = np.array([priors.draw_table_sums(rng, *found, r) for _ in range(4000)])
    z = (draws.mean(0) - priors.expected_tables(n, r)) / (draws.std(0) / 4000**0.5)
    assert np.abs(z).max() < 4.5
    assert draws[:, 0].max() <= 10 and draws.min() >= 1


def lda_corpus(alpha, documents=600, beta=0.1, num_words=60, seed=0):
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(num_words, beta), len(alpha))
    theta = rng.dirichlet(alpha, documents)
    return as_corpus(rng.multinomial(60, theta @ topics))


@pytest.mark.parametrize("learner", ["gibbs", "filter"])
def test_priors_are_recovered_from_documents(learner):
    truth, beta = np.array([0.1, 0.1, 1.0]), 0.1
    corpus = lda_corpus(truth, beta=beta)
    settings = {"learn_alpha": "asymmetric", "learn_beta": True, "alpha": 0.5, "beta": 0.5}
    if learner == "gibbs":
        model = GibbsLDA(corpus, 3, **settings)
        model.sweep(100)
        values = []
        for _ in range(40):
            model.sweep(2)
            values.append([*np.sort(model.alpha), model.beta])
        alpha_beta = np.mean(values, axis=0)
    else:
        model = BCDFLDA(3, corpus.num_words, sweeps=20, burn_in=10, decay=0.7, **settings)
        model.update_all(corpus[i : i + 50] for i in range(0, 600, 50))
        alpha_beta = np.array([*np.sort(model.alpha), model.beta])
    # Assignments of the first batches, which are poor, are a part of what the filter learns from.
    factor = 1.4 if learner == "gibbs" else 4
    assert (np.abs(np.log(alpha_beta[:3] / truth)) < np.log(factor)).all()
    assert alpha_beta[2] > 3 * alpha_beta[0]
    assert abs(np.log(alpha_beta[3] / beta)) < np.log(factor)


@pytest.mark.parametrize("shape", ["asymmetric", "symmetric"])
def test_learners_with_learned_priors_resume_bit_for_bit(shape):
    corpus = lda_corpus(np.array([0.1, 0.5]), documents=60)
    settings = {"learn_alpha": shape, "learn_beta": True, "seed": 3}
    whole, half, rest = (GibbsLDA(corpus, 2, **settings) for _ in range(3))
    whole.sweep(10)
    half.sweep(4)
    rest.load_state_dict(half.state_dict())
    rest.sweep(6)
    np.testing.assert_array_equal(whole.assignments, rest.assignments)
    np.testing.assert_array_equal(whole.alpha, rest.alpha)
    assert whole.beta == rest.beta and (np.ptp(whole.alpha) == 0) == (shape == "symmetric")
    whole, half, rest = (
        BCDFLDA(2, corpus.num_words, sweeps=4, burn_in=2, **settings) for _ in range(3)
    )
    batches = [corpus[i : i + 20] for i in range(0, 60, 20)]
    whole.update_all(batches)
    half.update_all(batches[:2])
    rest.load_state_dict(half.state_dict())
    rest.update_all(batches[2:])
    np.testing.assert_array_equal(whole.draw(), rest.draw())
    np.testing.assert_array_equal(whole.alpha, rest.alpha)
    assert whole.beta == rest.beta != 0.05


def test_prior_counts_are_pseudo_counts_of_words():
    corpus = lda_corpus(np.array([0.2, 0.2]), documents=30)
    boost = np.zeros((2, corpus.num_words))
    boost[1, 7] = 1e6
    for model in (
        GibbsLDA(corpus, 2, prior_counts=boost),
        BCDFLDA(2, corpus.num_words, prior_counts=boost),
    ):
        model.sweep(3) if isinstance(model, GibbsLDA) else model.update(corpus)
        topics = model.topics()
        assert topics[1, 7] > 0.99 > 0.5 > topics[0, 7]
        np.testing.assert_allclose(topics.sum(1), 1, rtol=1e-5)
    chain = GibbsLDA(corpus, 2, prior_counts=boost)
    chain.sweep(3)
    plain = GibbsLDA(corpus, 2)
    plain.load_state_dict(chain.state_dict())
    assert chain.log_joint() != plain.log_joint()
    for bad, message in [(boost[:1], "must have shape"), (-boost, "not negative")]:
        with pytest.raises(ValueError, match=f"`prior_counts` must .*{message}|{message}"):
            GibbsLDA(corpus, 2, prior_counts=bad)
    with pytest.raises(ValueError, match="`learn_beta` must be False"):
        GibbsLDA(corpus, 2, prior_counts=boost, learn_beta=True)
    with pytest.raises(ValueError, match="`learn_alpha` must be 'asymmetric'"):
        GibbsLDA(corpus, 2, learn_alpha=True)
