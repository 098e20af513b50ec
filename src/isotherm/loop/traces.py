"""Traces of functions, and whether two of them are the same program."""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np

from isotherm.io.digest import digest

DERIVATIVE_RULES = ("custom_jvp_call", "custom_vjp_call")
"""Operations with functions that are not called any more when the program is compiled."""
OF_KEYS = "random_"
"""Start of the names of operations on keys; their functions follow from the name of the generator,
which is in the text."""
_printed: WeakKeyDictionary[Any, tuple[Any, tuple]] = WeakKeyDictionary()
"""Hashed texts and inner constants of traced functions that JAX keeps."""


def trace(function: Callable[..., Any], *arguments: Any) -> Any:
    """Trace a function; JAX keeps what it has traced, for this as for compiled programs."""
    return _jitted(function).trace(*arguments)


_jitted = lru_cache(maxsize=16)(jax.jit)
"""Wrapped functions; a new wrapper would look up its trace the slow way."""


def fingerprint(trace: Any) -> str:
    """Return a hash of a traced function: operations and constants.

    Constants that a compiled function inside closes over count as well. The hash of the text of a
    trace, which takes milliseconds to print, is kept with it. Constants are hashed every time,
    since NumPy arrays can change.
    """
    traced = trace.jaxpr
    known = _printed.get(traced.jaxpr)
    if known is None:
        text = re.sub(r"0x[0-9a-f]+", "", str(traced.jaxpr))  # addresses of functions
        known = _printed[traced.jaxpr] = sha256(text.encode()), tuple(_constants(traced.jaxpr))
    total, inner = known[0].copy(), known[1]
    constants = [
        leaf for leaf in (*traced.consts, *inner) if getattr(leaf, "is_fully_addressable", True)
    ]
    total.update(digest(constants).encode())
    return total.hexdigest()[:16]


def is_known_by_text(trace: Any) -> bool:
    """Return whether two traced functions with the same fingerprint do the same.

    Not if an operation calls back into Python, or has another parameter that the text of a trace
    shows only by its address or in part.
    """
    return all(_shows_all(equation) for equation in _equations(trace.jaxpr))


def _shows_all(equation: Any) -> bool:
    name = equation.primitive.name
    if name in DERIVATIVE_RULES or name.startswith(OF_KEYS):
        return True
    if "callback" in name or equation.effects:
        return False
    rest = [p for p in equation.params.values() if next(_programs(p), None) is None]
    return not any(" at 0x" in text or "..." in text for text in map(repr, rest))


def _equations(value: Any) -> Iterator[Any]:
    """Yield the operations of a traced program and of all programs inside it."""
    for equation in getattr(getattr(value, "jaxpr", value), "eqns", ()):
        yield equation
        for parameter in equation.params.values():
            for inner in _programs(parameter):
                yield from _equations(inner)


def _programs(parameter: Any) -> Iterator[Any]:
    """Yield the traced programs in a parameter of an operation."""
    for value in parameter if isinstance(parameter, tuple | list) else (parameter,):
        if hasattr(getattr(value, "jaxpr", value), "eqns"):
            yield value


def _constants(value: Any) -> Iterator[Any]:
    """Yield the constants of a traced program and of all programs inside it."""
    yield from getattr(value, "consts", ())
    for equation in getattr(getattr(value, "jaxpr", value), "eqns", ()):
        yield from (x.val for x in equation.invars if np.ndim(getattr(x, "val", 0)))
        for parameter in equation.params.values():
            for inner in _programs(parameter):
                yield from _constants(inner)
