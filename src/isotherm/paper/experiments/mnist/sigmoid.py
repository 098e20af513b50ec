"""Does the splitting train networks of sigmoid units, whose gradients vanish?

Networks of 1, 2 and 3 layers of 100 sigmoid units on MNIST: prior N(0, 1) on every weight,
temperature 1 (the true posterior), batches of 100, h = 1e-3 halved after 20 of 40 epochs, D = 10.

- Curves are of single draws; the table also has predictions averaged over the draws of the second
  half of the epochs.
- *Training NLL* is the mean over 10 000 training images, for the last draw of each epoch.
- ± is the standard deviation over seeds. The paper's final accuracies for 3 layers are 97.36 % (S)
  and 96.86 % (E); its E fails in the first five epochs there.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from isotherm.paper.experiments.contract import Claim
from isotherm.paper.experiments.mnist import curves
from isotherm.paper.experiments.mnist.curves import run
from isotherm.paper.experiments.mnist.learning import Recipe

__all__ = ["SMOKE", "Config", "check", "plot", "rows", "run"]

PAPER = {"S": 97.36, "E": 96.86}
"""Accuracies of the deepest network."""


@dataclass(frozen=True)
class Config(curves.Training):
    """All settings that change the numbers, apart from the seed."""

    depths: tuple[int, ...] = (1, 2, 3)
    width: int = 100
    step_size: float = 1e-3
    diffusion: float = 10.0

    def name(self, scheme: str, depth: int) -> str:
        """Return the name of a recipe."""
        return f"mSGNHT-{scheme}, depth {depth}"

    def recipes(self) -> dict[str, Recipe]:
        """Return the recipes of all runs by name."""
        return {
            self.name(scheme, depth): self.recipe(
                f"mSGNHT-{scheme}", (self.width,) * depth, self.step_size, activation="sigmoid"
            )
            for depth in self.depths
            for scheme in "SE"
        }


SMOKE = Config(
    depths=(1,),
    width=30,
    step_size=4e-3,
    num_epochs=3,
    halve_every=2,
    num_seeds=1,
    num_train=5000,
    num_test=2000,
)


def rows(config: Config, result: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return the rows of the table."""
    deep = max(config.depths)
    paper = {config.name(scheme, deep): value for scheme, value in PAPER.items()}
    return curves.table(result, config.recipes(), paper)


def check(config: Config, result: dict[str, np.ndarray]) -> list[Claim]:
    """Check the claims of the paper."""
    deep = max(config.depths)
    s, e = (curves.final(result, config.name(x, deep)) for x in "SE")
    early = min(5, config.num_epochs) - 1
    first = [result[f"{config.name(x, deep)}/draw accuracy"][:, early] for x in "SE"]
    return [
        Claim(
            f"S ends at least as accurate as E with {deep} layers",
            not curves.behind(s, e),
            f"S {curves.spread(s)} %, E {curves.spread(e)} %",
            f"paper: {PAPER['S']} and {PAPER['E']} %",
        ),
        Claim(
            f"S learns in the first {early + 1} epochs, where E lags",
            bool(np.nanmean(first[0]) > np.nanmean(np.nan_to_num(first[1]))),
            f"after them: S {curves.spread(first[0])} %, E {curves.spread(first[1])} %",
            "paper: E fails for the first 5 epochs",
        ),
    ]


def plot(config: Config, result: dict[str, np.ndarray]) -> dict[str, Figure]:
    """Draw the learning curves."""
    label = (
        "Test accuracy of single draws and training NLL per epoch, sigmoid units; "
        f"h = {config.step_size:g}, D = {config.diffusion:g}, "
        f"{config.num_seeds} seeds (the first one bold)."
    )
    return curves.learning_curves(
        config,
        result,
        lambda recipe: f"{len(recipe.hidden)} layer{'s' * (len(recipe.hidden) > 1)}",
        label,
        low=80.0,
    )
