"""Base class of all estimators: settings, chains, draws, diagnostics and `partial_fit`."""

import hashlib
import os
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.sparsefuncs import min_max_axis
from sklearn.utils.validation import check_is_fitted

from isotherm.diagnostics.convergence import rhat
from isotherm.estimators.sampling import Draws, Target, run_chains
from isotherm.io.digest import digest
from isotherm.loop.run import Run, Summary
from isotherm.loop.user_warnings import Message, warn_user
from isotherm.tree import refuse_masked

MAX_SIZE = 1e100
"""Largest absolute value of data, and the inverse of the smallest; its square is representable."""
MAX_WEIGHT = 1e12
"""Largest weight of a row, and the inverse of the smallest that the largest may be."""
MIN_DRAWS_FOR_RHAT = 200
"""Shorter runs do not warn of a large R-hat."""


class BayesianEstimator(BaseEstimator, ABC):
    """An estimator whose predictions are averages over draws of mSGNHT-S in natural coordinates.

    A subclass defines how rows are checked and stored, and the target that chains sample given the
    stored data.
    """

    _run: Run
    _seed: int
    _data: Any
    """What is stored of all rows so far."""
    _target: Any
    """What chains sample, a `Target`."""
    _last_rows: str
    """Digest of the rows of the last call."""
    _history: str
    """Digest of the seed and of the rows of all calls; the name of the checkpoint folder."""
    _max_rhat = 1.05
    """A run of at least `MIN_DRAWS_FOR_RHAT` draws warns if an R-hat is above this."""

    def __init__(
        self,
        prior_variance: float,
        num_draws: int,
        num_chains: int,
        thin: int | None,
        burn_in: int | None,
        random_state: Any,
        verbose: bool,
        checkpoint: str | os.PathLike[str] | None,
    ) -> None:
        self.prior_variance = prior_variance
        self.num_draws = num_draws
        self.num_chains = num_chains
        self.thin = thin
        self.burn_in = burn_in
        self.random_state = random_state
        self.verbose = verbose
        self.checkpoint = checkpoint

    @abstractmethod
    def _validate_rows(self, X: Any, y: Any, reset: bool, classes: Any) -> tuple[Any, np.ndarray]:
        """Check rows and convert them; `reset` if earlier rows are forgotten."""

    @abstractmethod
    def _append_rows(self, data: Any, X: Any, y: np.ndarray) -> Any:
        """Return the stored data with rows added; `data` is `None` if there are no earlier rows.

        Estimators whose `fit` has `sample_weight` get the weights of the rows as a last argument.
        """

    @abstractmethod
    def _build_target(self, data: Any) -> Target:
        """Return the posterior given the stored data."""

    @abstractmethod
    def _transfer_state(self, target: Any) -> Any:
        """Convert the state of the chains to the coordinates of another target."""

    @abstractmethod
    def _set_fitted_attributes(self) -> None:
        """Set the attributes that are computed from the draws."""

    @property
    @abstractmethod
    def draws_(self) -> Draws:
        """Draws of the parameters by name, with leading axes `(chain, draw)`."""

    def fit(self, X: Any, y: Any) -> Self:
        """Draw from the posterior given these rows.

        Parameters
        ----------
        X
            (rows, features).
        y
            (rows,).
        """
        return self._update(X, y, reset=True)

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Continue the chains, for more draws or with more data.

        If the rows are those of the last call, the chains add `num_draws` draws of the same
        posterior; the result equals that of one longer run, bit for bit. Other rows are added to
        those of earlier calls: the chains continue from their current positions to the posterior
        given all rows, and the draws of the old posterior are dropped. Before the first fit this is
        `fit`.

        Parameters
        ----------
        X, y
            As in `fit`.
        """
        return self._update(X, y, reset=not self.__sklearn_is_fitted__())

    @property
    def diagnostics_(self) -> Summary:
        """R-hat, ESS, mean and sd of the parameters, temperatures, step size, divergences."""
        check_is_fitted(self)
        return replace(self._run, draws=self.draws_).summary()

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether there are draws."""
        return hasattr(self, "_run")

    def _update(
        self, X: Any, y: Any, *, reset: bool, classes: Any = None, sample_weight: Any = None
    ) -> Self:
        self._check_settings()
        refuse_masked(X=X, y=y, sample_weight=sample_weight)
        X, y = self._validate_rows(X, y, reset, classes)
        weights: tuple[np.ndarray, ...] = ()
        if sample_weight is not None:
            weight = check_weights(sample_weight, len(y))
            X, y, weights = X[weight > 0], y[weight > 0], (weight[weight > 0],)
        check_range("X", X)
        check_range("y", y)
        rows = _digest(X, y, *weights)
        if reset:
            self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        history = _extend_history(str(self._seed) if reset else self._history, rows)
        if not reset and rows == self._last_rows:
            more = self._sample(self._target, self._run.state, 0, history)
            self._run = _concatenate(self._run, more)
        else:
            data = self._append_rows(None if reset else self._data, X, y, *weights)
            target = self._build_target(data)
            state = None if reset else self._transfer_state(target)
            self._run = self._sample(target, state, self.burn_in, history)
            self._data, self._target, self._last_rows = data, target, rows
        self._history = history
        if self._run.num_draws >= MIN_DRAWS_FOR_RHAT:
            _warn_if_not_converged(rhat(self._convergence_draws()), self._max_rhat)
        self._set_fitted_attributes()
        return self

    def _convergence_draws(self) -> Any:
        """Return draws of the quantities whose R-hat is checked."""
        return self._run.draws

    def _check_settings(self) -> None:
        """Raise if a setting is not valid, in scikit-learn's words."""
        for name in ("num_draws", "num_chains", "thin", "burn_in", "batch_size"):
            value = getattr(self, name, None)
            if value is not None or name.startswith("num_"):
                check_scalar(value, name, (int, np.integer), min_val=int(name != "burn_in"))
        self._check_prior_variance()
        if self.checkpoint is not None and not isinstance(self.random_state, int | np.integer):
            raise ValueError(
                "`checkpoint` needs an integer `random_state`: without a fixed seed a run cannot "
                "be resumed."
            )

    def _check_prior_variance(self) -> None:
        """Raise unless it is a positive number."""
        check_positive(self.prior_variance, "prior_variance")

    def _sample(self, target: Target, state: Any, burn_in: int | None, history: str) -> Run:
        folder = self.checkpoint
        steps: dict[str, Any] = {"thin": self.thin, "burn_in": burn_in}
        return run_chains(
            jax.random.key(self._seed),
            target,
            num_draws=self.num_draws,
            num_chains=self.num_chains,
            state=state,
            verbose=bool(self.verbose),
            checkpoint=None if folder is None else Path(folder) / history,
            **steps | self._chain_settings(target, state),
        )

    def _chain_settings(self, target: Any, state: Any) -> dict[str, Any]:
        """Return further arguments of `run_chains`."""
        del target, state
        return {}


