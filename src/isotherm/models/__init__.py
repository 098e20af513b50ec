"""Models: log priors, log likelihoods and predictions as functions of a position."""

from isotherm.models.networks import Network, lenet, mlp

__all__ = ["Network", "lenet", "mlp"]
