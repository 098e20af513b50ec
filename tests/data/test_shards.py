"""A stream returns every document once and in order, resumes at a position, and loses nothing."""

import gzip
import json
import tracemalloc

import numpy as np
import pytest
from scipy import sparse

from isotherm.data.shards import Position, Shards, StreamError

WORDS = 20


def matrix(rows, seed):
    return np.random.default_rng(seed).poisson(0.3, (rows, WORDS))


def save_ldac(path, x):
    lines = [
        " ".join([str(np.count_nonzero(row)), *(f"{i}:{row[i]}" for i in np.flatnonzero(row))])
        for row in x
    ]
    text = "".join(line + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.fixture
def shards(tmp_path):
    """Four shards in three formats, one of them without documents, and all their rows."""
    parts = [matrix(rows, seed) for seed, rows in enumerate((7, 12, 0, 5))]
    sparse.save_npz(tmp_path / "0.npz", sparse.csr_matrix(parts[0].astype(np.uint16)))
    save_ldac(tmp_path / "1.ldac", parts[1])
    sparse.save_npz(tmp_path / "2.npz", sparse.csr_matrix(parts[2]), compressed=False)
    save_ldac(tmp_path / "3.dat.gz", parts[3])
    names = ("0.npz", "1.ldac", "2.npz", "3.dat.gz")
    return Shards([tmp_path / name for name in names], WORDS), np.concatenate(parts)


def dense(batches):
    return np.concatenate([batch.counts.to_csr().toarray() for batch in batches])


@pytest.mark.parametrize("batch_size", [1, 5, 7, 100])
def test_all_documents_once_and_in_order(shards, batch_size):
    stream, x = shards
    batches = list(stream.batches(batch_size))
    np.testing.assert_array_equal(dense(batches), x)
    assert all(batch.counts.num_documents == batch_size for batch in batches[:-1])
    firsts = [batch.first.document for batch in batches]
    assert firsts == list(range(0, 24, batch_size))


@pytest.mark.parametrize("after", range(1, 9))
def test_resumes_from_json(shards, after):
    stream, _ = shards
    batches = list(stream.batches(3, num_epochs=2))
    text = json.dumps(batches[after - 1].next._asdict())
    rest = list(stream.batches(3, Position(**json.loads(text)), num_epochs=2))
    assert [batch.next for batch in rest] == [batch.next for batch in batches[after:]]
    np.testing.assert_array_equal(dense(rest), dense(batches[after:]))


def test_epochs_repeat_the_documents(shards):
    stream, x = shards
    np.testing.assert_array_equal(dense(stream.batches(10, num_epochs=2)), np.concatenate([x, x]))
    endless = stream.batches(24, num_epochs=None)
    assert [next(endless).first.epoch for _ in range(4)] == [0, 1, 2, 3]


def break_npz(path, x):
    x = x.astype(float)
    x[4, 3] = 0.5
    sparse.save_npz(path, sparse.csr_matrix(x))


def break_ldac(path, x):
    save_ldac(path, x)
    lines = path.read_text().splitlines()
    lines[4] = "2 1:1"
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("bad.npz", break_npz, "document 4 has count 0.5 for word 3"),
        ("bad.ldac", break_ldac, "line 5: it declares 2 words but has 1"),
    ],
)
def test_documents_before_an_invalid_one_are_returned(tmp_path, name, damage, message):
    good, bad = matrix(5, 0), matrix(8, 1)
    sparse.save_npz(tmp_path / "good.npz", sparse.csr_matrix(good))
    damage(tmp_path / name, bad)
    stream, seen = Shards([tmp_path / "good.npz", tmp_path / name], WORDS), []
    with pytest.raises(StreamError, match=message) as caught:
        for batch in stream.batches(3):
            seen.append(batch)
    np.testing.assert_array_equal(dense(seen), np.concatenate([good, bad[:4]]))
    assert caught.value.position == Position(0, 1, 4, 9) == seen[-1].next
    rest = dense(stream.batches(3, caught.value.position.skip()))
    np.testing.assert_array_equal(rest, bad[5:])


