"""Mutants of compiled kernels: source code with all mutations in it, compiled once.

A mutation is a pair of texts: one that occurs exactly once in the source, and its replacement, in
which `{i}` is the number of the mutation and the variable `which` the number of the active one.
"""

import inspect
import re
import types
from functools import partial


def with_mutants(module, changes, functions):
    """Compile a module with all mutations; return a function that selects one by its number.

    `functions` are the functions of the module that use `which` or call one that does; they get it
    as their last argument.
    """
    text = inspect.getsource(module).replace("cache=True, ", "").replace("cache=True", "")
    for i, (old, new) in enumerate(changes):
        assert text.count(old) == 1, f"{old!r} must occur once in the source"
        text = text.replace(old, new.format(i=i))
    for name in functions:
        text, count = re.subn(rf"\b{name}\(([^()]*?),?\s*\)", rf"{name}(\1, which)", text)
        assert count > 0, f"{name} does not occur in the source"
    mutated = types.ModuleType("mutants")
    exec(compile(text, "mutants", "exec"), mutated.__dict__)

    def select(which):
        names = [name for name in functions if name.startswith("sweep_")]
        return types.SimpleNamespace(
            **{name: partial(_call, getattr(mutated, name), which) for name in names}
        )

    return select


def _call(function, which, *arguments):
    return function(*arguments, which)
