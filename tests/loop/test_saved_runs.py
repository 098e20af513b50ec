"""Runs are restored bit for bit; truncated, changed and hostile files are refused."""

import json
import sys
from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isotherm
from isotherm.io import formats
from isotherm.loop.run import Rollback

h5py = pytest.importorskip("h5py")
pytest.importorskip("h5netcdf")
pytest.importorskip("safetensors")
pytest.importorskip("zarr")

SUFFIXES = [".nc", ".zarr", ".safetensors"]


class Weights(NamedTuple):
    w: jax.Array
    b: jax.Array


def minus(x, batch):
    return jax.tree.map(jnp.negative, x)


SAMPLER = isotherm.msgnht(minus, 0.3)


def run(start, **changes):
    settings = {"num_draws": 6, "num_chains": 2, "progress": False}
    batches = isotherm.no_batches()
    return isotherm.sample(jax.random.key(0), SAMPLER, start, batches, **(settings | changes))


@pytest.fixture(scope="module")
def small():
    return run({"w": jnp.zeros((2, 3)), "b": jnp.zeros(())}, burn_in=3, thin=2)


def same(one, other):
    a, b = ((r.collected, dict(r.stats), r.diverged) for r in (one, other))
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.asarray(x).dtype == np.asarray(y).dtype
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_run_is_restored_completely(tmp_path, small, suffix):
    isotherm.save_run(small, tmp_path / f"run{suffix}")
    found = isotherm.load_run(tmp_path / f"run{suffix}")
    same(found, small)
    for name in ("traits", "thin", "burn_in", "num_draws", "seconds", "leaf_names", "rollbacks"):
        assert getattr(found, name) == getattr(small, name)
    assert found.call == small.call and found.call["key"] == [0, 0]
    assert found.state is None and found.num_chains == 2
    assert str(found.summary()) == str(small.summary())
    assert [p.name for p in tmp_path.iterdir()] == [f"run{suffix}"]


def test_rollbacks_moments_and_narrow_types_are_restored(tmp_path):
    half = jax.tree.map(lambda n: jnp.zeros(n, jnp.bfloat16), [2, 3])
    collect = {
        "draws": isotherm.collect.draws(),
        "moments": isotherm.collect.moments(lambda x: (x[0], {"sum": x[1].sum()})),
        "positive": isotherm.collect.draws(lambda x: x[0] > 0),
    }
    back = Rollback(3, 1, "position.0", 0.1, 0.05)
    found = replace(run(half, collect=collect), rollbacks=(back,))
    for suffix in SUFFIXES:
        isotherm.save_run(found, tmp_path / f"run{suffix}")
        again = isotherm.load_run(tmp_path / f"run{suffix}")
        same(again, found)
        assert again.rollbacks == (back,) and again.draws[0].dtype == jnp.bfloat16
        variance = again.collected["moments"].variance[0]
        np.testing.assert_array_equal(variance, found.collected["moments"].variance[0])


def test_custom_containers_are_restored_by_name(tmp_path):
    """Two leaves of the same shape, not in alphabetical order."""
    start = {"layer": Weights(jnp.zeros(2), jnp.zeros(2))}
    found = run(start)
    for suffix in SUFFIXES:
        path = tmp_path / f"run{suffix}"
        isotherm.save_run(found, path)
        layer = isotherm.load_run(path).draws["layer"]
        assert (type(layer).__name__, layer._fields) == ("Weights", Weights._fields)
        np.testing.assert_array_equal(layer.w, found.draws["layer"].w)
        again = isotherm.load_run(path, like=start).draws["layer"]
        assert isinstance(again, Weights)
        np.testing.assert_array_equal(again.w, found.draws["layer"].w)
        np.testing.assert_array_equal(again.b, found.draws["layer"].b)
        with pytest.raises(ValueError, match="`like` has leaves"):
            isotherm.load_run(path, like={"layer": Weights(jnp.zeros(2), jnp.zeros(3))})


@pytest.mark.slow
def test_a_network_predicts_from_the_draws_of_a_file(tmp_path):
    """Without `like`: layers have their fields, and two files have one structure."""
    network = isotherm.models.mlp((2, 3, 2))
    found = run(network.init(jax.random.key(0)))
    for name in ("a.nc", "b.nc"):
        isotherm.save_run(found, tmp_path / name)
    first, second = (isotherm.load_run(tmp_path / name).draws for name in ("a.nc", "b.nc"))
    assert jax.tree.structure(first) == jax.tree.structure(second)
    x = jnp.ones((5, 2))
    np.testing.assert_array_equal(
        isotherm.posterior_predictive(network.predict, first, x),
        isotherm.posterior_predictive(network.predict, found.draws, x),
    )


def test_dictionaries_with_numbers_as_keys_are_restored(tmp_path, small):
    """As positions of NNX modules with lists of layers are."""
    draws = {"heads": {i: {"w": small.draws["w"]} for i in range(3)}}
    isotherm.save_run(replace(small, draws=draws, collected={"draws": draws}), tmp_path / "run.nc")
    again = isotherm.load_run(tmp_path / "run.nc").draws
    assert list(again["heads"]) == [0, 1, 2]


@pytest.mark.parametrize(
    "names",
    [
        0,
        {"chain": 0, "draw": 0},
        {"x_dim_0": 0, "x": 0, "a/b": 0, "": 0},
        {"a": {"b": 0}, "a.b": 0, "é ∆": (0, None, [])},
        {"zarr.json": 0, "c": 0, "__c": 0, "isotherm": 0, "letter": 0},
    ],
    ids=["bare", "axes", "dimensions", "letters", "zarr"],
)
def test_any_names_are_accepted(tmp_path, small, names):
    draws = jax.tree.map(lambda _: small.draws["w"], names)
    found = replace(small, draws=draws, collected={"draws": draws})
    for suffix in SUFFIXES:
        isotherm.save_run(found, tmp_path / f"run{suffix}")
        same(isotherm.load_run(tmp_path / f"run{suffix}"), found)


