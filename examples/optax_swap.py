"""Turn an optax training loop into a posterior sampler by changing one line.

A small network learns a wavy boundary between two classes. Loop, loss and minibatches are the same
for Adam and for mSGNHT; only the line that builds the optimizer differs. The draws of the chain are
`position` in the state of the optimizer. With other seeds the point estimate may be better.

    python examples/optax_swap.py
"""

import jax
import jax.numpy as jnp
import optax

import isotherm

SIZE, BATCH, NUM_STEPS = 60, 20, 8_000


def simulate(key, size):
    x = jax.random.normal(key, (size, 2))
    border = jax.nn.sigmoid(3 * (x[:, 1] - jnp.sin(2 * x[:, 0])))
    return x, jax.random.bernoulli(jax.random.fold_in(key, 1), border).astype(jnp.int32)


def logits(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["out"]


def loss(params, batch):  # minus the log posterior over N; the prior has variance 4
    fit = optax.softmax_cross_entropy_with_integer_labels(logits(params, batch[0]), batch[1])
    return fit.mean() + optax.tree.norm(params, squared=True) / (8 * SIZE)


def train(optimizer, params):
    """Return the last parameters, and the predictions averaged over the second half."""

    def step(carry, t):
        params, state, total = carry
        rows = jax.random.randint(jax.random.fold_in(key, t), (BATCH,), 0, SIZE)
        updates, state = optimizer.update(jax.grad(loss)(params, (x[rows], y[rows])), state, params)
        params = optax.apply_updates(params, updates)
        predicted = jax.nn.softmax(logits(getattr(state, "position", params), test))
        return (params, state, total + (t >= NUM_STEPS // 2) * predicted), None

    start = (params, optimizer.init(params), jnp.zeros((len(test), 2)))
    (params, _, total), _ = jax.lax.scan(step, start, jnp.arange(NUM_STEPS))
    return params, total / total.sum(1, keepdims=True)


key = jax.random.key(0)
(x, y), (test, answer) = simulate(jax.random.key(1), SIZE), simulate(jax.random.key(2), 1000)
params = {"w": jax.random.normal(key, (2, 20)), "b": jnp.zeros(20), "out": jnp.zeros((20, 2))}
optimizer = optax.adam(optax.cosine_decay_schedule(1e-2, NUM_STEPS))
params, _ = train(optimizer, params)
optimizer = isotherm.as_optax(isotherm.msgnht(None, 0.03, 5.0), key, loss_scale=SIZE)
_, averaged = train(optimizer, params)
for name, p in {"Adam": jax.nn.softmax(logits(params, test)), "mSGNHT": averaged}.items():
    nll = -jnp.log(p[jnp.arange(len(test)), answer]).mean()
    print(f"{name:7} accuracy {(p.argmax(1) == answer).mean():.3f}, NLL {nll:.3f}")
