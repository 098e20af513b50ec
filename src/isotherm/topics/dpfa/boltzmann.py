r"""Deep Poisson factor analysis with a deep Boltzmann machine in the place of the belief network: DPFA-RBM.

Words, topics and intensities are those of `isotherm.topics.dpfa.model`. The binary layers have the energy

$$ -\log p(h) = \text{const} - \sum_\ell c^{(\ell)\top}h^{(\ell)} - \sum_\ell h^{(\ell)\top}W^{(\ell)}h^{(\ell+1)} . $$

Documents are swept by their exact conditionals (`isotherm.topics.dpfa.boltzmann_kernels`). Topics move by a thermostat, weights and biases by
contrastive divergence (`isotherm.topics.dpfa.boltzmann_network`), $r$, $\gamma_0$ and $p$ as they do everywhere (`isotherm.topics.dpfa.rates`).
Topics are expanded-natural with $e^{\theta_{kw}} \sim \Gamma(\eta, 1)$, so that $\phi_k \sim \mathrm{Dir}(\eta)$ as in the model.

Where the authors' MATLAB does otherwise, this follows the paper and the mathematics. There, layer 1 is drawn from a mean-field layer 2, and the free sweep of
contrastive divergence runs on probabilities: here both are states, so a sweep leaves the posterior as it is. There the update of the top biases is computed
and never applied, and statistics are of the last sweep only: here all biases learn, from all sweeps that are kept. There the
prior gradient of the topics is $\eta - 1 - e^\theta$, without the Jacobian: here it is $\eta - e^\theta$. There a gradient serves 50 steps, and counts are scaled to a fixed million of
documents: here a step has its own gradient, at the scale `data_size`. There weights are averaged for the test, unevenly, and test documents have no
burn-in: here `DPFAScore`, given the kernel, averages the predictions of draws, after a burn-in.

References
----------
Gan, Chen, Henao, Carlson & Carin (2015), *Scalable deep Poisson factor analysis for topic modeling*, ICML.
"""

from typing import Any

import optax

from isotherm.topics.dpfa import boltzmann_kernels
from isotherm.topics.dpfa.boltzmann_network import OPTIMISER, ContrastiveDivergence
from isotherm.topics.dpfa.boltzmann_topics import THERMOSTAT, InnerSteps, LogGamma
from isotherm.topics.dpfa.initialization import Start
from isotherm.topics.dpfa.model import DPFA
from isotherm.topics.dpfa.sgmcmc import DPFAChain
from isotherm.topics.lda import as_move
from isotherm.topics.topic_updates import ExpandedMean, Form, Move
from isotherm.types import Sampler, ScalarOrSchedule


class DPFABoltzmann(DPFAChain):
    r"""A chain of topics and rates, and weights that learn beside it.

    Parameters
    ----------
    model
        The model; its layers are those of the Boltzmann machine.
    topics
        What moves the topics, as in `DPFAChain`; by default the paper's mSGNHT-E with $h = 10^{-4}$, $D = 40$.
    data_size
        $J$, the number of documents the posterior is given.
    form
        What a position of the topics' sampler means; by default `LogGamma(model.eta)` (`ExpandedMean()` for `isotherm.sgrld`).
    inner_steps
        Steps of the topics' sampler per batch.
    divergence_steps
        $k$, free sweeps of contrastive divergence.
    optimiser
        Any of optax. It gets the gradient of the mean loss per document.
    start, rate_step, sweeps, burn_in, thin, score_every, seed, threads, shared
        As in `DPFAChain`.

    Examples
    --------
    >>> import numpy as np
    >>> rng, model = np.random.default_rng(0), DPFA(6, layers=(3, 2), r=3.0)
    >>> corpus = model.draw_documents(rng, model.draw(rng), 20).corpus
    >>> chain = DPFABoltzmann(model, data_size=20)
    >>> chain.step(corpus)
    >>> chain.documents_seen, chain.parameters().topics.shape, chain.on_rates.shape
    (20, (3, 6), (2,))
    """

    kernel: Any = staticmethod(boltzmann_kernels.sweep_documents)
    step_hint = "Try a smaller rate of the `optimiser`."

    def __init__(
        self,
        model: DPFA,
        topics: Sampler | Move | None = None,
        *,
        data_size: float,
        start: Start | None = None,
        form: Form | None = None,
        inner_steps: int = 1,
        divergence_steps: int = 1,
        optimiser: optax.GradientTransformation = OPTIMISER,
        rate_step: ScalarOrSchedule | None = None,
        sweeps: int = 25,
        burn_in: int = 20,
        thin: int = 2,
        score_every: int = 0,
        seed: int = 0,
        threads: int = 1,
        shared: bool = False,
    ) -> None:
        move = _as_move(THERMOSTAT if topics is None else topics, form, inner_steps, model.eta)
        super().__init__(
            model,
            move,
            data_size=data_size,
            start=start,
            rate_step=rate_step,
            sweeps=sweeps,
            burn_in=burn_in,
            thin=thin,
            score_every=score_every,
            seed=seed,
            threads=threads,
            shared=shared,
        )
        self.network_move = ContrastiveDivergence(divergence_steps, optimiser)
        self.network_state = self.network_move.start(self.network_state.position)


def _as_move(topics: Sampler | Move, form: Form | None, inner_steps: int, eta: float) -> Move:
    if not isinstance(topics, Sampler):
        if inner_steps != 1:
            raise ValueError(f"`inner_steps` is for samplers of the core, not for {topics.name}.")
        return as_move(topics, form)
    if form is None:
        form = ExpandedMean() if topics.traits.name == "sgrld" else LogGamma(eta)
    return InnerSteps(topics, form, inner_steps)
