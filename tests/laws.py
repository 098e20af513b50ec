r"""The exact law of a sampler's own recursion, and tests of draws against it.

No tolerance is spent on discretisation bias, burn-in or autocorrelation: after a given number of
steps from a given start the law of the recursion is known, and independent chains are compared
with it.

- *Linear recursions* (fixed friction on a Gaussian target, SGLD): mean and covariance are
  propagated letter by letter; the law is Gaussian at any number of steps (`gaussian_law`).
- *Nonlinear ones* (thermostats): the recursion is a smooth function of a few noise numbers, so its
  moments are integrals over them. Gauss–Hermite quadrature with 3 nodes *is* the three-point
  noise, so that law is enumerated exactly; with more nodes the Gaussian one is computed to
  far below Monte Carlo error (`quadrature_moments`).

Both are written in NumPy, in double precision, from the letters' definitions, and share no code
with the package.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

FALSE_ALARM = 1e-4
"""Chance that one law test fails on correct code, per fresh seed (Bonferroni over observables)."""

NUM_CHAINS = 40_000

SPELLED = {
    "euler": "AED",
    "ABOBA": "ADBKNBDA",
    "BAOAB": "KADODAK",
    "BADODAB": "KADODAK",
    "OBABO": "OKADKO",
    "OABAO": "OADKDAO",
    "ABDODBA": "AKDODKA",
    "DOBABOD": "DOKAKOD",
    "NBKADKBN": "NBKADKBN",
}


class Gaussian(NamedTuple):
    """A Gaussian target; `grad` is what a sampler sees."""

    mean: np.ndarray
    precision: np.ndarray

    def grad(self, x, batch=None):
        return jnp.asarray(self.precision, x.dtype) @ (jnp.asarray(self.mean, x.dtype) - x)


def final_states(key, build, settings, start, num_steps, num_chains=NUM_CHAINS, momentum=None):
    """Last states of independent chains, one run per setting, compiled once.

    `build(setting)` makes the sampler; `num_steps` may be a tuple, then states are returned at
    each of these steps. Chains are i.i.d., so there is no burn-in and no ESS.
    """
    stops = num_steps if isinstance(num_steps, tuple) else (num_steps,)

    def chain(key, setting):
        sampler = build(setting)
        init_key, key = jax.random.split(key)
        state = sampler.init(start, init_key)
        if momentum is not None:
            state = state._replace(momentum=momentum)

        def advance(state, key):
            state = sampler.step(key, state, None)[0]
            return state, (state if len(stops) > 1 else None)

        last, path = jax.lax.scan(advance, state, jax.random.split(key, max(stops)))
        if len(stops) == 1:
            return last
        return tuple(jax.tree.map(lambda x, n=n: x[n - 1], path) for n in stops)

    run = jax.jit(jax.vmap(chain, in_axes=(0, None)))
    keys = jax.random.split(key, len(settings))
    return [run(jax.random.split(k, num_chains), s) for k, s in zip(keys, settings, strict=True)]


def moment_p_value(draws, mean, variance):
    """Bonferroni p-value of z-tests: sample means of observables against exact ones.

    `draws` is (chains, observables); `mean` and `variance` are those of a single draw. An
    observable that does not vary must simply be right.
    """
    draws = np.asarray(draws, np.float64)
    error = draws.mean(0) - mean
    still = variance < 1e-10
    if np.any(np.abs(error[still]) > 1e-5 * (1 + np.abs(mean[still]))):
        return 0.0
    if still.all():
        return 1.0
    z = error[~still] / np.sqrt(variance[~still] / len(draws))
    return float(min(1.0, z.size * 2 * stats.norm.sf(np.abs(z).max())))


def gaussian_p_value(draws, mean, covariance):
    """Bonferroni p-value of exact z-tests (means) and chi-square tests (variances) per coordinate."""
    draws = np.asarray(draws, np.float64)
    n, sd = len(draws), np.sqrt(np.diag(covariance))
    z = (draws.mean(0) - mean) / (sd / np.sqrt(n))
    q = (((draws - mean) / sd) ** 2).sum(0)
    tails = np.concatenate([stats.norm.sf(np.abs(z)), stats.chi2.cdf(q, n), stats.chi2.sf(q, n)])
    return float(min(1.0, 4 * len(sd) * tails.min()))


def gaussian_law(word, target, start, *, h, friction, temperature, num_steps):
    """Mean and covariance of (position, momentum) after some steps with fixed friction."""
    letters, d = SPELLED[word], len(target.mean)
    eye, zero = np.eye(d), np.zeros((d, d))
    mean = np.concatenate([start, np.zeros(d)])
    cov = np.block([[zero, zero], [zero, temperature * eye]])  # momentum starts in equilibrium
    first_kick = letters.index("K") if opens_with_kick(letters) else None
    for step, (i, letter) in itertools.product(range(num_steps), enumerate(letters)):
        t = h / letters.count(letter)
        a, shift, noise = np.eye(2 * d), np.zeros(2 * d), 0.0
        if letter == "A":
            a[:d, d:] = t * eye
        elif letter == "B":
            a[d:, d:] = np.exp(-friction * t) * eye
        elif letter == "K" and not (step == 0 and i == first_kick):
            a[d:, :d] = -t * target.precision
            shift[d:] = t * target.precision @ target.mean
        elif letter == "N":
            noise = 2 * friction * temperature * t
        elif letter == "O":
            a[d:, d:] = np.exp(-friction * t) * eye
            noise = temperature * (1 - np.exp(-2 * friction * t))
        elif letter == "E":
            a[d:, :d] = -t * target.precision
            a[d:, d:] = (1 - friction * t) * eye
            shift[d:] = t * target.precision @ target.mean
            noise = 2 * friction * temperature * t
        mean = a @ mean + shift
        cov = a @ cov @ a.T
        cov[d:, d:] += noise * eye
    return mean, cov


class Paths(NamedTuple):
    """All noise paths with their weights: one row per path."""

    numbers: np.ndarray
    weights: np.ndarray


def noise_paths(num_numbers, num_nodes):
    """Every combination of Gauss–Hermite nodes for `num_numbers` independent standard normals."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    weights = weights / weights.sum()
    picks = np.indices((num_nodes,) * num_numbers).reshape(num_numbers, -1).T
    return Paths(nodes[picks], weights[picks].prod(1))


