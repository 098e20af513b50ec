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
from isotherm.topics.corpus import as_corpus, completion
from isotherm.topics.estimators import learners
from isotherm.topics.estimators.lda import BayesianLDA
from isotherm.topics.estimators.learners import SAMPLERS
from isotherm.topics.gibbs import sweep_chains
from isotherm.topics.perplexity import CompletionScore
from marks import slow

QUICK = ("scir", "msgnht")
"""The samplers of this test that are quick; `tests/topics/test_lda.py` has all of them."""


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


@pytest.mark.parametrize(
    "sampler",
    ["auto", "filter", *(name if name in QUICK else slow(name) for name in SAMPLERS)],
)
def test_every_sampler_learns_in_memory_and_from_a_stream(sampler):
    counts, _ = simulated()
    settings = (
        {} if sampler in ("auto", "filter") else {"step_size": 1e-3 if sampler == "sgld" else 0.03}
    )
    lda = BayesianLDA(3, sampler=sampler, batch_size=20, max_iter=20, random_state=0, **settings)
    lda.fit(counts)
    assert blocks(lda.components_).mean() > 0.7
    chains = 2 if sampler == "auto" else 1
    assert list(lda.draws_) == ["topics"] and lda.draws_["topics"].shape == (chains, 20, 3, 18)
    np.testing.assert_allclose(lda.draws_["topics"].sum(3), 1, rtol=1e-4)
    stream = clone(lda)
    for i in range(0, 200, 40):
        stream.partial_fit(counts[i : i + 40])
    assert stream.n_documents_seen_ == 200 and stream.n_batch_iter_ == 10


def test_default_finds_the_topics_of_documents():
    counts, theta = simulated()
    lda = BayesianLDA(3, random_state=1).fit(counts)
    shares = lda.transform(counts)
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-5)
    match = np.corrcoef(theta.T, shares.T)[:3, 3:]
    assert sorted(match.argmax(1)) == [0, 1, 2] and match.max(1).min() > 0.95
    assert lda.score(counts) == pytest.approx(-np.log(lda.perplexity(counts)))
    assert lda.perplexity(counts) < 12 < BayesianLDA(1).fit(counts).perplexity(counts)
    lengths = lda.transform(counts, normalize=False).sum(1)
    np.testing.assert_allclose(lengths, 40 + lda.doc_topic_prior_.sum(), rtol=1e-5)


def test_predictions_are_averaged_over_chains_and_topics_are_those_of_the_best():
    counts, _ = simulated()
    settings = {"max_iter": 3, "num_draws": 5, "random_state": 0}
    lda = BayesianLDA(3, num_chains=3, **settings).fit(counts)
    lda._learner.num_predicting = 3
    draws = lda.draws_["topics"]
    assert draws.shape == (3, 5, 3, 18)
    np.testing.assert_allclose(lda.components_, draws[0].mean(0), atol=0.02)
    split = completion(as_corpus(counts), seed=0)
    found = lda.perplexity(observed=split.observed, scored=split.scored)
    assert lda._score(None, split.observed, split.scored).num_draws == 15
    score = CompletionScore(split, 0.1)
    for chain in draws:
        for topics in chain:
            score.add(topics, alpha=lda.doc_topic_prior_)
    assert found == pytest.approx(score.result().value, rel=0.02)
    one = BayesianLDA(3, num_chains=1, **settings).fit(counts)
    assert one.draws_["topics"].shape == (1, 5, 3, 18)


@pytest.mark.parametrize(
    ("num_topics", "num_chains", "expected"),
    [(3, 2, 240), (3, 1, 240), (45, 2, 270), (200, 2, 360), (3, 3, 240)],
)
def test_the_sweeps_are_divided_among_starts_and_chains(
    num_topics, num_chains, expected, monkeypatch
):
    """More topics get more sweeps by default, 8 to 12 passes of 30."""
    made = [0]

    def sweep(chains):
        made[0] += len(chains)
        sweep_chains(chains)

    monkeypatch.setattr(learners, "sweep_chains", sweep)
    lda = BayesianLDA(num_topics, num_chains=num_chains, random_state=0).fit(np.eye(4, dtype=int))
    assert expected <= made[0] < expected + num_chains
    assert lda.n_iter_ * 30 == expected and len(lda.draws_["topics"][0]) == 20


