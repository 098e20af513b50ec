"""Lazy imports: public names on first use, and optional libraries."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    package: str,
    names: Mapping[str, str],
    *,
    namespaces: Sequence[str] = (),
    moved: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Build `__getattr__`, `__dir__` and `__all__` of a package that imports names on first use.

    Parameters
    ----------
    package
        The `__name__` of the package.
    names
        Modules, relative to `isotherm`, and the names that each defines, separated by spaces.
    namespaces
        Modules, relative to `isotherm`, that are attributes under the last part of their name.
    moved
        Names of earlier versions and what has replaced them, for the `AttributeError`.
    """
    home = {name: module for module, defined in names.items() for name in defined.split()}
    modules = {module.rpartition(".")[2]: module for module in namespaces}

    def get(name: str) -> Any:
        if name in home:
            return getattr(importlib.import_module(f"isotherm.{home[name]}"), name)
        if name in modules:
            return importlib.import_module(f"isotherm.{modules[name]}")
        hint = f": it is now {moved[name]}" if moved and name in moved else ""
        raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")

    public = sorted([*home, *modules])
    return get, lambda: public, public


def require(library: str, extra: str, purpose: str) -> Any:
    """Import and return an optional library; if it is missing, name the extra that installs it.

    Parameters
    ----------
    library
        The module to import.
    extra
        The extra that installs it: `pip install 'isotherm[extra]'`.
    purpose
        What needs it, as the subject of a sentence.

    Raises
    ------
    ImportError
        If the library is not installed. If it is, but cannot be imported, its own error is raised.
    """
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        package = library.split(".")[0]
        if (error.name or "").split(".")[0] != package:  # installed, but a dependency is missing
            raise
        raise ImportError(f"{purpose} needs {package}: pip install 'isotherm[{extra}]'.") from error
