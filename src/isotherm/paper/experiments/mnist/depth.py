"""Does the splitting train deep networks at a step size where Euler fails?

Networks of 2, 3 and 4 layers of 100 ReLUs on MNIST: prior N(0, 1) on every weight, temperature 1
(the true posterior), batches of 100, h = 1e-4 halved after 20 of 40 epochs, D = 5. With 4 layers
also the smaller step size 5e-5, at which the paper shows Euler.

- Curves are of single draws; the table also has predictions averaged over the draws of the second
  half of the epochs.
- *Training NLL* is the mean over 10 000 training images, for the last draw of each epoch.
- ± is the standard deviation over seeds. The paper gives curves without numbers.
"""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from isotherm.paper.experiments.contract import Claim
from isotherm.paper.experiments.mnist import curves
from isotherm.paper.experiments.mnist.curves import rows, run
from isotherm.paper.experiments.mnist.learning import Recipe

__all__ = ["SMOKE", "Config", "check", "plot", "rows", "run"]


@dataclass(frozen=True)
class Config(curves.Training):
    """All settings that change the numbers, apart from the seed."""

    depths: tuple[int, ...] = (2, 3, 4)
    width: int = 100
    step_size: float = 1e-4
    small_step_size: float = 5e-5

    def recipes(self) -> dict[str, Recipe]:
        """Return the recipes of all runs by name."""
        steps = {depth: [self.step_size] for depth in self.depths}
        steps[max(self.depths)].append(self.small_step_size)
        return {
            f"{sampler}, depth {depth}, h = {h:g}": self.recipe(sampler, (self.width,) * depth, h)
            for depth, sizes in steps.items()
            for h in sizes
            for sampler in ("mSGNHT-S", "mSGNHT-E")
        }


SMOKE = Config(
    depths=(2,),
    width=30,
    step_size=2e-3,
    small_step_size=2e-3,
    num_epochs=3,
    halve_every=2,
    num_seeds=1,
    num_train=5000,
    num_test=2000,
)


def check(config: Config, result: dict[str, np.ndarray]) -> list[Claim]:
    """Check the claims of the paper."""
    deep, h = max(config.depths), config.step_size
    s, e = (f"mSGNHT-{x}, depth {deep}, h = {h:g}" for x in "SE")
    least = 95.0 if config.full_size else 30.0
    trained = curves.final(result, s)
    return [
        Claim(
            f"mSGNHT-S trains {deep} layers at h = {h:g}",
            bool((trained > least).all()),
            f"test accuracy {curves.spread(trained)} %",
            f"above {least:g} % with every seed",
        ),
        Claim(
            "mSGNHT-E fails there: diverges, or ends behind S with every seed",
            bool((~(curves.final(result, e) > trained)).all()),
            f"{curves.spread(curves.final(result, e))} % (S {curves.spread(trained)} %)",
            "the paper shows E at half the step size only",
        ),
    ]


def plot(config: Config, result: dict[str, np.ndarray]) -> dict[str, Figure]:
    """Draw the learning curves."""
    label = (
        f"Test accuracy of single draws and training NLL per epoch; D = {config.diffusion:g}, "
        f"{config.num_seeds} seeds (the first one bold)."
    )
    return curves.learning_curves(
        config,
        result,
        lambda recipe: f"{len(recipe.hidden)} layers, h = {recipe.step_size:g}",
        label,
        low=90.0,
    )
