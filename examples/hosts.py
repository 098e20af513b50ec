"""One program for a laptop and for many hosts: chains and data distributed over devices.

Started once, it uses the devices of this machine. Started several times with a coordinator, all
processes are one run (`deploy/` has files for a shell, SLURM and Kubernetes). Every process reads
its own shards of the data; the first process writes the checkpoint.

    python examples/hosts.py
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import isotherm

timeouts = {"heartbeat_timeout_seconds": 20, "shutdown_timeout_seconds": 20}  # of dead processes
if "COORDINATOR" in os.environ:
    number, process = int(os.environ["NUM_PROCESSES"]), int(os.environ["PROCESS_ID"])
    jax.distributed.initialize(os.environ["COORDINATOR"], number, process, **timeouts)
elif int(os.environ.get("SLURM_NTASKS", "1")) > 1:
    jax.distributed.initialize(**timeouts)  # JAX reads the addresses from SLURM

SHARDS, SHARD_SIZE, CHAINS = 8, 250, 4
width = int(os.environ.get("DATA_DEVICES", "1"))  # devices that share each batch
mesh = Mesh(np.array(jax.devices()).reshape(-1, width), ("chain", "data"))


def read(shard):
    """Return a shard, usually from a file; called for the shards of this process only."""
    rng = np.random.default_rng(shard)
    x = rng.normal(size=(SHARD_SIZE, 3)).astype(np.float32)
    return x, rng.random(SHARD_SIZE) < 1 / (1 + np.exp(-x @ [1.0, -2.0, 0.5]))


def log_likelihood(w, batch):
    x, y = batch
    return -jnp.logaddexp(0, jnp.where(y, -1.0, 1.0) * (x @ w))


size = SHARDS * SHARD_SIZE
grad_fn = isotherm.minibatch_gradient(log_likelihood, lambda w: -0.5 * w @ w, data_size=size)
sampler = isotherm.msgnht(grad_fn, step_size=0.01)
batches = isotherm.sharded_batches(read, 200, SHARDS, mesh)
settings = {"num_draws": 300, "thin": 10, "burn_in": 1000, "num_chains": CHAINS, "mesh": mesh}
settings |= {"checkpoint": os.environ.get("CHECKPOINT"), "progress": False}
run = isotherm.sample(jax.random.key(0), sampler, jnp.zeros(3), batches, **settings)
if jax.process_index() == 0:
    print(f"{jax.device_count()} devices, {jax.process_count()} processes")
    print(run.summary())
