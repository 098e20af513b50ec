r"""Convolutions as products of matrices, which are fast inside a compiled loop on a CPU.

Inside a compiled loop XLA's convolution runs ten to twenty times slower on a CPU than outside of
one, and slower still if chains have kernels of their own. `fast_convolutions` replaces it in a
function of any library, before it is differentiated: the patches of an image under the kernel
become rows of a matrix, which is multiplied by the kernel. A matrix of patches is computed again
for the derivative, so that no more than one is in memory at a time. On other devices XLA's own
convolution is used.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    jaxpr_as_fun,
    jaxprs_in_params,
)

CONVOLUTION = "conv_general_dilated"
CALLS = ("jit", "pjit", "closed_call")
"""Operations that only call another program."""


def fast_convolutions(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the same values, whose convolutions are fast in loops on a CPU.

    Convolutions inside calls, `jax.checkpoint` and `jax.lax.scan` are replaced as well; those
    inside other control flow and inside functions with derivative rules of their own are not.

    Parameters
    ----------
    function
        Any function of pytrees of arrays that JAX can trace.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> convolve = lambda x, w: jax.lax.conv_general_dilated(x, w, (1,), "SAME")
    >>> x, w = jnp.arange(5.0).reshape(1, 1, 5), jnp.array([[[1.0, 0.0, -1.0]]])
    >>> fast_convolutions(convolve)(x, w).tolist() == convolve(x, w).tolist()
    True
    """

    def replaced(*arguments: Any) -> Any:
        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        if not _has_convolution(traced.jaxpr):
            return function(*arguments)
        values = _evaluate(traced.jaxpr, traced.consts, jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), values)

    return replaced


