"""Gradient noise of five structures: errors of moments after the same number of gradients.

Three targets with exact moments (`noise_problems.py`), each with five data sets whose minibatches
make isotropic, anisotropic, correlated, position-dependent or heavy-tailed noise. All methods start
at the mean, use the same number of gradients per chain with batches of the same rows (independent,
except for symmetric sweeps), and discard the first fifth. Step size and friction (the diffusion of
a thermostat) are those with the smallest error of the variances in a pilot run with another seed
and other chains; pSGLD has no friction and twice as many step sizes. A balanced gradient and one
with control variates count as one gradient; the processor time of each is in the results.

The chains of posteriors run as one tensor, with a log posterior that is a sum over chains; those of
its `sgnht`, whose thermostat is a mean over the tensor, in `torch.vmap`. Chains with different
noise and settings run side by side in one program. A run writes `docs/results/noise.json` and
`noise.png`; with `--cache FOLDER` finished methods are kept there, so that an interrupted run
continues. Remove the folder after a change of the code.
"""

import argparse
import json
import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from accuracy import HMC_STEPS, IN_TORCH, blackjax_sghmc, blackjax_sgnht
from noise_problems import BATCH_SIZE, DIM, NOISES, NUM_ROWS, TARGETS, Target, log_likelihood
from noise_report import MEAN, VARIANCE, best, moments, plot, prices, scores, table
from reporting import RESULTS, machine, write_document
from rich.progress import track

import isotherm

STEPS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
FRICTIONS = (1.0, 10.0)
PSGLD_STEPS = tuple(0.0005 * 2**k for k in range(len(STEPS) * len(FRICTIONS)))
PILOT_CHAINS = 4
"""Chains per setting in the pilot; the final run has as many chains as the pilot in all."""
NUM_GRADIENTS = 10_000
THIN = 10


@dataclass(frozen=True)
class Problem:
    """A target with one kind of noise and one setting, as a method sees it."""

    target: Target
    grad_fn: Any
    rows: jax.Array
    friction: Any
    num_steps: int

    @property
    def coordinates(self) -> isotherm.coordinates.Dense:
        """Natural coordinates: the eigenbasis of the exact covariance."""
        like = jnp.zeros(DIM)
        return isotherm.coordinates.eigenbasis(np.linalg.inv(self.target.covariance), like)

    @property
    def controlled(self) -> Any:
        """The gradient with control variates at a mode."""
        mode = jnp.asarray(self.target.mode, jnp.float32)
        return isotherm.control_variates(self.grad_fn, mode, self.rows)


def thermostat(grad_fn: Callable[[Problem], Any], problem: Problem, h: Any) -> isotherm.Sampler:
    """Build mSGNHT-S with a gradient made from that of the problem."""
    return isotherm.msgnht(grad_fn(problem), h, problem.friction)


def natural(problem: Problem, h: Any) -> isotherm.Sampler:
    """Build mSGNHT-S in natural coordinates."""
    coordinates = problem.coordinates
    return isotherm.msgnht(problem.grad_fn, h, problem.friction, coordinates=coordinates)


SYMMETRIC = "symmetric sweeps SGHMC"
IN_JAX: dict[str, Callable[[Any, Any], isotherm.Sampler]] = {
    "mSGNHT-S": partial(thermostat, lambda problem: problem.grad_fn),
    "mSGNHT-S, natural": natural,
    "balanced": partial(thermostat, lambda problem: isotherm.balanced(problem.grad_fn)),
    "balanced SGHMC": lambda problem, h: isotherm.sghmc(
        isotherm.balanced(problem.grad_fn), h, problem.friction
    ),
    "control variates": partial(thermostat, lambda problem: problem.controlled),
    "control variates, balanced": partial(
        thermostat, lambda problem: isotherm.balanced(problem.controlled)
    ),
    SYMMETRIC: lambda problem, h: isotherm.sghmc(problem.grad_fn, h, problem.friction),
    "pSGLD": lambda problem, h: isotherm.psgld(
        problem.grad_fn, h, freeze_after=problem.num_steps // 5
    ),
    "blackjax.sghmc": blackjax_sghmc,
    "blackjax.sgnht": blackjax_sgnht,
}
METHODS = (*IN_JAX, "posteriors sghmc", "posteriors sgnht", "posteriors baoa")


