"""Bayesian feed-forward networks, with scikit-learn's interface."""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from isotherm import random
from isotherm.diagnostics.predictions import posterior_predictive
from isotherm.estimators.base import BayesianEstimator, ClassLabelsMixin
from isotherm.estimators.network_posterior import MLPModel, NetworkTarget, Predict, network_target
from isotherm.estimators.padding import ROW_MULTIPLE, pad_to_multiples
from isotherm.estimators.sampling import Draws
from isotherm.models.networks import ACTIVATIONS

CONVERGENCE_ROWS = 50
"""R-hat is computed of the outputs for this many rows."""


class BayesianMLP(BayesianEstimator):
    """Base class of the two networks: settings, standardised features and averaged predictions."""

    _model: MLPModel
    _max_thin, _max_burn_in = 100, 5000

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] = (50,),
        *,
        activation: str = "tanh",
        prior_variance: float = 4.0,
        num_draws: int = 250,
        num_chains: int = 4,
        thin: int | None = None,
        burn_in: int | None = None,
        batch_size: int | None = None,
        random_state: Any = None,
        verbose: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            prior_variance, num_draws, num_chains, thin, burn_in, random_state, verbose, checkpoint
        )
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.batch_size = batch_size

    @property
    def draws_(self) -> Draws:
        """Draws of weights and biases by name, with leading axes `(chain, draw)`."""
        check_is_fitted(self)
        return self._model.to_parameters(self._run.draws)

    def _check_settings(self) -> None:
        super()._check_settings()
        sizes = self.hidden_layer_sizes
        if np.ndim(sizes) != 1 or not all(int(n) == n and n >= 1 for n in sizes):
            raise ValueError(
                f"`hidden_layer_sizes` must be a tuple of positive whole numbers, got {sizes!r}."
            )
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"`activation` must be one of {tuple(ACTIVATIONS)}, got {self.activation!r}."
            )

    def _append_rows(self, data: Any, X: Any, y: np.ndarray) -> Any:
        if data is None:
            return X.copy(), y
        return np.vstack([data[0], X]), np.concatenate([data[1], y])

    def _transfer_state(self, target: Any) -> Any:
        """Return the state as it is: coordinates do not depend on the data."""
        return self._run.state

    def _network_target(
        self, X: np.ndarray, y: np.ndarray, num_outputs: int, classification: bool
    ) -> NetworkTarget:
        self._feature_means, self._feature_scales = X.mean(0), _positive_sds(X)
        sizes = (X.shape[1], *map(int, self.hidden_layer_sizes), num_outputs)
        prior_variance = float(self.prior_variance)
        self._model = MLPModel(sizes, self.activation, prior_variance, classification)
        key = random.fold(jax.random.key(self._seed), 7)
        return network_target(
            key, self._model, self._standardize(X), y, self.batch_size, self.num_chains
        )

    def _chain_settings(self, target: Any, state: Any) -> dict[str, Any]:
        """Return starts at trained networks, and thermostats as slow as the prior is wide."""
        return {"thermostat_mass": 1.0, "starts": target.starts if state is None else None}

    def _standardize(self, X: np.ndarray) -> np.ndarray:
        return (X - self._feature_means) / self._feature_scales

    def _convergence_draws(self) -> Any:
        """Return draws of the outputs for some rows: weights need not agree between chains."""
        x = jnp.asarray(self._standardize(self._data[0][:CONVERGENCE_ROWS]), jnp.float32)
        outputs = jax.jit(jax.vmap(jax.vmap(lambda w: self._model.apply(w, x))))
        return np.asarray(outputs(self._run.draws))

    def _average_predictions(self, X: Any) -> Any:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        X = self._standardize(np.asarray(X))
        x = jnp.asarray(pad_to_multiples(X, ROW_MULTIPLE, 1), jnp.float32)
        averages = posterior_predictive(Predict(self._model), self._run.draws, x)
        return jax.tree.map(lambda each: np.asarray(each, np.float64)[: len(X)], averages)


