"""NPMI agrees with its formula, also in batches; conversion of topics of other packages."""

import numpy as np
import pytest

from isotherm.topics.coherence import npmi, top_words
from isotherm.topics.corpus import as_corpus
from isotherm.topics.layout import as_topics


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
