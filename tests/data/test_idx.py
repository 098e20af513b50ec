"""IDX files are read exactly, or refused with a message."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from isotherm.data.idx import load_mnist, read_idx

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def idx(array: np.ndarray, code: int) -> bytes:
    head = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize(
    ("dtype", "code"),
    [("u1", 8), ("i1", 9), ("i2", 0x0B), ("i4", 0x0C), ("f4", 0x0D), ("f8", 0x0E)],
)
def test_every_type_and_rank_is_read(tmp_path, dtype, code):
    for shape in ((3,), (2, 3), (2, 3, 4)):
        array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
        for name, content in (
            ("plain", idx(array, code)),
            ("a.gz", gzip.compress(idx(array, code))),
        ):
            (tmp_path / name).write_bytes(content)
            back = read_idx(tmp_path / name)
            assert back.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(back, array)


LONG = idx(np.arange(200, dtype="u1"), 8)
GOOD = idx(np.arange(6, dtype="u1").reshape(2, 3), 8)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty", b"", "is not an IDX file"),
        ("text", b"hello world", "is not an IDX file"),
        ("code", b"\0\0\7\1" + GOOD[4:], "is not an IDX file"),
        ("scalar", b"\0\0\10\0" + GOOD[4:], "is not an IDX file"),
        ("header", GOOD[:9], "truncated in its header"),
        ("short", GOOD[:-1], "must have 6 bytes for shape .2, 3., it has only 5"),
        ("long", GOOD + b"x", "must have 6 bytes .* it has more"),
        ("size", b"\0\0\10\2" + struct.pack(">2I", 2**31, 2**31) + b"abc", "it has only 3"),
        (
            "zero",
            b"\0\0\10\6" + struct.pack(">6I", 2**31, 2**31, 2**31, 2**31, 0, 0),
            "impossible shape",
        ),
        ("rank", b"\0\0\10\377" + struct.pack(">255I", *[1] * 255) + b"a", "impossible shape"),
        ("cut.gz", gzip.compress(LONG, mtime=0)[:-30], "damaged or truncated"),
        ("plain.gz", GOOD, "damaged or truncated"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


@pytest.mark.skipif(not (SHARED / "mnist").is_dir(), reason="needs ../shared/data/mnist")
def test_mnist():
    train, test = load_mnist()
    assert train.x.shape == (60_000, 784) and test.x.shape == (10_000, 784)
    assert train.x.dtype == np.float32 and train.x.min() == 0 and train.x.max() == 1
    np.testing.assert_array_equal(train.y[:8], [5, 0, 4, 1, 9, 2, 1, 3])
    np.testing.assert_array_equal(
        np.bincount(test.y), [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    )
