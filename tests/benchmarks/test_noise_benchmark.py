"""The noise benchmark: exact targets, rows that sum to them, noise as named, scores."""

import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def modules(monkeypatch):
    """Return the modules `noise_problems` and `noise_report` of the benchmarks."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import noise_problems
    import noise_report

    yield noise_problems, noise_report
    for name in ("noise_problems", "noise_report", "reporting"):
        sys.modules.pop(name, None)


def noise_covariance(problems, target, rows, x, step=1e-5):
    """Return the covariance of the gradient of a batch at a position, by finite differences."""
    arguments = (np, target, target.root, rows.axes)

    def values(shift):
        return problems.log_likelihood(*arguments, x + shift, rows.coefficients)

    shifts = step * np.eye(problems.DIM)
    slopes = np.stack([(values(s) - values(-s)) / (2 * step) for s in shifts], 1)
    centered = slopes - slopes.mean(0)
    return problems.NUM_ROWS * centered.T @ centered / problems.BATCH_SIZE


def test_rows_sum_to_the_log_density(modules):
    problems, _ = modules
    rng = np.random.default_rng(0)
    for make in problems.TARGETS.values():
        target = make()
        x = rng.normal(size=(7, problems.DIM))
        for noise in problems.NOISES.values():
            rows = noise(target)
            stacked = np.broadcast_to(rows.coefficients, (7, *rows.coefficients.shape))
            found = problems.log_likelihood(np, target, target.root, rows.axes, x, stacked)
            np.testing.assert_allclose(found.sum(-1), target.shape(np, x @ target.root), rtol=1e-9)
            assert np.ptp(found, axis=-1).min() > 0.01  # and they differ


def test_noise_is_as_named(modules):
    problems, _ = modules
    target = problems.gaussian()
    found = {}
    for name, make in problems.NOISES.items():
        rows = make(target)
        found[name] = [
            noise_covariance(problems, target, rows, x)
            for x in np.random.default_rng(1).normal(size=(2, problems.DIM))
        ]
    variance = problems.NOISE_SD**2
    identity = np.eye(problems.DIM)
    for name in ("isotropic", "anisotropic", "correlated"):
        np.testing.assert_allclose(*found[name], rtol=1e-5, atol=1e-5)  # the same everywhere
        assert np.trace(found[name][0]) == pytest.approx(problems.DIM * variance)
    np.testing.assert_allclose(found["isotropic"][0], variance * identity, atol=1e-4)
    anisotropic = np.diag(found["anisotropic"][0])
    np.testing.assert_allclose(found["anisotropic"][0], np.diag(anisotropic), atol=1e-4)
    assert anisotropic[-1] / anisotropic[0] == pytest.approx(100)
    expected = variance * (0.1 * identity + 0.9)
    np.testing.assert_allclose(found["correlated"][0], expected, atol=1e-4)
    assert np.diag(found["heavy-tailed"][0]) == pytest.approx(variance, rel=1e-4)
    x = np.random.default_rng(1).normal(size=(2, problems.DIM))[0]
    growing = variance * x**2 / np.diag(target.covariance)
    np.testing.assert_allclose(np.diag(found["position-dependent"][0]), growing, rtol=1e-4)


def test_heavy_tailed_rows_have_heavy_tails(modules):
    problems, _ = modules
    rows = problems.heavy_tailed(problems.gaussian()).coefficients
    sizes = np.linalg.norm(rows, axis=1)
    assert sizes.max() > 5 * np.sqrt(np.mean(sizes**2))
    plain = np.linalg.norm(problems.isotropic(problems.gaussian()).coefficients, axis=1)
    assert plain.max() == pytest.approx(plain.min())


@pytest.mark.parametrize("name", ["Gaussian", "banana", "mixture"])
def test_moments_of_targets(modules, name):
    """Importance sampling from a wide Gaussian along the axes agrees with the stated moments."""
    problems, _ = modules
    target = problems.TARGETS[name]()
    z = np.random.default_rng(3).normal(size=(400_000, problems.DIM))
    axes = slice(0, 2)  # one pair or the axis of the mixture; other axes at zero factorise
    u = np.zeros_like(z)
    u[:, axes] = 2.5 * z[:, axes]
    weights = np.exp(target.shape(np, u) + (z[:, axes] ** 2).sum(1) / 2)
    weights /= weights.sum()
    error = 5 / np.sqrt(1 / np.sum(weights**2))
    np.testing.assert_allclose(weights @ u[:, axes], 0, atol=2.5 * error)
    np.testing.assert_allclose(weights @ u[:, axes] ** 2, target.variance[axes], rtol=3 * error)
    positions = u @ target.inverse_root
    np.testing.assert_allclose(
        target.standardize(positions)[:, axes], u[:, axes] / np.sqrt(target.variance[axes])
    )
    step = 1e-4 * np.eye(problems.DIM)  # the mode is one
    beside = target.shape(np, (target.mode + step) @ target.root)
    assert (beside < target.shape(np, target.mode @ target.root)).all()


def test_scores_of_known_errors(modules):
    _, report = modules
    rng = np.random.default_rng(4)
    exact = rng.normal(size=(64, 2000, 10))
    row = report.scores(exact)
    assert row[report.VARIANCE] < 4 * row["its standard error"] < 3
    wide = report.scores(exact * np.sqrt([1.2, 0.8] * 5))
    assert wide[report.VARIANCE] == pytest.approx(20, abs=4 * wide["its standard error"])
    assert abs(wide["error of variances, mean %"]) < 1  # they cancel in the mean
    shifted = report.scores(exact + 0.5)
    assert shifted[report.MEAN] == pytest.approx(0.5, abs=0.01)
    exact[3, 7, 1] = np.nan
    exact[5, 0, 0] = 1e9
    broken = report.scores(exact)
    assert broken["diverged"] == 2 and report.VARIANCE not in broken
    assert report.text(broken, report.VARIANCE) == "2/64 diverged"


def test_standard_error_of_the_size_is_right(modules):
    _, report = modules
    rng = np.random.default_rng(5)
    for bias in (0.0, 1.0):
        errors = bias + 0.5 * rng.normal(size=(300, 24, 10))
        sizes = [report.size(e) for e in errors]
        spreads = [report.spread(e) for e in errors]
        squares = np.square(sizes) - bias**2
        if bias:
            assert np.mean(sizes) == pytest.approx(bias, abs=0.01)
            assert np.median(spreads) == pytest.approx(np.std(sizes), rel=0.2)
        else:
            assert abs(np.mean(np.asarray(sizes) < 2 * np.median(spreads)) - 1) < 0.05
            assert squares.mean() < np.median(spreads) ** 2


def test_pilot_chooses_the_smallest_error_without_divergence(modules):
    _, report = modules
    errors = np.full((4, 3, 2), 0.5)
    errors[1] = -0.1
    errors[2] = 0.0
    errors[2, 1] = np.nan
    assert report.best(errors) == 1
    assert report.best(errors[2:3]) is None


def test_table_has_a_row_per_problem_and_summaries(modules, tmp_path, monkeypatch):
    _, report = modules
    points = [
        {"target": "Gaussian", "noise": noise, "method": method, "diverged": 0, "chains": 4}
        | {report.VARIANCE: error, "its standard error": 0.5, "CPU µs per gradient": error}
        | {report.MEAN: error / 100, "its standard error in sds": 0.01}
        for noise, method, error in (("a", "x", 1.0), ("b", "x", 3.0), ("a", "y", 20.0))
    ]
    broken = {"target": "Gaussian", "noise": "b", "method": "y", "diverged": 1, "chains": 4}
    points.append(broken | {"CPU µs per gradient": 2.0})
    first, second, median, largest = report.table(points, report.VARIANCE)
    assert (first["x"], second["x"], first["y"]) == ("1.0 ± 0.5", "3.0 ± 0.5", "20.0 ± 0.5")
    assert second["y"] == "1/4 diverged"
    assert (median["x"], largest["x"], largest["y"]) == ("2.0", "3.0", "inf")
    assert [row["CPU µs per gradient"] for row in report.prices(points)] == [2.0, 11.0]
    drawn = []
    monkeypatch.setattr(report, "save", lambda figure, path: drawn.append(figure))
    report.plot(points, tmp_path / "noise.png")
    labels = [text.get_text() for text in drawn[0].axes[0].texts]
    report.plt.close(drawn[0])
    assert labels == ["1.0", "20", "3.0", "div."]
