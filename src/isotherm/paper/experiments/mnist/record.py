"""What is measured of a chain: curves over epochs, averaged predictions, traces."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import isotherm
from isotherm.diagnostics.calibration import (
    accuracy,
    expected_calibration_error,
    negative_log_likelihood,
)
from isotherm.diagnostics.convergence import ess

if TYPE_CHECKING:
    from isotherm.paper.experiments.mnist.learning import Recipe


class Record:
    """The measurements of a chain so far."""

    CURVES = (
        "draw accuracy",
        "draw nll",
        "train nll",
        "accuracy",
        "nll",
        "ece",
        "temperature",
        "thermostat",
    )
    SHARES = (0.25, 0.5, 0.75)

    def __init__(self, recipe: "Recipe", labels: np.ndarray, epoch_length: int) -> None:
        self.recipe, self.labels, self.epoch_length = recipe, labels, epoch_length
        self.curves: dict[str, list[float]] = {name: [] for name in self.CURVES}
        shape = (len(self.SHARES), len(labels), 10)
        self.sums, self.last_sums = np.zeros(shape), np.zeros(shape)
        self.entropy = np.zeros(len(labels))
        self.traces: list[np.ndarray] = []
        self.diverged = False

    @property
    def epoch(self) -> int:
        """Number of finished epochs."""
        return len(self.curves["accuracy"])

    def add(self, run: isotherm.loop.Run, train_nll: float) -> None:
        """Add the run of an epoch."""
        test = run.collected["test"]
        draws = np.asarray(test["probabilities"][0], np.float64)
        self.diverged = bool(run.diverged.any()) or not np.isfinite(draws).all()
        if self.diverged:
            return
        epoch, total = self.epoch + 1, self.recipe.num_epochs
        for i, share in enumerate(self.SHARES):
            if epoch > share * total:
                self.sums[i] += draws.mean(0)
                self.last_sums[i] += draws[-1]
        warm = epoch > self.recipe.burn_in * total
        average = self._average(self.recipe.burn_in) if warm else draws[-1]
        if warm:
            self.entropy += np.asarray(test["entropy"][0], np.float64).mean(0)
        rows = np.arange(min(200, len(self.labels)))
        truth = np.log(np.maximum(draws[:, rows, self.labels[rows]], 1e-12))
        self.traces.append(np.concatenate([truth, run.collected["weights"][0]], axis=1))
        kinetic = run.stats.get("kinetic_temperature")
        values = {
            "draw accuracy": 100 * accuracy(draws[-1], self.labels),
            "draw nll": negative_log_likelihood(draws[-1], self.labels),
            "train nll": train_nll,
            "accuracy": 100 * accuracy(average, self.labels),
            "nll": negative_log_likelihood(average, self.labels),
            "ece": expected_calibration_error(average, self.labels),
            "temperature": np.nan
            if kinetic is None or not run.momentum_sizes
            else float(np.average(kinetic[0].mean(0), weights=run.momentum_sizes)),
            "thermostat": float(run.collected["thermostat"][0, -1]),
        }
        for name, value in values.items():
            self.curves[name].append(value)

    def _average(self, share: float) -> np.ndarray:
        return _normalised(self.sums[self.SHARES.index(share)])

    def _ess(self) -> np.ndarray:
        """Return effective draws per 1000 gradients of log probabilities and of weights.

        They are medians over rows and over weights, for the draws since burn-in.
        """
        skip = int(self.recipe.burn_in * self.recipe.num_epochs)
        if self.diverged or len(self.traces) - skip < 2:
            return np.full(2, np.nan)
        draws = np.concatenate(self.traces[skip:]).astype(np.float64)
        moving = draws.std(0) > 0
        each = np.full(draws.shape[1], np.nan)
        each[moving] = ess(draws[None][:, :, moving])
        gradients = len(draws) / self.recipe.draws_per_epoch * self.epoch_length
        rows = min(200, len(self.labels))
        per = 1000 * each / gradients
        return np.array([np.nanmedian(per[:rows]), np.nanmedian(per[rows:])])

    def message(self) -> str:
        """Describe the last epoch."""
        if self.diverged:
            return "diverged"
        last = {name: values[-1] for name, values in self.curves.items()}
        return (
            f"test {last['accuracy']:.2f} % (draw {last['draw accuracy']:.2f} %), "
            f"training NLL {last['train nll']:.3f}"
        )

    def arrays(self, state: Any) -> dict[str, np.ndarray]:
        """Return the state to be saved: this record and the state of the chain."""
        leaves = {f"state {i}": np.asarray(v) for i, v in enumerate(jax.tree.leaves(state))}
        curves = {f"curve {name}": np.asarray(v) for name, v in self.curves.items()}
        sums = {"sums": self.sums, "last sums": self.last_sums, "entropy": self.entropy}
        traces = np.asarray(self.traces, np.float32)
        return leaves | curves | sums | {"diverged": np.asarray(self.diverged), "traces": traces}

    def restore(self, saved: dict[str, np.ndarray], state: Any) -> Any:
        """Restore what was saved; return the state of the chain."""
        self.curves = {name: saved[f"curve {name}"].tolist() for name in self.CURVES}
        self.sums, self.last_sums = saved["sums"], saved["last sums"]
        self.entropy, self.diverged = saved["entropy"], bool(saved["diverged"])
        self.traces = list(saved["traces"])
        leaves, structure = jax.tree.flatten(state)
        return structure.unflatten([jnp.asarray(saved[f"state {i}"]) for i in range(len(leaves))])

    def result(self) -> dict[str, np.ndarray]:
        """Return the measurements by name; epochs after a divergence are NaN."""
        total = self.recipe.num_epochs
        result: dict[str, np.ndarray] = {}
        for name, values in self.curves.items():
            result[name] = np.full(total, np.nan)
            result[name][: len(values)] = values
        averages = np.full((len(self.SHARES), 2, 2), np.nan)
        for i in range(len(self.SHARES)):
            for j, sums in enumerate((self.last_sums[i], self.sums[i])):
                if not self.diverged and sums.any():
                    mean = _normalised(sums)
                    averages[i, j] = (
                        100 * accuracy(mean, self.labels),
                        negative_log_likelihood(mean, self.labels),
                    )
        warm = max(1, total - int(self.recipe.burn_in * total))
        result["averages"] = averages
        result["ess"] = self._ess()
        result["entropy"] = self.entropy / warm
        result["probabilities"] = (
            np.full(self.sums[0].shape, np.nan)
            if self.diverged
            else self._average(self.recipe.burn_in)
        )
        return result


def _normalised(sums: np.ndarray) -> np.ndarray:
    """Normalize sums of probabilities."""
    return sums / sums.sum(-1, keepdims=True)
