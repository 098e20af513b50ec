"""Saving and resuming: the protocol that all topic learners and running scores follow.

`state_dict` returns what a learner or a running score needs to resume, as NumPy arrays by name,
ready for `numpy.savez`. `load_state_dict` loads it into an object that was built with the same
settings. A resumed learner produces the same numbers, bit for bit, as one that was never
interrupted.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

StateDict = dict[str, np.ndarray]
Tree = TypeVar("Tree")


class Stateful(Protocol):
    """An object whose state can be saved and loaded."""

    def state_dict(self) -> StateDict:
        """Return everything needed to resume, as arrays by name; later changes do not alter it."""
        ...

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Resume from the state of an object with the same settings, bit for bit."""
        ...


def tree_state_dict(tree: Any) -> StateDict:
    """Copy the leaves of a pytree into arrays named by their paths.

    Examples
    --------
    >>> sorted(tree_state_dict({"rates": (1.0, np.zeros(2)), "step": 3}))
    ['rates.0', 'rates.1', 'step']
    """
    return {
        name: np.array(leaf) for name, leaf in zip(_names(tree), jax.tree.leaves(tree), strict=True)
    }


def load_tree(tree: Tree, state: Mapping[str, np.ndarray], mismatch: str) -> Tree:
    """Return a pytree like `tree` with the arrays of `tree_state_dict`.

    Parameters
    ----------
    tree
        A tree with the expected structure, shapes and dtypes.
    state
        What `tree_state_dict` returned.
    mismatch
        Message of the `ValueError` that is raised if `state` does not fit.
    """
    names, (leaves, structure) = _names(tree), jax.tree.flatten(tree)
    if set(state) != set(names):
        raise ValueError(mismatch)
    new = [np.array(state[name]) for name in names]
    old = [np.asarray(leaf) for leaf in leaves]
    if [(x.shape, x.dtype) for x in new] != [(x.shape, x.dtype) for x in old]:
        raise ValueError(mismatch)
    return jax.tree.unflatten(structure, new)


def join_states(**states: Mapping[str, np.ndarray]) -> StateDict:
    """Merge several states into one; names get the prefix `"<keyword>/"`."""
    return {
        f"{prefix}/{name}": array
        for prefix, state in states.items()
        for name, array in state.items()
    }


def split_state(state: Mapping[str, np.ndarray], prefix: str) -> StateDict:
    """Return the part of a merged state that belongs to `prefix`.

    Examples
    --------
    >>> merged = join_states(a={"x": np.zeros(1)}, b={"x": np.ones(1)})
    >>> split_state(merged, "b")
    {'x': array([1.])}
    """
    start = f"{prefix}/"
    return {name.removeprefix(start): x for name, x in state.items() if name.startswith(start)}


def _names(tree: Any) -> list[str]:
    paths = [path for path, _ in jax.tree.leaves_with_path(tree)]
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]
