r"""The posterior of some weights of a network, with all others fixed.

A mask selects leaves, or single numbers inside of leaves, for example the weights of largest
variance (Daxberger et al. 2021, *Bayesian deep learning via subnetwork inference*), the rows of an
embedding that new words need, or what pruning has left. The position, its momenta and checkpoints
have the size of what is selected.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isotherm.models.networks import Network
from isotherm.tree import as_position, leaf_names
from isotherm.types import ArrayTree, Key


def subnetwork(
    network: Network, position: ArrayTree, selected: ArrayTree
) -> tuple[Network, Callable[[ArrayTree], ArrayTree]]:
    r"""Return a network of which only some weights are sampled, and what adds the others to them.

    Its log prior is that of the whole network at the fixed values, up to a constant that of the
    selected weights given the others.

    Parameters
    ----------
    network
        The whole network.
    position
        All weights: where chains start, and the values of those that stay fixed.
    selected
        Booleans, in a tree as `position` or a part of its beginning (`True` for a whole layer): one
        per leaf, or an array of booleans that can be broadcast to the shape of the leaf.

    Returns
    -------
    `(part, whole)`. A position of `part` has selected leaves as they are, in place of a leaf of
    which some numbers are selected their vector, and `None` in place of fixed leaves.
    `whole(position)` returns all weights; for draws, use `jax.vmap(jax.vmap(whole))(run.draws)`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, isotherm
    >>> network = isotherm.models.mlp((3, 4, 2))
    >>> first, last = network.init(jax.random.key(0))
    >>> large = jnp.abs(first.weights) > jnp.median(jnp.abs(first.weights))
    >>> selected = (first._replace(weights=large, bias=False), True)
    >>> part, whole = subnetwork(network, (first, last), selected)
    >>> start = part.init(jax.random.key(1))
    >>> start[0].weights.shape, start[0].bias, start[1].weights.shape
    ((6,), None, (4, 2))
    >>> whole(start)[0].weights.shape
    (3, 4)
    """
    position = as_position(position)
    masks = _masks(position, selected)
    where = [None if mask.all() else np.flatnonzero(mask) for mask in masks]
    if not any(mask.any() for mask in masks):
        raise ValueError("`selected` selects nothing, so there is nothing to sample.")
    leaves, structure = jax.tree.flatten(position)

    def part_of(tree: ArrayTree) -> ArrayTree:
        parts = []
        for leaf, numbers in zip(structure.flatten_up_to(tree), where, strict=True):
            if numbers is None:
                parts.append(leaf)
            else:
                parts.append(leaf.reshape(-1)[numbers] if numbers.size else None)
        return structure.unflatten(parts)

    def whole(part: ArrayTree) -> ArrayTree:
        values = []
        for leaf, numbers, value in zip(leaves, where, structure.flatten_up_to(part), strict=True):
            if numbers is None:
                values.append(value)
            elif numbers.size:
                flat = leaf.reshape(-1).at[numbers].set(value.astype(leaf.dtype))
                values.append(flat.reshape(leaf.shape))
            else:
                values.append(leaf)
        return structure.unflatten(values)

    part = Network(
        lambda weights, x: network.apply(whole(weights), x),
        lambda key: part_of(position),
        network.likelihood,
        noise_sd=network.noise_sd,
        prior=_PartOfPrior(network, position, part_of, whole),
    )
    return part, whole


@dataclass(frozen=True, eq=False)
class _PartOfPrior:
    """The prior of a network as a function of the selected weights."""

    network: Network
    all_weights: ArrayTree
    part_of: Callable[[ArrayTree], ArrayTree]
    whole: Callable[[ArrayTree], ArrayTree]

    def log_prior(self, position: ArrayTree) -> jax.Array:
        """Return the log density of all weights, up to a constant that of the selected ones."""
        return self.network.log_prior(self.whole(position))

    def sample(self, key: Key, like: ArrayTree) -> ArrayTree:
        """Draw all weights, and return the selected ones."""
        return self.part_of(self.network.sample_prior(key))

    def weights(self, position: ArrayTree) -> ArrayTree:
        """Return all weights."""
        return self.whole(position)

    def position(self, weights: ArrayTree) -> ArrayTree:
        """Return the selected weights."""
        return self.part_of(weights)


def _masks(position: ArrayTree, selected: Any) -> list[np.ndarray]:
    """Return an array of booleans for every leaf."""
    try:
        each = jax.tree.map(
            lambda mask, below: [mask] * len(jax.tree.leaves(below)), selected, position
        )
    except ValueError as error:
        raise ValueError(
            f"`selected` must have the structure of `position`, or of its beginning: {error}"
        ) from error
    masks = []
    given = jax.tree.leaves(each)
    leaves = jax.tree.leaves(position)
    for name, mask, leaf in zip(leaf_names(position), given, leaves, strict=True):
        mask = np.asarray(mask)
        if mask.dtype != bool:
            raise ValueError(
                f"`selected` must have booleans, got {mask.dtype} for the leaf {name!r}."
            )
        try:
            masks.append(np.broadcast_to(mask, jnp.shape(leaf)))
        except ValueError as error:
            raise ValueError(
                f"`selected` of the leaf {name!r} has shape {mask.shape}, which cannot be "
                f"broadcast to {jnp.shape(leaf)}."
            ) from error
    return masks
