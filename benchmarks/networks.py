"""Cost over SGD: one step of a sampler over one step of SGD with momentum, same model, same batch.

Logistic regression on a9a and three networks on MNIST-shaped noise, batches of 100. Each contestant
in JAX is one compiled scan. All run in one process in turns: in every round each makes one compiled
run, in rotated order, and its time is divided by that of SGD in the same round. The contestants in
PyTorch run in the same rounds. `--only NAME` runs one target. Each target is written to
`docs/results/networks_speed.json`, with a figure, as soon as it is measured. The cost of a balanced
step is its time over that of the plain step with the same noise, in the same round.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import networks_torch
import numpy as np
import optax
import torch
from accuracy import HMC_STEPS
from ess import log_prior, real_rows
from networks_report import price, print_table, row, write
from reporting import machine, rotated
from rich.progress import track

import isotherm
from isotherm import random
from isotherm.data.registry import DataNotFoundError
from isotherm.gradients.minibatch import MinibatchGradient
from isotherm.models import logistic
from isotherm.models.networks import Network, lenet, mlp

BATCH, H, D = 100, 1e-5, 10.0
SGD = "optax SGD, momentum"
A9A_ROWS, IMAGES = 32_561, 6000
ROUNDS, FEW_ROUNDS = 9, 2


@dataclass(frozen=True)
class Target:
    """A log posterior and an initial position."""

    position: Any
    grad_fn: MinibatchGradient
    data: tuple[np.ndarray, np.ndarray]
    data_size: int
    """N; may be larger than the number of rows in `data`."""
    prior_variance: float


def regression() -> Target:
    """Build logistic regression on a9a, dense, with an intercept."""
    try:
        data = real_rows(A9A_ROWS)
    except DataNotFoundError:
        data = noise(A9A_ROWS, 124, 2)
    grad_fn = isotherm.minibatch_gradient(logistic.log_likelihood, log_prior, A9A_ROWS)
    return Target(jnp.zeros(124), grad_fn, data, A9A_ROWS, 10.0)


def classifier(network: Network) -> Target:
    """Build the target of a network on images of noise."""
    position = network.init(jax.random.key(1))
    return Target(position, network.gradient(60_000), noise(IMAGES, 784, 10), 60_000, 1.0)


def noise(rows: int, columns: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of noise; the speed does not depend on the values."""
    rng = np.random.default_rng(0)
    return rng.random((rows, columns), np.float32), rng.integers(0, classes, rows).astype(np.int32)


TARGETS: dict[str, tuple[Callable[[], Target], int, int]] = {
    networks_torch.LOGISTIC: (regression, 5000, 200),
    "784-100-100-10": (lambda: classifier(mlp((784, 100, 100, 10))), 300, 100),
    "784-400-400-10": (lambda: classifier(mlp((784, 400, 400, 10))), 100, 30),
    "LeNet": (lambda: classifier(lenet()), 10, 10),
}
"""Functions that build the targets, and gradients per run in JAX and in PyTorch."""


class Contestant(NamedTuple):
    """A compiled run of some steps."""

    run: Callable[[], Any]
    """Returns the final state."""
    steps: int
    gradients: int = 1
    """Number of gradients per step."""
    memory: int | None = None
    """Bytes of temporary memory and state."""


def scanned(step: Callable, state, batches, steps: int, gradients: int = 1, options=None):
    """Compile a scan of steps `(state, batch, key) -> state`, with batches drawn inside."""
    key = jax.random.key(0)

    def chain(state, batches):
        def body(state, t):
            new = step(state, batches.batch(key, t), random.fold(key, t))
            return jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), new, state), None

        return jax.lax.scan(body, state, jnp.arange(steps))[0]

    return compiled(chain, state, batches, steps, gradients, options)


def sampled(sampler: isotherm.Sampler, position, batches, steps: int) -> Contestant:
    """Compile `isotherm.run_chain`, from a position to the state after the last step."""

    def chain(position, batches):
        return isotherm.run_chain(
            jax.random.key(0), sampler, position, batches, num_draws=1, thin=steps
        )[1]

    return compiled(chain, position, batches, steps, 1, isotherm.loop.compiler_options())


def compiled(chain: Callable, state, batches, steps: int, gradients: int, options) -> Contestant:
    """Compile `(state, batches) -> state`, and read its memory from the compiler."""
    program = jax.jit(chain, compiler_options=options).lower(state, batches).compile()
    memory = program.memory_analysis()
    size = None if memory is None else memory.temp_size_in_bytes + memory.output_size_in_bytes
    return Contestant(
        lambda: jax.block_until_ready(program(state, batches)), steps, gradients, size
    )


