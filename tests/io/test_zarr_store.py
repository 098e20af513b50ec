"""Zarr folders: other programs read them, and hostile content is refused."""

import json
import os
import shutil
import sys
from hashlib import sha256
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isotherm
from isotherm.io import zarr_store
from isotherm.io.untrusted import Damaged

pytest.importorskip("zarr")

SAMPLER = isotherm.sgld(lambda x, batch: jax.tree.map(jnp.negative, x), 0.1)
START = {"w": jnp.zeros((2, 3)), "b": jnp.zeros(())}
RUN = isotherm.sample(
    jax.random.key(0),
    SAMPLER,
    START,
    isotherm.no_batches(),
    num_draws=6,
    num_chains=2,
    progress=False,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "run.zarr"
    isotherm.save_run(RUN, path)
    return path


@pytest.fixture
def path(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "run.zarr"))


@pytest.mark.parametrize("most", [1, 40, 2**24])
def test_arrays_are_restored_bit_for_bit_whatever_the_chunks(tmp_path, monkeypatch, most):
    """Read here and by xarray.

    Zeros and NaN, which other writers leave out, signs of zero, chunks that do not divide an axis.
    """
    import xarray

    monkeypatch.setattr(zarr_store, "MAX_CHUNK_BYTES", most)
    rng = np.random.default_rng(0)
    arrays = {
        "posterior/w": rng.normal(size=(2, 7, 3)).astype(np.float32),
        "posterior/odd": np.array([[0.0, -0.0, np.nan, -np.nan, np.inf, 5e-324, 1]] * 2),
        "posterior/half": np.zeros((2, 7), np.float16),
        "posterior/brain": np.asarray(jnp.arange(14.0, dtype=jnp.bfloat16).reshape(2, 7)),
        "posterior/yes": np.zeros((2, 7), bool),
        "posterior/long": np.full((2, 7), -(2**63), np.int64),
        "posterior/none": np.zeros((2, 7, 0), np.float32),
        "collected/one": np.float32(0.1),
        "collected/byte": np.zeros((5,), np.uint8),
    }
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    zarr_store.write_zarr(tmp_path / "it.zarr", "text é", arrays, {"sampler": "none"})
    with zarr_store.Zarr(tmp_path / "it.zarr") as file:
        assert file.header() == "text é"
        for name, array in arrays.items():
            found = file.array(name, array.dtype, array.shape)
            assert found.dtype == array.dtype and found.tobytes() == array.tobytes(), name
    number = sum(p.is_file() for p in (tmp_path / "it.zarr/posterior/w/c").rglob("*"))
    assert number == {1: 2 * 7 * 3, 40: 2 * 3, 2**24: 1}[most]
    with xarray.open_datatree(tmp_path / "it.zarr", engine="zarr") as tree:
        assert tree.attrs == {"sampler": "none"}
        for name, array in arrays.items():
            np.testing.assert_array_equal(tree[name].values, array.astype(tree[name].dtype))


def test_a_folder_is_read_without_the_library(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    np.testing.assert_array_equal(isotherm.load_run(path).draws["w"], RUN.draws["w"])
    with pytest.raises(ImportError, match=r"pip install 'isotherm\[files\]'"):
        isotherm.save_run(RUN, path)


def test_a_folder_that_is_not_zarr_is_not_replaced(path):
    isotherm.save_run(RUN, path)  # a Zarr folder is replaced
    mine = path.with_name("mine.zarr")
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"mine.zarr` exists and is not a Zarr folder"):
        isotherm.save_run(RUN, mine)
    assert (mine / "thesis.tex").read_text() == "years of work"
    assert {p.name for p in path.parent.iterdir()} == {"run.zarr", "mine.zarr"}


def test_a_missing_file_is_an_error(path):
    """Other readers would return NaN instead."""
    refused = {}
    for file in [p for p in path.rglob("*") if p.is_file()]:
        content, name = file.read_bytes(), file.relative_to(path).as_posix()
        file.unlink()
        try:
            isotherm.load_run(path)
        except Damaged as error:
            refused[name] = str(error)
        file.write_bytes(content)
    ours = (
        {"isotherm"} | {f"posterior/{n}" for n in "wb"} | {f"sample_stats/{n}" for n in RUN.stats}
    )
    assert {name.partition("/zarr.json")[0].partition("/c/")[0] for name in refused} == ours
    assert "posterior/w/c/0/0/0/0` has no bytes, not 288" in refused["posterior/w/c/0/0/0/0"]


def metadata(change, name="posterior/w"):
    def changed(path, document):
        place = path / name / "zarr.json"
        found = json.loads(place.read_text())
        change(found)
        place.write_text(json.dumps(found))

    return changed


def huge(path, document):
    shape = [2**20, 2**20]
    document["arrays"]["posterior/w"].update(shape=shape)
    metadata(
        lambda m: (
            m.update(shape=shape)
            or m["chunk_grid"]["configuration"].update(chunk_shape=[1024, 1024])
        )
    )(path, document)


