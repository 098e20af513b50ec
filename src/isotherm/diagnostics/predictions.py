r"""Predictions averaged over draws.

$$ p(y \mid x, \text{data}) \approx \frac1S \sum_{s=1}^S p(y \mid x, \theta_s) $$

The draws may come from a sampler or from a Gaussian approximation: arrays with leading axes
`(chain, draw)`. To average *while* sampling, without storing draws, use a collector:

    collect = {"test": isotherm.collect.probabilities(network.predict, x)}
    test = isotherm.sample(..., collect=collect).collected["test"]
    test["probabilities"].mean(0)       # over chains; then accuracy, NLL, calibration
    test["entropy"].mean(0)             # for the epistemic uncertainty

For a regressor `isotherm.collect.moments(lambda w: network.predict(w, x))` collects the mean and
the variance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isotherm.tree import is_traced
from isotherm.types import ArrayTree


def posterior_predictive(
    predict: Callable[[ArrayTree, Any], ArrayTree],
    draws: ArrayTree,
    x: Any,
    *,
    draws_per_block: int = 16,
    rows_per_block: int = 4096,
) -> ArrayTree:
    """Return the average of `predict(position, x)` over the draws of all chains.

    Draws and rows of `x` are processed in blocks, so that at most `draws_per_block` predictions of
    `rows_per_block` rows are in memory at once. A block that is not full is padded to one of a few
    sizes, so that a program is not compiled for every number of rows.

    Parameters
    ----------
    predict
        `(position, x) -> predictions`: an array, or a pytree of them, whose first axis is that of
        `x`; each row must depend only on the same row of `x`. Return probabilities, not their
        logarithms.
    draws
        `run.draws`, or `approximation.sample(key, num_draws)`: a pytree with leading axes
        `(chain, draw)`.
    x
        Inputs: an array, or a pytree of them, with the same first axis.
    draws_per_block, rows_per_block
        Sizes of the blocks.

    Raises
    ------
    ValueError
        Some draws are not finite, so that no average over them is a prediction.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> draws = jnp.array([[0.0, 1.0], [2.0, 3.0]])[..., None]
    >>> posterior_predictive(lambda w, x: x @ w, draws, jnp.array([[1.0], [10.0]])).tolist()
    [1.5, 15.0]
    """
    for name, value in {
        "draws_per_block": draws_per_block,
        "rows_per_block": rows_per_block,
    }.items():
        if not value >= 1:
            raise ValueError(f"`{name}` must be at least 1, got {value}.")
    _refuse_lost_draws(draws)
    flat = joined_draws(draws)
    num_draws, num_rows = _length("draws", flat), _length("x", x)
    _check_predictions(predict, jax.tree.map(lambda leaf: leaf[0], flat), x, num_rows)

    def rows(start: int) -> ArrayTree:
        part = jax.tree.map(lambda leaf: leaf[start : start + rows_per_block], x)
        number, total = _length("x", part), None
        part = _padded(part, rows_per_block)
        for first in range(0, num_draws, draws_per_block):
            block = jax.tree.map(lambda leaf, a=first: leaf[a : a + draws_per_block], flat)
            block, left = _padded(block, draws_per_block), num_draws - first
            more = _total(predict, block, part, min(left, draws_per_block))
            total = more if total is None else jax.tree.map(jnp.add, total, more)
        return jax.tree.map(lambda leaf: leaf[:number] / num_draws, total)

    parts = [rows(start) for start in range(0, num_rows, rows_per_block)]
    return jax.tree.map(lambda *pieces: jnp.concatenate(pieces), *parts)


@dataclass(frozen=True)
class WithEntropy:
    """A predictor of probabilities that also returns the entropy of each row.

    `posterior_predictive(WithEntropy(network.predict), draws, x)` returns the means over draws of
    `"probabilities"` and `"entropy"`; `isotherm.diagnostics.mutual_information` computes the
    epistemic uncertainty from both.
    """

    predict: Callable[[ArrayTree, Any], jax.Array]
    """`(position, x) -> (rows, classes)`, probabilities."""

    def __call__(self, position: ArrayTree, x: Any) -> dict[str, jax.Array]:
        """Return the probabilities, and the entropy of each row in nats."""
        p = self.predict(position, x)
        if p.ndim != 2:
            raise ValueError(
                "`predict` must return probabilities of shape (rows, classes), got shape "
                f"{p.shape}."
            )
        return {"probabilities": p, "entropy": jnp.sum(jax.scipy.special.entr(p), axis=1)}


def class_probabilities(
    predict: Callable[[ArrayTree, Any], jax.Array], x: Any, *, rows_per_block: int = 2048
) -> Callable[[ArrayTree], dict[str, jax.Array]]:
    """Return a function of the position for `isotherm.collect.average`: probabilities and entropy.

    `x` is processed in blocks of rows, so that the activations of at most `rows_per_block` rows per
    chain are in memory at once.

    Parameters
    ----------
    predict
        `(position, x) -> (rows, classes)`, probabilities; each row must depend only on the same row
        of `x`.
    x
        Inputs: an array, or a pytree of them, with the same first axis.
    rows_per_block
        Number of rows in a block.

    Returns
    -------
    `position -> {"probabilities": (rows, classes), "entropy": (rows,)}`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> predict = lambda w, x: jax.nn.softmax(x @ w)
    >>> read = class_probabilities(predict, jnp.zeros((5, 3)), rows_per_block=2)
    >>> result = read(jnp.ones((3, 2)))
    >>> result["probabilities"].shape, result["entropy"].round(3).tolist()[0]
    ((5, 2), 0.6930000185966492)
    """
    if not rows_per_block >= 1:
        raise ValueError(f"`rows_per_block` must be at least 1, got {rows_per_block}.")
    rows, both = _length("x", x), WithEntropy(predict)
    blocks = rows // rows_per_block
    whole = blocks * rows_per_block
    x = jax.tree.map(jnp.asarray, x)

    def cut(leaf: jax.Array) -> jax.Array:
        return leaf[:whole].reshape(blocks, rows_per_block, *leaf.shape[1:])

    def read(position: ArrayTree) -> dict[str, jax.Array]:
        pieces = []
        if blocks:
            each = jax.lax.map(lambda part: both(position, part), jax.tree.map(cut, x))
            joined = jax.tree.map(lambda leaf: leaf.reshape(whole, *leaf.shape[2:]), each)
            pieces.append(joined)
        if rows > whole:
            pieces.append(both(position, jax.tree.map(lambda leaf: leaf[whole:], x)))
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), *pieces)

    return read


@partial(jax.jit, static_argnames=["predict"])
def _total(
    predict: Callable[[ArrayTree, Any], ArrayTree], block: ArrayTree, x: Any, num_draws: int
) -> ArrayTree:
    """Return the sum of the predictions over the first draws of a block."""
    each = jax.vmap(lambda position: predict(position, x))(block)

    def total(leaf: jax.Array) -> jax.Array:
        counts = jnp.arange(leaf.shape[0]).reshape(-1, *[1] * (leaf.ndim - 1)) < num_draws
        return jnp.sum(jnp.where(counts, leaf, jnp.zeros((), leaf.dtype)), axis=0)

    return jax.tree.map(total, each)


def _check_predictions(
    predict: Callable[[ArrayTree, Any], ArrayTree], position: ArrayTree, x: Any, rows: int
) -> None:
    for leaf in jax.tree.leaves(jax.eval_shape(predict, position, x)):
        if leaf.shape[:1] != (rows,):
            raise ValueError(
                f"`predict` must return one row per row of `x` ({rows} rows), got shape "
                f"{leaf.shape}."
            )


def _padded(tree: ArrayTree, most: int) -> ArrayTree:
    """Repeat the last row until the length is one of a few: at most a quarter more."""
    number = jax.tree.leaves(tree)[0].shape[0]
    unit = max(8, 2 ** (number.bit_length() - 3))
    missing = min(-(-number // unit) * unit, most) - number
    if not missing:
        return tree
    return jax.tree.map(
        lambda leaf: jnp.concatenate([leaf, jnp.repeat(leaf[-1:], missing, axis=0)]), tree
    )


def joined_draws(draws: ArrayTree) -> ArrayTree:
    """Return draws with the axes of chains and draws merged into one."""
    for leaf in jax.tree.leaves(draws):
        if leaf.ndim < 2:
            raise ValueError(
                f"`draws` must have leading axes (chain, draw), got a leaf of shape {leaf.shape}."
            )
    return jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), draws
    )


def _refuse_lost_draws(draws: ArrayTree) -> None:
    """Raise an error if some draws are not finite; inside `jax.jit` nothing is known of them."""
    leaves = jax.tree.leaves(draws)
    if any(is_traced(leaf) for leaf in leaves) or any(jnp.ndim(leaf) < 2 for leaf in leaves):
        return
    finite = [jnp.all(jnp.isfinite(leaf), axis=tuple(range(2, leaf.ndim))) for leaf in leaves]
    lost = ~np.all(np.stack([np.asarray(each) for each in finite]), axis=0) if finite else False
    if np.any(lost):
        chains = np.flatnonzero(np.any(lost, axis=1)).tolist()
        raise ValueError(
            f"{np.sum(lost):,} of {np.size(lost):,} `draws` are not finite, in chains {chains}: "
            "they have diverged. Leave these chains out, as in "
            "`jax.tree.map(lambda leaf: leaf[~run.diverged], run.draws)`."
        )


def _length(name: str, tree: ArrayTree) -> int:
    lengths = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(tree)}
    if len(lengths) != 1 or lengths <= {(), (0,)}:
        raise ValueError(
            f"`{name}` must have leaves of the same length, at least 1, along the first axis; got "
            f"lengths {sorted(lengths)}."
        )
    return lengths.pop()[0]