def settings(method: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the step sizes and frictions of the grid of a method, one of each per setting."""
    if method == "pSGLD":
        return np.array(PSGLD_STEPS), np.ones(len(PSGLD_STEPS))
    pairs = np.meshgrid(STEPS, FRICTIONS, indexing="ij")
    return pairs[0].ravel(), pairs[1].ravel()


def program_in_jax(method: str, target: Target, num_gradients: int) -> Callable:
    """Return `(seed, steps, frictions) -> draws` for arrays (noise, chain), compiled once."""
    per_call = HMC_STEPS if method == "blackjax.sghmc" else 1
    calls, thin = num_gradients // per_call, THIN // per_call
    burn_in = calls // 5
    policy = isotherm.symmetric_batches if method == SYMMETRIC else isotherm.independent_batches
    root = jnp.asarray(target.root, jnp.float32)
    data = [make(target) for make in NOISES.values()]
    rows = jnp.asarray(np.stack([one.coefficients for one in data]), jnp.float32)
    axes = jnp.asarray(np.stack([one.axes for one in data]), jnp.float32)

    def chain(rows, axes, key, h, friction):
        grad_fn = isotherm.minibatch_gradient(
            lambda x, batch: log_likelihood(jnp, target, root, axes, x, batch),
            lambda x: jnp.zeros(()),
            NUM_ROWS,
        )
        sampler = IN_JAX[method](Problem(target, grad_fn, rows, friction, num_gradients), h)
        return isotherm.run_chain(
            key,
            sampler,
            jnp.zeros(DIM),
            policy(rows, BATCH_SIZE),
            num_draws=(calls - burn_in) // thin,
            thin=thin,
            burn_in=burn_in,
        )[0]

    over_chains = jax.vmap(chain, (None, None, 0, 0, 0))
    compiled = jax.jit(jax.vmap(over_chains))

    def run(seed: int, steps: np.ndarray, frictions: np.ndarray) -> np.ndarray:
        keys = jax.random.split(jax.random.key(seed), steps.shape)
        settings = (jnp.asarray(steps, jnp.float32), jnp.asarray(frictions, jnp.float32))
        return np.asarray(compiled(rows, axes, keys, *settings))

    return run


def program_in_torch(method: str, target: Target, num_gradients: int) -> Callable:
    """Return `(seed, steps, frictions) -> draws` for arrays (noise, chain)."""
    data = [make(target) for make in NOISES.values()]
    rows = torch.tensor(np.stack([one.coefficients for one in data]), dtype=torch.float32)
    root = torch.tensor(target.root, dtype=torch.float32)

    def log_posterior(x, batch):  # a sum over chains: each has the gradient of its own term
        rows, axes = batch
        fit = log_likelihood(torch, target, root, axes, x, rows).mean(-1) * NUM_ROWS
        return fit.sum(), torch.empty(0)

    def run(seed: int, steps: np.ndarray, frictions: np.ndarray) -> np.ndarray:
        torch.manual_seed(seed)
        chains = steps.shape[1]
        kinds = torch.arange(len(data)).repeat_interleave(chains)[:, None]
        axes = torch.tensor(np.stack([one.axes for one in data]), dtype=torch.float32)[kinds[:, 0]]
        h, alpha = (torch.tensor(a.ravel(), dtype=torch.float32) for a in (steps, frictions))
        start = torch.zeros(steps.size, DIM)
        make = IN_TORCH[method]
        if method == "posteriors sgnht":
            together = partial(torch.vmap, randomness="different")
            begin, _, more = make(log_posterior, FRICTIONS[0])  # the thermostat must be a number
            state = together(lambda x: begin(x, **more))(start)

            def one(state, batch, h, friction):
                return make(log_posterior, friction)[1](state, batch, lr=h)[0]

            advance = together(one)
        else:
            h, alpha = h[:, None], alpha[:, None]
            begin, update, more = make(log_posterior, alpha)
            state = begin(start, **more)

            def advance(state, batch, h, friction):
                return update(state, batch, lr=h)[0]

        kept = []
        for t in range(num_gradients):
            chosen = rows[kinds, torch.randint(NUM_ROWS, (steps.size, BATCH_SIZE))]
            state = advance(state, (chosen, axes), h, alpha)
            if t >= num_gradients // 5 and t % THIN == THIN - 1:
                kept.append(state.params.detach().numpy().copy())
        return np.stack(kept, 1).reshape(*steps.shape, len(kept), DIM)

    return run


def measure(title: str, method: str, num_gradients: int) -> list[dict]:
    """Choose the setting of a method for every noise in a pilot, and return its final errors."""
    target = TARGETS[title]()
    make = program_in_jax if method in IN_JAX else program_in_torch
    run = make(method, target, num_gradients)
    grid = settings(method)
    seed = zlib.crc32(f"{title}, {method}".encode()) // 2
    shape = (len(NOISES), grid[0].size * PILOT_CHAINS)
    pilot = run(seed, *(np.broadcast_to(np.repeat(a, PILOT_CHAINS), shape) for a in grid))
    chosen = []
    for draws in pilot:
        errors = moments(target.standardize(draws))[1]
        choice = best(errors.reshape(grid[0].size, PILOT_CHAINS, DIM))
        chosen.append(0 if choice is None else choice)  # all diverge: the shortest step
    steps, frictions = (a[chosen] for a in grid)
    began = time.process_time()
    final = run(seed + 1, *(np.broadcast_to(a[:, None], shape) for a in (steps, frictions)))
    price = (time.process_time() - began) / (final.shape[0] * final.shape[1] * num_gradients)
    points = []
    for noise, draws, h, friction in zip(NOISES, final, steps, frictions, strict=True):
        place = {"target": title, "noise": noise, "method": method, "step size": float(h)}
        if method != "pSGLD":
            place["friction"] = float(friction)
        found = scores(target.standardize(draws))
        points.append(place | found | {"CPU µs per gradient": 1e6 * price})
    return points


def cached(cache: Path | None, title: str, method: str, num_gradients: int) -> list[dict]:
    """Return the result of `measure`, from the folder if it is there."""
    if cache is None:
        return measure(title, method, num_gradients)
    path = cache / f"{title}, {method}, {num_gradients}.json"
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    points = measure(title, method, num_gradients)
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(points), encoding="utf-8")
    unfinished.replace(path)
    return points


def main() -> None:
    """Run all methods on all targets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", help="starts of their names; all by default")
    parser.add_argument("--quick", action="store_true", help="few gradients; writes nothing")
    parser.add_argument("--cache", type=Path, help="folder of finished methods, to continue a run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "To copy construct from a tensor")  # a friction per chain
    where = machine()
    num_gradients = NUM_GRADIENTS // 100 if options.quick else NUM_GRADIENTS
    wanted = [m for m in METHODS if not options.methods or m.startswith(tuple(options.methods))]
    points = []
    for title in TARGETS:
        for method in track(wanted, description=title):
            points += cached(options.cache, title, method, num_gradients)
    points.sort(key=lambda p: ([*TARGETS].index(p["target"]), [*NOISES].index(p["noise"])))
    rows = [*table(points, VARIANCE), *table(points, MEAN), *prices(points)]
    for row in rows:
        print(*row.values(), sep=" | ")
    if not options.quick and len(wanted) == len(METHODS):
        shared = {
            "gradients per chain": num_gradients,
            "chains": len(STEPS) * len(FRICTIONS) * PILOT_CHAINS,
        }
        document = {"machine": where, "settings": shared, "rows": rows, "points": points}
        write_document(RESULTS / "noise.json", document)
        plot(points, RESULTS / "noise.png")


if __name__ == "__main__":
    main()
