"""Keep predictions instead of weights: collect draws and averages of functions of the position.

A network learns a curve from two clusters of points. Its 150 weights are never stored: `draws`
keeps the curve at a few points, `average` keeps one number per point. R-hat of the curve shows
whether the chains agree on the predictions; the weights need not agree.

    python examples/collect_predictions.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import isotherm

HIDDEN, NOISE, STEP = 50, 0.3, 0.01
rng = np.random.default_rng(0)
x = np.concatenate([rng.uniform(-1, -0.3, 150), rng.uniform(0.3, 1, 150)]).astype(np.float32)
y = (np.sin(4 * x) + NOISE * rng.normal(size=x.size)).astype(np.float32)
grid = jnp.linspace(-1.5, 1.5, 7)


def predict(params, x):
    hidden = jnp.tanh(3 * (x[:, None] * params["slope"] + params["shift"]))
    return hidden @ params["out"] / jnp.sqrt(HIDDEN)


def log_likelihood(params, batch):
    x, y = batch
    return -0.5 * ((y - predict(params, x)) / NOISE) ** 2


def log_prior(params):
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))


key, names = jax.random.key(0), ("slope", "shift", "out")
start = {k: jax.random.normal(jax.random.fold_in(key, i), (HIDDEN,)) for i, k in enumerate(names)}
grad_fn = isotherm.minibatch_gradient(log_likelihood, log_prior, data_size=len(x))
batches = isotherm.independent_batches((x, y), batch_size=50)
mode = isotherm.find_mode(key, grad_fn, start, batches)
noise = isotherm.diagnostics.gradient_noise(key, grad_fn, mode, lambda k: batches.batch(k, 0))
ratio = isotherm.diagnostics.noise_ratio(STEP, noise).max.max()
print(f"largest C = h²σ²/4 at the mode: {ratio:.2f}")

keep = {
    "curve": isotherm.collect.draws(lambda params: predict(params, grid)),
    "positive": isotherm.collect.average(lambda params: predict(params, grid) > 0),
}
sampler = isotherm.msgnht(grad_fn, STEP, diffusion=1.0)
settings = {"num_draws": 500, "thin": 20, "burn_in": 5000, "num_chains": 4}
run = isotherm.sample(key, sampler, mode, batches, **settings, collect=keep)
curve = run.collected["curve"]
table = [grid, np.sin(4 * grid), curve.mean((0, 1)), curve.std((0, 1))]
table += [run.collected["positive"].mean(0), isotherm.diagnostics.rhat(curve)]
print("     x  truth   mean     sd  P(>0)   rhat")
for row in np.array(table).T:
    print(*(f"{number:6.2f}" for number in row))
