"""Two traces have the same fingerprint if and only if they are the same program."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isotherm.loop.traces import fingerprint, is_known_by_text, trace

FINGERPRINT = """
import jax, jax.numpy as jnp, isotherm
from isotherm.loop.traces import fingerprint, trace
network = isotherm.models.mlp((4, 5, 3))
sampler = isotherm.msgnht(network.gradient(data_size=100), isotherm.schedules.halving(0.1, 50))
key = jax.random.key(0)
state = sampler.init(network.init(key), key)
print(fingerprint(trace(sampler.step, key, state, (jnp.zeros((7, 4)), jnp.zeros(7, int)))))
"""


@pytest.mark.slow
def test_a_fingerprint_is_the_same_in_every_process():
    prints = [
        subprocess.run(
            [sys.executable, "-c", FINGERPRINT],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert prints[0] == prints[1] != ""


def test_a_fingerprint_depends_on_constants():
    def step(weight):
        return lambda x: x * weight

    one, x = np.arange(3.0), jnp.ones(3)
    weights = [jnp.asarray(w) for w in (one, one, one + 1)]
    prints = {fingerprint(trace(step(w), x)) for w in weights}
    assert len(prints) == 2
    numbers = [fingerprint(trace(step(w), x)) for w in (2.0, 2.0001)]
    assert numbers[0] != numbers[1]


def test_text_tells_networks_apart_but_not_calls_to_python():
    def network(x):
        steps = jax.lax.fori_loop(0, 3, lambda i, y: jax.nn.relu(y) + i, x)
        return jax.grad(lambda x: jax.nn.logsumexp(x))(steps) + jax.random.normal(
            jax.random.key(0), x.shape
        )

    def callback(x):
        return jax.lax.fori_loop(0, 3, lambda i, y: call(y), x)

    def call(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def watched(x):
        jax.debug.print("{x}", x=x)
        return x

    x = jnp.ones(3)
    assert is_known_by_text(trace(network, x))
    assert not is_known_by_text(trace(callback, x))
    assert not is_known_by_text(trace(watched, x))
