"""Power iteration: the largest eigenvalue of a symmetric matrix from products with vectors."""

from collections.abc import Callable

import jax
import optax

from isotherm.types import ArrayTree


def largest_eigenvalue(
    times: Callable[[ArrayTree], ArrayTree],
    start: ArrayTree,
    num_iterations: int,
    *,
    compiled: bool = True,
) -> jax.Array:
    r"""Return the largest absolute eigenvalue of a symmetric matrix $A$.

    The vector $v \leftarrow A v / \lVert v \rVert$ is iterated and its last norm returned. This
    is never above the largest absolute eigenvalue; the error decreases by a factor
    $(\lambda_2/\lambda_1)^2$ per iteration.

    Parameters
    ----------
    times
        The product $v \mapsto Av$ of a pytree with the matrix.
    start
        First vector, any pytree of arrays that is not orthogonal to the leading eigenvector.
    num_iterations
        Number of products.
    compiled
        Whether to run the iterations as one `jax.lax.fori_loop`. If false they are a Python loop,
        so that `times` may be any Python function.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> matrix = jnp.array([3.0, 1.0])
    >>> round(float(largest_eigenvalue(lambda v: matrix * v, jnp.ones(2), 30)), 3)
    3.0
    """

    def iterate(_: object, vector: ArrayTree) -> ArrayTree:
        norm = optax.tree.norm(vector)
        return times(jax.tree.map(lambda leaf: leaf / norm, vector))

    if compiled:
        return optax.tree.norm(jax.lax.fori_loop(0, num_iterations, iterate, start))
    vector = start
    for i in range(num_iterations):
        vector = iterate(i, vector)
    return optax.tree.norm(vector)
