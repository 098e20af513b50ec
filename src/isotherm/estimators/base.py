"""What all estimators share: from settings to chains, and from chains to attributes."""

import hashlib
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted

from isotherm.diagnostics.convergence import rhat
from isotherm.estimators.design_svd import Axes, Columns, principal_axes
from isotherm.estimators.sampling import LONGEST, Draws, Target, run_chains
from isotherm.loop.run import Run, Summary

MOST_NUMBERS = 10_000
"""Coefficients: natural coordinates need a square matrix over all of them."""
LARGEST_RHAT, ENOUGH_DRAWS = 1.05, 200
"""Above the first, a run of at least so many draws warns."""


class ThermostatEstimator(BaseEstimator, ABC):
    """An estimator whose attributes are averages over draws of mSGNHT-S in natural coordinates."""

    prior_variance: float
    standardize: bool
    fit_intercept: bool
    num_draws: int
    num_chains: int
    thin: int | None
    burn_in: int | None
    random_state: Any
    verbose: bool
    checkpoint: str | os.PathLike[str] | None

    draws_: Draws
    coef_: np.ndarray
    intercept_: Any
    _run: Run
    _seed: int
    _data: Any
    _target: Target
    _rows: str
    _history: str
    """A digest of the seed and of all rows so far, call by call."""
    _longest_thinning = _longest_burn_in = LONGEST
    """Bounds on what is chosen if `thin` and `burn_in` are not given."""

    @abstractmethod
    def _validate(self, X: Any, y: Any, fresh: bool, classes: Any) -> tuple[Any, np.ndarray]:
        """Check rows and give them as the model wants them; `fresh` if there were none before."""

    @abstractmethod
    def _add(self, data: Any, X: Any, y: np.ndarray) -> Any:
        """Put rows to the data so far (`None` if there are none)."""

    @abstractmethod
    def _make_target(self, data: Any) -> Target:
        """Find the natural coordinates of the posterior given the data."""

    def _principal_axes(self, columns: Columns) -> Axes:
        """Find the axes of the columns under the prior of the settings."""
        return principal_axes(
            columns,
            prior_variance=self.prior_variance,
            standardize=self.standardize,
            fit_intercept=self.fit_intercept,
        )

    def fit(self, X: Any, y: Any) -> Self:
        """Draw from the posterior given these rows.

        Parameters
        ----------
        X
            (rows, features), dense or SciPy sparse.
        y
            (rows,).
        """
        return self._learn(X, y, fresh=True)

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Go on with the chains, for more draws or with more data.

        The same rows as in the last call give `num_draws` more draws of the same posterior: the
        result is that of one longer run, bit for bit. Other rows join those given before. The chains
        move on from where they are to the posterior given all rows, and the draws of the old one are
        dropped. Without a fit before, this is `fit`.

        Parameters
        ----------
        X, y
            As in `fit`.
        """
        return self._learn(X, y, fresh=not self.__sklearn_is_fitted__())

    @property
    def diagnostics_(self) -> Summary:
        """R-hat, ESS, mean and sd of the coefficients, temperatures, step size, divergences."""
        check_is_fitted(self)
        return replace(self._run, draws=self.draws_).summary()

    def __sklearn_is_fitted__(self) -> bool:
        """Tell whether there are draws."""
        return hasattr(self, "_run")

    def __sklearn_tags__(self) -> Any:
        """Say that sparse rows are welcome."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _learn(self, X: Any, y: Any, *, fresh: bool, classes: Any = None) -> Self:
        self._check_settings()
        X, y = self._validate(X, y, fresh, classes)
        rows = _digest(X, y)
        if fresh:
            self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        history = _mixed(str(self._seed) if fresh else self._history, rows)
        if not fresh and rows == self._rows:
            self._run = _joined(self._run, self._sample(self._target, self._run.state, 0, history))
        else:
            data = self._add(None if fresh else self._data, X, y)
            target = self._make_target(data)
            state = None if fresh else self._carried_over(target)
            self._run = self._sample(target, state, self.burn_in, history)
            self._data, self._target, self._rows = data, target, rows
        self._history = history
        if self._run.num_draws >= ENOUGH_DRAWS:
            _warn_of_disagreement(rhat(self._watched(self._run)))
        self.draws_ = self._target.read(self._run.draws)
        self._set_means()
        return self

    def _watched(self, run: Run) -> Any:
        """Pick what the chains have to agree about."""
        return run.draws

    def _set_means(self) -> None:
        """Set the attributes that are averages over draws."""
        for name, draws in self.draws_.items():
            setattr(self, f"{name}_", draws.mean((0, 1))[()])

    def _check_settings(self) -> None:
        """Refuse what no posterior can be drawn with, in scikit-learn's words."""
        for name in ("num_draws", "num_chains", "thin", "burn_in", "batch_size"):
            value = getattr(self, name, None)
            if value is not None or name.startswith("num_"):
                check_scalar(value, name, (int, np.integer), min_val=int(name != "burn_in"))
        for name in ("prior_variance", "noise_variance"):
            value = getattr(self, name, None)
            if value is not None or name == "prior_variance":
                number = (int, float, np.integer, np.floating)
                check_scalar(value, name, number, min_val=0, include_boundaries="neither")
        if self.checkpoint is not None and not isinstance(self.random_state, int | np.integer):
            raise ValueError(
                "`checkpoint` needs a seed as `random_state`: who has none cannot go on."
            )

    def _carried_over(self, target: Target) -> Any:
        """Give the state of the chains in the natural coordinates of another posterior."""
        here = target.locate({name: draws[:, -1] for name, draws in self.draws_.items()})
        return self._run.state._replace(position=jnp.asarray(here, jnp.float32))

    def _sample(self, target: Target, state: Any, burn_in: int | None, history: str) -> Run:
        folder = self.checkpoint
        return run_chains(
            jax.random.key(self._seed),
            target,
            num_draws=self.num_draws,
            num_chains=self.num_chains,
            thin=self.thin,
            burn_in=burn_in,
            state=state,
            verbose=bool(self.verbose),
            checkpoint=None if folder is None else Path(folder) / history,
            longest_thinning=self._longest_thinning,
            longest_burn_in=self._longest_burn_in,
        )


