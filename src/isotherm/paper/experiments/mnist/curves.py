"""Common parts of the experiments with learning curves: settings, runs, rows and figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from isotherm import random
from isotherm.paper.experiments.contract import Report
from isotherm.paper.experiments.mnist.learning import Data, Learner, Recipe, mnist
from isotherm.paper.experiments.mnist.record import Record
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.paper.report.figures import panels
from isotherm.types import Key

Results = Mapping[str, np.ndarray]
KEPT = (*(name for name in Record.CURVES if name != "draw nll"), "averages", "ess")
"""Measurements that go into the result; the predictions would make it large."""
LOOKS = {
    "mSGNHT-S": ("C0", "-"),
    "mSGNHT-S, balanced": ("C3", "-"),
    "mSGNHT-E": ("C0", "--"),
    "SGHMC-S": ("C1", "-"),
    "SGHMC-E": ("C1", "--"),
    "SGLD": ("C2", "-"),
}


@dataclass(frozen=True)
class Training:
    """Settings that all experiments on MNIST have."""

    diffusion: float = 5.0
    num_epochs: int = 40
    halve_every: int = 20
    num_seeds: int = 3
    num_train: int = 60_000
    num_test: int = 10_000

    @property
    def full_size(self) -> bool:
        """Whether all of MNIST is used, so that the limits of the claims apply."""
        return self.num_train == 60_000

    def recipe(
        self, sampler: str, hidden: tuple[int, ...], step_size: float, **more: Any
    ) -> Recipe:
        """Build a recipe with these settings."""
        return Recipe(
            sampler,
            hidden,
            step_size=step_size,
            diffusion=self.diffusion,
            num_epochs=self.num_epochs,
            halve_every=self.halve_every,
            **more,
        )

    def recipes(self) -> dict[str, Recipe]:
        """Return the recipes of all runs by name."""
        raise NotImplementedError


def run(
    config: Training, key: Key, report: Report, checkpoints: Checkpoints
) -> dict[str, np.ndarray]:
    """Run every recipe with every seed."""
    data = mnist(config.num_train, config.num_test)
    return learn_all(config.recipes(), config.num_seeds, data, key, checkpoints, report)


def rows(config: Training, result: Results) -> list[dict[str, Any]]:
    """Return the rows of an experiment for which the paper gives no numbers."""
    return table(result, config.recipes())


def learn_all(
    recipes: Mapping[str, Recipe],
    num_seeds: int,
    data: Data,
    key: Key,
    checkpoints: Checkpoints,
    report: Report,
    kept: Sequence[str] = KEPT,
) -> dict[str, np.ndarray]:
    """Run every recipe with every seed; arrays "recipe/measurement" have the seed as first axis."""
    result: dict[str, np.ndarray] = {}
    for name, recipe in recipes.items():
        learner = Learner(recipe, data)
        runs = [
            learner.learn(random.fold(key, seed), f"{name}, seed {seed}", checkpoints, report)
            for seed in range(num_seeds)
        ]
        result |= {f"{name}/{what}": np.stack([run[what] for run in runs]) for what in kept}
        jax.clear_caches()  # every recipe has programs of its own
    return result


def final(result: Results, name: str, what: str = "accuracy") -> np.ndarray:
    """Return the last value of each seed; NaN if it diverged."""
    return result[f"{name}/{what}"][:, -1]


def failed(result: Results, name: str, chance: float = 20.0) -> np.ndarray:
    """Return which seeds failed: not finite, or no better than guessing."""
    return ~(final(result, name, "draw accuracy") > chance)


def behind(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether `a` is lower than `b` by more than twice the spread over seeds."""
    return bool(np.nanmean(b) - np.nanmean(a) > 2 * np.hypot(np.nanstd(a), np.nanstd(b)))


def spread(values: np.ndarray, digits: int = 2) -> str:
    """Format mean and standard deviation over seeds, and how many diverged."""
    alive = values[np.isfinite(values)]
    if not len(alive):
        return "diverged"
    error = f" ± {alive.std():.{digits}f}" if len(values) > 1 else ""
    num_diverged = len(values) - len(alive)
    note = f" ({num_diverged} of {len(values)} diverged)" if num_diverged else ""
    return f"{alive.mean():.{digits}f}{error}{note}"


def table(
    result: Results, recipes: Mapping[str, Recipe], paper: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """Return a row per recipe, with the paper's accuracy where it gives one."""
    return [_row(result, name, recipe, (paper or {}).get(name)) for name, recipe in recipes.items()]


def _row(result: Results, name: str, recipe: Recipe, paper: float | None) -> dict[str, Any]:
    temperature = spread(final(result, name, "temperature"), 3)
    return {
        "sampler": recipe.label,
        "network": "-".join(map(str, recipe.hidden)) if recipe.hidden else "LeNet",
        "h": recipe.step_size,
        "accuracy, averaged (%)": spread(final(result, name)),
        "accuracy, last draw (%)": spread(final(result, name, "draw accuracy")),
        "paper (%)": paper,
        "test NLL": spread(final(result, name, "nll"), 4),
        "ECE": spread(final(result, name, "ece"), 4),
        "training NLL": spread(final(result, name, "train nll"), 4),
        "kinetic temperature": None if recipe.sampler == "SGLD" else temperature,
    }


def learning_curves(
    config: Training,
    result: Results,
    title_of: Callable[[Recipe], str],
    label: str,
    low: float = 90.0,
) -> dict[str, Figure]:
    """Draw accuracy of the draws (above) and training NLL (below) per epoch, a column per title.

    `low` is the lower end of the accuracy axis of a full-size run.
    """
    columns: dict[str, list[tuple[str, str]]] = {}
    for name, recipe in config.recipes().items():
        columns.setdefault(title_of(recipe), []).append((name, recipe.label))
    figure, axes = panels(len(columns), 2, width=3.6, height=2.6, squeeze=False, sharex=True)
    for column, (title, curves) in enumerate(columns.items()):
        above, below = axes[0, column], axes[1, column]
        for name, sampler in curves:
            color, style = LOOKS[sampler]
            tested, trained = result[f"{name}/draw accuracy"], result[f"{name}/train nll"]
            epochs = 1 + np.arange(tested.shape[1])
            text = sampler + (" (diverged)" if failed(result, name).all() else "")
            for seed in range(len(tested)):
                look: dict[str, Any] = {
                    "color": color,
                    "ls": style,
                    "lw": 1.2,
                    "alpha": 0.9 if seed == 0 else 0.35,
                }
                above.plot(epochs, tested[seed], label=text if seed == 0 else None, **look)
                below.plot(epochs, trained[seed], **look)
        above.set(title=title, ylim=(low if config.full_size else 0.0, 100))
        below.set(xlabel="epoch", yscale="log")
        above.legend(fontsize=8, loc="lower right")
    axes[0, 0].set_ylabel("test accuracy (%)")
    axes[1, 0].set_ylabel("training NLL")
    figure.set_label(label)
    return {"curves": figure}