def test_a_chain_with_merged_topics_does_not_predict(monkeypatch):
    rng = np.random.default_rng(0)
    topics = np.kron(np.eye(3), np.ones((1, 6))) / 6
    counts = rng.multinomial(40, rng.dirichlet(np.full(3, 0.2), 120) @ topics)
    settings = {"max_iter": 2, "num_chains": 4, "random_state": 0}
    good = BayesianLDA(3, **settings).fit(counts)
    assert good._learner.num_predicting < 4
    monkeypatch.setattr(learners, "WORSE_CHAIN", np.inf)
    all_chains = BayesianLDA(3, **settings).fit(counts)
    assert all_chains._learner.num_predicting == 4
    np.testing.assert_array_equal(good.components_, all_chains.components_)
    assert good.perplexity(counts) < 0.98 * all_chains.perplexity(counts)


@pytest.mark.slow
def test_two_chains_predict_better_than_one_with_as_many_sweeps():
    rng = np.random.default_rng(0)
    topics, theta = rng.dirichlet(np.full(150, 0.1), 30), rng.dirichlet(np.full(30, 0.1), 500)
    counts = np.array([rng.multinomial(30, x @ topics) for x in theta])
    settings = {"num_draws": 20, "random_state": 0}
    one, two = (
        BayesianLDA(30, num_chains=n, **settings).fit(counts[:300]).perplexity(counts[300:])
        for n in (1, 2)
    )
    assert two < one


def test_gibbs_sampling_continues_as_a_filter():
    counts, _ = simulated()
    lda = BayesianLDA(3, random_state=1).fit(counts[:150])
    before, topics = lda.perplexity(counts[150:]), lda.components_
    lda.partial_fit(counts[150:])
    assert lda.n_documents_seen_ == 8 * 150 + 50
    np.testing.assert_allclose(lda.components_, topics, atol=0.03)
    assert not np.array_equal(lda.components_, topics)
    assert lda.perplexity(counts[150:]) < 1.02 * before
    with pytest.raises(ValueError, match="`sampler='gibbs'` needs all documents at once"):
        BayesianLDA(3, sampler="gibbs").partial_fit(counts)


@pytest.mark.parametrize("sampler", ["gibbs", "filter"])
def test_priors_are_learned_by_default_or_kept_as_given(sampler):
    rng = np.random.default_rng(0)
    topics = np.kron(np.eye(3), np.ones((1, 6))) + 0.01
    theta = rng.dirichlet([0.1, 0.1, 1.0], 300)
    counts = rng.multinomial(40, theta @ (topics / topics.sum(1, keepdims=True)))
    settings = {"sampler": sampler, "random_state": 1, "max_iter": 20}
    learned = BayesianLDA(3, doc_topic_prior="learned", topic_word_prior="learned", **settings)
    learned.fit(counts)
    assert learned.topic_word_prior_ != 0.05 and np.ptp(learned.doc_topic_prior_) > 0.05
    if sampler == "gibbs":
        assert 0.5 < learned.doc_topic_prior_.max() < 2
        assert learned.doc_topic_prior_.max() > 2.5 * learned.doc_topic_prior_.min()
    equal = rng.multinomial(
        40, rng.dirichlet(np.full(3, 0.6), 300) @ (topics / topics.sum(1, keepdims=True))
    )
    one = BayesianLDA(3, doc_topic_prior="learned-symmetric", **settings).fit(equal)
    assert np.ptp(one.doc_topic_prior_) == 0 and 0.2 < one.doc_topic_prior_[0] < 1.2
    default = BayesianLDA(3, **settings).fit(counts)
    assert np.allclose(default.doc_topic_prior_, 0.1) == (sampler == "filter")
    assert (default.topic_word_prior_ == 0.05) == (sampler == "filter")
    given = BayesianLDA(3, doc_topic_prior=[0.1, 0.2, 0.3], topic_word_prior=0.2, **settings)
    given.fit(counts)
    np.testing.assert_allclose(given.doc_topic_prior_, [0.1, 0.2, 0.3], rtol=1e-6)
    assert given.topic_word_prior_ == pytest.approx(0.2)


@pytest.mark.parametrize("sampler", ["gibbs", "filter"])
def test_seed_words_choose_which_topic_is_which(sampler):
    counts, _ = simulated()
    names = [f"word{i}" for i in range(18)]
    corpus = as_corpus(counts, names)
    for order in ([0, 1, 2], [2, 0, 1]):
        seeds = {k: [names[6 * block]] for k, block in enumerate(order)}
        lda = BayesianLDA(3, seed_words=seeds, sampler=sampler, random_state=0).fit(corpus)
        assert lda.components_.reshape(3, 3, 6).sum(2).argmax(1).tolist() == order
    lda = BayesianLDA(3, seed_words={2: {0: 500.0}}, sampler=sampler, random_state=0).fit(counts)
    assert lda.components_[2, 0] == lda.components_[:, 0].max()
    for seeds, message in [
        ({0: ["dog"]}, "`seed_words` has 'dog', which is not in the vocabulary"),
        ({3: ["word1"]}, "`seed_words` has topic 3, but the topics are 0 to 2"),
        ({0: "word1"}, "`seed_words` of topic 0 must be a list"),
        (["word1"], "`seed_words` must be a dictionary"),
        ({0: {"word1": -1}}, "`seed_words` must be positive"),
    ]:
        with pytest.raises(ValueError, match=message):
            BayesianLDA(3, seed_words=seeds, sampler=sampler).fit(corpus)
    with pytest.raises(ValueError, match="the words have no names"):
        BayesianLDA(3, seed_words={0: ["word1"]}, sampler=sampler).fit(counts)
    with pytest.raises(ValueError, match="`seed_words` needs Gibbs sampling or the filter"):
        BayesianLDA(3, seed_words={0: [1]}, sampler="scir").fit(counts)


