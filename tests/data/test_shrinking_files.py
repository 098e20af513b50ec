"""A file that is truncated, before or while it is read, is never read as a shorter file."""

import gzip
import os
import re
import struct

import numpy as np
import pytest
import sklearn.datasets
from scipy import sparse

from isotherm.data import bag_of_words, idx
from isotherm.data.bag_of_words import read_ldac, read_matrix_market, read_npz
from isotherm.data.idx import read_idx
from isotherm.data.libsvm import read_libsvm
from isotherm.data.shards import Shards, StreamError

WORDS = 30
RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(0.5, (2000, WORDS)) + np.eye(1, WORDS, dtype=int)


def ldac_text(counts):
    rows = [[(w, n) for w, n in enumerate(row) if n] for row in counts.tolist()]
    return "".join(f"{len(row)}{''.join(f' {w}:{n}' for w, n in row)}\n" for row in rows).encode()


def write(path):
    if path.suffix == ".npz":
        sparse.save_npz(path, sparse.csr_array(COUNTS), compressed=False)
    else:
        path.write_bytes(ldac_text(COUNTS))
    return path


@pytest.mark.parametrize("name", ["a.ldac", "a.npz"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_stream_whose_file_shrinks(tmp_path, name, share):
    path, seen = write(tmp_path / name), []
    with pytest.raises(StreamError, match=r"changed while it was being read|damaged or truncated"):
        for number, batch in enumerate(Shards([path], WORDS).batches(10)):
            seen.append(batch.counts.to_csr().toarray())
            if number == 2:
                content = path.read_bytes()[: int(share * path.stat().st_size)]
                os.truncate(path, content.rfind(b"\n") + 1 if name == "a.ldac" else len(content))
    got = np.concatenate(seen)
    assert len(got) >= 30
    np.testing.assert_array_equal(got, COUNTS[: len(got)])  # documents before the cut are right


def test_ldac_truncated_after_a_line_while_it_is_read(tmp_path, monkeypatch):
    path, parse = write(tmp_path / "a.ldac"), bag_of_words.parse_ldac
    keep = path.read_bytes().find(b"\n", 20_000) + 1

    def cut_and_parse(line):
        os.truncate(path, keep)
        return parse(line)

    monkeypatch.setattr(bag_of_words, "parse_ldac", cut_and_parse)
    with pytest.raises(ValueError, match="changed while it was being read"):
        read_ldac(path)


def test_libsvm_truncated_after_a_line_while_it_is_read(tmp_path, monkeypatch):
    path, load = tmp_path / "a", sklearn.datasets.load_svmlight_file
    path.write_text("1 1:1\n" * 100)

    def cut_and_load(name, **options):
        os.truncate(name, 60)
        return load(name, **options)

    monkeypatch.setattr(sklearn.datasets, "load_svmlight_file", cut_and_load)
    with pytest.raises(ValueError, match="changed while it was being read"):
        read_libsvm(path, num_features=1)


def test_idx_truncated_while_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"\0\0\10\1" + struct.pack(">I", 100_000) + bytes(100_000))
    read = idx._read

    def cut_and_read(stream, wanted):
        os.truncate(path, 70_000)
        return read(stream, wanted)

    monkeypatch.setattr(idx, "_read", cut_and_read)
    with pytest.raises(ValueError, match="it has only"):
        read_idx(path)


SMALL = COUNTS[:4, :6] * 12
"""Counts of two digits, of which truncation may remove one."""


def small_files(folder):
    """Write small files; return a reader for each."""
    sparse.save_npz(folder / "a.npz", sparse.csr_array(SMALL))
    head = f"%%MatrixMarket matrix coordinate integer general\n4 6 {np.count_nonzero(SMALL)}\n"
    entries = "".join(f"{i + 1} {j + 1} {SMALL[i, j]}\n" for i, j in np.argwhere(SMALL))
    (folder / "a.mtx").write_text(head + entries)
    (folder / "a.ldac").write_bytes(ldac_text(SMALL))
    (folder / "a.ldac.gz").write_bytes(gzip.compress(ldac_text(SMALL), mtime=0))
    lines = ldac_text(SMALL).decode().splitlines(keepends=True)
    one_based = [re.sub(r"(\d+):", lambda word: f"{int(word[1]) + 1}:", line) for line in lines]
    (folder / "a.svm").write_text("".join(one_based))
    return {
        "a.npz": lambda path: read_npz(path).to_csr(),
        "a.mtx": lambda path: read_matrix_market(path).to_csr(),
        "a.ldac": lambda path: read_ldac(path, 6).to_csr(),
        "a.ldac.gz": lambda path: read_ldac(path, 6).to_csr(),
        "a.svm": lambda path: read_libsvm(path, 6).x,
    }


@pytest.mark.parametrize("name", ["a.npz", "a.mtx", "a.ldac", "a.ldac.gz", "a.svm"])
def test_truncated_at_every_byte(tmp_path, name):
    """Every one is refused, except text that ends after a line; checksums detect that."""
    read, path = small_files(tmp_path)[name], tmp_path / name
    content = path.read_bytes()
    np.testing.assert_array_equal(read(path).toarray(), SMALL)
    for size in range(len(content)):
        path.write_bytes(content[:size])
        if name in ("a.ldac", "a.svm") and size and content[size - 1 : size] == b"\n":
            rows = content[:size].count(b"\n")
            np.testing.assert_array_equal(read(path).toarray(), SMALL[:rows])
        else:
            with pytest.raises(ValueError, match=re.escape(str(path))):
                read(path)


@pytest.mark.parametrize("name", ["a.npz", "a.ldac.gz"])
def test_a_flipped_bit_is_detected(tmp_path, name):
    """A flipped bit fails the checksum of zip or gzip, or is in a field that has no effect."""
    read, path = small_files(tmp_path)[name], tmp_path / name
    content = path.read_bytes()
    refused = 0
    for i in range(0, len(content), 2):
        path.write_bytes(content[:i] + bytes([content[i] ^ (1 << i % 8)]) + content[i + 1 :])
        try:
            got = read(path).toarray()
        except ValueError:
            refused += 1
            continue
        np.testing.assert_array_equal(got, SMALL)
    assert refused > 0.25 * len(content)
