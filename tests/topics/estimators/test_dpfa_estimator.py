"""BayesianDPFA: scikit-learn's contract, bad input, three algorithms, streams."""

import pickle

import numpy as np
import pytest
from bad_counts import refuses_bad_counts
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

import isotherm
from isotherm.topics import expected_counts
from isotherm.topics.corpus import as_corpus
from isotherm.topics.dpfa.initialization import learn_start
from isotherm.topics.dpfa.model import DPFA
from isotherm.topics.dpfa.sgmcmc import DPFAChain
from isotherm.topics.estimators import dpfa_learners
from isotherm.topics.estimators.dpfa import BayesianDPFA
from isotherm.topics.scir import SCIR
from marks import slow

TINY = {"sweeps": 4, "burn_in": 2, "num_draws": 2, "start_documents": 10, "batch_size": 20}
SGMCMC = {"max_iter": 2, "weight_step_size": 0.1}


def simulated(documents=200, seed=0):
    """Counts (sparse) of three topics on disjoint words."""
    rng = np.random.default_rng(seed)
    topics = np.kron(np.eye(3), np.ones((1, 6))) + 0.01
    theta = rng.dirichlet(np.full(3, 0.1), documents)
    counts = rng.multinomial(40, theta @ (topics / topics.sum(1, keepdims=True)))
    return sparse.csr_array(counts), theta


# The checks use real numbers, which the default refuses (tested below).
@parametrize_with_checks(
    [
        BayesianDPFA((3, 2), fractional="round", inference="filtering", **TINY),
        BayesianDPFA((3, 2), fractional="round", inference="gibbs", max_iter=2, **TINY),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        BayesianDPFA((3, 2), inference="sgmcmc", fractional=fractional, **SGMCMC, **TINY)
        for fractional in ("refuse", "round")
    ]
)
def test_scikit_learn_checks_of_sgmcmc(estimator, check):
    check(estimator)


@pytest.mark.parametrize("inference", ["sgmcmc", "filtering", "gibbs"])
def test_every_algorithm_finds_the_topics_of_documents(inference):
    counts, theta = simulated()
    model = BayesianDPFA((3, 2), inference=inference, batch_size=20, random_state=0).fit(counts)
    assert model.components_.reshape(3, 3, 6).sum(2).max(1).min() > 0.9
    chains = 2 if inference == "gibbs" else 1
    shapes = {
        "topics": (chains, 20, 3, 18),
        "rates": (chains, 20, 3),
        "gamma0": (chains, 20),
        "p": (chains, 20, 3),
        "weights1": (chains, 20, 3, 2),
        "biases1": (chains, 20, 3),
        "biases2": (chains, 20, 2),
    }
    assert {name: draws.shape for name, draws in model.draws_.items()} == shapes
    assert len(model.parameters_) == 20
    np.testing.assert_array_equal(model.draws_["biases2"][0, 3], model.parameters_[3].biases[1])
    np.testing.assert_allclose(model.draws_["topics"].sum(3), 1, rtol=1e-4)
    shares = model.transform(counts)
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-9)
    match = np.corrcoef(theta.T, shares.T)[:3, 3:]
    assert sorted(match.argmax(1)) == [0, 1, 2] and match.max(1).min() > 0.95
    assert model.perplexity(counts) < 12 < BayesianDPFA((1,)).fit(counts).perplexity(counts)
    assert model.score(counts) == pytest.approx(-np.log(model.perplexity(counts)))
    on = model.activations(counts)
    assert [x.shape for x in on] == [(200, 3), (200, 2)]
    assert on[0][shares > 0.1].mean() > 0.99 > 0.9 > on[0][shares < 0.01].mean()
    assert model.on_rates_.shape == (2,) and 0.2 < model.on_rates_[0] < 0.95
    passes = {"sgmcmc": 10, "filtering": 1, "gibbs": 200}[inference]
    assert model.n_iter_ == passes and model.n_documents_seen_ == 200 * passes


