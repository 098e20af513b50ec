"""Bags of words are read exactly, or refused with the number of the invalid line."""

import gzip
import tracemalloc
import zipfile
from io import BytesIO

import numpy as np
import pytest
from scipy import io, sparse

from isotherm.data.bag_of_words import read_ldac, read_matrix_market, read_npz, read_vocabulary
from isotherm.data.shards import Shards, StreamError
from isotherm.data.word_counts import check_counts

DENSE = np.array([[1, 0, 2, 0], [0, 0, 0, 0], [0, 3, 0, 1]])
LDAC = "2 0:1 2:2\n0\n2 3:1 1:3\n"


def test_ldac_plain_and_gzipped(tmp_path):
    (tmp_path / "plain.ldac").write_text(LDAC)
    (tmp_path / "packed.ldac.gz").write_bytes(gzip.compress(LDAC.encode()))
    for name in ("plain.ldac", "packed.ldac.gz"):
        counts = read_ldac(tmp_path / name)
        np.testing.assert_array_equal(counts.to_csr().toarray(), DENSE)
    assert read_ldac(tmp_path / "plain.ldac", num_words=9).num_words == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2 0:1 2:2\n3 0:1 1:1", "line 2: it declares 3 words but has 2, so it may be truncated"),
        ("1 0:1 2:2\n", "line 1: it declares 1 words but has 2"),
        ("1 0:1\n1 1:-2\n", "line 2: `1:-2` is not `word:count`"),
        ("1 0:1\n1 1:0.5\n", "line 2: `1:0.5` is not `word:count`"),
        ("1 0:nan\n", "line 1: `0:nan` is not"),
        ("1 -1:1\n", "line 1: `-1:1` is not"),
        ("1 0:1:1\n", "line 1: `0:1:1` is not"),
        ("1 0:1\n\n1 0:1\n", "line 2: it is blank"),
        ("word 0:1\n", "line 1: it must begin with the number of words, got `word`"),
        ("1 0:1\n1 7:1\n", "line 2: word 7 is outside the vocabulary of 4 words"),
        ("1 0:99999999999\n", "line 1: .*too large"),
        ("", "is empty"),
    ],
)
def test_invalid_ldac(tmp_path, text, message):
    path = tmp_path / "bad.ldac"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_ldac(path, num_words=4)
    assert str(path) in str(caught.value)


def test_truncated_gzipped_ldac(tmp_path):
    path = tmp_path / "cut.ldac.gz"
    path.write_bytes(gzip.compress(LDAC.encode() * 1000)[:-10])
    with pytest.raises(ValueError, match=r"is damaged or truncated at line \d+"):
        read_ldac(path)


def test_ldac_of_empty_documents_has_no_vocabulary(tmp_path):
    (tmp_path / "a.ldac").write_text("0\n0\n")
    with pytest.raises(ValueError, match="vocabulary of at least one word"):
        read_ldac(tmp_path / "a.ldac")


def test_npz(tmp_path):
    sparse.save_npz(tmp_path / "a.npz", sparse.coo_matrix(DENSE.astype(np.uint16)))
    np.testing.assert_array_equal(read_npz(tmp_path / "a.npz").to_csr().toarray(), DENSE)
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[: len(content) // 2])
    np.savez(tmp_path / "other.npz", a=1)
    for name in ("cut.npz", "other.npz"):
        with pytest.raises(ValueError, match=f"{name}` is not a sparse npz, or is truncated"):
            read_npz(tmp_path / name)
    sparse.save_npz(tmp_path / "bad.npz", sparse.csr_matrix(DENSE * 0.5))
    with pytest.raises(ValueError, match=r"bad.npz`: document 0 has count 0.5 for word 0"):
        read_npz(tmp_path / "bad.npz")
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "nowhere.npz")


def test_matrix_market(tmp_path):
    io.mmwrite(tmp_path / "a.mtx", sparse.coo_matrix(DENSE))
    np.testing.assert_array_equal(read_matrix_market(tmp_path / "a.mtx").to_csr().toarray(), DENSE)
    text = (tmp_path / "a.mtx").read_bytes()
    (tmp_path / "a.mtx.gz").write_bytes(gzip.compress(text))
    np.testing.assert_array_equal(
        read_matrix_market(tmp_path / "a.mtx.gz").to_csr().toarray(), DENSE
    )


HEADER = "%%MatrixMarket matrix coordinate integer general\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEADER + "3 4 4\n1 1 1\n1 3 2\n",
            "it declares 4 entries but has 2, so it may be truncated",
        ),
        (HEADER + "3 4 2\n1 1 1\n1 x 2\n", "line 4: `1 x 2` is not an entry"),
        (HEADER + "3 4 2\n1 1 1\n1 9 2\n", "entry 2 is at row 1, column 9, outside the matrix"),
        (HEADER + "1 2 1\n1 1 -3\n", "document 0 has count -3.0 for word 0"),
        ("no header\n", "is not Matrix Market"),
        ("", "is not Matrix Market"),
    ],
)
def test_invalid_matrix_market(tmp_path, text, message):
    path = tmp_path / "bad.mtx"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_matrix_market(path)
    assert str(path) in str(caught.value)


