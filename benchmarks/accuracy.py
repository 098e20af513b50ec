"""Accuracy per gradient: errors of the posterior variance after the same number of gradients.

Four targets with known variances, a grid of step sizes, and the samplers of isotherm, BlackJAX and
posteriors. All start at the same points (exact draws, or the exact mean on a9a), have the same
friction and the same number of gradients, and discard the first fifth. Step sizes are in units of
the fastest oscillation, c = h sqrt(lambda_max); SGLD uses h^2/2, which moves as far. The steps of
BlackJAX run inside `isotherm.run_chain`, those of posteriors inside `torch.vmap`. The documentation
of posteriors divides the log posterior by N and sets T = 1/N: that is the same chain in another
unit of time. A run writes `docs/results/accuracy.json` and, if it has all targets, a figure.
"""

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import torch
from reporting import RESULTS, machine, save, write_document
from rich.progress import track
from sklearn.datasets import load_diabetes

import isotherm
from isotherm.data.libsvm import load_a9a
from isotherm.models import double_well, logistic
from isotherm.references.conjugate import linear_posterior

with warnings.catch_warnings():  # importing it warns about tensordict dozens of times
    warnings.simplefilter("ignore", FutureWarning)
    from posteriors.sgmcmc import baoa, sghmc, sgld, sgnht

SIZES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.2)
OWN_STEP = ", step size of `warm_start`"
HMC_STEPS = 10
"""Gradients per call of `blackjax.sghmc`, its default; all use the same batch."""


@dataclass(frozen=True)
class Target:
    """A target with known moments."""

    grad_fn: Any
    batches: Any
    torch_log_posterior: Callable
    torch_batch: Callable[[int], Any]
    """`num_chains -> batch` with a leading axis over chains, or `None` if there are no data."""
    starts: jax.Array
    mean: np.ndarray
    variance: np.ndarray
    curvature: float
    friction: float
    num_gradients: int
    natural: Any = None
    """Settings of `isotherm.warm_start`."""


def harmonic(num_chains: int, num_gradients: int) -> Target:
    """Build a harmonic oscillator: one number, unit curvature, exact gradient."""
    return Target(
        grad_fn=lambda x, batch: -x,
        batches=isotherm.no_batches(),
        torch_log_posterior=lambda x, batch: (-(x**2).sum() / 2, torch.empty(0)),
        torch_batch=lambda rows: None,
        starts=jax.random.normal(jax.random.key(1), (num_chains, 1)),
        mean=np.zeros(1),
        variance=np.ones(1),
        curvature=1.0,
        friction=1.0,
        num_gradients=num_gradients,
    )


def two_wells(num_chains: int, num_gradients: int) -> Target:
    """Build the paper's double well, with gradient noise of standard deviation 1."""

    def grad_fn(x, key):
        return double_well.gradient(x, None) + isotherm.random.gaussian(key, x)

    def log_posterior(x, batch):  # the gradient of a random linear term is the noise
        return (double_well.log_density(x) + torch.randn_like(x) * x).sum(), torch.empty(0)

    mean = double_well.expectation(lambda x: x)
    variance = double_well.expectation(lambda x: (x - mean) ** 2)
    typical = double_well.exact_draws(jax.random.key(2), 10_000)
    return Target(
        grad_fn=grad_fn,
        batches=isotherm.generated_batches(lambda key, step_index: key),
        torch_log_posterior=log_posterior,
        torch_batch=lambda rows: None,
        starts=double_well.exact_draws(jax.random.key(1), num_chains)[:, None],
        mean=np.array([mean]),
        variance=np.array([variance]),
        curvature=float(double_well.curvature(typical).max()),
        friction=1.0,
        num_gradients=num_gradients,
    )


