"""Perplexity agrees with its formula, for one or many draws, all at once or one by one."""

import numpy as np
import pytest
from scipy import stats

from isotherm.topics import expected_counts, layout
from isotherm.topics.corpus import as_corpus, completion
from isotherm.topics.perplexity import CompletionScore, perplexity, unigram

ALPHA = 0.3


def problem(seed=0, documents=40, words=30, num_topics=4, draws=3):
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(words, 0.2), (draws, num_topics)) * 0.99 + 0.01 / words
    theta = rng.dirichlet(np.full(num_topics, 0.5), documents)
    corpus = as_corpus(rng.multinomial(25, theta @ topics[0]))
    return topics, completion(corpus, observed=0.6, seed=2)


def by_hand(topics, split):
    """The formula with dense arrays and the fixed-point fold-in."""
    p = np.zeros((len(split.scored), split.scored.num_words))
    for phi in topics:
        alpha = np.full(len(phi), ALPHA, np.float32)
        rows = layout.word_major(phi)
        p += expected_counts.fold_in_fixed_point(rows, split.observed, alpha).theta @ phi
    x = split.scored.to_csr().toarray()
    return x, np.log(p / len(topics))


def test_value_and_standard_error_agree_with_the_formula():
    topics, split = problem()
    x, log_p = by_hand(topics, split)
    result = perplexity(topics, split, ALPHA, fold_in="fixed-point")
    np.testing.assert_allclose(result.value, np.exp(-(x * log_p).sum() / x.sum()), rtol=1e-5)
    assert result.num_draws == 3 and result.num_tokens == x.sum() and result.observed == 0.6
    # The delta method agrees with the bootstrap over documents.
    rng, terms = np.random.default_rng(0), (x * log_p).sum(1)
    picks = rng.integers(len(x), size=(4000, len(x)))
    values = np.exp(-terms[picks].sum(1) / x.sum(1)[picks].sum(1))
    np.testing.assert_allclose(result.standard_error, values.std(), rtol=0.1)


def test_running_score_equals_the_score_of_all_draws_and_can_be_resumed():
    topics, split = problem()
    score = CompletionScore(split, ALPHA, seed=4, warm=True)
    score.add(topics[0])
    score.add(topics[1])
    other = CompletionScore(split, ALPHA, seed=4, warm=True)
    other.load_state_dict(score.state_dict())
    for each in (score, other):
        each.add(topics[2])
    assert score.result() == other.result()
    assert score.result() == perplexity(iter(topics), split, ALPHA, seed=4, warm=True)
    assert score.result() != perplexity(topics, split, ALPHA, seed=4)


def test_gibbs_fold_in_estimates_the_exact_predictive_probability():
    """There are few enough tokens to sum over all assignments."""
    topics = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    split = completion(as_corpus([[2, 0, 1]]), observed=0.67, seed=0)
    assert split.observed.num_tokens == 2
    a, b = split.observed.tokens()
    law = np.array(
        [[topics[i, a] * topics[j, b] * (ALPHA + (i == j)) for j in (0, 1)] for i in (0, 1)]
    )
    law /= law.sum()
    n = np.array([law[0].sum() + law[:, 0].sum(), law[1].sum() + law[:, 1].sum()])
    exact = (ALPHA + n) / (2 * ALPHA + 2) @ topics[:, split.scored.tokens()[0]]
    result = perplexity(topics, split, ALPHA, sweeps=40_000, burn_in=10)
    np.testing.assert_allclose(1 / result.value, exact, rtol=0.01)


def test_proportions_estimated_by_the_model_are_used():
    topics, split = problem()
    theta = np.random.default_rng(1).gamma(1.0, size=(40, 4))
    score = CompletionScore(split, ALPHA)
    score.add(topics[0], theta=theta)
    x, p = split.scored.to_csr().toarray(), theta / theta.sum(1, keepdims=True) @ topics[0]
    np.testing.assert_allclose(
        score.result().value, np.exp(-(x * np.log(p)).sum() / x.sum()), rtol=1e-5
    )
    with pytest.raises(ValueError, match=r"`theta` must have shape \(40, 4\)"):
        score.add(topics[0], theta=theta[:3])


def test_true_topics_have_lower_perplexity_than_others_and_the_unigram():
    topics, split = problem(documents=200)
    right, wrong = (perplexity(topics[s], split, ALPHA).value for s in (0, 1))
    plain = perplexity(unigram(split.observed), split, ALPHA).value
    assert right < 0.9 * plain < 0.9 * wrong


def test_results_do_not_depend_on_threads(monkeypatch):
    topics, split = problem()
    one = perplexity(topics, split, ALPHA)
    monkeypatch.setattr(expected_counts, "MIN_THREADED_SECONDS", 0.0)
    assert perplexity(topics, split, ALPHA, threads=3) == one


def test_impossible_word_gives_infinity_and_one_document_no_standard_error():
    split = completion(as_corpus([[4, 4]]), seed=0)
    result = perplexity(np.array([[1.0, 0.0]]), split, ALPHA)
    assert result.value == np.inf
    assert np.isnan(perplexity(np.full((1, 2), 0.5), split, ALPHA).standard_error)


def test_standard_error_agrees_with_the_scatter_over_test_sets():
    """Chi-square test of the variance over new sets of documents at 1e-4."""
    topics, _ = problem()
    rng, results = np.random.default_rng(3), []
    for _ in range(200):
        theta = rng.dirichlet(np.full(4, 0.5), 100)
        corpus = as_corpus(rng.multinomial(rng.integers(5, 40, 100), theta @ topics[0]))
        split = completion(corpus, seed=0)
        results.append(perplexity(topics[0], split, ALPHA, fold_in="fixed-point"))
    values, errors = np.array([(r.value, r.standard_error) for r in results]).T
    ratio = 199 * values.var(ddof=1) / np.mean(errors**2)
    assert 1e-4 < stats.chi2.cdf(ratio, 199) < 1 - 1e-4


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        (np.full((2, 3), 0.5), "must sum to 1"),
        (np.full((2, 4), 0.25), r"must have shape \(topics, 3\)"),
        (np.array([[1.5, -0.5, 0.0]]), "must not be negative or NaN"),
        (np.array([[np.nan, 0.5, 0.5]]), "must not be negative or NaN"),
    ],
)
def test_bad_topics_are_refused(topics, message):
    with pytest.raises(ValueError, match=message):
        perplexity(topics, completion(as_corpus([[2, 2, 2]]), seed=0), ALPHA)


def test_bad_settings_are_refused():
    split = completion(as_corpus([[2, 2]]), seed=0)
    with pytest.raises(ValueError, match="`fold_in` must be 'gibbs' or 'fixed-point'"):
        CompletionScore(split, ALPHA, fold_in="magic")
    with pytest.raises(ValueError, match="no draws to score"):
        CompletionScore(split, ALPHA).result()
    with pytest.raises(ValueError, match="no tokens to score"):
        CompletionScore(completion(as_corpus([[1, 0]]), seed=0), ALPHA)
