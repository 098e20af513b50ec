"""Models: log priors, log likelihoods and predictions as functions of a position."""

from isotherm.models.last_layer import last_layer
from isotherm.models.likelihoods import (
    Bernoulli,
    Categorical,
    CuratedLabels,
    Gaussian,
    Likelihood,
    NoisyDirichlet,
    Ordinal,
    Poisson,
    StudentT,
    UserLikelihood,
)
from isotherm.models.networks import (
    Network,
    build_network,
    lenet,
    mlp,
)
from isotherm.models.priors import (
    LaplacePrior,
    LearnedScales,
    NormalPrior,
    StudentTPrior,
    fan_ins,
    localised_prior,
)
from isotherm.models.scale_priors import (
    Gamma,
    HalfCauchy,
    HalfNormal,
)
from isotherm.models.subnetwork import subnetwork
from isotherm.models.transforms import (
    Constraints,
    Interval,
    Ordered,
    Positive,
    Real,
    Simplex,
)

__all__ = [
    "Bernoulli",
    "Categorical",
    "Constraints",
    "CuratedLabels",
    "Gamma",
    "Gaussian",
    "HalfCauchy",
    "HalfNormal",
    "Interval",
    "LaplacePrior",
    "LearnedScales",
    "Likelihood",
    "Network",
    "NoisyDirichlet",
    "NormalPrior",
    "Ordered",
    "Ordinal",
    "Poisson",
    "Positive",
    "Real",
    "Simplex",
    "StudentT",
    "StudentTPrior",
    "UserLikelihood",
    "build_network",
    "fan_ins",
    "last_layer",
    "lenet",
    "localised_prior",
    "mlp",
    "subnetwork",
]