def test_perplexity_of_a_given_split():
    counts, _ = simulated()
    lda = BayesianLDA(3, random_state=1, max_iter=3).fit(counts)
    numbers = lda.n_documents_seen_ + np.arange(200)
    split = completion(as_corpus(counts, documents=numbers), seed=0)
    parts = {"observed": split.observed.to_csr(), "scored": split.scored}
    assert lda.perplexity(**parts) == lda.perplexity(counts)
    assert lda.perplexity(observed=split.scored, scored=split.observed) != lda.perplexity(counts)
    for arguments, message in [
        ({"observed": counts}, "Pass `X`, or both"),
        ({"X": counts, **parts}, "either `X`, or"),
        ({"observed": counts, "scored": counts[:3]}, "parts of the same documents"),
    ]:
        with pytest.raises(ValueError, match=message):
            lda.perplexity(**arguments)


def test_topic_table_has_intervals_for_everything():
    counts, theta = simulated()
    names = [f"word{i}" for i in range(18)]
    lda = BayesianLDA(3, random_state=1).fit(counts)
    table = lda.topic_table(counts, theta.argmax(1), vocabulary=names, num_words=6)
    assert [row["topic"] for row in table.rows] == [0, 1, 2]
    assert sum(row["share"].mean for row in table.rows) == pytest.approx(1)
    for row in table.rows:
        assert len({int(word[4:]) // 6 for word in row["words"]}) == 1
        for name in ("share", "c_v", "npmi"):
            assert row[name].lower - 1e-9 <= row[name].mean <= row[name].upper + 1e-9
        assert row["share"].lower < row["share"].upper
    totals = table.totals
    assert set(totals) == {"c_v", "npmi", "diversity", "nmi", "purity"}
    assert totals["nmi"].mean > 0.8 and totals["purity"].mean > 0.9 and totals["npmi"].mean > 0
    assert set(table.records()[0]) >= {"share", "share_lower", "share_upper", "c_v", "words"}
    assert "purity" in str(table) and "word" in str(table)
    bad = lda.topic_table(counts[:, ::-1].toarray(), num_words=6)  # words in the wrong places
    assert bad.rows[0]["words"][0] in range(18) and "nmi" not in bad.totals
    texts = [[f"word{w}" for w in np.repeat(np.arange(18), row)] for row in counts.toarray()]
    of_texts = lda.topic_table(counts, vocabulary=names, reference=texts, measures=["u_mass"])
    of_counts = lda.topic_table(counts, vocabulary=names, measures=["u_mass"])
    assert of_texts.totals["u_mass"] == of_counts.totals["u_mass"]


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
    lda = BayesianLDA(3, random_state=1, num_draws=40).fit(counts)
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
    lda = BayesianLDA(3, random_state=1).fit(counts)
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
        ({"sampler": "nuts"}, "`sampler` must be one of 'auto', 'gibbs', 'filter', 'scir'"),
        ({"doc_topic_prior": "auto"}, "`doc_topic_prior` must be numbers or one of 'learned'"),
        ({"doc_topic_prior": "learned", "sampler": "sgld"}, "needs Gibbs sampling or the filter"),
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
    settings = {"n_jobs": np.int64(-1), "total_samples": 10**10}
    steps = {"filter": None, "sgld": isotherm.schedules.halving(0.1, 9)}
    for sampler, step_size in steps.items():
        settings["step_size"] = step_size
        lda = BayesianLDA(2, sampler=sampler, sweeps=3, burn_in=np.int32(1), **settings)
        assert lda.partial_fit([[1, 2], [2, 0]]).components_.shape == (2, 2)


def test_empty_document_gets_the_mean_of_the_prior():
    counts, _ = simulated(50)
    lda = BayesianLDA(3, random_state=0, max_iter=2).fit(sparse.vstack([counts, 0 * counts[:1]]))
    prior = lda.doc_topic_prior_
    np.testing.assert_allclose(lda.transform(0 * counts[:1]), [prior / prior.sum()], rtol=1e-6)
