"""How does the step size change what a network learns?

Two layers of 100 ReLUs on MNIST at h = 2e-4, 1e-4 and 5e-5: prior N(0, 1) on every weight,
temperature 1 (the true posterior), batches of 100, h halved after 20 of 40 epochs, D = 5. SGHMC
with friction D and SGLD (step h²/2) are compared too.

- Curves are of single draws; the table also has predictions averaged over the draws of the second
  half of the epochs.
- *Training NLL* is the mean over 10 000 training images, for the last draw of each epoch.
- ± is the standard deviation over seeds. The paper gives curves without numbers: S is better than
  E, the more so the larger h.
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

    step_sizes: tuple[float, ...] = (2e-4, 1e-4, 5e-5)
    samplers: tuple[str, ...] = ("mSGNHT-S", "mSGNHT-E", "SGHMC-S", "SGHMC-E", "SGLD")
    hidden: tuple[int, ...] = (100, 100)

    def __post_init__(self) -> None:
        if not {"mSGNHT-S", "mSGNHT-E"} <= set(self.samplers):
            raise ValueError("`samplers` must have mSGNHT-S and mSGNHT-E.")

    def recipes(self) -> dict[str, Recipe]:
        """Return the recipes of all runs by name."""
        return {
            f"{sampler}, h = {h:g}": self.recipe(sampler, self.hidden, h)
            for h in self.step_sizes
            for sampler in self.samplers
        }


SMOKE = Config(
    step_sizes=(2e-3,),
    samplers=("mSGNHT-S", "mSGNHT-E"),
    hidden=(30,),
    num_epochs=3,
    halve_every=2,
    num_seeds=1,
    num_train=5000,
    num_test=2000,
)


def check(config: Config, result: dict[str, np.ndarray]) -> list[Claim]:
    """Check the claims of the paper."""
    claims = []
    for h in config.step_sizes:
        s, e = (curves.final(result, f"mSGNHT-{x}, h = {h:g}") for x in "SE")
        claims.append(
            Claim(
                f"S is at least as accurate as E at h = {h:g}",
                not curves.behind(s, e),
                f"S {curves.spread(s)} %, E {curves.spread(e)} %",
                "not behind by more than twice the spread",
            )
        )
    return claims


def plot(config: Config, result: dict[str, np.ndarray]) -> dict[str, Figure]:
    """Draw the learning curves."""
    network = "-".join(map(str, config.hidden))
    label = (
        f"Test accuracy of single draws and training NLL per epoch, {network} network; "
        f"D = {config.diffusion:g}, {config.num_seeds} seeds (the first one bold)."
    )
    return curves.learning_curves(
        config, result, lambda recipe: f"h = {recipe.step_size:g}", label, low=90.0
    )
