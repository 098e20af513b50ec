"""Bayesian logistic regression, binary and multinomial, with scikit-learn's interface."""

import os
from typing import Any, Self

import numpy as np
from scipy import sparse
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from isotherm.estimators.base import ClassLabelsMixin
from isotherm.estimators.design_svd import column_statistics
from isotherm.estimators.linear_model import (
    BayesianLinearModel,
    check_num_coefficients,
    linear_predictors,
)
from isotherm.estimators.logistic_posterior import LogisticTarget, logistic_target


class BayesianLogisticRegression(ClassLabelsMixin, ClassifierMixin, BayesianLinearModel):
    r"""Logistic regression with draws from the posterior of its coefficients.

    Two classes have one vector of coefficients, $p(y = 1 \mid x) = 1/(1 + e^{-z})$ with
    $z = \alpha + x^\top\beta$; more classes have one each, $p(y = k \mid x) \propto e^{z_k}$. The
    prior is

    $$ \beta_j \sim \mathcal N(0, v/s_j^2), \qquad
       \alpha + \bar x^\top\beta \sim \mathcal N(0, v), $$

    independently, with the mean $\bar x_j$ and the scale $s_j$ of each feature. The scale is the
    standard deviation; for a feature with two values it is their distance, and for one that is
    mostly 0 the root mean square of its other values (`isotherm.estimators.design_svd` says why).
    In words: coefficients of standardised features have a prior standard deviation of 2.5, after
    Gelman et al. (2008), and the prior does not depend on units of measurement. Coefficients are
    reported in the original units.

    The sampler is mSGNHT-S in natural coordinates (`isotherm.estimators.logistic_surrogate` has the
    mathematics). There are no settings to tune: features need no scaling and may be constant,
    repeated or collinear. Up to 1024 rows are all used at every step; of more rows, as few as the
    gradient noise allows, drawn by importance sampling. At most 10 000 coefficients (features times
    classes); rows are stored as a dense matrix in single precision.

    Parameters
    ----------
    prior_variance
        $v$.
    standardize
        Whether the prior applies to coefficients of standardised features. With `False` it applies
        to the coefficients in the original units, including the intercept:
        $\beta_j, \alpha \sim \mathcal N(0, v)$.
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
    batch_size
        Rows per step; by default chosen from the gradient noise. From half of the rows on, all are
        used.
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
    classes_
        Labels of the classes.
    coef_
        Posterior means of the coefficients: (1, features), or (classes, features) if there are more
        than two.
    intercept_
        Posterior means of the intercepts: (1,) or (classes,).
    draws_
        Draws by name, with leading axes `(chain, draw)`: `"coef"` (chain, draw, 1 or classes,
        features) and `"intercept"` (chain, draw, 1 or classes).
    diagnostics_
        R-hat, effective sample sizes, temperatures, step size and divergences; prints as a table.
    n_features_in_, feature_names_in_
        As in scikit-learn.

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
        chains = (num_draws, num_chains, thin, burn_in, random_state, verbose, checkpoint)
        super().__init__(standardize, fit_intercept, prior_variance, *chains)
        self.batch_size = batch_size

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Continue the chains, for more draws or with more data.

        As in all estimators, with the labels of classes that appear in later calls only.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`. The rows of the last call give more draws; other rows are added to those of
            earlier calls.
        classes
            Labels of all classes, in the first call; by default those in its `y`.
        """
        reset = not self.__sklearn_is_fitted__()
        return self._update(X, y, reset=reset, classes=classes, sample_weight=sample_weight)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, averaged over draws: (rows, classes)."""
        check_is_fitted(self)
        X = self._check_features(X)
        coef = self.draws_["coef"].reshape(-1, *self.coef_.shape)
        intercept = self.draws_["intercept"].reshape(-1, *self.intercept_.shape)
        blocks = linear_predictors(X, coef, intercept)
        if len(self.classes_) > 2:
            return np.concatenate([softmax(z, axis=2).mean(1) for z in blocks])
        second = np.concatenate([expit(z[..., 0]).mean(1) for z in blocks])
        return np.column_stack([1 - second, second])

    def _validate_rows(self, X: Any, y: Any, reset: bool, classes: Any) -> tuple[Any, np.ndarray]:
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, reset=reset)
        y = self._encode_labels(y, reset, classes)
        num_outputs = 1 if len(self.classes_) == 2 else len(self.classes_)
        check_num_coefficients((X.shape[1] + self.fit_intercept) * num_outputs)
        return X, y

    def _append_rows(
        self, data: Any, X: Any, y: np.ndarray, weights: np.ndarray | None = None
    ) -> Any:
        columns = column_statistics(X, None if data is None else data[3], weights)
        weights = np.ones(len(y)) if weights is None else weights
        if data is None:
            return X.copy(), y, weights, columns
        earlier, labels, old_weights, _ = data
        any_sparse = sparse.issparse(earlier) or sparse.issparse(X)
        stack = (lambda pair: sparse.vstack(pair, format="csr")) if any_sparse else np.vstack
        labels, weights = np.concatenate([labels, y]), np.concatenate([old_weights, weights])
        return stack([earlier, X]), labels, weights, columns

    def _build_target(self, data: Any) -> LogisticTarget:
        X, labels, weights, columns = data
        svd = self._design_svd(columns)
        return logistic_target(X, labels, weights, len(self.classes_), svd, self.batch_size)
