"""Corpora from files and by name, in memory and as streams."""

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from isotherm.data.shards import StreamError
from isotherm.topics.corpus_readers import (
    from_bags,
    load_icml,
    load_wiki,
    open_stream,
    read_corpus,
    stream_wiki,
)

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
DENSE = np.array([[1, 0, 2], [0, 0, 0], [0, 3, 1]])


@pytest.fixture
def files(tmp_path):
    sparse.save_npz(tmp_path / "x.npz", sparse.csr_matrix(DENSE))
    (tmp_path / "x.ldac").write_text("2 0:1 2:2\n0\n2 1:3 2:1\n")
    (tmp_path / "x.mtx").write_text(
        "%%MatrixMarket matrix coordinate integer general\n3 3 4\n1 1 1\n1 3 2\n3 2 3\n3 3 1\n"
    )
    (tmp_path / "words.txt").write_text("red\ngreen\nblue\n")
    return tmp_path


@pytest.mark.parametrize("name", ["x.npz", "x.ldac", "x.mtx"])
def test_formats_agree(files, name):
    corpus = read_corpus(files / name, files / "words.txt")
    np.testing.assert_array_equal(corpus.to_csr().toarray(), DENSE)
    assert corpus.vocabulary == ("red", "green", "blue")
    assert read_corpus(str(files / name)).vocabulary is None


def test_vocabulary_of_the_wrong_size_is_refused(files):
    with pytest.raises(ValueError, match="line 1: word 2 is outside the vocabulary of 2 words"):
        read_corpus(files / "x.ldac", ["red", "green"])
    with pytest.raises(ValueError, match="`vocabulary` has 2 words, but the counts have 3"):
        read_corpus(files / "x.npz", ["red", "green"])


def test_stream_numbers_its_documents(files):
    stream = open_stream([files / "x.npz", files / "x.ldac"], files / "words.txt")
    batches = list(stream.batches(2, num_epochs=2))
    assert [b.corpus.documents.tolist() for b in batches] == [[0, 1], [2, 3], [4, 5]] * 2
    assert batches[0].corpus.vocabulary == ("red", "green", "blue") and stream.num_words == 3
    with pytest.raises(ValueError, match="needs `vocabulary` or `num_words`"):
        open_stream([files / "x.npz"])


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
def test_the_real_corpora():
    icml = load_icml(SHARED)
    assert (len(icml), icml.num_words, icml.num_tokens) == (766, 1918, 45_158)
    text = read_corpus(SHARED / "icml" / "icml_bow.ldac", SHARED / "icml" / "icml_vocab.txt")
    assert (text.to_csr() != icml.to_csr()).nnz == 0
    test = load_wiki("test", SHARED)
    assert (len(test), test.num_words, test.num_tokens) == (1000, 7702, 102_413)
    stream, small = stream_wiki("train", SHARED), load_wiki("small", SHARED)
    for batch, _ in stream.batches(1000):
        rows = batch.documents
        assert (batch.to_csr() != small[rows].to_csr()).nnz == 0
        if rows[-1] == 2999:
            break


class Dictionary(dict):
    """Like gensim's: maps numbers to words."""


def test_gensim_bags_become_a_corpus():
    bags = [[(2, 3), (0, 1)], [], [(1, 2.0)]]
    corpus = from_bags(bags, Dictionary({0: "a", 1: "b", 2: "c"}))
    np.testing.assert_array_equal(corpus.to_csr().toarray(), [[1, 0, 3], [0, 0, 0], [0, 2, 0]])
    assert corpus.vocabulary == ("a", "b", "c")
    assert from_bags(iter(bags), num_words=5).num_words == 5
    assert len(from_bags([], num_words=2)) == 0
    for arguments, message in [
        ((bags,), "needs `dictionary` or `num_words`"),
        ((bags, ["a", "b"]), "`bags`: document 0 has count 3.0 for word 2, but the vocabulary"),
        (([["a"]], ["a"]), "`bags`: document 0 must be a list of pairs"),
        (([[(0, -1)]], ["a"]), "cannot be negative"),
        (([[(0, 1.5)]], ["a"]), "must be a whole number"),
    ]:
        with pytest.raises(ValueError, match=message):
            from_bags(*arguments)


def test_a_document_that_is_too_long_does_not_stop_a_stream_for_good(tmp_path):
    path = tmp_path / "long.ldac"
    path.write_text(f"1 0:1\n1 1:{10**9}\n1 1:2\n")
    stream = open_stream([path], num_words=2)
    batches = stream.batches(5)
    assert len(next(batches).corpus) == 1
    with pytest.raises(StreamError, match="1,000,000,000 words") as caught:
        next(batches)
    (rest,) = stream.batches(5, caught.value.position.skip())
    assert rest.corpus.num_tokens == 2
