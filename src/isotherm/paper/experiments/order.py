r"""Is Euler of first order, and every symmetric splitting of second?

An integrator has order K if one step differs from the dynamics by $O(h^{K+1})$ on every smooth
function; averages over a long run then have an error of $O(h^K)$. The paper proves K = 1 for its
Euler step (Lemma 1) and K = 2 for its symmetric splitting, here called ABOBA (Lemma 2). We measure
the order of these, of every other integrator word that isotherm has a name for, and of one word
that is not symmetric, in three ways.

- *Symbolic*: both sides expanded in powers of h by computer algebra, for any potential. This is a
  proof, for each word and each of the five thermostats. With three-point noise only the terms
  through $h^2$ are compared, so 2 means at least 2.
- *Local error*: one step of the code, with its noise integrated out by quadrature, against
  $e^{h L}$, for a wave $f(x) = e^{i k x}$ on coupled double wells in two or three dimensions. There
  is no Monte Carlo error. The slope against h should be K + 1.
- *Stationary bias*: long runs of many chains on the double well with D = 1 and $\mu$ = 10, started
  from exact draws. The slope against h should be K.

The bias depends on the average. A thermostat makes some of them exact, for example $E[p^2]$ at the
ends of ABOBA, and BADODAB has almost no bias in most averages over positions. So the bias here is
the length of a vector of three averages that are zero for every target: the configurational
temperature $E[U'^2 - U'']/E[U'']$, the kinetic temperature $E[p^2] - 1$, and $E[\theta p]$, in
which Euler has the error $-h/2$. In one dimension all adaptive thermostats are the same;
`per_coordinate` represents them.

*With gradient noise*, as in the paper's double well (D = 0, B = 1), the order depends on more than
the word. A word with one kick per step, such as ABOBA, keeps its order: the noise of the kick acts
like the letter N. A word that splits the kick in two uses the same noise twice. Half a kick then
has a quarter of the variance instead of half, and the word is only of first order. (For BADODAB,
which shares a gradient between two steps, this affects only averages over momenta.) To save time
only `compared_words` are run with noisy gradients, with three-point noise and with a fixed
friction. With all words, the slopes with noisy gradients were 1.0 to 1.1 for OBABO, ABDODBA and
DOBABOD, which split their kick, and 2.0 for OABAO, which does not.

*With noise that depends on the position*, as that of minibatches, no thermostat can absorb it. Here
the gradient is the mean over ten rows drawn with replacement, with the log likelihoods
$-(1 \pm \sqrt{10})\,U(\theta)$. Its variance, $U'(\theta)^2$, does not depend on h, and D is 1
again. The bias is of first order for every word (`isotherm.gradients.balanced`), but here it is
mostly that of the configurational temperature, which has heavy tails and a term of second order of
the other sign, so its slopes are shown and not checked. With balanced gradients palindromes are of
second order, also those that split the kick. Only `balanced_words` are run. The bias of second
order is large here, so that Euler shows its first order only at half the step sizes.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from isotherm import random
from isotherm.dynamics.integrators import NAMED_WORDS, Integrator, parse_integrator
from isotherm.dynamics.langevin import LangevinState, langevin
from isotherm.dynamics.measured_order import local_errors, power_law, time_average
from isotherm.dynamics.order import THERMOSTATS, local_order
from isotherm.dynamics.symbolic import load_sympy
from isotherm.gradients.balanced import balanced
from isotherm.gradients.minibatch import minibatch_gradient
from isotherm.models import double_well
from isotherm.paper.experiments.contract import Claim, Report
from isotherm.paper.report.figures import panels
from isotherm.types import GradFn, Key

TOLERANCE, TOLERANCE_STEPS = 0.25, 10_000
"""The tolerance of a measured order, and the length of the chains for which it is meant."""


NUM_ROWS, ROW_NOISE = 10, 1.0
"""Rows of a batch, and the standard deviation of their gradient relative to the gradient."""


class Setting(NamedTuple):
    """The thermostat of a long run, its noise, and the kind of its gradient."""

    thermostat: str
    noise: str = "gaussian"
    gradient: str = "exact"


SETTINGS = {
    "exact gradient": Setting("per_coordinate"),
    "three-point noise": Setting("per_coordinate", noise="three-point"),
    "fixed friction": Setting("fixed"),
    "noisy gradient": Setting("per_coordinate", gradient="noisy"),
    "minibatches": Setting("per_coordinate", gradient="rows"),
    "balanced minibatches": Setting("per_coordinate", gradient="balanced rows"),
}


@dataclass(frozen=True)
class Config:
    """All settings that change the numbers, apart from the seed."""

    words: tuple[str, ...] = (
        "euler",
        "ADBKN",
        "ABOBA",
        "BADODAB",
        "OBABO",
        "OABAO",
        "ABDODBA",
        "DOBABOD",
    )
    compared_words: tuple[str, ...] = ("euler", "ABOBA", "BADODAB")
    balanced_words: tuple[str, ...] = ("euler", "ABOBA", "BADODAB", "ABDODBA")
    thermostats: tuple[str, ...] = THERMOSTATS
    local_step_sizes: tuple[float, ...] = (0.002, 0.004, 0.008, 0.016)
    first_order_step_sizes: tuple[float, ...] = (0.025, 0.05, 0.1)
    second_order_step_sizes: tuple[float, ...] = (0.1, 0.2, 0.3)
    balanced_step_sizes: tuple[float, ...] = (0.05, 0.1, 0.15)
    num_chains: int = 1_000
    num_steps: int = 10_000
    burn_in: int = 1_000
    thermostat_mass: float = 10.0

    def __post_init__(self) -> None:
        lists = self.first_order_step_sizes, self.second_order_step_sizes, self.balanced_step_sizes
        if len(set(map(len, lists))) > 1:
            raise ValueError("Words of either order need the same number of step sizes.")


SMOKE = Config(
    words=("euler", "ADBKN", "ABOBA"),
    compared_words=("ABOBA",),
    balanced_words=("ABOBA",),
    thermostats=("per_coordinate",),
    num_steps=4_000,
)


def run(config: Config, key: Key, report: Report) -> dict[str, np.ndarray]:
    """Measure the orders by long runs, by one step, and by algebra."""
    load_sympy()  # raises at once if it is missing
    words = [parse_integrator(word, symmetric=False) for word in config.words]
    with ThreadPoolExecutor(1) as background:
        chains = background.submit(_stationary_biases, config, words, key, report)
        local = []
        for thermostat in config.thermostats:
            report(f"Local errors: {thermostat} thermostat")
            local.append(local_errors(words, thermostat, _wells, config.local_step_sizes))
        stationary = chains.result()
    symbolic = []
    for thermostat in config.thermostats:
        report(f"Algebra: {thermostat} thermostat")
        symbolic.append([_symbolic_orders(word, thermostat) for word in words])
    slopes, _ = power_law(config.local_step_sizes, np.array(local))
    return {
        "symbolic": np.array(symbolic),
        "local": np.array(local),
        "local_order": slopes - 1,
        **stationary,
    }


def _symbolic_orders(word: Integrator, thermostat: str) -> tuple[int, int]:
    """Return the order with Gaussian noise and with three-point noise (2: at least 2)."""
    gaussian = local_order(word.letters, thermostat)
    three_point = local_order(word.letters, thermostat, noise="three-point", max_order=1)
    return gaussian.order, three_point.order


def _wells(x: jax.Array) -> jax.Array:
    """Return the log density of coupled double wells, one per coordinate."""
    return jnp.sum(double_well.log_density(x)) - 0.1 * jnp.sum(x[:-1] ** 2 * x[1:])


def _expected(word: str, setting: str = "") -> int:
    """Return the order of a word; with a noisy gradient it may be 1 instead of 2."""
    parsed = parse_integrator(word, symmetric=False)
    split = parsed.letters.count("K") > 1
    reduced = setting == "minibatches" or (setting == "noisy gradient" and split)
    return 1 if reduced else parsed.order


def _step_sizes(config: Config, word: str, setting: str) -> tuple[float, ...]:
    balanced_rows = setting == "balanced minibatches"
    if _expected(word, setting) == 1:
        return tuple(h / (2 if balanced_rows else 1) for h in config.first_order_step_sizes)
    return config.balanced_step_sizes if balanced_rows else config.second_order_step_sizes


def _stationary_biases(
    config: Config, words: list[Integrator], key: Key, report: Report
) -> dict[str, np.ndarray]:
    """Measure biases, their errors and exponents by setting, word and step size."""
    shape = (len(SETTINGS), len(words), len(config.first_order_step_sizes))
    step_sizes, biases, errors = (np.full(shape, np.nan) for _ in range(3))
    start = double_well.exact_draws(jax.random.fold_in(key, 0), config.num_chains)
    for s, (name, setting) in enumerate(SETTINGS.items()):
        chosen = config.balanced_words if "rows" in setting.gradient else config.compared_words
        for w, word in enumerate(words):
            if s and word.name not in chosen:
                continue
            report(f"Long runs: {word.name}, {name}")
            step_sizes[s, w] = _step_sizes(config, word.name, name)
            for i, h in enumerate(step_sizes[s, w]):
                averages = _averages(
                    jax.random.fold_in(key, 1 + i + 100 * (w + 100 * s)),
                    start,
                    h,
                    config.num_steps,
                    config.burn_in,
                    config.thermostat_mass,
                    word=word,
                    setting=setting,
                )
                biases[s, w, i], errors[s, w, i] = _length(np.asarray(averages, np.float64))
    slope, slope_error = power_law(step_sizes, biases, errors)
    return {
        "stationary_step_size": step_sizes,
        "stationary": biases,
        "stationary_error": errors,
        "stationary_order": slope,
        "stationary_order_error": slope_error,
    }


def _length(averages: np.ndarray) -> tuple[float, float]:
    """Return the length of the mean over chains, and its standard error."""
    mean = averages.mean(0)
    length = np.linalg.norm(mean)
    along = averages @ mean / length
    return float(length), float(along.std(ddof=1) / len(averages) ** 0.5)


def _gradient(kind: str, h: float) -> GradFn:
    """Return a gradient of the double well whose batch is a key."""
    if kind == "exact":
        return double_well.gradient
    if kind == "noisy":
        return double_well.noisy_gradient(h)
    rows = minibatch_gradient(_rows, lambda x: jnp.zeros_like(x), data_size=1)
    return balanced(rows) if kind == "balanced rows" else rows


def _rows(position: jax.Array, key: Key) -> jax.Array:
    """Draw rows, and return their log likelihoods; the mean over all rows is the log density."""
    signs = 2 * random.indices(key, (NUM_ROWS,), 2) - 1
    return double_well.log_density(position) * (1 + NUM_ROWS**0.5 * ROW_NOISE * signs)


@partial(jax.jit, static_argnames=("word", "setting"))
def _averages(
    key: Key,
    start: jax.Array,
    h: float,
    num_steps: int,
    burn_in: int,
    mass: float,
    *,
    word: Integrator,
    setting: Setting,
) -> jax.Array:
    """Return, for each chain, the averages whose exact value is zero."""
    sampler = langevin(
        _gradient(setting.gradient, h),
        h,
        0.0 if setting.gradient == "noisy" else 1.0,
        thermostat=setting.thermostat,
        thermostat_mass=mass,
        initial_thermostat=1.0,
        integrator=word,
        noise=setting.noise,
    )
    mean_curvature = double_well.expectation(double_well.curvature)

    def observe(state: LangevinState) -> jax.Array:
        x, p = state.position, state.momentum
        excess = double_well.gradient(x, None) ** 2 - double_well.curvature(x)
        return jnp.stack([excess / mean_curvature, p**2 - 1, x * p])

    def chain(key: Key, start: jax.Array) -> jax.Array:
        return time_average(key, sampler, start, observe, num_steps, burn_in)

    keys = jax.vmap(partial(random.fold, key))(jnp.arange(len(start)))
    return jax.vmap(chain)(keys, start)


def rows(config: Config, result: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return one row per word and thermostat."""
    table = []
    for w, word in enumerate(config.words):
        parsed = parse_integrator(word, symmetric=False)
        for t, thermostat in enumerate(config.thermostats):
            row = {
                "word": _label(word),
                "thermostat": thermostat,
                "gradients per step": parsed.num_gradients,
                "paper": {"euler": 1, "ABOBA": 2}.get(word),
                "expected": parsed.order,
                "symbolic": result["symbolic"][t, w, 0],
                "symbolic, three-point": result["symbolic"][t, w, 1],
                "local slope - 1": result["local_order"][t, w, 0],
                "local slope - 1, three-point": result["local_order"][t, w, 1],
            }
            exact = "fixed friction" if thermostat == "fixed" else "exact gradient"
            for column, name in (
                ("bias slope", exact),
                ("three-point bias slope", "three-point noise"),
                ("noisy bias slope", "noisy gradient"),
                ("minibatch bias slope", "minibatches"),
                ("balanced bias slope", "balanced minibatches"),
            ):
                s, measured = list(SETTINGS).index(name), SETTINGS[name].thermostat == thermostat
                row[column] = result["stationary_order"][s, w] if measured else None
                row[f"± {column}"] = result["stationary_order_error"][s, w] if measured else None
            table.append(row)
    return table


