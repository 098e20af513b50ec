"""Do natural coordinates and balanced minibatches help to sample a network?

Two layers of 100 ReLUs on MNIST, prior N(0, 1) on every weight, temperature 1 (the true posterior),
batches of 100, step size never halved. Plain mSGNHT-S (D = 5, thermostat mass 1) is compared with
mSGNHT-S in the Kronecker eigenbasis of `warm_start`, with the settings and step size of the warm
start; both also with balanced minibatches (`isotherm.balanced`), and with shuffled ones. All have
the same number of minibatch gradients, including those of the warm start; a balanced gradient,
which needs a forward pass more, counts as one.

- *Step* is h in plain coordinates, and in Kronecker coordinates a multiple of the step size that
  `warm_start` chooses.
- *ESS* is per 1000 gradients, since burn-in: the median over 200 test images of the log probability
  of their label, and over 50 weights of every layer.
- *Epistemic* is the mutual information between label and weights, in nats, averaged over test
  images.
- Shuffled batches use the data in a new order every epoch, as training loops do; thermostats assume
  independent batches.
- ± is the standard deviation over seeds. None of this is in the paper.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from isotherm.diagnostics.calibration import mutual_information, predictive_entropy
from isotherm.paper.experiments.contract import Claim, Report
from isotherm.paper.experiments.mnist import curves
from isotherm.paper.experiments.mnist.learning import Recipe, mnist
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.paper.report.figures import panels
from isotherm.types import Key


@dataclass(frozen=True)
class Config(curves.Training):
    """All settings that change the numbers, apart from the seed."""

    hidden: tuple[int, ...] = (100, 100)
    halve_every: int = 0
    step_sizes: tuple[float, ...] = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
    multiples: tuple[float, ...] = (0.1, 0.3, 1.0, 2.0, 3.0)
    policy_step_size: float = 3e-4
    rounds: int = 4
    steps_per_round: int = 1000
    num_seeds: int = 2

    def __post_init__(self) -> None:
        if 1.0 not in self.multiples or self.policy_step_size not in self.step_sizes:
            raise ValueError(
                "`multiples` must contain 1, and `step_sizes` must contain `policy_step_size`."
            )
        if self.natural(1.0).num_epochs < 4:
            raise ValueError("`num_epochs` must leave at least 4 epochs after the warm start.")

    def plain(self, h: float, policy: str = "independent", balanced: bool = False) -> Recipe:
        """Return the recipe of a chain in plain coordinates."""
        return self.recipe("mSGNHT-S", self.hidden, h, policy=policy, balanced=balanced)

    def natural(
        self, multiple: float, policy: str = "independent", balanced: bool = False
    ) -> Recipe:
        """Return the recipe of a chain in Kronecker coordinates.

        It has fewer epochs, so that the gradients of the warm start are included.
        """
        recipe = self.plain(multiple, policy, balanced).varied(
            coordinates="kronecker", rounds=self.rounds, steps_per_round=self.steps_per_round
        )
        epoch_length = self.num_train // recipe.batch_size
        spent = round(recipe.warm_gradients / epoch_length)
        return recipe.varied(num_epochs=self.num_epochs - spent)

    def recipes(self) -> dict[str, Recipe]:
        """Return the recipes of all runs by name."""
        h = self.policy_step_size
        return {
            **{f"plain, step {h:g}": self.plain(h) for h in self.step_sizes},
            **{f"kronecker, step {m:g}": self.natural(m) for m in self.multiples},
            f"plain, step {h:g}, shuffled": self.plain(h, "shuffled"),
            "kronecker, step 1, shuffled": self.natural(1.0, "shuffled"),
            **{
                f"plain, step {h:g}, balanced": self.plain(h, balanced=True)
                for h in self.step_sizes
            },
            **{
                f"kronecker, step {m:g}, balanced": self.natural(m, balanced=True)
                for m in self.multiples
            },
        }


SMOKE = Config(
    hidden=(10,),
    step_sizes=(1e-3,),
    policy_step_size=1e-3,
    multiples=(1.0,),
    num_epochs=24,
    rounds=1,
    steps_per_round=100,
    num_seeds=1,
    num_train=20_000,
    num_test=1000,
)


def run(
    config: Config, key: Key, report: Report, checkpoints: Checkpoints
) -> dict[str, np.ndarray]:
    """Sample with every setting and seed."""
    data = mnist(config.num_train, config.num_test)
    kept = (*curves.KEPT, "probabilities", "entropy")
    result = curves.learn_all(
        config.recipes(), config.num_seeds, data, key, checkpoints, report, kept
    )
    for name in config.recipes():
        probabilities = result.pop(f"{name}/probabilities")
        entropy = result.pop(f"{name}/entropy")
        each = [_entropies(p, h) for p, h in zip(probabilities, entropy, strict=True)]
        result[f"{name}/entropies"] = np.array(each)
    return result


def _entropies(probabilities: np.ndarray, entropy: np.ndarray) -> tuple[float, float]:
    """Return the predictive entropy and its epistemic part, averaged over test images."""
    if not np.isfinite(probabilities).all():
        return np.nan, np.nan
    epistemic = mutual_information(probabilities, entropy)
    return float(predictive_entropy(probabilities).mean()), float(epistemic.mean())


def rows(config: Config, result: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return the rows of the table."""
    table = []
    for name, recipe in config.recipes().items():
        per = result[f"{name}/ess"].T
        total, epistemic = result[f"{name}/entropies"].T
        table.append(
            {
                "coordinates": recipe.coordinates,
                "step": recipe.step_size,
                "batches": recipe.policy,
                "gradient": "balanced" if recipe.balanced else "minibatch",
                "accuracy (%)": curves.spread(curves.final(result, name)),
                "last draw (%)": curves.spread(curves.final(result, name, "draw accuracy")),
                "NLL": curves.spread(curves.final(result, name, "nll"), 4),
                "ECE": curves.spread(curves.final(result, name, "ece"), 4),
                "training NLL": curves.spread(curves.final(result, name, "train nll"), 4),
                "kinetic temperature": curves.spread(curves.final(result, name, "temperature"), 3),
                "thermostat": curves.spread(curves.final(result, name, "thermostat"), 2),
                "entropy": curves.spread(total, 4),
                "epistemic": curves.spread(epistemic, 4),
                "ESS, predictions": curves.spread(per[0], 3),
                "ESS, weights": curves.spread(per[1], 3),
            }
        )
    return table