def regression(num_chains: int, num_gradients: int) -> Target:
    """Build linear regression on the diabetes table, batches of 40, known noise variance."""
    x, y = load_diabetes(return_X_y=True)
    x, y = (x / x.std(0)).astype(np.float32), ((y - y.mean()) / y.std()).astype(np.float32)
    noise = 0.5
    exact = linear_posterior(x, y, 1.0, noise)
    grad_fn = isotherm.minibatch_gradient(
        lambda w, batch: -((batch[1] - batch[0] @ w) ** 2) / (2 * noise),
        lambda w: -jnp.sum(w**2) / 2,
        data_size=len(y),
    )

    def log_posterior(w, batch):
        fit = ((batch[1] - batch[0] @ w) ** 2).mean() * len(y) / (2 * noise)
        return -fit - (w**2).sum() / 2, torch.empty(0)

    rng = np.random.default_rng(0)
    starts = rng.multivariate_normal(exact.mean, exact.covariance, num_chains).astype(np.float32)
    return Target(
        torch_log_posterior=log_posterior,
        mean=exact.mean,
        variance=np.diag(exact.covariance),
        curvature=float(np.linalg.eigvalsh(exact.covariance)[0] ** -1),
        num_gradients=num_gradients,
        **_of_data(grad_fn, (x, y), 40, starts),
    )


def a9a(num_chains: int, num_gradients: int) -> Target:
    """Build logistic regression on a9a, batches of 100; the reference is Pólya-Gamma Gibbs."""
    data = load_a9a()
    x = logistic.with_intercept(data.train.x).toarray().astype(np.float32)
    y = np.asarray(data.train.y)
    grad_fn = isotherm.minibatch_gradient(
        logistic.log_likelihood, lambda w: logistic.log_prior(w, 10.0), data_size=len(y)
    )

    def log_posterior(w, batch):
        logits = batch[0] @ w
        fit = (batch[1] * logits - torch.nn.functional.softplus(logits)).mean() * len(y)
        return fit - (w**2).sum() / 20, torch.empty(0)

    exact = json.loads((RESULTS / "a9a_reference.json").read_text())
    mean, sd = np.array(exact["mean"]), np.array(exact["sd"])
    p = 1 / (1 + np.exp(-x @ mean))
    curvature = np.linalg.eigvalsh((x * (p * (1 - p))[:, None]).T @ x)[-1] + 0.1
    starts = np.tile(mean.astype(np.float32), (num_chains, 1))
    return Target(
        torch_log_posterior=log_posterior,
        mean=mean,
        variance=sd**2,
        curvature=float(curvature),
        num_gradients=num_gradients,
        **_of_data(grad_fn, (x, y), 100, starts),
    )


def _of_data(
    grad_fn: Any, data: tuple[np.ndarray, np.ndarray], batch_size: int, starts: np.ndarray
) -> dict[str, Any]:
    """Return the fields of a target that are the same for every regression."""
    batches = isotherm.independent_batches(data, batch_size)
    warm = isotherm.warm_start(jax.random.key(3), grad_fn, jnp.asarray(starts[0]), batches)
    rows, labels = torch.tensor(data[0]), torch.tensor(data[1], dtype=torch.float32)

    def torch_batch(num_chains):
        chosen = torch.randint(len(labels), (num_chains, batch_size))
        return rows[chosen], labels[chosen]

    return {
        "grad_fn": grad_fn,
        "batches": batches,
        "torch_batch": torch_batch,
        "starts": jnp.asarray(starts),
        "friction": 10.0,
        "natural": warm.settings,
    }


class Wrapped(NamedTuple):
    """The state of another library's chain, for the loop of isotherm."""

    position: jax.Array
    rest: Any
    step_index: jax.Array


def wrapped(init: Callable, step: Callable) -> isotherm.Sampler:
    """Build a `Sampler` from `init` and `step` of another library.

    They are `init(key, position) -> rest` and `step(key, position, rest, batch)`, which returns
    the new position and rest, where `rest` is what the state has besides the position.
    """

    def first(position, key):
        return Wrapped(position, init(key, position), jnp.zeros((), jnp.int32))

    def next_step(key, state, batch):
        position, rest = step(key, state.position, state.rest, batch)
        cast = partial(jax.tree.map, lambda new, old: jnp.asarray(new, old.dtype))
        state = Wrapped(
            cast(position, state.position), cast(rest, state.rest), state.step_index + 1
        )
        return state, isotherm.types.StepInfo(jnp.zeros(()), jnp.zeros(1))

    return isotherm.Sampler(first, next_step)


