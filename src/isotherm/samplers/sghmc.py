r"""Stochastic gradient Hamiltonian Monte Carlo: momentum with a fixed friction.

$$ d\theta = p\,dt, \qquad
   dp = \hat g(\theta)\,dt - \gamma\,p\,dt + \sqrt{2(\gamma - \hat B)T}\,dW. $$

With exact gradients and $\hat B = 0$ it targets $\pi^{1/T}$. Gradient noise of covariance $2B$ per
unit time ($B = h\sigma^2/2$ for a variance $\sigma^2$ per step) raises the temperature to
$T(1 + (B - \hat B)/\gamma)$. The friction does not adapt, so the noise must be small compared with
$\gamma$, or be estimated. Integrators are those of `isotherm.msgnht`; the letter `D` has no
effect. `"BAOAB"` has no error on a Gaussian target with exact gradients, at any stable step.

References
----------
Chen, Fox & Guestrin (2014), *Stochastic gradient Hamiltonian Monte Carlo*, ICML. Their learning
rate is our $h^2$, their $\alpha$ our $h\gamma$.
Chen, Ding & Carin (2015), *On the convergence of SG-MCMC algorithms with high-order integrators*.
"""

import numpy as np

from isotherm.coordinates.linear import Coordinates
from isotherm.dynamics.langevin import langevin
from isotherm.random import Noise
from isotherm.schedules import require_nonnegative
from isotherm.tree import is_traced
from isotherm.types import GradFn, Sampler, Scalar, ScalarOrSchedule


def sghmc(
    grad_fn: GradFn | None,
    step_size: ScalarOrSchedule,
    friction: Scalar = 1.0,
    *,
    integrator: str | None = None,
    noise_estimate: Scalar = 0.0,
    temperature: Scalar = 1.0,
    noise: str | Noise = "gaussian",
    coordinates: Coordinates | None = None,
) -> Sampler:
    r"""Build an SGHMC sampler.

    Parameters
    ----------
    grad_fn, step_size, integrator, temperature, noise, coordinates
        As in `isotherm.msgnht`.
    friction
        $\gamma \ge 0$; 1/time.
    noise_estimate
        $\hat B$: estimate of the noise that the gradients inject, at most $\gamma$.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> sampler = sghmc(lambda x, batch: -x, step_size=0.1, integrator="BAOAB")
    >>> state = sampler.init(jnp.zeros(2), jax.random.key(0))
    >>> state, info = sampler.step(jax.random.key(1), state, batch=None)
    >>> int(state.step_index)
    1
    """
    require_nonnegative("friction", friction)
    require_nonnegative("noise_estimate", noise_estimate)
    diffusion = friction - noise_estimate
    if not is_traced(diffusion) and not np.all(diffusion >= 0):
        raise ValueError(
            f"`noise_estimate` must be at most `friction` ({friction}), got {noise_estimate}."
        )
    return langevin(
        grad_fn,
        step_size,
        diffusion,
        thermostat="fixed",
        initial_thermostat=friction,
        integrator=integrator,
        temperature=temperature,
        noise=noise,
        coordinates=coordinates,
        name="sghmc",
    )
