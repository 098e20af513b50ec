"""Bayesian feed-forward networks, with scikit-learn's interface."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import log_softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted, validate_data

from isotherm import random
from isotherm.diagnostics.mixtures import Mixture, gaussian_mixture, student_t_mixture
from isotherm.diagnostics.predictions import joined_draws, posterior_predictive
from isotherm.dynamics.langevin import BALANCED_WORD
from isotherm.estimators.base import (
    MIN_DRAWS_FOR_RHAT,
    BayesianEstimator,
    ClassLabelsMixin,
    check_positive,
)
from isotherm.estimators.feature_scales import feature_scales, positive_sds
from isotherm.estimators.merging import merge_equal_rows
from isotherm.estimators.network_plots import plot_learning_curve, plot_pit, plot_reliability
from isotherm.estimators.network_posterior import (
    POINTS_PER_ROUND,
    THERMOSTAT_MASS,
    WORK,
    MLPModel,
    NetworkTarget,
    Outputs,
    Predict,
    network_target,
    rounding_error,
    train_networks,
)
from isotherm.estimators.padding import ROW_MULTIPLE, pad_to_multiples
from isotherm.estimators.sampling import Draws
from isotherm.exceptions import HealthWarning
from isotherm.loop.run import Run, Summary
from isotherm.loop.user_warnings import Message, warn_user
from isotherm.models.likelihoods import (
    Categorical,
    Gaussian,
    Likelihood,
    NoisyDirichlet,
    StudentT,
    as_likelihood,
)
from isotherm.models.networks import ACTIVATIONS
from isotherm.tree import refuse_masked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SDS = 1e15
"""Largest standardised input for a prediction, whose outputs are squared in single precision."""
CONVERGENCE_ROWS = 50
"""R-hat and effective sample sizes are those of the predictions for this many rows."""
DRAWS_OF_BUDGET = 250
"""The budget of a fit is for this many draws per chain; more draws take longer."""
LONGEST_TIME_BETWEEN_DRAWS = 2.0
PRIOR_VARIANCE = 4.0
"""Square of the median scale, if scales are learned."""
LIKELIHOODS: tuple[Likelihood, ...] = (Categorical(), NoisyDirichlet(1e-4))
"""Candidates of `likelihood="auto"`."""
CLEARLY_BETTER = 3.0
"""Standard errors by which a candidate must be ahead of the first, softmax, to be taken."""
NUM_FOLDS, NETWORKS_PER_FOLD = 5, 2
"""Parts of the rows, one of which is held out at a time, and networks trained on the others."""
ENOUGH_COMPARED = 1000
"""Folds are held out until so many rows have been compared."""
MIN_ROWS_TO_CHOOSE, MAX_ROWS_TO_CHOOSE = 100, 5000
"""With fewer rows the likelihood is softmax; of more, some are compared and learned from."""
MOST_HIDDEN_LAYERS = 1
"""With more, the likelihood is softmax: trained networks do not show how posteriors predict."""
ROWS_PER_BLOCK = 2048
"""Rows whose predictive mixtures are computed at the same time."""


class BayesianMLP(BayesianEstimator):
    """Base class of the two networks: settings, standardised features and averaged predictions."""

    _model: MLPModel
    _target: NetworkTarget
    _max_rhat = 1.1
    _work = WORK
    """Budget in nominal seconds."""
    _prior_words: tuple[str, ...] = ("learned",)
    """Values of `prior_variance` that are not numbers."""
    _largest_feature: float
    """Largest absolute value of a feature with a scale of its own, in the training rows."""

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...],
        activation: str,
        prior_variance: float | str,
        num_draws: int,
        num_chains: int,
        thin: int | None,
        burn_in: int | None,
        batch_size: int | None,
        max_time: float | None,
        random_state: Any,
        verbose: bool,
        checkpoint: str | os.PathLike[str] | None,
    ) -> None:
        super().__init__(
            cast(float, prior_variance),
            num_draws,
            num_chains,
            thin,
            burn_in,
            random_state,
            verbose,
            checkpoint,
        )
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.batch_size = batch_size
        self.max_time = max_time

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Draw from the posterior given these rows.

        Parameters
        ----------
        X
            (rows, features).
        y
            (rows,).
        sample_weight
            Weight of the log likelihood of each row, (rows,): a row of weight 2 counts as two.
        """
        return self._update(X, y, reset=True, sample_weight=sample_weight)

    @property
    def draws_(self) -> Draws:
        """Draws of weights, biases and scales by name, with leading axes `(chain, draw)`."""
        check_is_fitted(self)
        return self._model.to_parameters(self._run.draws)

    @property
    def diagnostics_(self) -> Summary:
        """R-hat and ESS of predictions for 50 rows, temperatures, step size, divergences."""
        check_is_fitted(self)
        name = "log_probabilities" if self._model.noise is None else "outputs"
        return replace(self._run, draws={name: self._convergence_draws()}).summary()

    @property
    def learning_curve_(self) -> np.ndarray:
        """Log likelihood of (at most 2048) rows on the way into the posterior, (chain, point)."""
        check_is_fitted(self)
        return self._target.log_likelihoods

    def plot_learning_curve(self) -> "Figure":
        """Plot `learning_curve_`, a line per chain: flat and together once they have arrived."""
        return plot_learning_curve(self.learning_curve_, POINTS_PER_ROUND)

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
        if self.max_time is not None:
            check_positive(self.max_time, "max_time")
            if self.checkpoint is not None:
                raise ValueError(
                    "`max_time` must not be given together with `checkpoint`: the number of steps "
                    "then depends on the clock, and a run could not be resumed."
                )

    def _check_prior_variance(self) -> None:
        if isinstance(self.prior_variance, str) and self.prior_variance not in self._prior_words:
            words = " or ".join(map(repr, self._prior_words))
            raise ValueError(
                f"`prior_variance` must be {words} or a positive number, got "
                f"{self.prior_variance!r}."
            )
        if not isinstance(self.prior_variance, str):
            super()._check_prior_variance()

    def _sample(self, target: Any, state: Any, burn_in: int | None, history: str) -> Run:
        run = super()._sample(target, state, burn_in, history)
        if run.num_draws >= MIN_DRAWS_FOR_RHAT:
            _warn_of_temperatures(run)
        return run

    def _append_rows(
        self, data: Any, X: Any, y: np.ndarray, weight: np.ndarray | None = None
    ) -> Any:
        weight = np.ones(len(y)) if weight is None else weight
        self._positions = None if data is None else self._run.state.position
        if data is None:
            return merge_equal_rows(X.copy(), y, weight)
        X, y, weight = (np.concatenate(pair) for pair in zip(data, (X, y, weight), strict=True))
        return merge_equal_rows(X, y, weight)

    def _transfer_state(self, target: Any) -> Any:
        """Return no state: the chains have been moved to the new posterior already."""
        del target

    def _set_feature_scales(self, X: np.ndarray, weight: np.ndarray) -> None:
        self._feature_means = np.average(X, axis=0, weights=weight)
        self._feature_scales = feature_scales(X, weight, self._largest_feature)

    def _network_model(
        self, num_inputs: int, num_outputs: int, likelihood: Likelihood, noise: str | None = None
    ) -> MLPModel:
        sizes = (num_inputs, *map(int, self.hidden_layer_sizes), num_outputs)
        given = not isinstance(self.prior_variance, str)
        variance = float(self.prior_variance) if given else PRIOR_VARIANCE
        is_dirichlet = isinstance(likelihood, NoisyDirichlet)
        learned = self.prior_variance == "learned" or (
            self.prior_variance == "auto" and not is_dirichlet
        )
        return MLPModel(sizes, self.activation, variance, likelihood, learned, noise)

    def _network_target(
        self,
        data: tuple[np.ndarray, np.ndarray, np.ndarray],
        num_outputs: int,
        likelihood: Likelihood,
        noise: str | None = None,
        seconds_spent: float = 0.0,
    ) -> NetworkTarget:
        X, y, weight = data
        self._set_feature_scales(X, weight)
        self._rounding = 0.0 if noise is None else rounding_error(y)
        self._model = self._network_model(X.shape[1], num_outputs, likelihood, noise)
        target = network_target(
            random.fold(jax.random.key(self._seed), 7),
            self._model,
            self._standardize(X),
            y,
            weight,
            rounding=self._rounding,
            batch_size=self.batch_size,
            num_chains=self.num_chains,
            adapt=self.burn_in is None,
            work=self._work,
            max_time=None if self.max_time is None else self.max_time - seconds_spent,
            from_positions=self._positions,
        )
        if self.burn_in is None and not target.has_arrived:
            text = (
                "The chains have not arrived at the posterior: the log likelihood of the rows was "
                "still drifting when half of the budget was spent (`learning_curve_`). Allow more "
                "time (`max_time`), or use a smaller network or `batch_size`."
            )
            warn_user(Message(text, ConvergenceWarning))
        return target

    def _chain_settings(self, target: Any, state: Any) -> dict[str, Any]:
        """Return the start of each chain, and as many steps between draws as the budget allows."""
        longest = round(LONGEST_TIME_BETWEEN_DRAWS / target.step_size)
        affordable = target.steps_left // DRAWS_OF_BUDGET
        thin = max(1, min(longest, affordable)) if self.thin is None else self.thin
        burn_in = {} if state is not None or self.burn_in is not None else {"burn_in": thin}
        return {
            "thermostat_mass": THERMOSTAT_MASS,
            "integrator": BALANCED_WORD,
            "coordinates": target.coordinates,
            "starts": target.starts if state is None else None,
            "thin": thin,
            **burn_in,
        }

    def _standardize(self, X: np.ndarray) -> np.ndarray:
        return (X - self._feature_means) / self._feature_scales

    def _convergence_draws(self) -> Any:
        """Return draws of predictions for some rows: weights need not agree between chains.

        They are means and log scales of a regression, or log probabilities of classes.
        """
        x = jnp.asarray(self._standardize(self._data[0][:CONVERGENCE_ROWS]), jnp.float32)
        outputs = np.asarray(_outputs_of_draws(self._model)(joined_draws(self._run.draws), x))
        outputs = outputs.reshape(*self._run.draws.shape[:2], *outputs.shape[1:])
        if self._model.noise is None:  # a shift of all logits of a row changes no prediction
            outputs = log_softmax(outputs.astype(np.float64), axis=-1)
        if self._model.noise == "constant":  # the same log scale in all rows
            return np.concatenate([outputs[..., 0], outputs[:, :, 0, 1:]], axis=-1)
        return outputs.reshape(*outputs.shape[:2], -1)

    def _validate_features(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        refuse_masked(X=X)
        X = np.asarray(validate_data(self, X, dtype=np.float64, reset=False))
        with np.errstate(over="ignore"):
            x = self._standardize(X)
        row, column = np.unravel_index(np.argmax(np.abs(x)), x.shape)
        if abs(x[row, column]) > MOST_SDS:
            raise ValueError(
                f"`X` has {X[row, column]:.3g} in row {row}, column {column}, more than "
                f"{MOST_SDS:g} standard deviations from the mean of the rows of `fit`: networks "
                "compute in single precision, in which predictions would overflow."
            )
        return x

    def _average_predictions(self, X: Any) -> Any:
        X = self._validate_features(X)
        x = jnp.asarray(pad_to_multiples(X, ROW_MULTIPLE, 1), jnp.float32)
        averages = posterior_predictive(Predict(self._model), self._run.draws, x)
        return jax.tree.map(lambda each: np.asarray(each, np.float64)[: len(X)], averages)


class BayesianMLPClassifier(ClassLabelsMixin, ClassifierMixin, BayesianMLP):
    r"""A feed-forward network with class probabilities averaged over the posterior of its weights.

    Features are standardised. Weights of a layer with $n$ inputs have the prior
    $\mathcal N(0, s^2/n)$, biases $\mathcal N(0, s^2)$, so that outputs are of order $s$ for any
    widths.

    Every chain starts at its own trained network, stopped early on held-out rows, and then moves
    into the posterior given all rows (`isotherm.estimators.network_posterior` has the mathematics).
    The sampler is mSGNHT-S at temperature 1; there are no settings to tune. Up to 256 rows are all
    used at every step. With more rows, batches of 128 are balanced (`isotherm.balanced`): their
    noise, which depends on the weights, is taken out again. A fit warns if chains have not
    arrived, if they disagree (R-hat of predictions above 1.1), or if a temperature is off.

    Parameters
    ----------
    hidden_layer_sizes
        Number of units of each hidden layer.
    activation
        `"tanh"`, `"relu"` or `"sigmoid"`.
    prior_variance
        `"learned"`: every layer has a scale, which is sampled with the weights; its prior is
        log-normal with median 2. $v$: the same for all layers. `"auto"`: learned, except with a
        noisy Dirichlet, where $v = 4$: its noise is given and larger than that of clear labels, so
        that learned scales become too large.
    likelihood
        `"auto"`: softmax, unless networks trained with a noisy Dirichlet of $\alpha$ = 0.0001,
        which says that labels are nearly certain, predict held-out rows better by three standard
        errors. Five folds are held out, one after another, until 1000 rows have been compared; of
        more than 5000 rows some are used. With fewer than 100 rows, or more than one hidden layer,
        it is softmax: in deeper networks the posterior with a noisy Dirichlet can predict much
        worse than the trained networks do.
        `"categorical"`: softmax. Or an object of `isotherm.models`: `CuratedLabels(S)` if every
        label is the agreement of $S$ annotators, `NoisyDirichlet(alpha)`, or another one with class
        probabilities.
    num_draws
        Draws per chain.
    num_chains
        Number of independent chains.
    thin
        Steps between draws; by default as many as the budget of a fit allows, at most two units of
        time.
    burn_in
        Steps before the first draw; by default chains move until the log likelihood of the rows
        has stopped drifting.
    batch_size
        Rows per step; by default all of up to 256 rows, otherwise 128.
    max_time
        Seconds for the whole fit. By default the budget is counted, not timed: about 80 seconds of
        two cores plus compilation, and results are reproducible. With `max_time` the number of
        steps depends on the clock.
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
    likelihood_
        The likelihood, that of `likelihood` or the one that `"auto"` chose.
    draws_
        Draws by name, with leading axes `(chain, draw)`: `"weights_1"` (chain, draw, inputs, units)
        and `"bias_1"` (chain, draw, units) of the first layer, and so on up to the output layer,
        and the scales `"scale_1"`, … if they are learned. They act on standardised features.
        Computed from the state of the chains at each access.
    diagnostics_
        Temperatures, step size and divergences; R-hat and effective sample sizes of the log
        probabilities of all classes for 50 training rows. (Weights need not agree between chains:
        hidden units can be permuted.)
    learning_curve_
        Log likelihood of (at most 2048) rows on the way into the posterior, (chain, point).
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> x, y = make_moons(100, noise=0.1, random_state=0)
    >>> model = BayesianMLPClassifier((10,), num_draws=50, thin=10, random_state=0).fit(x, y)
    >>> model.score(x, y) > 0.9
    True
    """

    likelihood_: Likelihood
    _largest_feature = 2.5
    _work = 2 * WORK
    _prior_words = ("auto", "learned")

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] = (32, 32),
        *,
        activation: str = "relu",
        prior_variance: float | str = "auto",
        likelihood: str | Likelihood = "auto",
        num_draws: int = 250,
        num_chains: int = 4,
        thin: int | None = None,
        burn_in: int | None = None,
        batch_size: int | None = None,
        max_time: float | None = None,
        random_state: Any = None,
        verbose: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            hidden_layer_sizes,
            activation,
            prior_variance,
            num_draws,
            num_chains,
            thin,
            burn_in,
            batch_size,
            max_time,
            random_state,
            verbose,
            checkpoint,
        )
        self.likelihood = likelihood

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, averaged over draws: (rows, classes)."""
        probabilities = self._average_predictions(X)
        return probabilities / probabilities.sum(1, keepdims=True)

    def plot_calibration(self, X: Any, y: Any) -> "Figure":
        """Plot the share of correct predictions against the confidence.

        On the diagonal the classifier is calibrated, below it is overconfident.

        Parameters
        ----------
        X, y
            Rows and their labels, other than those of `fit`.
        """
        probabilities = self.predict_proba(X)
        y = np.asarray(column_or_1d(y))
        unknown = np.setdiff1d(y, self.classes_)
        if unknown.size:
            raise ValueError(f"`y` has labels that `fit` has not seen: {unknown[:5].tolist()}.")
        return plot_reliability(probabilities, np.searchsorted(self.classes_, y))

    def _set_fitted_attributes(self) -> None:
        """Set nothing: a network has no posterior mean of its weights."""

    def _validate_rows(self, X: Any, y: Any, reset: bool, classes: Any) -> tuple[Any, np.ndarray]:
        X, y = validate_data(self, X, y, dtype=np.float64, reset=reset)
        return X, self._encode_labels(y, reset, classes)

    def _build_target(self, data: Any) -> NetworkTarget:
        began = time.monotonic()
        if not isinstance(self.likelihood, str) or self.likelihood != "auto":
            self.likelihood_ = as_likelihood(self.likelihood)
        elif self._positions is None:  # otherwise rows were added: the choice stands
            self.likelihood_ = self._choose_likelihood(*data)
        likelihood = self.likelihood_
        if likelihood.num_outputs is not None or likelihood.num_shared:
            raise ValueError(
                "`likelihood` must be one of classes: 'categorical', 'auto', CuratedLabels, "
                f"NoisyDirichlet, …, got {self.likelihood!r}."
            )
        spent = time.monotonic() - began
        return self._network_target(data, len(self.classes_), likelihood, seconds_spent=spent)

    def _choose_likelihood(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Likelihood:
        """Return the candidate whose predictions of held-out rows have the largest likelihood."""
        if len(y) < MIN_ROWS_TO_CHOOSE or len(self.hidden_layer_sizes) > MOST_HIDDEN_LAYERS:
            return LIKELIHOODS[0]
        key = jax.random.key(self._seed)
        rng = np.random.default_rng(random.numpy_seed(random.fold(key, 8)))
        some = np.sort(rng.permutation(len(y))[:MAX_ROWS_TO_CHOOSE])
        X, y, weight = X[some], y[some], weight[some]
        folds = _folds(y, rng)
        scores = np.full((len(LIKELIHOODS), len(y)), np.nan)
        for fold in range(NUM_FOLDS):
            if np.isfinite(scores[0]).sum() >= ENOUGH_COMPARED:
                break
            out = folds == fold
            self._set_feature_scales(X[~out], weight[~out])
            x = self._standardize(X)
            for i, likelihood in enumerate(LIKELIHOODS):
                scores[i, out] = self._held_out_scores(
                    random.fold(random.fold(key, 9 + fold), i),
                    self._network_model(X.shape[1], len(self.classes_), likelihood),
                    (x[~out], y[~out], weight[~out]),
                    (x[out], y[out]),
                )
        compared = np.isfinite(scores[0])
        return LIKELIHOODS[_best(scores[:, compared], weight[compared])]

    def _held_out_scores(
        self,
        key: Any,
        model: MLPModel,
        rows: tuple[np.ndarray, ...],
        held_out: tuple[np.ndarray, ...],
    ) -> np.ndarray:
        """Return the log probability of held-out labels, predicted by networks for other rows."""
        networks = train_networks(key, model, *rows, num_networks=NETWORKS_PER_FOLD)
        x, y = held_out
        inputs = jnp.asarray(pad_to_multiples(x, ROW_MULTIPLE, 1), jnp.float32)
        draws = np.asarray(networks)[:, None]
        chances = np.asarray(posterior_predictive(Predict(model), draws, inputs), np.float64)
        return np.log(np.maximum(chances[np.arange(len(y)), y], 1e-30))


class BayesianMLPRegressor(RegressorMixin, BayesianMLP):
    r"""A feed-forward network whose predictions are mixtures over the posterior of its weights.

    Features and target are standardised. Weights of a layer with $n$ inputs have the prior
    $\mathcal N(0, s^2/n)$, biases $\mathcal N(0, s^2)$. The scale of the noise is the same
    everywhere, or depends on the input; $\sigma \sim \text{half-Cauchy}(1)$ in units of the
    target's standard deviation.

    Every chain starts at its own trained network, stopped early on held-out rows, and then moves
    into the posterior given all rows (`isotherm.estimators.network_posterior` has the mathematics).
    The sampler is mSGNHT-S at temperature 1; there are no settings to tune. Up to 2048 rows are all
    used at every step. With more rows, batches of 512 are balanced (`isotherm.balanced`): their
    noise, which depends on the weights, is taken out again. A fit warns if chains have not
    arrived, if they disagree (R-hat of outputs above 1.1), or if a temperature is off.

    The predictive distribution of a row is a *mixture* over draws: `predict_interval`,
    `predict_quantiles`, `log_density` and `sample_predictive` use all of it. A Gaussian with its
    mean and standard deviation (`predict(X, return_std=True)`) can be much worse.

    Parameters
    ----------
    hidden_layer_sizes
        Number of units of each hidden layer.
    activation
        `"tanh"`, `"relu"` or `"sigmoid"`.
    prior_variance
        `"learned"`: every layer has a scale, which is sampled with the weights; its prior is
        log-normal with median 2. Or $v$, the same for all layers.
    noise
        `"constant"`, or `"input-dependent"`: $\log\sigma(x)$ is a function of the inputs and of
        the mean, linear within a factor of $e^{\pm 2}$. It predicts better only where the noise
        varies much.
    noise_df
        Degrees of freedom of Student-t noise. Its tails are heavier than Gaussian ones, so that
        rows far from the others do not mislead the network, nor its intervals. `None`: Gaussian.
    num_draws
        Draws per chain.
    num_chains
        Number of independent chains.
    thin
        Steps between draws; by default as many as the budget of a fit allows, at most two units of
        time.
    burn_in
        Steps before the first draw; by default chains move until the log likelihood of the rows
        has stopped drifting.
    batch_size
        Rows per step; by default all of up to 2048 rows, otherwise 512.
    max_time
        Seconds for the whole fit. By default the budget is counted, not timed: about 40 seconds of
        two cores plus compilation, and results are reproducible. With `max_time` the number of
        steps depends on the clock.
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
        Posterior mean of the variance of the noise, averaged over the rows.
    draws_
        Draws by name, with leading axes `(chain, draw)`: `"weights_1"` (chain, draw, inputs, units)
        and `"bias_1"` (chain, draw, units) of the first layer, and so on up to the output layer,
        and the scales `"scale_1"`, … if they are learned. They map standardised features to the
        standardised target. `"noise_variance"` (chain, draw) is $\sigma_0^2$ in squared units of
        the target. With input-dependent noise, `"noise_slopes"` are the coefficients of the inputs
        and of the mean, and $\sigma_0$ is the scale where their sum is 0. Computed from the state
        of the chains at each access.
    diagnostics_
        Temperatures, step size and divergences; R-hat and effective sample sizes of the outputs for
        50 training rows. (Weights need not agree between chains: hidden units can be permuted.)
    learning_curve_
        Log likelihood of (at most 2048) rows on the way into the posterior, (chain, point).
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 50)[:, None]
    >>> y = np.sin(3 * x[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=50)
    >>> model = BayesianMLPRegressor((12,), num_draws=50, thin=20, num_chains=2, random_state=0)
    >>> lower, upper = model.fit(x, y).predict_interval(np.array([[0.0], [4.0]]), level=0.9)
    >>> bool(upper[1] - lower[1] > 2 * (upper[0] - lower[0]))
    True
    """

    noise_variance_: float
    _largest_feature = 5.0

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] = (32, 32),
        *,
        activation: str = "tanh",
        prior_variance: float | str = "learned",
        noise: str = "constant",
        noise_df: float | None = 4.0,
        num_draws: int = 250,
        num_chains: int = 4,
        thin: int | None = None,
        burn_in: int | None = None,
        batch_size: int | None = None,
        max_time: float | None = None,
        random_state: Any = None,
        verbose: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            hidden_layer_sizes,
            activation,
            prior_variance,
            num_draws,
            num_chains,
            thin,
            burn_in,
            batch_size,
            max_time,
            random_state,
            verbose,
            checkpoint,
        )
        self.noise = noise
        self.noise_df = noise_df

    def predict(self, X: Any, return_std: bool = False) -> Any:
        r"""Predict the mean of each row and, optionally, its standard deviation.

        Parameters
        ----------
        X
            (rows, features).
        return_std
            Whether to return a pair `(mean, sd)`, where `sd` is the standard deviation of a new
            observation: the square root of the variance of $f(x)$ over draws plus the mean of the
            variance of the noise.
        """
        mean, square, noise = self._average_predictions(X)
        predicted = self._target_mean + self._target_scale * mean
        if not return_std:
            return predicted
        noise = self._noise_ratio * (noise + self._rounding**2)
        variance = np.maximum(square - mean**2, 0) + noise
        return predicted, self._target_scale * np.sqrt(variance)

    def predictive(self, X: Any) -> Mixture:
        """Return the predictive distribution of all rows, a mixture over draws.

        It has the log density, distribution function, quantiles, intervals, samples and, with
        Gaussian noise, the CRPS of each row (`isotherm.diagnostics.Mixture`), and needs 16 bytes
        per row and draw.

        Parameters
        ----------
        X
            (rows, features).
        """
        return self._mixture(self._validate_features(X))

    def log_density(self, X: Any, y: Any) -> np.ndarray:
        """Return the log density of each target under the predictive mixture of its row, (rows,).

        Parameters
        ----------
        X, y
            As in `fit`.
        """
        y = np.asarray(column_or_1d(y), np.float64)
        X = self._validate_features(X)
        check_consistent_length(X, y)
        parts = [self._mixture(x).log_density(y[rows]) for rows, x in _blocks(X)]
        return np.concatenate(parts)

    def predict_quantiles(self, X: Any, quantiles: Any) -> np.ndarray:
        """Return quantiles of the predictive mixture of each row, (quantiles, rows).

        Parameters
        ----------
        X
            (rows, features).
        quantiles
            Probabilities in (0, 1): a number, or a vector.
        """
        X = self._validate_features(X)
        parts = [self._mixture(x).quantile(quantiles) for _, x in _blocks(X)]
        return np.concatenate(parts, axis=-1)

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper ends of central intervals with this probability, each (rows,).

        Parameters
        ----------
        X
            (rows, features).
        level
            Probability that a new observation of the row is in its interval.
        """
        X = self._validate_features(X)
        parts = [self._mixture(x).interval(level) for _, x in _blocks(X)]
        lower, upper = (np.concatenate(ends) for ends in zip(*parts, strict=True))
        return lower, upper

    def sample_predictive(
        self, X: Any, num_samples: int = 1, random_state: Any = None
    ) -> np.ndarray:
        """Draw new observations, jointly for all rows, (samples, rows).

        All rows of a sample come from the same network, so that sums and differences of
        observations have the right distribution too.

        Parameters
        ----------
        X
            (rows, features).
        num_samples
            Number of samples.
        random_state
            A seed, a `numpy.random.RandomState`, or `None`.
        """
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        return self.predictive(X).sample(jax.random.key(seed), num_samples)

    def plot_calibration(self, X: Any, y: Any) -> "Figure":
        """Plot the histogram of predictive probabilities of a smaller target (PIT).

        It is flat if predictions are calibrated. Too many rows at both ends: intervals are too
        narrow; too many in the middle: too wide.

        Parameters
        ----------
        X, y
            Rows and their targets, other than those of `fit`.
        """
        y = np.asarray(column_or_1d(y), np.float64)
        X = self._validate_features(X)
        check_consistent_length(X, y)
        values = [self._mixture(x).cdf(y[rows]) for rows, x in _blocks(X)]
        return plot_pit(np.clip(np.concatenate(values), 0.0, 1.0))

    def _mixture(self, x: np.ndarray) -> Mixture:
        """Return the mixtures of standardised rows."""
        padded = jnp.asarray(pad_to_multiples(x, ROW_MULTIPLE, 1), jnp.float32)
        outputs = _outputs_of_draws(self._model)(joined_draws(self._run.draws), padded)
        location, log_scale = np.moveaxis(np.asarray(outputs, np.float64)[:, : len(x)], -1, 0)
        location = self._target_mean + self._target_scale * location
        scale = self._target_scale * np.sqrt(np.exp(2 * log_scale) + self._rounding**2)
        if self.noise_df is None:
            return gaussian_mixture(location, scale)
        return student_t_mixture(location, scale, float(self.noise_df))

    @property
    def _noise_ratio(self) -> float:
        """Variance of the noise over its squared scale; NaN if it is not finite."""
        if self.noise_df is None:
            return 1.0
        return self.noise_df / (self.noise_df - 2) if self.noise_df > 2 else np.nan

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.noise not in ("input-dependent", "constant"):
            raise ValueError(
                f"`noise` must be 'input-dependent' or 'constant', got {self.noise!r}."
            )
        if self.noise_df is not None:
            check_positive(self.noise_df, "noise_df")

    def _validate_rows(self, X: Any, y: Any, reset: bool, classes: Any) -> tuple[Any, np.ndarray]:
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, reset=reset)
        return X, np.asarray(y, np.float64)

    @property
    def draws_(self) -> Draws:
        """Draws of weights, biases, scales and noise variance, leading axes `(chain, draw)`."""
        draws = super().draws_
        variance = draws["noise_variance"] + self._rounding**2
        return draws | {"noise_variance": variance * self._target_scale**2}

    def _build_target(self, data: Any) -> NetworkTarget:
        X, y, weight = data
        self._target_mean = np.average(y, weights=weight)
        self._target_scale = float(positive_sds(y, weight))
        y = (y - self._target_mean) / self._target_scale
        likelihood = Gaussian(None) if self.noise_df is None else StudentT(self.noise_df, None)
        return self._network_target((X, y, weight), 1, likelihood, self.noise)

    def _set_fitted_attributes(self) -> None:
        if self.noise == "constant":
            noise = self._model.noise_variance(self._run.draws).mean()
        else:
            x = jnp.asarray(self._standardize(self._data[0][:ROWS_PER_BLOCK]), jnp.float32)
            noise = posterior_predictive(Predict(self._model), self._run.draws, x)[2].mean()
        variance = float(noise) + self._rounding**2
        self.noise_variance_ = variance * self._noise_ratio * self._target_scale**2


