"""Effective draws per second as the data grow: minibatch thermostat and NUTS on all data.

Logistic regression, prior N(0, 10), on rows of a9a (124 weights) and on up to a million simulated
rows (20 weights). isotherm finds a mode and natural coordinates (`warm_start`, batches of 100) and
runs four chains of mSGNHT-S; BlackJAX adapts the step size and a dense mass matrix
(`window_adaptation`) and runs four chains of NUTS from the same point. isotherm has two
contestants: plain minibatches, and control variates (`warm_start(control_variates=True)`), which
its documentation recommends for many rows and small batches. Warm-up and sampling are timed
separately, without compilation; contestants sample in turns, three rounds each. ESS is the median
over weights. NUTS is exact, so the table compares our standard deviations with those of NUTS; with
few effective draws the difference is mostly Monte Carlo error. Gradients are counted in passes over
all rows. Writes `docs/results/ess.json` and a figure.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from reporting import RESULTS, machine, save, short, write_document
from rich.progress import track

import isotherm
from isotherm.data.libsvm import load_a9a
from isotherm.models import logistic

NUM_CHAINS, BATCH, THIN, ROUNDS = 4, 100, 10, 3
NUTS = "blackjax NUTS"
COLORS = {"isotherm mSGNHT-S": "C0", "isotherm mSGNHT-S, control variates": "C1", NUTS: "0.5"}
"""The contestants and their colours."""


def real_rows(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of a9a, with an intercept."""
    data = load_a9a()
    x = logistic.with_intercept(data.train.x).toarray().astype(np.float32)
    order = np.random.default_rng(0).permutation(len(x))[:number]
    return x[order], np.asarray(data.train.y)[order].astype(np.int32)


