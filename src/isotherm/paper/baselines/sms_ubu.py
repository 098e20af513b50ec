r"""SMS-UBU: Langevin dynamics by the UBU integrator, with symmetric sweeps over minibatches.

$$ d\theta = p\,dt, \qquad dp = \nabla\log\pi(\theta)\,dt - \gamma\,p\,dt + \sqrt{2\gamma T}\,dW $$

is split into the kick $B$: $p \leftarrow p + h\,\hat g(\theta)$, and the rest $U$, which is solved
exactly. For a duration $t$, with $\eta = e^{-\gamma t}$,

$$ p \leftarrow \eta\,p + a, \qquad \theta \leftarrow \theta + \tfrac{1 - \eta}{\gamma}\,p + b, $$

$$ \operatorname{Var} a = T(1 - \eta^2), \quad
   \operatorname{Cov}(a, b) = \tfrac T\gamma(1 - \eta)^2, \quad
   \operatorname{Var} b = \tfrac{T}{\gamma^2}\bigl(2\gamma t - 3 + 4\eta - \eta^2\bigr) . $$

A step is $U_{h/2} B_h U_{h/2}$, with one gradient. It is of strong order two, because drift and
noise are not split; no word over the letters of `dynamics/integrators.py` has this property.

*Symmetric minibatch splitting*: the batches of a random partition of the data are used in turn,
then the same batches in the opposite order (`isotherm.symmetric_batches`). The error of the
minibatches then is of order $h^2$ instead of $h$. The friction is fixed: what is left of the noise
heats the chain.

References
----------
Paulin, Whalley, Chada & Leimkuhler (2024), *Sampling from Bayesian neural network posteriors with
symmetric minibatch splitting Langevin dynamics*. Sanz-Serna & Zygalakis (2021), *Wasserstein
distance estimates for the distributions of numerical approximations to ergodic stochastic
differential equations*, JMLR: UBU.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from isotherm import random
from isotherm.batches.in_memory import InMemoryBatches
from isotherm.diagnostics.temperature import virial
from isotherm.gradients.minibatch import evaluate
from isotherm.paper.baselines.training import KeptDraws, run_chains
from isotherm.schedules import as_schedule, require_nonnegative, require_positive
from isotherm.tree import as_position, zeros_like_working
from isotherm.types import (
    ArrayTree,
    Batch,
    GradFn,
    Key,
    Sampler,
    Scalar,
    ScalarOrSchedule,
    StepInfo,
    Traits,
)


class UBUState(NamedTuple):
    """Position, momentum, and number of steps taken."""

    position: ArrayTree
    momentum: ArrayTree
    step_index: jax.Array


def ubu(
    grad_fn: GradFn, step_size: ScalarOrSchedule, friction: float, *, temperature: float = 1.0
) -> Sampler:
    r"""Build the sampler of UBU steps.

    Parameters
    ----------
    grad_fn
        `(position, batch) -> grads`, an estimate of $\nabla\log\pi$.
    step_size
        $h$: a positive number, or a schedule `step_index -> h`.
    friction
        $\gamma > 0$; 1/time.
    temperature
        $T \ge 0$: 1 targets $\pi$.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> sampler = ubu(lambda x, batch: -x, step_size=0.1, friction=1.0)
    >>> state = sampler.init(jnp.zeros(2), jax.random.key(0))
    >>> state, info = sampler.step(jax.random.key(1), state, batch=None)
    >>> int(state.step_index)
    1
    """
    step_size_fn = as_schedule(step_size)
    require_positive("friction", friction)
    require_nonnegative("temperature", temperature)

    def init(position: ArrayTree, key: Key) -> UBUState:
        position = as_position(position)
        noise = random.gaussian(key, zeros_like_working(position))
        momentum = jax.tree.map(lambda r: (jnp.sqrt(temperature) * r).astype(r.dtype), noise)
        return UBUState(position, momentum, jnp.zeros((), jnp.int32))

    def step(key: Key, state: UBUState, batch: Batch) -> tuple[UBUState, StepInfo]:
        h = step_size_fn(state.step_index)
        position, momentum, _ = state
        first, second = random.fold(key, 0), random.fold(key, 1)
        position, momentum = flow(first, position, momentum, h / 2)
        grads = evaluate(grad_fn, position, batch)
        info = StepInfo(jnp.asarray(h, jnp.float32), virial(position, grads))
        momentum = jax.tree.map(lambda p, g: p + h * g, momentum, grads)
        position, momentum = flow(second, position, momentum, h / 2)
        return UBUState(position, momentum, state.step_index + 1), info

    def flow(key: Key, position: ArrayTree, momentum: ArrayTree, t: Scalar) -> tuple:
        """Solve the dynamics without the force for a duration, exactly."""
        x = jnp.asarray(friction * t)
        decay = jnp.exp(-x)
        drift = -jnp.expm1(-x) / friction
        sd, shared, rest = noise_factors(x, temperature)
        first, second = (random.gaussian(random.fold(key, i), momentum) for i in range(2))
        moved = jax.tree.map(
            lambda q, p, r, s: (q + drift * p + (shared * r + rest * s) / friction).astype(q.dtype),
            position,
            momentum,
            first,
            second,
        )
        return moved, jax.tree.map(lambda p, r: decay * p + sd * r, momentum, first)

    return Sampler(init, step, None, Traits("sms-ubu", "UBU", "fixed", temperature))


def noise_factors(x: jax.Array, temperature: float) -> tuple[jax.Array, jax.Array, jax.Array]:
    r"""Return factors of the noise of $U$ for $x = \gamma t$.

    $a = f_1 r$ and $\gamma b = f_2 r + f_3 s$ with independent standard normal $r$ and $s$. For
    small $x$ the variances are differences of nearly equal numbers, and series are used instead.
    """
    x = jnp.asarray(x, jnp.float32)
    sd = jnp.sqrt(-jnp.expm1(-2 * x))
    shared = jnp.tanh(0.5 * x) * sd  # (1 - eta)^2 / sqrt(1 - eta^2)
    exact = 2 * x - 4 * jnp.tanh(0.5 * x)  # Var - Cov^2 / Var a, which simplifies to this
    series = x**3 / 6 * (1 - x**2 / 10 + 17 * x**4 / 1680)
    rest = jnp.sqrt(jnp.where(x < 0.3, series, exact))
    scale = jnp.sqrt(temperature)
    return scale * sd, scale * shared, scale * rest


@dataclass(frozen=True)
class _Build:
    """The sampler as a function of its settings; equal ones share a compiled program."""

    grad_fn: GradFn

    def __call__(self, step_size: float, friction: float, temperature: float) -> Sampler:
        return ubu(self.grad_fn, step_size, friction, temperature=temperature)


def sms_ubu(
    key: Key,
    grad_fn: GradFn,
    position: ArrayTree,
    batches: InMemoryBatches,
    *,
    step_size: float,
    friction: float,
    num_draws: int,
    thin: int = 1,
    burn_in: int = 0,
    num_chains: int = 1,
    temperature: float = 1.0,
    position_per_chain: bool = False,
) -> KeptDraws:
    r"""Sample with UBU steps and symmetric sweeps.

    Parameters
    ----------
    key
        Determines everything: chains, batches and noise.
    grad_fn
        From `isotherm.minibatch_gradient`, or `network.gradient(data_size)`.
    position
        Where the chains start; the paper starts at trained networks.
    batches
        From `isotherm.symmetric_batches`, or `isotherm.full_batch`.
    step_size, friction, temperature
        As in `ubu`.
    num_draws, thin, burn_in, num_chains, position_per_chain
        As in `isotherm.sample`. A sweep forwards and backwards is two epochs of steps: `thin` is
        best a multiple of them.

    Raises
    ------
    FloatingPointError
        If a chain diverged.
    """
    if getattr(batches, "policy", None) not in ("symmetric", "full"):
        raise ValueError(
            "`batches` must come from isotherm.symmetric_batches or isotherm.full_batch, got "
            f"{batches!r}."
        )
    ubu(grad_fn, step_size, friction, temperature=temperature)  # checks the settings
    return run_chains(
        key,
        _Build(grad_fn),
        (step_size, friction, temperature),
        position,
        batches,
        num_draws=num_draws,
        thin=thin,
        burn_in=burn_in,
        num_chains=num_chains,
        position_per_chain=position_per_chain,
    )
