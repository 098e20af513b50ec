"""Compare plain and natural coordinates on a logistic regression with correlated features.

The sampler and the minibatches are the same. Only the coordinates differ: the thermostats are per
parameter, or per principal axis of the curvature. The reference is a long run with exact gradients.

    python examples/logistic_regression.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import isotherm

SIZE, DIMENSION = 2000, 10

# Neighbouring features are strongly correlated, as columns of real tables often are.
rng = np.random.default_rng(0)
x = rng.normal(size=(SIZE, DIMENSION)).cumsum(axis=1) / np.sqrt(np.arange(1, DIMENSION + 1))
truth = rng.normal(size=DIMENSION)
y = rng.random(SIZE) < 1 / (1 + np.exp(-x @ truth))
data = (jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))


def log_likelihood(w, batch):
    features, label = batch
    score = features @ w
    return label * score - jax.nn.softplus(score)


def log_prior(w):
    return -0.5 * jnp.sum(w**2) / 10


grad_fn = isotherm.minibatch_gradient(log_likelihood, log_prior, SIZE)
batches = isotherm.independent_batches(data, batch_size=20)
key = jax.random.key(1)


def posterior_sd(sampler, position, batches, **counts):
    run = isotherm.sample(key, sampler, position, batches, num_chains=4, **counts)
    return run.draws.reshape(-1, DIMENSION).astype(np.float64).std(0)


natural = isotherm.warm_start(key, grad_fn, jnp.zeros(DIMENSION), batches)
plain = isotherm.warm_start(
    key, grad_fn, natural.position, batches, coordinates="identity", num_steps=0
)

exact_gradients = isotherm.sghmc(grad_fn, 0.5, integrator="BAOAB", coordinates=natural.coordinates)
reference = posterior_sd(
    exact_gradients, natural.position, isotherm.full_batch(data), num_draws=2000, thin=2
)
for name, start in {"plain": plain, "natural": natural}.items():
    sampler = isotherm.msgnht(grad_fn, **start.settings)
    sd = posterior_sd(sampler, start.position, batches, num_draws=1000, thin=20, burn_in=2000)
    ratios = " ".join(f"{ratio:.2f}" for ratio in np.sort(sd / reference))
    print(f"{name:7} coordinates, h = {start.step_size:.4f}: sd over the reference {ratios}")
