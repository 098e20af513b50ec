r"""Logistic regression: long runs of two samplers without discretisation bias.

The posterior has no closed form. Two exact samplers that share no code draw from it: Pólya-Gamma Gibbs
sampling (`isotherm.references.polya_gamma`) and Hamiltonian Monte Carlo (`isotherm.references.hmc`).
The Monte Carlo error that remains is reported beside the numbers: `mcse_mean` and `mcse_sd`, R-hat
and effective sample sizes.
"""

import hashlib
import json
import os
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from isotherm.diagnostics.convergence import ess, rhat
from isotherm.io.files import atomically
from isotherm.references.arguments import check_data, prior_variances, require_positive
from isotherm.references.hmc import hmc, logistic_hill
from isotherm.references.polya_gamma import PolyaGammaGibbs

_ALGORITHM = 1  # Part of the cache key: raise it when the same settings give other draws.
LARGEST_RHAT = 1.01
METHODS = {"polya-gamma": "Pólya-Gamma Gibbs", "hmc": "Hamiltonian Monte Carlo"}


@dataclass(frozen=True)
class ReferencePosterior:
    """Draws from a posterior without bias, and how far they can be trusted."""

    draws: np.ndarray
    """(chain, draw, features) or (chain, draw, features, classes), float32."""
    settings: dict[str, Any]
    """What made them; `data` is a checksum."""
    key: str
    """Checksum of the settings, and so of the data, the prior and the seed."""

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
        """Effective number of draws (bulk) for each weight."""
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
        """Whether all chains have seen the same distribution: R-hat below 1.01 everywhere."""
        return bool(np.all(self.rhat < LARGEST_RHAT))

    def summary(self) -> dict[str, Any]:
        """Collect what is worth keeping when the draws are not, ready for JSON."""
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
    say: Callable[[str], None] = lambda message: None,
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
        `num_draws` are kept from each chain; chains start apart.
    seed
        Of all randomness.
    method
        `"polya-gamma"` (Gibbs; needs the package `polyagamma`; indifferent to how the features are
        scaled) or `"hmc"` (on a9a 20 times as many effective draws per second; wants many chains
        and a `burn_in` of 50).
    cache_dir
        Where to keep the draws as `.npz`; the same data, prior and settings are not sampled twice.
    say
        Is told how far it is, now and then.

    Warns
    -----
    RuntimeWarning
        R-hat of a weight is not below 1.01: draw more.
    """
    x, y = check_data(x, y)
    require_positive(num_chains=num_chains, num_draws=num_draws)
    if burn_in < 0:
        raise ValueError(f"`burn_in` must not be negative, got {burn_in}.")
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
        make = _by_hmc if method == "hmc" else _by_gibbs
        draws = make(x, y, variance, num_classes, num_chains, num_draws, burn_in, seed, say)
        _store(path, key, draws, settings)
    posterior = ReferencePosterior(draws, settings, key)
    if not posterior.converged:
        warnings.warn(
            f"The reference posterior has an R-hat of {posterior.rhat.max():.3f}, which should be "
            f"below {LARGEST_RHAT}. Raise `num_draws` or `burn_in`.",
            RuntimeWarning,
            stacklevel=2,
        )
    return posterior


def _by_gibbs(
    x: Any,
    y: np.ndarray,
    variance: np.ndarray,
    num_classes: int,
    num_chains: int,
    num_draws: int,
    burn_in: int,
    seed: int,
    say: Callable[[str], None],
) -> np.ndarray:
    gibbs = PolyaGammaGibbs(x, y, variance, num_classes)
    chains = []
    for chain, stream in enumerate(np.random.SeedSequence(seed).spawn(num_chains)):
        prefix = f"Reference posterior, chain {chain + 1} of {num_chains}"
        rng, tell = np.random.default_rng(stream), partial(_tell, say, prefix)
        chains.append(gibbs.chain(rng, num_draws, burn_in, tell))
    return np.stack(chains)


def _by_hmc(
    x: Any,
    y: np.ndarray,
    variance: np.ndarray,
    num_classes: int,
    num_chains: int,
    num_draws: int,
    burn_in: int,
    seed: int,
    say: Callable[[str], None],
) -> np.ndarray:
    draws, _ = hmc(
        logistic_hill(x, y, variance, num_classes),
        num_chains=num_chains,
        num_draws=num_draws,
        burn_in=burn_in,
        seed=seed,
        say=say,
    )
    shape = (x.shape[1],) if num_classes == 2 else (x.shape[1], num_classes)
    return draws.reshape(num_chains, num_draws, *shape).astype(np.float32)


def _tell(say: Callable[[str], None], prefix: str, percent: int) -> None:
    say(f"{prefix}: {percent} %")


def _round(values: Any) -> Any:
    """Round to six significant digits."""
    return np.vectorize(lambda v: float(f"{v:.6g}"), otypes=[float])(values).tolist()


def _fingerprint(x: Any, y: np.ndarray) -> str:
    """Digest the data; equal numbers give an equal digest, dense and sparse differ."""
    parts = [x.indptr, x.indices, x.data] if sparse.issparse(x) else [x]
    digest = hashlib.sha256(repr((sparse.issparse(x), x.shape)).encode())
    for part in (*parts, y):
        whole = np.issubdtype(part.dtype, np.integer)
        digest.update(np.ascontiguousarray(part, "<i8" if whole else "<f8").tobytes())
    return digest.hexdigest()


def _load(path: Path | None, key: str) -> np.ndarray | None:
    """Read draws back; anything that is not what was stored under this key counts as absent."""
    if path is None or not path.is_file():
        return None
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return stored["draws"] if str(stored["key"]) == key else None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _store(path: Path | None, key: str, draws: np.ndarray, settings: dict[str, Any]) -> None:
    """Write draws where nobody can see half of them."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomically(path) as draft, draft.open("wb") as stream:
        np.savez(stream, draws=draws, key=np.array(key), settings=np.array(json.dumps(settings)))
