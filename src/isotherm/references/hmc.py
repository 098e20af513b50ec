r"""Hamiltonian Monte Carlo with a Metropolis test, in natural coordinates, on all data.

For a posterior with one hill and few enough coordinates this is the quickest way to draws without
bias: in the eigenbasis of the curvature at the mode, $\theta = \hat\theta + V\Lambda^{-1/2}q$, the target is
nearly a standard normal, a trajectory of length about $\pi/2$ forgets where it began, and five leapfrog
steps are accepted nine times in ten. What the coordinates get wrong costs speed, never correctness:
the Metropolis test is exact in any of them. Everything is in double precision, on one thread (on a busy
machine two threads wait for each other longer than they work).

Chains advance together, so that a gradient is two matrix products; every trajectory has a random
step size, so that no direction returns to its start each time.

References
----------
Neal (2011), *MCMC using Hamiltonian dynamics*, in: Handbook of Markov Chain Monte Carlo.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import expit, logsumexp
from threadpoolctl import threadpool_limits

ValueAndGradient = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""`(chains, d) -> (chains,), (chains, d)`: log density and its gradient."""


class Hill(NamedTuple):
    """A posterior density with one mode: where it is, how it bends there, and its logarithm."""

    mode: np.ndarray
    curvature: np.ndarray
    evaluate: ValueAndGradient


def hmc(
    hill: Hill,
    *,
    num_chains: int,
    num_draws: int,
    burn_in: int,
    seed: int,
    step_size: float = 0.35,
    num_leapfrog: int = 5,
    start_width: float = 2.0,
    say: Callable[[str], None] = lambda message: None,
) -> tuple[np.ndarray, float]:
    """Draw from a hill; return draws of shape (chain, draw, d) and how many proposals were taken.

    Parameters
    ----------
    hill
        What to draw from.
    num_chains, num_draws, burn_in
        As in `isotherm.sample`.
    seed
        Of all randomness.
    step_size, num_leapfrog
        In natural coordinates. Each trajectory takes a step size within 20 % of this one.
    start_width
        Chains start at independent draws of so many times the Gaussian approximation's width.
    say
        Is told how far it is, now and then.
    """
    with threadpool_limits(1, user_api="blas"):
        return _hmc(
            hill, num_chains, num_draws, burn_in, seed, step_size, num_leapfrog, start_width, say
        )


def _hmc(
    hill: Hill,
    num_chains: int,
    num_draws: int,
    burn_in: int,
    seed: int,
    step_size: float,
    num_leapfrog: int,
    start_width: float,
    say: Callable[[str], None],
) -> tuple[np.ndarray, float]:
    values, vectors = np.linalg.eigh(hill.curvature)
    basis = vectors / np.sqrt(np.maximum(values, 1e-12 * values[-1]))
    rng, size = np.random.default_rng(seed), len(hill.mode)
    position = hill.mode + start_width * rng.standard_normal((num_chains, size)) @ basis.T
    height, slope = hill.evaluate(position)
    draws, taken = np.empty((num_chains, num_draws, size)), 0.0
    for i in range(-burn_in, num_draws):
        h = step_size * rng.uniform(0.8, 1.2)
        start = rng.standard_normal((num_chains, size))
        end, above, there = position, height, slope
        momentum = start + 0.5 * h * slope @ basis
        for left in reversed(range(num_leapfrog)):
            end = end + h * momentum @ basis.T
            above, there = hill.evaluate(end)
            momentum = momentum + (h if left else 0.5 * h) * there @ basis
        gain = above - height - 0.5 * ((momentum**2).sum(1) - (start**2).sum(1))
        accept = np.log(rng.uniform(size=num_chains)) < gain
        position = np.where(accept[:, None], end, position)
        slope = np.where(accept[:, None], there, slope)
        height = np.where(accept, above, height)
        if i >= 0:
            draws[:, i], taken = position, taken + accept.mean() / num_draws
        if (i + burn_in + 1) % max((num_draws + burn_in) // 10, 1) == 0:
            say(f"Reference posterior: {(i + burn_in + 1) / (num_draws + burn_in):.0%}")
    return draws, taken


def logistic_hill(x: Any, y: np.ndarray, variance: np.ndarray, num_classes: int) -> Hill:
    """Describe the posterior of a logistic regression; weights are flat, (features, classes).

    Parameters
    ----------
    x
        (rows, features), dense or SciPy sparse.
    y
        Labels 0, 1, …, `num_classes` - 1.
    variance
        Of the prior, one per feature.
    num_classes
        2 gives one weight per feature.
    """
    x = x.toarray() if sparse.issparse(x) else np.asarray(x, np.float64)
    num_outputs = 1 if num_classes == 2 else num_classes
    target = y[:, None] if num_outputs == 1 else np.eye(num_classes)[y.astype(int)]
    precision = np.repeat(1 / variance, num_outputs)
    shape = (x.shape[1], num_outputs)

    def logits(weights: np.ndarray) -> np.ndarray:
        """Logits of all chains at once, (rows, outputs, chains)."""
        flat = weights.T.reshape(shape[0], -1)
        return (x @ flat).reshape(len(x), num_outputs, -1)

    def evaluate(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        z = logits(weights)
        fit = np.einsum("nk,nkc->c", target, z)
        if num_outputs == 1:
            probability = expit(z)
            fit -= np.logaddexp(0, z[:, 0]).sum(0)
        else:
            total = np.asarray(logsumexp(z, axis=1, keepdims=True))
            probability = np.exp(z - total)
            fit -= total[:, 0].sum(0)
        misfit = (target[:, :, None] - probability).reshape(len(x), -1)
        slope = (x.T @ misfit).reshape(precision.size, -1).T - precision * weights
        return fit - 0.5 * weights**2 @ precision, slope

    def curvature(weights: np.ndarray) -> np.ndarray:
        z = logits(weights[None])[:, :, 0]
        p = expit(z) if num_outputs == 1 else np.exp(z - logsumexp(z, axis=1, keepdims=True))
        blocks = np.zeros((shape[0], num_outputs, shape[0], num_outputs))
        for a in range(num_outputs):
            for b in range(a + 1):
                weight = p[:, a] * ((a == b) - p[:, b])
                blocks[:, a, :, b] = blocks[:, b, :, a] = (x * weight[:, None]).T @ x
        return blocks.reshape(precision.size, -1) + np.diag(precision)

    mode = _climb(evaluate, curvature, np.zeros(precision.size))
    return Hill(mode, curvature(mode), evaluate)


def _climb(
    evaluate: ValueAndGradient, curvature: Callable[[np.ndarray], np.ndarray], start: np.ndarray
) -> np.ndarray:
    """Go to the top by Newton's method, with shorter steps where a whole one leads down."""
    position = start
    (height,), (slope,) = evaluate(position[None])
    for _ in range(100):
        step = np.linalg.solve(curvature(position), slope)
        for shrink in 0.5 ** np.arange(30):
            (above,), (there,) = evaluate((position + shrink * step)[None])
            if above >= height:
                break
        else:
            return position
        done = slope @ step < 1e-10
        position, height, slope = position + shrink * step, above, there
        if done:
            break
    return position
