"""Result documents of experiments: strict JSON, written atomically."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from isotherm.io import untrusted
from isotherm.io.files import atomically

FIELDS = frozenset(
    "name title description paper config smoke seed versions machine started wall_time_seconds "
    "command rows claims figures".split()
)


def strict(value: Any) -> Any:
    """Convert `value` to plain Python types that JSON has: NaN is null, an infinity is text.

    A single-precision number is written with the digits of single precision.

    >>> strict({"a": np.float32(0.1), "b": (np.nan, -np.inf), "c": np.True_})
    {'a': 0.1, 'b': [None, '-inf'], 'c': True}
    """
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, np.ndarray):
        return strict(list(value) if value.ndim else value[()])
    if isinstance(value, np.floating):
        value = float(str(value))
    elif isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def dumps(document: dict[str, Any]) -> str:
    """Return the JSON text of a strict document."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a strict document atomically."""
    with atomically(path) as draft:
        draft.write_text(dumps(document), encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read the document of a run; raise a `ValueError` if it is not one."""
    document = untrusted.read_json(path)
    missing = sorted(FIELDS - set(document)) if isinstance(document, dict) else sorted(FIELDS)
    if missing:
        raise ValueError(f"`{path}` is not a result of isotherm: it lacks {', '.join(missing)}.")
    return document