def simulated_rows(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Simulate rows of 20 correlated features."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(number, 20)).astype(np.float32)
    x[:, 1:] += 0.8 * x[:, :-1]
    chance = 1 / (1 + np.exp(-x @ rng.normal(size=20, scale=0.5)))
    return x, (rng.random(number) < chance).astype(np.int32)


def log_prior(weights: jax.Array) -> jax.Array:
    """Return the log density of the prior."""
    return logistic.log_prior(weights, 10.0)


class Contestant(NamedTuple):
    """A compiled sampler after its warm-up."""

    warm_up: float
    """Seconds of the warm-up, without compilation."""
    start: jax.Array
    sample: Callable[[int], tuple[jax.Array, dict[str, float]]]
    """`seed -> (draws, costs)`: one round of draws, and the gradients per draw."""


def thermostat(
    data: tuple[np.ndarray, np.ndarray], num_draws: int, control_variates: bool
) -> Contestant:
    """Build the contestant of isotherm."""
    grad_fn = isotherm.minibatch_gradient(
        logistic.log_likelihood, log_prior, data_size=len(data[1])
    )
    batches = isotherm.independent_batches(tuple(map(jnp.asarray, data)), BATCH)
    origin = jnp.zeros(data[0].shape[1])
    for _ in range(2):  # the second time it is compiled
        began = time.perf_counter()
        start = isotherm.warm_start(
            jax.random.key(0), grad_fn, origin, batches, control_variates=control_variates
        )
        seconds = time.perf_counter() - began
    sampler = isotherm.msgnht(start.grad_fn, **start.settings)

    def sample(seed: int):
        run = isotherm.sample(
            jax.random.key(seed),
            sampler,
            start.position,
            batches,
            num_draws=num_draws,
            thin=THIN,
            burn_in=1000,
            num_chains=NUM_CHAINS,
            progress=False,
        )
        share = (2 if control_variates else 1) * BATCH / len(data[1])
        return run.draws, {"gradients per draw": THIN * share}

    sample(0)
    return Contestant(seconds, start.position, sample)


def nuts(data: tuple[np.ndarray, np.ndarray], num_draws: int, origin: jax.Array) -> Contestant:
    """Build the contestant of BlackJAX."""
    x, y = map(jnp.asarray, data)

    def log_density(weights, x, y):
        return logistic.log_likelihood(weights, (x, y)).sum() + log_prior(weights)

    @jax.jit
    def warm_up(key, x, y):
        adaptation = blackjax.window_adaptation(
            blackjax.nuts, lambda w: log_density(w, x, y), is_mass_matrix_diagonal=False
        )
        (state, parameters), _ = adaptation.run(key, origin, num_steps=500)
        return state, {name: parameters[name] for name in ("step_size", "inverse_mass_matrix")}

    @jax.jit
    def draw(key, state, parameters, x, y):
        kernel = blackjax.nuts(lambda w: log_density(w, x, y), **parameters)

        def chain(key):
            def step(state, key):
                state, info = kernel.step(key, state)
                return state, (state.position, info.num_integration_steps)

            return jax.lax.scan(step, state, jax.random.split(key, num_draws))[1]

        return jax.lax.map(chain, jax.random.split(key, NUM_CHAINS))

    compiled = warm_up.lower(jax.random.key(0), x, y).compile()
    began = time.perf_counter()
    state, parameters = jax.block_until_ready(compiled(jax.random.key(0), x, y))
    seconds = time.perf_counter() - began
    drawing = draw.lower(jax.random.key(0), state, parameters, x, y).compile()

    def sample(seed: int):
        draws, leaps = drawing(jax.random.key(seed), state, parameters, x, y)
        return draws, {"gradients per draw": float(leaps.mean())}

    return Contestant(seconds, origin, sample)


def contest(table: str, data: tuple[np.ndarray, np.ndarray], quick: bool) -> list[dict]:
    """Let all contestants sample the posterior of the same rows, in turns."""
    ours = [thermostat(data, 200 if quick else 1000, controlled) for controlled in (False, True)]
    theirs = nuts(data, 20 if quick else 100, ours[0].start)
    contestants = dict(zip(COLORS, (*ours, theirs), strict=True))
    rounds: dict[str, list[Any]] = {name: [] for name in contestants}
    for seed in range(1, 2 if quick else 1 + ROUNDS):
        for name, contestant in contestants.items():
            began = time.perf_counter()
            draws, costs = jax.block_until_ready(contestant.sample(seed))
            rounds[name].append((np.asarray(draws), time.perf_counter() - began, costs))
    exact = np.concatenate([draws for draws, *_ in rounds[NUTS]]).std((0, 1))
    rows = []
    for name, measured in rounds.items():
        draws = np.concatenate([draws for draws, *_ in measured])
        effective = [float(np.median(isotherm.diagnostics.ess(draws))) for draws, *_ in measured]
        speeds = [e / seconds for e, (_, seconds, _) in zip(effective, measured, strict=True)]
        speed, warm_up = float(np.median(speeds)), contestants[name].warm_up
        rows.append(
            {
                "table": table,
                "rows": len(data[1]),
                "contestant": name,
                "ESS of a round": float(np.median(effective)),
                "R-hat, largest": float(np.max(isotherm.diagnostics.rhat(draws))),
                "warm-up (s)": warm_up,
                "ESS per second": speed,
                "lowest": min(speeds),
                "highest": max(speeds),
                "seconds to an ESS of 1000": warm_up + 1000 / speed,
                "gradients per draw": float(
                    np.mean([costs["gradients per draw"] for *_, costs in measured])
                ),
                "sd against NUTS, median %": 100 * float(np.median(draws.std((0, 1)) / exact - 1)),
            }
        )
    for row in rows[:-1]:
        row["ESS per second over NUTS"] = row["ESS per second"] / rows[-1]["ESS per second"]
    return rows


def plot(rows: list[dict], path: Path) -> None:
    """Draw effective draws per second against the number of rows."""
    titles = list(dict.fromkeys(row["table"] for row in rows))
    figure, axes = plt.subplots(1, len(titles), figsize=(10, 4), layout="constrained", sharey=True)
    for axis, title in zip(axes, titles, strict=True):
        for name, color in COLORS.items():
            mine = [row for row in rows if row["table"] == title and row["contestant"] == name]
            axis.plot(
                [r["rows"] for r in mine],
                [r["ESS per second"] for r in mine],
                "o-",
                color=color,
                label=name,
            )
            axis.vlines(
                [r["rows"] for r in mine],
                [r["lowest"] for r in mine],
                [r["highest"] for r in mine],
                color=color,
                lw=1,
            )
        axis.set(
            xscale="log",
            yscale="log",
            title=title,
            xlabel="rows",
            ylabel="effective draws per second",
        )
        axis.legend()
    save(figure, path)


def main() -> None:
    """Run all contestants at every size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two small sizes; writes nothing")
    options = parser.parse_args()
    where = machine()
    sizes = [("a9a", real_rows, n) for n in (1000, 3000, 10_000, 32_561)]
    sizes += [("simulated", simulated_rows, n) for n in (10_000, 100_000, 1_000_000)]
    if options.quick:
        sizes = [sizes[0], sizes[4]]
    rows: list[dict] = []
    for title, make, number in track(sizes, description="sizes"):
        measured = contest(title, make(number), options.quick)
        for row in measured:
            print(short(row), flush=True)
        rows += measured
    if not options.quick:
        write_document(RESULTS / "ess.json", {"machine": where, "rows": rows})
        plot(rows, RESULTS / "ess.png")


if __name__ == "__main__":
    main()
