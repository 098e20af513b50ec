"""Effective draws per second as the data grow: minibatch thermostat and NUTS on all data.

Logistic regression, prior N(0, 10). Rows of a9a (124 weights), then simulated rows (20 weights) up to a million. isotherm finds a mode and its
natural coordinates (`warm_start`, batches of 100) and runs four chains of mSGNHT-S; BlackJAX adapts step size and a dense mass
matrix (`window_adaptation`) and runs four chains of NUTS, both from the same point. Warm-up and sampling are timed apart, compilation is in neither.
ESS is the median over weights. NUTS is exact, so how far our standard deviations are from its own is in the table;
with few effective draws that is mostly Monte Carlo error. Writes `docs/results/ess.json` and a picture.
"""

import argparse
import json
import time
from pathlib import Path

import blackjax
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from reporting import RESULTS, machine, save
from rich.progress import track

import isotherm
from isotherm.data.libsvm import load_a9a
from isotherm.models import logistic

NUM_CHAINS, BATCH = 4, 100


def real_rows(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Give rows of a9a, with an intercept."""
    data = load_a9a()
    x = logistic.with_intercept(data.train.x).toarray().astype(np.float32)
    order = np.random.default_rng(0).permutation(len(x))[:number]
    return x[order], np.asarray(data.train.y)[order].astype(np.int32)


def simulated_rows(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Simulate 20 correlated features."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(number, 20)).astype(np.float32)
    x[:, 1:] += 0.8 * x[:, :-1]
    chance = 1 / (1 + np.exp(-x @ rng.normal(size=20, scale=0.5)))
    return x, (rng.random(number) < chance).astype(np.int32)


def log_prior(weights: jax.Array) -> jax.Array:
    """Give the log of the prior's density."""
    return logistic.log_prior(weights, 10.0)


def thermostat(data: tuple[np.ndarray, np.ndarray], num_draws: int) -> dict:
    """Run isotherm; the second call of everything is timed."""
    grad_fn = isotherm.minibatch_gradient(
        logistic.log_likelihood, log_prior, data_size=len(data[1])
    )
    batches = isotherm.independent_batches(tuple(map(jnp.asarray, data)), BATCH)
    origin = jnp.zeros(data[0].shape[1])
    for _ in range(2):
        began = time.perf_counter()
        start = isotherm.warm_start(jax.random.key(0), grad_fn, origin, batches)
        warm = time.perf_counter() - began
    sampler = isotherm.msgnht(grad_fn, **start.settings)

    def run(seed: int, number: int):
        return isotherm.sample(
            jax.random.key(seed), sampler, start.position, batches, num_draws=number, thin=10,
            burn_in=1000, num_chains=NUM_CHAINS, progress=False,
        )  # fmt: skip

    run(0, num_draws)  # compiled for this number of draws
    began = time.perf_counter()
    draws = np.asarray(run(1, num_draws).draws)
    return _told(draws, warm, time.perf_counter() - began, start.position)


def nuts(data: tuple[np.ndarray, np.ndarray], num_draws: int, origin: jax.Array) -> dict:
    """Run BlackJAX; the second call of everything is timed."""
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
    def sample(key, state, parameters, x, y):
        kernel = blackjax.nuts(lambda w: log_density(w, x, y), **parameters)

        def chain(key):
            def step(state, key):
                state, info = kernel.step(key, state)
                return state, (state.position, info.num_integration_steps)

            return jax.lax.scan(step, state, jax.random.split(key, num_draws))[1]

        return jax.lax.map(chain, jax.random.split(key, NUM_CHAINS))

    times = []
    for seed in range(2):
        began = time.perf_counter()
        state, parameters = jax.block_until_ready(warm_up(jax.random.key(seed), x, y))
        times.append(time.perf_counter() - began)
    compiled = sample.lower(jax.random.key(2), state, parameters, x, y).compile()
    began = time.perf_counter()
    draws, leaps = jax.block_until_ready(compiled(jax.random.key(2), state, parameters, x, y))
    seconds = time.perf_counter() - began
    return _told(np.asarray(draws), times[-1], seconds) | {
        "gradients per draw": float(leaps.mean())
    }


def _told(
    draws: np.ndarray, warm: float, seconds: float, position: jax.Array | None = None
) -> dict:
    effective = float(np.median(isotherm.ess(draws)))
    told = {
        "ESS, median": effective,
        "R-hat, largest": float(np.max(isotherm.rhat(draws))),
        "warm-up (s)": warm,
        "sampling (s)": seconds,
        "ESS per second": effective / seconds,
        "seconds to an ESS of 1000": warm + 1000 * seconds / effective,
    }
    return {"told": told, "sd": draws.std((0, 1)), "position": position}


def contest(table: str, data: tuple[np.ndarray, np.ndarray], quick: bool) -> list[dict]:
    """Run both on the same rows."""
    ours = thermostat(data, 200 if quick else 2000)
    theirs = nuts(data, 20 if quick else 250, ours["position"])
    off = 100 * float(np.median(ours["sd"] / theirs["sd"] - 1))
    rows = []
    for name, found in {"isotherm mSGNHT-S": ours, "blackjax NUTS": theirs}.items():
        rows.append({"table": table, "rows": len(data[1]), "contestant": name} | found["told"])
        if name.startswith("isotherm"):
            rows[-1]["sd against NUTS, median %"] = off
        else:
            rows[-1]["gradients per draw"] = found["gradients per draw"]
    return rows


def plot(rows: list[dict], path: Path) -> None:
    """Draw effective draws per second over the number of rows."""
    titles = list(dict.fromkeys(row["table"] for row in rows))
    figure, axes = plt.subplots(1, len(titles), figsize=(10, 4), layout="constrained", sharey=True)
    for axis, title in zip(axes, titles, strict=True):
        for name, color in (("isotherm mSGNHT-S", "C0"), ("blackjax NUTS", "0.5")):
            mine = [row for row in rows if row["table"] == title and row["contestant"] == name]
            axis.plot(
                [r["rows"] for r in mine],
                [r["ESS per second"] for r in mine],
                "o-",
                color=color,
                label=name,
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
    """Run the contest at every size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two small sizes; writes nothing")
    options = parser.parse_args()
    where = machine()
    sizes = [("a9a", real_rows, n) for n in (1000, 3000, 10_000, 32_561)]
    sizes += [("simulated", simulated_rows, n) for n in (10_000, 100_000, 1_000_000)]
    if options.quick:
        sizes = [sizes[0], sizes[4]]
    rows = []
    for title, make, number in track(sizes, description="sizes"):
        rows += contest(title, make(number), options.quick)
    for row in rows:
        print({k: f"{v:.3g}" if isinstance(v, float) else v for k, v in row.items()})
    if not options.quick:
        (RESULTS / "ess.json").write_text(
            json.dumps({"machine": where, "rows": rows}, indent=1) + "\n"
        )
        plot(rows, RESULTS / "ess.png")


if __name__ == "__main__":
    main()
