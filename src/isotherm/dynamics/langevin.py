r"""Underdamped Langevin samplers from a thermostat and an integrator: SGHMC, SGNHT, mSGNHT.

$$ d\theta = p\,dt, \qquad
   dp = \hat g(\theta)\,dt - \xi\odot p\,dt + \sqrt{2DT}\,dW, \qquad
   d\xi = (p\odot p - T)/\mu\,dt $$

`langevin` interprets the letters of an integrator (`dynamics/integrators.py`) with the flows of
`dynamics/flows.py` and a thermostat (`dynamics/thermostats.py`). In *coordinates*
$\theta = c + M q$ the momentum belongs to $q$: the position drifts by $M p$ and the momentum is
kicked by $M^\top \hat g$. The position in the state is always $\theta$.
"""

from itertools import takewhile
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from isotherm import random
from isotherm.coordinates.linear import Coordinates, as_coordinates
from isotherm.diagnostics.temperature import kinetic_temperature, virial
from isotherm.dynamics import flows, integrators
from isotherm.dynamics.thermostats import (
    STATIONARY,
    THERMOSTATS,
    check_thermostat,
    scatter,
)
from isotherm.gradients.minibatch import evaluate
from isotherm.schedules import (
    as_schedule,
    require_finite,
    require_nonnegative,
    require_positive,
)
from isotherm.tree import as_position, check_gradient, zeros_like_working
from isotherm.types import (
    ArrayTree,
    Batch,
    GradFn,
    Halves,
    Key,
    Sampler,
    Scalar,
    ScalarOrSchedule,
    StepInfo,
    Traits,
    VelocityGradient,
)

BALANCED_WORD = "AKDBNBDKA"
"""Default integrator of balanced gradients (`isotherm.gradients.balanced` has the reasons)."""


class LangevinState(NamedTuple):
    """Position, momentum, thermostat, and number of steps taken."""

    position: ArrayTree
    momentum: ArrayTree
    thermostat: ArrayTree
    step_index: jax.Array
    force: ArrayTree = None
    """The last gradient, for words that start with a kick; otherwise `None`."""


