r"""Multivariate stochastic gradient Nosé–Hoover thermostat, with symmetric splitting.

Every coordinate has its own momentum $p$ and thermostat $\xi$:

$$ d\theta = p\,dt, \qquad
   dp = \hat g(\theta)\,dt - \xi\odot p\,dt + \sqrt{2DT}\,dW, \qquad
   d\xi = (p\odot p - T)/\mu\,dt. $$

**mSGNHT-S**, `integrator="ABOBA"`, one gradient per step at the half-step position:

$$ \begin{aligned}
A&: & \theta &\leftarrow \theta + p\,h/2, \qquad \xi \leftarrow \xi + (p\odot p - T)\,h/2\mu \\
B&: & p &\leftarrow e^{-\xi h/2}\odot p \\
O&: & p &\leftarrow p + \hat g(\theta)\,h + \sqrt{2DTh}\,R, \qquad R \sim \mathcal N(0, I) \\
B&, A& &\text{again.}
\end{aligned} $$

**mSGNHT-E**, `integrator="euler"`: first the position, then the gradient at the new position:

$$ \theta \leftarrow \theta + p\,h, \qquad
   p \leftarrow p + \hat g(\theta)\,h - \xi\odot p\,h + \sqrt{2DTh}\,R, \qquad
   \xi \leftarrow \xi + (p\odot p - T)\,h/\mu. $$

As $h \to 0$ the law of $\theta$ tends to $\pi^{1/T}$ for both; at finite $h$ the error of
expectations is $O(h)$ for E and $O(h^2)$ for S (`isotherm run order`). Gradient noise that is
independent from step to step and uncorrelated between coordinates is absorbed: $\xi$ settles at
$D + B$, where $2B$ is its covariance per unit time. **Correlated noise is not absorbed**: on real
data a chain in plain coordinates loses posterior variance and mixes so slowly that half a million
steps from the mode give standard deviations 60–80 % too small. Use natural coordinates
(`isotherm.warm_start`), or `thermostat="full_matrix"` on small problems.

State: three times the position (position, momentum, thermostat).

References
----------
Li, Chen, Fan & Carin (2016), *High-order stochastic gradient thermostats for Bayesian learning of
deep models*, AAAI. Their $D$ is our `diffusion`, their $\mu$ is 1.
Ding et al. (2014), *Bayesian sampling using stochastic gradient thermostats*, NeurIPS.
Gan et al. (2015), *Scalable deep Poisson factor analysis for topic modeling*, ICML.
"""

from isotherm.coordinates.linear import Coordinates
from isotherm.dynamics.langevin import langevin
from isotherm.dynamics.thermostats import check_thermostat
from isotherm.random import Noise
from isotherm.types import GradFn, Sampler, Scalar, ScalarOrSchedule


def msgnht(
    grad_fn: GradFn | None,
    step_size: ScalarOrSchedule,
    diffusion: Scalar = 1.0,
    *,
    integrator: str | None = None,
    thermostat: str = "per_coordinate",
    thermostat_mass: Scalar = 1.0,
    initial_thermostat: Scalar | str | None = None,
    temperature: Scalar = 1.0,
    noise: str | Noise = "gaussian",
    coordinates: Coordinates | None = None,
) -> Sampler:
    r"""Build an mSGNHT sampler.

    Parameters
    ----------
    grad_fn
        `(position, batch) -> grads`, an unbiased estimate of $\nabla\log\pi$ at full-data scale,
        or a balanced gradient (`isotherm.balanced`); `None` if gradients are supplied from outside
        (`isotherm.as_optax`).
    step_size
        $h$: a positive number, or a schedule `step_index -> h`. In time units of the dynamics:
        stable up to about $2/\sqrt{\lambda}$ for curvature $\lambda$.
    diffusion
        $D \ge 0$: injected noise, 1/time; the thermostat's equilibrium with exact gradients.
    integrator
        `"ABOBA"` (S), `"euler"` (E), or any palindromic word (`isotherm.dynamics.integrators`); by
        default `"ABOBA"`, and `"AKDBNBDKA"` with a balanced gradient.
    thermostat
        `"per_coordinate"`, or `"full_matrix"` for small problems with correlated noise.
    thermostat_mass
        $\mu > 0$: the thermostat responds within about $\sqrt{\mu}$ time units. The paper has 1.
    initial_thermostat
        $\xi_0$; `None` starts at $D$, `"stationary"` at draws of its law in equilibrium.
    temperature
        $T$: 1 targets $\pi$.
    noise
        `"gaussian"`, `"three-point"` (same order, cheaper), or a function `(key, like) -> noise`.
    coordinates
        Coordinates of the momentum (`isotherm.coordinates`); default: those of the position.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> sampler = msgnht(lambda x, batch: -x, step_size=0.1)
    >>> state = sampler.init(jnp.zeros(2), jax.random.key(0))
    >>> state, info = sampler.step(jax.random.key(1), state, batch=None)
    >>> state.thermostat.shape, int(state.step_index)
    ((2,), 1)
    """
    return langevin(
        grad_fn,
        step_size,
        diffusion,
        thermostat=check_thermostat(thermostat, ("per_coordinate", "full_matrix")),
        thermostat_mass=thermostat_mass,
        initial_thermostat=initial_thermostat,
        integrator=integrator,
        temperature=temperature,
        noise=noise,
        coordinates=coordinates,
        name="msgnht",
    )