class BayesianMLPClassifier(ClassLabelsMixin, ClassifierMixin, BayesianMLP):
    r"""A feed-forward network with class probabilities averaged over the posterior of its weights.

    Features are standardised. Weights of a layer with $n$ inputs have the prior
    $\mathcal N(0, v/n)$, biases $\mathcal N(0, v)$, so that outputs are of order $\sqrt v$ for any
    widths (`isotherm.estimators.network_posterior` has the mathematics).

    The sampler is mSGNHT-S at temperature 1 with a step size found by a pilot chain; there are no
    settings to tune. Up to 2048 rows are all used at every step. With more rows, batches of 512 are
    balanced (`isotherm.balanced`): their noise, which depends on the weights, is taken out again.

    Parameters
    ----------
    hidden_layer_sizes
        Number of units of each hidden layer.
    activation
        `"tanh"`, `"relu"` or `"sigmoid"`.
    prior_variance
        $v$.
    num_draws
        Draws per chain.
    num_chains
        Number of independent chains.
    thin
        Steps between draws; by default two units of time, at most 100 steps.
    burn_in
        Steps before the first draw; by default fifty units of time, at most 5000 steps.
    batch_size
        Rows per step; by default all of up to 2048 rows, otherwise 512.
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
    draws_
        Draws by name, with leading axes `(chain, draw)`: `"weights_1"` (chain, draw, inputs, units)
        and `"bias_1"` (chain, draw, units) of the first layer, and so on up to the output layer.
        They act on standardised features. Computed from the state of the chains at each access.
    diagnostics_
        Temperatures, step size and divergences. R-hat and effective sample sizes are those of
        weights, which need not agree between chains: hidden units can be permuted.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> x, y = make_moons(100, noise=0.1, random_state=0)
    >>> model = BayesianMLPClassifier((10,), num_draws=50, random_state=0).fit(x, y)
    >>> model.score(x, y) > 0.9
    True
    """

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, averaged over draws: (rows, classes)."""
        probabilities = self._average_predictions(X)
        return probabilities / probabilities.sum(1, keepdims=True)

    def _set_fitted_attributes(self) -> None:
        """Set nothing: a network has no posterior mean of its weights."""

    def _validate_rows(self, X: Any, y: Any, reset: bool, classes: Any) -> tuple[Any, np.ndarray]:
        X, y = validate_data(self, X, y, dtype=np.float64, reset=reset)
        return X, self._encode_labels(y, reset, classes)

    def _build_target(self, data: Any) -> NetworkTarget:
        X, y = data
        return self._network_target(X, y, len(self.classes_), classification=True)


class BayesianMLPRegressor(RegressorMixin, BayesianMLP):
    r"""A feed-forward network with predictions averaged over the posterior of weights and noise.

    Features and target are standardised. Weights of a layer with $n$ inputs have the prior
    $\mathcal N(0, v/n)$, biases $\mathcal N(0, v)$, and the noise has
    $\sigma \sim \text{half-Cauchy}(1)$ in units of the target's standard deviation
    (`isotherm.estimators.network_posterior` has the mathematics).

    The sampler is mSGNHT-S at temperature 1 with a step size found by a pilot chain; there are no
    settings to tune. Up to 2048 rows are all used at every step. With more rows, batches of 512 are
    balanced (`isotherm.balanced`): their noise, which depends on the weights, is taken out again.

    Parameters
    ----------
    hidden_layer_sizes
        Number of units of each hidden layer.
    activation
        `"tanh"`, `"relu"` or `"sigmoid"`.
    prior_variance
        $v$.
    num_draws
        Draws per chain.
    num_chains
        Number of independent chains.
    thin
        Steps between draws; by default two units of time, at most 100 steps.
    burn_in
        Steps before the first draw; by default fifty units of time, at most 5000 steps.
    batch_size
        Rows per step; by default all of up to 2048 rows, otherwise 512.
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
    noise_variance_
        Posterior mean of $\sigma^2$.
    draws_
        Draws by name, with leading axes `(chain, draw)`: `"weights_1"` (chain, draw, inputs, units)
        and `"bias_1"` (chain, draw, units) of the first layer, and so on up to the output layer.
        They map standardised features to the standardised target. `"noise_variance"` (chain, draw)
        is $\sigma^2$ in squared units of the target. Computed from the state of the chains at each
        access.
    diagnostics_
        Temperatures, step size and divergences. R-hat and effective sample sizes are those of
        weights, which need not agree between chains: hidden units can be permuted.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 50)[:, None]
    >>> y = np.sin(3 * x[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=50)
    >>> model = BayesianMLPRegressor((12,), num_draws=50, num_chains=2, random_state=0).fit(x, y)
    >>> mean, sd = model.predict(np.array([[0.0], [4.0]]), return_std=True)
    >>> bool(sd[1] > 3 * sd[0])
    True
    """

    noise_variance_: float

    def predict(self, X: Any, return_std: bool = False) -> Any:
        r"""Predict the mean of each row and, optionally, its standard deviation.

        Parameters
        ----------
        X
            (rows, features).
        return_std
            Whether to return a pair `(mean, sd)`, where `sd` is the standard deviation of a new
            observation: the square root of the variance of $f(x)$ over draws plus the mean of
            $\sigma^2$.
        """
        mean, square = self._average_predictions(X)
        if not return_std:
            return self._target_mean + self._target_scale * mean
        variance = np.maximum(square - mean**2, 0) * self._target_scale**2
        return self._target_mean + self._target_scale * mean, np.sqrt(
            variance + self.noise_variance_
        )

    def _validate_rows(self, X: Any, y: Any, reset: bool, classes: Any) -> tuple[Any, np.ndarray]:
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, reset=reset)
        return X, np.asarray(y, np.float64)

    @property
    def draws_(self) -> Draws:
        """Draws of weights, biases and noise variance, with leading axes `(chain, draw)`."""
        draws = super().draws_
        return draws | {"noise_variance": draws["noise_variance"] * self._target_scale**2}

    def _build_target(self, data: Any) -> NetworkTarget:
        X, y = data
        self._target_mean, self._target_scale = y.mean(), float(_positive_sds(y))
        y = (y - self._target_mean) / self._target_scale
        return self._network_target(X, y, 1, classification=False)

    def _set_fitted_attributes(self) -> None:
        noise = self._model.noise_variance(self._run.draws)
        self.noise_variance_ = float(noise.mean()) * self._target_scale**2


def _positive_sds(values: np.ndarray) -> np.ndarray:
    """Return the standard deviation of each column, or 1 where it is 0."""
    sd = values.std(0)
    return np.where(sd > 1e-12 * np.abs(values).max(0, initial=1e-300), sd, 1.0)
