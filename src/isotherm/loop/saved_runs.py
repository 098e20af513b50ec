"""Runs as files: draws, statistics, summaries and where they come from.

- `run.nc` is netCDF with the groups `posterior` and `sample_stats` of ArviZ, for one who analyses;
- `run.zarr` is a folder with the same groups, in chunks, for one who reads a few draws of many;
- `run.safetensors` has the same arrays as tensors called `posterior/…`, for one who needs the weights.

Beside the arrays stands a text, JSON: the format's version, the sampler, the call, summaries, versions, the trees that the arrays are
leaves of, and a sha256 of every array; a sha256 of the text is its first line. Loading executes nothing and believes nothing: types, shapes and
sizes are compared before an array is read, checksums after.

Trees of dicts with names, lists and tuples come back as they were. Of other containers (`NamedTuple`s, modules) only their leaves are known, as a dict by name;
`like` puts them back.
"""

import json
import os
import platform
import re
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from isotherm.io.files import atomically, saving
from isotherm.io.formats import Damaged, NetCDF, SafeTensors, write_netcdf, write_safetensors
from isotherm.io.zarr_store import Zarr, write_zarr
from isotherm.loop.collect import RunningMoments
from isotherm.loop.run import Rollback, Run
from isotherm.tree import leaf_names
from isotherm.types import ArrayTree, Traits

FORMAT = 1
MOST_SUMMARISED = 10**6
"""Numbers among the draws; the ESS of more would take longer than the reader may want to wait."""
KINDS = "fiub"
"""Floating point, integers, truth values."""
WRITERS = {".nc": write_netcdf, ".zarr": write_zarr, ".safetensors": write_safetensors}
READERS = {".nc": NetCDF, ".zarr": Zarr, ".safetensors": SafeTensors}


def save_run(run: Run, path: str | os.PathLike[str]) -> None:
    """Write a run to a file or a folder, whole or not at all.

    What is left out is `run.state`: to go on with a run, use `sample(..., checkpoint=FOLDER)`.

    Parameters
    ----------
    run
        What `isotherm.sample` returned.
    path
        A name that ends in `.nc` (netCDF) or `.zarr` (a folder), which ArviZ opens, or in `.safetensors`. Needs `isotherm[files]`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, isotherm, tempfile, pathlib
    >>> sampler = isotherm.msgnht(lambda x, batch: jax.tree.map(jnp.negative, x), step_size=0.2)
    >>> run = isotherm.sample(jax.random.key(0), sampler, {"w": jnp.zeros(2)}, isotherm.no_batches(), num_draws=9)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "run.nc"
    ...     isotherm.save_run(run, path)
    ...     isotherm.load_run(path).draws["w"].shape
    (1, 9, 2)
    """
    path = Path(path)
    write = _by_suffix(path, WRITERS)
    if path.suffix == ".zarr" and path.exists() and not (path / "zarr.json").exists():
        raise ValueError(f"`{path}` is there, is not Zarr and is not replaced.")
    shelf = _Shelf()
    trees = {"draws": shelf.put("posterior", run.draws)}
    trees["stats"] = shelf.put("sample_stats", dict(run.stats))
    others = {name: tree for name, tree in run.collected.items() if name != "draws"}
    trees["collected"] = shelf.put("collected", others)
    traits = {**run.traits.__dict__, "temperature": float(run.traits.temperature)}
    document = {
        "format": FORMAT,
        "run": {
            "traits": traits,
            "momentum_sizes": run.momentum_sizes,
            "leaf_names": run.leaf_names,
            "num_draws": run.num_draws,
            "thin": run.thin,
            "burn_in": run.burn_in,
            "seconds": run.seconds,
            "diverged": run.diverged.tolist(),
            "rollbacks": run.rollbacks,
            "call": dict(run.call),
        },
        "summary": _summary(run),
        "versions": {
            "python": platform.python_version(),
            **{package: version(package) for package in ("isotherm", "jax", "numpy")},
        },
        "saved": datetime.now(UTC).isoformat(timespec="seconds"),
        "trees": trees,
        "arrays": {
            name: {"dtype": a.dtype.name, "shape": a.shape, "sha256": _digest(a)}
            for name, a in shelf.arrays.items()
        },
    }
    text = json.dumps(document)
    attributes = {
        "inference_library": "isotherm",
        "inference_library_version": version("isotherm"),
        "created_at": document["saved"],
        "sampler": repr(run),
    }
    sealed = f"{sha256(text.encode()).hexdigest()}\n{text}"
    with saving(f"`{path}`", "what was there before is intact."), atomically(path) as draft:
        write(draft, sealed, shelf.arrays, attributes)