class Thermostatted(NamedTuple):
    """A thermostatted recursion, as the letters define it."""

    word: str
    thermostat: str
    target: Gaussian
    h: float
    diffusion: float
    temperature: float
    mass: float
    groups: tuple = ((0,), (1, 2))
    basis: np.ndarray | None = None

    def moments(self, position, momentum, num_steps, num_nodes):
        """Exact means and variances of the observables after some steps."""
        letters, d = SPELLED[self.word], len(momentum)
        noisy = [letter for letter in letters if letter in "NOE"]
        paths = noise_paths(num_steps * len(noisy) * d, num_nodes)
        numbers = iter(np.split(paths.numbers, num_steps * len(noisy), axis=1))
        x, p, xi = self._run(letters, position, momentum, num_steps, numbers, len(paths.weights))
        observed = observables(x, p, xi)
        mean = paths.weights @ observed
        return mean, paths.weights @ observed**2 - mean**2

    def _run(self, letters, position, momentum, num_steps, numbers, num_paths):
        d = len(momentum)
        basis = np.eye(d) if self.basis is None else self.basis
        x = np.tile(position, (num_paths, 1))
        p = np.tile(momentum, (num_paths, 1))
        xi = np.tile(self._start(d), (num_paths, *(1,) * np.ndim(self._start(d))))
        force, known = np.zeros_like(p), opens_with_kick(letters)
        for _, letter in itertools.product(range(num_steps), letters):
            t = self.h / letters.count(letter)
            if letter in "KE" and not known:
                force, known = (self.target.mean - x) @ self.target.precision.T @ basis, True
            if letter == "A":
                x, known = x + t * p @ basis.T, False
            elif letter == "D":
                xi = xi + (self._measure(p) - self._goal(d)) * t / self.mass
            elif letter == "B":
                p = self._damp(xi, p, t)
            elif letter == "K":
                p = p + t * force
            elif letter == "N":
                p = p + np.sqrt(2 * self.diffusion * self.temperature * t) * next(numbers)
            elif letter == "O":
                p = self._relax(xi, p, t, next(numbers))
            elif letter == "E":
                p = p + t * (force - self._apply(lambda rate: rate, xi, p))
                p = p + np.sqrt(2 * self.diffusion * self.temperature * t) * next(numbers)
        return x, p, xi

    def _start(self, d):
        shape = {
            "fixed": (),
            "scalar": (),
            "per_tensor": (len(self.groups),),
            "per_coordinate": (d,),
        }
        if self.thermostat == "full_matrix":
            return self.diffusion * np.eye(d)
        return np.full(shape[self.thermostat], self.diffusion)

    def _goal(self, d):
        return self.temperature * (np.eye(d) if self.thermostat == "full_matrix" else 1.0)

    def _measure(self, p):
        if self.thermostat == "fixed":
            return np.full(len(p), self.temperature)
        if self.thermostat == "scalar":
            return (p**2).mean(1)
        if self.thermostat == "per_tensor":
            return np.stack([(p[:, list(g)] ** 2).mean(1) for g in self.groups], 1)
        if self.thermostat == "per_coordinate":
            return p**2
        return p[:, :, None] * p[:, None, :]

    def _rates(self, xi, d):
        """Friction of every coordinate, for thermostats that act on each by itself."""
        if self.thermostat in ("fixed", "scalar"):
            return np.tile(xi[:, None], (1, d))
        if self.thermostat == "per_tensor":
            owner = [[i in g for g in self.groups].index(True) for i in range(d)]
            return xi[:, owner]
        return xi

    def _apply(self, function, xi, v):
        """Apply a function of the friction to a vector."""
        if self.thermostat != "full_matrix":
            return function(self._rates(xi, v.shape[1])) * v
        rates, axes = np.linalg.eigh(xi)
        return np.einsum("nij,nj,nkj,nk->ni", axes, function(rates), axes, v)

    def _damp(self, xi, p, t):
        return self._apply(lambda rate: np.exp(-rate * t), xi, p)

    def _relax(self, xi, p, t, r):
        strength = self.diffusion * self.temperature

        def scale(rate):
            return np.sqrt(strength * -np.expm1(-2 * rate * t) / rate)

        return self._damp(xi, p, t) + self._apply(scale, xi, r)


def opens_with_kick(letters):
    """Whether a word kicks before it drifts: its first kick has no gradient yet and is left out."""
    return "K" in letters and letters.index("K") < letters.index("A")


def observables(position, momentum, thermostat):
    """Positions, momenta and thermostats, each with its square, as columns."""
    columns = [np.reshape(v, (len(v), -1)) for v in (position, momentum, thermostat)]
    flat = np.concatenate([np.asarray(c, np.float64) for c in columns], axis=1)
    return np.concatenate([flat, flat**2], axis=1)
