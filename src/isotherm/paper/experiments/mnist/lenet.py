"""Does a convolutional network tolerate a large step size?

LeNet on MNIST: two layers of 5 x 5 convolutions (32 and 64 channels), each with ReLU and 2 x 2
pooling, and two layers of 200 ReLUs; prior N(0, 1) on every weight, temperature 1 (the true
posterior), batches of 100, 40 epochs, h halved after 20, D = 50, h = 1e-4 and 5e-4. Besides the
paper's two schemes mSGNHT-S runs with balanced minibatches, at the same number of gradients.

- Curves are of single draws; the table also has predictions averaged over the draws of the second
  half of the epochs.
- *Training NLL* is the mean over 10 000 training images, for the last draw of each epoch.
- The paper gives curves without numbers. It says that "L is set to 20" but does not define L; we
  ignore it.
"""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from isotherm.paper.experiments.contract import Claim
from isotherm.paper.experiments.mnist import curves
from isotherm.paper.experiments.mnist.curves import rows, run
from isotherm.paper.experiments.mnist.learning import Recipe

__all__ = ["SMOKE", "Config", "check", "plot", "rows", "run"]

SCHEMES = {"S": "mSGNHT-S", "E": "mSGNHT-E", "balanced": "mSGNHT-S"}
"""Samplers by the name of their scheme; the last one has balanced minibatches."""


@dataclass(frozen=True)
class Config(curves.Training):
    """All settings that change the numbers, apart from the seed."""

    step_sizes: tuple[float, ...] = (1e-4, 5e-4)
    schemes: tuple[str, ...] = tuple(SCHEMES)
    diffusion: float = 50.0
    draws_per_epoch: int = 2
    num_seeds: int = 1

    def __post_init__(self) -> None:
        unknown = set(self.schemes) - set(SCHEMES)
        if unknown or not self.schemes:
            raise ValueError(f"`schemes` must be among {', '.join(SCHEMES)}, got {self.schemes}.")

    def recipes(self) -> dict[str, Recipe]:
        """Return the recipes of all runs by name."""
        return {
            _name(scheme, h): self.recipe(
                SCHEMES[scheme],
                (),
                h,
                draws_per_epoch=self.draws_per_epoch,
                balanced=scheme == "balanced",
            )
            for h in self.step_sizes
            for scheme in self.schemes
        }


def _name(scheme: str, h: float) -> str:
    """Return the name of a run."""
    return f"{SCHEMES[scheme]}{', balanced' if scheme == 'balanced' else ''}, h = {h:g}"


SMOKE = Config(
    step_sizes=(1e-3,), num_epochs=1, halve_every=0, draws_per_epoch=1, num_train=500, num_test=200
)


def check(config: Config, result: dict[str, np.ndarray]) -> list[Claim]:
    """Check the claims of the paper, and that balanced minibatches lose nothing."""
    h = max(config.step_sizes)
    least = 98.5 if config.full_size else 20.0
    accuracy = {scheme: curves.final(result, _name(scheme, h)) for scheme in config.schemes}
    claims = []
    for scheme, kind in (("S", ""), ("balanced", " with balanced minibatches")):
        if scheme in accuracy:
            claims.append(
                Claim(
                    f"mSGNHT-S trains LeNet at h = {h:g}{kind}",
                    bool((accuracy[scheme] > least).all()),
                    f"test accuracy {curves.spread(accuracy[scheme])} %",
                    f"above {least:g} %",
                )
            )
    if {"S", "E"} <= accuracy.keys():
        s, e = accuracy["S"], accuracy["E"]
        claims.append(
            Claim(
                "and is at least as accurate as E there",
                bool((~(e > s + 0.15)).all()),  # also if E diverges
                f"S {curves.spread(s)} %, E {curves.spread(e)} %",
                "not behind by more than 0.15 (1.5 standard errors of the test set)",
            )
        )
    if {"S", "balanced"} <= accuracy.keys():
        s, b = accuracy["S"], accuracy["balanced"]
        claims.append(
            Claim(
                "and balanced minibatches are at least as accurate",
                bool((b > s - 0.15).all()),  # not if they diverge
                f"balanced {curves.spread(b)} %, plain {curves.spread(s)} %",
                "not behind by more than 0.15",
            )
        )
    return claims


def plot(config: Config, result: dict[str, np.ndarray]) -> dict[str, Figure]:
    """Draw the learning curves."""
    label = (
        "Test accuracy of single draws and training NLL per epoch, LeNet; "
        f"D = {config.diffusion:g}."
    )
    return curves.learning_curves(
        config, result, lambda recipe: f"h = {recipe.step_size:g}", label, low=95.0
    )
