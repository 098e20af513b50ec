"""Reference posteriors agree with quadrature and closed forms within their Monte Carlo error."""

import json

import numpy as np
import pytest
from scipy import sparse, stats

from isotherm.references import logistic, polya_gamma
from isotherm.references.conjugate import linear_posterior, linear_posterior_half_cauchy
from isotherm.references.logistic import ReferencePosterior, logistic_posterior
from marks import slow

pytest.importorskip("polyagamma", reason="needs the extra `reference`")

LIMIT = 4.0
"""In standard errors. With normal errors one of the two dozen comparisons below would fail on
correct code for 1 of 600 new seeds; seeds are fixed."""


def binary_data(rng, rows=40):
    x = rng.normal(size=(rows, 1)) + 0.5
    return x, (rng.random(rows) < 1 / (1 + np.exp(-1.5 * x[:, 0]))).astype(int)


def grid_moments(log_density, axes):
    """Mean and standard deviation of each coordinate of a density on a grid, by summation."""
    mesh = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    weight = np.exp(log_density(mesh) - log_density(mesh).max())
    weight /= weight.sum()
    mean = weight @ mesh
    return mean, np.sqrt(weight @ (mesh - mean) ** 2)


def quadrature(x, y, variance):
    def log_density(theta):
        sign = 2 * y - 1
        z = sign * (theta @ x.T)
        return -np.logaddexp(0, -z).sum(1) - 0.5 * (theta**2).sum(1) / variance

    return grid_moments(log_density, [np.linspace(-15, 15, 20_001)])


def largest_error(posterior, mean, sd):
    """The largest error, in Monte Carlo standard errors."""
    error = (posterior.mean - mean) / posterior.mcse_mean, (posterior.sd - sd) / posterior.mcse_sd
    return np.max(np.abs(error))


METHODS = pytest.mark.parametrize("method", list(logistic.METHODS))
POLYA_GAMMA = pytest.mark.parametrize("method", ["polya-gamma", slow("hmc")])
"""The quick method; the other one has quick tests with one weight."""


@METHODS
@pytest.mark.parametrize("variance", [0.5, slow(10.0)])
@pytest.mark.parametrize("kind", [np.asarray, slow(sparse.csr_array)], ids=["dense", "sparse"])
def test_one_weight_agrees_with_quadrature(kind, variance, method):
    x, y = binary_data(np.random.default_rng(1))
    settings = {"num_draws": 2000, "burn_in": 50, "method": method}
    posterior = logistic_posterior(kind(x), y, variance, **settings)
    assert posterior.converged and posterior.draws.shape == (4, 2000, 1)
    assert largest_error(posterior, *quadrature(x, y, variance)) < LIMIT


@POLYA_GAMMA
def test_a_wrong_prior_is_detected(method):
    """Gibbs, over 20 seeds: 6.4 to 10 standard errors with the wrong prior, 0.3 to 2.3 without."""
    x, y = binary_data(np.random.default_rng(1), rows=12)
    posterior = logistic_posterior(x, y, 7.0, num_draws=3000, burn_in=50, method=method)
    assert largest_error(posterior, *quadrature(x, y, 7.0)) < LIMIT
    assert largest_error(posterior, *quadrature(x, y, 10.0)) > LIMIT


@POLYA_GAMMA
def test_three_classes_agree_with_quadrature(method):
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(25, 1)), rng.integers(0, 3, size=25)
    y[x[:, 0] > 0.8] = 2

    def log_density(theta):
        z = theta[:, None, :] * x
        picked = np.take_along_axis(z, np.broadcast_to(y[:, None], (len(theta), 25, 1)), 2)[..., 0]
        return (picked - np.logaddexp.reduce(z, axis=2)).sum(1) - 0.5 * (theta**2).sum(1) / 2.0

    posterior = logistic_posterior(
        x, y, 2.0, num_classes=3, num_draws=1500, burn_in=50, method=method
    )
    assert posterior.converged and posterior.draws.shape == (4, 1500, 1, 3)
    mean, sd = grid_moments(log_density, [np.linspace(-5.5, 5.5, 31)] * 3)
    assert largest_error(posterior, mean[None], sd[None]) < LIMIT


@pytest.mark.slow
@METHODS
def test_correlated_weights_agree_with_quadrature_dense_and_sparse(method):
    """A constant column, a column of zeros in half of the rows, duplicate entries, two priors."""
    rng = np.random.default_rng(3)
    x = np.stack([np.ones(30), rng.integers(0, 2, size=30) * 2.0], axis=1)
    y = rng.integers(0, 2, size=30)
    row, column = np.nonzero(x)
    halves = np.concatenate([x[row, column] / 2] * 2)
    twice = sparse.coo_array((halves, (np.tile(row, 2), np.tile(column, 2))), shape=x.shape)

    def log_density(theta):
        z = (2 * y - 1) * (theta @ x.T)
        return -np.logaddexp(0, -z).sum(1) - 0.5 * theta**2 @ [1 / 5.0, 1 / 0.2]

    mean, sd = grid_moments(log_density, [np.linspace(-4, 4, 401)] * 2)
    for features in (x, twice):
        settings = {"num_draws": 2000, "burn_in": 50, "method": method}
        posterior = logistic_posterior(features, y, [5.0, 0.2], **settings)
        assert largest_error(posterior, mean, sd) < LIMIT