def load_run(path: str | os.PathLike[str], *, like: ArrayTree | None = None) -> Run:
    """Read a run that `save_run` wrote.

    Parameters
    ----------
    path
        The file, or the folder of a `.zarr`.
    like
        A position, for draws in containers of your own: the draws come back in trees like it.

    Raises
    ------
    ValueError
        If the file is cut, changed, or no run of isotherm.
    """
    path = Path(path)
    reader = _by_suffix(path, READERS)
    try:
        with reader(path) as file:
            document = _document(path, file.text())
            arrays = {name: _array(file, name, told) for name, told in document["arrays"].items()}
        return _run(document, arrays, like)
    except Damaged:
        raise
    except (KeyError, TypeError, AttributeError, RuntimeError, OSError, UnicodeError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise Damaged(f"`{path}` is damaged: {type(error).__name__}: {error}.") from error


def _by_suffix(path: Path, table: dict[str, Callable]) -> Callable:
    if path.suffix not in table:
        raise ValueError(f"`path` must end in {' or '.join(table)}, got `{path.name}`.")
    return table[path.suffix]


def _digest(array: np.ndarray) -> str:
    return sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _summary(run: Run) -> list[dict[str, Any]] | None:
    size = sum(np.size(leaf) for leaf in jax.tree.leaves(run.draws))
    return run.summary().rows if 0 < size <= MOST_SUMMARISED else None


class _Shelf:
    """Arrays by names, and trees that refer to them."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}

    def put(self, group: str, tree: Any, name: str = "") -> Any:
        """Take the leaves of a tree; return the tree with names instead, in terms of JSON."""
        if tree is None:
            return None
        if type(tree) is dict and all(isinstance(key, str) for key in tree):
            return {"dict": {k: self.put(group, v, f"{name}.{k}") for k, v in tree.items()}}
        if type(tree) in (list, tuple):
            parts = [self.put(group, part, f"{name}.{i}") for i, part in enumerate(tree)]
            return {type(tree).__name__: parts}
        if isinstance(tree, RunningMoments):
            parts = [self.put(group, v, f"{name}.{k}") for k, v in tree._asdict().items()]
            return {"moments": parts}
        if isinstance(tree, np.ndarray | np.generic | jax.Array | float | int):
            return self._add(group, name, np.asarray(tree))
        leaves = zip(leaf_names(tree), jax.tree.leaves(tree), strict=True)
        return {"dict": {k: self._add(group, f"{name}.{k}", np.asarray(v)) for k, v in leaves}}

    def _add(self, group: str, name: str, array: np.ndarray) -> str:
        if array.dtype.kind not in KINDS and array.dtype.name != "bfloat16":
            raise ValueError(f"`{name}` has dtype {array.dtype}, which cannot be saved.")
        plain = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII).strip(".-") or "position"
        number, place = 1, plain
        while self._is_taken(group, place, array.ndim):
            number, place = number + 1, f"{plain}_{number}"
        self.arrays[f"{group}/{place}"] = array
        return f"{group}/{place}"

    def _is_taken(self, group: str, name: str, rank: int) -> bool:
        """Tell whether a name, or one of its axes' names, means something else already."""
        ours = {name, *(f"{name}_dim_{i}" for i in range(rank))}
        theirs = {"chain", "draw", "zarr.json"}
        for place, array in self.arrays.items():
            if place.startswith(f"{group}/"):
                other = place.removeprefix(f"{group}/")
                theirs |= {other, *(f"{other}_dim_{i}" for i in range(array.ndim))}
        return not ours.isdisjoint(theirs)


def _taken(tree: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Put arrays back into a tree of names."""
    if tree is None:
        return None
    if isinstance(tree, str):
        return arrays[tree]
    ((kind, parts),) = tree.items()
    if kind == "dict":
        return {key: _taken(part, arrays) for key, part in parts.items()}
    made = [_taken(part, arrays) for part in parts]
    return {"list": list, "tuple": tuple, "moments": lambda m: RunningMoments(*m)}[kind](made)


def _document(path: Path, text: str) -> dict[str, Any]:
    told, _, body = text.partition("\n")
    if sha256(body.encode()).hexdigest() != told:
        raise Damaged(
            f"`{path}` was cut or changed: the sha256 of its text is not the one written."
        )
    document = json.loads(body)
    if document["format"] != FORMAT:
        raise Damaged(f"`{path}` has format {document['format']}, this version reads {FORMAT}.")
    return document


def _array(file: Any, name: str, told: dict[str, Any]) -> np.ndarray:
    dtype, shape = _dtype(told["dtype"]), tuple(told["shape"])
    array = file.array(name, dtype, shape)
    if _digest(array) != told["sha256"]:
        raise Damaged(f"`{name}` was changed: its sha256 is not the one written down.")
    return array


def _dtype(name: str) -> np.dtype:
    dtype = jax.numpy.dtype(name)
    if dtype.kind not in KINDS and dtype.name != "bfloat16":
        raise Damaged(f"{name} is no type of a draw.")
    return dtype


def _run(document: dict[str, Any], arrays: dict[str, np.ndarray], like: ArrayTree | None) -> Run:
    told = document["run"]
    draws, stats, others = (
        _taken(document["trees"][name], arrays) for name in ("draws", "stats", "collected")
    )
    if like is not None:
        draws = _put_back(draws, like)
    return Run(
        draws=draws,
        collected=({} if draws is None else {"draws": draws}) | others,
        stats=stats,
        state=None,
        diverged=np.array(told["diverged"], bool),
        traits=Traits(**told["traits"]),
        momentum_sizes=tuple(told["momentum_sizes"]),
        leaf_names=tuple(told["leaf_names"]),
        num_draws=told["num_draws"],
        thin=told["thin"],
        burn_in=told["burn_in"],
        seconds=told["seconds"],
        rollbacks=tuple(Rollback(*back) for back in told["rollbacks"]),
        call=told["call"],
    )


def _put_back(draws: Any, like: ArrayTree) -> Any:
    """Find the leaves of another container by their names."""
    found = dict(zip(leaf_names(draws), jax.tree.leaves(draws), strict=True))
    have = {name: leaf.shape[2:] for name, leaf in found.items()}
    want = {
        name: np.shape(leaf)
        for name, leaf in zip(leaf_names(like), jax.tree.leaves(like), strict=True)
    }
    if have != want:
        raise ValueError(f"`like` has leaves {want}, the draws have {have}.")
    return jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in want])
