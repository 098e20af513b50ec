"""Defects that users found: huge counts, ignored settings, sorted streams, unclear errors."""

import itertools
import threading
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline

import isotherm
from isotherm.data.word_counts import MAX_TOKENS
from isotherm.exceptions import PolicyWarning
from isotherm.topics import expected_counts, kernels, layout
from isotherm.topics.corpus import as_corpus
from isotherm.topics.corpus_readers import from_bags, shuffle_buffer
from isotherm.topics.estimators.dpfa import BayesianDPFA
from isotherm.topics.estimators.lda import BayesianLDA
from isotherm.topics.lda import TopicsDivergedError
from marks import slow

FAST = {"max_iter": 1, "sweeps": 3, "burn_in": 1, "num_draws": 2, "random_state": 0}
MODELS = [BayesianLDA(2, **FAST), BayesianDPFA((2, 2), start_documents=5, **FAST)]
TEXTS = ["cat dog cat", "dog cat", "stocks bonds", "bonds stocks stocks"] * 10


def counts_of_two_subjects(documents=120, seed=0):
    """Half of the documents about each of two subjects, sorted."""
    rng = np.random.default_rng(seed)
    topics = np.kron(np.eye(2), np.ones((1, 20))) + 0.02
    topics /= topics.sum(1, keepdims=True)
    subject = np.repeat([0, 1], documents // 2)
    return sparse.csr_array(np.stack([rng.multinomial(30, topics[k]) for k in subject]))


@pytest.mark.parametrize("model", MODELS, ids=["lda", "dpfa"])
def test_a_huge_count_is_refused_before_memory_is_allocated(model):
    counts = np.array([[1, 2], [10**9, 1]])
    with pytest.raises(ValueError, match=r"document 1 has 1,000,000,001 words.*at most 4,194,304"):
        clone(model).fit(counts)
    with pytest.raises(ValueError, match="at most 4,194,304"):
        as_corpus(np.array([[MAX_TOKENS // 2 + 1] * 2]))
    assert as_corpus(np.array([[MAX_TOKENS - 1, 1]])).num_tokens == MAX_TOKENS


@pytest.mark.parametrize("threads", [1, 2])
def test_long_work_is_cut_into_runs_that_can_be_interrupted(threads):
    """Ctrl-C is noticed between two runs, and no further run is started."""
    starts = np.arange(0, 1001, 10)
    runs = expected_counts.document_runs(starts, 20 * expected_counts.MAX_CALL_SECONDS, threads)
    assert len(runs) == 20 and runs[0][0] == 0 and runs[-1][1] == 100
    assert all(a[1] == b[0] for a, b in itertools.pairwise(runs))
    done, lock = [], threading.Lock()

    def work(first, last):
        with lock:
            done.append(first)
            if len(done) == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        expected_counts.run_in_threads(work, starts, 20 * expected_counts.MAX_CALL_SECONDS, threads)
    assert 3 <= len(done) < 20


def test_a_long_document_is_swept_in_several_calls(monkeypatch):
    """A document of four million words would otherwise ignore Ctrl-C for many seconds."""
    corpus, rows = as_corpus([[30, 20]]), layout.word_major(np.array([[0.7, 0.3], [0.2, 0.8]]))
    settings = {"sweeps": 9, "burn_in": 4, "seed": 0}
    whole = expected_counts.gibbs_counts(rows, corpus, np.ones(2), **settings)
    calls, sweep_documents = [], kernels.sweep_documents

    def counted(*arguments):
        calls.append(arguments[12:14])
        sweep_documents(*arguments)

    monkeypatch.setattr(kernels, "sweep_documents", counted)
    monkeypatch.setattr(expected_counts, "MAX_CALL_SECONDS", 4e-6)
    parts = expected_counts.gibbs_counts(rows, corpus, np.ones(2), **settings)
    assert len(calls) > 2 and calls[0][0] == -1 and calls[-1][1] == 9
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(a, b)
    monkeypatch.undo()
    runs = expected_counts.sweep_runs(-1, 30, MAX_TOKENS, 128)
    seconds = expected_counts.token_seconds(MAX_TOKENS, max(b - a for a, b in runs), 128)
    assert len(runs) > 5 and seconds <= 2 * expected_counts.MAX_CALL_SECONDS


@pytest.mark.slow
def test_runs_do_not_change_the_result(monkeypatch):
    counts = counts_of_two_subjects(40)
    plain = [clone(model).fit(counts).components_ for model in MODELS]
    plain.append(BayesianLDA(2, sampler="scir", **FAST).fit(counts).components_)
    monkeypatch.setattr(expected_counts, "MAX_CALL_SECONDS", 1e-5)
    cut = [clone(model).fit(counts).components_ for model in MODELS]
    cut.append(BayesianLDA(2, sampler="scir", **FAST).fit(counts).components_)
    for a, b in zip(plain, cut, strict=True):
        np.testing.assert_array_equal(a, b)


def test_prequential_perplexity_is_of_documents_not_yet_learned():
    counts = counts_of_two_subjects(60)
    settings = {"batch_size": 10, "evaluate_every": 1, **FAST, "max_iter": 3}
    settings["inference"] = "sgmcmc"
    model = BayesianDPFA((2, 2), start_documents=20, **settings).fit(counts)
    once = BayesianDPFA((2, 2), start_documents=20, **settings | {"max_iter": 1}).fit(counts)
    assert model.prequential_perplexity_ == once.prequential_perplexity_
    assert model.training_perplexity_ != once.training_perplexity_
    used_up = BayesianDPFA((2, 2), **settings).fit(counts)  # all of them initialize the topics
    assert np.isnan(used_up.prequential_perplexity_) and used_up.training_perplexity_ > 1
    shuffled = counts[np.random.default_rng(0).permutation(60)]
    stream = BayesianDPFA((2, 2), start_documents=20, **settings).partial_fit(shuffled)
    assert stream.prequential_perplexity_ > 1 and np.isnan(stream.training_perplexity_)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (BayesianLDA(2, step_size=0.1, **FAST), "step_size"),
        (BayesianLDA(2, sampler="filter", step_size=0.1, **FAST), "step_size"),
        (BayesianLDA(2, sampler="filter", num_chains=3, **FAST), "num_chains"),
        (BayesianLDA(2, sampler=isotherm.sgld(None, 1e-3), step_size=0.1, **FAST), "step_size"),
        (BayesianDPFA((2,), step_size=0.1, **FAST), "step_size"),
        (BayesianDPFA((2,), inference="gibbs", sampler="sgrld", **FAST), "sampler"),
        (BayesianDPFA((2,), inference="filtering", weight_step_size=1, **FAST), "weight_step_size"),
        (BayesianDPFA((2,), inference="filtering", num_chains=3, **FAST), "num_chains"),
    ],
)
def test_a_setting_without_effect_is_reported(model, name):
    with pytest.warns(UserWarning, match=f"`{name}` has no effect"):
        model.fit([[1, 2], [2, 0]])


@pytest.mark.parametrize(
    ("model", "change"),
    [
        (MODELS[0], {"n_components": 3}),
        (MODELS[0], {"doc_topic_prior": 0.3}),
        (MODELS[0], {"random_state": 1}),
        slow(MODELS[1], {"layers": (3, 2)}),
    ],
)
def test_a_setting_changed_between_batches_is_refused(model, change):
    counts = counts_of_two_subjects(20)[::-1]
    model = clone(model).partial_fit(counts)
    model.set_params(batch_size=7, verbose=False, n_jobs=2).partial_fit(counts)
    (name,) = change
    model.set_params(**change)
    with pytest.raises(ValueError, match=f"`{name}` was .* when learning began"):
        model.partial_fit(counts)
    model.fit(counts)


@pytest.mark.parametrize("model", [MODELS[0], slow(MODELS[1])], ids=["lda", "dpfa"])
def test_a_sorted_stream_is_reported_once_and_a_shuffled_one_never(model):
    counts, settings = counts_of_two_subjects(240), {"batch_size": 20}
    with pytest.warns(PolicyWarning, match="seem to be sorted") as caught:
        clone(model).set_params(**settings).partial_fit(counts)
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        order = np.random.default_rng(0).permutation(240)
        clone(model).set_params(**settings).partial_fit(counts[order])
        stream = clone(model).set_params(**settings)
        corpus = as_corpus(counts)
        batches = (corpus[i : i + 30] for i in range(0, 240, 30))
        for batch in shuffle_buffer(batches, 20, buffer_size=200, seed=0):
            stream.partial_fit(batch)
        clone(model).set_params(**settings).fit(counts)


def test_shuffle_buffer_yields_every_document_once_in_another_order():
    corpus = as_corpus(np.arange(1, 101)[:, None])
    parts = [corpus[i : i + 7] for i in range(0, 100, 7)]
    batches = list(shuffle_buffer(parts, 10, buffer_size=40, seed=1))
    assert [len(batch) for batch in batches] == [10] * 10
    numbers = np.concatenate([batch.documents for batch in batches])
    assert sorted(numbers) == list(range(100)) and (numbers[:10] < 56).all()
    assert np.abs(numbers - np.arange(100)).mean() > 10
    again = np.concatenate([b.documents for b in shuffle_buffer(parts, 10, buffer_size=40, seed=1)])
    np.testing.assert_array_equal(numbers, again)
    with pytest.raises(ValueError, match="`batch_size` must be from 1 to"):
        next(shuffle_buffer(parts, 50, buffer_size=40))


@pytest.mark.parametrize("model", MODELS, ids=["lda", "dpfa"])
def test_errors_say_what_to_do(model):
    model = clone(model)
    for texts in (TEXTS, tuple(TEXTS), np.array(TEXTS), np.array(TEXTS, object), "cat dog"):
        with pytest.raises(ValueError, match=r"it has texts: convert them by .*CountVectorizer"):
            model.fit(texts)
    bags = [[(0, 2), (3, 1)], [(1, 1)]]
    with pytest.raises(ValueError, match=r"convert them by .*from_bags\(bags, dictionary\)"):
        model.fit(bags)
    model.fit(from_bags(bags, num_words=4))
    names = ["cat", "dog"]
    with pytest.raises(ValueError, match="`vocabulary` must have one name for each of the 4 colum"):
        model.top_words(2, names)
    with pytest.raises(ValueError, match=r"`topic_word_prior` must be one number.*shape .2, 4."):
        clone(model).set_params(topic_word_prior=np.ones((2, 4))).fit(np.ones((3, 4)))


@pytest.mark.parametrize("model", MODELS, ids=["lda", "dpfa"])
def test_other_kinds_of_documents_are_refused_with_what_to_do(model):
    model = clone(model)
    words = [text.split() for text in TEXTS]
    with pytest.raises(
        ValueError, match=r"it has lists of words: .*CountVectorizer\(analyzer=list"
    ):
        model.fit(words)
    assert CountVectorizer(analyzer=list).fit_transform(words).shape == (40, 4)
    with pytest.raises(ValueError, match=r"convert them by .*from_bags\(bags, dictionary\)"):
        model.fit([[], [[0, 2], [3, 1]], [[1, 1]]])
    with pytest.raises(ValueError, match="got an iterable, generator: convert bags of gensim by"):
        model.fit(bag for bag in [[(0, 2), (3, 1)]])


def test_from_bags_names_what_is_wrong():
    corpus = from_bags([[(0, 1), (1, 2)]], {0: "cat", 1: "dog"})
    assert corpus.vocabulary == ("cat", "dog") and corpus.num_tokens == 3
    with pytest.raises(ValueError, match=r"document 1 has words instead of .*doc2bow"):
        from_bags([[(0, 1)], [("cat", 1)]], num_words=2)
    with pytest.raises(ValueError, match="document 0 must be a list of pairs"):
        from_bags([5], num_words=2)
    with pytest.raises(ValueError, match=r"2 words, but none has the number 1: .*compactify"):
        from_bags([[(0, 1)]], {0: "cat", 2: "dog"})


@pytest.mark.parametrize("model", MODELS, ids=["lda", "dpfa"])
def test_a_fitted_model_keeps_its_size_when_settings_change(model, tmp_path):
    counts = counts_of_two_subjects(20)
    model = clone(model).fit(counts)
    before, names = model.transform(counts), model.get_feature_names_out()
    size = {"layers": (5, 4)} if isinstance(model, BayesianDPFA) else {"n_components": 5}
    model.set_params(**size)
    np.testing.assert_array_equal(model.transform(counts), before)
    assert model.get_feature_names_out().tolist() == names.tolist() and len(names) == 2
    assert model.perplexity(counts) > 1 and len(model.top_words(2)) == 2
    model.write_page(tmp_path / "page.html", counts)


def test_priors_and_splits_of_the_wrong_size_are_named():
    with pytest.raises(
        ValueError, match=r"`doc_topic_prior` must be a number or have one for each"
    ):
        BayesianLDA(2, doc_topic_prior=[0.1, 0.2, 0.3]).fit([[1, 2], [2, 0]])
    model = BayesianLDA(2, **FAST).fit([[1, 2], [2, 0]])
    with pytest.raises(ValueError, match="There are no tokens to score: the documents are empty"):
        model.perplexity([[0, 0]])


def test_dpfa_refuses_a_number_of_layers():
    with pytest.raises(ValueError, match=r"`layers` must be a tuple .* or \(4,\), got 4"):
        BayesianDPFA(4).fit([[1, 2], [2, 0]])
    with pytest.raises(TypeError, match="each size in `layers` must be an instance of int"):
        BayesianDPFA((4.5, 2)).fit([[1, 2], [2, 0]])


@pytest.mark.parametrize(("integrator", "advised"), [("ABOBA", False), ("euler", True)])
def test_a_diverged_chain_does_not_advise_the_integrator_it_has(integrator, advised):
    sampler = isotherm.msgnht(None, 1e6, integrator=integrator)
    model = BayesianLDA(2, sampler=sampler, **FAST | {"max_iter": 5})
    with pytest.raises(TopicsDivergedError, match="Try a smaller `step_size`") as caught:
        model.fit([[3, 2], [2, 9]] * 20)
    assert ("'ABOBA'" in str(caught.value)) == advised


def test_names_of_words_come_from_a_corpus_a_vectorizer_or_a_pipeline():
    vectorizer = CountVectorizer()
    pipeline = make_pipeline(vectorizer, BayesianLDA(2, **FAST)).fit(TEXTS)
    lda, names = pipeline[-1], vectorizer.get_feature_names_out()
    assert pipeline.get_feature_names_out().tolist() == ["bayesianlda0", "bayesianlda1"]
    assert (
        lda.top_words(2, pipeline[:-1]) == lda.top_words(2, vectorizer) == lda.top_words(2, names)
    )
    # The dictionary of the vectorizer, and one of gensim.
    assert lda.top_words(2, vectorizer.vocabulary_) == lda.top_words(2, names)
    assert lda.top_words(2, dict(enumerate(names))) == lda.top_words(2, names)
    corpus = as_corpus(vectorizer.transform(TEXTS), names)
    model = BayesianLDA(2, **FAST).fit(corpus)
    np.testing.assert_array_equal(model.components_, lda.components_)
    assert model.top_words(2) == lda.top_words(2, names)
    np.testing.assert_array_equal(
        model.transform(corpus), lda.transform(vectorizer.transform(TEXTS))
    )
    with pytest.raises(ValueError, match="`X` has another vocabulary"):
        model.transform(as_corpus(corpus, names[::-1]))
    with pytest.raises(ValueError, match="`X` has 1 words, but BayesianLDA was fitted with 4"):
        model.transform(corpus.select_words(np.array([0])))