def _folds(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the number of the fold of each row; every class is spread evenly."""
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    folds = np.empty(len(y), int)
    folds[order] = np.arange(len(y)) % NUM_FOLDS
    return folds


def _best(scores: np.ndarray, weight: np.ndarray) -> int:
    """Return the number of the best candidate: the first unless another is clearly better.

    Parameters
    ----------
    scores
        Log probability of the label of each held-out row, (candidates, rows).
    weight
        Weights of the rows.
    """
    gaps = scores - scores[0]
    mean = np.average(gaps, axis=1, weights=weight)
    share = weight / weight.sum()
    errors = np.sqrt(np.sum((share * (gaps - mean[:, None])) ** 2, axis=1))
    return int(np.argmax(np.where(mean > CLEARLY_BETTER * errors, mean, 0.0)))


def _warn_of_temperatures(run: Run) -> None:
    """Warn if a kinetic temperature is far from 1."""
    wrong = replace(run, draws=None).summary().wrong_temperatures
    if wrong:
        text = (
            f"The kinetic temperature of chain {wrong[0].chain} is {wrong[0].mean:.3g} instead of "
            "1: its draws are not the posterior. If the targets have hardly any noise, the "
            "posterior is degenerate; otherwise draw more, or use a narrower prior "
            "(`prior_variance`). `diagnostics_` shows all temperatures."
        )
        warn_user(Message(text, HealthWarning))


@lru_cache(maxsize=32)
def _outputs_of_draws(model: MLPModel) -> Callable:
    """Return a compiled function of joined draws and rows; the same for equal models."""
    apply = Outputs(model)
    return jax.jit(lambda draws, x: jax.lax.map(lambda w: apply(w, x), draws, batch_size=16))


def _blocks(X: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Return slices of rows, and the rows."""
    for start in range(0, len(X), ROWS_PER_BLOCK):
        rows = slice(start, start + ROWS_PER_BLOCK)
        yield rows, X[rows]
