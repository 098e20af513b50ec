"""Bayesian logistic regression, binary and multinomial, with scikit-learn's interface."""

import os
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from isotherm.estimators.base import (
    LabelledRows,
    ThermostatEstimator,
    linear_predictors,
    refuse_too_many,
)
from isotherm.estimators.design_svd import gather
from isotherm.estimators.logistic_posterior import LogisticTarget, logistic_target


class BayesianLogisticRegression(LabelledRows, ClassifierMixin, ThermostatEstimator):
    r"""Logistic regression whose coefficients are draws from their posterior.

    Two classes have one vector of coefficients, $p(y = 1 \mid x) = 1/(1 + e^{-z})$ with
    $z = \alpha + x^\top\beta$; more have one each, $p(y = k \mid x) \propto e^{z_k}$. The prior is

    $$ \beta_j \sim \mathcal N(0, v/s_j^2), \qquad \alpha + \bar x^\top\beta \sim \mathcal N(0, v), $$

    independently, with the mean $\bar x_j$ and the unit $s_j$ of each feature. That is its standard deviation; for a feature with two
    values it is their distance, and for one that is mostly 0 the root mean square of its other values
    (`isotherm.estimators.design_svd` says why). In words: coefficients of standardised features have a standard deviation of
    2.5, after Gelman et al. (2008), and what is measured in grams may be in kilograms. Coefficients are reported for
    the features as they are.

    Sampled by mSGNHT-S in natural coordinates (`isotherm.estimators.logistic_surrogate` has the mathematics). There is
    nothing to tune: features need no scaling, and may be constant, repeated or collinear. Up to 1024 rows
    are used all at every step; of more, as few as gradient noise allows, the important ones more often. For
    up to 10 000 coefficients (times classes); rows are kept as dense numbers in single precision.

    Parameters
    ----------
    prior_variance
        $v$.
    standardize
        Whether the prior is that of standardised features. `False` puts it on the coefficients as
        they are, intercept included: $\beta_j, \alpha \sim \mathcal N(0, v)$.
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
    batch_size
        Rows per step; by default chosen. More than half of the rows means all.
    random_state
        A seed, a `numpy.random.RandomState`, or `None`.
    verbose
        Whether to show a progress bar.
    checkpoint
        A folder: a fit that is cut goes on from there when the same one is asked for again, with the same `random_state`, bit for bit.

    Attributes
    ----------
    classes_
        The labels.
    coef_
        Posterior means of the coefficients: (1, features), or (classes, features) if there are more than two.
    intercept_
        Posterior means of the intercepts: (1,) or (classes,).
    draws_
        Draws by name (`coef`, `intercept`), with leading axes `(chain, draw)`.
    diagnostics_
        R-hat, effective sample sizes, temperatures, step size and divergences; prints as a table.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True, as_frame=True)
    >>> model = BayesianLogisticRegression(num_draws=200, random_state=0).fit(x, y == 2)
    >>> model.draws_["coef"].shape
    (4, 200, 1, 4)
    >>> model.predict_proba(x[:1]).round(1)
    array([[1., 0.]])
    """

    def __init__(
        self,
        *,
        prior_variance: float = 6.25,
        standardize: bool = True,
        fit_intercept: bool = True,
        num_draws: int = 2000,
        num_chains: int = 4,
        thin: int | None = None,
        burn_in: int | None = None,
        batch_size: int | None = None,
        random_state: Any = None,
        verbose: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        self.prior_variance = prior_variance
        self.standardize = standardize
        self.fit_intercept = fit_intercept
        self.num_draws = num_draws
        self.num_chains = num_chains
        self.thin = thin
        self.burn_in = burn_in
        self.batch_size = batch_size
        self.random_state = random_state
        self.verbose = verbose
        self.checkpoint = checkpoint

    def predict_proba(self, X: Any) -> np.ndarray:
        """Compute the probability of each class, averaged over draws: (rows, classes)."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        coef = self.draws_["coef"].reshape(-1, *self.coef_.shape)
        intercept = self.draws_["intercept"].reshape(-1, *self.intercept_.shape)
        blocks = linear_predictors(X, coef, intercept)
        if len(self.classes_) > 2:
            return np.concatenate([softmax(z, axis=2).mean(1) for z in blocks])
        second = np.concatenate([expit(z[..., 0]).mean(1) for z in blocks])
        return np.column_stack([1 - second, second])

    def _validate(self, X: Any, y: Any, fresh: bool, classes: Any) -> tuple[Any, np.ndarray]:
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, reset=fresh)
        y = self._numbered(y, fresh, classes)
        columns = 1 if len(self.classes_) == 2 else len(self.classes_)
        refuse_too_many((X.shape[1] + self.fit_intercept) * columns)
        return X, y

    def _add(self, data: Any, X: Any, y: np.ndarray) -> Any:
        if data is None:
            return X.copy(), y, gather(X)
        before, labels, columns = data
        mixed = sparse.issparse(before) or sparse.issparse(X)
        stack = (lambda pair: sparse.vstack(pair, format="csr")) if mixed else np.vstack
        return stack([before, X]), np.concatenate([labels, y]), gather(X, columns)

    def _make_target(self, data: Any) -> LogisticTarget:
        X, labels, columns = data
        axes = self._principal_axes(columns)
        return logistic_target(X, labels, len(self.classes_), axes, self.batch_size)
