"""Operations on pytrees, and checks of positions and gradients."""

from contextlib import suppress
from operator import index
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from isotherm.types import ArrayTree

TRACING_OPTIONS = (
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_disable_jit",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_softmax_custom_jvp",
    "jax_threefry_partitionable",
)


def is_traced(value: object) -> bool:
    """Return whether a value is traced, so that it is unknown until the program runs."""
    return isinstance(value, jax.core.Tracer)


def leaf_names(tree: ArrayTree) -> list[str]:
    """Return the path of every leaf, in flattening order; a bare array is called `position`.

    Examples
    --------
    >>> leaf_names({"w": 1.0, "b": (2.0, 3.0)})
    ['b.0', 'b.1', 'w']
    """
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return [jax.tree_util.keystr(path, simple=True, separator=".") or "position" for path in paths]


def signature(tree: ArrayTree) -> tuple[Any, tuple[tuple[tuple[int, ...], Any], ...]]:
    """Return the structure of a tree, and shape and type of its leaves: a key for caches."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def shapes_of(structure: Any, leaves: tuple[tuple[tuple[int, ...], Any], ...]) -> ArrayTree:
    """Return a tree of shapes and types from its `signature`."""
    return jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])


def tracing_options() -> tuple:
    """Return the options of JAX that change what a function is traced to: a key for caches."""
    return tuple(getattr(jax.config, name) for name in TRACING_OPTIONS)


def leaf_sizes(tree: ArrayTree) -> np.ndarray:
    """Return the number of elements of every leaf, in flattening order."""
    return np.array([leaf.size for leaf in jax.tree.leaves(tree)], dtype=np.int64)


def is_finite(tree: ArrayTree) -> bool:
    """Return whether all numbers of a tree are finite."""
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))


def add_increment(leaf: jax.Array, increment: jax.Array) -> jax.Array:
    """Add in the wider precision of the two, and return the sum in the precision of `leaf`."""
    return (leaf + increment).astype(leaf.dtype)


def zeros_like_working(tree: ArrayTree) -> ArrayTree:
    """Return zeros shaped like `tree`, in at least single precision."""
    return jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32)), tree
    )


def as_arrays(name: str, tree: ArrayTree) -> ArrayTree:
    """Convert every leaf to a JAX array; an error names the argument `name`."""
    if not jax.tree.leaves(tree):
        raise ValueError(f"`{name}` must be an array, or a pytree of arrays, got {tree!r}.")
    try:
        return jax.tree.map(jnp.asarray, tree)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"`{name}` must be an array of numbers, or a pytree: {error}") from error


def refuse_masked(**arrays: Any) -> None:
    """Raise an error if an array has masked entries, which `numpy.asarray` would silently read."""
    for name, array in arrays.items():
        if isinstance(array, np.ma.MaskedArray) and np.ma.getmaskarray(array).any():
            raise ValueError(
                f"`{name}` has masked entries: leave out their rows, or replace them "
                f"(`{name}.filled(value)`)."
            )


def count(name: str, value: Any, least: int) -> int:
    """Convert a whole number, of Python or NumPy, to `int`."""
    whole = None
    if isinstance(value, float):
        whole = int(value) if value.is_integer() else None
    elif hasattr(value, "__index__") and np.ndim(value) == 0:
        with suppress(TypeError):  # an array of another type
            whole = index(value)
    if whole is None or whole < least:
        raise ValueError(f"`{name}` must be a whole number of at least {least}, got {value!r}.")
    return whole


def as_position(position: ArrayTree) -> ArrayTree:
    """Convert every leaf to an array, and check that all are floating-point numbers."""
    names = leaf_names(position)
    if not names:
        raise ValueError("`position` has no leaves: there is nothing to sample.")
    arrays = jax.tree.map(jnp.asarray, position)
    for name, leaf in zip(names, jax.tree.leaves(arrays), strict=True):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(
                f"`position` leaf {name!r} has dtype {leaf.dtype}, but samplers need real "
                "floating-point numbers. Cast the leaf, or leave it out of the position."
            )
    return arrays


def check_gradient(position: ArrayTree, grads: ArrayTree) -> None:
    """Check that a gradient has the tree structure and the shapes of the position.

    Shapes are known while tracing, so the check costs nothing at run time.
    """
    names, grad_names = leaf_names(position), leaf_names(grads)
    if jax.tree.structure(position) != jax.tree.structure(grads):
        extra = sorted(set(names) ^ set(grad_names))
        raise ValueError(
            "The gradient must have the tree structure of the position: "
            f"the position has leaves {names}, the gradient has {grad_names}"
            + (f" (differing: {extra})." if extra else ", in another container.")
        )
    pairs = zip(names, jax.tree.leaves(position), jax.tree.leaves(grads), strict=True)
    for name, leaf, grad in pairs:
        if jnp.shape(leaf) != jnp.shape(grad):
            raise ValueError(
                f"The gradient of leaf {name!r} has shape {jnp.shape(grad)}, but the position has "
                f"shape {jnp.shape(leaf)}."
            )
