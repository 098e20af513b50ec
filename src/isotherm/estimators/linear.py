"""Bayesian linear regression, with scikit-learn's interface."""

import os
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from isotherm.estimators.base import check_positive
from isotherm.estimators.design_svd import column_statistics, means_and_sds
from isotherm.estimators.linear_model import (
    BayesianLinearModel,
    check_num_coefficients,
    linear_predictors,
)
from isotherm.estimators.linear_posterior import LinearTarget, linear_target


class BayesianLinearRegression(RegressorMixin, BayesianLinearModel):
    r"""Linear regression with draws from the posterior of coefficients and noise.

    $y = \alpha + x^\top\beta + \varepsilon$ with $\varepsilon \sim \mathcal N(0, \sigma^2)$, and
    the prior

    $$ \beta_j \sim \mathcal N(0, v\,s_y^2/s_j^2), \qquad
       \alpha + \bar x^\top\beta \sim \mathcal N(\bar y, v\,s_y^2), \qquad
       \sigma \sim \text{half-Cauchy}(s_y), $$

    independently, with the mean $\bar x_j$ and the scale $s_j$ of each feature, and $\bar y$ and
    $s_y$ of the target. A scale is a standard deviation; for a feature with two values it is their
    distance, and for one that is mostly 0 the root mean square of its other values
    (`isotherm.estimators.design_svd` says why). In words: coefficients of standardised features and
    target have a prior standard deviation of 2.5, and the prior does not depend on units of
    measurement. Coefficients are reported in the original units.

    The sampler is mSGNHT-S in natural coordinates (`isotherm.estimators.linear_posterior` has the
    mathematics). There are no settings to tune: features need no scaling, may be constant, repeated
    or collinear, and there may be more of them than rows. There is no batch size: one triangular
    matrix is a sufficient statistic of all rows, and gradients are exact. `partial_fit` updates
    this matrix; rows are not stored.

    Parameters
    ----------
    prior_variance
        $v$.
    standardize
        Whether the prior applies to coefficients of standardised features. With `False` it applies
        to the coefficients in the original units, including the intercept:
        $\beta_j, \alpha \sim \mathcal N(0, v)$ and $\sigma \sim \text{half-Cauchy}(1)$.
    noise_variance
        $\sigma^2$ in squared units of the target, if it is known; by default it is sampled.
    fit_intercept
        Whether there is an intercept. Without one, features are not centred, and their root mean
        square replaces the standard deviation.
    num_draws
        Draws per chain. With the default the effective sample size is about 6000: the Monte Carlo
        error is 1 % of a standard deviation for standard deviations, and 1.3 % for means.
    num_chains
        Number of independent chains.
    thin
        Steps between draws; by default two units of time.
    burn_in
        Steps before the first draw; by default fifty units of time.
    random_state
        A seed, a `numpy.random.RandomState`, or `None`.
    verbose
        Whether to show a progress bar.
    checkpoint
        A folder in which the state of a run is saved. An interrupted fit resumes from it when it is
        repeated with the same rows, settings and `random_state`; the result is the same, bit for
        bit.

    Attributes
    ----------
    coef_
        Posterior means of the coefficients, (features,).
    intercept_
        Posterior mean of the intercept.
    noise_variance_
        Posterior mean of $\sigma^2$.
    draws_
        Draws by name, with leading axes `(chain, draw)`: `"coef"` (chain, draw, features),
        `"intercept"` and `"noise_variance"` (chain, draw).
    diagnostics_
        R-hat, effective sample sizes, temperatures, step size and divergences; prints as a table.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> x, y = load_diabetes(return_X_y=True)
    >>> model = BayesianLinearRegression(num_draws=200, random_state=0).fit(x, y)
    >>> mean, sd = model.predict(x[:1], return_std=True)
    >>> mean.round(-1), sd.round(-1)
    (array([210.]), array([50.]))
    """

    noise_variance_: float

    def __init__(
        self,
        *,
        prior_variance: float = 6.25,
        noise_variance: float | None = None,
        standardize: bool = True,
        fit_intercept: bool = True,
        num_draws: int = 2000,
        num_chains: int = 4,
        thin: int | None = None,
        burn_in: int | None = None,
        random_state: Any = None,
        verbose: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        chains = (num_draws, num_chains, thin, burn_in, random_state, verbose, checkpoint)
        super().__init__(standardize, fit_intercept, prior_variance, *chains)
        self.noise_variance = noise_variance

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Continue the chains, for more draws or with more data.

        If rows and weights are those of the last call, the chains add `num_draws` draws of the same
        posterior. Other rows are added to those of earlier calls, and the draws of the old
        posterior are dropped. Before the first fit this is `fit`.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        """
        reset = not self.__sklearn_is_fitted__()
        return self._update(X, y, reset=reset, sample_weight=sample_weight)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        r"""Predict the mean of each row and, optionally, its standard deviation.

        Parameters
        ----------
        X
            (rows, features), dense or SciPy sparse.
        return_std
            Whether to return a pair `(mean, sd)`, where `sd` is the standard deviation of a new
            observation: the square root of the variance of $\alpha + x^\top\beta$ over draws plus
            the mean of $\sigma^2$.
        """
        check_is_fitted(self)
        X = self._check_features(X)
        mean = np.asarray(X @ self.coef_) + self.intercept_
        if not return_std:
            return mean
        coef = self.draws_["coef"].reshape(-1, len(self.coef_)) - self.coef_
        intercept = self.draws_["intercept"].ravel() - self.intercept_
        sd = [_root_mean_square(z) for z in linear_predictors(X, coef, intercept)]
        return mean, np.hypot(np.concatenate(sd), np.sqrt(self.noise_variance_))

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.noise_variance is not None:
            check_positive(self.noise_variance, "noise_variance")

    def _validate_rows(self, X: Any, y: Any, reset: bool, classes: Any) -> tuple[Any, np.ndarray]:
        options = {"accept_sparse": "csr", "dtype": np.float64, "y_numeric": True}
        X, y = validate_data(self, X, y, reset=reset, **options)
        check_num_coefficients(X.shape[1] + self.fit_intercept)
        return X, np.asarray(y, np.float64)

    def _append_rows(
        self, data: Any, X: Any, y: np.ndarray, weights: np.ndarray | None = None
    ) -> Any:
        pair = [X, y[:, None]]
        both = sparse.hstack(pair, format="csr") if sparse.issparse(X) else np.hstack(pair)
        return column_statistics(both, data, weights)

    def _build_target(self, data: Any) -> LinearTarget:
        means, sds = means_and_sds(data, centered=self.fit_intercept)
        mean, scale = (means[-1], sds[-1]) if self.standardize else (0.0, 1.0)
        column = (data.factor[:, -1] - mean * data.factor[:, 0]) / scale
        noise_variance = None if self.noise_variance is None else self.noise_variance / scale**2
        svd = self._design_svd(data.features)
        return linear_target(svd, column, scale, mean, data.num_rows, noise_variance)


def _root_mean_square(values: np.ndarray) -> np.ndarray:
    """Return the root of the mean square of every row, also where squares overflow."""
    largest = np.max(np.abs(values), axis=1, keepdims=True)
    scale = np.where(largest > 0, largest, 1.0)
    return scale[:, 0] * np.sqrt(np.mean((values / scale) ** 2, axis=1))
