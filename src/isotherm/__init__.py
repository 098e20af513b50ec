"""isotherm: Bayesian posterior sampling for deep models at the price of SGD.

The public names, one path each; nothing is imported before it is asked for.
"""

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isotherm.batches import (
        full_batch,
        generated_batches,
        independent_batches,
        no_batches,
        shuffled_batches,
        symmetric_batches,
    )
    from isotherm.checkpoint import CheckpointWarning
    from isotherm.collect import average, draws, moments
    from isotherm.coordinates import Dense, Diagonal, Identity, diagonal, eigenbasis
    from isotherm.diagnostics.convergence import ess, rhat
    from isotherm.diagnostics.gradient_noise import gradient_noise, noise_ratio
    from isotherm.diagnostics.ksd import ksd
    from isotherm.diagnostics.temperature import configurational_temperature, kinetic_temperature
    from isotherm.dynamics.integrators import parse
    from isotherm.dynamics.langevin import langevin
    from isotherm.estimators.deep_topics import ThermostatDPFA
    from isotherm.estimators.linear import BayesianLinearRegression
    from isotherm.estimators.logistic import BayesianLogisticRegression
    from isotherm.estimators.network import BayesianMLPClassifier, BayesianMLPRegressor
    from isotherm.estimators.topics import ThermostatLDA
    from isotherm.gradients import control_variates, minibatch_gradient
    from isotherm.interop.equinox import from_equinox
    from isotherm.interop.flax_linen import from_linen
    from isotherm.interop.flax_nnx import from_nnx
    from isotherm.interop.numpyro import from_numpyro
    from isotherm.interop.optax import as_optax
    from isotherm.kronecker import Kronecker, kronecker_eigenbasis
    from isotherm.loop import chain, sample
    from isotherm.loop.arguments import PolicyWarning
    from isotherm.loop.chains import RollbackWarning
    from isotherm.loop.chunks import compiler_options
    from isotherm.loop.devices import LostProcessError
    from isotherm.loop.health import HealthWarning
    from isotherm.models.networks import Network, lenet, mlp
    from isotherm.prediction import predictions, predictive
    from isotherm.runs import DivergedError, Run
    from isotherm.samplers.msgnht import msgnht
    from isotherm.samplers.psgld import psgld
    from isotherm.samplers.sghmc import sghmc
    from isotherm.samplers.sgld import sgld
    from isotherm.samplers.sgnht import sgnht
    from isotherm.samplers.sgrld import sgrld
    from isotherm.saved_runs import load_run, save_run
    from isotherm.schedules import cyclical, halving, polynomial
    from isotherm.shards import sharded_batches
    from isotherm.types import Sampler, StepInfo
    from isotherm.warmstart import WarmStart, find_mode, warm_start

_HOME = {
    "batches": "full_batch generated_batches independent_batches no_batches shuffled_batches "
    "symmetric_batches",
    "checkpoint": "CheckpointWarning",
    "collect": "average draws moments",
    "coordinates": "Dense Diagonal Identity diagonal eigenbasis",
    "diagnostics.convergence": "ess rhat",
    "diagnostics.gradient_noise": "gradient_noise noise_ratio",
    "diagnostics.ksd": "ksd",
    "diagnostics.temperature": "configurational_temperature kinetic_temperature",
    "dynamics.integrators": "parse",
    "dynamics.langevin": "langevin",
    "estimators.deep_topics": "ThermostatDPFA",
    "estimators.linear": "BayesianLinearRegression",
    "estimators.logistic": "BayesianLogisticRegression",
    "estimators.network": "BayesianMLPClassifier BayesianMLPRegressor",
    "estimators.topics": "ThermostatLDA",
    "gradients": "control_variates minibatch_gradient",
    "interop.equinox": "from_equinox",
    "interop.flax_linen": "from_linen",
    "interop.flax_nnx": "from_nnx",
    "interop.numpyro": "from_numpyro",
    "interop.optax": "as_optax",
    "kronecker": "Kronecker kronecker_eigenbasis",
    "loop": "chain sample",
    "loop.arguments": "PolicyWarning",
    "loop.chains": "RollbackWarning",
    "loop.chunks": "compiler_options",
    "loop.devices": "LostProcessError",
    "loop.health": "HealthWarning",
    "models.networks": "Network lenet mlp",
    "prediction": "predictions predictive",
    "runs": "DivergedError Run",
    "samplers.msgnht": "msgnht",
    "samplers.psgld": "psgld",
    "samplers.sghmc": "sghmc",
    "samplers.sgld": "sgld",
    "samplers.sgnht": "sgnht",
    "samplers.sgrld": "sgrld",
    "saved_runs": "load_run save_run",
    "schedules": "cyclical halving polynomial",
    "shards": "sharded_batches",
    "types": "Sampler StepInfo",
    "warmstart": "WarmStart find_mode warm_start",
}
_WHERE = {name: module for module, names in _HOME.items() for name in names.split()}

__version__ = version("isotherm")
__all__ = sorted([*_WHERE, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _WHERE:
        raise AttributeError(f"module 'isotherm' has no attribute {name!r}")
    return getattr(importlib.import_module(f"isotherm.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