def test_predictions_are_averaged_over_chains_and_topics_are_those_of_the_first():
    counts, _ = simulated(80)
    settings = {"max_iter": 40, "num_draws": 3, "random_state": 0}
    model = BayesianDPFA((3, 2), num_chains=2, **settings).fit(counts)
    learner = model._learner
    learner.num_predicting = 2
    draws = model.draws_["topics"]
    assert draws.shape == (2, 3, 3, 18) and not np.array_equal(draws[0], draws[1])
    np.testing.assert_allclose(model.components_, draws[0].mean(0), atol=0.05)
    assert len(learner.predictive_parameters()) == 6 and len(model.parameters_) == 3
    score = model._score(counts, None, None)
    assert score.num_draws == 6 and np.isfinite(score.result().value)
    both = model.perplexity(counts)
    learner.num_predicting = 1
    assert model.perplexity(counts) != both
    # One chain makes as many sweeps as both together.
    one = BayesianDPFA((3, 2), num_chains=1, **settings | {"max_iter": 20}).fit(counts)
    assert any(
        np.array_equal(one._learner.chains[0][0][0].topics, chain[0][0].topics)
        for chain in learner.chains
    )


@pytest.mark.slow
def test_a_chain_that_starts_with_merged_topics_does_not_predict(monkeypatch):
    """The start is that of LDA, whose test has the same name."""
    rng = np.random.default_rng(0)
    topics = np.kron(np.eye(3), np.ones((1, 6))) / 6
    counts = rng.multinomial(40, rng.dirichlet(np.full(3, 0.2), 120) @ topics)
    settings = {"max_iter": 40, "num_chains": 4, "num_draws": 5, "random_state": 0}
    monkeypatch.setattr(dpfa_learners, "LDA_SWEEPS", 5)
    good = BayesianDPFA((3,), **settings).fit(counts)
    assert good._learner.num_predicting < 4


def test_gibbs_sampling_continues_with_stochastic_gradients():
    """The default: a stream after `fit` starts from the last draw."""
    counts, _ = simulated()
    settings = {"batch_size": 20, "num_draws": 5, "weight_step_size": 1e-4, "random_state": 0}
    with pytest.warns(UserWarning, match="only `inference='sgmcmc'` uses it, and this is 'gibbs'"):
        model = BayesianDPFA((3, 2), max_iter=40, **settings).fit(counts[:120])
    last, before = model.parameters_[-1], model.perplexity(counts[120:])
    assert 0 < model.topic_word_prior_ < 1 and model.topic_word_prior_ != 0.05
    model.partial_fit(counts[120:140])
    (draw,) = model.parameters_
    np.testing.assert_allclose(draw.weights[0], last.weights[0], atol=0.1)
    assert np.corrcoef(draw.topics.ravel(), last.topics.ravel())[0, 1] > 0.99
    model.partial_fit(counts[140:])
    assert model.n_documents_seen_ == 40 * 120 + 80 and len(model.parameters_) == 4
    assert model.perplexity(counts[120:]) < 1.05 * before


def test_seed_words_choose_which_topic_is_which():
    counts, _ = simulated()
    seeds = {0: [12], 1: [0], 2: [6]}
    model = BayesianDPFA((3, 2), seed_words=seeds, max_iter=20, random_state=0).fit(counts)
    assert model.components_.reshape(3, 3, 6).sum(2).argmax(1).tolist() == [2, 0, 1]
    assert model.topic_word_prior_ == pytest.approx(0.05)
    for method, settings in [
        ("partial_fit", {}),
        ("fit", {"inference": "filtering"}),
    ]:
        other = BayesianDPFA((3, 2), seed_words=seeds, **settings)
        with pytest.raises(ValueError, match="`seed_words` needs Gibbs sampling"):
            getattr(other, method)(counts)
    with pytest.raises(ValueError, match="must be a number if there are `seed_words`"):
        BayesianDPFA((3, 2), seed_words=seeds, topic_word_prior="learned").fit(counts)
    with pytest.raises(ValueError, match="'learned'` needs Gibbs sampling"):
        BayesianDPFA((3, 2), topic_word_prior="learned").partial_fit(counts)