def _label(word: str) -> str:
    """Return all names of a word, joined by equals signs."""
    letters = NAMED_WORDS.get(word)
    return " = ".join(w for w in NAMED_WORDS if NAMED_WORDS[w] == letters) or word


def check(config: Config, result: dict[str, np.ndarray]) -> list[Claim]:
    """Check the lemmas, and the claims beyond them."""
    claims = []

    def claim(text: str, orders: np.ndarray, expected: int, tolerance: float = TOLERANCE) -> None:
        orders = orders[~np.isnan(orders)]
        if orders.size:
            holds = bool(np.all(np.abs(orders - expected) <= tolerance))
            measured = f"{orders.min():.3g} to {orders.max():.3g}"
            allowed = f"{expected} ± {tolerance}" if tolerance else f"{expected}"
            claims.append(Claim(text, holds, measured, allowed))

    # A short run has a larger Monte Carlo error.
    loose = round(TOLERANCE * max(1.0, (TOLERANCE_STEPS / config.num_steps) ** 0.5), 2)
    order = np.array([_expected(word) for word in config.words])
    noisy = np.array([_expected(word, "noisy gradient") for word in config.words])
    euler = np.array(config.words) == "euler"
    algebra, step = result["symbolic"], result["local_order"]
    long_run = dict(zip(SETTINGS, result["stationary_order"], strict=True))
    exact = np.stack([long_run["exact gradient"], long_run["fixed friction"]])
    for text, words, expected in (
        ("Euler is of order 1 (Lemma 1)", euler, 1),
        ("Palindromes are of order 2 (Lemma 2)", order == 2, 2),
        ("An asymmetric word is of order 1", ~euler & (order == 1), 1),
    ):
        claim(f"{text}: algebra", algebra[:, words, 0], expected, 0)
        claim(f"{text}: local error", step[:, words, 0], expected)
        claim(f"{text}: stationary bias", exact[:, words], expected, loose)
    for expected in (1, 2):
        text, words = f"Three-point noise keeps order {expected}", order == expected
        claim(f"{text}: algebra", algebra[:, words, 1], expected, 0)
        claim(f"{text}: local error", step[:, words, 1], expected)
        claim(f"{text}: stationary bias", long_run["three-point noise"][words], expected, loose)
    bias = long_run["noisy gradient"]
    claim("Noisy gradients leave Euler at order 1: stationary bias", bias[euler], 1, loose)
    claim(
        "Noisy gradients leave a whole kick at order 2: stationary bias", bias[noisy == 2], 2, loose
    )
    claim(
        "Noisy gradients put a split kick at order 1: stationary bias",
        bias[noisy < order],
        1,
        loose,
    )
    for expected, words in ((1, "Euler"), (2, "palindromes")):
        claim(
            f"Balanced minibatches leave {words} at order {expected}: stationary bias",
            long_run["balanced minibatches"][order == expected],
            expected,
            loose,
        )
    return claims


