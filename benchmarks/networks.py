"""The price of SGD: one step of a thermostat over one step of SGD with momentum, same network, same batch.

Three networks on MNIST-shaped noise, batches of 100. Contestants in JAX run in one process and one
compiled scan each, interleaved: in every round each makes one warm run, in rotated order, and is divided
by the SGD of the same round. The peers in PyTorch follow in the same rounds. The full run writes
`docs/results/networks_speed.json`.
"""

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from reporting import machine
from rich.console import Console
from rich.table import Table

import isotherm
from isotherm import random
from isotherm.models.networks import Network, lenet, mlp

with warnings.catch_warnings():  # its import warns about tensordict, dozens of times
    warnings.simplefilter("ignore", FutureWarning)
    import posteriors

RESULT = Path(__file__).parents[1] / "docs" / "results" / "networks_speed.json"
ROWS, BATCH, H, D = 6000, 100, 1e-5, 10.0
NETWORKS = {
    "784-100-100-10": (lambda: mlp((784, 100, 100, 10)), 300),
    "784-400-400-10": (lambda: mlp((784, 400, 400, 10)), 100),
    "LeNet": (lenet, 10),
}
SGD = "optax SGD, momentum"


def data() -> tuple[np.ndarray, np.ndarray]:
    """Make images of noise: speed does not depend on what is on them."""
    rng = np.random.default_rng(0)
    return rng.random((ROWS, 784), np.float32), rng.integers(0, 10, ROWS).astype(np.int32)


def scanned(step: Callable, state, steps: int, options: dict | None = None):
    """Compile a scan of steps `(state, batch, key) -> state`; batches are drawn inside."""
    key = jax.random.key(0)

    def chain(state, batches):
        def body(state, t):
            return step(state, batches.batch(key, t), random.fold(key, t)), None

        return jax.lax.scan(body, state, jnp.arange(steps))[0]

    return timed(chain, state, steps, options)


def sampled(sampler: isotherm.Sampler, position, steps: int):
    """Compile isotherm's own loop, from a position to the state after the last step."""

    def chain(position, batches):
        return isotherm.chain(
            jax.random.key(0), sampler, position, batches, num_draws=1, thin=steps
        )[1]

    return timed(chain, position, steps, isotherm.compiler_options())


def timed(chain: Callable, state, steps: int, options: dict | None = None):
    """Compile `(state, batches) -> state`; give the seconds per step, and the memory it wants."""
    batches = isotherm.independent_batches(data(), BATCH)
    compiled = jax.jit(chain, compiler_options=options).lower(state, batches).compile()
    memory = compiled.memory_analysis()
    copies = None if memory is None else (memory.temp_size_in_bytes, memory.output_size_in_bytes)

    def run() -> float:
        start = time.perf_counter()
        jax.block_until_ready(compiled(state, batches))
        return (time.perf_counter() - start) / steps

    return run, copies


def in_jax(network: Network, steps: int) -> dict[str, tuple[Callable[[], float], tuple | None]]:
    """Build what runs in JAX."""
    position, grad_fn = network.init(jax.random.key(1)), network.gradient(60_000)
    optimizer = optax.sgd(1e-9, momentum=0.9)

    def sgd(state, batch, key):
        position, memory = state
        grads = jax.tree.map(jnp.negative, grad_fn(position, batch))
        updates, memory = optimizer.update(grads, memory)
        return optax.apply_updates(position, updates), memory

    found = {SGD: scanned(sgd, (position, optimizer.init(position)), steps)}
    found[f"{SGD}, widest vectors"] = scanned(
        sgd, (position, optimizer.init(position)), steps, isotherm.compiler_options()
    )
    for noise in ("three-point", "gaussian"):
        for word, name in (("ABOBA", "mSGNHT-S"), ("euler", "mSGNHT-E")):
            sampler = isotherm.msgnht(grad_fn, H, D, integrator=word, noise=noise)
            found[f"isotherm {name}, {noise}"] = sampled(sampler, position, steps)
    peer = blackjax.sgnht(grad_fn, D)
    state = jax.tree.map(jnp.asarray, peer.init(position, jax.random.key(2), D))
    found["blackjax.sgnht"] = scanned(
        lambda s, batch, key: jax.tree.map(
            lambda new, old: new.astype(old.dtype), peer.step(key, s, batch, H), s
        ),
        state,
        steps,
    )
    return found


