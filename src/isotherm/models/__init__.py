"""Log densities and predictions: `log_prior`, `log_likelihood`, `predict`."""

from isotherm.models.networks import Network, lenet, mlp

__all__ = ["Network", "lenet", "mlp"]
