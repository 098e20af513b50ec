"""One program for a laptop and for many hosts: chains on some devices, shards of the data on others.

Started alone it uses the devices it finds. Started several times, with a coordinator, it is one run on all of them
(`deploy/` does it by shell, with SLURM and on Kubernetes). Every process reads its own shards; the first one writes the checkpoint.

    python examples/hosts.py
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import isotherm

quick = {"heartbeat_timeout_seconds": 20, "shutdown_timeout_seconds": 20}  # who is dead is missed
if "COORDINATOR" in os.environ:
    where = os.environ["COORDINATOR"]
    number, process = int(os.environ["NUM_PROCESSES"]), int(os.environ["PROCESS_ID"])
    jax.distributed.initialize(where, number, process, **quick)
elif int(os.environ.get("SLURM_NTASKS", "1")) > 1:
    jax.distributed.initialize(**quick)  # JAX asks SLURM

SHARDS, SHARD_SIZE, CHAINS = 8, 250, 4
width = int(os.environ.get("DATA_DEVICES", "1"))  # devices that share each batch
mesh = Mesh(np.array(jax.devices()).reshape(-1, width), ("chain", "data"))


def read(shard):
    """Read a file, usually; only the shards of this process's devices are asked for."""
    rng = np.random.default_rng(shard)
    x = rng.normal(size=(SHARD_SIZE, 3)).astype(np.float32)
    return x, rng.random(SHARD_SIZE) < 1 / (1 + np.exp(-x @ [1.0, -2.0, 0.5]))


def log_likelihood(w, batch):
    x, y = batch
    return -jnp.logaddexp(0, jnp.where(y, -1.0, 1.0) * (x @ w))


grad_fn = isotherm.minibatch_gradient(
    log_likelihood, lambda w: -0.5 * w @ w, data_size=SHARDS * SHARD_SIZE
)
run = isotherm.sample(
    jax.random.key(0),
    isotherm.msgnht(grad_fn, step_size=0.01),
    jnp.zeros(3),
    isotherm.sharded_batches(read, 200, SHARDS, mesh),
    num_draws=300,
    thin=10,
    burn_in=1000,
    num_chains=CHAINS,
    mesh=mesh,
    checkpoint=os.environ.get("CHECKPOINT"),
    progress=False,
)
if jax.process_index() == 0:
    print(f"{jax.device_count()} devices, {jax.process_count()} processes")
    print(run.summary())
