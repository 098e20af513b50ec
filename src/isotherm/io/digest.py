"""Digests of arrays: all bytes are hashed, in parallel, and those of JAX arrays only once.

The digest of an array is the SHA-256 of its type, its shape and the SHA-256 of each block of rows.
Blocks are hashed by up to `THREADS` threads. A JAX array cannot change, so its digest is computed
once and kept until the array is freed; NumPy arrays are hashed every time.
"""

import os
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

BLOCK_BYTES = 2**22
"""Bytes that are hashed at once, unless one row has more."""
THREADS = min(8, os.cpu_count() or 1)

_known: dict[int, tuple[weakref.ref, bytes]] = {}
"""Digests of living JAX arrays by `id`; an entry is removed when its array is freed."""


def digest(tree: Any) -> str:
    """Return a digest of types, shapes and all bytes of the leaves of a pytree, 32 hex digits.

    Examples
    --------
    >>> x = np.arange(5000)
    >>> digest(x) == digest(np.arange(5000)), digest(x) == digest(np.where(x == 4321, 0, x))
    (True, False)
    """
    total = sha256()
    for leaf in jax.tree.leaves(tree):
        total.update(array_digest(leaf))
    return total.hexdigest()[:32]


def array_digest(array: Any) -> bytes:
    """Return the digest of one array, 32 bytes."""
    if not isinstance(array, jax.Array):
        return _compute(np.asarray(array))
    found = _known.get(id(array))
    if found is not None and found[0]() is array:
        return found[1]
    number, value = id(array), _compute(_raw(array))
    _known[number] = (weakref.ref(array, lambda _: _known.pop(number, None)), value)
    return value


def _raw(array: jax.Array) -> Any:
    """Return key data in place of typed keys, and arrays in host memory as NumPy views."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    in_memory = all(device.platform == "cpu" for device in array.devices())
    return np.asarray(array) if in_memory else array


def _compute(array: Any) -> bytes:
    total = sha256(f"{array.dtype}{tuple(array.shape)}".encode())
    blocks = _blocks(array if array.ndim else array.reshape(1))
    if array.nbytes <= 2 * BLOCK_BYTES or THREADS == 1:
        parts = map(_hash, blocks)
        total.update(b"".join(parts))
        return total.digest()
    with ThreadPoolExecutor(THREADS) as pool:
        waiting = []
        for block in blocks:  # few blocks in memory at a time: they may be copies from a device
            waiting.append(pool.submit(_hash, block))
            if len(waiting) > 2 * THREADS:
                total.update(waiting.pop(0).result())
        for part in waiting:
            total.update(part.result())
    return total.digest()


def _blocks(array: Any) -> Iterator[Any]:
    rows = max(1, BLOCK_BYTES * len(array) // max(1, array.nbytes))
    for start in range(0, len(array), rows):
        yield array[start : start + rows]


def _hash(block: Any) -> bytes:
    flat = np.ascontiguousarray(np.asarray(block)).reshape(-1)
    return sha256(flat.view(np.uint8).data).digest()
