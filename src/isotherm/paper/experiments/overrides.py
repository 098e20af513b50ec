"""`--set key=value`: parse text from the command line by the field types of a configuration."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from isotherm.paper.experiments.registry import unknown

Config = TypeVar("Config")

_TRUTH = {"true": True, "yes": True, "on": True, "1": True}
_TRUTH |= {"false": False, "no": False, "off": False, "0": False}

_EXPECTED = {int: "an integer", float: "a number", bool: "true or false", str: "text"}


def configured(config: Config, overrides: Sequence[str]) -> Config:
    """Return `config`, a dataclass, changed by every `key=value` of `overrides`.

    Tuples are separated by commas; integers may be written `1e6` or `1_000_000`.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True)
    ... class Config:
    ...     num_steps: int = 10
    ...     step_sizes: tuple[float, ...] = (0.1,)
    >>> configured(Config(), ["num_steps=1e3", "step_sizes=0.1,0.2"])
    Config(num_steps=1000, step_sizes=(0.1, 0.2))
    """
    kinds = get_type_hints(type(config))
    changes = {}
    for override in overrides:
        key, equals, text = (part.strip() for part in override.partition("="))
        if not equals:
            raise ValueError(f"`--set` must be given key=value, got `{override}`.")
        if key not in kinds:
            raise unknown("setting", key, kinds)
        changes[key] = _parse(key, text, kinds[key])
    return dataclasses.replace(config, **changes)  # pyright: ignore[reportArgumentType]


def kind_name(kind: Any) -> str:
    """Describe a field type in words, for messages.

    >>> kind_name(float), kind_name(tuple[int, ...])
    ('a number', 'a comma-separated list, each an integer')
    """
    if get_origin(kind) is tuple:
        return f"a comma-separated list, each {kind_name(get_args(kind)[0])}"
    return _EXPECTED[kind]


def _parse(key: str, text: str, kind: Any) -> Any:
    try:
        if get_origin(kind) is tuple:
            item = get_args(kind)[0]
            return tuple(_scalar(part.strip(), item) for part in text.split(",") if part.strip())
        return _scalar(text, kind)
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"`{key}` must be {kind_name(kind)}, got `{text}`.") from None


def _scalar(text: str, kind: type) -> int | float | bool | str:
    if kind is bool:
        return _TRUTH[text.lower()]
    if kind is int:
        return _integer(text)
    return kind(text)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        if float(text).is_integer():
            return int(float(text))
        raise
