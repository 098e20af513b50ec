r"""Priors of the weights of any network, leaf by leaf.

Every weight of leaf $l$ is $w = c + s\,b_l\,z$ with an independent $z$ from a distribution of unit
scale: Gaussian, Student-t or Laplace. The base scale $b_l = v_l/\sqrt{n_l}$ has a number $v_l$ that
the user chooses (1 by default) and the *fan-in* $n_l$, the number of inputs of a unit, so that
outputs are of the same order for all widths; $c$ is zero unless the prior is localised. The scale
$s$ is 1, or learned: one per leaf, with a half-Cauchy, half-normal or gamma hyperprior.

**Learned scales** are coordinates $\log s_l$ of the position. *Non-centred* (the default) the
position has $z$ in place of $w$, so that

$$ \log\pi(z, \log s) = \sum_l \Bigl[\log h(\log s_l) + \sum_i \log g(z_{li})\Bigr]; $$

prior scale and weights are independent, which suits scales that the data determine weakly.
*Centred*, the position has $w$ and the density is
$\log h(\log s_l) + \sum_i [\log g((w_{li} - c_{li})/(s_l b_l)) - \log(s_l b_l)]$; large leaves
determine their scale well, and a sampler can then move weights and scale apart.

**Fan-in by leaf.** A bias, a vector or a number has 1. Of a leaf called `weight` (Equinox, PyTorch)
the first axis is that of outputs, and $n$ is the product of the others: (out, in) and
(out, in, row, column). Of all others, such as `kernel` (Flax) and `weights` (`isotherm.models`),
the last axis is that of outputs: (in, out) and (row, column, in, out). A leaf called `embedding`
has 1, because an input selects one of its rows. `fan_ins` shows the numbers; override them by name
where they are wrong, for example for an attention kernel (in, heads, size):

    NormalPrior(scale=2.0, fan_in={"attention.query.kernel": 64})

Log densities are normalised.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from isotherm import random
from isotherm.models.scale_priors import HalfCauchy, ScalePrior
from isotherm.schedules import require_positive
from isotherm.tree import leaf_names
from isotherm.types import ArrayTree, Key


class Prior(Protocol):
    """A prior of the position of a network."""

    def log_prior(self, position: ArrayTree) -> jax.Array:
        """Return the log density of a position."""
        ...

    def sample(self, key: Key, like: ArrayTree) -> ArrayTree:
        """Draw a position with the structure, shapes and dtypes of `like`."""
        ...

    def weights(self, position: ArrayTree) -> ArrayTree:
        """Return the weights of the network at a position."""
        ...

    def position(self, weights: ArrayTree) -> ArrayTree:
        """Return a position that has these weights."""
        ...


def fan_ins(tree: ArrayTree, overrides: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the fan-in of every leaf by name, by the rules of the module.

    Parameters
    ----------
    tree
        Weights: arrays, or anything with shapes.
    overrides
        Fan-ins that replace the rule, by name.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> layer = {"kernel": jnp.zeros((3, 3, 8, 16)), "bias": jnp.zeros(16)}
    >>> fan_ins({"conv": layer, "linear": {"weight": jnp.zeros((10, 50))}})
    {'conv.bias': 1, 'conv.kernel': 72, 'linear.weight': 50}
    """
    inferred = {
        name: _fan_in(name, jnp.shape(leaf))
        for name, leaf in zip(leaf_names(tree), jax.tree.leaves(tree), strict=True)
    }
    return inferred | _by_leaf("fan_in", overrides or {}, inferred)


