r"""Updates of $r$, $\gamma_0$ and $p$: Gibbs given all documents, Cox–Ingersoll–Ross given a batch.

With intensities integrated out, the number of tokens $n_{kj}$ of a topic is negative binomial if
its unit is on. Write $H_k = \sum_j h_{kj}$ and $N_k = \sum_j n_{kj}$.

*All documents.* With tables $t_{kj} \sim \mathrm{CRT}(n_{kj}, r_k)$, a sum of Bernoulli variables
with probabilities $r_k/(r_k + i)$ for $i < n_{kj}$ (Zhou & Carin),

$$ r_k \mid t \sim \Gamma\Bigl(\gamma_0 + \sum_j t_{kj},\ \text{rate } c_0 - H_k\log(1 - p_k)\Bigr),
   \qquad p_k \mid n \sim \mathrm{Beta}(a_0 + N_k,\ b_0 + r_kH_k) . $$

*A batch.* The same two laws, with sums scaled to $J$ documents and tables replaced by their mean
$r\sum_j[\digamma(n_{kj} + r) - \digamma(r)]$, are stationary laws of Cox–Ingersoll–Ross processes,
whose transitions over a time $h$ are known (`isotherm.topics.scir`): one process for $r_k$, two for
$p_k = g_1/(g_1 + g_2)$. With the mean of the tables the drift of $r$ is the gradient of its log
posterior in the metric $r$, so the error is $O(h)$, and noise of the batch enters with the factor
$\tanh(h/2)$.

*Both.* $\gamma_0$ depends on the documents only through $r$. Its conditional

$$ p(\gamma_0 \mid r) \propto \gamma_0^{e_0 - 1}e^{-f_0\gamma_0}
   \prod_k c_0^{\gamma_0}r_k^{\gamma_0}/\Gamma(\gamma_0) $$

is sampled by a slice sampler in $\log\gamma_0$, which has no step size and leaves this law
invariant.

References
----------
Zhou & Carin (2015), *Negative binomial process count and mixture modeling*, IEEE TPAMI.
Neal (2003), *Slice sampling*, Annals of Statistics.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from isotherm.topics.dirichlet_priors import expected_tables
from isotherm.topics.dpfa.model import DPFA
from isotherm.topics.scir import transition

_MIN_RATE = 1e-300
"""Lower limit of $r$: a gamma variable of small shape may underflow to 0."""


class Rates(NamedTuple):
    r"""$r$, $\gamma_0$, and $p$ as a pair of masses $g$, (2, topics)."""

    rates: np.ndarray
    gamma0: float
    masses: np.ndarray

    @property
    def p(self) -> np.ndarray:
        """$p$, (topics,)."""
        return self.masses[0] / self.masses.sum(0)


def initial_rates(model: DPFA, r: float = 1.0, p: float = 0.5, mass: float = 1.0) -> Rates:
    r"""Return the initial rates: fixed values of the model, or the given values; $\gamma_0 = 1$.

    Parameters
    ----------
    model
        The model, which may fix $r$, $\gamma_0$ and $p$.
    r, p
        Initial values if they are not fixed.
    mass
        $g_1$: about the number of tokens per topic that the value of $p$ stands for.
    """
    size = model.num_topics
    r, p = r if model.r is None else float(model.r), p if model.p is None else model.p
    gamma0 = 1.0 if model.gamma0 is None else float(model.gamma0)
    return Rates(np.full(size, r), gamma0, np.repeat([[mass], [mass * (1 - p) / p]], size, axis=1))


def cir_update(
    model: DPFA,
    rng: np.random.Generator,
    rates: Rates,
    counts: np.ndarray,
    on: np.ndarray,
    *,
    data_size: float,
    step_size: float,
) -> Rates:
    r"""Update the rates that are not fixed, given tokens and units of a batch.

    Parameters
    ----------
    model
        The model: which rates are fixed, and the priors.
    rng
        Random generator.
    rates
        Current rates.
    counts, on
        $n$ and $h^{(1)}$, (kept, documents, topics).
    data_size
        $J$.
    step_size
        $h$, the time of the Cox–Ingersoll–Ross processes.
    """
    scale = data_size / counts[..., 0].size
    used = scale * on.sum((0, 1), dtype=np.float64)
    r, gamma0, masses = rates
    if model.p is None:
        shape = [model.a0 + scale * counts.sum((0, 1)), model.b0 + r * used]
        masses = transition(rng, masses, np.array(shape), step_size)
    if model.r is None:
        tables = scale * expected_tables(counts, r)
        rate = model.c0 - used * np.log(masses[1] / masses.sum(0))
        r = transition(rng, r * rate, gamma0 + tables, step_size) / rate
        r = np.maximum(r, _MIN_RATE)
    return Rates(r, _draw_gamma0(model, rng, gamma0, r), masses)


def gibbs_update(
    model: DPFA, rng: np.random.Generator, rates: Rates, counts: np.ndarray, on: np.ndarray
) -> Rates:
    """Draw the rates that are not fixed, given `counts` and `on`, (documents, topics)."""
    tables = draw_tables(rng, counts, rates.rates) if model.r is None else np.zeros(0)
    return draw_from_sums(model, rng, rates, tables, counts.sum(0), on.sum(0))


def draw_from_sums(
    model: DPFA,
    rng: np.random.Generator,
    rates: Rates,
    tables: np.ndarray,
    tokens: np.ndarray,
    used: np.ndarray,
) -> Rates:
    r"""Draw the rates that are not fixed given sums over documents.

    The sums are over tables at the current $r$, tokens, and units that are on, each (topics,).
    """
    r, gamma0, masses = rates
    if model.r is None:
        rate = model.c0 - used * np.log(1 - rates.p)
        r = np.maximum(rng.gamma(gamma0 + tables) / rate, _MIN_RATE)
    if model.p is None:
        masses = rng.standard_gamma([model.a0 + tokens, model.b0 + r * used])
    return Rates(r, _draw_gamma0(model, rng, gamma0, r), masses)


def draw_tables(rng: np.random.Generator, counts: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Draw the number of tables of each topic, summed over documents, (topics,)."""
    size = counts.shape[-1]
    flat = counts.ravel()
    topic = np.repeat(np.tile(np.arange(size), flat.size // size), flat)
    before = np.arange(len(topic)) - np.repeat(np.cumsum(flat) - flat, flat)
    r = rates[topic]
    new_table = rng.random(len(topic)) * (r + before) < r
    return np.bincount(topic, new_table, size)


def _draw_gamma0(model: DPFA, rng: np.random.Generator, gamma0: float, r: np.ndarray) -> float:
    if model.gamma0 is not None or model.r is not None:
        return gamma0
    slope = np.log(model.c0) * len(r) + np.log(r).sum() - model.f0

    def log_density(x: float) -> float:
        g = np.exp(x)
        return float(model.e0 * x + g * slope - len(r) * gammaln(g))

    return float(np.exp(slice_sample(rng, log_density, np.log(gamma0))))


def slice_sample(
    rng: np.random.Generator, log_density: Callable[[float], float], x: float, width: float = 1.0
) -> float:
    """Take one step of slice sampling with stepping out and shrinking; return the new value."""
    level = log_density(x) - rng.standard_exponential()
    low = x - width * rng.random()
    high = low + width
    while log_density(low) > level:
        low -= width
    while log_density(high) > level:
        high += width
    while True:
        new = rng.uniform(low, high)
        if log_density(new) > level:
            return new
        low, high = (new, high) if new < x else (low, new)
