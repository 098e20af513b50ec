"""Runs that can be killed: each resumes from its folder, and returns a dictionary of arrays.

`logistic` and `mlp` use the checkpoints of `isotherm.sample`; `estimator`, `regressor` and
`classifier` those of the estimators, over `fit` and (the first two) two calls of `partial_fit`.
`lda` and `dpfa` save the state of topic models with the checkpoints of the experiments.
`partial-fit` learns topics from a stream and saves the estimator after every batch. `lda-icml` and
`dpfa-wiki` are experiments, run as by `isotherm run NAME --smoke --resume`; they need the data.
Measured times are not compared.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import isotherm
from isotherm.estimators import sampling
from isotherm.loop import checkpoint, chunks
from isotherm.models import logistic as model
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.paper.experiments.runner import execute
from isotherm.topics.dpfa.model import DPFA
from isotherm.topics.dpfa.sgmcmc import DPFAChain
from isotherm.topics.estimators.lda import BayesianLDA
from isotherm.topics.lda import LDAChain
from isotherm.topics.scir import SCIR

Arrays = dict[str, np.ndarray]
CHUNK_SECONDS = 0.02
"""Short chunks, so that a short run has many checkpoints."""


def sampled(
    folder: Path, sampler: Any, position: Any, data: Any, num_draws: int, thin: int
) -> Arrays:
    """Run two chains with checkpoints; return all arrays of the result."""
    chunks.CHUNK_SECONDS = CHUNK_SECONDS
    collect = {"draws": isotherm.collect.draws(), "moments": isotherm.collect.moments()}
    run = isotherm.sample(
        jax.random.key(7),
        sampler,
        position,
        isotherm.independent_batches(data, 20),
        num_draws=num_draws,
        thin=thin,
        burn_in=300,
        num_chains=2,
        collect=collect,
        checkpoint=folder,
        checkpoint_seconds=0,
        progress=False,
    )
    everything = (run.collected, dict(run.stats), run.state, run.diverged)
    return {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(everything))}


def logistic(folder: Path) -> Arrays:
    """Sample a logistic regression with 20 columns."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 20)).astype(np.float32)
    y = (rng.random(500) < 1 / (1 + np.exp(-x[:, 0]))).astype(np.int32)
    grad_fn = isotherm.minibatch_gradient(
        model.log_likelihood, lambda w: model.log_prior(w, 1.0), data_size=500
    )
    return sampled(folder, isotherm.msgnht(grad_fn, 0.02), jnp.zeros(20), (x, y), 2000, 10)


def mlp(folder: Path) -> Arrays:
    """Sample a network."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((500, 8)).astype(np.float32)
    y = (np.abs(x[:, 0]) + x[:, 1] > 1).astype(np.int32)
    network = isotherm.models.mlp((8, 10, 2))
    sampler = isotherm.sghmc(network.gradient(data_size=500), 0.005, friction=5.0)
    return sampled(folder, sampler, network.init(jax.random.key(0)), (x, y), 150, 10)


def fitted(folder: Path, model: Any, x: np.ndarray, y: np.ndarray) -> Arrays:
    """Fit, continue with the same rows, then with new rows; save after every chunk."""
    chunks.CHUNK_SECONDS = CHUNK_SECONDS
    sampling.sample = partial(isotherm.sample, checkpoint_seconds=0)
    half, model = len(y) // 2, model.set_params(checkpoint=folder, random_state=0)
    arrays = {}
    for call in range(3):
        rows = slice(half, None) if call == 2 else slice(half)
        (model.partial_fit if call else model.fit)(x[rows], y[rows])
        arrays |= {f"{call} {name}": draws for name, draws in model.draws_.items()}
    return arrays


def estimator(folder: Path) -> Arrays:
    """Fit a logistic regression with scikit-learn's interface, and continue it twice."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((400, 6))
    y = (rng.random(400) < 1 / (1 + np.exp(-x[:, 0]))).astype(int)
    return fitted(folder, isotherm.BayesianLogisticRegression(num_draws=300, num_chains=2), x, y)


def regressor(folder: Path) -> Arrays:
    """Fit a linear regression with scikit-learn's interface, and continue it twice."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((400, 6))
    y = x[:, 0] + rng.standard_normal(400)
    return fitted(folder, isotherm.BayesianLinearRegression(num_draws=500, num_chains=2), x, y)


def classifier(folder: Path) -> Arrays:
    """Fit a small network with scikit-learn's interface."""
    chunks.CHUNK_SECONDS = CHUNK_SECONDS
    sampling.sample = partial(isotherm.sample, checkpoint_seconds=0)
    rng = np.random.default_rng(5)
    x = rng.standard_normal((200, 3))
    y = (np.abs(x[:, 0]) + x[:, 1] > 1).astype(int)
    model = isotherm.BayesianMLPClassifier(
        (5,), num_draws=200, num_chains=2, checkpoint=folder, random_state=0
    )
    return dict(model.fit(x, y).draws_)


