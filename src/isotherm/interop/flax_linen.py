"""Flax linen modules: the collection `params` is the position, all other collections are fixed."""

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

import jax

from isotherm.interop import modules
from isotherm.interop.modules import Parts, library
from isotherm.types import ArrayTree


def from_linen(
    module: Any,
    variables: Mapping[str, Any],
    *,
    wrt: str | Sequence[str] | Callable[[str], bool] | None = None,
    method: Any = None,
    statistics_from: tuple[Any, Mapping[str, Any]] | None = None,
    **arguments: Any,
) -> Parts:
    """Split a linen module and its variables into parameters and a pure function of them.

    A log likelihood must be the same function at every step. So there are no random streams for
    dropout, and the statistics of a batch normalisation do not change. Pass the arguments that
    evaluate your module, for example `from_linen(module, variables, train=False)`. If it still
    draws random numbers or updates statistics, linen raises its own error.

    Parameters
    ----------
    module
        Any `linen.Module`.
    variables
        From `module.init`, or from training.
    wrt
        Which parameters are sampled: the path of a layer or of a parameter, as `"Dense_1"` or
        `"encoder.Dense_0.kernel"`, several of them, or a function of the path; by default all.
    method
        The method that is called, as for `module.apply`; by default `__call__`.
    statistics_from
        Training inputs, and a dictionary of the arguments of training mode, as
        `(x, {"train": True})`: the statistics of batch normalisations are computed on `x`, once, at
        the parameters in `variables`. For a module that was not trained.
    arguments
        Further arguments of the method.

    Returns
    -------
    `Parts(position, apply, put_back)`. The position is `variables["params"]`, or the part of it
    that is sampled; `put_back` returns variables for `module.apply`.
    `parts.recalibrated(x, train=True)` is an `apply` whose batch statistics are computed on `x` at
    every position, with the arguments that put the module into training mode.

    Raises
    ------
    ImportError
        If flax is missing: `pip install 'isotherm[interop]'`.
    ValueError
        If `variables` has no collection `params`, nothing is sampled, an argument is not one of
        the method, or batch statistics were never trained.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from flax import linen
    >>> layer, x = linen.Dense(2), jnp.ones((5, 3))
    >>> position, apply, put_back = from_linen(layer, layer.init(jax.random.key(0), x))
    >>> sorted(position), apply(position, x).shape
    (['bias', 'kernel'], (5, 2))
    """
    core = library("flax.core")
    flatten, unflatten = (
        getattr(library("flax.traverse_util"), name) for name in ("flatten_dict", "unflatten_dict")
    )
    collections = core.unfreeze(variables)
    if "params" not in collections:
        raise ValueError(
            f"`variables` must have a collection 'params', as from module.init, got "
            f"{sorted(collections)}."
        )
    _check_arguments(module, method, arguments)
    all_params = flatten(collections["params"])
    sampled = {path for path in all_params if _is_sampled(".".join(path), wrt)}
    fixed = {path: leaf for path, leaf in all_params.items() if path not in sampled}
    position = collections["params"]
    if fixed:
        position = unflatten({path: all_params[path] for path in sampled})
    known = collections.get("batch_stats", {})

    def put_back(position: ArrayTree, statistics: ArrayTree | None = None) -> dict[str, Any]:
        params = unflatten({**fixed, **flatten(position)}) if fixed else position
        stats = known if statistics is None else statistics
        return {**collections, "params": params, **({"batch_stats": stats} if stats else {})}

    def evaluate(position: ArrayTree, statistics: ArrayTree | None, x: Any) -> jax.Array:
        return module.apply(put_back(position, statistics), x, method=method, **arguments)

    def updated_by(training: Mapping[str, Any]) -> Callable[..., ArrayTree]:
        def update(position: ArrayTree, statistics: ArrayTree, x: Any) -> ArrayTree:
            _, changed = module.apply(
                put_back(position, statistics),
                x,
                method=method,
                mutable=["batch_stats"],
                rngs={"dropout": jax.random.key(0)},
                **{**arguments, **training},
            )
            return changed["batch_stats"]

        return update

    def recalibrated(x: Any, **training: Any) -> Callable[[ArrayTree, Any], jax.Array]:
        _check_arguments(module, method, training)
        return modules.recalibrated_apply(updated_by(training), evaluate, known, x)

    if statistics_from is not None:
        x, training = statistics_from
        known = modules.measured_statistics(updated_by(training), known, position, [x])
    else:
        modules.check_trained(known)
    return modules.make_parts(
        position, lambda position, x: evaluate(position, None, x), put_back, recalibrated
    )


def _is_sampled(path: str, wrt: str | Sequence[str] | Callable[[str], bool] | None) -> bool:
    if wrt is None:
        return True
    if callable(wrt):
        return bool(wrt(path))
    names = [wrt] if isinstance(wrt, str) else wrt
    return any(path == name or path.startswith(f"{name}.") for name in names)


def _check_arguments(module: Any, method: Any, arguments: Mapping[str, Any]) -> None:
    """Raise an error if the method of a module does not take these arguments."""
    called = getattr(module, method) if isinstance(method, str) else method or module.__call__
    known = signature(called).parameters
    if any(p.kind is Parameter.VAR_KEYWORD for p in known.values()):
        return
    unknown = [name for name in arguments if name not in known]
    if unknown:
        raise ValueError(
            f"`{unknown[0]}` is not an argument of {type(module).__name__}, whose arguments are "
            f"{', '.join(name for name in known if name != 'self')}."
        )