def blackjax_sgnht(target: Target, h: jax.Array) -> isotherm.Sampler:
    """Wrap the thermostat of BlackJAX: scalar, with explicit Euler steps."""
    peer = blackjax.sgnht(target.grad_fn, target.friction)

    def step(key, position, rest, batch):
        state = peer.step(key, rest, batch, h)
        return state.position, state

    def init(key, x):  # `peer.init` needs a concrete thermostat
        return jax.tree.map(jnp.asarray, blackjax.sgnht.init(x, key, target.friction))

    return wrapped(init, step)


def blackjax_sghmc(target: Target, h: jax.Array) -> isotherm.Sampler:
    """Wrap the SGHMC of BlackJAX: ten gradients of one batch per call, then a new momentum."""
    peer = blackjax.sghmc(target.grad_fn, HMC_STEPS, target.friction)
    return wrapped(lambda key, x: (), lambda key, x, rest, batch: (peer.step(key, x, batch, h), ()))


def blackjax_sgld(target: Target, h: jax.Array) -> isotherm.Sampler:
    """Wrap the SGLD of BlackJAX."""
    peer = blackjax.sgld(target.grad_fn)
    return wrapped(
        lambda key, x: (), lambda key, x, rest, batch: (peer.step(key, x, batch, h**2 / 2), ())
    )


def ours(word: str, target: Target, h: jax.Array) -> isotherm.Sampler:
    """Build mSGNHT as in the paper, with thermostat mass 1."""
    return isotherm.msgnht(target.grad_fn, h, target.friction, integrator=word)


def in_natural_coordinates(target: Target, h: jax.Array) -> isotherm.Sampler:
    """Build mSGNHT-S with the settings of `warm_start` except for the step size.

    In the coordinates of `warm_start` curvatures are about 1.
    """
    settings = {**target.natural, "step_size": h * np.sqrt(target.curvature)}
    return isotherm.msgnht(target.grad_fn, **settings)


IN_JAX: dict[str, Callable[[Target, jax.Array], isotherm.Sampler]] = {
    "isotherm mSGNHT-S (ABOBA)": partial(ours, "ABOBA"),
    "isotherm mSGNHT-S, natural coordinates": in_natural_coordinates,
    "isotherm mSGNHT (BADODAB)": partial(ours, "BADODAB"),
    "isotherm mSGNHT-E (Euler)": partial(ours, "euler"),
    "isotherm SGHMC (ABOBA)": lambda target, h: isotherm.sghmc(target.grad_fn, h, target.friction),
    "isotherm SGHMC (BAOAB)": lambda target, h: isotherm.sghmc(
        target.grad_fn, h, target.friction, integrator="BAOAB"
    ),
    "blackjax.sgnht": blackjax_sgnht,
    "blackjax.sghmc": blackjax_sghmc,
    "blackjax.sgld": blackjax_sgld,
}
IN_TORCH: dict[str, Callable] = {
    "posteriors sgnht": lambda f, d: (
        sgnht.init,
        partial(sgnht.update, log_posterior=f, alpha=d),
        {"xi": d},
    ),
    "posteriors sghmc": lambda f, d: (
        sghmc.init,
        partial(sghmc.update, log_posterior=f, alpha=d),
        {},
    ),
    "posteriors baoa": lambda f, d: (baoa.init, partial(baoa.update, log_posterior=f, alpha=d), {}),
    "posteriors sgld": lambda f, d: (sgld.init, partial(sgld.update, log_posterior=f), {}),
}


