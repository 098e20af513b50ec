"""Diagnostics: pure functions of draws, momenta, gradients and predictions.

- `temperature`: kinetic and configurational temperature of every tensor.
- `convergence`: effective sample size and R-hat.
- `noise`: variance of the gradients, and the step size that it allows.
- `stein_discrepancy`: kernel Stein discrepancy, which also detects bias that all chains share.
- `grid`: divergences between densities on a grid, for targets of one dimension.
- `predictions`: predictions averaged over draws.
- `calibration`: scores and calibration of predictions.
"""

from isotherm.diagnostics.calibration import (
    Reliability,
    accuracy,
    auroc,
    brier_score,
    classifier_scores,
    expected_calibration_error,
    mutual_information,
    negative_log_likelihood,
    predictive_entropy,
    regressor_scores,
    reliability,
)
from isotherm.diagnostics.convergence import ess, rhat
from isotherm.diagnostics.grid import authors_kl, grid_density, symmetric_kl, total_variation
from isotherm.diagnostics.noise import (
    euler_lifetime,
    gradient_noise,
    largest_step_size,
    noise_ratio,
)
from isotherm.diagnostics.predictions import WithEntropy
from isotherm.diagnostics.stein_discrepancy import ksd, ksd_floor
from isotherm.diagnostics.temperature import (
    configurational_temperature,
    kinetic_temperature,
    temperature_band,
    temperature_table,
    virial,
)

__all__ = [
    "Reliability",
    "WithEntropy",
    "accuracy",
    "auroc",
    "authors_kl",
    "brier_score",
    "classifier_scores",
    "configurational_temperature",
    "ess",
    "euler_lifetime",
    "expected_calibration_error",
    "gradient_noise",
    "grid_density",
    "kinetic_temperature",
    "ksd",
    "ksd_floor",
    "largest_step_size",
    "mutual_information",
    "negative_log_likelihood",
    "noise_ratio",
    "predictive_entropy",
    "regressor_scores",
    "reliability",
    "rhat",
    "symmetric_kl",
    "temperature_band",
    "temperature_table",
    "total_variation",
    "virial",
]
