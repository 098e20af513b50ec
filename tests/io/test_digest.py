"""A digest covers every byte of the data, quickly, and once per immutable array."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isotherm.io import digest as module
from isotherm.io.digest import array_digest, digest


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool", "bfloat16", "complex64"])
def test_every_single_byte_counts(dtype):
    rng = np.random.default_rng(0)
    array = (rng.normal(size=(7, 5)) * 9).astype(jnp.dtype(dtype))
    seen = {digest(array)}
    for place in np.ndindex(array.shape):
        changed = array.copy()
        changed[place] = not array[place] if dtype == "bool" else array[place] + 16
        seen.add(digest(changed))
    assert len(seen) == 1 + array.size
    assert digest(jnp.asarray(array)) == digest(jnp.asarray(array).copy())


def test_type_shape_order_and_borders_count():
    x = np.arange(24.0, dtype=np.float32)
    others = [x.reshape(2, 12), x.view(np.int32), [x[:12], x[12:]], x[::-1], x.reshape(4, 6).T]
    assert len({digest(each) for each in [x, *others]}) == 6
    assert digest(x) == digest(np.asfortranarray(x.reshape(4, 6)).reshape(-1))
    assert digest(x.reshape(4, 6)) == digest(np.asfortranarray(x.reshape(4, 6)))
    assert digest(np.float32(3)) != digest(np.float32(4))
    assert digest(np.zeros((0, 3))) != digest(np.zeros((3, 0)))
    assert digest(jax.random.key(0)) != digest(jax.random.key(1))


def test_blocks_and_threads_do_not_hide_a_change(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 256)
    x = np.random.default_rng(1).normal(size=(1000, 7))
    whole, alone = digest(x), None
    with monkeypatch.context() as patch:
        patch.setattr(module, "THREADS", 1)
        alone = digest(x)
    assert whole == alone
    for row in range(0, 1000, 37):
        changed = x.copy()
        changed[row, 3] = np.nextafter(x[row, 3], np.inf)
        assert digest(changed) != whole


def test_a_jax_array_is_hashed_once_and_forgotten_when_it_is_freed(monkeypatch):
    calls, compute = [], module._compute
    monkeypatch.setattr(module, "_compute", lambda a: calls.append(a.shape) or compute(a))
    x, y = jnp.ones((50, 3)), np.ones(9)
    first = array_digest(x)
    assert array_digest(x) == first and calls == [(50, 3)]
    array_digest(y)
    before = array_digest(y)
    y[0] = 2  # a NumPy array can change
    assert array_digest(y) != before and len(calls) == 4
    number = id(x)
    assert number in module._known
    del x
    gc.collect()
    assert number not in module._known
