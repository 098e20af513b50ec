"""Coherence agrees with gensim and with its formula; diversity, labels; other packages' topics."""

import gensim_reference as gensim
import numpy as np
import pytest

from isotherm.topics.coherence import (
    Agreement,
    coherence,
    diversity,
    label_agreement,
    npmi,
    top_words,
)
from isotherm.topics.corpus import as_corpus
from isotherm.topics.layout import as_topics

GENSIM = {
    "c_v": [0.2801010169, 0.2225431621, 0.3054699787, 0.5479027971],
    "c_npmi": [-0.4006571756, -0.2280503077, -0.0761777700, -0.0538835862],
    "c_uci": [-10.7248265023, -6.0606309361, -1.8188255282, -1.9440784670],
    "u_mass": [-9.0080651740, -5.8350527076, -1.0775359540, -0.5392902500],
}
"""What `python tests/topics/gensim_reference.py` printed."""


@pytest.mark.parametrize("measure", gensim.MEASURES)
def test_coherence_is_that_of_gensim(measure):
    settings = {"measure": measure, "num_words": gensim.NUM_WORDS, "vocabulary": gensim.NAMES}
    value = coherence(gensim.topics(), gensim.texts(), **settings)
    np.testing.assert_allclose(value.per_topic, GENSIM[measure], rtol=0, atol=1e-9)
    if measure != "u_mass":  # a window of another size is another value
        other = coherence(gensim.topics(), gensim.texts(), window=50, **settings)
        assert np.abs(other.per_topic - value.per_topic).max() > 1e-3


def test_a_corpus_is_a_reference_whose_documents_are_windows():
    texts = gensim.texts()
    counts = np.array([[text.count(name) for name in gensim.NAMES] for text in texts])
    for measure in gensim.MEASURES:
        settings = {"measure": measure, "num_words": gensim.NUM_WORDS}
        a = coherence(gensim.topics(), as_corpus(counts), **settings)
        b = coherence(gensim.topics(), texts, window=10**6, vocabulary=gensim.NAMES, **settings)
        np.testing.assert_allclose(a.per_topic, b.per_topic, rtol=1e-12)
        assert a.num_documents == b.num_documents == len(texts)


def test_pairs_with_words_that_never_occur_have_no_information():
    topics = np.eye(4)[[0, 1]].sum(0)[None]
    for measure in ("c_npmi", "c_uci", "u_mass", "c_v"):
        value = coherence(topics, as_corpus([[1, 0, 1, 0]]), measure=measure, num_words=2).mean
        assert np.isfinite(value)


def test_diversity_and_agreement_with_labels():
    topics = np.kron(np.eye(3), np.ones((1, 4)))
    assert diversity(topics, 4) == 1 and diversity(topics, 12) == pytest.approx(1 / 3)
    assert diversity(topics) == pytest.approx(1 / 3)  # all twelve words of each
    assert label_agreement([1, 1, 0, 2], list("aabc")) == Agreement(1.0, 1.0)
    assert label_agreement([0, 1, 0, 1], list("aabb")) == Agreement(0.0, 0.5)
    with pytest.raises(ValueError, match="one label per document"):
        label_agreement([0, 1], ["a"])


def by_hand(top, present):
    values = []
    for words in top:
        pairs = []
        for i in range(len(words)):
            for j in range(i):
                a, b = present[:, words[i]], present[:, words[j]]
                joint = (a & b).mean()
                value = -1.0 if joint == 0 else np.log(joint / a.mean() / b.mean()) / -np.log(joint)
                pairs.append(value)
        values.append(np.mean(pairs))
    return values


def test_npmi_agrees_with_its_formula_also_in_batches():
    rng = np.random.default_rng(0)
    corpus, topics = as_corpus(rng.poisson(0.2, (300, 40))), rng.dirichlet(np.ones(40), 6)
    expected = by_hand(top_words(topics, 5), corpus.to_csr().toarray() > 0)
    whole = npmi(topics, corpus, num_words=5)
    np.testing.assert_allclose(whole.per_topic, expected, rtol=1e-10)
    batches = npmi(topics, (corpus[i : i + 70] for i in range(0, 300, 70)), num_words=5)
    np.testing.assert_array_equal(batches.per_topic, whole.per_topic)
    assert whole.num_documents == 300 and whole.mean == pytest.approx(np.mean(expected))


def test_extreme_values():
    corpus = as_corpus([[1, 1, 0, 0, 1], [1, 2, 0, 0, 1], [0, 0, 1, 0, 1], [0, 0, 0, 0, 1]])
    topic = lambda *words: np.eye(5)[list(words)].sum(0)[None]  # noqa: E731
    assert npmi(topic(0, 1), corpus, num_words=2).mean == pytest.approx(1)
    assert npmi(topic(0, 2), corpus, num_words=2).mean == -1
    assert npmi(topic(0, 3), corpus, num_words=2).mean == -1
    assert npmi(topic(0, 4), corpus, num_words=2).mean == pytest.approx(0)
    everywhere = as_corpus(np.ones((3, 2), int))
    assert npmi(np.full((1, 2), 0.5), everywhere, num_words=2).mean == 0


def test_bad_arguments_are_refused():
    corpus = as_corpus([[1, 1]])
    with pytest.raises(ValueError, match="`num_words` must be at least 2"):
        npmi(np.ones((1, 2)), corpus, num_words=1)
    with pytest.raises(ValueError, match="`num_words` must be from 1 to 2, got 3"):
        npmi(np.ones((1, 2)), corpus, num_words=3)
    with pytest.raises(ValueError, match="has 2 words, but the topics have 3"):
        npmi(np.ones((1, 3)), corpus, num_words=2)
    with pytest.raises(ValueError, match="no documents"):
        npmi(np.ones((1, 3)), [], num_words=2)
    with pytest.raises(ValueError, match="`measure` must be one of 'c_v', 'c_npmi'"):
        coherence(np.ones((1, 2)), corpus, measure="umass", num_words=2)
    with pytest.raises(ValueError, match="`vocabulary` is needed"):
        coherence(np.ones((1, 2)), [["a", "b"]], num_words=2)
    with pytest.raises(ValueError, match="`vocabulary` has 1 words, but the topics have 2"):
        coherence(np.ones((1, 2)), [["a", "b"]], num_words=2, vocabulary=["a"])
    with pytest.raises(ValueError, match="a text is a string"):
        coherence(np.ones((1, 2)), ["a b"], num_words=2, vocabulary=["a", "b"])
    with pytest.raises(ValueError, match="`window` must be at least 1"):
        coherence(np.ones((1, 2)), [["a"]], num_words=2, vocabulary=["a", "b"], window=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, 2.0],), r"must have shape \(topics, words\)"),
        (([[1.0, -1.0]],), "finite and not negative"),
        (([[0.0, 0.0], [1.0, 0.0]],), "Topic 0 of `weights` has no mass"),
        (([[1.0, 1.0]], ["a", "b"]), "must be given together"),
        (([[1.0, 1.0]], ["a"], ["a"]), "`vocabulary` has 1 words"),
        (([[1.0, 1.0]], ["a", "a"], ["a"]), "contains duplicate words"),
    ],
)
def test_bad_topics_of_other_packages_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        as_topics(*arguments)


def test_words_missing_in_another_package_get_the_given_weight():
    topics = as_topics([[2.0, 6.0]], ["b", "a"], onto=["a", "b", "c"], missing=1.0)
    np.testing.assert_allclose(topics, [[6 / 9, 2 / 9, 1 / 9]])
