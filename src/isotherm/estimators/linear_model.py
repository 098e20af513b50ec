"""Base class of the regressions with coefficients and an intercept."""

from collections.abc import Iterator
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from sklearn.utils import check_scalar
from sklearn.utils.validation import check_is_fitted, validate_data

from isotherm.estimators.base import BayesianEstimator
from isotherm.estimators.design_svd import ColumnStatistics, DesignSVD, design_svd
from isotherm.estimators.sampling import Draws
from isotherm.tree import refuse_masked

MAX_COEFFICIENTS = 10_000
"""The map to natural coordinates is a square matrix of this size."""


class BayesianLinearModel(BayesianEstimator):
    """An estimator with coefficients and an intercept, for dense or sparse rows."""

    coef_: np.ndarray
    intercept_: Any
    _draws: Draws

    def __init__(self, standardize: bool, fit_intercept: bool, *settings: Any) -> None:
        super().__init__(*settings)
        self.standardize = standardize
        self.fit_intercept = fit_intercept

    def __sklearn_tags__(self) -> Any:
        """Declare that sparse rows are accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Draw from the posterior given these rows.

        Parameters
        ----------
        X
            (rows, features).
        y
            (rows,).
        sample_weight
            (rows,), not negative: the log likelihood of each row is multiplied by its weight, so
            that a row of weight 2 counts as two equal rows, and one of weight 0 not at all.
        """
        return self._update(X, y, reset=True, sample_weight=sample_weight)

    @property
    def draws_(self) -> Draws:
        """Draws of the coefficients by name, with leading axes `(chain, draw)`."""
        check_is_fitted(self)
        return self._draws

    def _check_settings(self) -> None:
        super()._check_settings()
        check_scalar(self.fit_intercept, "fit_intercept", (bool, np.bool_))

    def _check_features(self, X: Any) -> Any:
        """Check the features of rows to predict."""
        refuse_masked(X=X)
        return validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)

    def _design_svd(self, columns: ColumnStatistics) -> DesignSVD:
        """Decompose the design under the prior of the settings."""
        return design_svd(
            columns,
            prior_variance=self.prior_variance,
            standardize=self.standardize,
            fit_intercept=self.fit_intercept,
        )

    def _transfer_state(self, target: Any) -> Any:
        last = {name: draws[:, -1] for name, draws in self.draws_.items()}
        position = jnp.asarray(target.to_positions(last), jnp.float32)
        return self._run.state._replace(position=position)

    def _set_fitted_attributes(self) -> None:
        self._draws = self._target.to_parameters(self._run.draws)
        for name, draws in self._draws.items():
            setattr(self, f"{name}_", draws.mean((0, 1))[()])


def check_num_coefficients(num_coefficients: int) -> None:
    """Raise if the map to natural coordinates would be too large."""
    if num_coefficients > MAX_COEFFICIENTS:
        raise ValueError(
            f"{num_coefficients} coefficients are too many: the limit is {MAX_COEFFICIENTS}, "
            "because the sampler needs a square matrix of this size. Select or project features."
        )


def linear_predictors(
    X: Any, coef: np.ndarray, intercept: np.ndarray, block_size: int = 2**22
) -> Iterator[np.ndarray]:
    """Yield linear predictors of all draws, (rows, draws, …), for a block of rows at a time.

    Parameters
    ----------
    X
        (rows, features), dense or SciPy sparse.
    coef
        (draws, …, features).
    intercept
        (draws, …).
    block_size
        Largest number of entries of a block.
    """
    flat = coef.reshape(-1, coef.shape[-1]).T
    size = max(1, block_size // flat.shape[1])
    for start in range(0, X.shape[0], size):
        z = np.asarray(X[start : start + size] @ flat)
        yield z.reshape(-1, *intercept.shape) + intercept
