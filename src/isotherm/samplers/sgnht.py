r"""Stochastic gradient Nosé–Hoover thermostat: one friction for all coordinates.

$$ d\theta = p\,dt, \qquad
   dp = \hat g(\theta)\,dt - \xi\,p\,dt + \sqrt{2DT}\,dW, \qquad
   d\xi = \Bigl(\frac{p^\top p}{d} - T\Bigr)\Big/\mu\,dt. $$

One $\xi$ is driven by the mean kinetic temperature of all $d$ coordinates (`thermostat="scalar"`),
or of each leaf of the position (`"per_tensor"`). It absorbs gradient noise exactly only if the
noise is isotropic over the coordinates that share a $\xi$; otherwise some coordinates are too hot
and others too cold, with the correct mean. Integrators and their errors are those of
`isotherm.msgnht`. State: two positions and one number (per leaf).

References
----------
Ding et al. (2014), *Bayesian sampling using stochastic gradient thermostats*, NeurIPS. Their $A$ is
our `diffusion`.
"""

from isotherm.coordinates.linear import Coordinates
from isotherm.dynamics.langevin import langevin
from isotherm.dynamics.thermostats import check_thermostat
from isotherm.random import Noise
from isotherm.types import GradFn, Sampler, Scalar, ScalarOrSchedule


def sgnht(
    grad_fn: GradFn | None,
    step_size: ScalarOrSchedule,
    diffusion: Scalar = 1.0,
    *,
    integrator: str | None = None,
    thermostat: str = "scalar",
    thermostat_mass: Scalar = 1.0,
    initial_thermostat: Scalar | str | None = None,
    temperature: Scalar = 1.0,
    noise: str | Noise = "gaussian",
    coordinates: Coordinates | None = None,
) -> Sampler:
    r"""Build an SGNHT sampler; the parameters are those of `isotherm.msgnht`.

    Parameters
    ----------
    grad_fn, step_size, diffusion, integrator, initial_thermostat, temperature, noise, coordinates
        As in `isotherm.msgnht`.
    thermostat
        `"scalar"` or `"per_tensor"`.
    thermostat_mass
        $\mu > 0$, per coordinate: the stationary variance of $\xi$ is $T/(d\mu)$.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> sampler = sgnht(lambda x, batch: -x, step_size=0.1, integrator="BADODAB")
    >>> sampler.init(jnp.zeros(2), jax.random.key(0)).thermostat.shape
    ()
    """
    return langevin(
        grad_fn,
        step_size,
        diffusion,
        thermostat=check_thermostat(thermostat, ("scalar", "per_tensor")),
        thermostat_mass=thermostat_mass,
        initial_thermostat=initial_thermostat,
        integrator=integrator,
        temperature=temperature,
        noise=noise,
        coordinates=coordinates,
        name="sgnht",
    )
