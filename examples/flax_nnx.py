"""Sample the posterior of a Flax NNX network, starting at its mode.

1000 handwritten digits to train on, one seed. The network is an ordinary NNX module; the sampler
moves its parameters, and `put_back` returns the module for any draw. Needs flax:
pip install "isotherm[interop]".

    python examples/flax_nnx.py
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from sklearn.datasets import load_digits

import isotherm

x, y = load_digits(return_X_y=True)
x, y = jnp.asarray(x / 16, jnp.float32), jnp.asarray(y)
data, test, answer = (x[:1000], y[:1000]), x[1000:], y[1000:]

key, rngs = jax.random.key(0), nnx.Rngs(0)
module = nnx.Sequential(nnx.Linear(64, 50, rngs=rngs), nnx.relu, nnx.Linear(50, 10, rngs=rngs))
position, apply, put_back = isotherm.from_nnx(module)
network = isotherm.models.Network(
    apply, lambda key: position, likelihood="categorical", prior_sd=1.0
)
grad_fn = network.gradient(data_size=1000)
batches = isotherm.independent_batches(data, batch_size=100)
mode_key, start_key, sample_key = jax.random.split(jax.random.key(1), 3)
mode = isotherm.find_mode(mode_key, grad_fn, position, batches)
start = isotherm.warm_start(start_key, grad_fn, mode, batches, num_steps=0)
run = isotherm.sample(
    sample_key,
    isotherm.msgnht(start.grad_fn, **start.settings),
    start.position,
    batches,
    num_draws=200,
    thin=20,
    collect={"test": isotherm.collect.average(lambda position: network.predict(position, test))},
)
point = jax.nn.softmax(put_back(mode)(test))
for name, p in {"point estimate": point, "posterior": run.collected["test"][0]}.items():
    nll = optax.softmax_cross_entropy_with_integer_labels(jnp.log(p), answer).mean()
    print(f"{name:14}: held-out accuracy {(p.argmax(1) == answer).mean():.3f}, NLL {nll:.3f}")
