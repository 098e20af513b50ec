"""LIBSVM files are read exactly, or refused with a message."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from isotherm.data.libsvm import load_a9a, read_libsvm

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
TEXT = "+1 1:0.5 3:2\n-1 2:1 \n1\n"


def test_rows_labels_and_columns(tmp_path):
    (tmp_path / "plain").write_text(TEXT)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(TEXT.encode()))
    for name in ("plain", "packed.gz"):
        x, y = read_libsvm(tmp_path / name, num_features=4)
        assert x.format == "csr" and x.dtype == np.float32
        np.testing.assert_array_equal(x.toarray(), [[0.5, 0, 2, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
        np.testing.assert_array_equal(y, [1, -1, 1])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty", b"", "is empty"),
        ("comment", b"# nothing\n", "is empty"),
        ("empty.gz", gzip.compress(b"", mtime=0), "is empty"),
        ("cut.gz", gzip.compress(TEXT.encode() * 50, mtime=0)[:-12], "is damaged or truncated"),
        ("text.gz", TEXT.encode(), "is damaged or truncated"),
        ("wide", b"1 3:1\n1 5:1\n", "has 5 columns, but `num_features` is 4"),
        ("zero", b"1 0:1\n", "is not a LIBSVM file: Invalid index 0"),
        ("order", b"1 3:1 2:1\n", "is not a LIBSVM file: .*sorted"),
        ("csv", b"1,2,3\n", "is not a LIBSVM file"),
        ("binary", bytes(range(256)), "is not a LIBSVM file"),
        ("long", b"1 2:" + 5000 * b"x" + b"\n", r"is not a LIBSVM file: .*x\.\.\.$"),
        ("value", b"1 2:nan\n", "not finite"),
        ("label", b"nan 2:1\n", "not finite"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_libsvm(path, num_features=4)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 400


def test_bad_arguments(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_libsvm(tmp_path / "nowhere", num_features=4)
    with pytest.raises(ValueError, match="`num_features` must be at least 1"):
        read_libsvm(tmp_path, num_features=0)


def test_a9a_from_a_folder(tmp_path):
    (tmp_path / "a9a").mkdir()
    (tmp_path / "a9a" / "a9a").write_text("-1 123:1\n+1 2:1\n")
    (tmp_path / "a9a" / "a9a.t.gz").write_bytes(gzip.compress(b"+1 2:1\n"))
    train, test = load_a9a(tmp_path)
    assert train.x.shape == (2, 123) and test.x.shape == (1, 123)
    np.testing.assert_array_equal(train.y, [0, 1])
    assert test.y.dtype == np.int32
    (tmp_path / "a9a" / "a9a").write_text("3 123:1\n")
    with pytest.raises(ValueError, match="must have labels -1 and 1"):
        load_a9a(tmp_path)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
def test_the_real_a9a():
    train, test = load_a9a(SHARED)
    assert train.x.shape == (32_561, 123) and test.x.shape == (16_281, 123)
    assert train.y.sum() == 7841 and test.y.sum() == 3846
    for x, _ in (train, test):
        assert (x.data == 1).all()
        counts = np.diff(x.indptr)
        assert counts.min() == 11 and counts.max() == 14