@pytest.mark.parametrize("z", [1e-3, 3.0, 49.0, 51.0, 170.0, 180.0, 1e3, 1e6])
def test_polya_gamma_moments(z):
    """Published mean and variance; beyond 177 the package `polyagamma` alone is far off."""
    tilt = np.full((2, 10_000), z) * [[1], [-1]]
    tilt[:, ::2] = 1.0  # small and large values in one array
    draws = polya_gamma.polya_gamma(np.random.default_rng(8), tilt)[:, 1::2].ravel()
    mean = np.tanh(z / 2) / (2 * z)
    variance = 1 / 24 if z < 0.1 else (np.tanh(z / 2) - z / 2 * sech(z / 2) ** 2) / (2 * z**3)
    assert abs(draws.mean() - mean) < LIMIT * np.sqrt(variance / draws.size)
    assert draws.var() == pytest.approx(variance, rel=0.1)


def sech(x):
    return 2 * np.exp(-x) / (1 + np.exp(-2 * x))


@pytest.mark.parametrize("limit", [0, 2**25], ids=["product", "pairs"])
def test_weighted_gram(limit, monkeypatch):
    monkeypatch.setattr(polya_gamma, "_MAX_PAIRS", limit)
    rng = np.random.default_rng(4)
    x = sparse.random_array((50, 7), density=0.4, format="csr", rng=rng)
    omega, dense = rng.random(50), x.toarray()
    expected = dense.T @ (omega[:, None] * dense)
    np.testing.assert_allclose(np.tril(polya_gamma.weighted_gram(x)(omega)), np.tril(expected))
    np.testing.assert_allclose(polya_gamma.weighted_gram(dense)(omega), expected)


def test_monte_carlo_errors_of_independent_draws():
    """They are sd/√n and sd/√(2n) for normal draws, up to a few percent."""
    draws = np.random.default_rng(5).normal(3.0, 2.0, size=(4, 5000, 6))
    posterior = ReferencePosterior(draws.astype(np.float32), {}, "")
    n = 20_000
    np.testing.assert_allclose(posterior.mcse_mean, 2 / n**0.5, rtol=0.1)
    np.testing.assert_allclose(posterior.mcse_sd, 2 / (2 * n) ** 0.5, rtol=0.1)


def test_chains_that_disagree_cause_a_warning():
    x, y = binary_data(np.random.default_rng(1))
    with pytest.warns(RuntimeWarning, match="R-hat"):
        posterior = logistic_posterior(x, y, 1.0, num_draws=8, burn_in=0)
    assert not posterior.converged


@pytest.fixture
def counted(monkeypatch):
    """Count how often the Gibbs sampler is built."""
    built = []
    original = logistic.PolyaGammaGibbs.__init__

    def init(self, *args):
        built.append(1)
        original(self, *args)

    monkeypatch.setattr(logistic.PolyaGammaGibbs, "__init__", init)
    return built


def test_the_cache_is_used_for_equal_arguments_only(tmp_path, counted):
    x, y = binary_data(np.random.default_rng(1))
    settings = {"num_draws": 400, "burn_in": 20, "cache_dir": tmp_path / "deep" / "er"}
    first = logistic_posterior(x, y, 1.0, **settings)
    again = logistic_posterior(x.astype(np.float64), list(y), 1, **settings)
    assert len(counted) == 1 and np.array_equal(first.draws, again.draws)
    assert first.summary() == again.summary()

    for other in ({"seed": 1}, {"burn_in": 21}):
        assert logistic_posterior(x, y, 1.0, **{**settings, **other}).key != first.key
    assert logistic_posterior(x, y, 1.1, **settings).key != first.key
    assert logistic_posterior(x + 1e-9, y, 1.0, **settings).key != first.key
    assert logistic_posterior(x, 1 - y, 1.0, **settings).key != first.key
    assert len(counted) == 6
    assert len(list(settings["cache_dir"].iterdir())) == 6


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "swapped"])
def test_a_damaged_cache_is_sampled_again(tmp_path, counted, damage):
    x, y = binary_data(np.random.default_rng(1))
    settings = {"num_draws": 400, "burn_in": 20, "cache_dir": tmp_path}
    first = logistic_posterior(x, y, 1.0, **settings)
    (path,) = tmp_path.iterdir()
    if damage == "swapped":
        np.savez(path, draws=first.draws, key=np.array("another"))
    else:
        path.write_bytes({"cut": path.read_bytes()[:500], "empty": b"", "text": b"hi"}[damage])
    again = logistic_posterior(x, y, 1.0, **settings)
    assert len(counted) == 2 and np.array_equal(first.draws, again.draws)
    logistic_posterior(x, y, 1.0, **settings)
    assert len(counted) == 2  # the damaged file was replaced


