r"""Held-out perplexity of deep Poisson factor analysis, by document completion.

The score is that of `isotherm.topics.perplexity`. For each draw of the parameters the kernel sweeps
the observed tokens of the test documents and returns $\mathrm E[\theta]$, averaged over kept
sweeps; it is normalized per document, so that every draw has the same weight. With `warm` the
sweeps of a draw start from the local variables of the previous draw: one chain per test document,
as in the authors' protocol.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from isotherm.topics import layout
from isotherm.topics.corpus import Completion, Corpus, completion
from isotherm.topics.dpfa import kernels, local_gibbs
from isotherm.topics.dpfa.local_gibbs import KernelParameters, LocalState
from isotherm.topics.dpfa.model import Parameters
from isotherm.topics.kernels import predict_cells
from isotherm.topics.perplexity import CompletionScore, Perplexity
from isotherm.topics.state import StateDict


class DPFAScore:
    """Running perplexity: draws of the parameters are added one by one, and scored at any time.

    Parameters
    ----------
    split
        Test documents, split by `isotherm.topics.corpus.completion`.
    sweeps, burn_in, thin
        As in `isotherm.topics.dpfa.local_gibbs.sweep`, for the first draw with `warm`, and for
        every draw without it.
    warm
        Whether to start the sweeps of a draw from the local variables of the previous draw.
    warm_sweeps
        With `warm`, the sweeps per draw after the first; all are kept.
    seed
        Seed of the sweeps.
    threads
        Maximum number of threads.
    kernel
        As in `isotherm.topics.dpfa.local_gibbs.sweep`; must match the model of the draws.

    Examples
    --------
    >>> from isotherm.topics.corpus import as_corpus, completion
    >>> from isotherm.topics.dpfa.model import DPFA
    >>> rng, model = np.random.default_rng(0), DPFA(4, layers=(1,), r=1.0)
    >>> score = DPFAScore(completion(as_corpus([[2, 2, 2, 2]]), seed=0))
    >>> score.add(model.draw(rng)._replace(topics=np.full((1, 4), 0.25)))
    >>> round(score.result().value, 4)
    4.0
    """

    def __init__(
        self,
        split: Completion,
        *,
        sweeps: int = 25,
        burn_in: int = 20,
        thin: int = 1,
        warm: bool = True,
        warm_sweeps: int = 3,
        seed: int = 0,
        threads: int = 1,
        kernel: Any = kernels.sweep_documents,
    ) -> None:
        local_gibbs.kept_sweep_index(sweeps, burn_in, thin)
        local_gibbs.kept_sweep_index(warm_sweeps, 0, 1)
        self.score = CompletionScore(split, 1.0)
        self.sweeps, self.burn_in, self.thin = sweeps, burn_in, thin
        self.warm, self.warm_sweeps, self.seed, self.threads = warm, warm_sweeps, seed, threads
        self.local: LocalState | None = None
        self.kernel = kernel

    def add(self, parameters: Parameters) -> None:
        """Add a draw."""
        result = self._sweep(local_gibbs.prepare_parameters(parameters))
        self.local = result.state if self.warm else None
        self.score.add(parameters.topics, theta=result.intensities)

    def _sweep(self, prepared: KernelParameters) -> local_gibbs.SweepResult:
        settings = {"sweeps": self.warm_sweeps, "burn_in": 0, "thin": 1}
        if self.local is None:
            settings = {"sweeps": self.sweeps, "burn_in": self.burn_in, "thin": self.thin}
        return local_gibbs.sweep(
            prepared,
            self.score.split.observed,
            **settings,
            seed=self.seed,
            step=self.score.num_draws,
            state=self.local,
            count_words=False,
            threads=self.threads,
            kernel=self.kernel,
        )

    def result(self) -> Perplexity:
        """Return the perplexity of all draws added so far."""
        method = f"{self.sweeps} sweeps, {self.burn_in} burn-in"
        method += f", then {self.warm_sweeps} per draw" if self.warm else ""
        return self.score.result()._replace(fold_in=method)

    def log_probabilities(self) -> np.ndarray:
        """Return the log predictive probability of every scored cell, as `CompletionScore` does."""
        return self.score.log_probabilities()

    def state_dict(self) -> StateDict:
        """Return everything needed to resume, as arrays by name."""
        return self.score.state_dict() | local_gibbs.local_state_dict(self.local)

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Resume from the state of a score with the same split and settings, bit for bit."""
        self.score.load_state_dict({name: state[name] for name in ("num_draws", "sums")})
        self.local = local_gibbs.load_local_state(state)


def predict_batch(
    prepared: KernelParameters, batch: Corpus, *, seed: int, num_batches: int, **settings: Any
) -> np.ndarray:
    """Predict a fifth of the tokens of each document from the others, before they are learned.

    Parameters
    ----------
    prepared
        Parameters.
    batch
        New documents.
    seed
        Seed of the split and of the sweeps.
    num_batches
        Number of batches learned so far. It selects random numbers that learning does not use.
    settings
        Other arguments of `isotherm.topics.dpfa.local_gibbs.sweep`.

    Returns
    -------
    numpy.ndarray
        Log likelihood of the predicted tokens, and their number: terms of the sums that
        `isotherm.topics.perplexity.prequential_perplexity` needs.
    """
    split = completion(batch, observed=0.8, seed=seed)
    theta = local_gibbs.sweep(
        prepared, split.observed, count_words=False, seed=seed, step=-1 - num_batches, **settings
    ).intensities
    theta = theta / theta.sum(1, keepdims=True)
    x = split.scored
    padded = np.zeros((len(theta), layout.padded_size(theta.shape[1])), np.float32)
    padded[:, : theta.shape[1]] = theta
    cells = np.zeros(len(x.counts))
    predict_cells(x.indptr, x.words, prepared.rows, padded, cells)
    return np.array([float(x.counts @ np.log(cells)), x.num_tokens])
