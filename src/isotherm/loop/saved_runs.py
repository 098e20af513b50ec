"""Runs in files: draws, statistics, summaries, and how they were made.

- `run.nc` is netCDF with the groups `posterior` and `sample_stats` of ArviZ, for analysis.
- `run.zarr` is a folder with the same groups in chunks, from which a few draws can be read alone.
- `run.safetensors` has the same arrays as tensors named `posterior/…`, for libraries that load
  weights.

A header in JSON stands beside the arrays: version of the format, sampler, call, summaries, versions
of libraries, the pytrees whose leaves the arrays are, and a sha256 of every array. Its first line
is a sha256 of the rest. Loading executes nothing and trusts nothing: types, shapes and sizes are
compared before an array is read, checksums after.

Trees of dictionaries with keys that are strings or whole numbers, lists and tuples are restored as
they were. A `NamedTuple`, such as a layer of `isotherm.models`, is restored with its name and
fields, so that functions of a position work, but its type is a new one. Of other containers
(modules of Equinox) only the leaves are stored, as a dictionary by name. `like` restores the type
of every container.
"""

import os
import re
from collections import namedtuple
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from isotherm.io.sealed import KINDS, check_suffix, damaged_if_wrong, read_sealed, write_sealed
from isotherm.io.untrusted import Damaged
from isotherm.loop.collect import RunningMoments
from isotherm.loop.run import Run, read_rollbacks
from isotherm.tree import leaf_names
from isotherm.types import ArrayTree, Traits

FORMAT = 1


def save_run(run: Run, path: str | os.PathLike[str]) -> None:
    """Write a run to a file or a folder, atomically.

    `run.state` is left out: to resume a run, use `sample(..., checkpoint=FOLDER)`.

    Parameters
    ----------
    run
        What `isotherm.sample` returned.
    path
        A name that ends in `.nc` (netCDF) or `.zarr` (a folder), which ArviZ opens, or in
        `.safetensors`. Needs `isotherm[files]`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, isotherm, tempfile, pathlib
    >>> sampler = isotherm.msgnht(lambda x, batch: jax.tree.map(jnp.negative, x), step_size=0.2)
    >>> run = isotherm.sample(jax.random.key(0), sampler, {"w": jnp.zeros(2)},
    ...                       isotherm.no_batches(), num_draws=9)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "run.nc"
    ...     isotherm.save_run(run, path)
    ...     isotherm.load_run(path).draws["w"].shape
    (1, 9, 2)
    """
    path = Path(path)
    check_suffix(path)
    _check_shapes(run)
    if path.suffix == ".zarr" and path.exists() and not (path / "zarr.json").exists():
        raise ValueError(f"`{path}` exists and is not a Zarr folder; it is not replaced.")
    store = _ArrayStore()
    trees = {"draws": store.add("posterior", run.draws)}
    trees["stats"] = store.add("sample_stats", dict(run.stats))
    others = {name: tree for name, tree in run.collected.items() if name != "draws"}
    trees["collected"] = store.add("collected", others)
    numbers = ("temperature", "diffusion", "thermostat_mass")
    traits = {
        name: float(value) if name in numbers and value is not None else value
        for name, value in run.traits.__dict__.items()
    }
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
        "summary": run.summary().rows or None,
        "trees": trees,
    }
    write_sealed(path, document, store.arrays, {"sampler": repr(run)})


def load_run(path: str | os.PathLike[str], *, like: ArrayTree | None = None) -> Run:
    """Read a run that `save_run` wrote; `run.state` is `None`.

    Parameters
    ----------
    path
        The file, or the folder of a `.zarr`.
    like
        A position, for draws in containers of your own: the draws are returned in trees like it.

    Raises
    ------
    ValueError
        If the file is cut, changed, or not a run of isotherm.
    """
    path = Path(path)
    check_suffix(path)
    with damaged_if_wrong(path):
        document, arrays = read_sealed(path, "run", FORMAT)
        run = _run(document, arrays)
    if like is None:
        return run
    draws = _in_container(run.draws, like)
    return replace(run, draws=draws, collected={**run.collected, "draws": draws})