def langevin(
    grad_fn: GradFn | None,
    step_size: ScalarOrSchedule,
    diffusion: Scalar,
    *,
    thermostat: str,
    thermostat_mass: Scalar = 1.0,
    initial_thermostat: Scalar | str | None = None,
    integrator: str | integrators.Integrator | None = None,
    temperature: Scalar = 1.0,
    noise: str | random.Noise = "gaussian",
    coordinates: Coordinates | None = None,
    name: str = "langevin",
) -> Sampler:
    r"""Build a sampler from a thermostat, an integrator and the other choices.

    `isotherm.sghmc`, `isotherm.sgnht` and `isotherm.msgnht` call this function.

    Parameters
    ----------
    grad_fn
        `(position, batch) -> grads`, an estimate of $\nabla\log\pi$, or a balanced gradient
        (`isotherm.balanced`); `None` if gradients are supplied from outside
        (`isotherm.as_optax`).
    step_size
        $h$: a positive number, or a schedule `step_index -> h`.
    diffusion
        $D \ge 0$, the injected noise. With the Python number 0 no random numbers are drawn.
    thermostat
        A kind from `dynamics/thermostats.py`.
    thermostat_mass
        $\mu > 0$; not used by a fixed thermostat.
    initial_thermostat
        Initial $\xi$ (constant if the thermostat is fixed); `None` means $D$, and `"stationary"` a
        draw of its law without gradient noise (`dynamics/thermostats.py`).
    integrator
        `"euler"` or a word (`dynamics/integrators.py`); by default `"ABOBA"`, and `"AKDBNBDKA"`
        with a balanced gradient.
    temperature
        $T \ge 0$: 1 targets $\pi$.
    noise
        `"gaussian"`, `"three-point"`, or a function `(key, like) -> noise`.
    coordinates
        Coordinates of the momentum; by default those of the position.
    name
        Name of the sampler in messages.
    """
    step_size_fn = as_schedule(step_size)
    require_nonnegative("diffusion", diffusion)
    require_nonnegative("temperature", temperature)
    require_positive("thermostat_mass", thermostat_mass)
    balanced = isinstance(grad_fn, VelocityGradient)
    at_velocity: Any = grad_fn.at_velocity if isinstance(grad_fn, VelocityGradient) else None
    if integrator is None:
        integrator = BALANCED_WORD if balanced else "ABOBA"
    is_word = isinstance(integrator, integrators.Integrator)
    word = integrator if is_word else integrators.parse_integrator(integrator)
    if balanced:
        _require_balance(word, temperature)
    friction = THERMOSTATS[check_thermostat(thermostat)](thermostat_mass)
    if friction.adaptive and "D" not in word.letters:
        raise ValueError(
            f"The word {word.name!r} never updates the thermostat: it needs the letter D."
        )
    stationary = isinstance(initial_thermostat, str)
    if stationary and (initial_thermostat != STATIONARY or thermostat in ("fixed", "full_matrix")):
        raise ValueError(
            f"`initial_thermostat` must be a number, or {STATIONARY!r} for a thermostat of numbers "
            f"that adapt, got {initial_thermostat!r} for {thermostat!r}."
        )
    at_diffusion = stationary or initial_thermostat is None
    start = diffusion if at_diffusion else initial_thermostat
    require_finite("initial_thermostat", start)
    noise_fn = random.as_noise(noise)
    space = as_coordinates(coordinates)
    noiseless = isinstance(diffusion, int | float) and diffusion == 0
    strength = diffusion * temperature

    def init(position: ArrayTree, key: Key) -> LangevinState:
        position = as_position(position)
        like = zeros_like_working(space.momentum_like(position))
        momentum = jax.tree.map(
            lambda r: (jnp.sqrt(temperature) * r).astype(r.dtype), random.gaussian(key, like)
        )
        force = like if word.carries_gradient else None
        try:
            xi = friction.start(momentum, jnp.asarray(start))
        except ValueError as error:
            raise ValueError(
                "`initial_thermostat`, by default `diffusion`, must be a number or have the shape "
                f"of the thermostat: {error}"
            ) from error
        if stationary:
            xi = scatter(random.fold(key, 1), xi, momentum, temperature / thermostat_mass)
        return LangevinState(position, momentum, xi, jnp.zeros((), jnp.int32), force)

    def noise_key(key: Key, number: int) -> Key:
        """Return the key of a noisy letter: the key of the step for the first, then new ones."""
        earlier = sum(letter in "NOE" for letter in word.letters[:number])
        return random.fold(key, earlier) if earlier else key

    def apply(segment, key: Key, state: LangevinState, force: ArrayTree) -> LangevinState:
        """Apply the letters of a segment; `force` is the gradient of their kicks."""
        h = step_size_fn(state.step_index)
        position, momentum, xi = state.position, state.momentum, state.thermostat
        heating = None
        for i, (letter, fraction, number) in enumerate(segment):
            t = h * fraction
            if letter == "D" and segment[i + 1 : i + 2] and segment[i + 1][0] == "K":
                heating = t  # after the kick, which is then read from memory and not computed twice
                continue
            noisy = letter in "NOE" and not noiseless
            r = noise_fn(noise_key(key, number), momentum) if noisy else None
            if letter == "A":
                position = flows.drift(position, space.push(momentum), t)
            elif letter == "D":
                xi = friction.heat(xi, momentum, temperature, t)
            elif letter == "B":
                momentum = friction.damp(xi, momentum, t)
            elif letter == "K":
                momentum = flows.kick(momentum, force, t)
                if heating is not None:
                    before = flows.kick(momentum, force, -t)
                    xi, heating = friction.heat(xi, before, temperature, heating), None
            elif letter == "N" and noisy:
                momentum = flows.diffuse(momentum, r, strength, t)
            elif letter == "O":
                momentum = (
                    friction.relax(xi, momentum, r, strength, t)
                    if noisy
                    else friction.damp(xi, momentum, t)
                )
            elif letter == "E":
                drag = friction.drag(xi, momentum)
                momentum = flows.kick(momentum, jax.tree.map(jnp.subtract, force, drag), t)
                momentum = flows.diffuse(momentum, r, strength, t) if noisy else momentum
        return state._replace(position=position, momentum=momentum, thermostat=xi)

    def open_(key: Key, state: LangevinState) -> LangevinState:
        return apply(word.segments[0], key, state, state.force)

    def at_kick(key: Key, state: LangevinState, number: int) -> ArrayTree:
        """Return the momentum at the first kick of a segment."""
        before = takewhile(lambda entry: entry[0] not in "KE", word.segments[number])
        return apply(tuple(before), key, state, None).momentum

    def gradient(key: Key, state: LangevinState, batch: Batch, number: int = 1) -> ArrayTree:
        if not balanced:
            return evaluate(grad_fn, state.position, batch)
        velocity = space.push(at_kick(key, state, number))
        h = step_size_fn(state.step_index)
        grads = at_velocity(state.position, batch, velocity, h, temperature)
        check_gradient(state.position, grads)
        return grads

    def close(key: Key, state: LangevinState, grads: ArrayTree, number: int = 1):
        force, h = space.pull(grads), step_size_fn(state.step_index)
        kinetic = None
        if balanced and not word.carries_gradient:
            middle = flows.kick(at_kick(key, state, number), force, h / 2)
            kinetic = kinetic_temperature(middle)
        info = StepInfo(jnp.asarray(h, jnp.float32), virial(state.position, grads), kinetic)
        state = apply(word.segments[number], key, state, force)
        kept = _like(state.force, force) if word.carries_gradient else None
        return state._replace(force=kept, step_index=state.step_index + 1), info

    def step(key: Key, state: LangevinState, batch: Batch) -> tuple[LangevinState, StepInfo]:
        state = open_(key, state)
        last = word.num_gradients
        for number in range(1, last):
            force = space.pull(gradient(key, state, batch, number))
            state = apply(word.segments[number], key, state, force)
        return close(key, state, gradient(key, state, batch, last), last)

    halves = None
    if word.num_gradients == 1:
        halves = Halves(open_, close, word.moves_before_gradient, gradient)
    traits = Traits(
        name,
        word.name,
        thermostat,
        temperature,
        friction.adaptive,
        balanced,
        getattr(grad_fn, "num_shards", None),
        diffusion,
        thermostat_mass,
    )
    return Sampler(init, step, halves, traits)


def _require_balance(word: integrators.Integrator, temperature: Scalar) -> None:
    """Raise an error if the kicks of a word cannot be balanced."""
    if word.num_gradients > 1:
        raise ValueError(
            f"The word {word.name!r} evaluates {word.num_gradients} gradients per step on the same "
            "rows, so that their noise is correlated and cannot be balanced. Use a word with one "
            f"gradient per step: {', '.join(map(repr, integrators.NAMED_WORDS))} or 'euler'."
        )
    if isinstance(temperature, int | float) and temperature == 0:
        raise ValueError(
            "`temperature` must be positive with a balanced gradient: at 0 no friction balances "
            "the noise. Use the plain gradient."
        )


def _like(old: ArrayTree, new: ArrayTree) -> ArrayTree:
    return jax.tree.map(lambda a, b: b.astype(a.dtype), old, new)