@pytest.mark.parametrize(("suffix", "engine"), [(".nc", "h5netcdf"), (".zarr", "zarr")])
def test_arviz_reads_a_saved_run(tmp_path, small, suffix, engine):
    import xarray
    from arviz_stats import summary

    isotherm.save_run(small, tmp_path / f"run{suffix}")
    with xarray.open_datatree(tmp_path / f"run{suffix}", engine=engine) as tree:
        assert {"posterior", "sample_stats"} <= set(tree.children)
        assert tree["posterior"]["w"].dims == ("chain", "draw", "w_dim_0", "w_dim_1")
        np.testing.assert_array_equal(tree["posterior"]["w"], small.draws["w"])
        assert tree["posterior"].attrs["inference_library"] == "isotherm"
        table = summary(tree, kind="stats")
        assert table.loc["b", "mean"] == pytest.approx(small.draws["b"].mean(), abs=0.02)


def test_other_names_and_types_are_refused(tmp_path, small):
    endings = r"`path` must end in .nc or .zarr or .safetensors, got `run.pkl`"
    with pytest.raises(ValueError, match=endings):
        isotherm.save_run(small, tmp_path / "run.pkl")
    for suffix in SUFFIXES:
        with pytest.raises(FileNotFoundError):
            isotherm.load_run(tmp_path / f"none{suffix}")
        with pytest.raises(FileNotFoundError, match=r"Cannot save .*: no such file"):
            isotherm.save_run(small, tmp_path / "none" / f"run{suffix}")
        (tmp_path / f"text{suffix}").write_text("hello")
        with pytest.raises(ValueError, match="cannot be opened as"):
            isotherm.load_run(tmp_path / f"text{suffix}")
    odd = run(jnp.zeros(2), collect={"odd": isotherm.collect.draws(lambda x: x + 1j)})
    with pytest.raises(ValueError, match=r"`.odd` has dtype complex64, which cannot be saved"):
        isotherm.save_run(odd, tmp_path / "run.nc")
    assert not list(tmp_path.glob("run*"))


def test_a_missing_library_is_named(tmp_path, small, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(ImportError, match=r"pip install 'isotherm\[files\]'"):
        isotherm.save_run(small, tmp_path / "run.safetensors")


def is_right_or_refused(path, right):
    try:
        same(isotherm.load_run(path), right)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_changed_byte_and_every_cut_is_harmless_or_refused(tmp_path, small, suffix):
    """In a folder, every byte of all its files is equally likely."""
    path = tmp_path / f"run{suffix}"
    isotherm.save_run(small, path)
    files = sorted(p for p in [path, *path.rglob("*")] if p.is_file())
    content = [p.read_bytes() for p in files]
    starts = np.cumsum([0, *map(len, content)])
    rng = np.random.default_rng(0)
    refused = 0
    for turn, offset in enumerate(rng.choice(starts[-1], 300, replace=False)):
        number = int(np.searchsorted(starts, offset, side="right")) - 1
        whole, i = content[number], int(offset - starts[number])
        bit = bytes([whole[i] ^ (1 << int(rng.integers(8)))])
        files[number].write_bytes(whole[:i] if turn < 50 else whole[:i] + bit + whole[i + 1 :])
        refused += not is_right_or_refused(path, small)
        files[number].write_bytes(whole)
    assert refused > (60 if suffix == ".zarr" else 100) and is_right_or_refused(path, small)


def rewritten(path, change):
    """Change the header of a file and correct its checksum, as an attacker would."""
    with h5py.File(path, "r+") as file:
        document = json.loads(file["isotherm"][()].tobytes().decode().partition("\n")[2])
        change(file, document)
        body = json.dumps(document)
        text = f"{sha256(body.encode()).hexdigest()}\n{body}"
        del file["isotherm"]
        file["isotherm"] = np.frombuffer(text.encode(), np.uint8)


def huge(file, document):
    shape = (2**20, 2**20)
    file["posterior"].create_dataset("huge", shape, "f4", chunks=(1024, 1024))
    document["arrays"]["posterior/huge"] = {"dtype": "float32", "shape": shape, "sha256": ""}


def elsewhere(file, document):
    del file["posterior/b"]
    file["posterior/b"] = h5py.ExternalLink("other.nc", "b")


def many(file, document):
    for i in range(1000):
        file[f"posterior/copy{i}"] = file["posterior/w"]
        document["arrays"][f"posterior/copy{i}"] = document["arrays"]["posterior/w"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (huge, "`posterior/huge` claims 4,398,046,511,104 bytes"),
        (elsewhere, "links are not followed"),
        (many, "more than the file has left"),
        (
            lambda file, document: document.update(format=2),
            "a newer version of isotherm wrote it",
        ),
        (lambda file, document: document["run"].update(traits={"__class__": 1}), "is damaged"),
        (
            lambda file, document: document["arrays"]["posterior/w"].update(dtype="O"),
            "is not a type that",
        ),
        (lambda file, document: document["trees"].update(draws={"eval": ["1"]}), "is damaged"),
    ],
)
def test_a_hostile_file_is_refused(tmp_path, small, change, message):
    path = tmp_path / "run.nc"
    isotherm.save_run(small, path)
    rewritten(path, change)
    with pytest.raises(formats.Damaged, match=message):
        isotherm.load_run(path)