SETTINGS = {"batch_size": 25, "random_state": 3, "start_documents": 50, "sweeps": 6, "burn_in": 3}


@pytest.mark.parametrize("inference", ["sgmcmc", "filtering"])
def test_stream_in_parts_with_a_pickle_equals_one_run(inference):
    """Interrupted while documents are collected for the initialization, and again later."""
    counts, _ = simulated()
    whole, parts = (BayesianDPFA((3, 2), inference=inference, **SETTINGS) for _ in range(2))
    whole.partial_fit(counts)
    for cut in (slice(0, 25), slice(25, 100), slice(100, 200)):
        parts = pickle.loads(pickle.dumps(parts)).partial_fit(counts[cut])
    again = pickle.loads(pickle.dumps(parts))
    for resumed in (parts, again):
        for name, draws in whole.draws_.items():
            np.testing.assert_array_equal(draws, resumed.draws_[name])
        np.testing.assert_array_equal(whole.on_rates_, resumed.on_rates_)
        assert whole.prequential_perplexity_ == resumed.prequential_perplexity_
    assert parts.n_documents_seen_ == 200 and parts.n_batch_iter_ == 8
    dense = BayesianDPFA((3, 2), inference=inference, **SETTINGS).partial_fit(counts.toarray())
    np.testing.assert_array_equal(whole.components_, dense.components_)
    other = clone(dense).set_params(random_state=4).partial_fit(counts)
    assert not np.array_equal(other.components_, dense.components_)


def test_stream_equals_a_chain_with_the_same_settings():
    counts, _ = simulated()
    estimator = BayesianDPFA((3, 2), total_samples=500, **SETTINGS).partial_fit(counts)
    model, corpus, seed = DPFA(18, (3, 2), p=None), as_corpus(counts), estimator._seed
    batches = [corpus[i : i + 25] for i in range(0, 200, 25)]
    chain = DPFAChain(
        model,
        SCIR(lambda t: (3.0 + t) ** -0.7, model.eta),
        isotherm.msgnht(None, 0.3 * 500**-0.5, 10.0),
        start=learn_start(model, batches[:2], seed=seed),
        data_size=500,
        sweeps=6,
        burn_in=3,
        seed=seed,
    )
    for batch in batches[2:]:
        chain.step(batch)
    for a, b in zip(chain.parameters(), estimator.parameters_[-1], strict=True):
        for x, y in zip(a, b, strict=True) if isinstance(a, tuple) else [(a, b)]:
            np.testing.assert_array_equal(x, y)


def test_results_do_not_depend_on_threads_scores_or_progress(monkeypatch, capsys):
    monkeypatch.setattr(expected_counts, "MIN_THREADED_SECONDS", 0.0)
    counts, _ = simulated()
    common = {"inference": "sgmcmc", "max_iter": 2, **SETTINGS}
    plain = BayesianDPFA((3, 2), evaluate_every=0, **common).fit(counts)
    assert np.isnan(plain.prequential_perplexity_) and capsys.readouterr().err == ""
    settings = {"evaluate_every": 1, "verbose": True, "n_jobs": 3, **common}
    verbose = BayesianDPFA((3, 2), **settings).fit(counts)
    for name, draws in plain.draws_.items():
        np.testing.assert_array_equal(draws, verbose.draws_[name])
    np.testing.assert_array_equal(plain.transform(counts), verbose.transform(counts))
    assert 5 < verbose.prequential_perplexity_ < 14
    shown = capsys.readouterr().err
    assert "400/400 documents" in shown and "documents/s" in shown and "perplexity" in shown


def test_results_for_a_document_depend_only_on_its_words():
    counts, _ = simulated()
    model = BayesianDPFA((3, 2), max_iter=20, **SETTINGS).fit(counts)
    whole, order = model.transform(counts), np.random.default_rng(0).permutation(200)
    np.testing.assert_array_equal(model.transform(counts[order]), whole[order])
    np.testing.assert_array_equal(model.transform(counts[[7]]), whole[[7]])
    assert model.perplexity(counts[order]) == pytest.approx(model.perplexity(counts))
    intensities = model.transform(counts, normalize=False).sum(1)
    assert 30 < intensities.mean() < 45  # of 40 tokens
    empty = model.transform(0 * counts[:1])
    assert (empty > 0).all() and empty.sum() == pytest.approx(1)