def torch_network(name: str) -> torch.nn.Module:
    """Build the same network in PyTorch."""
    nn = torch.nn
    if name == "LeNet":
        return nn.Sequential(
            nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5),
            nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(),
            nn.Linear(200, 10),
        )  # fmt: skip
    sizes = [int(word) for word in name.split("-")]
    layers: list[torch.nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def in_torch(name: str, steps: int) -> dict[str, tuple[Callable[[], float], tuple | None]]:
    """Build what runs in PyTorch, on as many threads as there are cores."""
    x, y = (torch.from_numpy(part) for part in data())
    y = y.long()
    module = torch_network(name)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-6, momentum=0.9)
    loss = torch.nn.functional.cross_entropy

    def sgd() -> float:
        start = time.perf_counter()
        for _ in range(steps):
            rows = torch.randint(ROWS, (BATCH,))
            optimizer.zero_grad()
            loss(module(x[rows]), y[rows]).backward()
            optimizer.step()
        return (time.perf_counter() - start) / steps

    parameters = dict(module.named_parameters())
    call = torch.func.functional_call

    def log_posterior(params, batch):
        prior = -0.5 * sum((value**2).sum() for value in params.values())
        outputs = call(module, params, (batch[0],))
        return prior - 60_000 * loss(outputs, batch[1]), torch.tensor([])

    transform = posteriors.sgmcmc.sgnht.build(log_posterior, lr=H, alpha=D)
    start_state = transform.init({k: v.detach().clone() for k, v in parameters.items()})

    def sgnht() -> float:
        state, start = start_state, time.perf_counter()
        for _ in range(steps):
            rows = torch.randint(ROWS, (BATCH,))
            state, _ = transform.update(state, (x[rows], y[rows]))
        return (time.perf_counter() - start) / steps

    return {"PyTorch SGD, momentum": (sgd, None), "posteriors sgnht": (sgnht, None)}


def contest(name: str, rounds: int) -> list[dict]:
    """Run all contestants of one network, interleaved."""
    make, steps = NETWORKS[name]
    network = make()
    size = sum(leaf.size * 4 for leaf in jax.tree.leaves(network.init(jax.random.key(0))))
    everyone = in_jax(network, steps) | in_torch(name, steps)
    for run, _ in everyone.values():
        run()
    seconds: dict[str, list[float]] = {who: [] for who in everyone}
    names = list(everyone)
    for r in range(rounds):
        for who in names[r % len(names) :] + names[: r % len(names)]:
            seconds[who].append(everyone[who][0]())
    rows = []
    for who in names:
        over = [a / b for a, b in zip(seconds[who], seconds[SGD], strict=True)]
        memory = everyone[who][1]
        rows.append(
            {
                "network": name,
                "contestant": who,
                "ms per step, fastest": round(1e3 * min(seconds[who]), 3),
                "over SGD, median of rounds": round(statistics.median(over), 3),
                "over SGD, fastest over fastest": round(min(seconds[who]) / min(seconds[SGD]), 3),
                "scratch and state, in copies of the weights": memory
                and round(sum(memory) / size, 2),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short check that writes nothing")
    quick = parser.parse_args().quick
    where = machine()
    torch.set_num_threads(os.cpu_count() or 1)
    rows = [row for name in NETWORKS for row in contest(name, 2 if quick else 9)]
    table = Table(*rows[0], title="time per step, batches of 100")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console(width=160).print(table)
    if not quick:
        RESULT.write_text(json.dumps({"machine": where, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
