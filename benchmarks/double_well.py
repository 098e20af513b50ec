"""Steps per second of one chain of a thermostat on the double well: isotherm and its peers.

All contestants run in this process, interleaved: in each round every one of them makes one warm
(compiled) run of its own length, in rotated order, and its draws are scored against the exact density.

    python benchmarks/double_well.py [--quick]

The full run rewrites `benchmarks/results/` and the table in `benchmarks/README.md`.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import blackjax
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import isotherm
from isotherm import random
from isotherm.diagnostics.grid import grid_density, total_variation

with warnings.catch_warnings():  # about tensordict, dozens of them
    warnings.simplefilter("ignore", FutureWarning)
    import posteriors

HERE = Path(__file__).parent
H, THIN = 0.1, 10
GRID = np.linspace(-6.0, 6.0, 121)
CELL = GRID[1] - GRID[0]


def potential(x):
    """Give U of the double well; works for NumPy, JAX and PyTorch."""
    return (x + 4) * (x + 1) * (x - 1) * (x - 3) / 14 + 0.5


def exact_density() -> np.ndarray:
    """Average exp(-U) over each cell of the grid."""
    inside = np.linspace(-CELL / 2, CELL / 2, 51)
    density = np.exp(-potential(GRID[:, None] + inside)).mean(1)
    return density / (density.sum() * CELL)


def gradient(noise: random.Noise | None):
    """Estimate grad log pi with noise N(0, 2B/h), B = 1, drawn from the batch, which is a key."""
    slope = jax.grad(potential)
    if noise is None:
        return lambda x, batch: -slope(x)
    return lambda x, batch: -slope(x) + np.sqrt(2 / H) * noise(batch, x)


@dataclass
class Contestant:
    """A way to run the chain, and what was measured."""

    name: str
    setting: str
    steps: int
    run: Callable[[int, int], np.ndarray]
    """`(seed, steps) -> draws`, one in `THIN` steps, as a NumPy array."""
    rates: list[float] = field(default_factory=list)
    moments: list[tuple[float, float]] = field(default_factory=list)
    densities: list[np.ndarray] = field(default_factory=list)

    def play(self, seed: int) -> None:
        """Time one run and score its draws."""
        start = time.perf_counter()
        draws = self.run(seed, self.steps)
        self.rates.append(self.steps / (time.perf_counter() - start))
        draws = draws[np.isfinite(draws)] if np.isfinite(draws).all() else draws[:0]
        if draws.size:
            self.moments.append((float(draws.mean()), float(draws.var())))
            self.densities.append(grid_density(draws, GRID))

    def result(self) -> dict:
        """Collect everything measured; errors are standard errors over rounds."""
        row = {"name": self.name, "setting": self.setting, "steps": self.steps}
        row |= {"rounds": len(self.rates), "median": statistics.median(self.rates)}
        row |= {"min": min(self.rates), "max": max(self.rates)}
        row["diverged_rounds"] = len(self.rates) - len(self.moments)
        if len(self.moments) > 1 and self.steps * len(self.rates) >= 10**6:
            m = np.array(self.moments)
            row["mean"], row["variance"] = m.mean(0).tolist()
            row["mean_error"], row["variance_error"] = (m.std(0, ddof=1) / len(m) ** 0.5).tolist()
            density = np.mean(self.densities, 0)
            row["total_variation"] = total_variation(density, exact_density(), CELL)
        return row


def isotherm_sample(integrator: str, noise: str, noisy: bool):
    """Call `isotherm.sample`, the public loop: batches, noise, statistics and kept draws included."""
    grad_fn = gradient(random.as_noise(noise) if noisy else None)
    diffusion = 0.0 if noisy else 1.0
    sampler = isotherm.msgnht(
        grad_fn, H, diffusion, integrator=integrator, initial_thermostat=1.0, noise=noise
    )
    batches = isotherm.generated_batches(lambda key, step: key) if noisy else isotherm.no_batches()

    def run(seed: int, steps: int) -> np.ndarray:
        key, start = jax.random.key(seed), jnp.zeros(())
        n = steps // THIN
        return isotherm.sample(key, sampler, start, batches, num_draws=n, thin=THIN).draws[0]

    return run


def bare_scan(integrator: str):
    """Write the recursion by hand in a `lax.scan`, noise made 1000 steps at a time, no library."""
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

    def thousand(state, key):
        return jax.lax.scan(step, state, jax.random.normal(key, (1000,)))

    @jax.jit
    def chain(keys):
        start = (jnp.zeros(()), jax.random.normal(keys[0]), jnp.ones(()))
        return jax.lax.scan(thousand, start, keys[1:])[1]

    def run(seed: int, steps: int) -> np.ndarray:
        keys = jax.random.split(jax.random.key(seed), steps // 1000 + 1)
        return np.asarray(chain(keys)).ravel()[::THIN]

    return run


def blackjax_sgnht(noisy: bool, scan: bool):
    """Step `blackjax.sgnht`: a jitted step in a Python loop (its docs), or all in one scan."""
    alpha = 0.0 if noisy else 1.0
    algorithm = blackjax.sgnht(gradient(random.gaussian if noisy else None), alpha)

    def begin(seed: int, steps: int):
        first, second, third = jax.random.split(jax.random.key(seed), 3)
        state = algorithm.init(jnp.zeros(()), first, 1.0)
        keys, batches = jax.random.split(second, steps), jax.random.split(third, steps)
        return jax.tree.map(jnp.asarray, state), keys, batches

    def loop(seed: int, steps: int) -> np.ndarray:
        state, keys, batches = begin(seed, steps)
        draws = []
        for i, (key, batch) in enumerate(zip(keys, batches, strict=True)):
            state = step(key, state, batch, H)
            if i % THIN == THIN - 1:
                draws.append(state.position)
        return np.array(draws)

    @jax.jit
    def chain(state, keys, batches):
        def body(state, each):
            state = algorithm.step(each[0], state, each[1], H)
            return state, state.position

        return jax.lax.scan(body, state, (keys, batches))[1]

    step = jax.jit(algorithm.step)
    return (lambda seed, n: np.asarray(chain(*begin(seed, n)))[::THIN]) if scan else loop


def posteriors_sgnht(threads: int):
    """Loop over `posteriors.sgmcmc.sgnht` updates in Python, as its docs do, with noisy gradients.

    A batch is the normal number by which the log posterior is tilted: same gradient noise.
    """

    def log_posterior(x, batch):
        return -potential(x) + np.sqrt(2 / H) * batch * x, torch.tensor([])

    transform = posteriors.sgmcmc.sgnht.build(log_posterior, lr=H, alpha=0.0, xi=1.0)

    def run(seed: int, steps: int) -> np.ndarray:
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        state, draws = transform.init(torch.zeros(())), []
        for i, batch in enumerate(torch.randn(steps)):
            state, _ = transform.update(state, batch)
            if i % THIN == THIN - 1:
                draws.append(state.params)
        return torch.stack(draws).numpy()

    return run


def contestants(scale: int) -> list[Contestant]:
    """List who takes part, with how many steps per round."""
    noisy, exact = "noisy gradient", "exact gradient"
    long, middle, short, shorter = (n // scale for n in (10**7, 10**6, 20_000, 2_000))
    found = []
    for noise in ("gaussian", "three-point"):
        for word in ("ABOBA", "euler"):
            name = f"isotherm.sample {word}, {noise}"
            found.append(Contestant(name, noisy, long, isotherm_sample(word, noise, True)))
        name = f"isotherm.sample ABOBA, {noise}"
        found.append(Contestant(name, exact, long, isotherm_sample("ABOBA", noise, False)))
    for word in ("ABOBA", "euler"):
        found.append(Contestant(f"hand-written scan {word}", noisy, long, bare_scan(word)))
    scan, loop = "blackjax.sgnht, in a scan", "blackjax.sgnht, jitted step"
    found += [
        Contestant(scan, noisy, middle, blackjax_sgnht(noisy=True, scan=True)),
        Contestant(scan, exact, middle, blackjax_sgnht(noisy=False, scan=True)),
        Contestant(loop, noisy, short, blackjax_sgnht(noisy=True, scan=False)),
    ]
    for threads in sorted({1, torch.get_num_threads()}):
        name = f"posteriors sgnht, {threads} thread{'s' * (threads > 1)}"
        found.append(Contestant(name, noisy, shorter, posteriors_sgnht(threads)))
    return sorted(found, key=lambda c: c.setting, reverse=True)


def machine() -> dict:
    """Describe where and with what this ran."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else []
    model = [line.split(": ")[1] for line in lines if line.startswith("model name")]
    git = ["git", "-C", str(HERE), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    packages = ("isotherm", "jax", "jaxlib", "numpy", "blackjax", "posteriors", "torch")
    return {
        "cpu": model[0] if model else platform.processor(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "date": datetime.date.today().isoformat(),
        "commit": commit or "none yet",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def report(rows: list[dict], ratios: dict[str, float], where: dict) -> None:
    """Write the JSON, the picture, and the table of the README."""
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    everything = {"machine": where, "contestants": rows, "ratios": ratios}
    (results / "double_well.json").write_text(json.dumps(everything, indent=1) + "\n")
    figure, axis = plt.subplots(figsize=(8, 0.4 * len(rows) + 1), layout="constrained")
    middle = [row["median"] for row in rows]
    spread = [[r["median"] - r["min"] for r in rows], [r["max"] - r["median"] for r in rows]]
    colors = ["C0" if row["name"].startswith("isotherm") else "0.7" for row in rows]
    axis.barh([f"{r['name']} ({r['setting']})" for r in rows], middle, color=colors, xerr=spread)
    axis.set(xscale="log", xlabel="steps per second, one chain (median, min to max)")
    axis.invert_yaxis()
    figure.savefig(results / "double_well.png", dpi=120)
    lines = ["| " + " | ".join(COLUMNS) + " |", "| --- | --- |" + " ---: |" * (len(COLUMNS) - 2)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    packages = ", ".join(f"{name} {number}" for name, number in where["versions"].items())
    lines += ["", *(f"- {name}: {value:.2f}" for name, value in ratios.items()), ""]
    lines.append(f"{where['cpu']}, {where['cores']} cores, {where['date']}; {packages}.")
    page = (HERE / "README.md").read_text()
    head, rest = page.split("<!-- results -->")
    tail = rest.split("<!-- end of results -->")[1]
    block = "\n".join(["<!-- results -->", *lines, "<!-- end of results -->"])
    (HERE / "README.md").write_text(head + block + tail)


COLUMNS = ("contestant", "setting", "steps/s", "min", "max", "mean", "variance", "TV")


def cells(row: dict) -> list[str]:
    """Format one contestant for a table; too few steps for a fair score leave a dash."""
    rates = [f"{row[name]:,.0f}" for name in ("median", "min", "max")]
    scores = ["–"] * 3 if not row["diverged_rounds"] else ["diverged"] * 3
    if "mean" in row:
        scores = [f"{row[name]:.3f} ± {row[name + '_error']:.3f}" for name in ("mean", "variance")]
        scores.append(f"{row['total_variation']:.4f}")
    return [row["name"], row["setting"], *rates, *scores]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short check that writes nothing")
    quick = parser.parse_args().quick
    where, field_, console = machine(), contestants(20 if quick else 1), Console(width=120)
    for contestant in field_:
        contestant.run(0, contestant.steps)  # compiles
    for r in range(2 if quick else 7):
        for contestant in field_[r:] + field_[:r]:
            contestant.play(seed=r + 1)
    rows = [contestant.result() for contestant in field_]
    rate = {(row["name"], row["setting"]): row["median"] for row in rows}
    print(rate)


if __name__ == "__main__":
    main()