class ClassLabelsMixin:
    """Labels of a classifier: encoding as 0, 1, …, and prediction of the most probable one."""

    classes_: np.ndarray

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(1)]  # type: ignore[attr-defined]

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Continue the chains, for more draws or with more data.

        As in all estimators, with the labels of classes that appear in later calls only.

        Parameters
        ----------
        X, y
            As in `fit`. The rows of the last call give more draws; other rows are added to those of
            earlier calls.
        classes
            Labels of all classes, in the first call; by default those in its `y`.
        """
        reset = not self.__sklearn_is_fitted__()  # type: ignore[attr-defined]
        return self._update(X, y, reset=reset, classes=classes)  # type: ignore[attr-defined]

    def _encode_labels(self, y: Any, reset: bool, classes: Any) -> np.ndarray:
        """Check labels and return the index of each in `classes_`."""
        check_classification_targets(y)
        if reset:
            self.classes_ = unique_labels(y if classes is None else classes)
            if len(self.classes_) < 2:
                raise ValueError(
                    f"{type(self).__name__} needs at least two classes, got one class: "
                    f"{self.classes_.tolist()}."
                )
        elif classes is not None and not np.array_equal(unique_labels(classes), self.classes_):
            raise ValueError(
                f"`classes={classes!r}` is not the same as on the last call to partial_fit, was: "
                f"{self.classes_!r}."
            )
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"`y` contains new labels: {unknown.tolist()}.")
        return np.searchsorted(self.classes_, y)


def check_positive(value: Any, name: str) -> None:
    """Raise unless a setting is a positive number, in scikit-learn's words."""
    number = (int, float, np.integer, np.floating)
    check_scalar(value, name, number, min_val=0, include_boundaries="neither")