def partial_fit(folder: Path) -> Arrays:
    """Learn topics from a stream; save the estimator after every batch, and load it on resume."""
    _, corpus = simulated()
    path = folder / "model.safetensors"
    folder.mkdir(exist_ok=True)
    if path.exists():
        model = BayesianLDA.load(path)
    else:
        settings = {"sampler": "scir", "sweeps": 10, "burn_in": 4, "num_draws": 20}
        model = BayesianLDA(6, random_state=0, batch_size=10, **settings)
    for batch in range(getattr(model, "n_documents_seen_", 0) // 10, 100):
        first = 10 * (batch % 20)
        model.partial_fit(corpus[first : first + 10])
        model.save(path)
    return dict(model.draws_)


def stepped(folder: Path, chain: Any, step: Callable[[int], None], steps: int, get: Any) -> Arrays:
    """Take steps, keep a draw of each, and save the state and the draws every ten steps."""
    checkpoints = Checkpoints.open(folder, {"steps": steps}, resume=True)
    draws, saved = [], checkpoints.load("chain")
    if saved is not None:
        draws = list(saved.pop("draws"))
        chain.load_state_dict(saved)
    while len(draws) < steps:
        step(len(draws))
        draws.append(get())
        if len(draws) % 10 == 0:
            checkpoints.save("chain", {**chain.state_dict(), "draws": np.array(draws)})
    return {**chain.state_dict(), "draws": np.array(draws)}


def simulated() -> tuple[DPFA, Any]:
    """Draw 200 documents over a vocabulary of 60 words from a model; return both."""
    rng, deep = np.random.default_rng(2), DPFA(60, layers=(6, 3), r=3.0)
    return deep, deep.draw_documents(rng, deep.draw(rng), 200).corpus


def lda(folder: Path) -> Arrays:
    """Sample topics with the thermostat, in batches of ten documents."""
    _, corpus = simulated()
    chain = LDAChain(isotherm.msgnht(None, 0.02), 6, corpus.num_words, data_size=len(corpus))
    return stepped(folder, chain, lambda i: chain.advance(corpus, 1, 10), 300, chain.topics)


def dpfa(folder: Path) -> Arrays:
    """Sample topics with SCIR and weights with the thermostat, in batches of ten documents."""
    deep, corpus = simulated()
    chain = DPFAChain(deep, SCIR(0.1), data_size=len(corpus), sweeps=6, burn_in=3, thin=1)

    def step(i: int) -> None:
        chain.step(corpus[10 * (i % 20) : 10 * (i % 20) + 10])

    return stepped(folder, chain, step, 200, lambda: chain.parameters().topics)


def experiment(name: str) -> Callable[[Path], Arrays]:
    """Return a program that runs an experiment as the command line does."""

    def run(folder: Path) -> Arrays:
        execute(name, smoke=True, out=folder, resume=True)
        with np.load(folder / name / "result.npz") as result:
            arrays = {k: result[k] for k in result.files if not k.startswith(("seconds", "cpu"))}
        for key in [key for key in arrays if name == "dpfa-wiki" and key.startswith("final ")]:
            arrays[key] = np.delete(arrays[key], 3)  # documents per second
        return arrays

    return run


PROGRAMS: dict[str, Callable[[Path], Arrays]] = {
    "logistic": logistic,
    "mlp": mlp,
    "estimator": estimator,
    "regressor": regressor,
    "classifier": classifier,
    "lda": lda,
    "dpfa": dpfa,
    "partial-fit": partial_fit,
    "lda-icml": experiment("lda-icml"),
    "dpfa-wiki": experiment("dpfa-wiki"),
}


def forget_momenta() -> None:
    """Introduce a bug on purpose: momenta are set to zero when a run is resumed."""
    load = checkpoint.Checkpoints.load

    def load_without_momenta(
        self: checkpoint.Checkpoints, state: Any, accumulators: Any, page: Any
    ) -> Any:
        run, message = load(self, state, accumulators, page)
        if run is not None:
            momentum = jax.tree.map(np.zeros_like, run.state.momentum)
            run = run._replace(state=run.state._replace(momentum=momentum))
        return run, message

    checkpoint.Checkpoints.load = load_without_momenta
