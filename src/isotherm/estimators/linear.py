"""Bayesian linear regression, with scikit-learn's interface."""

import os
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from isotherm.estimators.base import ThermostatEstimator, linear_predictors, refuse_too_many
from isotherm.estimators.design_svd import gather, moments
from isotherm.estimators.linear_posterior import LinearTarget, linear_target


class BayesianLinearRegression(RegressorMixin, ThermostatEstimator):
    r"""Linear regression whose coefficients and noise are draws from their posterior.

    $y = \alpha + x^\top\beta + \varepsilon$ with $\varepsilon \sim \mathcal N(0, \sigma^2)$, and the prior

    $$ \beta_j \sim \mathcal N(0, v\,s_y^2/s_j^2), \qquad
       \alpha + \bar x^\top\beta \sim \mathcal N(\bar y, v\,s_y^2), \qquad
       \sigma \sim \text{half-Cauchy}(s_y), $$

    independently, with the mean $\bar x_j$ and the unit $s_j$ of each feature, and $\bar y$ and $s_y$ of the target. A unit is a
    standard deviation; for a feature with two values it is their distance, and for one that is mostly 0 the root mean square of
    its other values (`isotherm.estimators.design_svd` says why). In words: both are standardised, coefficients then have a
    standard deviation of 2.5, and what is measured in grams may be in kilograms. Coefficients are reported for the numbers as they are.

    Sampled by mSGNHT-S in natural coordinates (`isotherm.estimators.linear_posterior` has the mathematics). There is
    nothing to tune: features need no scaling, and may be constant, repeated or collinear, and more than
    there are rows. There is no batch size: all that the rows say fits into one triangular matrix, from which
    gradients are exact. `partial_fit` adds rows to it; rows are not kept.

    Parameters
    ----------
    prior_variance
        $v$.
    standardize
        Whether the prior is that of standardised features. `False` puts it on the coefficients as
        they are, intercept included: $\beta_j, \alpha \sim \mathcal N(0, v)$
        and $\sigma \sim \text{half-Cauchy}(1)$.
    noise_variance
        $\sigma^2$, in squared units of the target, if it is known; by default it is sampled.
    fit_intercept
        Whether there is an intercept. Without one, features are not centred, and their root mean
        square stands for the standard deviation.
    num_draws
        Draws to keep of each chain. With the default the effective sample size is about 6000, and the Monte
        Carlo error 1 % of standard deviations, and 0.013 of them in means.
    num_chains
        Independent chains.
    thin
        Steps from one draw to the next; by default two units of time.
    burn_in
        Steps before the first draw; by default fifty units of time.
    random_state
        A seed, a `numpy.random.RandomState`, or `None`.
    verbose
        Whether to show a progress bar.
    checkpoint
        A folder: a fit that is cut goes on from there when the same one is asked for again, with the same `random_state`, bit for bit.

    Attributes
    ----------
    coef_
        Posterior means of the coefficients, (features,).
    intercept_
        Posterior mean of the intercept.
    noise_variance_
        Posterior mean of $\sigma^2$.
    draws_
        Draws by name (`coef`, `intercept`, `noise_variance`), with leading axes `(chain, draw)`.
    diagnostics_
        R-hat, effective sample sizes, temperatures, step size and divergences; prints as a table.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

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
        self.prior_variance = prior_variance
        self.noise_variance = noise_variance
        self.standardize = standardize
        self.fit_intercept = fit_intercept
        self.num_draws = num_draws
        self.num_chains = num_chains
        self.thin = thin
        self.burn_in = burn_in
        self.random_state = random_state
        self.verbose = verbose
        self.checkpoint = checkpoint

    def predict(self, X: Any, return_std: bool = False) -> Any:
        r"""Predict the mean of each row and, if asked, its standard deviation.

        Parameters
        ----------
        X
            (rows, features), dense or SciPy sparse.
        return_std
            Whether to return a pair. The second is the standard deviation of a new observation: the
            variance of $\alpha + x^\top\beta$ over draws, plus the mean of $\sigma^2$, under the root.
        """
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        mean = np.asarray(X @ self.coef_) + self.intercept_
        if not return_std:
            return mean
        coef = self.draws_["coef"].reshape(-1, len(self.coef_)) - self.coef_
        intercept = self.draws_["intercept"].ravel() - self.intercept_
        spread = [(z**2).mean(1) for z in linear_predictors(X, coef, intercept)]
        return mean, np.sqrt(np.concatenate(spread) + self.noise_variance_)

    def _validate(self, X: Any, y: Any, fresh: bool, classes: Any) -> tuple[Any, np.ndarray]:
        options = {"accept_sparse": "csr", "dtype": np.float64, "y_numeric": True}
        X, y = validate_data(self, X, y, reset=fresh, **options)
        refuse_too_many(X.shape[1] + self.fit_intercept)
        return X, np.asarray(y, np.float64)

    def _add(self, data: Any, X: Any, y: np.ndarray) -> Any:
        pair = [X, y[:, None]]
        both = sparse.hstack(pair, format="csr") if sparse.issparse(X) else np.hstack(pair)
        return gather(both, data)

    def _make_target(self, data: Any) -> LinearTarget:
        mean, deviation = moments(data, centred=self.fit_intercept)
        origin, unit = (mean[-1], deviation[-1]) if self.standardize else (0.0, 1.0)
        axes = self._principal_axes(data.features)
        target = (data.factor[:, -1] - origin * data.factor[:, 0]) / unit
        known = None if self.noise_variance is None else self.noise_variance / unit**2
        return linear_target(axes, target, unit, origin, data.size, known)
