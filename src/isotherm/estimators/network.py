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
from isotherm.estimators.base import LabelledRows, ThermostatEstimator
from isotherm.estimators.network_posterior import NetworkTarget, Shape, network_target
from isotherm.loop.run import Run
from isotherm.models.networks import ACTIVATIONS

WATCHED_ROWS = 50


class _BayesianMLP(ThermostatEstimator):
    """What classifier and regressor share."""

    hidden_layer_sizes: tuple[int, ...]
    activation: str
    batch_size: int | None
    _shape: Shape
    _longest_thinning, _longest_burn_in = 100, 5000
    """With a short step, time is cut to what can be afforded."""

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
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.prior_variance = prior_variance
        self.num_draws = num_draws
        self.num_chains = num_chains
        self.thin = thin
        self.burn_in = burn_in
        self.batch_size = batch_size
        self.random_state = random_state
        self.verbose = verbose
        self.checkpoint = checkpoint

    def __sklearn_tags__(self) -> Any:
        """Take back that sparse rows are welcome."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags

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

    def _add(self, data: Any, X: Any, y: np.ndarray) -> Any:
        if data is None:
            return X.copy(), y
        return np.vstack([data[0], X]), np.concatenate([data[1], y])

    def _target_of(self, X: np.ndarray, y: np.ndarray, num_outputs: int, classes: bool) -> Any:
        self._center, self._unit = X.mean(0), _unit(X)
        sizes = (X.shape[1], *map(int, self.hidden_layer_sizes), num_outputs)
        self._shape = Shape(sizes, self.activation, float(self.prior_variance), classes)
        key = random.fold(jax.random.key(self._seed), 7)
        return network_target(key, self._shape, self._standardised(X), y, self.batch_size)

    def _standardised(self, X: np.ndarray) -> np.ndarray:
        return (X - self._center) / self._unit

    def _watched(self, run: Run) -> Any:
        """Watch outputs of some rows: weights of a network mean nothing by themselves."""
        x = jnp.asarray(self._standardised(self._data[0][:WATCHED_ROWS]), jnp.float32)
        outputs = jax.jit(jax.vmap(jax.vmap(lambda w: self._shape.apply(w, x))))
        return np.asarray(outputs(run.draws))

    def _set_means(self) -> None:
        """Have no means of weights."""

    def _average(self, X: Any) -> Any:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        x = jnp.asarray(self._standardised(X), jnp.float32)
        return posterior_predictive(self._shape.predict, self.draws_["weights"], x)


class BayesianMLPClassifier(LabelledRows, ClassifierMixin, _BayesianMLP):
    r"""A feed-forward network whose class probabilities are averaged over the posterior of its weights.

    Features are standardised. Weights of a layer with $n$ inputs have the prior $\mathcal N(0, v/n)$, biases $\mathcal N(0, v)$, so
    that outputs are of order $\sqrt v$ whatever the widths (`isotherm.estimators.network_posterior` has the mathematics).

    Sampled by mSGNHT-S at temperature 1, with a step size that is found on the way; there is nothing to tune. Up to 2048 rows are
    used all at every step. With more, batches of 512 leave an error: in a network gradient noise depends on the weights, and a
    thermostat absorbs its average; predictions come out too wide among the data and too narrow beyond (`isotherm run network-exact`).

    Parameters
    ----------
    hidden_layer_sizes
        Units of each hidden layer.
    activation
        `"tanh"`, `"relu"` or `"sigmoid"`.
    prior_variance
        $v$.
    num_draws
        Draws to keep of each chain.
    num_chains
        Independent chains.
    thin
        Steps from one draw to the next; by default two units of time, at most 100.
    burn_in
        Steps before the first draw; by default fifty units of time, at most 5000.
    batch_size
        Rows per step; by default all of up to 2048, otherwise 512.
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
    draws_
        Draws of the `weights`, flat, with leading axes `(chain, draw)`.
    diagnostics_
        Temperatures, step size, divergences; R-hat is that of weights, which in a network need not agree.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> x, y = make_moons(100, noise=0.1, random_state=0)
    >>> model = BayesianMLPClassifier((10,), num_draws=50, random_state=0).fit(x, y)
    >>> model.score(x, y) > 0.9
    True
    """

    def predict_proba(self, X: Any) -> np.ndarray:
        """Compute the probability of each class, averaged over draws: (rows, classes)."""
        probabilities = np.asarray(self._average(X), np.float64)
        return probabilities / probabilities.sum(1, keepdims=True)

    def _validate(self, X: Any, y: Any, fresh: bool, classes: Any) -> tuple[Any, np.ndarray]:
        X, y = validate_data(self, X, y, dtype=np.float64, reset=fresh)
        return X, self._numbered(y, fresh, classes)

    def _make_target(self, data: Any) -> NetworkTarget:
        X, y = data
        return self._target_of(X, y, len(self.classes_), classes=True)


class BayesianMLPRegressor(RegressorMixin, _BayesianMLP):
    r"""A feed-forward network whose predictions are averaged over the posterior of its weights and noise.

    Features and target are standardised. Weights of a layer with $n$ inputs have the prior $\mathcal N(0, v/n)$, biases
    $\mathcal N(0, v)$, and the noise is $\sigma \sim \text{half-Cauchy}(1)$ in units of the target's standard deviation
    (`isotherm.estimators.network_posterior` has the mathematics).

    Sampled by mSGNHT-S at temperature 1, with a step size that is found on the way; there is nothing to tune. Up to 2048 rows are
    used all at every step. With more, batches of 512 leave an error: in a network gradient noise depends on the weights, and a
    thermostat absorbs its average; predictions come out too wide among the data and too narrow beyond (`isotherm run network-exact`).

    Parameters
    ----------
    hidden_layer_sizes
        Units of each hidden layer.
    activation
        `"tanh"`, `"relu"` or `"sigmoid"`.
    prior_variance
        $v$.
    num_draws
        Draws to keep of each chain.
    num_chains
        Independent chains.
    thin
        Steps from one draw to the next; by default two units of time, at most 100.
    burn_in
        Steps before the first draw; by default fifty units of time, at most 5000.
    batch_size
        Rows per step; by default all of up to 2048, otherwise 512.
    random_state
        A seed, a `numpy.random.RandomState`, or `None`.
    verbose
        Whether to show a progress bar.
    checkpoint
        A folder: a fit that is cut goes on from there when the same one is asked for again, with the same `random_state`, bit for bit.

    Attributes
    ----------
    noise_variance_
        Posterior mean of $\sigma^2$.
    draws_
        Draws of the `weights`, flat (the last is $\log\sigma$), with leading axes `(chain, draw)`.
    diagnostics_
        Temperatures, step size, divergences; R-hat is that of weights, which in a network need not agree.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

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
        r"""Predict the mean of each row and, if asked, its standard deviation.

        Parameters
        ----------
        X
            (rows, features).
        return_std
            Whether to return a pair. The second is the standard deviation of a new observation: the
            variance of $f(x)$ over draws, plus the mean of $\sigma^2$, under the root.
        """
        mean, square = (np.asarray(part, np.float64) for part in self._average(X))
        if not return_std:
            return self._shift + self._scale * mean
        variance = np.maximum(square - mean**2, 0) * self._scale**2
        return self._shift + self._scale * mean, np.sqrt(variance + self.noise_variance_)

    def _validate(self, X: Any, y: Any, fresh: bool, classes: Any) -> tuple[Any, np.ndarray]:
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, reset=fresh)
        return X, np.asarray(y, np.float64)

    def _make_target(self, data: Any) -> NetworkTarget:
        X, y = data
        self._shift, self._scale = y.mean(), float(_unit(y))
        return self._target_of(X, (y - self._shift) / self._scale, 1, classes=False)

    def _set_means(self) -> None:
        log_noise = np.asarray(self.draws_["weights"][..., -1], np.float64)
        self.noise_variance_ = float(np.exp(2 * log_noise).mean()) * self._scale**2


def _unit(values: np.ndarray) -> np.ndarray:
    """Give standard deviations, 1 where there is none."""
    deviation = values.std(0)
    return np.where(deviation > 1e-12 * np.abs(values).max(0, initial=1e-300), deviation, 1.0)