class _ArrayStore:
    """Arrays by name, and trees that refer to them."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}

    def add(self, group: str, tree: Any, name: str = "") -> Any:
        """Store the leaves of a tree; return the tree with names in their place, in JSON terms."""
        if tree is None:
            return None
        if type(tree) is dict and all(isinstance(key, str) for key in tree):
            return {"dict": {k: self.add(group, v, f"{name}.{k}") for k, v in tree.items()}}
        if type(tree) in (list, tuple):
            parts = [self.add(group, part, f"{name}.{i}") for i, part in enumerate(tree)]
            return {type(tree).__name__: parts}
        if isinstance(tree, RunningMoments):
            parts = [self.add(group, v, f"{name}.{k}") for k, v in tree._asdict().items()]
            return {"moments": parts}
        if type(tree) is dict and all(type(key) in (str, int) for key in tree):
            return {"items": [[k, self.add(group, v, f"{name}.{k}")] for k, v in tree.items()]}
        fields = getattr(tree, "_fields", None)  # of a NamedTuple
        if isinstance(tree, tuple) and fields is not None:
            parts = [[k, self.add(group, getattr(tree, k), f"{name}.{k}")] for k in fields]
            return {"named tuple": [type(tree).__name__, parts]}
        if isinstance(tree, np.ndarray | np.generic | jax.Array | float | int):
            return self._add(group, name, np.asarray(tree))
        leaves = zip(leaf_names(tree), jax.tree.leaves(tree), strict=True)
        return {"dict": {k: self._add(group, f"{name}.{k}", np.asarray(v)) for k, v in leaves}}

    def _add(self, group: str, name: str, array: np.ndarray) -> str:
        if array.dtype.kind not in KINDS and array.dtype.name != "bfloat16":
            raise ValueError(f"`{name}` has dtype {array.dtype}, which cannot be saved.")
        plain = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII).strip(".-") or "position"
        number, unique = 1, plain
        while self._is_taken(group, unique, array.ndim):
            number, unique = number + 1, f"{plain}_{number}"
        self.arrays[f"{group}/{unique}"] = array
        return f"{group}/{unique}"

    def _is_taken(self, group: str, name: str, rank: int) -> bool:
        """Return whether a name, or a name of one of its axes, is already used."""
        ours = {name, *(f"{name}_dim_{i}" for i in range(rank))}
        theirs = {"chain", "draw", "zarr.json"}
        for key, array in self.arrays.items():
            if key.startswith(f"{group}/"):
                other = key.removeprefix(f"{group}/")
                theirs |= {other, *(f"{other}_dim_{i}" for i in range(array.ndim))}
        return not ours.isdisjoint(theirs)


def _restore(tree: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Replace the names in a tree by arrays."""
    if tree is None:
        return None
    if isinstance(tree, str):
        return arrays[tree]
    ((kind, parts),) = tree.items()
    if kind == "dict":
        return {key: _restore(part, arrays) for key, part in parts.items()}
    if kind == "items":
        return {key: _restore(part, arrays) for key, part in parts}
    if kind == "named tuple":
        return _named_tuple(parts[0], {key: _restore(part, arrays) for key, part in parts[1]})
    values = [_restore(part, arrays) for part in parts]
    return {"list": list, "tuple": tuple, "moments": lambda m: RunningMoments(*m)}[kind](values)


def _named_tuple(name: str, values: dict[str, Any]) -> Any:
    """Return a tuple with these fields."""
    try:
        return _tuple_type(name, tuple(values))(**values)
    except (ValueError, TypeError) as error:
        raise Damaged(f"The draws are in a tuple whose names are not valid: {error}.") from error


@cache
def _tuple_type(name: str, fields: tuple[str, ...]) -> type:
    """Return one type for all tuples with this name and these fields."""
    return namedtuple(name, fields)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


_VALID = {
    "momentum_sizes": lambda x: isinstance(x, list) and all(map(_is_count, x)),
    "leaf_names": lambda x: isinstance(x, list) and all(isinstance(name, str) for name in x),
    "num_draws": _is_count,
    "thin": lambda x: _is_count(x) and x > 0,
    "burn_in": _is_count,
    "seconds": _is_number,
    "diverged": lambda x: isinstance(x, list) and all(type(flag) is bool for flag in x),
    "call": lambda x: isinstance(x, dict),
}
"""What the fields of a saved run must be."""


def _traits(fields: dict[str, Any]) -> Traits:
    """Return the traits of a sampler, after a check of their types."""
    traits = Traits(**fields)
    names = (traits.name, traits.integrator, traits.thermostat)
    if not (all(map(_is_text, names)) and _is_number(traits.temperature)):
        raise Damaged(f"The traits of the sampler cannot be {fields}.")
    return traits


def _check_shapes(run: Run) -> None:
    """Raise a `ValueError` if the arrays of a run do not have its numbers of chains and draws."""
    chains, each = (run.num_chains,), (run.num_chains, run.num_draws)
    others = {name: tree for name, tree in run.collected.items() if name != "draws"}
    for what, tree, axes in (
        ("draws", run.draws, each),
        ("stats", dict(run.stats), each),
        ("collected", others, chains),
    ):
        for leaf in jax.tree.leaves(tree):
            if np.shape(leaf)[: len(axes)] != axes:
                raise ValueError(
                    f"`{what}` has an array of shape {np.shape(leaf)}, but the run has "
                    f"{run.num_chains} chains with {run.num_draws} draws."
                )


def _run(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Run:
    fields = document["run"]
    for name, is_valid in _VALID.items():
        if not is_valid(fields[name]):
            raise Damaged(f"`{name}` of the run cannot be {fields[name]}.")
    draws, stats, others = (
        _restore(document["trees"][name], arrays) for name in ("draws", "stats", "collected")
    )
    run = Run(
        draws=draws,
        collected=({} if draws is None else {"draws": draws}) | others,
        stats=stats,
        state=None,
        diverged=np.array(fields["diverged"], bool),
        traits=_traits(fields["traits"]),
        momentum_sizes=tuple(fields["momentum_sizes"]),
        leaf_names=tuple(fields["leaf_names"]),
        num_draws=fields["num_draws"],
        thin=fields["thin"],
        burn_in=fields["burn_in"],
        seconds=fields["seconds"],
        rollbacks=read_rollbacks(fields["rollbacks"]),
        call=fields["call"],
    )
    _check_shapes(run)
    return run


def _in_container(draws: Any, like: ArrayTree) -> Any:
    """Put draws into the container of a position, leaf by leaf, by name."""
    leaves = dict(zip(leaf_names(draws), jax.tree.leaves(draws), strict=True))
    have = {name: leaf.shape[2:] for name, leaf in leaves.items()}
    want = {
        name: np.shape(leaf)
        for name, leaf in zip(leaf_names(like), jax.tree.leaves(like), strict=True)
    }
    if have != want:
        raise ValueError(f"`like` has leaves {want}, the draws have {have}.")
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in want])
