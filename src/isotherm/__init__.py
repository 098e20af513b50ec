"""isotherm: Bayesian posterior sampling for deep models at the price of SGD.

The public names, one path each; nothing is imported before it is used.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING

from isotherm.imports import lazy_names

if TYPE_CHECKING:
    from isotherm import coordinates, diagnostics, exceptions, loop, models, schedules
    from isotherm.batches.generated import generated_batches, no_batches
    from isotherm.batches.in_memory import (
        full_batch,
        independent_batches,
        shuffled_batches,
        symmetric_batches,
    )
    from isotherm.batches.sharded import sharded_batches
    from isotherm.batches.streamed import streamed_batches
    from isotherm.diagnostics.predictions import posterior_predictive
    from isotherm.dynamics.integrators import parse_integrator
    from isotherm.dynamics.langevin import langevin
    from isotherm.estimators.linear import BayesianLinearRegression
    from isotherm.estimators.logistic import BayesianLogisticRegression
    from isotherm.estimators.network import BayesianMLPClassifier, BayesianMLPRegressor
    from isotherm.gradients.balanced import balanced
    from isotherm.gradients.control_variates import control_variates
    from isotherm.gradients.minibatch import minibatch_gradient
    from isotherm.interop.equinox import from_equinox
    from isotherm.interop.flax_linen import from_linen
    from isotherm.interop.flax_nnx import from_nnx
    from isotherm.interop.numpyro import from_numpyro
    from isotherm.interop.optax import as_optax
    from isotherm.loop import collect
    from isotherm.loop.find_mode import find_mode
    from isotherm.loop.sampling import run_chain, sample
    from isotherm.loop.saved_runs import load_run, save_run
    from isotherm.loop.warm_start import warm_start
    from isotherm.samplers.msgnht import msgnht
    from isotherm.samplers.psgld import psgld
    from isotherm.samplers.sghmc import sghmc
    from isotherm.samplers.sgld import sgld
    from isotherm.samplers.sgnht import sgnht
    from isotherm.samplers.sgrld import sgrld
    from isotherm.topics.estimators.dpfa import BayesianDPFA
    from isotherm.topics.estimators.lda import BayesianLDA
    from isotherm.types import Sampler

_FAMILIES = {
    # samplers
    "dynamics.langevin": "langevin",
    "samplers.msgnht": "msgnht",
    "samplers.psgld": "psgld",
    "samplers.sghmc": "sghmc",
    "samplers.sgld": "sgld",
    "samplers.sgnht": "sgnht",
    "samplers.sgrld": "sgrld",
    "dynamics.integrators": "parse_integrator",
    "types": "Sampler",
    # running
    "loop.sampling": "run_chain sample",
    "loop.find_mode": "find_mode",
    "loop.warm_start": "warm_start",
    "loop.saved_runs": "load_run save_run",
    "diagnostics.predictions": "posterior_predictive",
    # batches
    "batches.generated": "generated_batches no_batches",
    "batches.in_memory": "full_batch independent_batches shuffled_batches symmetric_batches",
    "batches.sharded": "sharded_batches",
    "batches.streamed": "streamed_batches",
    # gradients
    "gradients.balanced": "balanced",
    "gradients.control_variates": "control_variates",
    "gradients.minibatch": "minibatch_gradient",
    # estimators
    "estimators.linear": "BayesianLinearRegression",
    "estimators.logistic": "BayesianLogisticRegression",
    "estimators.network": "BayesianMLPClassifier BayesianMLPRegressor",
    "topics.estimators.dpfa": "BayesianDPFA",
    "topics.estimators.lda": "BayesianLDA",
    # other libraries
    "interop.equinox": "from_equinox",
    "interop.flax_linen": "from_linen",
    "interop.flax_nnx": "from_nnx",
    "interop.numpyro": "from_numpyro",
    "interop.optax": "as_optax",
}
_NAMESPACES = (
    "loop.collect",
    "coordinates",
    "diagnostics",
    "exceptions",
    "loop",
    "models",
    "schedules",
)
_MOVED = {
    "CheckpointWarning": "isotherm.exceptions.CheckpointWarning",
    "Dense": "isotherm.coordinates.Dense",
    "Diagonal": "isotherm.coordinates.Diagonal",
    "DivergedError": "isotherm.exceptions.DivergedError",
    "HealthWarning": "isotherm.exceptions.HealthWarning",
    "Identity": "isotherm.coordinates.Identity",
    "Kronecker": "isotherm.coordinates.Kronecker",
    "LostProcessError": "isotherm.exceptions.LostProcessError",
    "Network": "isotherm.models.Network",
    "PolicyWarning": "isotherm.exceptions.PolicyWarning",
    "RollbackWarning": "isotherm.exceptions.RollbackWarning",
    "Run": "isotherm.loop.Run",
    "StepInfo": "isotherm.types.StepInfo",
    "ThermostatDPFA": "isotherm.BayesianDPFA",
    "ThermostatLDA": "isotherm.BayesianLDA",
    "WarmStart": "isotherm.loop.WarmStart",
    "average": "isotherm.collect.average",
    "chain": "isotherm.run_chain",
    "compiler_options": "isotherm.loop.compiler_options",
    "configurational_temperature": "isotherm.diagnostics.configurational_temperature",
    "cyclical": "isotherm.schedules.cyclical",
    "diagonal": "isotherm.coordinates.diagonal",
    "draws": "isotherm.collect.draws",
    "eigenbasis": "isotherm.coordinates.eigenbasis",
    "ess": "isotherm.diagnostics.ess",
    "gradient_noise": "isotherm.diagnostics.gradient_noise",
    "halving": "isotherm.schedules.halving",
    "kinetic_temperature": "isotherm.diagnostics.kinetic_temperature",
    "kronecker_eigenbasis": "isotherm.coordinates.kronecker_eigenbasis",
    "ksd": "isotherm.diagnostics.ksd",
    "lenet": "isotherm.models.lenet",
    "mlp": "isotherm.models.mlp",
    "moments": "isotherm.collect.moments",
    "noise_ratio": "isotherm.diagnostics.noise_ratio",
    "parse": "isotherm.parse_integrator",
    "polynomial": "isotherm.schedules.polynomial",
    "predictions": "isotherm.collect.probabilities",
    "predictive": "isotherm.posterior_predictive",
    "rhat": "isotherm.diagnostics.rhat",
}
"""Names of version 0.1 and what replaced them."""

__version__ = version("isotherm")
__getattr__, __dir__, _names = lazy_names(__name__, _FAMILIES, namespaces=_NAMESPACES, moved=_MOVED)
__all__ = [*_names, "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]