def plot(config: Config, result: dict[str, np.ndarray]) -> dict[str, Figure]:
    """Draw local errors and stationary biases against the step size."""
    return {
        "local_error": _plot_local(config, result),
        "stationary_bias": _plot_stationary(config, result),
    }


def _style(w: int, **kwargs: Any) -> dict[str, Any]:
    return {
        "color": [*(f"C{i}" for i in range(7)), "0.6"][w % 8],
        "marker": "osD^vP*X"[w % 8],
    } | kwargs


def _plot_local(config: Config, result: dict[str, np.ndarray]) -> Figure:
    figure, (left, right) = panels(2, width=4.4, height=3.7)
    name = "per_coordinate" if "per_coordinate" in config.thermostats else config.thermostats[0]
    shown = config.thermostats.index(name)
    h, positions = np.array(config.local_step_sizes), np.arange(len(config.thermostats))
    for w, word in enumerate(config.words):
        gaussian, three_point = result["local"][shown, w]
        left.plot(h, gaussian, **_style(w, label=_label(word)))
        left.plot(h, three_point, **_style(w, ls="none", mfc="white", ms=3, zorder=3))
        shift = 0.1 * (w - (len(config.words) - 1) / 2)
        gaussian, three_point = result["local_order"][:, w].T
        right.plot(positions + shift, gaussian, **_style(w, ls="none"))
        right.plot(positions + shift, three_point, **_style(w, ls="none", mfc="white", ms=3))
    _reference(left, h, 2.0 * result["local"][shown, :, 0, 0].max(), 2, "bottom")
    _reference(left, h, 0.4 * result["local"][shown, :, 0, 0].min(), 3, "top")
    _logarithmic(left, h)
    left.set(ylabel="error of one step", title=f"One step, {name} thermostat")
    right.set_xticks(positions, [name.replace("_", "\n") for name in config.thermostats])
    right.set(ylabel="slope of the error - 1", title="All thermostats", ylim=(0.7, 2.3))
    figure.legend(loc="outside lower center", ncols=4)
    figure.set_label(
        "Local weak error of one step against the step size: filled markers are Gaussian noise, "
        "small open ones three-point noise, dashed lines slopes 2 and 3. "
        "Right: fitted slopes minus one, which should be the order."
    )
    return figure