def check_weights(sample_weight: Any, num_rows: int) -> np.ndarray:
    """Check the weights of rows, and convert them to an array."""
    weights = np.asarray(sample_weight, np.float64)
    if weights.shape != (num_rows,):
        raise ValueError(
            f"`sample_weight` must have shape ({num_rows},), one number per row, got "
            f"{weights.shape}."
        )
    if not np.isfinite(weights).all() or weights.min() < 0 or not weights.max() > 0:
        raise ValueError(
            "`sample_weight` must be finite and not negative, and not every weight may be zero."
        )
    if not 1 / MAX_WEIGHT <= weights.max() <= MAX_WEIGHT:
        raise ValueError(
            f"`sample_weight` has a largest value of {weights.max():.3g}; it must be between "
            f"{1 / MAX_WEIGHT:g} and {MAX_WEIGHT:g}. A row of weight 2 counts as two rows: scale "
            "the weights so that their sum is the number of rows."
        )
    return weights


def check_range(name: str, values: Any) -> None:
    """Raise if a column has numbers whose squares over- or underflow."""
    table = (
        values if np.ndim(values) == 2 or sparse.issparse(values) else np.reshape(values, (-1, 1))
    )
    bounds: Any = min_max_axis(table, 0) if sparse.issparse(table) else (table.min(0), table.max(0))
    low, high = bounds
    largest = np.maximum(-low.astype(np.float64), high.astype(np.float64))
    wrong = np.flatnonzero((largest > 0) & ~((1 / MAX_SIZE <= largest) & (largest <= MAX_SIZE)))
    if len(wrong):
        column = f", column {wrong[0]}," if table.shape[1] > 1 else ""
        raise ValueError(
            f"`{name}`{column} has a largest absolute value of {largest[wrong[0]]:.3g}; it must be "
            f"0 or between {1 / MAX_SIZE:g} and {MAX_SIZE:g}, because squares of other numbers "
            "over- or underflow. Divide by the largest absolute value."
        )


def _warn_if_not_converged(values: Any, largest: float) -> None:
    """Warn if an R-hat is too large."""
    if np.nanmax(values) < largest:
        return
    text = (
        f"R-hat of {np.sum(values >= largest)} of {values.size} numbers is {largest} or more "
        f"(up to {np.nanmax(values):.2f}): the chains do not agree yet. Draw more (`partial_fit` "
        "with the same rows continues the chains), or use a narrower prior (`prior_variance`)."
    )
    warn_user(Message(text, ConvergenceWarning))


def _concatenate(first: Run, second: Run) -> Run:
    """Concatenate a run and its continuation."""
    draws, stats = jax.tree.map(
        lambda a, b: np.concatenate([a, b], axis=1),
        (first.draws, dict(first.stats)),
        (second.draws, dict(second.stats)),
    )
    return replace(
        second,
        draws=draws,
        collected={"draws": draws},
        stats=stats,
        num_draws=first.num_draws + second.num_draws,
        burn_in=first.burn_in,
        seconds=first.seconds + second.seconds,
    )


def _digest(X: Any, y: np.ndarray, *weights: np.ndarray) -> str:
    """Return a digest of rows; equal rows in equal order have equal digests."""
    parts = [X.indptr, X.indices, X.data] if sparse.issparse(X) else [X]
    return digest([np.array(X.shape), *parts, y, *weights])


def _extend_history(history: str, rows: str) -> str:
    return hashlib.sha256(f"{history} {rows}".encode()).hexdigest()[:16]
