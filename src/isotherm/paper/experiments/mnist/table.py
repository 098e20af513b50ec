"""How accurate are averaged predictions of a 400-400 network, and on what do they depend?

Two layers of 400 ReLUs on MNIST, batches of 100, 40 epochs, h halved after 20. The paper's setting:
h = 2e-4, D = 60, prior N(0, 1) on every weight. Rows with *T = 1* sample the posterior of the
model; rows with other temperatures do not.

- *Table 3* is on the test images. "paper's setting" is the setting as the paper gives it. "chosen"
  is the best setting on held-out images, by the factors below; nothing was chosen on the test
  images. Probabilities are averaged over draws (five per epoch in the second half of the epochs; in
  the chosen setting from the second quarter on), or over 100 draws of a baseline's approximation.
- *Several chains* averages the probabilities of all seeds: independent chains, or fits.
- *What matters* changes one thing at a time. These chains are trained on 50 000 images and scored
  on the other 10 000 training images.
- *Averaging* is the paper's setting and the chosen one with other burn-in and spacing, also on
  held-out images.
- ± is the standard deviation over seeds; the standard error due to the size of the test set is 0.13
  %.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from isotherm import random
from isotherm.diagnostics.calibration import Reliability, classifier_scores, reliability
from isotherm.paper.experiments.contract import Claim, Report
from isotherm.paper.experiments.mnist import curves, rivals
from isotherm.paper.experiments.mnist.learning import Recipe, mnist
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.paper.report.figures import panels
from isotherm.paper.report.reliability import reliability_diagram
from isotherm.types import Key

PAPER = {
    "mSGNHT-S, paper's setting": 98.25,
    "mSGNHT-E, paper's setting": 98.20,
    "BBB, scale mixture": 98.18,
    "SGD": 98.17,
}
SCORES = {
    "accuracy (%)": "accuracy",
    "NLL": "nll",
    "ECE": "ece",
    "Brier": "brier",
    "epistemic (nats)": "epistemic",
}
"""Column headings, and the names of the scores in `classifier_scores`."""
FACTORS: dict[str, dict[str, Any]] = {
    "h not halved": {"halve_every": 0},
    "D = 10": {"diffusion": 10.0},
    "thermostat mass 1e-4": {"thermostat_mass": 1e-4},
    "start 3 times wider": {"start_scale": 3.0},
    "start 10 times narrower": {"start_scale": 0.1},
    "shuffled batches": {"policy": "shuffled"},
    "Gaussian noise": {"noise": "gaussian"},
    "batch 500": {"batch_size": 500},
    "pixels over 126": {"pixel_scale": 255 / 126},  # as Blundell et al. do for Bayes by Backprop
    "prior sd 0.3": {"prior_sd": 0.3},
    "prior sd 0.1": {"prior_sd": 0.1},
}
"""Changes of the paper's setting, one each."""


