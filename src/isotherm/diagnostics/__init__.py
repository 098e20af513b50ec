"""Diagnostics: pure functions of draws, momenta, gradients and predictions.

- `temperature`: kinetic and configurational temperature of every tensor.
- `convergence`: effective sample size and R-hat.
- `noise`: variance of the gradients, and the step size that it allows.
- `stein_discrepancy`: kernel Stein discrepancy, which also detects bias that all chains share.
- `grid`: divergences between densities on a grid, for targets of one dimension.
- `predictions`: predictions averaged over draws.
- `calibration`: scores and calibration of predictions.
- `mixtures`: predictive distributions that are mixtures over draws.
- `proper_scores`: CRPS, interval score, log predictive density.
- `pit`: probability integral transforms and their histogram.
- `smooth_calibration`: calibration error without bins.
- `selective`: risk against coverage.
- `conformal`: intervals and sets with a guaranteed coverage.
"""

from isotherm.diagnostics.calibration import (
    Reliability,
    accuracy,
    adaptive_calibration_error,
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
from isotherm.diagnostics.conformal import (
    ConformalIntervals,
    ConformalSets,
    conformal_intervals,
    conformal_sets,
)
from isotherm.diagnostics.convergence import ess, rhat
from isotherm.diagnostics.grid import authors_kl, grid_density, symmetric_kl, total_variation
from isotherm.diagnostics.mixtures import Mixture, gaussian_mixture, student_t_mixture
from isotherm.diagnostics.noise import (
    euler_lifetime,
    gradient_noise,
    largest_step_size,
    noise_ratio,
)
from isotherm.diagnostics.pit import PITHistogram, pit_histogram, pit_values, randomized_pit
from isotherm.diagnostics.predictions import WithEntropy
from isotherm.diagnostics.proper_scores import PredictiveDensity, crps, interval_score, lppd
from isotherm.diagnostics.selective import RiskCoverage, aurc, risk_coverage
from isotherm.diagnostics.smooth_calibration import smooth_calibration_error
from isotherm.diagnostics.stein_discrepancy import ksd, ksd_floor
from isotherm.diagnostics.temperature import (
    configurational_temperature,
    kinetic_temperature,
    temperature_band,
    temperature_table,
    virial,
)

__all__ = [
    "ConformalIntervals",
    "ConformalSets",
    "Mixture",
    "PITHistogram",
    "PredictiveDensity",
    "Reliability",
    "RiskCoverage",
    "WithEntropy",
    "accuracy",
    "adaptive_calibration_error",
    "aurc",
    "auroc",
    "authors_kl",
    "brier_score",
    "classifier_scores",
    "configurational_temperature",
    "conformal_intervals",
    "conformal_sets",
    "crps",
    "ess",
    "euler_lifetime",
    "expected_calibration_error",
    "gaussian_mixture",
    "gradient_noise",
    "grid_density",
    "interval_score",
    "kinetic_temperature",
    "ksd",
    "ksd_floor",
    "largest_step_size",
    "lppd",
    "mutual_information",
    "negative_log_likelihood",
    "noise_ratio",
    "pit_histogram",
    "pit_values",
    "predictive_entropy",
    "randomized_pit",
    "regressor_scores",
    "reliability",
    "rhat",
    "risk_coverage",
    "smooth_calibration_error",
    "student_t_mixture",
    "symmetric_kl",
    "temperature_band",
    "temperature_table",
    "total_variation",
    "virial",
]
