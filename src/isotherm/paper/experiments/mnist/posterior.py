r"""Do chains that start at trained networks predict better than ensembles of such networks?

Two layers of ReLUs on MNIST at temperature 1. The model is stated in full: weights have the prior
$N(0, v/n)$ with their fan-in n, and a label is the agreement of S annotators, with the likelihood
$p^S$ (`CuratedLabels`; S = 1 is the ordinary softmax). Every chain starts at its own network,
trained by Adam under the same model, and moves with balanced minibatches and the settings of
`warm_start` in units of the prior. Probabilities are those of one annotator, averaged over draws.

- *Ensemble of the starts* averages the networks at which the chains start: equal size.
- *Ensemble of equal gradients* has further members, trained in the same way, for the gradients of
  the chains; a balanced gradient counts as one and a third.
- *Labels changed*: a fifth of the training labels are replaced by another class at random. Test
  labels are clean.
- *AUROC of rotated images*: how well the entropy of the prediction separates test images from the
  same images rotated by 90 degrees.
- *R-hat* is that of the output for the label, less the mean output, for 200 test images: the median
  over images, and the largest. Far above 1 chains are still where they started, and the average
  over chains is one over starts.
- ± is the standard deviation over networks or chains. The paper has the last two rows, one network
  of this size each, with the prior $N(0, 1)$.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import isotherm
from isotherm import random
from isotherm.data.idx import Images
from isotherm.diagnostics.calibration import auroc, classifier_scores, predictive_entropy
from isotherm.diagnostics.convergence import rhat
from isotherm.diagnostics.predictions import class_probabilities
from isotherm.models.likelihoods import CuratedLabels
from isotherm.models.networks import Network, lenet, mlp
from isotherm.models.priors import NormalPrior
from isotherm.paper.baselines.tuned_ensemble import train_members
from isotherm.paper.experiments.contract import Claim, Report
from isotherm.paper.experiments.mnist.curves import spread
from isotherm.paper.experiments.mnist.learning import BLOCK, Data, mnist
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.paper.report.figures import panels
from isotherm.types import ArrayTree, Key

CLEAN, CHANGED = "as they are", "20 % changed"
SHARE_CHANGED = 0.2
PRICE_OF_BALANCE = 4 / 3
"""Gradients that a balanced one costs."""
JUDGED = 200
"""Test images whose outputs are judged by R-hat."""
START, STARTS, CHAIN, CHAINS, EQUAL = (
    "a trained network",
    "ensemble of the starts",
    "one chain",
    "all chains",
    "ensemble of equal gradients",
)
GOALS = {"accuracy": 0.986, "nll": 0.05, "ece": 0.004}
"""Least accuracy, and largest negative log likelihood and calibration error, of all chains."""

PAPER_NETWORK, PAPER = (400, 400), {"mSGNHT-S": 98.25, "SGD": 98.17}
"""Network of Table 3 of the paper, and test accuracies (%) there."""


@dataclass(frozen=True)
class Config:
    """All settings that change the numbers, apart from the seed."""

    hidden: tuple[int, ...] = (400, 400)
    """Units per hidden layer; empty for LeNet."""
    annotators: tuple[float, ...] = (1.0, 30.0)
    """S of the models; the last one is compared with an ensemble of equal gradients."""
    prior_variance: float = 2.0
    num_chains: int = 5
    training_epochs: int = 12
    training_rate: float = 2e-3
    chain_epochs: int = 12
    draws_per_epoch: int = 2
    burn_in: float = 1 / 3
    """Share of the draws of a chain before the averaging starts."""
    batch_size: int = 100
    rounds: int = 3
    steps_per_round: int = 300
    num_train: int = 60_000
    num_test: int = 10_000
    held_out: bool = False
    """Whether the last 10 000 training images are the test images."""

    def __post_init__(self) -> None:
        if not self.annotators or self.num_chains < 2 or self.training_epochs < 1:
            raise ValueError(
                "`annotators` must not be empty, `num_chains` must be at least 2 and "
                "`training_epochs` at least 1."
            )

    @property
    def full_size(self) -> bool:
        """Whether all of MNIST is used, so that the limits of the claims apply."""
        return self.num_train == 60_000

    @property
    def equal_members(self) -> int:
        """Members of an ensemble with as many gradients as chains and their starts."""
        more = PRICE_OF_BALANCE * self.chain_epochs / self.training_epochs
        return ceil((1 + more) * self.num_chains)

    def problems(self) -> Iterator["Problem"]:
        """Return all problems: labels as they are with every model, changed ones with S = 1."""
        for s in self.annotators:
            yield Problem(CLEAN, s, s == self.annotators[-1])
        yield Problem(CHANGED, 1.0, True)


SMOKE = Config(
    hidden=(10,),
    annotators=(3.0,),
    num_chains=2,
    training_epochs=2,
    chain_epochs=3,
    rounds=1,
    steps_per_round=50,
    num_train=2000,
    num_test=500,
)


class Problem(NamedTuple):
    """Training labels and a model of them."""

    labels: str
    annotators: float
    equal: bool
    """Whether there is an ensemble of equal gradients."""

    @property
    def name(self) -> str:
        """Name of its arrays."""
        return f"labels {self.labels}, S = {self.annotators:g}"

    @property
    def methods(self) -> tuple[str, ...]:
        """What is scored."""
        return (START, STARTS, CHAIN, CHAINS, *((EQUAL,) if self.equal else ()))


def run(
    config: Config, key: Key, report: Report, checkpoints: Checkpoints
) -> dict[str, np.ndarray]:
    """Train and sample every problem; finished parts are kept."""
    clean = mnist(config.num_train, config.num_test, validation=config.held_out)
    result: dict[str, np.ndarray] = {"labels": clean.test.y}
    for i, problem in enumerate(config.problems()):
        data = clean if problem.labels == CLEAN else _changed(clean, random.fold(key, 50))
        task = _Task(config, problem, data, random.fold(key, i), checkpoints, report)
        starts = task.part("starts", lambda task=task: task.train(0, config.num_chains))
        members = [starts["probabilities"]]
        rotated = [starts["rotated"]]
        chains = task.part("chains", lambda task=task, w=starts: task.sample(w))
        if problem.equal:
            for first in range(config.num_chains, config.equal_members, config.num_chains):
                number = min(config.num_chains, config.equal_members - first)
                more = task.part(
                    f"members from {first}", lambda task=task, a=first, n=number: task.train(a, n)
                )
                members.append(more["probabilities"])
                rotated.append(more["rotated"])
        result |= {
            f"{problem.name}/members": np.concatenate(members),
            f"{problem.name}/members, rotated": np.concatenate(rotated),
            f"{problem.name}/chains": chains["probabilities"],
            f"{problem.name}/chains, rotated": chains["rotated"],
            f"{problem.name}/health": chains["health"],
        }
        jax.clear_caches()
    return result


def _changed(data: Data, key: Key) -> Data:
    """Replace a share of the training labels by another class."""
    rng = np.random.default_rng(random.numpy_seed(key))
    y = data.train.y.copy()
    chosen = rng.permutation(len(y))[: round(SHARE_CHANGED * len(y))]
    y[chosen] = (y[chosen] + rng.integers(1, 10, len(chosen))) % 10
    return Data(Images(data.train.x, y), data.test)


def _rotated(x: np.ndarray) -> np.ndarray:
    """Rotate images by 90 degrees."""
    side = round(x.shape[1] ** 0.5)
    return np.rot90(x.reshape(-1, side, side), axes=(1, 2)).reshape(x.shape)


class _Task:
    """Networks and chains of a problem."""

    def __init__(
        self,
        config: Config,
        problem: Problem,
        data: Data,
        key: Key,
        checkpoints: Checkpoints,
        report: Report,
    ) -> None:
        self.config, self.problem, self.data, self.key = config, problem, data, key
        self.checkpoints, self.report = checkpoints, report
        self.network = _network(config, problem.annotators)
        self.batches = isotherm.independent_batches(tuple(data.train), config.batch_size)
        self.epoch_length = len(data.train.y) // config.batch_size

    def part(self, name: str, compute: Any) -> dict[str, np.ndarray]:
        """Load a part from its checkpoint, or compute and save it."""
        unit = f"{self.problem.name}, {name}"
        saved = self.checkpoints.load(unit)
        if saved is None:
            self.report(unit)
            saved = compute()
            self.checkpoints.save(unit, saved)
        return saved

    def train(self, first: int, number: int) -> dict[str, np.ndarray]:
        """Train networks; return their weights and their probabilities."""
        config = self.config
        members = train_members(
            random.fold(random.fold(self.key, 1), first),
            self.network,
            self.batches,
            step_size=config.training_rate,
            num_steps=config.training_epochs * self.epoch_length,
            num_members=number,
        ).members
        leaves = jax.tree.leaves(members)
        weights = {f"weights {i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        x = self.data.test.x
        return {
            **(weights if first == 0 else {}),
            "probabilities": self.predict(members, x),
            "rotated": self.predict(members, _rotated(x)),
        }

    def predict(self, members: ArrayTree, x: np.ndarray) -> np.ndarray:
        """Return the probabilities of every member, (member, row, class)."""
        read = class_probabilities(self.network.predict, x, rows_per_block=BLOCK)
        each = jax.lax.map(lambda w: read(w)["probabilities"], members)
        return np.asarray(each, np.float32)

    def sample(self, starts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the chains; return their averaged probabilities and how they went."""
        config, x = self.config, self.data.test.x
        like = jax.eval_shape(self.network.init, self.key)
        leaves = [jnp.asarray(starts[f"weights {i}"]) for i in range(len(jax.tree.leaves(like)))]
        positions = jax.tree.unflatten(jax.tree.structure(like), leaves)
        warm = isotherm.warm_start(
            random.fold(self.key, 2),
            self.network.gradient(len(self.data.train.y)),
            jax.tree.map(lambda leaf: leaf[0], positions),
            self.batches,
            coordinates="prior",
            num_steps=0,
            rounds=config.rounds,
            steps_per_round=config.steps_per_round,
        )
        num_draws = config.chain_epochs * config.draws_per_epoch
        kept = round(config.burn_in * num_draws)
        read = [
            class_probabilities(self.network.predict, rows, rows_per_block=BLOCK)
            for rows in (x, _rotated(x))
        ]
        rows = jnp.arange(min(JUDGED, len(x)))
        labels = jnp.asarray(self.data.test.y)[rows]
        thin = max(1, self.epoch_length // config.draws_per_epoch)
        options: dict[str, Any] = {
            "thin": thin,
            "num_chains": config.num_chains,
            "position_per_chain": True,
            "progress": False,
        }
        sampler = isotherm.msgnht(warm.grad_fn, **warm.settings)

        def output_of_label(w: ArrayTree) -> jax.Array:
            outputs = self.network.apply(w, jnp.asarray(x)[rows])
            return outputs[rows, labels] - outputs.mean(1)

        trace = {"trace": isotherm.collect.draws(output_of_label)}
        average = {
            name: isotherm.collect.average(lambda w, f=f: f(w)["probabilities"])
            for name, f in zip(("test", "rotated"), read, strict=True)
        }
        run_key = random.fold(self.key, 3)
        first = isotherm.sample(
            run_key, sampler, positions, self.batches, num_draws=kept, collect=trace, **options
        )
        run = isotherm.sample(
            run_key,
            sampler,
            positions,
            self.batches,
            num_draws=num_draws - kept,
            state=first.state,
            collect=trace | average,
            **options,
        )
        agreement = rhat(np.asarray(run.collected["trace"], np.float64))
        temperatures = np.asarray(run.stats["kinetic_temperature"]).mean((0, 1))
        sizes = run.momentum_sizes
        health = [
            float(np.median(agreement)),
            float(np.max(agreement)),
            float(np.average(temperatures, weights=sizes)),
            warm.step_size,
            warm.diffusion,
        ]
        return {
            "probabilities": np.asarray(run.collected["test"], np.float32),
            "rotated": np.asarray(run.collected["rotated"], np.float32),
            "health": np.array(health),
        }


def _network(config: Config, annotators: float) -> Network:
    """Return the network with its model."""
    model: dict[str, Any] = {
        "likelihood": CuratedLabels(annotators, predict_curated=False),
        "prior": NormalPrior(config.prior_variance**0.5),
    }
    return mlp((784, *config.hidden, 10), **model) if config.hidden else lenet(**model)


def _each(
    config: Config, problem: Problem, method: str, result: dict[str, np.ndarray], rotated: bool
) -> np.ndarray:
    """Return the probabilities of a method, (predictor, row, class)."""
    suffix = ", rotated" if rotated else ""
    members = result[f"{problem.name}/members{suffix}"].astype(np.float64)
    chains = result[f"{problem.name}/chains{suffix}"].astype(np.float64)
    return {
        START: members[: config.num_chains],
        STARTS: members[: config.num_chains].mean(0)[None],
        CHAIN: chains,
        CHAINS: chains.mean(0)[None],
        EQUAL: members.mean(0)[None],
    }[method]


def _scores(
    config: Config, problem: Problem, method: str, result: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the scores of each predictor of a method."""
    inside = _each(config, problem, method, result, rotated=False)
    outside = _each(config, problem, method, result, rotated=True)
    scores = [classifier_scores(p, result["labels"]) for p in inside]
    table = {name: np.array([s[name] for s in scores]) for name in ("accuracy", "nll", "ece")}
    pairs = zip(inside, outside, strict=True)
    found = [auroc(predictive_entropy(p), predictive_entropy(q)) for p, q in pairs]
    return table | {"auroc": np.array(found)}


def _networks(config: Config, method: str) -> int:
    return {START: 1, CHAIN: 1, EQUAL: config.equal_members}.get(method, config.num_chains)


def rows(config: Config, result: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return a row per problem and method, and those of the paper."""
    table: list[dict[str, Any]] = []
    for problem in config.problems():
        for method in problem.methods:
            scores = _scores(config, problem, method, result)
            health = result[f"{problem.name}/health"] if method == CHAINS else [None] * 5
            table.append(
                {
                    "training labels": problem.labels,
                    "annotators S": problem.annotators,
                    "method": method,
                    "networks or chains": _networks(config, method),
                    "accuracy (%)": spread(100 * scores["accuracy"]),
                    "NLL": spread(scores["nll"], 4),
                    "ECE": spread(scores["ece"], 4),
                    "AUROC of rotated images": spread(scores["auroc"], 4),
                    "R-hat, median": health[0],
                    "R-hat, largest": health[1],
                    "kinetic temperature": health[2],
                    "step size": health[3],
                    "diffusion": health[4],
                }
            )
    if config.hidden == PAPER_NETWORK and config.full_size:
        table += [
            dict.fromkeys(table[0])
            | {"training labels": CLEAN, "method": f"{name} (paper)", "accuracy (%)": accuracy}
            for name, accuracy in PAPER.items()
        ]
    return table


def check(config: Config, result: dict[str, np.ndarray]) -> list[Claim]:
    """Check our own claims; the paper has none about this."""
    problems = list(config.problems())
    main, changed = problems[-2], problems[-1]
    best = _scores(config, main, CHAINS, result)
    limits = GOALS if config.full_size else {"accuracy": 0.2, "nll": 2.0, "ece": 0.5}
    reached = {name: float(best[name][0]) for name in limits}
    claims = [
        Claim(
            f"all chains with S = {main.annotators:g} predict as well as the best methods in use",
            bool(
                reached["accuracy"] >= limits["accuracy"]
                and reached["nll"] <= limits["nll"]
                and reached["ece"] <= limits["ece"]
            ),
            "accuracy {:.2f} %, NLL {:.4f}, ECE {:.4f}".format(
                100 * reached["accuracy"], reached["nll"], reached["ece"]
            ),
            "accuracy at least {:.1f} %, NLL at most {:g}, ECE at most {:g}".format(
                100 * limits["accuracy"], limits["nll"], limits["ece"]
            ),
        )
    ]
    for problem in (main, changed):
        ours = _scores(config, problem, CHAINS, result)
        for method in (STARTS, EQUAL):
            theirs = _scores(config, problem, method, result)
            claims.append(
                Claim(
                    f"labels {problem.labels}, S = {problem.annotators:g}: all chains have a lower "
                    f"NLL than the {method}",
                    bool(ours["nll"][0] < theirs["nll"][0]),
                    f"{ours['nll'][0]:.4f} and {theirs['nll'][0]:.4f}",
                    "lower",
                )
            )
    return claims


def plot(config: Config, result: dict[str, np.ndarray]) -> dict[str, Figure]:
    """Draw accuracy and negative log likelihood of every problem and method."""
    problems = list(config.problems())
    shown = [(problem, method) for problem in problems for method in problem.methods]
    figure, axes = panels(2, width=4.6, height=0.32 * len(shown) + 1.2, sharey=True)
    for i, (problem, method) in enumerate(shown):
        scores = _scores(config, problem, method, result)
        color = "C0" if method in (CHAIN, CHAINS) else "0.45"
        for panel, values in zip(axes, (100 * scores["accuracy"], scores["nll"]), strict=True):
            panel.plot(values, np.full(len(values), i), "o", color=color, ms=4, alpha=0.7)
    for i in np.cumsum([len(problem.methods) for problem in problems])[:-1]:
        for panel in axes:
            panel.axhline(i - 0.5, color="0.8", lw=0.8)
    names = [f"{method}, S = {p.annotators:g}, labels {p.labels}" for p, method in shown]
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    axes[0].set_xlabel("test accuracy (%)")
    axes[1].set_xlabel("test negative log likelihood")
    figure.set_label(
        "Test accuracy and negative log likelihood of trained networks (grey) and of chains that "
        "start there (blue), a dot per network, chain or average."
    )
    return {"methods": figure}