@dataclass(frozen=True)
class Config(curves.Training):
    """All settings that change the numbers, apart from the seed."""

    hidden: tuple[int, ...] = (400, 400)
    step_size: float = 2e-4
    diffusion: float = 60.0
    chosen_step_size: float = 5e-4
    chosen_diffusion: float = 60.0
    chosen_prior_sd: float = 1.0
    temperatures: tuple[float, ...] = (0.1, 0.01)
    """Further temperatures, below 1."""
    longer_steps: tuple[float, ...] = (2.5, 5.0)
    """Further step sizes, in units of the paper's."""
    changed: tuple[str, ...] = tuple(FACTORS)
    factor_seeds: int = 1
    rivals: tuple[str, ...] = tuple(rivals.RIVALS)
    num_held_in: int = 50_000

    def __post_init__(self) -> None:
        for field, known in (("changed", FACTORS), ("rivals", rivals.RIVALS)):
            if unknown := sorted(set(getattr(self, field)) - set(known)):
                raise ValueError(f"`{field}` must be among {', '.join(known)}, got {unknown[0]}.")

    def base(self) -> Recipe:
        """Return the paper's setting."""
        return self.recipe("mSGNHT-S", self.hidden, self.step_size)

    def chosen(self) -> Recipe:
        """Return the setting that was chosen by the factors."""
        return self.base().varied(
            step_size=self.chosen_step_size,
            diffusion=self.chosen_diffusion,
            prior_sd=self.chosen_prior_sd,
            burn_in=0.25,
        )

    def samplers(self) -> dict[str, Recipe]:
        """Return the recipes of the chains of the table."""
        base, chosen = self.base(), self.chosen()
        return {
            "mSGNHT-S, paper's setting": base,
            "mSGNHT-E, paper's setting": base.varied(sampler="mSGNHT-E"),
            "mSGNHT-S, chosen": chosen,
            "mSGNHT-E, chosen": chosen.varied(sampler="mSGNHT-E"),
            **{
                f"mSGNHT-S, chosen, T = {t:g}": chosen.varied(temperature=t)
                for t in self.temperatures
            },
        }

    def factors(self) -> dict[str, Recipe]:
        """Return the recipes that differ from the paper's setting in one thing."""
        base, h = self.base(), self.step_size
        return {
            "paper's setting": base,
            "chosen": self.chosen(),
            **{f"h x {m:g}": base.varied(step_size=m * h) for m in self.longer_steps},
            **{name: base.varied(**FACTORS[name]) for name in self.changed},
            **{f"T = {t:g}": base.varied(temperature=t) for t in self.temperatures},
        }


SMOKE = Config(
    hidden=(20,),
    step_size=2e-3,
    chosen_step_size=2e-3,
    diffusion=20.0,
    chosen_diffusion=20.0,
    num_epochs=4,
    halve_every=2,
    num_seeds=1,
    temperatures=(),
    longer_steps=(),
    changed=(),
    rivals=("SGD", "BBB, scale mixture"),
    num_train=2000,
    num_held_in=1000,
    num_test=1000,
)


def run(
    config: Config, key: Key, report: Report, checkpoints: Checkpoints
) -> dict[str, np.ndarray]:
    """Run all chains and baselines one after the other, with a checkpoint of each."""
    result: dict[str, np.ndarray] = {}
    held_out = mnist(config.num_held_in, config.num_test, validation=True)
    factors = {f"factor {name}": recipe for name, recipe in config.factors().items()}
    result |= curves.learn_all(
        factors, config.factor_seeds, held_out, random.fold(key, 100), checkpoints, report
    )
    data = mnist(config.num_train, config.num_test)
    labels = data.test.y
    kept = (*curves.KEPT, "probabilities", "entropy")
    result |= curves.learn_all(
        config.samplers(), config.num_seeds, data, key, checkpoints, report, kept
    )
    for name in config.samplers():
        probabilities = result.pop(f"{name}/probabilities")
        entropy = result.pop(f"{name}/entropy")
        result |= _scored(name, probabilities, labels, entropy)
    for name in config.rivals:
        probabilities = []
        for i in range(config.num_seeds):
            saved = checkpoints.load(f"{name}, seed {i}")
            if saved is None:
                report(f"{name}, seed {i}")
                saved = {"p": rivals.predict(name, config.base(), data, random.fold(key, 50 + i))}
                checkpoints.save(f"{name}, seed {i}", saved)
                jax.clear_caches()
            probabilities.append(saved["p"])
        result |= _scored(name, np.array(probabilities), labels)
    return result


