r"""What `from_nnx`, `from_linen` and `from_equinox` return: a module as a position and a function.

A module of any library is split into the numbers that a sampler moves and a pure function of them.
The function, a start and a likelihood make a `Network`:

    position, apply, put_back = isotherm.from_nnx(model)
    network = Network(apply, lambda key: position, likelihood="gaussian", noise_sd=0.3)
    sampler = isotherm.msgnht(network.gradient(data_size), step_size=1e-3)

**Batch normalisation.** The statistics of a layer are those of training and stay fixed while a
chain moves, because a log likelihood must be the same function at every step. For predictions
they can be computed again at every draw, on training data, as stochastic weight averaging does
(Izmailov et al. 2018): `parts.recalibrated(x)` is an `apply` that does so. It reads the statistics
$s$ of a batch from the update of the library's layer, $r' = mr + (1 - m)s$, whose momentum $m$ is
not known: two updates, from $r = 0$ and from $r = 1$, determine both.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isotherm.imports import require
from isotherm.tree import is_traced, leaf_names
from isotherm.types import ArrayTree

Update = Callable[[ArrayTree, ArrayTree, Any], ArrayTree]
"""`(position, statistics, x) -> statistics` after a step in training mode."""


class _Parts(NamedTuple):
    position: ArrayTree
    """The parameters, a pytree of arrays: a possible start of a chain."""
    apply: Callable[[ArrayTree, Any], jax.Array]
    """`(position, x) -> outputs`, pure; one row per row of `x`."""
    put_back: Callable[[ArrayTree], Any]
    """`position -> module`; everything that is not a parameter is unchanged."""


class Parts(_Parts):
    """The parts of a module; `put_back(position)` computes what `apply(position, ·)` does."""

    recalibrated: Callable[..., Callable[[ArrayTree, Any], jax.Array]]
    """`x -> apply` with the statistics of batch normalisations computed on `x` at every position.

    `x` is an array of training inputs, or a pytree of them, or a list of such batches, whose
    statistics are averaged. Further keyword arguments are those of a linen module in training
    mode: `parts.recalibrated(x, train=True)`."""


def make_parts(
    position: ArrayTree,
    apply: Callable[[ArrayTree, Any], jax.Array],
    put_back: Callable[[ArrayTree], Any],
    recalibrated: Callable[..., Callable[[ArrayTree, Any], jax.Array]],
) -> Parts:
    """Return the parts of a module; raise an error if nothing is sampled."""
    if not jax.tree.leaves(position):
        raise ValueError("Nothing is sampled: the filter matches no parameter of the module.")
    parts = Parts(position, apply, put_back)
    parts.recalibrated = recalibrated
    return parts


def library(name: str) -> Any:
    """Import a library of the extra `interop`."""
    return require(name, "interop", f"A model of {name.split('.')[0]}")


def recalibrated_apply(
    update: Update,
    apply: Callable[[ArrayTree, ArrayTree, Any], jax.Array],
    statistics: ArrayTree,
    x: Any,
) -> Callable[[ArrayTree, Any], jax.Array]:
    """Return an `apply` that computes batch statistics on `x` before it evaluates the module.

    Parameters
    ----------
    update
        The module in training mode.
    apply
        `(position, statistics, x) -> outputs` in evaluation mode.
    statistics
        A tree like the statistics, for its shapes.
    x
        Training inputs, or a list of batches of them.
    """
    check_has_statistics(statistics)
    batches = x if isinstance(x, list) else [x]

    def evaluate(position: ArrayTree, inputs: Any) -> jax.Array:
        return apply(position, measured_statistics(update, statistics, position, batches), inputs)

    return evaluate


def measured_statistics(
    update: Update, like: ArrayTree, position: ArrayTree, batches: Iterable[Any]
) -> ArrayTree:
    """Return the means over batches of the statistics that a module computes in training mode."""

    def of_batch(x: Any) -> ArrayTree:
        from_zero, from_one = (
            update(position, jax.tree.map(lambda s, v=value: jnp.full_like(s, v), like), x)
            for value in (0, 1)
        )
        return jax.tree.map(lambda a, b: a / (1 - (b - a)), from_zero, from_one)

    each = [of_batch(x) for x in batches]
    return jax.tree.map(lambda *parts: sum(parts) / len(parts), *each)


def check_has_statistics(statistics: ArrayTree) -> None:
    """Raise an error if a module has no batch normalisation."""
    if not jax.tree.leaves(statistics):
        raise ValueError("The module has no batch statistics: there is nothing to recalibrate.")


def check_trained(statistics: ArrayTree) -> None:
    """Raise an error if batch statistics are those of a module that was never trained."""
    leaves = jax.tree.leaves(statistics)
    if any(map(is_traced, leaves)) or not leaves:
        return
    if all(np.all(np.asarray(leaf) == 0) or np.all(np.asarray(leaf) == 1) for leaf in leaves):
        raise ValueError(
            f"The batch statistics ({', '.join(leaf_names(statistics)[:4])}) are those of a module "
            "that was never trained, mean 0 and variance 1, so that its batch normalisations do "
            "nothing. Train the module first, or pass `statistics_from`, a batch of training "
            "inputs on which the statistics are computed once."
        )