def test_vocabularies(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("rot\ngrün \nblau\n", encoding="utf-8")
    assert read_vocabulary(path) == ("rot", "grün", "blau")
    for text, message in {
        "": "is empty: a vocabulary needs",
        "a\n\nb\n": "line 2: the line is blank",
        "a\nb\na\n": "line 3: duplicate word 'a', first on line 1",
    }.items():
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_vocabulary(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        read_vocabulary(path)


def npy(array):
    stream = BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def archive(path, **changes):
    """Write a sparse npz with some of its arrays replaced by other bytes."""
    rows = sparse.csr_array(DENSE)
    arrays = {
        "format": np.array(b"csr"),
        "shape": np.array(rows.shape),
        "data": rows.data,
        "indices": rows.indices,
        "indptr": rows.indptr,
    }
    with zipfile.ZipFile(path, "w") as file:
        for name, content in ({k: npy(v) for k, v in arrays.items()} | changes).items():
            file.writestr(f"{name}.npy", content)


def with_shape(array, shape):
    """Return an array in npy format whose header declares another shape."""
    content = npy(array)
    return content.replace(f"({len(array)},)".encode(), shape).ljust(len(content))[: len(content)]


CORRUPTED = {
    "header that is not Python": {"data": npy(np.arange(6)).replace(b"'shape'", b"'shape(")},
    "shape larger than the data": {"data": with_shape(np.arange(4), b"(99999999999,)")},
    "fractional word index": {"indices": npy(np.array([0.5, 2.0, 1.0, 3.0]))},
    "row pointers that are text": {"indptr": npy(np.array(["0", "2", "2", "4"]))},
    "array of objects": {"data": npy(np.arange(4)).replace(b"'<i8'", b"'|O' ")},
    "row pointers that begin with 1": {"indptr": npy(np.array([1, 2, 2, 4]))},
    "row index outside the matrix": {
        "format": npy(np.array(b"csc")),
        "indptr": npy(np.array([0, 1, 2, 3, 4])),
        "indices": npy(np.array([0, 2, 10**6, 2])),
    },
    "more rows than memory": {
        "format": npy(np.array(b"coo")),
        "row": npy(np.zeros(4, int)),
        "col": npy(np.zeros(4, int)),
        "shape": npy(np.array([10**12, 4])),
    },
}


@pytest.mark.parametrize("case", CORRUPTED)
def test_a_corrupted_npz_is_refused_without_allocating_memory(tmp_path, case):
    """SciPy accepts three of these, and allocates up to 7 TiB for two."""
    archive(tmp_path / "good.npz")
    np.testing.assert_array_equal(read_npz(tmp_path / "good.npz").to_csr().toarray(), DENSE)
    path = tmp_path / "bad.npz"
    archive(path, **CORRUPTED[case])
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"bad.npz` is not a sparse npz, or is truncated"):
        read_npz(path)
    with pytest.raises(StreamError, match=r"bad.npz` is not a shard of counts"):
        next(Shards([path], 4).batches(2))
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "3 4 99999999999\n1 1 1\n", "it declares 99999999999 entries but has 1, so"),
        (HEADER + "999999999999 4 1\n1 1 1\n", "it declares 999999999999 documents but has 1"),
        (
            HEADER.replace("integer", "pattern") + "2 2 1\n1 1 ",
            "line 3: it does not end with a line",
        ),
        (HEADER + "2 2 1\n1 1 1\n1 2 1\n", "it declares 1 entries but has 2"),
        (HEADER + "2 2\n", "line 2 must have 3 sizes"),
        (
            HEADER.replace("general", "hermitian") + "2 2 0\n",
            "its first line is not the header of a",
        ),
    ],
)
def test_matrix_market_with_a_wrong_header_or_end(tmp_path, text, message):
    """The third one crashes SciPy's reader, and Python, with a segmentation fault."""
    (tmp_path / "bad.mtx").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_matrix_market(tmp_path / "bad.mtx")


def test_reads_what_scipy_writes(tmp_path):
    for x in (sparse.eye_array(3, dtype=int), DENSE, DENSE.astype(float), sparse.coo_array(DENSE)):
        io.mmwrite(tmp_path / "a.mtx", x)
        dense = x.toarray() if sparse.issparse(x) else x
        np.testing.assert_array_equal(
            read_matrix_market(tmp_path / "a.mtx").to_csr().toarray(), dense
        )
    (tmp_path / "a.mtx").write_text(HEADER + "% comment\n\n2 2 1\n\n  2 1\t3 \n")
    np.testing.assert_array_equal(
        read_matrix_market(tmp_path / "a.mtx").to_csr().toarray(), [[0, 0], [3, 0]]
    )


@pytest.mark.parametrize(
    "line", ["1 99999999999999999999:1", "1 0:99999999999999999999", "1 2147483648:1"]
)
def test_numbers_too_large_for_a_word_or_count(tmp_path, line):
    """They would overflow, or wrap around to another word."""
    path = tmp_path / "a.ldac"
    path.write_text(f"{line}\n")
    with pytest.raises(ValueError, match=r"line 1: \d+ is too large"):
        read_ldac(path)
    with pytest.raises(ValueError, match=r"line 1: \d+ is too large"):
        next(Shards([path], 4).batches(2))


def test_documents_with_too_many_words(tmp_path):
    """The message names the line; words that repeat within bounds are added up."""
    path = tmp_path / "a.ldac"
    path.write_text("1 0:1\n2 3:2147483647 3:1\n")
    message = "line 2: it has 2,147,483,648 words, but a document can have at most 4,194,304"
    with pytest.raises(ValueError, match=message):
        read_ldac(path)
    with pytest.raises(StreamError, match=message):
        list(Shards([path], 4).batches(2))
    path.write_text("2 3:4194303 3:1\n2 1:4194303 2:1\n")
    assert read_ldac(path).counts.tolist() == [4194304, 4194303, 1]
    x = sparse.coo_array(([2**31 - 1, 1], ([1, 1], [0, 0])), shape=(2, 1))
    with pytest.raises(ValueError, match="document 1 has count 2147483648 for word 0, but a count"):
        check_counts(x)


def test_a_vocabulary_that_is_not_gzipped_as_its_name_says(tmp_path):
    (tmp_path / "words.gz").write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"words.gz` is damaged or truncated"):
        read_vocabulary(tmp_path / "words.gz")