@pytest.mark.parametrize("inference", ["sgmcmc", "filtering"])
def test_memory_does_not_grow_with_the_stream(inference):
    counts, _ = simulated()
    model = BayesianDPFA((3, 2), inference=inference, **TINY)
    sizes = [len(pickle.dumps(model.partial_fit(counts))) for _ in range(4)]
    assert max(sizes[1:]) - min(sizes[1:]) < 64


def test_topics_before_the_initialization_is_complete_are_those_of_the_filter(capsys):
    counts, _ = simulated()
    model = BayesianDPFA((3, 2), batch_size=20, random_state=0, verbose=True).partial_fit(counts)
    shown = capsys.readouterr().err
    assert "200/200 documents" in shown and "documents/s" not in shown
    assert model.components_.reshape(3, 3, 6).sum(2).max(1).min() > 0.9
    assert np.isnan(model.on_rates_).all() and np.isnan(model.prequential_perplexity_)
    assert all((draw.weights[0] == 0).all() for draw in model.parameters_)


@pytest.mark.parametrize(
    "settings",
    [
        slow({"inference": "sgmcmc", "max_iter": 3, "sampler": "sgrld"}),
        {"inference": "sgmcmc", "max_iter": 3, "integrator": "euler"},
        {"p": 0.9, "r": 0.5, "max_iter": 30},
    ],
)
def test_other_settings_learn_as_well(settings):
    counts, _ = simulated()
    model = BayesianDPFA((3, 2), batch_size=50, random_state=0, **settings)
    assert model.fit(counts).perplexity(counts) < 12
    for name in {"p", "r"} & settings.keys():
        values = getattr(model.parameters_[-1], {"p": "p", "r": "rates"}[name])
        np.testing.assert_allclose(values, settings[name])


def test_bad_input_is_refused():
    model = BayesianDPFA((2, 2))
    refuses_bad_counts(model)
    for settings, message in [
        ({"layers": ()}, "`layers` must be one or more"),
        ({"layers": (3, 0)}, "`layers` must be one or more"),
        (
            {"inference": "vb"},
            "`inference` must be one of 'auto', 'gibbs', 'sgmcmc', 'filtering', got 'vb'",
        ),
        ({"inference": "sgmcmc", "sampler": "nuts"}, "`sampler` must be one of 'scir', 'sgrld'"),
        ({"fractional": "floor"}, "`fractional` must be"),
        ({"burn_in": 30}, "`burn_in` must be"),
        ({"topic_word_prior": 0.0}, "`topic_word_prior` must be positive, got 0.0"),
        ({"p": 1.5}, "`p` must be between 0 and 1"),
        ({"weight_step_size": -1.0}, "`weight_step_size` must be positive, got -1.0"),
        ({"start_documents": -1}, "start_documents == -1"),
        ({"n_jobs": 0}, "`n_jobs` must not be 0"),
        ({"step_size": -1.0}, "`step_size` must be positive, got -1.0"),
        ({"evaluate_every": -1}, "evaluate_every == -1"),
        ({"max_iter": 0}, "max_iter == 0"),
        ({"inference": "filtering", "max_iter": 2}, "`max_iter` must be 1 for `inference='filt"),
    ]:
        with pytest.raises(ValueError, match=message):
            BayesianDPFA(**settings).fit([[1, 2], [2, 0]])
    for method in ("transform", "activations", "perplexity", "top_words", "plot_graph"):
        with pytest.raises(NotFittedError):
            getattr(model, method)(
                *([[[1]]] if method in ("transform", "activations", "perplexity") else [])
            )
    for name in ("components_", "draws_", "parameters_", "on_rates_", "prequential_perplexity_"):
        with pytest.raises(NotFittedError):
            getattr(model, name)
    assert not hasattr(BayesianDPFA(inference="gibbs"), "partial_fit")
