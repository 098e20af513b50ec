"""Topic models in files: settings, draws and the state of the learner; nothing is pickled.

The format is that of `isotherm.io.sealed`: arrays with checksums, and a header in JSON that
describes objects by the names of their types. Loading builds only the types in `_TYPES`, from their
fields, so no code in a file can be executed.
"""

import os
import re
from collections import deque
from dataclasses import is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from isotherm.io.sealed import KINDS, check_suffix, damaged_if_wrong, read_sealed, write_sealed
from isotherm.io.untrusted import Damaged
from isotherm.topics.corpus import Corpus
from isotherm.topics.dpfa.model import DPFA, Parameters
from isotherm.topics.estimators.dpfa_learners import DPFAPlan, GibbsLearner, StreamLearner
from isotherm.topics.estimators.learners import (
    GibbsLDALearner,
    LDAChainLearner,
    LDAFilterLearner,
    LDAPlan,
    Learner,
)
from isotherm.topics.estimators.stream_order import StreamOrder

FORMAT = 3
_TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Corpus,
        DPFA,
        DPFAPlan,
        GibbsLDALearner,
        GibbsLearner,
        LDAChainLearner,
        LDAFilterLearner,
        LDAPlan,
        Parameters,
        StreamLearner,
        StreamOrder,
    )
}
"""Types of objects that a saved model may contain."""
MAX_SWEEPS = 10**7
"""Largest accepted number of sweeps per batch; a file with more is refused."""
_COLLECTIONS: dict[str, type] = {"list": list, "tuple": tuple}


def save_model(model: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator to a file.

    Parameters
    ----------
    model
        The estimator.
    path
        A name that ends in `.nc`, `.zarr` or `.safetensors`.
    """
    encoder = _Encoder()
    document = {
        "format": FORMAT,
        "model": type(model).__name__,
        "attributes": {name: encoder.encode(x, name) for name, x in vars(model).items()},
    }
    write_sealed(Path(path), document, encoder.arrays, {"model": repr(model)})


def load_model(kind: type, path: str | os.PathLike[str]) -> Any:
    """Read an estimator of the given class that `save_model` wrote."""
    path = Path(path)
    check_suffix(path)
    with damaged_if_wrong(path):
        document, arrays = read_sealed(path, kind.__name__, FORMAT)
        model = kind()
        for name, value in document["attributes"].items():
            vars(model)[name] = _decode(value, arrays)
    return model


class _Encoder:
    """Converts objects to what JSON can represent, and collects their arrays by name."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}

    def encode(self, value: Any, name: str) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray):
            return self._array(value, name)
        if isinstance(value, dict):
            pairs = [[key, self.encode(x, f"{name}.{key}")] for key, x in value.items()]
            return {"dict": pairs}
        if isinstance(value, deque):
            return {"deque": self._items(value, name), "maxlen": value.maxlen}
        if type(value).__name__ in _TYPES:
            return self._object(value, name)
        for kind, collection in _COLLECTIONS.items():
            if type(value) is collection:
                return {kind: self._items(value, name)}
        raise ValueError(
            f"`{name}` is {value!r}, which cannot be saved without pickle: use a number, a name or "
            "an array instead, such as an integer seed or the name of a sampler."
        )

    def _items(self, values: Any, name: str) -> list[Any]:
        return [self.encode(x, f"{name}.{i}") for i, x in enumerate(values)]

    def _object(self, value: Any, name: str) -> Any:
        if isinstance(value, Learner):
            fields = value.__getstate__()
        else:
            fields = value._asdict() if hasattr(value, "_asdict") else vars(value)
        encoded = {key: self.encode(x, f"{name}.{key}") for key, x in fields.items()}
        return {"type": type(value).__name__, "fields": encoded}

    def _array(self, array: np.ndarray, name: str) -> Any:
        if array.dtype.kind in "OU" and all(isinstance(x, str) for x in array.flat):
            return {"names": array.tolist()}
        if array.dtype.kind not in KINDS:
            raise ValueError(f"`{name}` has dtype {array.dtype}, which cannot be saved.")
        if array.ndim == 0:  # safetensors has no arrays without axes
            return {"scalar": [array.dtype.name, array.item()]}
        plain = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII).strip(".-")
        unique = f"collected/{plain}"
        while unique in self.arrays:
            unique += "_"
        self.arrays[unique] = array
        return {"array": unique}


def _decode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if not isinstance(value, dict):
        return value
    if "type" in value:
        fields = {key: _decode(x, arrays) for key, x in value["fields"].items()}
        return _build(_TYPES[value["type"]], fields)
    if "deque" in value:
        return deque((_decode(x, arrays) for x in value["deque"]), value["maxlen"])
    ((kind, content),) = value.items()
    if kind == "array":
        return arrays[content]
    if kind == "scalar":
        return _scalar(*content)
    if kind == "names":
        return np.array(content, object)
    if kind == "dict":
        return {key: _decode(x, arrays) for key, x in content}
    if kind not in _COLLECTIONS:
        raise Damaged(f"The file has an unknown kind of value, {kind!r}.")
    return _COLLECTIONS[kind](_decode(x, arrays) for x in content)


def _scalar(dtype: str, value: Any) -> np.ndarray:
    """Return an array without axes; raise an error if `value` is not a number."""
    if np.dtype(dtype).kind not in KINDS or not isinstance(value, bool | int | float):
        raise Damaged(f"{value!r} of type {dtype!r} is not a number.")
    return np.array(value, dtype)


def _check_sizes(fields: dict[str, Any]) -> None:
    """Raise an error if the plan of a learner needs more memory than its state in the file has.

    Building a learner allocates the memory that its plan asks for, so this check comes first.
    """
    plan, state = fields.get("plan"), fields.get("chain")
    if state is None or not isinstance(plan, LDAPlan | DPFAPlan):
        return
    if isinstance(plan, LDAPlan):
        sizes, sweeps = (*plan.sizes, 1), plan.common.get("sweeps", 0)
    else:
        sizes, sweeps = (plan.model.num_words, *plan.model.layers), plan.sweeps
    if any(type(number) is not int or number < 0 for number in (*sizes, sweeps)):
        raise Damaged(f"{sizes} topics and words with {sweeps} sweeps are not counts.")
    stored = sum(np.size(array) for array in state.values())
    needed = max(a * b for a, b in pairwise(sizes))
    if needed > stored or sweeps > MAX_SWEEPS:
        raise Damaged(
            f"The model has {needed:,} weights and {sweeps:,} sweeps, but its state in the file "
            f"has {stored:,} numbers."
        )


def _build(kind: type, fields: dict[str, Any]) -> Any:
    if issubclass(kind, tuple) or is_dataclass(kind):
        return kind(**fields)
    built: Any = object.__new__(kind)
    if issubclass(kind, Learner):
        _check_sizes(fields)
        built.__setstate__(fields)
    else:
        vars(built).update(fields)
    return built