def test_a_word_outside_the_vocabulary(tmp_path):
    (tmp_path / "a.ldac").write_text("1 0:1\n1 20:1\n")
    stream = Shards([tmp_path / "a.ldac"], WORDS).batches(10)
    assert next(stream).counts.num_documents == 1
    with pytest.raises(StreamError, match="line 2: word 20 is outside the vocabulary of 20 words"):
        next(stream)


def test_truncated_files(tmp_path):
    x = matrix(4000, 0)
    save_ldac(tmp_path / "a.ldac.gz", x)
    (tmp_path / "a.ldac.gz").write_bytes((tmp_path / "a.ldac.gz").read_bytes()[:-5000])
    seen = []
    with pytest.raises(StreamError, match=r"is damaged or truncated at line \d+"):
        for batch in Shards([tmp_path / "a.ldac.gz"], WORDS).batches(100):
            seen.append(batch)
    got = dense(seen)
    assert len(got) > 1000
    np.testing.assert_array_equal(got, x[: len(got)])
    sparse.save_npz(tmp_path / "a.npz", sparse.csr_matrix(x))
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-500])
    with pytest.raises(StreamError, match="is not a shard of counts, or is truncated"):
        next(Shards([tmp_path / "a.npz"], WORDS).batches(100))


def test_a_wrong_byte_inside_an_npz_is_detected(tmp_path):
    x = matrix(4000, 0)
    sparse.save_npz(tmp_path / "a.npz", sparse.csr_matrix(x))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "a.npz").write_bytes(bytes(content))
    seen = []
    with pytest.raises(StreamError):
        for batch in Shards([tmp_path / "a.npz"], WORDS).batches(100):
            seen.append(batch)


def test_memory_is_that_of_a_batch(tmp_path):
    """A shard twenty times larger is streamed in the same memory."""
    peaks = []
    for i, rows in enumerate((5_000, 100_000)):
        path = tmp_path / f"{i}.npz"
        x = sparse.random_array((rows, 1000), density=0.02, rng=0, format="csr")
        x.data = np.ceil(3 * x.data)
        sparse.save_npz(path, x.astype(np.uint16), compressed=False)
        del x
        tracemalloc.start()
        total = sum(batch.counts.num_documents for batch in Shards([path], 1000).batches(100))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert total == rows
    assert peaks[1] < 1.2 * peaks[0] + 200_000


def test_bad_arguments(tmp_path):
    sparse.save_npz(tmp_path / "a.npz", sparse.csr_matrix(matrix(3, 0)))
    sparse.save_npz(tmp_path / "column.npz", sparse.csc_matrix(matrix(3, 0)))
    with pytest.raises(ValueError, match="at least one file"):
        Shards([], 3)
    with pytest.raises(ValueError, match="`num_words` must be at least 1"):
        Shards([tmp_path / "a.npz"], 0)
    with pytest.raises(ValueError, match="cannot be streamed"):
        Shards([tmp_path / "a.mtx"], 3)
    with pytest.raises(ValueError, match="must end in one of"):
        Shards([tmp_path / "a.txt"], 3)
    with pytest.raises(ValueError, match="`batch_size` must be at least 1"):
        next(Shards([tmp_path / "a.npz"], WORDS).batches(0))
    with pytest.raises(StreamError, match="it must have 21 words, got 20"):
        next(Shards([tmp_path / "a.npz"], 21).batches(1))
    with pytest.raises(StreamError, match="its format must be csr, got csc"):
        next(Shards([tmp_path / "column.npz"], WORDS).batches(1))
    with pytest.raises(StreamError, match="position 4 is beyond its 3 documents"):
        next(Shards([tmp_path / "a.npz"], WORDS).batches(1, Position(0, 0, 4, 4)))
    with pytest.raises(FileNotFoundError):
        next(Shards([tmp_path / "nowhere.npz"], WORDS).batches(1))