@dataclass(frozen=True, eq=False)
class WeightPrior:
    """Base class of the priors with given scales: independent weights."""

    scale: float | Mapping[str, float] = 1.0
    """$v$: a number for all leaves, or numbers by leaf name; leaves without one have 1."""
    fan_in: Mapping[str, float] | str | None = "auto"
    """`"auto"`; `None` for no division by fan-in; or fan-ins by leaf name, others automatic."""
    centre: ArrayTree = field(default=None, kw_only=True)
    """$c$, with the structure and shapes of the weights; `None` is zero."""

    def __post_init__(self) -> None:
        values = self.scale if isinstance(self.scale, Mapping) else {"": self.scale}
        for value in values.values():
            require_positive("scale", value)
        if isinstance(self.fan_in, str) and self.fan_in != "auto":
            raise ValueError(
                f"`fan_in` must be 'auto', None or numbers by leaf name, got {self.fan_in!r}."
            )

    def base_scales(self, weights: ArrayTree) -> dict[str, float]:
        """Return $b_l$ of every leaf, by name."""
        names = leaf_names(weights)
        if isinstance(self.scale, Mapping):
            scales = dict.fromkeys(names, 1.0) | _by_leaf("scale", self.scale, names)
        else:
            scales = dict.fromkeys(names, float(self.scale))
        if self.fan_in is None:
            return scales
        overrides = None if isinstance(self.fan_in, str) else self.fan_in
        inputs = fan_ins(weights, overrides)
        return {name: scales[name] * inputs[name] ** -0.5 for name in names}

    def log_prior(self, position: ArrayTree) -> jax.Array:
        """Return the log density of weights."""
        scales = self.base_scales(position)
        return jnp.sum(jnp.stack(self.leaf_log_densities(position, scales)))

    def sample(self, key: Key, like: ArrayTree) -> ArrayTree:
        """Draw weights with the structure, shapes and dtypes of `like`."""
        unit = self.sample_units(key, like)
        return self.scaled(unit, self.base_scales(like))

    def weights(self, position: ArrayTree) -> ArrayTree:
        """Return the position."""
        return position

    def position(self, weights: ArrayTree) -> ArrayTree:
        """Return the weights."""
        return weights

    def scaled(self, units: ArrayTree, scales: Mapping[str, Any]) -> ArrayTree:
        """Return $c + s_l z$ for given scales by leaf name."""

        def leaf(name: str, z: jax.Array, centre: Any) -> jax.Array:
            moved = z * jnp.asarray(scales[name], _working(z).dtype)
            return (moved if centre is None else moved + jnp.asarray(centre)).astype(z.dtype)

        return self._map_leaves(leaf, units)

    def units(self, weights: ArrayTree, scales: Mapping[str, Any]) -> ArrayTree:
        """Return $z = (w - c)/s_l$ for given scales by leaf name."""

        def leaf(name: str, w: jax.Array, centre: Any) -> jax.Array:
            w = _working(w)
            moved = w if centre is None else w - jnp.asarray(centre)
            return moved / jnp.asarray(scales[name], w.dtype)

        return self._map_leaves(leaf, weights)

    def unit_log_density(self, z: jax.Array) -> jax.Array:
        r"""Return $\log g(z)$, entry by entry."""
        raise NotImplementedError

    def unit_sample(self, key: Key, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Draw $z$."""
        raise NotImplementedError

    def sample_units(self, key: Key, like: ArrayTree) -> ArrayTree:
        """Draw $z$ for every weight."""
        leaves, structure = jax.tree.flatten(like)
        drawn = [
            self.unit_sample(random.fold(key, i), leaf.shape, _working_dtype(leaf)).astype(
                leaf.dtype
            )
            for i, leaf in enumerate(leaves)
        ]
        return jax.tree.unflatten(structure, drawn)

    def leaf_log_densities(self, weights: ArrayTree, scales: Mapping[str, Any]) -> list[jax.Array]:
        """Return the log density of every leaf for given scales."""
        units = jax.tree.leaves(self.units(weights, scales))
        return [
            jnp.sum(self.unit_log_density(z)) - z.size * jnp.log(jnp.asarray(scales[name], z.dtype))
            for name, z in zip(leaf_names(weights), units, strict=True)
        ]

    def _map_leaves(self, function: Any, tree: ArrayTree) -> ArrayTree:
        leaves, structure = jax.tree.flatten(tree)
        centres = [None] * len(leaves) if self.centre is None else jax.tree.leaves(self.centre)
        names = leaf_names(tree)
        for name, leaf, centre in zip(names, leaves, centres, strict=False):
            if centre is not None and jnp.shape(centre) != leaf.shape:
                raise ValueError(
                    f"`centre` must have the shapes of the weights: leaf {name!r} has shape "
                    f"{leaf.shape}, but its centre has {jnp.shape(centre)}."
                )
        if len(centres) != len(leaves):
            raise ValueError(
                f"`centre` must have the {len(leaves)} leaves of the weights, got {len(centres)}."
            )
        return jax.tree.unflatten(
            structure, [function(*each) for each in zip(names, leaves, centres, strict=True)]
        )


@dataclass(frozen=True, eq=False)
class NormalPrior(WeightPrior):
    r"""Gaussian weights, $\mathcal N(c, v^2/n)$.

    Parameters
    ----------
    scale
        $v$: a number for all leaves, or numbers by leaf name; leaves without one have 1.
    fan_in
        `"auto"`: by the rules of the module; `None`: $n = 1$; or fan-ins by leaf name.
    centre
        $c$, weights; zero by default.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> prior, like = NormalPrior(2.0), {"kernel": jnp.zeros((400, 100)), "bias": jnp.zeros(100)}
    >>> draw = prior.sample(jax.random.key(0), like)
    >>> round(float(draw["kernel"].std()), 2), prior.base_scales(like)
    (0.1, {'bias': 2.0, 'kernel': 0.1})
    """

    def unit_log_density(self, z: jax.Array) -> jax.Array:
        r"""Return $\log g(z)$, entry by entry."""
        return -0.5 * z * z - 0.5 * math.log(2 * math.pi)

    def unit_sample(self, key: Key, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Draw $z$."""
        return jax.random.normal(key, shape, dtype)


@dataclass(frozen=True, eq=False)
class StudentTPrior(WeightPrior):
    r"""Student-t weights, $c + v\,t_\nu/\sqrt n$: heavier tails than a Gaussian's.

    Parameters
    ----------
    scale, fan_in, centre
        As in `NormalPrior`. The standard deviation is $v\sqrt{\nu/(\nu - 2)}/\sqrt n$ if $\nu > 2$.
    df
        $\nu > 0$, degrees of freedom.
    """

    df: float = field(default=4.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("df", self.df)

    def unit_log_density(self, z: jax.Array) -> jax.Array:
        r"""Return $\log g(z)$, entry by entry."""
        return student_t_log_density(z, self.df)

    def unit_sample(self, key: Key, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Draw $z$."""
        return jax.random.t(key, self.df, shape, dtype)


@dataclass(frozen=True, eq=False)
class LaplacePrior(WeightPrior):
    r"""Laplace weights with standard deviation $v/\sqrt n$: the prior whose mode is the lasso.

    The density of a weight is $e^{-|w - c|/\beta}/2\beta$ with $\beta = v/\sqrt{2n}$.

    Parameters
    ----------
    scale, fan_in, centre
        As in `NormalPrior`.
    """

    def unit_log_density(self, z: jax.Array) -> jax.Array:
        r"""Return $\log g(z)$, entry by entry."""
        return -math.sqrt(2) * jnp.abs(z) - 0.5 * math.log(2)

    def unit_sample(self, key: Key, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Draw $z$."""
        return jax.random.laplace(key, shape, dtype) / math.sqrt(2)


def localised_prior(centre: ArrayTree, sd: float = 1.0) -> NormalPrior:
    r"""Return $\mathcal N(c, v^2)$ around given weights, for example trained ones.

    It is a prior that has seen the data: it keeps a chain near its start, and the result is not the
    posterior of a prior that was chosen before. Report it as such.

    Parameters
    ----------
    centre
        $c$, weights.
    sd
        $v$, the standard deviation of every weight.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> prior = localised_prior(jnp.array([3.0]), sd=0.5)
    >>> round(float(prior.log_prior(jnp.array([3.0]))), 4)  # -log(0.5 sqrt(2 pi))
    -0.2258
    """
    return NormalPrior(sd, None, centre=centre)


@dataclass(frozen=True, eq=False)
class LearnedScales:
    r"""A prior of weights whose scales $s_l$, one per leaf, are sampled too.

    The position is `{"weights": z or w, "log_scales": {leaf name: log s}}`.

    Parameters
    ----------
    base
        The prior at $s = 1$: `NormalPrior`, `StudentTPrior` or `LaplacePrior`.
    hyperprior
        Of every $s_l$, in units of the base scale.
    centred
        Whether the position has the weights $w$ instead of $z$.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> prior = LearnedScales(NormalPrior(), HalfCauchy(1.0))
    >>> position = prior.position({"kernel": jnp.ones((4, 2))})
    >>> position["weights"]["kernel"].tolist()[0], position["log_scales"]
    ([2.0, 2.0], {'kernel': Array(0., dtype=float32)})
    """

    base: WeightPrior = field(default_factory=NormalPrior)
    hyperprior: ScalePrior = field(default_factory=HalfCauchy)
    centred: bool = False

    def log_prior(self, position: ArrayTree) -> jax.Array:
        """Return the joint log density of weights and log scales."""
        log_scales, weights = position["log_scales"], position["weights"]
        hyper = [self.hyperprior.log_density(t) for t in jax.tree.leaves(log_scales)]
        scales = self._scales(position) if self.centred else dict.fromkeys(log_scales, 1.0)
        prior = self.base if self.centred else replace(self.base, centre=None)
        return jnp.sum(jnp.stack([*hyper, *prior.leaf_log_densities(weights, scales)]))

    def sample(self, key: Key, like: ArrayTree) -> ArrayTree:
        """Draw weights and log scales with the structure, shapes and dtypes of `like`."""
        log_scales = {
            name: self.hyperprior.sample(random.fold(random.fold(key, 1), i)).astype(t.dtype)
            for i, (name, t) in enumerate(like["log_scales"].items())
        }
        units = self.base.sample_units(random.fold(key, 0), like["weights"])
        position = {"weights": units, "log_scales": log_scales}
        if self.centred:
            position["weights"] = self.base.scaled(units, self._scales(position))
        return position

    def weights(self, position: ArrayTree) -> ArrayTree:
        """Return the weights of the network at a position."""
        if self.centred:
            return position["weights"]
        return self.base.scaled(position["weights"], self._scales(position))

    def position(self, weights: ArrayTree) -> ArrayTree:
        """Return the position that has these weights and scales of 1."""
        names = leaf_names(weights)
        log_scales = {
            name: jnp.zeros((), _working_dtype(leaf))
            for name, leaf in zip(names, jax.tree.leaves(weights), strict=True)
        }
        if not self.centred:
            weights = self.base.units(weights, self.base.base_scales(weights))
        return {"weights": weights, "log_scales": log_scales}

    def _scales(self, position: ArrayTree) -> dict[str, jax.Array]:
        base = self.base.base_scales(position["weights"])
        return {name: base[name] * jnp.exp(t) for name, t in position["log_scales"].items()}


def student_t_log_density(z: jax.Array, df: float) -> jax.Array:
    r"""Return the log density of $t_\nu$, entry by entry."""
    half = 0.5 * (df + 1)
    constant = math.lgamma(half) - math.lgamma(0.5 * df) - 0.5 * math.log(math.pi * df)
    return constant - half * jnp.log1p(z * z / df)


def _fan_in(name: str, shape: tuple[int, ...]) -> int:
    last = [part for part in name.split(".") if part not in ("value", "raw_value")][-1:]
    if len(shape) < 2 or last in (["bias"], ["embedding"]):
        return 1
    return math.prod(shape[1:] if last == ["weight"] else shape[:-1])


def _by_leaf(argument: str, values: Mapping[str, float], names: Any) -> dict[str, float]:
    """Return numbers by leaf name; raise for names that no leaf has."""
    for name, value in values.items():
        if name not in names:
            raise ValueError(f"`{argument}` has {name!r}, but the leaves are {list(names)}.")
        require_positive(argument, value)
    return dict(values)


def _working_dtype(leaf: Any) -> Any:
    return jnp.promote_types(leaf.dtype, jnp.float32)


def _working(leaf: jax.Array) -> jax.Array:
    return jnp.asarray(leaf, _working_dtype(leaf))
