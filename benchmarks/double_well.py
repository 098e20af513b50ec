"""Steps per second of one chain of a thermostat on the double well: isotherm and other libraries.

All contestants run in this process in turns: in every round each makes one compiled run, in rotated
order, and its draws are scored against the exact density. A full run writes
`docs/results/double_well_speed.json` and a figure.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import torch
from reporting import machine, print_table, rotated, write_results

import isotherm
from isotherm import random
from isotherm.diagnostics.grid import grid_density, total_variation

with warnings.catch_warnings():  # importing it warns about tensordict dozens of times
    warnings.simplefilter("ignore", FutureWarning)
    import posteriors

H, THIN = 0.1, 10
ENOUGH = 10**6
"""Smallest number of steps, over all rounds, for which draws are scored."""
GRID = np.linspace(-6.0, 6.0, 121)
CELL = GRID[1] - GRID[0]
NOISY, EXACT = "noisy gradient", "exact gradient"
"""Gradient noise B = 1 and D = 0, or an exact gradient and D = 1."""


def potential(x):
    """Return U of the double well, for arrays of any library."""
    return (x + 4) * (x + 1) * (x - 1) * (x - 3) / 14 + 0.5


def exact_density() -> np.ndarray:
    """Return the exact density, averaged over each cell of the grid."""
    inside = np.linspace(-CELL / 2, CELL / 2, 51)
    density = np.exp(-potential(GRID[:, None] + inside)).mean(1)
    return density / (density.sum() * CELL)


def exact_moments() -> dict[str, float]:
    """Return the mean and the variance of the target by quadrature."""
    x = np.linspace(-8, 8, 100_001)
    mass = np.exp(-potential(x))
    mean = np.average(x, weights=mass)
    return {"mean": float(mean), "variance": float(np.average((x - mean) ** 2, weights=mass))}


def gradient(setting: str, noise: random.Noise):
    """Build the gradient of log pi; its noise N(0, 2B/h) is drawn with the batch, a key."""
    slope = jax.grad(potential)
    if setting == EXACT:
        return lambda x, batch: -slope(x)
    return lambda x, batch: -slope(x) + np.sqrt(2 / H) * noise(batch, x)


def isotherm_sample(setting: str, integrator: str, noise: str):
    """Use `isotherm.sample`, the public loop, including batches, noise, statistics and draws."""
    sampler = isotherm.msgnht(
        gradient(setting, random.as_noise(noise)),
        step_size=H,
        diffusion=0.0 if setting == NOISY else 1.0,
        integrator=integrator,
        initial_thermostat=1.0,
        noise=noise,
    )
    batches = isotherm.generated_batches(lambda key, step: key)

    def run(seed: int, steps: int) -> np.ndarray:
        key, start, n = jax.random.key(seed), jnp.zeros(()), steps // THIN
        return isotherm.sample(key, sampler, start, batches, num_draws=n, thin=THIN).draws[0]

    return run


def bare_scan(integrator: str):
    """Write the recursion by hand in a `lax.scan`, with normal numbers for 1000 steps at a time."""
    slope, sigma = jax.grad(potential), np.sqrt(2 * H)

    def aboba(state, r):
        x, p, xi = state
        x, xi = x + p * H / 2, xi + (p * p - 1) * H / 2
        damp = jnp.exp(-xi * H / 2)
        p = damp * (damp * p - slope(x) * H + sigma * r)
        x, xi = x + p * H / 2, xi + (p * p - 1) * H / 2
        return (x, p, xi), x

    def euler(state, r):
        x, p, xi = state
        x = x + p * H
        p = p - slope(x) * H - xi * p * H + sigma * r
        return (x, p, xi + (p * p - 1) * H), x

    step = {"ABOBA": aboba, "euler": euler}[integrator]

    @jax.jit
    def chain(keys):
        def block(state, key):
            return jax.lax.scan(step, state, jax.random.normal(key, (1000,)))

        start = (jnp.zeros(()), jax.random.normal(keys[0]), jnp.ones(()))
        return jax.lax.scan(block, start, keys[1:])[1]

    def run(seed: int, steps: int) -> np.ndarray:
        keys = jax.random.split(jax.random.key(seed), steps // 1000 + 1)
        return np.asarray(chain(keys)).ravel()[::THIN]

    return run


def blackjax_sgnht(setting: str, scan: bool):
    """Use `blackjax.sgnht`: a jitted step in a Python loop (as in its docs), or one scan."""
    alpha = 0.0 if setting == NOISY else 1.0
    algorithm = blackjax.sgnht(gradient(setting, random.gaussian), alpha)
    step = jax.jit(algorithm.step)

    def begin(seed: int, steps: int):
        first, second, third = jax.random.split(jax.random.key(seed), 3)
        state = jax.tree.map(jnp.asarray, algorithm.init(jnp.zeros(()), first, 1.0))
        return state, jax.random.split(second, steps), jax.random.split(third, steps)

    def run_loop(seed: int, steps: int) -> np.ndarray:
        state, keys, batches = begin(seed, steps)
        draws = []
        for key, batch in zip(keys, batches, strict=True):
            state = step(key, state, batch, H)
            draws.append(state.position)
        return np.array(draws[::THIN])

    @jax.jit
    def chain(state, keys, batches):
        def body(state, each):
            state = algorithm.step(each[0], state, each[1], H)
            return state, state.position

        return jax.lax.scan(body, state, (keys, batches))[1]

    def run_scan(seed: int, steps: int) -> np.ndarray:
        return np.asarray(chain(*begin(seed, steps)))[::THIN]

    return run_scan if scan else run_loop


def posteriors_sgnht(threads: int):
    """Loop over updates of `posteriors.sgmcmc.sgnht` (as in its docs).

    A batch is a random slope of the potential: the gradient noise.
    """

    def log_posterior(x, batch):
        return -potential(x) + np.sqrt(2 / H) * batch * x, torch.tensor([])

    transform = posteriors.sgmcmc.sgnht.build(log_posterior, lr=H, alpha=0.0, xi=1.0)

    def run(seed: int, steps: int) -> np.ndarray:
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        state, draws = transform.init(torch.zeros(())), []
        for batch in torch.randn(steps):
            state, _ = transform.update(state, batch)
            draws.append(state.params)
        return torch.stack(draws[::THIN]).numpy()

    return run


@dataclass
class Contestant:
    """A way to run the chain, and its measurements."""

    name: str
    setting: str
    steps: int
    run: Callable[[int, int], np.ndarray]
    """`(seed, steps) -> draws`, one in `THIN` steps, in host memory."""
    rates: list[float] = field(default_factory=list)
    draws: list[np.ndarray] = field(default_factory=list)

    def measure(self, seed: int) -> None:
        """Time one run."""
        start = time.perf_counter()
        draws = self.run(seed, self.steps)
        self.rates.append(self.steps / (time.perf_counter() - start))
        self.draws.append(draws)

    def result(self) -> dict:
        """Return the speed and, after enough steps, scores with standard errors over rounds."""
        rates, rounds = self.rates, len(self.rates)
        row = {"name": self.name, "setting": self.setting, "steps": self.steps, "rounds": rounds}
        row |= {"median": statistics.median(rates), "min": min(rates), "max": max(rates)}
        row |= {"rates": rates, "diverged": not np.isfinite(np.concatenate(self.draws)).all()}
        if row["diverged"] or self.steps * rounds < ENOUGH:
            return row
        for name, function in (("mean", np.mean), ("variance", np.var)):
            values = [float(function(draws, dtype=np.float64)) for draws in self.draws]
            row[name] = statistics.mean(values)
            row[f"{name}_error"] = statistics.stdev(values) / rounds**0.5
        density = np.mean([grid_density(draws, GRID) for draws in self.draws], axis=0)
        row["total_variation"] = total_variation(density, exact_density(), CELL)
        return row


def contestants(scale: int) -> list[Contestant]:
    """Return all contestants, with their number of steps per round divided by `scale`."""
    long, middle, short, shorter = (n // scale for n in (10**7, 10**6, 20_000, 2_000))
    everyone = []
    for setting, words in ((NOISY, ("ABOBA", "euler")), (EXACT, ("ABOBA",))):
        for noise in ("gaussian", "three-point"):
            for word in words:
                run = isotherm_sample(setting, word, noise)
                everyone.append(Contestant(f"isotherm.sample {word}, {noise}", setting, long, run))
        run = blackjax_sgnht(setting, scan=True)
        everyone.append(Contestant("blackjax.sgnht, one scan", setting, middle, run))
    run = blackjax_sgnht(NOISY, scan=False)
    everyone.append(Contestant("blackjax.sgnht, jitted step", NOISY, short, run))
    for threads in sorted({1, torch.get_num_threads()}):
        name = f"posteriors sgnht, {threads} thread{'s' * (threads > 1)}"
        everyone.append(Contestant(name, NOISY, shorter, posteriors_sgnht(threads)))
    for word in ("ABOBA", "euler"):
        everyone.append(Contestant(f"hand-written scan {word}", NOISY, long, bare_scan(word)))
    return everyone


def main() -> None:
    """Measure all contestants in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short check that writes nothing")
    quick = parser.parse_args().quick
    where, everyone = machine(), contestants(10 if quick else 1)
    for contestant in everyone:
        contestant.run(0, contestant.steps)  # compiles
    for r in range(2 if quick else 7):
        for contestant in rotated(everyone, r):
            contestant.measure(seed=r + 1)
    rows = [contestant.result() for contestant in everyone]
    print_table(rows, exact_moments())
    if not quick:
        write_results(rows, exact_moments(), where)


if __name__ == "__main__":
    main()