def _scored(
    name: str, probabilities: np.ndarray, labels: np.ndarray, entropy: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Return the scores of all seeds and of their average, and the first reliability curve."""
    entropies = [None] * len(probabilities) if entropy is None else list(entropy)
    mean_entropy = None if entropy is None else entropy.mean(0)
    each = [_scores(p, labels, h) for p, h in zip(probabilities, entropies, strict=True)]
    return {
        f"{name}/scores": np.stack(each),
        f"{name}/together": _scores(probabilities.mean(0), labels, mean_entropy),
        f"{name}/reliability": _reliability(probabilities[0], labels),
    }


def _scores(p: np.ndarray, labels: np.ndarray, entropy: np.ndarray | None = None) -> np.ndarray:
    if not np.isfinite(p).all():
        return np.full(len(SCORES), np.nan)
    scores = classifier_scores(p, labels, entropy)
    scores["accuracy"] *= 100
    return np.array([scores.get(name, np.nan) for name in SCORES.values()])


def _reliability(p: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return lower edge, confidence, accuracy and count per bin; no bins for a diverged chain."""
    if not np.isfinite(p).all():
        return np.zeros((4, 0))
    curve = reliability(p, labels)
    return np.stack([curve.edges[:-1], curve.confidence, curve.accuracy, curve.count])


def _temperature(config: Config, name: str) -> str:
    recipe = config.samplers().get(name)
    return "" if recipe is None else f"{recipe.temperature:g}"


def rows(config: Config, result: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return the rows of all tables."""
    table = []
    for name in (*config.samplers(), *config.rivals):
        values = result[f"{name}/scores"].T
        scores = {
            what: curves.spread(one, 2 if "%" in what else 4) if np.isfinite(one).any() else None
            for what, one in zip(SCORES, values, strict=True)
        }
        table.append(
            {
                "table": "Table 3",
                "method": name,
                "T": _temperature(config, name),
                "accuracy (%)": scores.pop("accuracy (%)"),
                "paper (%)": PAPER.get(name),
                **scores,
            }
        )
    for name in (*config.samplers(), *config.rivals):
        together = dict(zip(SCORES, result[f"{name}/together"], strict=True))
        table.append(
            {
                "table": "Several chains",
                "method": name,
                "T": _temperature(config, name),
                "chains or fits": config.num_seeds,
                **{
                    what: f"{together[what]:.{2 if '%' in what else 4}f}"
                    for what in list(SCORES)[:4]
                },
            }
        )
    for name in config.factors():
        last = {what: curves.final(result, f"factor {name}", what) for what in curves.KEPT[:5]}
        table.append(
            {
                "table": "What matters",
                "changed": name,
                "accuracy, averaged (%)": curves.spread(last["accuracy"]),
                "accuracy, last draw (%)": curves.spread(last["draw accuracy"]),
                "NLL": curves.spread(last["nll"], 4),
                "ECE": curves.spread(last["ece"], 4),
                "training NLL of a draw": curves.spread(last["train nll"], 4),
            }
        )
    for name in ("paper's setting", "chosen"):
        for i, share in enumerate((0.25, 0.5, 0.75)):
            averages = result[f"factor {name}/averages"].mean(0)[i]
            table.append(
                {
                    "table": "Averaging",
                    "setting": name,
                    "burn-in": f"{share:.0%} of the epochs",
                    "one draw per epoch (%)": f"{averages[0, 0]:.2f}",
                    "five draws per epoch (%)": f"{averages[1, 0]:.2f}",
                    "NLL, one": f"{averages[0, 1]:.4f}",
                    "NLL, five": f"{averages[1, 1]:.4f}",
                }
            )
    return table


def check(config: Config, result: dict[str, np.ndarray]) -> list[Claim]:
    """Check the claims of the paper."""
    scores = {name: result[f"{name}/scores"][:, 0] for name in (*config.samplers(), *config.rivals)}
    plain, s, e = (
        scores[name]
        for name in ("mSGNHT-S, paper's setting", "mSGNHT-S, chosen", "mSGNHT-E, chosen")
    )
    rival = {name: scores[name] for name in ("BBB, scale mixture", "SGD") if name in scores}
    goal = PAPER["mSGNHT-S, paper's setting"]
    least = goal if config.full_size else 10.0
    claims = [
        Claim(
            f"mSGNHT-S reaches the paper's {goal} % in the paper's setting",
            bool(np.nanmean(plain) >= least),
            f"{curves.spread(plain)} %",
            f"at least {least:g} %",
        ),
        Claim(
            "mSGNHT-S reaches it with the chosen setting at T = 1",
            bool(np.nanmean(s) >= least),
            f"{curves.spread(s)} %",
            f"at least {least:g} %",
        ),
        *(
            Claim(
                f"mSGNHT-S reaches it with the chosen setting at T = {t:g}",
                bool(np.nanmean(scores[f"mSGNHT-S, chosen, T = {t:g}"]) >= least),
                f"{curves.spread(scores[f'mSGNHT-S, chosen, T = {t:g}'])} %",
                f"at least {least:g} %",
            )
            for t in config.temperatures
        ),
        Claim(
            f"mSGNHT-S reaches it with {config.num_seeds} chains of the chosen setting, averaged, "
            "at T = 1",
            bool(result["mSGNHT-S, chosen/together"][0] >= least),
            f"{result['mSGNHT-S, chosen/together'][0]:.2f} %",
            f"at least {least:g} %",
        ),
        Claim(
            "E is not ahead of S (chosen setting)",
            not curves.behind(s, e),
            f"S {curves.spread(s)} %, E {curves.spread(e)} %",
            "not by more than twice the spread",
        ),
    ]
    for name, values in rival.items():
        claims.append(
            Claim(
                f"{name} is not ahead of S (chosen setting)",
                not curves.behind(s, values),
                f"S {curves.spread(s)} %, {name} {curves.spread(values)} %",
                "not by more than twice the spread",
            )
        )
    return claims


def plot(config: Config, result: dict[str, np.ndarray]) -> dict[str, Figure]:
    """Draw accuracy and likelihood of all methods, the factors, and reliability."""
    return {
        "methods": _methods(config, result),
        "factors": _factors(config, result),
        "reliability": _diagram(config, result),
    }


def _methods(config: Config, result: dict[str, np.ndarray]) -> Figure:
    names = [*config.samplers(), *config.rivals]
    figure, axes = _dots(
        {
            label: {name: result[f"{name}/scores"][:, column] for name in names}
            for column, label in enumerate(("test accuracy (%)", "test NLL"))
        }
    )
    for i, name in enumerate(names):
        if name in PAPER and config.full_size:
            axes[0].plot(PAPER[name], i, "|", color="C3", ms=14)
    figure.set_label(
        "Test accuracy and negative log likelihood of every method, a dot per seed; "
        "red bars are the paper's values."
    )
    return figure


def _factors(config: Config, result: dict[str, np.ndarray]) -> Figure:
    measured = {"held-out accuracy (%)": "accuracy", "held-out NLL": "nll"}
    figure, axes = _dots(
        {
            label: {name: curves.final(result, f"factor {name}", what) for name in config.factors()}
            for label, what in measured.items()
        }
    )
    for panel, what in zip(axes, measured.values(), strict=True):
        base = np.nanmean(curves.final(result, "factor paper's setting", what))
        panel.axvline(base, color="0.6", lw=0.8, ls=":")
    figure.set_label(
        "One thing changed at a time in the paper's setting (dotted): predictions averaged over "
        "draws, on held-out images."
    )
    return figure


def _dots(columns: dict[str, dict[str, np.ndarray]]) -> tuple[Figure, Any]:
    """Draw a panel per column, by axis label, with a row per name and a dot per value."""
    names = list(next(iter(columns.values())))
    figure, axes = panels(2, 1, width=4.6, height=0.32 * len(names) + 1.0, sharey=True)
    for panel, (label, values) in zip(axes, columns.items(), strict=True):
        for i, name in enumerate(names):
            color = "0.45" if name in rivals.RIVALS else "C0"
            row = np.full(len(values[name]), i)
            panel.plot(values[name], row, "o", color=color, ms=4, alpha=0.7)
        panel.set_xlabel(label)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    return figure, axes


def _diagram(config: Config, result: dict[str, np.ndarray]) -> Figure:
    """Draw the reliability of every method but mSGNHT-E, first seed."""
    diagrams = {}
    for name in (*config.samplers(), *config.rivals):
        edges, confidence, right, count = result[f"{name}/reliability"]
        if "mSGNHT-E" not in name and len(edges):
            diagrams[name] = Reliability(np.append(edges, 1.0), confidence, right, count)
    return reliability_diagram(diagrams, least_rows=20)