def by_patches(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolve by one matrix product of the kernel with all patches, without padding.

    Parameters
    ----------
    images
        (image, *space, channel in).
    kernel
        (*space, channel in, channel out).
    """
    window = kernel.shape[:-2]
    ones = (1,) * len(window)
    patches = jnp.concatenate(list(_patches(images, window, ones, ones)), axis=-1)
    return patches @ kernel.reshape(-1, kernel.shape[-1])


def _patches(
    images: jax.Array, window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> Iterator[jax.Array]:
    """Yield, for every position in the window, the pixels under it: (image, *space, channel)."""
    axes = list(zip(images.shape[1:-1], window, strides, dilation, strict=True))
    sizes = [(n - (w - 1) * d - 1) // s + 1 for n, w, s, d in axes]
    for offset in product(*map(range, window)):
        start = [i * d for i, d in zip(offset, dilation, strict=True)]
        end = [a + (n - 1) * s + 1 for a, n, s in zip(start, sizes, strides, strict=True)]
        yield jax.lax.slice(
            images,
            (0, *start, 0),
            (images.shape[0], *end, images.shape[-1]),
            (1, *strides, 1),
        )


def _convolution(equation: JaxprEqn, images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Compute a convolution of XLA, on a CPU by a product of matrices."""
    given = equation.params

    def by_xla(images: jax.Array, kernel: jax.Array) -> jax.Array:
        return equation.primitive.bind(images, kernel, **given)

    if given["batch_group_count"] != 1 or given.get("out_sharding") is not None:
        return by_xla(images, kernel)

    @jax.checkpoint
    def by_products(images: jax.Array, kernel: jax.Array) -> jax.Array:
        numbers, groups = given["dimension_numbers"], given["feature_group_count"]
        image, channel, *space = numbers.lhs_spec
        out, into, *window = numbers.rhs_spec
        x = images.transpose(image, *space, channel)
        w = kernel.transpose(*window, into, out)
        edges = zip(given["padding"], given["lhs_dilation"], strict=True)
        x = jax.lax.pad(
            x,
            jnp.zeros((), x.dtype),
            [(0, 0, 0), *((low, high, step - 1) for (low, high), step in edges), (0, 0, 0)],
        )
        parts = list(_patches(x, w.shape[:-2], given["window_strides"], given["rhs_dilation"]))
        options = {
            "precision": given["precision"],
            "preferred_element_type": given["preferred_element_type"],
        }
        if groups == 1:
            y = jnp.matmul(jnp.concatenate(parts, axis=-1), w.reshape(-1, w.shape[-1]), **options)
        else:
            y = _in_groups(parts, w, groups, options)
        back = [0] * y.ndim
        for axis, where in enumerate((numbers.out_spec[0], *numbers.out_spec[2:])):
            back[where] = axis
        back[numbers.out_spec[1]] = y.ndim - 1
        return y.transpose(back)

    return jax.lax.platform_dependent(images, kernel, cpu=by_products, default=by_xla)


def _in_groups(
    parts: Sequence[jax.Array], kernel: jax.Array, groups: int, options: dict[str, Any]
) -> jax.Array:
    """Multiply the patches of every group of channels by the kernel of the group."""
    *window, into, out = kernel.shape
    x = jnp.stack(parts, axis=-2)  # (image, *space, window, channel)
    x = x.reshape(*x.shape[:-1], groups, into)
    w = kernel.reshape(math.prod(window), into, groups, out // groups)
    y = jnp.einsum("...wgi,wigo->...go", x, w, **options)
    return y.reshape(*y.shape[:-2], out)


def _has_convolution(program: Jaxpr) -> bool:
    return any(map(_is_or_has_convolution, program.eqns))


def _is_or_has_convolution(equation: JaxprEqn) -> bool:
    inner = jaxprs_in_params(equation.params)
    return equation.primitive.name == CONVOLUTION or any(map(_has_convolution, inner))


def _evaluate(program: Jaxpr, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """Evaluate a traced program with its convolutions replaced."""
    known: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    known.update(zip(program.constvars, constants, strict=True))
    known.update(zip(program.invars, arguments, strict=True))
    for equation in program.eqns:
        values = [read(atom) for atom in equation.invars]
        results = _replaced(equation, values)
        if results is None:
            results = _as_it_is(equation, values, program.debug_info)
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in program.outvars]


def _replaced(equation: JaxprEqn, values: list[Any]) -> Sequence[Any] | None:
    """Evaluate an operation that is or has a convolution; `None` for others, and if it cannot."""
    name, given = equation.primitive.name, equation.params
    if name == CONVOLUTION:
        return [_convolution(equation, *values)]
    inner: Any = given.get("jaxpr")
    if inner is None or not _is_or_has_convolution(equation):
        return None
    if name in CALLS:
        return _evaluate(inner.jaxpr, inner.consts, values)
    if name.startswith("remat"):
        options = {option: given[option] for option in ("prevent_cse", "policy")}
        return jax.checkpoint(lambda *inputs: _evaluate(inner, (), inputs), **options)(*values)
    return _scan(given, values) if name == "scan" else None


def _as_it_is(equation: JaxprEqn, values: list[Any], debug_info: Any) -> Sequence[Any]:
    """Evaluate any operation."""
    pairs = zip(equation.invars, values, strict=True)
    inputs = {atom: value for atom, value in pairs if not isinstance(atom, Literal)}
    alone = Jaxpr(
        (),
        tuple(inputs),
        equation.outvars,
        [equation],
        effects=equation.effects,
        debug_info=debug_info,
    )
    return jaxpr_as_fun(ClosedJaxpr(alone, ()))(*inputs.values())


def _scan(given: dict[str, Any], values: list[Any]) -> list[Any]:
    """Evaluate a scan whose body has convolutions."""
    body, first, second = given["jaxpr"], given["num_consts"], given["num_carry"]
    shared, start, stacked = values[:first], values[first:][:second], values[first + second :]

    def step(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        out = _evaluate(body.jaxpr, body.consts, [*shared, *carry, *xs])
        return out[:second], out[second:]

    end, ys = jax.lax.scan(step, start, stacked, given["length"], given["reverse"], given["unroll"])
    return [*end, *ys]