def test_the_summary_is_json_with_six_digits_and_progress_is_reported():
    x, y = binary_data(np.random.default_rng(1))
    messages = []
    posterior = logistic_posterior(x, y, 1.0, num_draws=400, burn_in=20, report=messages.append)
    summary = json.loads(json.dumps(posterior.summary()))
    assert summary["mean"] == [float(f"{posterior.mean[0]:.6g}")] and summary["converged"]
    assert summary["settings"]["prior_variance"] == 1.0 and len(summary["key"]) == 64
    assert messages[0] == "Reference posterior, chain 1 of 4: 0 %" and len(messages) == 400


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.array([0, 1, 2])}, "labels 0 to 1"),
        ({"y": np.array([-1, 1, 1])}, "labels 0 to 1"),
        ({"y": np.zeros(2)}, "`y`"),
        ({"x": np.zeros(3)}, "`x` must have shape"),
        ({"x": np.array([[0.0], [np.nan], [1.0]])}, "finite"),
        ({"x": sparse.csr_array([[0.0], [np.inf], [1.0]])}, "finite"),
        ({"prior_variance": 0.0}, "`prior_variance` must be positive"),
        ({"prior_variance": np.nan}, "`prior_variance` must be positive"),
        ({"prior_variance": np.ones(2)}, "`prior_variance` must be a number or one per feature"),
        ({"num_draws": 0}, "`num_draws` must be positive"),
        ({"burn_in": -1}, "`burn_in` must not be negative"),
        ({"num_classes": 1}, "for 1 classes"),
    ],
)
def test_invalid_arguments(change, message):
    arguments = {"x": np.ones((3, 1)), "y": np.array([0, 1, 1]), "prior_variance": 1.0, **change}
    with pytest.raises(ValueError, match=message):
        logistic_posterior(**arguments)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_linear_posterior_is_the_conditional_distribution(kind):
    """Computed from the joint normal distribution of (θ, y) by the textbook formula."""
    rng = np.random.default_rng(6)
    x, y, variance, noise = rng.normal(size=(20, 3)), rng.normal(size=20), 4.0, 0.3
    posterior = linear_posterior(kind(x), y, variance, noise)
    gain = variance * x.T @ np.linalg.inv(variance * x @ x.T + noise * np.eye(20))
    np.testing.assert_allclose(posterior.mean, gain @ y)
    covariance = variance * np.eye(3) - gain @ x * variance
    np.testing.assert_allclose(posterior.covariance, covariance, atol=1e-12)
    np.testing.assert_allclose(posterior.sd, np.sqrt(np.diag(covariance)))


def test_collinear_columns_have_a_posterior():
    x = np.repeat(np.linspace(0, 1, 9)[:, None], 2, axis=1)
    posterior = linear_posterior(x, 2 * x[:, 0], 100.0, 0.01)
    np.testing.assert_allclose(posterior.mean, 1.0, rtol=1e-3)
    np.testing.assert_allclose(posterior.sd, np.sqrt(50), rtol=1e-2)


@pytest.mark.parametrize(("rows", "low", "high"), [(12, -9, 9), slow(2, -30, 30)])
def test_half_cauchy_noise_agrees_with_quadrature_over_the_noise(rows, low, high):
    """Two rows are fewer than weights and hardly inform about the noise."""
    rng = np.random.default_rng(7)
    x, v, scale = rng.normal(size=(rows, 3)), np.array([3.0, 1.0, 0.5]), 0.7
    y = x @ [1.0, -1.0, 0.5] + 0.3 * rng.normal(size=rows)
    noise = np.exp(np.linspace(low, high, 6001))
    logs = [
        stats.multivariate_normal.logpdf(y, cov=x * v @ x.T + s * np.eye(rows))
        + stats.halfcauchy.logpdf(s**0.5, scale=scale)
        + 0.5 * np.log(s)  # the grid is uniform in log σ²
        for s in noise
    ]
    weight = np.exp(logs - np.max(logs))
    weight /= weight.sum()
    kernels = [np.linalg.solve(x * v @ x.T + s * np.eye(rows), x * v) for s in noise]
    means = np.array([k.T @ y for k in kernels])
    variances = np.array([v - np.sum(x * v * k, axis=0) for k in kernels])
    posterior = linear_posterior_half_cauchy(x, y, v, scale)
    mean = weight @ means
    np.testing.assert_allclose(posterior.mean, mean, rtol=1e-4)
    np.testing.assert_allclose(
        posterior.sd, np.sqrt(weight @ (variances + (means - mean) ** 2)), rtol=1e-4
    )
    np.testing.assert_allclose(posterior.noise_mean, weight @ noise, rtol=1e-3)


def test_the_noise_variance_must_be_positive():
    x, y = np.ones((2, 1)), np.ones(2)
    with pytest.raises(ValueError, match="`noise_variance` must be positive"):
        linear_posterior(x, y, 1.0, 0.0)
