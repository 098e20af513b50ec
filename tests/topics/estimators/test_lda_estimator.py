"""BayesianLDA: scikit-learn's contract, bad input, draws, streams."""

import pickle

import numpy as np
import pytest
from bad_counts import refuses_bad_counts
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

import isotherm
from isotherm.topics.estimators.lda import BayesianLDA
from isotherm.topics.estimators.learners import SAMPLERS


def simulated(documents=200, seed=0):
    """Counts (sparse) of three topics on disjoint words."""
    rng = np.random.default_rng(seed)
    topics = np.kron(np.eye(3), np.ones((1, 6))) + 0.01
    theta = rng.dirichlet(np.full(3, 0.1), documents)
    counts = rng.multinomial(40, theta @ (topics / topics.sum(1, keepdims=True)))
    return sparse.csr_array(counts), theta


def blocks(topics):
    return topics.reshape(3, 3, 6).sum(2).max(1)


# The checks use real numbers, which the default refuses (tested below).
@parametrize_with_checks(
    [
        BayesianLDA(3, max_iter=2, sweeps=5, burn_in=2, num_draws=3),
        BayesianLDA(3, fractional="round", max_iter=2, sweeps=5, burn_in=2, num_draws=3),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("sampler", ["filter", *SAMPLERS])
def test_every_sampler_learns_in_memory_and_from_a_stream(sampler):
    counts, _ = simulated()
    settings = {} if sampler == "filter" else {"step_size": 1e-3 if sampler == "sgld" else 0.03}
    lda = BayesianLDA(3, sampler=sampler, batch_size=20, max_iter=20, random_state=0, **settings)
    lda.fit(counts)
    assert blocks(lda.components_).mean() > 0.7
    assert list(lda.draws_) == ["topics"] and lda.draws_["topics"].shape == (1, 20, 3, 18)
    np.testing.assert_allclose(lda.draws_["topics"].sum(3), 1, rtol=1e-4)
    stream = clone(lda)
    for i in range(0, 200, 40):
        stream.partial_fit(counts[i : i + 40])
    assert stream.n_documents_seen_ == 200 and stream.n_batch_iter_ == 10


def test_default_finds_the_topics_of_documents():
    counts, theta = simulated()
    lda = BayesianLDA(3, random_state=0).fit(counts)
    shares = lda.transform(counts)
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-5)
    match = np.corrcoef(theta.T, shares.T)[:3, 3:]
    assert sorted(match.argmax(1)) == [0, 1, 2] and match.max(1).min() > 0.95
    assert lda.score(counts) == pytest.approx(-np.log(lda.perplexity(counts)))
    assert lda.perplexity(counts) < 12 < BayesianLDA(1).fit(counts).perplexity(counts)
    lengths = lda.transform(counts, normalize=False).sum(1)
    np.testing.assert_allclose(lengths, 40 + 0.3, rtol=1e-5)


@pytest.mark.parametrize("sampler", ["filter", "msgnht", "scir"])
def test_stream_in_parts_with_a_pickle_equals_one_run(sampler):
    counts, _ = simulated()
    settings = {"sampler": sampler, "batch_size": 50, "random_state": 3}
    whole, parts = (BayesianLDA(3, **settings) for _ in range(2))
    whole.partial_fit(counts)
    parts.partial_fit(counts[:100])
    parts = pickle.loads(pickle.dumps(parts)).partial_fit(counts[100:])
    np.testing.assert_array_equal(whole.draws_["topics"], parts.draws_["topics"])
    dense = BayesianLDA(3, **settings).partial_fit(counts.toarray())
    np.testing.assert_array_equal(whole.components_, dense.components_)


@pytest.mark.parametrize("sampler", ["filter", "scir"])
def test_memory_does_not_grow_with_the_stream(sampler):
    counts, _ = simulated()
    lda = BayesianLDA(3, sampler=sampler, batch_size=10, num_draws=5, sweeps=3, burn_in=1)
    sizes = [len(pickle.dumps(lda.partial_fit(counts))) for _ in range(3)]
    assert max(sizes) - min(sizes) < 32


def test_intervals_of_topic_shares_cover_the_truth():
    counts, theta = simulated(300)
    lda = BayesianLDA(3, random_state=0, num_draws=40).fit(counts)
    order = np.corrcoef(theta.T, lda.transform(counts).T)[:3, 3:].argmax(1)
    mean, lower, upper = lda.topic_shares(counts, level=0.95)
    assert mean.sum() == pytest.approx(1)
    assert np.all(lower < mean) and np.all(mean < upper) and np.all(upper - lower < 0.03)
    assert np.all(np.abs(mean[order] - theta.mean(0)) < 0.02)
    _, lower, upper = lda.topic_shares(counts, level=0.9, per_document=True)
    inside = (lower[:, order] <= theta + 1e-3) & (theta - 1e-3 <= upper[:, order])
    assert 0.8 < inside.mean() <= 1


def test_top_words_have_membership_probabilities():
    counts, _ = simulated()
    names = [f"word{i}" for i in range(18)]
    lda = BayesianLDA(3, random_state=0).fit(counts)
    for words in lda.top_words(6, names):
        assert len({int(w.word[4:]) // 6 for w in words}) == 1
        assert all(w.membership > 0.9 for w in words)
        assert sum(w.probability for w in words) > 0.9
    assert [w.membership for w in lda.top_words(2)[0]] != [1.0, 1.0]
    assert isinstance(lda.top_words(1)[0][0].word, int)
    assert lda.get_feature_names_out().tolist() == [f"bayesianlda{k}" for k in range(3)]


def test_bad_input_is_refused():
    refuses_bad_counts(BayesianLDA(2))
    for settings, message in [
        ({"n_components": 0}, "n_components == 0"),
        ({"sampler": "nuts"}, "`sampler` must be one of 'filter', 'scir'"),
        ({"fractional": "floor"}, "`fractional` must be"),
        ({"burn_in": 30}, "`burn_in` must be"),
        ({"doc_topic_prior": -1.0}, "`doc_topic_prior` must be positive, got -1.0"),
        ({"topic_word_prior": 0.0}, "`topic_word_prior` must be positive, got 0.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            BayesianLDA(**settings).fit([[1, 2], [2, 0]])
    for method in ("transform", "perplexity", "top_words", "topic_shares"):
        with pytest.raises(NotFittedError):
            getattr(BayesianLDA(), method)(*([] if method == "top_words" else [[[1]]]))


@pytest.mark.parametrize(
    ("setting", "bad", "message"),
    [
        ("step_size", [object(), "1", -1.0, 0, np.nan, 1j], "`step_size` must be positive, got"),
        ("n_jobs", ["2", 2.5, object()], "n_jobs must be an instance of"),
        ("n_jobs", [0], "`n_jobs` must not be 0"),
        ("total_samples", ["9", object()], "total_samples must be an instance of"),
        ("total_samples", [np.nan, np.inf], "`total_samples` must be finite, got"),
        ("total_samples", [0, -3, 0.5], "total_samples == .*, must be >= 1"),
        ("burn_in", ["1", None, 1.5], "burn_in must be an instance of"),
        ("learning_decay", ["1", None], "learning_decay must be an instance of"),
        ("learning_decay", [0.5, 1.1], "learning_decay == .*, must be"),
        ("topic_word_prior", ["1", np.nan], "`topic_word_prior` must be positive"),
    ],
)
def test_bad_settings_are_refused_in_fit(setting, bad, message):
    """In `fit` and not in the constructor, and also if the learner does not use the setting."""
    for value in bad:
        for sampler in ("filter", "msgnht"):
            lda = BayesianLDA(2, sampler=sampler, **{setting: value})
            for method in (lda.fit, lda.partial_fit):
                with pytest.raises((ValueError, TypeError), match=message):
                    method([[1, 2], [2, 0]])


def test_numpy_and_large_integers_and_schedules_are_accepted():
    settings = {
        "n_jobs": np.int64(-1),
        "total_samples": 10**10,
        "step_size": isotherm.schedules.halving(0.1, 9),
    }
    for sampler in ("filter", "sgld"):
        lda = BayesianLDA(2, sampler=sampler, sweeps=3, burn_in=np.int32(1), **settings)
        assert lda.partial_fit([[1, 2], [2, 0]]).components_.shape == (2, 2)


def test_empty_document_gets_the_mean_of_the_prior():
    counts, _ = simulated(50)
    lda = BayesianLDA(3, random_state=0, max_iter=2).fit(sparse.vstack([counts, 0 * counts[:1]]))
    np.testing.assert_allclose(lda.transform(0 * counts[:1]), 1 / 3)