def crumbs(path, document):
    """A big file, and an array with a quarter as many chunks as the file has bytes."""
    with (path / "big").open("wb") as file:
        file.truncate(2**40)
    shape = [2**38]
    document["arrays"]["posterior/w"].update(shape=shape)
    metadata(
        lambda m: m.update(shape=shape) or m["chunk_grid"]["configuration"].update(chunk_shape=[1])
    )(path, document)


def many(path, document):
    for i in range(200):
        copy = path / f"posterior/copy{i}"
        for file in [p for p in (path / "posterior/w").rglob("*") if p.is_file()]:
            new = copy / file.relative_to(path / "posterior/w")
            new.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, new)
        document["arrays"][f"posterior/copy{i}"] = document["arrays"]["posterior/w"]


def linked_file(path, document):
    (path / "posterior/w/c/0/0/0/0").rename(path.parent / "elsewhere")
    (path / "posterior/w/c/0/0/0/0").symlink_to(path.parent / "elsewhere")


def linked_folder(path, document):
    (path / "posterior/w").rename(path.parent / "elsewhere")
    (path / "posterior/w").symlink_to(path.parent / "elsewhere")


def pipe(path, document):
    (path / "posterior/w/c/0/0/0/0").unlink()
    os.mkfifo(path / "posterior/w/c/0/0/0/0")


def outside(path, document):
    document["arrays"]["../secret/w"] = document["arrays"].pop("posterior/w")
    (path / "posterior/w").rename(path.parent / "w")
    (path.parent / "secret").mkdir()
    (path.parent / "w").rename(path.parent / "secret/w")


def longer(path, document):
    with (path / "posterior/w/c/0/0/0/0").open("ab") as file:
        file.write(b"\0")


def negative(path, document):
    document["arrays"]["posterior/w"].update(shape=[-2, 6, 2, -3])
    metadata(lambda m: m.update(shape=[-2, 6, 2, -3]))(path, document)


LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (huge, "claims 4,398,046,511,104 bytes, more than the folder has left"),
        (crumbs, "more than the folder has left"),
        (many, "more than the folder has left"),
        (linked_file, "`posterior/w/c/0/0/0/0` is neither a file nor a folder"),
        (linked_folder, "`posterior/w` is neither a file nor a folder"),
        (pipe, "is neither a file nor a folder"),
        (outside, "has no `../secret/w`"),
        (longer, "has 289 bytes, not 288"),
        (negative, "does not fit the shape"),
        (
            metadata(
                lambda m: m.update(codecs=[LITTLE, {"name": "gzip", "configuration": {"level": 5}}])
            ),
            "The codecs of",
        ),
        (
            metadata(lambda m: m.update(codecs=[{"name": "numcodecs.pickle"}, LITTLE])),
            "The codecs of",
        ),
        (metadata(lambda m: m["codecs"][0]["configuration"].update(endian="big")), "The codecs of"),
        (metadata(lambda m: m.update(data_type="object")), "The data_type of"),
        (
            metadata(lambda m: m.update(data_type={"name": "null_terminated_bytes"})),
            "The data_type of",
        ),
        (
            metadata(lambda m: m.update(storage_transformers=[{"name": "x"}])),
            "The storage_transformers of",
        ),
        (metadata(lambda m: m.update(shape=[2, 6, 3, 2])), "The shape of"),
        (metadata(lambda m: m.update(zarr_format=2)), "The zarr_format of"),
        (metadata(lambda m: m["chunk_grid"].update(name="rectilinear")), "does not fit the shape"),
        (
            metadata(lambda m: m["chunk_grid"]["configuration"].update(chunk_shape=[0, 6, 2, 3])),
            "does not fit the shape",
        ),
        (
            metadata(lambda m: m["chunk_grid"]["configuration"].update(chunk_shape=[2, 6])),
            "does not fit the shape",
        ),
        (metadata(lambda m: m.update(chunk_grid=None)), "does not fit the shape"),
        (metadata(lambda m: m.update(attributes={"x": "y" * 2**17})), "more than isotherm writes"),
        (metadata(lambda m: m.update(shape=[2**40]), "isotherm"), "not a file of isotherm"),
        (
            lambda path, document: document["arrays"]["posterior/w"].update(dtype="O"),
            "is not a type",
        ),
        (
            lambda path, document: document.update(format=2),
            "a newer version of isotherm wrote it",
        ),
    ],
)
def test_a_hostile_folder_is_refused(path, change, message):
    """The header is changed and its checksum corrected, as an attacker would."""
    place = path / "isotherm/c/0"
    document = json.loads(place.read_bytes().partition(b"\n")[2])
    change(path, document)
    body = json.dumps(document).encode()
    place.write_bytes(sha256(body).hexdigest().encode() + b"\n" + body)
    size = [place.stat().st_size]
    about = json.loads((path / "isotherm/zarr.json").read_text())
    if about["shape"] != [2**40]:
        about["shape"] = about["chunk_grid"]["configuration"]["chunk_shape"] = size
        (path / "isotherm/zarr.json").write_text(json.dumps(about))
    with pytest.raises(Damaged, match=message):
        isotherm.load_run(path)
