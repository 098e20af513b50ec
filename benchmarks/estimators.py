"""Posterior means and standard deviations of the estimators with default settings, and exact ones.

Real tables, each also with columns that are repeated, constant, zero, collinear and in extreme
units. The exact posterior is computed by quadrature for linear regression, by Pólya-Gamma Gibbs
(`docs/results/a9a_reference.json`) for a9a with the paper's prior, and by Hamiltonian Monte Carlo
with a Metropolis test in double precision for the rest. That of the digits takes a quarter of an
hour and is stored in `docs/results/digits_reference.json` (`--reference` computes it again). Writes
`docs/results/estimators.json`; if only some tables are named, the rows of the others are kept.
"""

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from reporting import RESULTS, machine, write_document
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

from isotherm import BayesianLinearRegression, BayesianLogisticRegression
from isotherm.data.libsvm import load_a9a
from isotherm.diagnostics.convergence import ess
from isotherm.estimators.design_svd import design_matrix
from isotherm.models.logistic_mode import logistic_log_density
from isotherm.references.conjugate import linear_posterior_half_cauchy
from isotherm.references.hmc import LogDensityTarget, hmc
from isotherm.references.logistic import ReferencePosterior

PRIOR_VARIANCE = 6.25
PACKAGES = ("isotherm", "jax", "jaxlib", "numpy", "scikit-learn")
LIMITS = {"sd_median": 0.02, "sd_90": 0.1, "mean_90": 0.05}
HMC = {
    "breast cancer": {"num_chains": 32, "num_draws": 1000, "step_size": 0.15, "num_leapfrog": 12},
    "digits": {"num_chains": 16, "num_draws": 500, "step_size": 0.05, "num_leapfrog": 32},
    "a9a": {"num_chains": 32, "num_draws": 300, "step_size": 0.25, "num_leapfrog": 7},
}
"""Settings of the reference, in the coordinates of the estimator; they affect only its speed."""
STORED = RESULTS / "digits_reference.json"


class Exact(NamedTuple):
    """A posterior of standardised coefficients, intercept first: (columns, 1 + features)."""

    mean: np.ndarray
    sd: np.ndarray
    mcse_mean: float = 0.0
    mcse_sd: float = 0.0
    """Monte Carlo error of the reference: the largest over coefficients, in sds."""


