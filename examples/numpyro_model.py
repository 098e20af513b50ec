"""Sample a NumPyro model with minibatches: the effect of a treatment in 30 clinics.

A hierarchical logistic regression of 450 simulated patients, about fifteen per clinic. The model is
written as for NumPyro's own samplers; isotherm splits it into a prior and one log likelihood per
patient. The scale of the differences between clinics is positive; the chain moves its logarithm.

    pip install "isotherm[interop]" && python examples/numpyro_model.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import isotherm

CLINICS, SIZE = 30, 450


def model(clinic, dose, cured):
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("clinics", CLINICS):
        shift = numpyro.sample("shift", dist.Normal(0.0, 1.0))
    with numpyro.plate("patients", len(cured)):
        logits = slope * dose + scale * shift[clinic]
        numpyro.sample("cured", dist.Bernoulli(logits=logits), obs=cured)


rng = np.random.default_rng(0)
clinic, dose = rng.integers(CLINICS, size=10_000), rng.normal(size=10_000).astype(np.float32)
chance = 1 / (1 + np.exp(-(1.5 * dose + rng.normal(size=CLINICS)[clinic])))
rows = (clinic, dose, (rng.random(10_000) < chance).astype(np.float32))
data, (*test, answer) = tuple(leaf[:SIZE] for leaf in rows), [leaf[SIZE:] for leaf in rows]

key = jax.random.key(0)
target = isotherm.from_numpyro(model, data)
grad_fn = target.gradient(data_size=SIZE)
batches = isotherm.independent_batches(data, batch_size=50)
start = isotherm.warm_start(key, grad_fn, target.init(key), batches)


def predict(position):
    value = target.constrain(position)
    clinic, dose = test
    return jax.nn.sigmoid(value["slope"] * dose + value["scale"] * value["shift"][clinic])


sampler = isotherm.msgnht(grad_fn, **start.settings)
settings = {"num_draws": 500, "thin": 10, "burn_in": 1000}
average, draws = isotherm.collect.average, isotherm.collect.draws
keep = {"test": average(predict), "values": draws(target.constrain)}
run = isotherm.sample(key, sampler, start.position, batches, **settings, collect=keep)
scale = run.collected["values"]["scale"]
print(f"scale between clinics: {scale.mean():.2f} ± {scale.std():.2f} (simulated with 1)")
for name, p in {"mode": predict(start.position), "posterior": run.collected["test"][0]}.items():
    nll = -jnp.log(jnp.where(answer > 0, p, 1 - p)).mean()
    print(f"{name:9}: held-out accuracy {((p > 0.5) == (answer > 0)).mean():.3f}, NLL {nll:.4f}")
