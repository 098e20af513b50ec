r"""Effective sample size and R-hat of every coordinate.

The *effective sample size* is the number of independent draws with the same accuracy: for the mean
of $n$ draws with autocorrelations $\rho_t$ it is $n/(1 + 2\sum_t\rho_t)$. *R-hat* compares halves
of chains with each other; above 1.01 they do not have the same distribution yet. Both are the
rank-normalised, split versions, computed by arviz-stats. Neither detects a bias that all chains
share, such as that of the step size: `isotherm.diagnostics.ksd` does.

The result is NaN for a coordinate that is constant, not finite, or has fewer than 4 draws (8 for
the R-hat of a single chain). The cost is about 1 ms per coordinate for 4 chains of 1000 draws.

References
----------
Vehtari, Gelman, Simpson, Carpenter & Bürkner (2021), *Rank-normalization, folding, and
localization: an improved R-hat for assessing convergence of MCMC*, Bayesian Analysis 16.
"""

from typing import Any, Literal, get_args

import jax
import numpy as np

from isotherm.types import ArrayTree

EssKind = Literal["bulk", "tail", "mean", "sd"]


def ess(draws: ArrayTree, kind: EssKind = "bulk") -> ArrayTree:
    """Return the effective sample size of every coordinate, over all chains together.

    Parameters
    ----------
    draws
        Arrays with leading axes `(chain, draw)`; one chain is enough.
    kind
        The estimated quantity: `bulk` is the centre of the distribution (by ranks, so that no
        moments are needed), `tail` the smaller value of the 5 % and 95 % quantiles, `mean` the mean
        and `sd` the standard deviation.

    Returns
    -------
    A tree like `draws` without the leading axes, of float64.

    Examples
    --------
    >>> draws = {"w": np.random.default_rng(0).normal(size=(4, 250, 3))}
    >>> ess(draws)["w"].round()
    array([ 949., 1015.,  955.])
    """
    if kind not in get_args(EssKind):
        raise ValueError(f"`kind` must be one of {', '.join(get_args(EssKind))}, got {kind!r}.")
    prob = (0.05, 0.95) if kind == "tail" else None
    return _per_coordinate("ess", draws, method=kind, prob=prob)


def rhat(draws: ArrayTree) -> ArrayTree:
    """Return the rank-normalised split R-hat of every coordinate.

    Parameters
    ----------
    draws
        Arrays with leading axes `(chain, draw)`. A single chain is split into two halves, which
        are treated as chains: this shows a drift, but not a mode that the chain never visited.

    Returns
    -------
    A tree like `draws` without the leading axes, of float64.

    Examples
    --------
    >>> draws = np.random.default_rng(0).normal(size=(4, 250, 2))
    >>> draws[0, :, 1] += 1  # one chain differs
    >>> rhat(draws).round(2)
    array([1.  , 1.13])
    """
    return _per_coordinate("rhat", draws, min_chains=2, method="rank")


def plain_rhat(draws: np.ndarray) -> np.ndarray:
    """Return the split R-hat of an array (chain, draw, number) without ranks: quick, for screening.

    It is 0 where draws do not vary.
    """
    half = draws.shape[1] // 2
    halves = np.concatenate([draws[:, :half], draws[:, -half:]]).astype(np.float64)
    within, between = halves.var(1, ddof=1).mean(0), halves.mean(1).var(0, ddof=1)
    ratio = np.divide(between, within, out=np.zeros_like(within), where=within > 0)
    return np.where(within > 0, np.sqrt((half - 1) / half + ratio), 0.0)


def _per_coordinate(name: str, draws: ArrayTree, min_chains: int = 1, **options: Any) -> ArrayTree:
    """Apply a function of arviz-stats where draws vary and are finite; NaN elsewhere."""
    # Imported here because it takes one to two seconds.
    from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]

    statistic = getattr(array_stats, name)

    def leaf(x: Any) -> np.ndarray:
        if np.iscomplexobj(x):
            raise ValueError("`draws` must be real: pass the real and imaginary parts separately.")
        try:
            x = np.asarray(x, np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"`draws` must be arrays of numbers: {error}") from error
        if x.ndim < 2 or 0 in x.shape[:2]:
            raise ValueError(f"`draws` must have leading axes (chain, draw), got shape {x.shape}.")
        shape, x = x.shape[2:], x.reshape(*x.shape[:2], -1)
        half = x.shape[1] // 2
        if len(x) < min_chains and half:
            x = np.concatenate([x[:, :half], x[:, -half:]])
        out = np.full(x.shape[2], np.nan)
        usable = np.isfinite(x).all((0, 1))
        usable[usable] = (x[..., usable] != x[0, 0, usable]).any((0, 1))
        if usable.any():
            with np.errstate(divide="ignore", invalid="ignore"):  # constant chains
                out[usable] = statistic(x[..., usable], chain_axis=0, draw_axis=1, **options)
        return out.reshape(shape)

    return jax.tree.map(leaf, draws)