class Case(NamedTuple):
    """A table to fit."""

    name: str
    trouble: bool
    x: Any
    y: np.ndarray
    settings: dict[str, Any]

    @property
    def label(self) -> str:
        """Name in the results."""
        raw = ", raw prior N(0, 10)" if self.settings else ""
        return self.name + (" with trouble" if self.trouble else "") + raw

    @property
    def units(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and unit of each feature, as the prior sees them."""
        if self.settings:
            return np.zeros(self.x.shape[1]), np.ones(self.x.shape[1])
        return self.x.mean(0), np.array([unit(column) for column in self.x.T])

    def standardised(self, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """Return the coefficients of standardised features, (…, columns, 1 + features)."""
        mean, units = self.units
        return np.concatenate([(intercept + coef @ mean)[..., None], coef * units], axis=-1)


def unit(column: np.ndarray) -> float:
    """Return the unit of a feature as documented, without using code of the package."""
    values, others = np.unique(column), column[column != 0]
    if len(values) <= 2:
        return float(np.ptp(values)) or 1.0
    return float(np.sqrt(np.mean(others**2)) if 2 * len(others) < len(column) else column.std())


def with_trouble(x: np.ndarray) -> np.ndarray:
    """Append columns that are repeated, constant, zero, in extreme units, and collinear."""
    zeros, (a, b, c, d) = np.zeros(len(x)), x.T[[2, 3, 4, 5]]
    return np.column_stack([x, a, zeros + 3, zeros, 1e6 * b, 1e-6 * c, a + d])


def cases(names: list[str]) -> Iterator[Case]:
    """Yield the tables, each as it is and with extra columns."""
    loaders = {
        "breast cancer": load_breast_cancer,
        "diabetes": load_diabetes,
        "digits": load_digits,
    }
    for name in names:
        if name == "a9a":
            rows, y = load_a9a().train
            yield Case(name, False, rows, y, {"prior_variance": 10.0, "standardize": False})
            x = rows.toarray().astype(np.float64)
        else:
            x, y = loaders[name](return_X_y=True)
        yield Case(name, False, x, y, {})
        yield Case(name, True, with_trouble(x), y, {})


def exact(case: Case, model: Any, remake: bool) -> Exact:
    """Compute the exact posterior, or load it."""
    if case.settings:
        stored = json.loads((RESULTS / "a9a_reference.json").read_text())
        mean, sd = (np.roll(stored[name], 1)[None] for name in ("mean", "sd"))
        return Exact(mean, sd, stored["mcse_mean_over_sd_max"], stored["mcse_sd_over_sd_max"])
    if case.name == "diabetes":
        return by_quadrature(case)
    if case.name != "digits":
        return by_hmc(case, model)
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    if remake or case.label not in stored:
        result = by_hmc(case, model)
        stored[case.label] = {
            "what": "Posterior of standardised coefficients: rows are classes, intercept first",
            "settings": HMC["digits"],
            **{
                n: np.vectorize(lambda v: float(f"{v:.6g}"))(v).tolist()
                for n, v in result._asdict().items()
            },
        }
        STORED.write_text(json.dumps(stored) + "\n")
    result = stored[case.label]
    return Exact(
        np.array(result["mean"]), np.array(result["sd"]), result["mcse_mean"], result["mcse_sd"]
    )


def by_quadrature(case: Case) -> Exact:
    """Compute the posterior of a linear regression by quadrature."""
    mean, units = case.units
    design = np.column_stack([np.ones(len(case.y)), (case.x - mean) / units])
    target = (case.y - case.y.mean()) / case.y.std()
    result = linear_posterior_half_cauchy(design, target, PRIOR_VARIANCE)
    return Exact(result.mean[None], result.sd[None])


def by_hmc(case: Case, model: Any) -> Exact:
    """Sample the posterior of a logistic regression by HMC with a Metropolis test."""
    target = model._target
    loadings = target.svd.loadings * target.scale
    design = design_matrix(case.x, loadings)
    density = logistic_log_density(design, case.y, 1 / target.scale**2, len(model.classes_))
    inverse, center = np.linalg.inv(target.surrogate.basis), target.surrogate.center
    posterior = LogDensityTarget(center.ravel(), inverse.T @ inverse, density.value_and_gradient)
    draws, taken = hmc(posterior, burn_in=100, seed=0, report=print, **HMC[case.name])
    points = draws.reshape(*draws.shape[:2], *center.shape)
    both = np.swapaxes(points, 2, 3) @ loadings.T
    draws = case.standardised(both[..., 1:], both[..., 0])
    result = ReferencePosterior(draws.astype(np.float32), {}, "")
    print(f"{taken:.0%} accepted, R-hat {np.max(result.rhat):.4f}, ESS {np.min(result.ess):.0f}")
    worst = [float(np.max(e / result.sd)) for e in (result.mcse_mean, result.mcse_sd)]
    return Exact(result.mean, result.sd, *worst)


def measure(case: Case, remake: bool) -> dict[str, Any]:
    """Fit twice (the first fit compiles), and compare with the exact posterior."""
    kind = BayesianLinearRegression if case.name == "diabetes" else BayesianLogisticRegression
    seconds = []
    for seed in (1, 0):
        start = time.perf_counter()
        model = kind(random_state=seed, **case.settings).fit(case.x, case.y)
        seconds.append(time.perf_counter() - start)
    coef, intercept = model.draws_["coef"], model.draws_["intercept"]
    if coef.ndim == 3:
        coef, intercept = coef[:, :, None], intercept[:, :, None]
    draws = case.standardised(coef, intercept)
    reference = exact(case, model, remake)
    if case.name == "diabetes":
        draws[..., 0] -= case.y.mean()
        draws /= case.y.std()
    sd = np.abs(draws.std((0, 1)) / reference.sd - 1)
    mean = np.abs(draws.mean((0, 1)) - reference.mean) / reference.sd
    effective = ess(draws)
    row = {"name": case.label, "rows": len(case.y), "coefficients": sd.size}
    for name, values in {"sd": sd, "mean": mean}.items():
        row |= {f"{name}_median": float(np.median(values))}
        row |= {f"{name}_90": float(np.quantile(values, 0.9)), f"{name}_max": float(values.max())}
    row |= {
        "reference_mcse_mean_max": reference.mcse_mean,
        "reference_mcse_sd_max": reference.mcse_sd,
    }
    row |= {"ess_min": float(effective.min()), "ess_median": float(np.median(effective))}
    row |= {"step_size": model._target.step_size, "thin": model._run.thin}
    row |= {"batch_size": model._target.batches.batch_size if case.name != "diabetes" else None}
    row |= {"seconds_first": seconds[0], "seconds": seconds[1]}
    return row | {"holds": all(row[name] <= limit for name, limit in LIMITS.items())}


def table(rows: list[dict[str, Any]]) -> Table:
    """Return a table for printing."""
    names = [
        "sd_median",
        "sd_90",
        "sd_max",
        "mean_median",
        "mean_90",
        "mean_max",
        "ess_min",
        "seconds",
    ]
    result = Table("table", "coefficients", *names, "holds")
    for row in rows:
        numbers = [f"{row[name]:.3g}" for name in names]
        result.add_row(
            row["name"], str(row["coefficients"]), *numbers, "yes" if row["holds"] else "NO"
        )
    return result


def main() -> None:
    """Measure all tables, or those named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    everything = ["diabetes", "breast cancer", "a9a", "digits"]
    parser.add_argument("names", nargs="*", default=everything, help=", ".join(everything))
    parser.add_argument(
        "--reference", action="store_true", help="compute the reference of the digits again"
    )
    options = parser.parse_args()
    where, rows = machine(PACKAGES), []
    path = RESULTS / "estimators.json"
    if options.names != everything and path.exists():  # keep the rows of the others
        rows = json.loads(path.read_text())["rows"]
    for case in cases(options.names):
        row = measure(case, options.reference)
        rows = [each for each in rows if each["name"] != row["name"]] + [row]
        Console(width=160).print(table([row]))
    document = {"machine": where, "limits": LIMITS, "rows": rows}
    write_document(path, document)


if __name__ == "__main__":
    main()
