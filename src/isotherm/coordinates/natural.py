r"""Sampler settings for natural coordinates, where the posterior is close to a standard normal.

There every direction has curvature 1, and the same dimensionless settings fit every problem. In
coordinates whose largest curvature is $\lambda$ they become $D\sqrt\lambda$, $\mu/\lambda$ and
$h/\sqrt\lambda$.
"""

DIFFUSION = 1.0
"""Injected noise $D$: about one damping time per oscillation."""
THERMOSTAT_MASS = 10.0
r"""Thermostat mass $\mu$: the thermostat responds within $\sqrt\mu$, a few oscillations."""
LARGEST_STEP = 0.1
"""Largest step size $h$: the discretisation error of the variances is still below 1 %."""