class LabelledRows:
    """What classifiers share: labels become numbers, and the most probable one is predicted."""

    classes_: np.ndarray

    def predict(self, X: Any) -> np.ndarray:
        """Give the most probable class of each row."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(1)]  # type: ignore[attr-defined]

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Go on with the chains, for more draws or with more data.

        The same rows as in the last call give `num_draws` more draws of the same posterior: the
        result is that of one longer run, bit for bit. Other rows join those given before. The chains
        move on from where they are to the posterior given all rows, and the draws of the old one are
        dropped. Without a fit before, this is `fit`.

        Parameters
        ----------
        X, y
            As in `fit`.
        classes
            All labels there will ever be, in the first call; by default those in its `y`.
        """
        fresh = not self.__sklearn_is_fitted__()  # type: ignore[attr-defined]
        return self._learn(X, y, fresh=fresh, classes=classes)  # type: ignore[attr-defined]

    def _numbered(self, y: Any, fresh: bool, classes: Any) -> np.ndarray:
        """Check labels, and give the number of each among all classes."""
        check_classification_targets(y)
        if fresh:
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


def refuse_too_many(num_coefficients: int) -> None:
    """Say early what would not fit."""
    if num_coefficients > MOST_NUMBERS:
        raise ValueError(
            f"{num_coefficients} coefficients are too many: natural coordinates need a square matrix "
            f"over them, and {MOST_NUMBERS} is the limit. Select features, or project them."
        )


def _warn_of_disagreement(worst: Any) -> None:
    """Warn if chains have not seen the same distribution."""
    if np.nanmax(worst) < LARGEST_RHAT:
        return
    warnings.warn(
        f"R-hat of {np.sum(worst >= LARGEST_RHAT)} coordinates is above {LARGEST_RHAT} (up to "
        f"{np.nanmax(worst):.2f}): the chains have not seen the same distribution yet. Draw more "
        "(`partial_fit` with the same rows goes on), or ask if the prior is meant to be so wide.",
        ConvergenceWarning,
        stacklevel=4,
    )


def _joined(before: Run, more: Run) -> Run:
    """Make one run of two, the second of which went on where the first had stopped."""
    draws, stats = jax.tree.map(
        lambda a, b: np.concatenate([a, b], axis=1),
        (before.draws, dict(before.stats)),
        (more.draws, dict(more.stats)),
    )
    return replace(
        more,
        draws=draws,
        collected={"draws": draws},
        stats=stats,
        num_draws=before.num_draws + more.num_draws,
        burn_in=before.burn_in,
        seconds=before.seconds + more.seconds,
    )


def _digest(X: Any, y: np.ndarray) -> str:
    """Tell rows apart: equal rows in equal order have equal digests."""
    parts = [X.indptr, X.indices, X.data] if sparse.issparse(X) else [X]
    total = hashlib.sha256(repr(X.shape).encode())
    for part in (*parts, y):
        total.update(np.ascontiguousarray(part).tobytes())
    return total.hexdigest()


def _mixed(history: str, rows: str) -> str:
    return hashlib.sha256(f"{history} {rows}".encode()).hexdigest()[:16]


def linear_predictors(
    X: Any, coef: np.ndarray, intercept: np.ndarray, block: int = 2**22
) -> Iterator[np.ndarray]:
    """Compute predictors of all draws, for a block of rows at a time: (rows, draws, …).

    Parameters
    ----------
    X
        (rows, features), dense or SciPy sparse.
    coef
        (draws, …, features).
    intercept
        (draws, …).
    block
        How many numbers to have at once.
    """
    flat = coef.reshape(-1, coef.shape[-1]).T
    size = max(1, block // flat.shape[1])
    for start in range(0, X.shape[0], size):
        z = np.asarray(X[start : start + size] @ flat)
        yield z.reshape(-1, *intercept.shape) + intercept