def _group(recipe: Recipe) -> tuple[str, str, bool]:
    """Return what distinguishes recipes apart from the step size."""
    return recipe.coordinates, recipe.policy, recipe.balanced


def check(config: Config, result: dict[str, np.ndarray]) -> list[Claim]:
    """Check our own claims; the paper has none about this."""
    names = ("kronecker, step 1", "kronecker, step 1, balanced")
    temperature, balanced = (curves.final(result, name, "temperature") for name in names)
    nll = [curves.final(result, name, "nll").mean() for name in names]
    weights = {
        kind: max(
            np.nan_to_num(np.nanmean(result[f"{name}/ess"][:, 1]), nan=0.0)
            for name, recipe in config.recipes().items()
            if _group(recipe) == (kind, "independent", False)
        )
        for kind in ("plain", "kronecker")
    }
    gain = weights["kronecker"] / max(weights["plain"], 1e-12)
    return [
        Claim(
            "the Kronecker start needs no step size: its own one samples at temperature 1",
            bool((np.abs(temperature - 1) < 0.1).all()),
            f"kinetic temperature {curves.spread(temperature, 3)}",
            "within 10 % of 1 with every seed",
        ),
        Claim(
            "weights mix faster in Kronecker coordinates than at any plain step size",
            bool(gain > 1),
            f"{weights['kronecker']:.3f} effective draws per 1000 gradients, "
            f"plain {weights['plain']:.3f}",
            "more",
        ),
        Claim(
            "with balanced minibatches the step of the warm start samples at temperature 1 and "
            "predicts no worse",
            bool((np.abs(balanced - 1) < 0.05).all() and nll[1] < nll[0] + 0.005),
            f"kinetic temperature {curves.spread(balanced, 3)}; test NLL {nll[1]:.4f}, plain "
            f"minibatches {nll[0]:.4f}",
            "within 5 % of 1 with every seed; at most 0.005 more",
        ),
    ]


def plot(config: Config, result: dict[str, np.ndarray]) -> dict[str, Figure]:
    """Draw the effect of the step size in both coordinates."""
    figure, axes = panels(3, width=3.6, height=3.0)
    shown = (
        ("accuracy", "test accuracy, averaged (%)"),
        ("nll", "test NLL, averaged"),
        ("temperature", "kinetic temperature"),
    )
    base = np.sqrt(np.prod([config.step_sizes[0], config.step_sizes[-1]]))
    for panel, (what, label) in zip(axes, shown, strict=True):
        for i, (kind, balanced) in enumerate(product(("plain", "kronecker"), (False, True))):
            names = {
                name: recipe
                for name, recipe in config.recipes().items()
                if _group(recipe) == (kind, "independent", balanced)
            }
            steps = np.array([recipe.step_size for recipe in names.values()])
            values = np.array([curves.final(result, name, what) for name in names])
            panel.plot(
                steps * (1 / base if kind == "plain" else 1),
                np.nanmean(values, axis=1) if np.isfinite(values).any(1).all() else values[:, 0],
                "s--" if balanced else "o-",
                color=f"C{i // 2}",
                mfc="white" if balanced else None,
                label=(f"plain (h = {base:.2g} is 1)" if kind == "plain" else "Kronecker")
                + (", balanced" if balanced else ""),
            )
        panel.set(xscale="log", xlabel="step", ylabel=label)
    axes[2].axhline(1, color="0.6", lw=0.8, ls=":")
    axes[0].legend(fontsize=8)
    figure.set_label(
        "Accuracy, negative log likelihood and kinetic temperature against the step size, in plain "
        "and in Kronecker coordinates, with plain and with balanced minibatches; missing points "
        "diverged."
    )
    return {"steps": figure}
