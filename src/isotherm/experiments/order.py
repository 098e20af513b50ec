r"""Is Euler of first order, and every symmetric splitting of second?

An integrator has order K if one step differs from the dynamics by $O(h^{K+1})$ on every smooth
function; averages over a long run are then off by $O(h^K)$. The paper proves K = 1 for its Euler
step (Lemma 1) and K = 2 for its symmetric splitting, here called ABOBA (Lemma 2). We look at these,
at every other word that isotherm knows by name, and at one that is deliberately not symmetric, in
three ways.

- *Symbolic*: both sides expanded in powers of h by computer algebra, with any potential, for
  Gaussian and for three-point noise. This is a proof, for each word and each of the five
  thermostats.
- *Local error*: one step of the code itself, its noise integrated out by quadrature, against
  $e^{hL}$, for a wave $f(x) = e^{ikx}$ on coupled double wells in two or three dimensions. No Monte
  Carlo; the slope against h should be K + 1.
- *Stationary bias*: long runs of many chains on the double well with D = 1 and $\mu$ = 10, started
  from exact draws. The slope against h should be K.

Which average shows the bias matters: a thermostat forces some to be right, as $E[p^2]$ at the ends of
ABOBA, and BADODAB gets most averages over positions nearly right. So the bias is the length of three
numbers that should vanish, whatever the target: the configurational temperature
$E[U'^2 - U'']/E[U'']$, the kinetic temperature $E[p^2] - 1$, and $E[\theta p]$, where Euler is
off by $-h/2$. In one dimension all adaptive thermostats are the same, so `per_coordinate`
stands for them.

*Gradient noise*, as in the paper's double well (D = 0, B = 1): here the letters are not everything. A
word that kicks once per step, as ABOBA does, remains what it is, since the kick's noise is as good
as the letter N. A word that cuts the kick in two uses the same noise twice; half a kick then brings a
quarter of the variance and not half of it, and the word falls to first order. For
BADODAB, which shares each gradient between two steps, that is so only for averages over momenta.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isotherm import random
from isotherm.dynamics.integrators import Integrator, parse
from isotherm.dynamics.langevin import LangevinState, langevin
from isotherm.dynamics.measure import NODES, local_errors, time_average
from isotherm.dynamics.order import THERMOSTATS, local_order
from isotherm.experiments.contract import Say
from isotherm.models import double_well
from isotherm.types import Key

TOLERANCE = 0.25


class Setting(NamedTuple):
    """A kind of long run: the thermostat, its noise, and whether the gradient is noisy."""

    thermostat: str
    noise: str = "gaussian"
    noisy_gradient: bool = False


SETTINGS = {
    "bias": Setting("per_coordinate"),
    "three-point bias": Setting("per_coordinate", noise="three-point"),
    "fixed bias": Setting("fixed"),
    "noisy bias": Setting("per_coordinate", noisy_gradient=True),
}


@dataclass(frozen=True)
class Config:
    """Everything that can change the numbers, apart from the seed."""

    words: tuple[str, ...] = (
        "euler", "ADBKN", "ABOBA", "BADODAB", "OBABO", "OABAO", "ABDODBA", "DOBABOD",
    )  # fmt: skip
    thermostats: tuple[str, ...] = THERMOSTATS
    local_step_sizes: tuple[float, ...] = (0.002, 0.004, 0.008, 0.016)
    first_order_step_sizes: tuple[float, ...] = (0.025, 0.05, 0.1)
    second_order_step_sizes: tuple[float, ...] = (0.1, 0.2, 0.3)
    num_chains: int = 1_000
    time: float = 1_500.0
    burn_in_time: float = 50.0
    thermostat_mass: float = 10.0

    def __post_init__(self) -> None:
        if len(self.first_order_step_sizes) != len(self.second_order_step_sizes):
            raise ValueError("Words of either order must have the same number of step sizes.")


SMOKE = Config(
    words=("euler", "ADBKN", "ABOBA"), thermostats=("fixed", "per_coordinate"), time=400.0
)


def run(config: Config, key: Key, say: Say) -> dict[str, np.ndarray]:
    """Find the orders by algebra, by one step, and by long runs."""
    words = _words(config)
    # The algebra is Python and the chains are not, so they share two cores.
    with ThreadPoolExecutor(1) as background:
        chains = background.submit(_stationary_biases, config, words, key, say)
        symbolic, local = [], []
        for thermostat in config.thermostats:
            say(f"Algebra: {thermostat} thermostat")
            symbolic.append(
                [[local_order(w.letters, thermostat, noise=n).order for n in NODES] for w in words]
            )
        for thermostat in config.thermostats:
            say(f"Local errors: {thermostat} thermostat")
            local.append(local_errors(words, thermostat, _wells, config.local_step_sizes))
        return {"symbolic": np.array(symbolic), "local": np.array(local), **chains.result()}


def _words(config: Config) -> list[Integrator]:
    return [parse(word, symmetric=False) for word in config.words]


def _wells(x: jax.Array) -> jax.Array:
    """Couple as many double wells as there are coordinates."""
    return jnp.sum(double_well.log_density(x)) - 0.1 * jnp.sum(x[:-1] ** 2 * x[1:])


def _expected(word: Integrator, setting: Setting | None = None) -> int:
    """Give the order of a word; noisy gradients spoil it unless there is one whole kick."""
    whole = word.letters.count("K") == 1
    return word.order if whole or setting is None or not setting.noisy_gradient else 1


def _step_sizes(config: Config, word: Integrator, setting: Setting) -> tuple[float, ...]:
    first = _expected(word, setting) == 1
    return config.first_order_step_sizes if first else config.second_order_step_sizes


def _stationary_biases(
    config: Config, words: list[Integrator], key: Key, say: Say
) -> dict[str, np.ndarray]:
    """Measure biases and their standard errors by setting, word and step size."""
    biases = np.empty((len(SETTINGS), len(words), len(config.first_order_step_sizes)))
    errors = np.empty_like(biases)
    for s, (name, setting) in enumerate(SETTINGS.items()):
        for w, word in enumerate(words):
            say(f"Long runs: {name}, {word.name}")
            for i, h in enumerate(_step_sizes(config, word, setting)):
                run_key = jax.random.fold_in(key, (s * len(words) + w) * 100 + i)
                averages = _averages(
                    run_key, h, config.time / h, config.burn_in_time / h, config.thermostat_mass,
                    word=word, setting=setting, num_chains=config.num_chains,
                )  # fmt: skip
                averages = np.asarray(averages, np.float64)
                mean = averages.mean(0)
                biases[s, w, i] = np.linalg.norm(mean)
                along = averages @ mean / biases[s, w, i]
                errors[s, w, i] = along.std(ddof=1) / np.sqrt(config.num_chains)
    return {"stationary": biases, "stationary_error": errors}


@partial(jax.jit, static_argnames=("word", "setting", "num_chains"))
def _averages(
    key: Key, h: float, num_steps: float, burn_in: float, mass: float,
    *, word: Integrator, setting: Setting, num_chains: int,
) -> jax.Array:  # fmt: skip
    """Average what should vanish over each of many chains."""
    noisy = setting.noisy_gradient
    sampler = langevin(
        double_well.noisy_gradient(h) if noisy else double_well.gradient,
        h,
        0.0 if noisy else 1.0,
        thermostat=setting.thermostat,
        thermostat_mass=mass,
        initial_thermostat=1.0,
        integrator=word,
        noise=setting.noise,
    )
    curvature = double_well.expectation(lambda x: (12 * x**2 + 6 * x - 26) / 14)

    def observe(state: LangevinState) -> jax.Array:
        x, p = state.position, state.momentum
        force, stiffness = double_well.gradient(x, None), (12 * x**2 + 6 * x - 26) / 14
        return jnp.stack([(force**2 - stiffness) / curvature, p**2 - 1, x * p])

    def chain(key: Key, start: jax.Array) -> jax.Array:
        steps = (jnp.int32(num_steps), jnp.int32(burn_in))
        return time_average(key, sampler, start, observe, *steps)

    start_key, chain_key = random.fold(key, 0), random.fold(key, 1)
    keys = jax.vmap(partial(random.fold, chain_key))(jnp.arange(num_chains))
    return jax.vmap(chain)(keys, double_well.exact_draws(start_key, num_chains))
