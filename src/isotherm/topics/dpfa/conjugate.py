r"""Exact draws of topics, weights and biases given counts and binary layers.

Topics: $\phi_k \mid n \sim \mathrm{Dir}(\eta + n_k)$. Weights: unit $k$ of layer $\ell$ is a
logistic regression on $x_j = (h^{(\ell+1)}_j, 1)$, at the top layer on the constant 1 only. With a
Pólya-Gamma variable $\omega_{kj} \sim \mathrm{PG}(1, \psi_{kj})$ per unit and document,

$$ (w_k, c_k) \mid \omega \sim \mathcal N(P_k^{-1}v_k,\ P_k^{-1}), \qquad
   P_k = I + \sum_j \omega_{kj}x_jx_j^\top, \quad v_k = \sum_j (h_{kj} - \tfrac12)\,x_j , $$

jointly for all weights of a unit. `Moments` are the two sums. They are additive over batches, which
filtering needs.

References
----------
Polson, Scott & Windle (2013), *Bayesian inference for logistic models using Pólya-Gamma latent
variables*, JASA.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from isotherm.topics.dpfa.belief_network import Network
from isotherm.topics.dpfa.polya_gamma import polya_gamma

_CHUNK = 512
"""Number of documents whose products are in memory at a time."""


class Moments(NamedTuple):
    """Sums over documents, one entry per layer."""

    precision: tuple[np.ndarray, ...]
    r"""$\sum_j\omega_{kj}x_jx_j^\top$, (units, inputs, inputs)."""
    shift: tuple[np.ndarray, ...]
    r"""$\sum_j(h_{kj} - \frac12)x_j$, (units, inputs)."""


def zero_moments(layers: tuple[int, ...]) -> Moments:
    """Return the sums over no documents: zeros."""
    inputs = [*(size + 1 for size in layers[1:]), 1]
    shapes = list(zip(layers, inputs, strict=True))
    return Moments(
        tuple(np.zeros((k, d, d)) for k, d in shapes), tuple(np.zeros(shape) for shape in shapes)
    )


def draw_moments(
    rng: np.random.Generator,
    network: Network,
    units: tuple[np.ndarray, ...],
    draw: Callable[[np.random.Generator, np.ndarray], np.ndarray] = polya_gamma,
) -> Moments:
    """Draw Pólya-Gamma variables for layers (rows, units) and compute the sums over rows.

    `draw` is the function that draws them.
    """
    precision, shift = [], []
    for layer, h in enumerate(units):
        x, w = np.ones((len(h), 1)), network.biases[layer][:, None]
        if layer < len(network.weights):
            x = np.concatenate([units[layer + 1], x], axis=1)
            w = np.concatenate([network.weights[layer], w], axis=1)
        omega = draw(rng, x @ w.T)
        total = np.zeros((h.shape[1], x.shape[1] ** 2))
        for i in range(0, len(x), _CHUNK):
            part = x[i : i + _CHUNK]
            pairs = (part[:, :, None] * part[:, None]).reshape(len(part), -1)
            total += omega[i : i + _CHUNK].T @ pairs
        precision.append(total.reshape(h.shape[1], x.shape[1], -1))
        shift.append((h - 0.5).T @ x)
    return Moments(tuple(precision), tuple(shift))


def add_moments(a: Moments, b: Moments, scale: float = 1.0) -> Moments:
    """Return `a` plus `scale` times `b`."""

    def add(x: tuple[np.ndarray, ...], y: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        return tuple(u + scale * v for u, v in zip(x, y, strict=True))

    return Moments(add(a.precision, b.precision), add(a.shift, b.shift))


def draw_network(rng: np.random.Generator, moments: Moments) -> Network:
    """Draw weights and biases of all layers."""
    weights, biases = [], []
    for total, shift in zip(*moments, strict=True):
        root = np.linalg.cholesky(total + np.eye(total.shape[-1]))
        half = np.linalg.solve(root, shift[..., None])
        noise = rng.standard_normal(half.shape)
        w = np.linalg.solve(root.transpose(0, 2, 1), half + noise)[..., 0]
        weights.append(w[:, :-1])
        biases.append(w[:, -1])
    return Network(tuple(weights[:-1]), tuple(biases))


def draw_topics(rng: np.random.Generator, counts: np.ndarray, eta: float) -> np.ndarray:
    """Draw topics (topics, words) given counts (words, topics)."""
    gamma = rng.standard_gamma(counts.T + eta)
    gamma = np.maximum(gamma, 1e-300)
    return gamma / gamma.sum(1, keepdims=True)
