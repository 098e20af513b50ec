"""Bags of words are read as they are, or refused with the line that is wrong."""

import gzip
import tracemalloc
import zipfile
from io import BytesIO

import numpy as np
import pytest
from scipy import io, sparse

from isotherm.data.bag_of_words import read_ldac, read_matrix_market, read_npz, read_vocabulary
from isotherm.data.shards import Shards, StreamError

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
        ("2 0:1 2:2\n3 0:1 1:1", "line 2: it says 3 words, but has 2: cut short"),
        ("1 0:1 2:2\n", "line 1: it says 1 words, but has 2"),
        ("1 0:1\n1 1:-2\n", "line 2: `1:-2` is not `word:count`"),
        ("1 0:1\n1 1:0.5\n", "line 2: `1:0.5` is not `word:count`"),
        ("1 0:nan\n", "line 1: `0:nan` is not"),
        ("1 -1:1\n", "line 1: `-1:1` is not"),
        ("1 0:1:1\n", "line 1: `0:1:1` is not"),
        ("1 0:1\n\n1 0:1\n", "line 2: it is blank"),
        ("word 0:1\n", "line 1: it must begin with a number of words, got `word`"),
        ("1 0:1\n1 7:1\n", "line 2: word 7, but the vocabulary has 4 words"),
        ("1 0:99999999999\n", "line 1: .*too large"),
        ("", "is empty"),
    ],
)
def test_bad_ldac(tmp_path, text, message):
    path = tmp_path / "bad.ldac"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_ldac(path, num_words=4)
    assert str(path) in str(caught.value)


def test_ldac_cut_in_the_middle_of_a_gzip(tmp_path):
    path = tmp_path / "cut.ldac.gz"
    path.write_bytes(gzip.compress(LDAC.encode() * 1000)[:-10])
    with pytest.raises(ValueError, match=r"is damaged or cut short at line \d+"):
        read_ldac(path)


def test_an_ldac_of_empty_documents_has_no_vocabulary(tmp_path):
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
        with pytest.raises(ValueError, match=f"{name}` is not a sparse npz, or is cut short"):
            read_npz(tmp_path / name)
    sparse.save_npz(tmp_path / "bad.npz", sparse.csr_matrix(DENSE * 0.5))
    with pytest.raises(ValueError, match=r"bad.npz`: document 0 has word 0 0.5 times"):
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
        (HEADER + "3 4 4\n1 1 1\n1 3 2\n", "it says 4 entries, but has 2: cut short"),
        (HEADER + "3 4 2\n1 1 1\n1 x 2\n", "line 4: `1 x 2` is not an entry"),
        (HEADER + "3 4 2\n1 1 1\n1 9 2\n", "entry 2 is at row 1, column 9, outside"),
        (HEADER + "1 2 1\n1 1 -3\n", "document 0 has word 0 -3.0 times"),
        ("no header\n", "is not Matrix Market"),
        ("", "is not Matrix Market"),
    ],
)
def test_bad_matrix_market(tmp_path, text, message):
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
        "": "is an empty vocabulary",
        "a\n\nb\n": "line 2: a word is missing",
        "a\nb\na\n": "line 3: 'a' is on line 1 already",
    }.items():
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_vocabulary(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is not text in UTF-8"):
        read_vocabulary(path)


def npy(array):
    stream = BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def archive(path, **changes):
    """Write a sparse npz with some of its arrays exchanged for other bytes."""
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


def lying(array, shape):
    """An array whose header promises another shape."""
    content = npy(array)
    return content.replace(f"({len(array)},)".encode(), shape).ljust(len(content))[: len(content)]


LIES = {
    "a header that is no Python": {"data": npy(np.arange(6)).replace(b"'shape'", b"'shape(")},
    "a shape that is not there": {"data": lying(np.arange(4), b"(99999999999,)")},
    "half of a word": {"indices": npy(np.array([0.5, 2.0, 1.0, 3.0]))},
    "places that are text": {"indptr": npy(np.array(["0", "2", "2", "4"]))},
    "objects": {"data": npy(np.arange(4)).replace(b"'<i8'", b"'|O' ")},
    "other row pointers": {"indptr": npy(np.array([1, 2, 2, 4]))},
    "columns with a row outside": {
        "format": npy(np.array(b"csc")),
        "indptr": npy(np.array([0, 1, 2, 3, 4])),
        "indices": npy(np.array([0, 2, 10**6, 2])),
    },
    "rows without end": {
        "format": npy(np.array(b"coo")),
        "row": npy(np.zeros(4, int)),
        "col": npy(np.zeros(4, int)),
        "shape": npy(np.array([10**12, 4])),
    },
}


@pytest.mark.parametrize("lie", LIES)
def test_an_npz_that_lies_is_refused_and_costs_no_memory(tmp_path, lie):
    """SciPy takes three of these for counts, asks for up to 7 TiB for two, and ends in another exception for one."""
    archive(tmp_path / "good.npz")
    np.testing.assert_array_equal(read_npz(tmp_path / "good.npz").to_csr().toarray(), DENSE)
    path = tmp_path / "bad.npz"
    archive(path, **LIES[lie])
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"bad.npz` is not a sparse npz, or is cut short"):
        read_npz(path)
    with pytest.raises(StreamError, match=r"bad.npz` is not a shard of counts"):
        next(Shards([path], 4).batches(2))
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "3 4 99999999999\n1 1 1\n", "it says 99999999999 entries, but has 1: cut short"),
        (HEADER + "999999999999 4 1\n1 1 1\n", "it says 999999999999 documents, but has 1 counts"),
        (
            HEADER.replace("integer", "pattern") + "2 2 1\n1 1 ",
            "line 3: it does not end with a line",
        ),
        (HEADER + "2 2 1\n1 1 1\n1 2 1\n", "it says 1 entries, but has 2"),
        (HEADER + "2 2\n", "line 2: 3 sizes must be there"),
        (HEADER.replace("general", "hermitian") + "2 2 0\n", "it does not begin as a matrix"),
    ],
)
def test_a_matrix_market_file_that_lies(tmp_path, text, message):
    """The third one ends SciPy's reader, and Python with it, by a segmentation fault."""
    (tmp_path / "bad.mtx").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_matrix_market(tmp_path / "bad.mtx")


def test_what_scipy_writes_is_read(tmp_path):
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
def test_numbers_that_no_word_or_count_has(tmp_path, line):
    """They would have been an OverflowError, or another word."""
    path = tmp_path / "a.ldac"
    path.write_text(f"{line}\n")
    with pytest.raises(ValueError, match=r"line 1: \d+ is too large"):
        read_ldac(path)
    with pytest.raises(ValueError, match=r"line 1: \d+ is too large"):
        next(Shards([path], 4).batches(2))


def test_a_vocabulary_that_is_not_packed_as_its_name_says(tmp_path):
    (tmp_path / "words.gz").write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"words.gz` is damaged or cut short"):
        read_vocabulary(tmp_path / "words.gz")
