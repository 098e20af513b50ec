r"""Posterior of a logistic regression, from long runs of unbiased samplers.

The posterior has no closed form. It is sampled by one of two exact samplers that share no code:
Pólya-Gamma Gibbs sampling (`isotherm.references.polya_gamma`) and Hamiltonian Monte Carlo
(`isotherm.references.hmc`). The remaining Monte Carlo error is reported with the results:
`mcse_mean` and `mcse_sd`, R-hat and effective sample sizes.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from isotherm.diagnostics.convergence import ess, rhat
from isotherm.io import npz
from isotherm.io.files import atomically
from isotherm.models.logistic_mode import logistic_log_density
from isotherm.references.arguments import check_data, prior_variances
from isotherm.references.hmc import LogDensityTarget, hmc
from isotherm.references.polya_gamma import PolyaGammaGibbs
from isotherm.schedules import require_nonnegative, require_positive

_ALGORITHM = 1  # Part of the cache key: increase it when the same settings give other draws.
MAX_RHAT = 1.01
METHODS = {"polya-gamma": "Pólya-Gamma Gibbs", "hmc": "Hamiltonian Monte Carlo"}


@dataclass(frozen=True)
class ReferencePosterior:
    """Unbiased draws from a posterior, and their Monte Carlo error."""

    draws: np.ndarray
    """(chain, draw, features) or (chain, draw, features, classes), float32."""
    settings: dict[str, Any]
    """Arguments that determine the draws; `data` is a checksum."""
    key: str
    """Checksum of the settings."""

    @cached_property
    def mean(self) -> np.ndarray:
        """Posterior mean of each weight."""
        return self.draws.mean((0, 1), dtype=np.float64)

    @cached_property
    def sd(self) -> np.ndarray:
        """Posterior standard deviation of each weight."""
        return self.draws.std((0, 1), dtype=np.float64)

    @cached_property
    def ess(self) -> np.ndarray:
        """Effective sample size (bulk) of each weight."""
        return ess(self.draws)

    @cached_property
    def rhat(self) -> np.ndarray:
        """R-hat of each weight."""
        return rhat(self.draws)

    @cached_property
    def mcse_mean(self) -> np.ndarray:
        """Standard error of `mean`."""
        return self.sd / np.sqrt(ess(self.draws, "mean"))

    @cached_property
    def mcse_sd(self) -> np.ndarray:
        """Standard error of `sd`, by the delta method from that of the variance."""
        squares = (self.draws - self.mean) ** 2
        error_of_variance = squares.std((0, 1)) / np.sqrt(ess(squares, "mean"))
        return error_of_variance / (2 * self.sd)

    @property
    def converged(self) -> bool:
        """Whether R-hat of every weight is below 1.01."""
        return bool(np.all(self.rhat < MAX_RHAT))

    def summary(self) -> dict[str, Any]:
        """Return the settings, moments and Monte Carlo errors as values for JSON."""
        relative = self.mcse_sd / self.sd
        each = {name: getattr(self, name) for name in ("mean", "sd", "ess")}
        return {
            "key": self.key,
            "settings": self.settings,
            "converged": self.converged,
            "rhat_max": _round(self.rhat.max()),
            "ess_min": _round(self.ess.min()),
            "ess_median": _round(np.median(self.ess)),
            "mcse_mean_over_sd_median": _round(np.median(self.mcse_mean / self.sd)),
            "mcse_mean_over_sd_max": _round(np.max(self.mcse_mean / self.sd)),
            "mcse_sd_over_sd_median": _round(np.median(relative)),
            "mcse_sd_over_sd_max": _round(np.max(relative)),
            **{name: _round(values) for name, values in each.items()},
        }


def logistic_posterior(
    x: Any,
    y: Any,
    prior_variance: Any,
    *,
    num_classes: int = 2,
    num_chains: int = 4,
    num_draws: int = 2000,
    burn_in: int = 500,
    seed: int = 0,
    method: str = "polya-gamma",
    cache_dir: str | os.PathLike[str] | None = None,
    report: Callable[[str], None] = lambda message: None,
) -> ReferencePosterior:
    r"""Sample the posterior of a logistic regression without bias.

    Parameters
    ----------
    x
        (rows, features), dense or SciPy sparse; see `isotherm.models.logistic.with_intercept`.
    y
        Labels 0, 1, …, `num_classes` - 1.
    prior_variance
        $v$: a number, or one per feature.
    num_classes
        2 gives one weight per feature; more give a column of weights per class.
    num_chains, num_draws, burn_in
        As in `isotherm.sample`, without thinning; every chain has its own starting point.
    seed
        Seed of all random numbers.
    method
        `"polya-gamma"` (Gibbs sampling; needs the package `polyagamma`; its speed does not depend
        on the scales of the features) or `"hmc"` (on a9a 20 times as many effective draws per
        second; use many chains and a `burn_in` of 50).
    cache_dir
        Folder in which draws are cached as `.npz` files, one for each combination of data, prior
        and settings.
    report
        Called with a progress message from time to time.

    Warns
    -----
    RuntimeWarning
        If R-hat of a weight is 1.01 or more.
    """
    x, y = check_data(x, y)
    require_positive("num_chains", num_chains)
    require_positive("num_draws", num_draws)
    require_nonnegative("burn_in", burn_in)
    variance = prior_variances(prior_variance, x)
    if num_classes < 2 or not np.isin(y, np.arange(num_classes)).all():
        raise ValueError(
            f"`y` must have labels 0 to {num_classes - 1} for {num_classes} classes, "
            f"got {np.unique(y)[:20]}."
        )
    if method not in METHODS:
        raise ValueError(f"`method` must be one of {', '.join(METHODS)}, got {method!r}.")
    settings = {
        "method": METHODS[method],
        "algorithm": _ALGORITHM,
        "data": _fingerprint(x, y),
        "prior_variance": np.asarray(prior_variance, np.float64).tolist(),
        "num_classes": int(num_classes),
        "num_chains": int(num_chains),
        "num_draws": int(num_draws),
        "burn_in": int(burn_in),
        "seed": int(seed),
    }
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    path = None if cache_dir is None else Path(cache_dir) / f"logistic-{key[:16]}.npz"
    draws = _load(path, key)
    if draws is None:
        sampler = _sample_by_hmc if method == "hmc" else _sample_by_gibbs
        data = _Data(x, y, variance, num_classes)
        draws = sampler(data, _Plan(num_chains, num_draws, burn_in, seed), report)
        _store(path, key, draws, settings)
    posterior = ReferencePosterior(draws, settings, key)
    if not posterior.converged:
        warnings.warn(
            f"The largest R-hat of the reference posterior is {posterior.rhat.max():.3f}, but it "
            f"should be below {MAX_RHAT}. Increase `num_draws` or `burn_in`.",
            RuntimeWarning,
            stacklevel=2,
        )
    return posterior


class _Data(NamedTuple):
    """Checked data and prior."""

    x: Any
    y: np.ndarray
    variance: np.ndarray
    num_classes: int


class _Plan(NamedTuple):
    """Lengths and seed of the chains."""

    num_chains: int
    num_draws: int
    burn_in: int
    seed: int


def _sample_by_gibbs(data: _Data, plan: _Plan, report: Callable[[str], None]) -> np.ndarray:
    gibbs = PolyaGammaGibbs(*data)
    chains = []
    for chain, stream in enumerate(np.random.SeedSequence(plan.seed).spawn(plan.num_chains)):
        prefix = f"Reference posterior, chain {chain + 1} of {plan.num_chains}"

        def report_percentage(percent: int, prefix: str = prefix) -> None:
            report(f"{prefix}: {percent} %")

        rng = np.random.default_rng(stream)
        chains.append(gibbs.chain(rng, plan.num_draws, plan.burn_in, report_percentage))
    return np.stack(chains)


def _sample_by_hmc(data: _Data, plan: _Plan, report: Callable[[str], None]) -> np.ndarray:
    density = logistic_log_density(*data)
    mode = density.mode()
    target = LogDensityTarget(mode, density.curvature(mode), density.value_and_gradient)
    draws, _ = hmc(target, **plan._asdict(), report=report)
    num_features = data.x.shape[1]
    shape = (num_features,) if data.num_classes == 2 else (num_features, data.num_classes)
    return draws.reshape(*draws.shape[:2], *shape).astype(np.float32)


def _round(values: Any) -> Any:
    """Round to six significant digits."""
    return np.vectorize(lambda v: float(f"{v:.6g}"), otypes=[float])(values).tolist()


def _fingerprint(x: Any, y: np.ndarray) -> str:
    """Return a digest of the data; equal values give equal digests, but dense and sparse differ."""
    parts = [x.indptr, x.indices, x.data] if sparse.issparse(x) else [x]
    digest = hashlib.sha256(repr((sparse.issparse(x), x.shape)).encode())
    for part in (*parts, y):
        is_integer = np.issubdtype(part.dtype, np.integer)
        digest.update(np.ascontiguousarray(part, "<i8" if is_integer else "<f8").tobytes())
    return digest.hexdigest()


def _load(path: Path | None, key: str) -> np.ndarray | None:
    """Read cached draws; return `None` if the file is absent, damaged or has another key."""
    if path is None or not path.is_file():
        return None
    try:
        stored = npz.load(path)
        return stored["draws"] if str(stored["key"]) == key else None
    except (OSError, ValueError, KeyError):
        return None


def _store(path: Path | None, key: str, draws: np.ndarray, settings: dict[str, Any]) -> None:
    """Write draws to the cache atomically: readers never see a partial file."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomically(path) as draft, draft.open("wb") as stream:
        np.savez(stream, draws=draws, key=np.array(key), settings=np.array(json.dumps(settings)))