def _plot_stationary(config: Config, result: dict[str, np.ndarray]) -> Figure:
    figure, axes = panels(2, 3, width=4.4, height=3.1, sharex=True, sharey=True)
    ticks = sorted({*config.first_order_step_sizes, *config.second_order_step_sizes})
    ticks = [min(ticks) / 2, *ticks]
    for s, (name, ax) in enumerate(zip(SETTINGS, axes.flat, strict=True)):
        for w, word in enumerate(config.words):
            h, bias, error = (
                result[key][s, w]
                for key in ("stationary_step_size", "stationary", "stationary_error")
            )
            if np.isfinite(bias).all():
                ax.errorbar(h, bias, 2 * error, **_style(w, label="" if s else _label(word)))
        _reference(ax, np.array(config.first_order_step_sizes), 0.035, 1, "bottom")
        _reference(ax, np.array(config.second_order_step_sizes), 0.004, 2, "top")
        _logarithmic(ax, ticks)
        ax.set(ylabel="stationary bias", title=name.capitalize())
        ax.label_outer()
    figure.legend(loc="outside lower center", ncols=4)
    figure.set_label(
        "Stationary bias on the double well against the step size. Error bars are two standard "
        "errors over chains, dashed lines slopes 1 and 2. All but the fixed friction have one "
        "thermostat per coordinate."
    )
    return figure


def _logarithmic(ax: Any, ticks: Any) -> None:
    ax.set(xscale="log", yscale="log", xlabel="step size h")
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)


def _reference(ax: Any, h: np.ndarray, start: float, slope: int, side: str) -> None:
    """Draw a dashed line of a given slope, with a label."""
    line = start * (h / h[0]) ** slope
    ax.plot(h, line, color="0.45", ls="--", lw=1, zorder=1)
    align = {"va": side, "ha": "right" if side == "bottom" else "left"}
    ax.annotate(f"slope {slope} ", (h[1], line[1]), color="0.3", fontsize=8, **align)
