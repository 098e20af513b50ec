"""Summaries of a deep topic model: words of units, correlations of units, the plot."""

import numpy as np
import pytest
from scipy.special import expit

from isotherm.topics.corpus import as_corpus
from isotherm.topics.dpfa.model import DPFA, Parameters
from isotherm.topics.estimators import summaries, unit_graph
from isotherm.topics.estimators.dpfa import BayesianDPFA
from isotherm.topics.estimators.summaries import (
    ActivationSums,
    numbered_by_words,
    unit_words,
)

RNG = np.random.default_rng(0)
MODEL = DPFA(12, (6, 4, 2), eta=0.3, r=0.7, p=0.8)
PARAMETERS = MODEL.draw(RNG)._replace(
    rates=np.linspace(0.4, 1.2, 6), p=np.array([0.9, 0.5, 0.8, 0.6, 0.7, 0.3])
)


def intensity(layer, unit, value):
    """Expected frequency of words with one unit fixed and all others at their means."""
    means = None
    for i in (2, 1, 0):
        c = PARAMETERS.biases[i]
        logits = (
            c
            if means is None
            else [
                sum(w * m for w, m in zip(row, means, strict=True)) + b
                for row, b in zip(PARAMETERS.weights[i], c, strict=True)
            ]
        )
        means = [float(expit(x)) for x in logits]
        if i == layer - 1:
            means[unit] = value
    size = PARAMETERS.rates * PARAMETERS.p / (1 - PARAMETERS.p)
    return sum(m * s * phi for m, s, phi in zip(means, size, PARAMETERS.topics, strict=True))


@pytest.mark.parametrize("layer", [2, 3])
def test_words_of_a_unit_become_more_frequent_when_it_is_on(layer):
    output = unit_words(PARAMETERS, layer)
    assert output.shape == (MODEL.layers[layer - 1], 12)
    for unit, words in enumerate(output):
        more = np.maximum(intensity(layer, unit, 1.0) - intensity(layer, unit, 0.0), 0)
        np.testing.assert_allclose(words * more.sum(), more, rtol=1e-9)
        assert words.sum() == pytest.approx(float(more.sum() > 0))


def test_layer_1_is_the_topics_and_a_unit_that_only_switches_off_has_no_words():
    np.testing.assert_array_equal(unit_words(PARAMETERS, 1), PARAMETERS.topics)
    weights = (-np.abs(PARAMETERS.weights[0]), PARAMETERS.weights[1])
    assert (unit_words(PARAMETERS._replace(weights=weights), 2) == 0).all()


def test_co_activation_is_the_correlation_of_states():
    layers = [RNG.random((50, 3)) < 0.4, RNG.random((50, 2)) < 0.5]
    layers[0][:, 2] = True
    layers[1][:, 0] |= layers[0][:, 0]
    sums = ActivationSums()
    sums.add(tuple(h[:20] for h in layers))
    sums.add(tuple(h[20:] for h in layers))
    output = sums.result()
    for on, h in zip(output.on, layers, strict=True):
        np.testing.assert_allclose(on, h.mean(0), rtol=1e-6)
    exact = np.corrcoef(layers[0][:, :2].T, layers[1].T)[:2, 2:]
    np.testing.assert_allclose(output.correlation[0][:2], exact, atol=1e-6)
    assert (output.correlation[0][2] == 0).all()


def test_correlations_under_the_prior_have_the_signs_of_the_weights():
    weights = (np.array([[4.0, -4.0]] * 3 + [[-4.0, 4.0]] * 3), np.zeros((2, 1)))
    biases = (np.zeros(6), np.zeros(2), np.zeros(1))
    truth = Parameters(np.full((6, 12), 1 / 12), weights, biases, np.ones(6), 1.0, np.full(6, 0.5))
    output = summaries.prior_activation([truth] * 3, seed=0)
    assert (np.sign(output.correlation[0]) == np.sign(weights[0])).all()
    assert np.abs(output.correlation[0]).min() > 0.3 > 0.1 > np.abs(output.correlation[1]).max()


def test_documents_are_numbered_by_their_words():
    x = np.array([[1, 2, 0], [2, 1, 0], [0, 0, 0], [1, 2, 0], [0, 1, 2]])
    output = numbered_by_words(as_corpus(x)).documents
    assert output[0] == output[3] and len(set(output.tolist())) == 4
    np.testing.assert_array_equal(numbered_by_words(as_corpus(x[::-1])).documents, output[::-1])


@pytest.fixture(scope="module")
def fitted():
    counts = MODEL.draw_documents(np.random.default_rng(1), PARAMETERS, 80).corpus.to_csr()
    model = BayesianDPFA((6, 4, 2), inference="gibbs", max_iter=40, num_draws=5, random_state=0)
    return model.fit(counts), counts


def test_top_words_of_every_layer(fitted):
    model, _ = fitted
    names = [f"word{i}" for i in range(12)]
    for layer, size in ((1, 6), (2, 4), (3, 2)):
        output = model.top_words(3, names, layer=layer)
        assert len(output) == size
        for words in output:
            assert len(words) <= 3 and all(w.word in names and w.probability > 0 for w in words)
            assert sorted(words, key=lambda w: -w.probability) == words
            assert all(0 <= w.membership <= 1 for w in words)
    best = model.top_words(1)[0][0]
    assert best.word == model.components_[0].argmax()
    assert best.probability == pytest.approx(model.components_[0].max(), rel=1e-5)
    for layer in (0, 4):
        with pytest.raises(ValueError, match=f"layer == {layer}"):
            model.top_words(layer=layer)


def test_graph_can_be_saved(fitted, tmp_path):
    model, counts = fitted
    for documents in (None, counts):
        figure = model.plot_graph(
            documents, vocabulary=[f"word{i}" for i in range(12)], max_units=3
        )
        figure.savefig(tmp_path / "graph.png")
        (axes,) = figure.axes
        assert [len(dots.get_offsets()) for dots in axes.collections] == [3, 3, 2]
        assert [label.get_text() for label in axes.get_xticklabels()] == [
            "topics",
            "layer 2",
            "layer 3",
        ]
        assert len(axes.texts) == 8 and len(axes.texts[0].get_text().split()) == 3
    shallow = BayesianDPFA((4,), inference="gibbs", max_iter=5).fit(counts)
    assert len(shallow.plot_graph().axes[0].texts) == 4


def test_graph_shows_the_strongest_units_and_links():
    correlation = np.zeros((6, 3))
    correlation[4, 2], correlation[1, 0], correlation[0, 0] = 0.9, -0.5, 0.3
    activation = summaries.Activation((np.full(6, 0.5), np.full(3, 0.5)), (correlation,))
    below, above = unit_graph.choose_units(activation, 2)
    assert above.tolist() == [0, 2] and below.tolist() == [0, 4]
    labels = [[f"unit {k}" for k in range(n)] for n in (6, 3)]
    figure = unit_graph.plot_graph(activation, labels, max_units=6, max_links=2)
    assert [line.get_color() for line in figure.axes[0].lines] == ["#0072b2", "#d55e00"]
    assert figure.axes[0].lines[0].get_linewidth() > figure.axes[0].lines[1].get_linewidth()