def draws_in_jax(name: str, target: Target, steps: np.ndarray) -> np.ndarray:
    """Run one contestant at all step sizes, (step size, chain, draw, number)."""
    per_call = HMC_STEPS if name == "blackjax.sghmc" else 1
    calls = target.num_gradients // per_call
    thin = 10 // per_call
    burn_in = calls // 5

    def chain(h, key, start):
        return isotherm.run_chain(
            key,
            IN_JAX[name](target, h),
            start,
            target.batches,
            num_draws=(calls - burn_in) // thin,
            thin=thin,
            burn_in=burn_in,
        )[0]

    keys = jax.random.split(jax.random.key(7), len(target.starts))
    over_chains = jax.vmap(chain, (None, 0, 0))
    compiled = jax.jit(jax.vmap(over_chains, (0, None, None)))
    return np.asarray(compiled(jnp.asarray(steps, jnp.float32), keys, target.starts))


def draws_in_torch(name: str, target: Target, steps: np.ndarray) -> np.ndarray:
    """Run one contestant at all step sizes, (step size, chain, draw, number)."""
    torch.manual_seed(0)
    init, update, more = IN_TORCH[name](target.torch_log_posterior, target.friction)
    starts = torch.tensor(np.asarray(target.starts)).repeat(len(steps), 1)
    rates = torch.tensor(steps, dtype=torch.float32).repeat_interleave(len(target.starts))
    rates = rates**2 / 2 if name == "posteriors sgld" else rates
    together = partial(torch.vmap, randomness="different")
    state = together(lambda start: init(start, **more))(starts)
    batch_axes = None if target.torch_batch(1) is None else 0
    step = together(
        lambda state, batch, lr: update(state, batch, lr=lr)[0], in_dims=(0, batch_axes, 0)
    )
    kept = []
    for t in range(target.num_gradients):
        state = step(state, target.torch_batch(len(starts)), rates)
        if t >= target.num_gradients // 5 and t % 10 == 9:
            kept.append(state.params.numpy().copy())
    return np.stack(kept, 1).reshape(len(steps), len(target.starts), len(kept), -1)


def scores(draws: np.ndarray, target: Target) -> dict[str, Any]:
    """Return the error of the variance in per cent, with its standard error over chains."""
    diverged = ~np.isfinite(draws).all((1, 2)) | (np.abs(draws).max((1, 2)) > 1e6)
    row: dict[str, Any] = {"diverged": f"{diverged.sum()}/{len(draws)}"}
    if diverged.any():
        return row
    errors = ((draws - target.mean) ** 2).mean(1, dtype=np.float64) / target.variance - 1
    error = errors.mean(0)
    row["error of the variance, median %"] = 100 * float(np.median(error))
    row["its standard error"] = 100 * float(np.median(errors.std(0, ddof=1)) / np.sqrt(len(draws)))
    row["size of the error, largest %"] = 100 * float(np.abs(error).max())
    return row


def pivot(points: list[dict]) -> list[dict]:
    """Return the rows of a table per target: a row per contestant, a column per step size."""
    rows: dict[tuple[str, str], dict] = {}
    for point in points:
        name, c = point["contestant"], point["c"]
        error = point.get("error of the variance, median %")
        text = f"{point['diverged']} diverged" if error is None else f"{error:+.3g}"
        name, own, _ = name.partition(OWN_STEP)
        row = rows.setdefault((point["table"], name), {"table": point["table"], "contestant": name})
        row[f"c = {c:g}" if not own else "its own c"] = text if not own else f"{text} (c = {c:.2g})"
    return list(rows.values())


