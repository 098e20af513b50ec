"""Pure functions of draws, momenta, gradients and predictions; they know no sampler and no loop.

- `temperature`: is every tensor at the temperature it should have?
- `convergence`: effective sample size and R-hat.
- `noise`: how noisy the gradients are, and the step size they allow.
- `stein_discrepancy`: kernel Stein discrepancy, which sees bias that the others cannot.
- `grid`: divergences between densities on a grid, for targets of one dimension.
- `predictions`: predictions averaged over draws.
- `calibration`: scores of predictions.
"""

from isotherm.diagnostics.convergence import ess, rhat
from isotherm.diagnostics.noise import gradient_noise, noise_ratio
from isotherm.diagnostics.stein_discrepancy import ksd
from isotherm.diagnostics.temperature import configurational_temperature, kinetic_temperature

__all__ = [
    "configurational_temperature",
    "ess",
    "gradient_noise",
    "kinetic_temperature",
    "ksd",
    "noise_ratio",
    "rhat",
]
