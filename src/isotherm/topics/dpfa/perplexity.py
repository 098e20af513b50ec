r"""Held-out perplexity of deep Poisson factor analysis, by the document completion of `isotherm.topics.perplexity`.

For each draw of the parameters the kernel sweeps the observed tokens of the test documents and gives $\mathrm E[\theta]$, averaged over
kept sweeps; it is normalised per document, so that every draw has the same weight. With `warm` the local variables
go on from draw to draw: one chain per test document, as in the authors' protocol.
"""

from typing import Any

import numpy as np

from isotherm.topics import layout
from isotherm.topics.corpus import Completion
from isotherm.topics.dpfa import kernels, local_gibbs
from isotherm.topics.dpfa.local_gibbs import Prepared, State
from isotherm.topics.dpfa.model import Parameters
from isotherm.topics.kernels import predict_cells
from isotherm.topics.perplexity import CompletionScore, Perplexity


class DPFAScore:
    """A running perplexity: add draws of the parameters as they come, ask whenever you like.

    Parameters
    ----------
    split
        Test documents, as `isotherm.topics.corpus.completion` splits them.
    sweeps, burn_in, thin
        As in `isotherm.topics.dpfa.local_gibbs.sweep`, for documents without a past.
    warm
        Go on from the last draw's local variables, with `warm_sweeps` sweeps, all kept.
    warm_sweeps
        Sweeps per further draw.
    seed
        Which random numbers.
    threads
        At most so many.
    kernel
        Of `isotherm.topics.dpfa.local_gibbs.sweep`: that of the model the draws are of.

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
        local_gibbs.keep_places(sweeps, burn_in, thin)
        local_gibbs.keep_places(warm_sweeps, 0, 1)
        self.score = CompletionScore(split, 1.0)
        self.sweeps, self.burn_in, self.thin = sweeps, burn_in, thin
        self.warm, self.warm_sweeps, self.seed, self.threads = warm, warm_sweeps, seed, threads
        self.local: State | None = None
        self.kernel = kernel

    def add(self, parameters: Parameters) -> None:
        """Add a draw."""
        found = self._sweep(local_gibbs.prepare_parameters(parameters))
        self.local = found.state if self.warm else None
        self.score.add(parameters.topics, theta=found.intensities)

    def _sweep(self, prepared: Prepared) -> local_gibbs.Swept:
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
            tally=False,
            threads=self.threads,
            kernel=self.kernel,
        )

    def result(self) -> Perplexity:
        """Give the perplexity of all draws so far."""
        how = f"{self.sweeps} sweeps, {self.burn_in} burnt"
        how += f", then {self.warm_sweeps} per draw" if self.warm else ""
        return self.score.result()._replace(fold_in=how)

    def state(self) -> dict[str, Any]:
        """Give what it takes to go on in another process."""
        found = {"num_draws": np.array(self.score.num_draws), "sums": self.score.sums.copy()}
        if self.local is not None:
            found |= {"assignments": self.local.assignments, "units": self.local.units}
        return found

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state of a score with the same split and settings, bit for bit."""
        empty = np.empty(0, np.int32)
        self.score.restore(
            {"num_draws": state["num_draws"], "sums": state["sums"], "assignments": empty}
        )
        self.local = None
        if "units" in state:
            self.local = State(state["assignments"].copy(), state["units"].copy())


def predict(prepared: Prepared, split: Completion, **settings: Any) -> tuple[float, int]:
    """Score the hidden tokens of new documents: their log likelihood, and how many they are.

    Parameters
    ----------
    prepared
        Parameters.
    split
        The documents.
    settings
        Of `isotherm.topics.dpfa.local_gibbs.sweep`.
    """
    theta = local_gibbs.sweep(prepared, split.observed, tally=False, **settings).intensities
    theta = theta / theta.sum(1, keepdims=True)
    x, size = split.scored, layout.padded_size(theta.shape[1])
    padded = np.zeros((len(theta), size), np.float32)
    padded[:, : theta.shape[1]] = theta
    cells = np.zeros(len(x.counts))
    predict_cells(x.indptr, x.words, prepared.rows, padded, cells)
    return float(x.counts @ np.log(cells)), x.num_tokens