def in_jax(target: Target, steps: int) -> dict[str, Contestant]:
    """Build the contestants in JAX; all use the same gradient function."""
    position, grad_fn = target.position, target.grad_fn
    batches = isotherm.independent_batches(jax.tree.map(jnp.asarray, target.data), BATCH)
    optimizer = optax.sgd(1e-9, momentum=0.9)

    def sgd(state, batch, key):
        position, optimizer_state = state
        grads = jax.tree.map(jnp.negative, grad_fn(position, batch))
        updates, optimizer_state = optimizer.update(grads, optimizer_state)
        return optax.apply_updates(position, updates), optimizer_state

    start = (position, optimizer.init(position))
    wide = isotherm.loop.compiler_options()
    contestants = {
        SGD: scanned(sgd, start, batches, steps),
        f"{SGD}, widest vectors": scanned(sgd, start, batches, steps, options=wide),
    }
    balanced = isotherm.balanced(grad_fn)
    for kind in ("three-point", "gaussian"):
        samplers = {
            "mSGNHT-S": isotherm.msgnht(grad_fn, H, D, noise=kind),
            "mSGNHT-S, balanced": isotherm.msgnht(balanced, H, D, noise=kind),
            "SGHMC, balanced": isotherm.sghmc(balanced, H, D, noise=kind),
            "mSGNHT-E": isotherm.msgnht(grad_fn, H, D, integrator="euler", noise=kind),
            "SGHMC (ABOBA)": isotherm.sghmc(grad_fn, H, D, noise=kind),
            "SGLD": isotherm.sgld(grad_fn, H**2 / 2, noise=kind),
        }
        for name, sampler in samplers.items():
            contestants[f"isotherm {name}, {kind}"] = sampled(sampler, position, batches, steps)
    thermostat = blackjax.sgnht(grad_fn, D)
    peers = {
        "blackjax.sgld": (blackjax.sgld(grad_fn), position, H**2 / 2, 1),
        f"blackjax.sghmc, {HMC_STEPS} gradients a step": (
            blackjax.sghmc(grad_fn, HMC_STEPS, D),
            position,
            H,
            HMC_STEPS,
        ),
        "blackjax.sgnht": (thermostat, thermostat.init(position, jax.random.key(2), D), H, 1),
    }
    for name, (peer, state, h, gradients) in peers.items():
        contestants[name] = scanned(
            lambda state, batch, key, peer=peer, h=h: peer.step(key, state, batch, h),
            jax.tree.map(jnp.asarray, state),
            batches,
            max(1, steps // gradients),
            gradients,
        )
    return contestants


def in_torch(name: str, target: Target, steps: int) -> dict[str, Contestant]:
    """Build the contestants in PyTorch, with one thread per core."""
    runs = networks_torch.contestants(
        name, target.data, BATCH, target.data_size, target.prior_variance, H, D
    )
    return {who: Contestant(lambda run=run: run(steps), steps) for who, run in runs.items()}


def is_finite(tree: Any) -> bool:
    """Return whether all arrays are finite."""
    leaves = [np.asarray(x.detach() if hasattr(x, "detach") else x) for x in jax.tree.leaves(tree)]
    return all(np.isfinite(leaf).all() for leaf in leaves)


def contest(name: str, quick: bool) -> list[dict]:
    """Run all contestants of one target in turns; return their rows."""
    make, *steps = TARGETS[name]
    target = make()
    ours, theirs = (max(1, number // 10) if quick else number for number in steps)
    everyone = in_jax(target, ours) | in_torch(name, target, theirs)
    for who, contestant in everyone.items():
        if not is_finite(contestant.run()):
            raise RuntimeError(f"{who} diverged on {name}.")
    seconds: dict[str, list[float]] = {who: [] for who in everyone}
    for r in track(range(FEW_ROUNDS if quick else ROUNDS), description=name):
        for who in rotated(list(everyone), r):
            began = time.perf_counter()
            everyone[who].run()
            seconds[who].append((time.perf_counter() - began) / everyone[who].steps)
    size = sum(leaf.size * 4 for leaf in jax.tree.leaves(target.position))
    return [
        row(name, who, seconds[who], seconds[SGD], c.gradients, c.memory and c.memory / size)
        | price(who, seconds)
        for who, c in everyone.items()
    ]


def main() -> None:
    """Measure all targets, or those named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short check that writes nothing")
    parser.add_argument("--only", action="append", choices=[*TARGETS], help="one of the targets")
    options = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    for name in options.only or TARGETS:
        where = machine()
        rows = contest(name, options.quick)
        print_table(rows)
        if not options.quick:
            where["load_average_after"] = os.getloadavg()[0]
            write(rows, where, [*TARGETS])


if __name__ == "__main__":
    main()
