r"""DPFA-RBM: deep Poisson factor analysis with a deep Boltzmann machine for the binary layers.

Words, topics and intensities are those of `isotherm.topics.dpfa.model`. The binary layers have the
energy

$$ -\log p(h) = \text{const} - \sum_\ell c^{(\ell)\top}h^{(\ell)}
   - \sum_\ell h^{(\ell)\top}W^{(\ell)}h^{(\ell+1)} . $$

Documents are swept by their exact conditionals (`isotherm.topics.dpfa.boltzmann_kernels`). Topics
are updated by a thermostat, weights and biases by contrastive divergence
(`isotherm.topics.dpfa.boltzmann_network`), and $r$, $\gamma_0$ and $p$ as in the other models
(`isotherm.topics.dpfa.rates`). Topics are expanded-natural with
$e^{\theta_{kw}} \sim \Gamma(\eta, 1)$, so that $\phi_k \sim \mathrm{Dir}(\eta)$ as in the model.

Where the authors' MATLAB code differs from the paper, this module follows the paper:

- In their code layer 1 is drawn given a mean-field layer 2, and the free sweep of contrastive
  divergence uses probabilities. Here both use states, so a sweep leaves the posterior invariant.
- In their code the update of the top biases is computed but not applied, and only the last sweep is
  used. Here all biases are updated, from all kept sweeps.
- Their prior gradient of the topics is $\eta - 1 - e^\theta$, without the Jacobian. Here it is
  $\eta - e^\theta$.
- In their code a gradient is used for 50 steps, and counts are scaled to one million documents.
  Here each step has its own gradient, scaled to `data_size`.
- In their code weights are averaged unevenly for the test, and test documents have no burn-in. Here
  `DPFAScore` averages the predictions of draws, after a burn-in.

References
----------
Gan, Chen, Henao, Carlson & Carin (2015), *Scalable deep Poisson factor analysis for topic
modeling*, ICML.
"""

from typing import Any

import optax

from isotherm.topics.dpfa import boltzmann_kernels
from isotherm.topics.dpfa.boltzmann_network import OPTIMISER, ContrastiveDivergence
from isotherm.topics.dpfa.boltzmann_topics import THERMOSTAT, LogGamma, MultiStepUpdate
from isotherm.topics.dpfa.initialization import Start
from isotherm.topics.dpfa.model import DPFA
from isotherm.topics.dpfa.sgmcmc import DPFAChain
from isotherm.topics.lda import as_topic_update
from isotherm.topics.topic_updates import ExpandedMean, Parametrization, TopicUpdate
from isotherm.types import Sampler, ScalarOrSchedule


class DPFABoltzmann(DPFAChain):
    r"""A Markov chain of topics and rates, with point estimates of weights and biases.

    Parameters
    ----------
    model
        The model; its layers are those of the Boltzmann machine.
    topics
        Sampler of the topics, as in `DPFAChain`; by default the paper's mSGNHT-E with
        $h = 10^{-4}$, $D = 40$.
    data_size
        $J$, the number of documents that the posterior is conditioned on.
    parametrization
        What the position of the topics' sampler means; by default `LogGamma(model.eta)`
        (`ExpandedMean()` for `isotherm.sgrld`).
    inner_steps
        Steps of the topics' sampler per batch.
    divergence_steps
        $k$, the number of free sweeps of contrastive divergence.
    optimiser
        An optax optimizer for weights and biases; it gets the gradient of the mean loss of a
        document.
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
    divergence_hint = "Try a smaller learning rate of the `optimiser`."

    def __init__(
        self,
        model: DPFA,
        topics: Sampler | TopicUpdate | None = None,
        *,
        data_size: float,
        start: Start | None = None,
        parametrization: Parametrization | None = None,
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
        update = _as_topic_update(
            THERMOSTAT if topics is None else topics, parametrization, inner_steps, model.eta
        )
        super().__init__(
            model,
            update,
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
        self.network_update = ContrastiveDivergence(divergence_steps, optimiser)
        self.network_state = self.network_update.init(self.network_state.position)


def _as_topic_update(
    topics: Sampler | TopicUpdate,
    parametrization: Parametrization | None,
    inner_steps: int,
    eta: float,
) -> TopicUpdate:
    if not isinstance(topics, Sampler):
        if inner_steps != 1:
            raise ValueError(f"`inner_steps` is for samplers of the core, not for {topics.name}.")
        return as_topic_update(topics, parametrization)
    if parametrization is None:
        parametrization = ExpandedMean() if topics.traits.name == "sgrld" else LogGamma(eta)
    return MultiStepUpdate(topics, parametrization, inner_steps)