def plot(rows: list[dict], path: Path) -> None:
    """Draw the size of the median error against the step size, one panel per target."""
    targets = list(dict.fromkeys(row["table"] for row in rows))
    figure, axes = plt.subplots(2, 2, figsize=(11, 9), layout="constrained", sharex=True)
    names = list(dict.fromkeys(row["contestant"] for row in rows))
    palette = iter(plt.colormaps["tab20"].colors)  # pyright: ignore[reportAttributeAccessIssue]
    styles = {name: line_style(name, palette) for name in names}
    for axis, target in zip(axes.flat, targets, strict=True):
        for name in names:
            mine = [r for r in rows if r["table"] == target and r["contestant"] == name]
            known = [r for r in mine if "error of the variance, median %" in r]
            if not known:
                continue
            value = [abs(r["error of the variance, median %"]) for r in known]
            axis.plot([r["c"] for r in known], value, label=name, **styles[name])
            if len(known) < len(mine):  # it diverges at larger steps
                axis.plot(known[-1]["c"], value[-1], "x", ms=10, color=styles[name]["color"])
        axis.set(xscale="log", yscale="log", ylim=(0.03, 3000), title=target)
        axis.set_xlabel("step size, units of the fastest oscillation")
        axis.set_ylabel("|error of the variance|, median %")
    handles = {
        label: h
        for axis in axes.flat
        for h, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize=9)
    save(figure, path)


def line_style(name: str, palette: Iterator) -> dict[str, Any]:
    """Return the line style of a contestant: by library, with natural coordinates in black."""
    if name.endswith(OWN_STEP):
        return {"color": "black", "marker": "*", "ms": 14, "ls": ""}
    if name.endswith("natural coordinates"):
        return {"color": "black", "marker": "o", "ms": 5, "lw": 2.5}
    style = "-" if name.startswith("isotherm") else "--" if "blackjax" in name else ":"
    return {"color": next(palette), "marker": "o", "ms": 4, "ls": style}


TARGETS: dict[str, tuple[Callable[[int, int], Target], int, int]] = {
    "harmonic oscillator": (harmonic, 4000, 5000),
    "double well, noisy gradient": (two_wells, 4000, 5000),
    "linear regression, diabetes": (regression, 100, 10_000),
    "logistic regression, a9a": (a9a, 8, 20_000),
}


def write(points: list[dict], where: dict) -> None:
    """Write points, keeping those of targets that were not run this time."""
    path = RESULTS / "accuracy.json"
    fresh = {point["table"] for point in points}
    if path.exists():
        before = json.loads(path.read_text())["points"]
        points = [*points, *(point for point in before if point["table"] not in fresh)]
    points = [point for title in TARGETS for point in points if point["table"] == title]
    gradients = {title: number for title, (_, _, number) in TARGETS.items()}
    rows = pivot(points)
    write_document(path, {"machine": where, "gradients": gradients, "rows": rows, "points": points})
    if len({point["table"] for point in points}) == len(TARGETS):
        plot(points, RESULTS / "accuracy.png")


def main() -> None:
    """Run all contestants on all targets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", help="starts of their names; all by default")
    parser.add_argument("--quick", action="store_true", help="few gradients; writes nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    where = machine()
    rows = []
    for title, (make, num_chains, num_gradients) in TARGETS.items():
        if options.targets and not title.startswith(tuple(options.targets)):
            continue
        target = make(num_chains, num_gradients // 10 if options.quick else num_gradients)
        scale = np.sqrt(target.curvature)
        for name in track([*IN_JAX, *IN_TORCH], description=title):
            if name.endswith("natural coordinates") and target.natural is None:
                continue
            run = draws_in_jax if name in IN_JAX else draws_in_torch
            sizes = [*SIZES]
            if name.endswith("natural coordinates"):
                sizes.append(float(target.natural["step_size"]))
            draws_by_size = run(name, target, np.array(sizes) / scale)
            for i, (c, draws) in enumerate(zip(sizes, draws_by_size, strict=True)):
                label = name + OWN_STEP if i >= len(SIZES) else name
                row = {"table": title, "contestant": label, "c": c, "step size": c / scale}
                rows.append(row | scores(draws, target))
    for row in pivot(rows):
        print(*row.values(), sep=" | ")
    if not options.quick:
        write(rows, where)


if __name__ == "__main__":
    main()
