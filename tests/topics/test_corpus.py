"""Corpora: conversion, error messages, selection, and splits that do not depend on the order."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer

from isotherm.topics.corpus import as_corpus, completion, minibatch, train_test

DENSE = np.array([[1, 0, 2, 0], [0, 0, 0, 0], [0, 3, 0, 1], [5, 1, 1, 2]])


def random_corpus(documents=200, words=60, seed=0):
    return as_corpus(np.random.default_rng(seed).poisson(0.3, (documents, words)))


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil"])
@pytest.mark.parametrize("dtype", [np.int64, np.uint16, np.float32, bool])
def test_all_sparse_formats_are_converted(form, dtype):
    corpus = as_corpus(sparse.coo_matrix(DENSE.astype(dtype)).asformat(form))
    assert (corpus.indptr.dtype, corpus.words.dtype, corpus.counts.dtype) == ("i8", "i4", "i4")
    np.testing.assert_array_equal(corpus.to_csr().toarray(), DENSE.astype(dtype))
    np.testing.assert_array_equal(corpus.lengths, DENSE.astype(dtype).astype(int).sum(1))


def test_duplicates_zeros_and_unsorted_entries_are_cleaned():
    x = sparse.csr_matrix(
        (np.array([1, 0, 2, 4]), np.array([2, 1, 2, 0]), np.array([0, 4])), (1, 3)
    )
    corpus = as_corpus(x)
    np.testing.assert_array_equal(corpus.words, [0, 2])
    np.testing.assert_array_equal(corpus.counts, [4, 3])
    assert x.nnz == 4  # the input is not modified


def test_output_of_a_vectorizer():
    vectorizer = CountVectorizer()
    x = vectorizer.fit_transform(["a red red house", "green grass"])
    corpus = as_corpus(x, vectorizer.get_feature_names_out())
    assert corpus.vocabulary == ("grass", "green", "house", "red")
    assert repr(corpus) == "Corpus(2 documents, 4 words, 5 tokens)"
    np.testing.assert_array_equal(corpus.tokens(), [2, 3, 3, 0, 1])


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([[1, 0], [0, -2]], "document 1 has count -2 for word 1, but a count cannot be negative"),
        ([[1.0, 0], [0.5, 0]], "document 1 has count 0.5 for word 0, but a count must be a whole"),
        ([[np.nan, 0]], "document 0 has count nan for word 0, but a count .* negative or NaN"),
        ([[0, np.inf]], "document 0 has count inf for word 1"),
        ([[2**40, 0]], "a count can be at most 2147483647"),
        ([1, 2], r"must have shape \(documents, words\), got \(2,\)"),
        (np.zeros((3, 0)), "a vocabulary of at least one word"),
        ([["a"]], "must be numbers"),
        (sparse.csr_array(np.array([[0.0, np.nan]])), "has count nan for word 1"),
    ],
)
def test_bad_counts(counts, message):
    with pytest.raises(ValueError, match=message):
        as_corpus(counts)


def test_word_outside_the_vocabulary_is_refused():
    x = sparse.csr_array(DENSE)
    x.indices[3] = 9
    message = "document 2 has count 1 for word 9, but the vocabulary has 4"
    with pytest.raises(ValueError, match=message):
        as_corpus(x)


def test_bad_vocabularies_and_numbers():
    with pytest.raises(ValueError, match="`vocabulary` has 3 words, but the counts have 4"):
        as_corpus(DENSE, "abc")
    with pytest.raises(ValueError, match="`vocabulary` contains 'b' twice"):
        as_corpus(DENSE, "abcb")
    with pytest.raises(ValueError, match="`documents` must have shape"):
        as_corpus(DENSE, documents=[1])
    with pytest.raises(ValueError, match="`empty` must be"):
        as_corpus(DENSE, empty="burn")


def test_empty_documents_are_kept_dropped_or_refused():
    assert len(as_corpus(DENSE)) == 4
    np.testing.assert_array_equal(as_corpus(DENSE, empty="drop").documents, [0, 2, 3])
    with pytest.raises(ValueError, match="Document 1 has no words"):
        as_corpus(DENSE, empty="refuse")


def test_selection_keeps_numbers_and_words():
    corpus = as_corpus(DENSE, "abcd")
    for rows in ([3, 0], slice(1, 3), np.array([True, False, False, True]), []):
        part = corpus[rows]
        np.testing.assert_array_equal(part.to_csr().toarray(), DENSE[rows].reshape(-1, 4))
        np.testing.assert_array_equal(part.documents, np.arange(4)[rows])
    np.testing.assert_array_equal(corpus[[3, 0]][[0]].documents, [3])
    fewer = corpus.select_words(np.array([3, 0]))
    np.testing.assert_array_equal(fewer.to_csr().toarray(), DENSE[:, [3, 0]])
    assert fewer.vocabulary == ("d", "a")
    large = random_corpus()
    np.testing.assert_array_equal(large[[-1, 3]].documents, [199, 3])
    for whole in (corpus, large):
        with pytest.raises(IndexError):
            whole[[777]]
    with pytest.raises(TypeError, match="indexed by a slice, a mask or a list"):
        corpus[2]


def test_train_and_test_are_a_partition_by_seed():
    corpus = random_corpus()
    train, test = train_test(corpus, test=0.2, seed=3)
    assert len(test) == 40
    np.testing.assert_array_equal(
        np.sort(np.concatenate([train.documents, test.documents])), np.arange(200)
    )
    again, other = (train_test(corpus, test=40, seed=s).test.documents for s in (3, 4))
    np.testing.assert_array_equal(again, test.documents)
    assert not np.array_equal(other, test.documents)
    with pytest.raises(ValueError, match="`test` must leave documents in both parts"):
        train_test(corpus, test=1.0, seed=0)


def test_completion_splits_tokens_per_document():
    corpus = random_corpus()
    observed, scored, *_ = completion(corpus, observed=0.8, seed=1)
    total = observed.to_csr() + scored.to_csr()
    np.testing.assert_array_equal(total.toarray(), corpus.to_csr().toarray())
    np.testing.assert_array_equal(observed.lengths, np.rint(0.8 * corpus.lengths))
    order = np.random.default_rng(0).permutation(200)
    shuffled = completion(corpus[order], observed=0.8, seed=1).observed
    np.testing.assert_array_equal(shuffled.to_csr().toarray(), observed.to_csr().toarray()[order])
    streamed = [
        completion(corpus[i : i + 7], observed=0.8, seed=1).observed for i in range(0, 200, 7)
    ]
    np.testing.assert_array_equal(np.concatenate([s.counts for s in streamed]), observed.counts)
    other = completion(corpus, observed=0.8, seed=2).observed
    assert not np.array_equal(other.to_csr().toarray(), observed.to_csr().toarray())


def test_completion_of_short_documents():
    observed, scored, *_ = completion(
        as_corpus([[0, 0], [1, 0], [1, 1], [3, 0]]), observed=0.9, seed=0
    )
    np.testing.assert_array_equal(observed.lengths, [0, 1, 1, 2])
    np.testing.assert_array_equal(scored.lengths, [0, 0, 1, 1])
    with pytest.raises(ValueError, match="`observed` must be between 0 and 1"):
        completion(as_corpus([[1]]), observed=1.0, seed=0)


def test_completion_observes_all_tokens_equally_often():
    """Chi-square test at a false-alarm rate of 1e-4."""
    observed = completion(as_corpus(np.ones((20_000, 8), int)), observed=0.5, seed=0).observed
    shares = observed.to_csr().sum(0) / 20_000
    # Four of eight without replacement: variance p(1 - p), correlations -1/7.
    statistic = 20_000 * np.sum((shares - 0.5) ** 2) / 0.25 * 7 / 8
    assert statistic < 29.88  # chi-square with 7 degrees of freedom


def test_minibatches_are_independent_and_reproducible():
    corpus = random_corpus()
    batches = [minibatch(corpus, 10, seed=0, step=step).documents for step in range(2000)]
    assert all(len(set(batch)) == 10 for batch in batches)
    np.testing.assert_array_equal(minibatch(corpus, 10, seed=0, step=7).documents, batches[7])
    counts = np.bincount(np.concatenate(batches), minlength=200)
    assert np.sum((counts - 100) ** 2) / (100 * 0.95) * 199 / 200 < 283  # chi-square(199), 1e-4
    with pytest.raises(ValueError, match="`batch_size` must be from 1 to 200"):
        minibatch(corpus, 201, seed=0, step=0)
