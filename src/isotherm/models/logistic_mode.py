r"""The mode of a logistic regression's posterior, by Newton's method in double precision.

$$ \log\pi(\theta) = \sum_i \log p(y_i \mid x_i, \theta) - \tfrac12\sum_j \theta_j^2/v_j
   + \text{const} $$

The likelihood is that of `isotherm.models.logistic`; weights are flat, (features, outputs) in
row-major order, with one output for two classes and one per class for more. The log density is
concave, so the mode is unique.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import expit, logsumexp

from isotherm.coordinates.newton import newton_ascent


@dataclass(frozen=True)
class LogisticLogDensity:
    """The log posterior density of a logistic regression, with its gradient and curvature."""

    x: np.ndarray
    """(rows, features)."""
    target: np.ndarray
    """Labels as 0 or 1, (rows, outputs)."""
    precision: np.ndarray
    """Prior precision of each weight, (features * outputs,)."""
    row_weights: np.ndarray
    """By which the log likelihoods of the rows are multiplied, (rows,)."""

    def value_and_gradient(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities (points,) and gradients (points, d) at weights (points, d)."""
        z, each = self._logits(weights), self.row_weights[:, None]
        log_likelihood = np.einsum("nk,nkc->c", each * self.target, z)
        if self.target.shape[1] == 1:
            probability = expit(z)
            log_likelihood -= (each * np.logaddexp(0, z[:, 0])).sum(0)
        else:
            total = np.asarray(logsumexp(z, axis=1, keepdims=True))
            probability = np.exp(z - total)
            log_likelihood -= (each * total[:, 0]).sum(0)
        residual = each * (self.target[:, :, None] - probability).reshape(len(self.x), -1)
        gradient = (self.x.T @ residual).reshape(self.precision.size, -1).T
        return (
            log_likelihood - 0.5 * weights**2 @ self.precision,
            gradient - self.precision * weights,
        )

    def curvature(self, weights: np.ndarray) -> np.ndarray:
        """Return the Hessian of the negative log density at one point, (d, d)."""
        z = self._logits(weights[None])[:, :, 0]
        if z.shape[1] == 1:
            p = expit(z)
        else:
            p = np.exp(z - logsumexp(z, axis=1, keepdims=True))
        covariance = p[:, :, None] * (np.eye(p.shape[1]) - p[:, None, :])
        covariance *= self.row_weights[:, None, None]
        return weighted_block_gram(self.x, covariance) + np.diag(self.precision)

    def mode(self) -> np.ndarray:
        """Return the weights of the highest density, (d,)."""
        return newton_ascent(
            lambda weights: self.value_and_gradient(weights[None])[0][0],
            lambda weights: self.value_and_gradient(weights[None])[1][0],
            self.curvature,
            np.zeros(self.precision.size),
            min_decrement=1e-10,
        )

    def _logits(self, weights: np.ndarray) -> np.ndarray:
        """Return the logits at several points, (rows, outputs, points)."""
        flat = weights.T.reshape(self.x.shape[1], -1)
        return (self.x @ flat).reshape(*self.target.shape, -1)


def logistic_log_density(
    x: Any,
    y: np.ndarray,
    variance: np.ndarray,
    num_classes: int,
    row_weights: np.ndarray | None = None,
) -> LogisticLogDensity:
    """Build the log posterior density of a logistic regression.

    Parameters
    ----------
    x
        (rows, features), dense or SciPy sparse.
    y
        Labels 0, 1, …, `num_classes` - 1.
    variance
        Prior variance of each feature's weights.
    num_classes
        2 gives one weight per feature, more give one per feature and class.
    row_weights
        By which the log likelihoods of the rows are multiplied; by default 1.

    Examples
    --------
    >>> density = logistic_log_density(np.ones((3, 1)), np.array([0, 1, 1]), np.ones(1), 2)
    >>> density.mode().round(3)
    array([0.287])
    """
    x = x.toarray() if sparse.issparse(x) else np.asarray(x, np.float64)
    num_outputs = 1 if num_classes == 2 else num_classes
    target = y[:, None] if num_outputs == 1 else np.eye(num_classes)[y.astype(int)]
    row_weights = np.ones(len(target)) if row_weights is None else row_weights
    return LogisticLogDensity(x, target, np.repeat(1 / variance, num_outputs), row_weights)


def weighted_block_gram(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    r"""Return $\sum_i x_i x_i^\top \otimes W_i$ for symmetric matrices $W_i$.

    Parameters
    ----------
    x
        (rows, features).
    weights
        $W$, (rows, outputs, outputs).
    """
    num_features, num_outputs = x.shape[1], weights.shape[1]
    blocks = np.zeros((num_features, num_outputs, num_features, num_outputs))
    for a in range(num_outputs):
        for b in range(a + 1):
            blocks[:, a, :, b] = blocks[:, b, :, a] = (x.T * weights[:, a, b]) @ x
    return blocks.reshape(num_features * num_outputs, -1)
