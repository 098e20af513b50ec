"""The a9a experiment: vectorized sweeps are the same as single runs, and claims can fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isotherm
from isotherm import random
from isotherm.data.registry import locate
from isotherm.diagnostics.predictions import posterior_predictive
from isotherm.paper.experiments import logistic_a9a, runner
from isotherm.paper.experiments.logistic_a9a import posterior, sweep, tables
from isotherm.paper.experiments.logistic_a9a.problem import Problem, scores
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.paper.report.document import FIELDS

PROTOCOL = sweep.Protocol(batch_size=10, num_steps=120, burn_in=20, thin=10)


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)).astype(np.float32)
    y = (rng.random(300) < 1 / (1 + np.exp(-x @ [2, -1, 0.5, 0]))).astype(np.int32)
    x, y = jnp.asarray(x), jnp.asarray(y)
    return Problem((x[:200], y[:200]), (x[200:], y[200:]), prior_variance=10.0)


@pytest.mark.slow
def test_a_sweep_is_the_same_as_single_runs(key, problem):
    settings = np.array([[0.01, 1.0], [0.02, 10.0], [3.0, 1.0]])
    accuracy = sweep.accuracy(problem, PROTOCOL, "mSGNHT-S", settings, 2, key)
    assert accuracy.shape == (3, 2)

    @jax.jit
    def run(key, h, d):
        sampler = isotherm.msgnht(problem.grad_fn, h, d)
        return isotherm.run_chain(
            key, sampler, problem.position, problem.batches(10), num_draws=10, thin=10, burn_in=20
        )[0]

    for (h, d), by_seed in zip(settings[:2], accuracy[:2], strict=True):
        for seed in range(2):
            draws = run(random.fold(key, seed), h, d)
            mean = posterior_predictive(
                lambda w, x: jax.nn.sigmoid(x @ w), draws[None], problem.test[0]
            )
            assert by_seed[seed] == pytest.approx(np.mean((mean > 0.5) == (problem.test[1] == 1)))


def test_a_diverged_chain_has_accuracy_nan(problem):
    draws = jnp.zeros((2, 3, 4)).at[1, 2, 0].set(jnp.nan)
    accuracy, _ = scores(draws, problem.test)
    assert np.isnan(accuracy[1]) and np.isfinite(accuracy[0])
    settings, seeds = np.array([[0.3, 1.0], [0.2, 1.0]]), np.array([[0.9, np.nan], [0.8, 0.7]])
    assert logistic_a9a._best(settings, seeds).tolist() == [0.2, 1.0, 0.75]


@pytest.mark.slow
def test_learning_curves_end_at_the_final_accuracy(key, problem):
    settings = np.array([[0.01, 1.0]])
    error, fit = sweep.curves(problem, PROTOCOL, "SGHMC-S", settings, 3, key)
    accuracy = sweep.accuracy(problem, PROTOCOL, "SGHMC-S", settings, 3, key)
    assert error.shape == fit.shape == (1, 3, 12) and np.all(fit < 0)
    np.testing.assert_allclose(1 - error[..., -1], accuracy, atol=1e-6)


@pytest.mark.parametrize("case", posterior.CASES, ids=lambda case: "-".join(map(str, case)))
def test_every_case_has_a_sampler(problem, case):
    """The sampler can be built and initialized; it is not run."""
    start = posterior.Settings(
        problem.position,
        isotherm.coordinates.Dense(jnp.eye(4), problem.position),
        0.1,
        1.0,
        10.0,
        4.0,
    )
    case_runner = posterior.CaseRunner(problem, np.zeros((2, 4, 4)), 1000, 2, jax.random.key(0))
    sampler = case_runner.sampler(case, start, 0.05)
    state = sampler.init(start.position, jax.random.key(1))
    assert state.position.shape == (4,)


@pytest.mark.slow
def test_cases_are_resumed_and_importance_batches_have_the_same_posterior(tmp_path, problem):
    """Rows drawn by importance, with balanced gradients, have the sds of the plain minibatch."""
    cases = (
        posterior.Case(batch_size=20),
        posterior.Case("mSGNHT-S", posterior.WHITENED, 20, 1, "importance", "balanced"),
    )
    case_runner = posterior.CaseRunner(problem, np.zeros((2, 4, 4)), 10_000, 4, jax.random.key(0))
    checkpoints, messages = Checkpoints(tmp_path), []
    plain, balanced = posterior.run_cases(case_runner, cases, checkpoints, messages.append)
    np.testing.assert_allclose(balanced.sd, plain.sd, rtol=0.12)
    np.testing.assert_allclose(balanced.mean, plain.mean, atol=0.2 * plain.sd.max())
    assert balanced.axis_rhat.max() < 1.1 and len(messages) == 2
    case_runner.run = lambda case: pytest.fail("a saved case is run again")
    again = posterior.run_cases(case_runner, cases, checkpoints, messages.append)
    np.testing.assert_array_equal(again[1].sd, balanced.sd)
    assert again[1].step_size == balanced.step_size


def test_largest_step_size_that_works():
    good = np.array([False, True, True, False, True])
    assert tables.largest([1, 2, 3, 4, 5], good) == 3
    assert np.isnan(tables.largest([1, 2], np.array([False, False])))
    seeds = np.array([[0.85, 0.85], [0.85, np.nan], [0.85, 0.8]])
    assert tables.works(seeds).tolist() == [True, False, False]


def result(**changes):
    """Return a configuration and a result for which all claims hold."""
    config = logistic_a9a.Config(posterior_cases=4)
    fine, steps = len(config.fine_step_sizes), len(config.step_sizes)
    arrays = {f"accuracy {name}": np.full(10, 0.85) for name in tables.PAPER}
    arrays["accuracy mSGNHT-S"] = np.linspace(0.8501, 0.8503, 10)
    arrays["over h mSGNHT-S"] = np.full((steps, 10), 0.85)
    arrays["fine mSGNHT-S"] = np.full((fine, 3), 0.85)
    arrays["fine mSGNHT-E"] = np.where(
        np.arange(fine)[:, None] < 5, 0.85, np.full((fine, 3), np.nan)
    )
    arrays["noise variance"] = np.full(124, 1e7)
    arrays["lifetimes"] = np.tile(np.asarray(config.lifetimes)[:, None], (1, 10))
    arrays["reference sd"], arrays["reference mean"] = np.ones(124), np.zeros(124)
    arrays["posterior sd"] = np.array([1.01, 1.01, 1.01, 0.4])[:, None] * np.ones(124)
    arrays["posterior mean"] = np.full((4, 124), 0.02)
    arrays["posterior rhat"] = np.array([1.0, 1.0, 1.0, 3.0])[:, None] * np.ones(124)
    return config, {**arrays, **changes}


def test_claims_hold_when_they_should():
    assert all(claim.holds for claim in logistic_a9a.check(*result()))


@pytest.mark.parametrize(
    ("change", "which"),
    [
        ({"over h mSGNHT-S": np.full((6, 10), 0.846)}, 0),
        ({"over h mSGNHT-S": np.full((6, 10), np.nan)}, 0),
        ({"accuracy mSGNHT-S": np.full(10, 0.85)}, 1),
        ({"fine mSGNHT-E": np.full((41, 3), 0.85)}, 2),
        ({"lifetimes": np.full((6, 10), np.inf)}, 3),
        ({"posterior sd": np.full((4, 124), 1.03)}, 4),
        ({"posterior mean": np.full((4, 124), 0.06)}, 5),
        ({"posterior rhat": np.ones((4, 124))}, 6),
    ],
)
def test_claims_fail_when_they_should(change, which):
    assert not logistic_a9a.check(*result(**change))[which].holds


def balanced_result(error=0.01, unbalanced=-0.2, far=-0.3, partly=0.01, tamed=-0.1):
    """Return a configuration and a result for which the claims on balanced minibatches hold."""
    config, arrays = logistic_a9a.Config(), {}
    sd = np.ones((len(posterior.CASES), 124))
    axis_sd, step_size = sd.copy(), np.ones(len(sd))
    for i, case in enumerate(posterior.CASES):
        sd[i] += unbalanced if case.settings == "balanced" else error
        axis_sd[i] += partly
        if case.step == 16:
            sd[i] = 1 + (tamed if case.policy == "importance" else far)
    arrays["posterior sd"], arrays["posterior axis_sd"] = sd, axis_sd
    arrays["posterior mean"], arrays["posterior step_size"] = np.zeros_like(sd), step_size
    arrays["posterior axis_rhat"] = np.ones_like(sd)
    arrays["posterior axis_rhat"][:, 100:] = 3.0  # axes that do not mix are not judged
    arrays["posterior axis_sd"][:, 100:] = 9.0
    for name in ("sd", "axis_sd"):
        arrays[f"reference {name}"] = np.ones(124)
    arrays["reference mean"] = np.zeros(124)
    return config, arrays


def test_claims_on_balanced_minibatches():
    claims = tables._balanced_claims(*balanced_result())
    assert len(claims) == 8 and all(claim.holds for claim in claims)


@pytest.mark.parametrize(
    ("change", "which"),
    [
        ({"error": 0.03}, 0),
        ({"unbalanced": -0.01}, 0),
        ({"partly": 0.04}, 1),
        ({"far": 0.01}, 2),
        ({"tamed": -0.29}, 3),
    ],
)
def test_claims_on_balanced_minibatches_fail_when_they_should(change, which):
    claims = tables._balanced_claims(*balanced_result(**change))
    assert not claims[which].holds and not claims[which + 4].holds


def test_bad_settings_raise():
    with pytest.raises(ValueError, match="validation_share"):
        logistic_a9a.Config(validation_share=1.0)
    with pytest.raises(ValueError, match="equally long"):
        logistic_a9a.Config(curve_step_sizes=(0.1,))
    with pytest.raises(ValueError, match="samplers"):
        logistic_a9a.Config(samplers=("mSGNHT-S", "mSGNHT-E", "HMC"))


@pytest.mark.slow
def test_claims_hold_in_the_smoke_run(tmp_path):
    try:
        locate("a9a")
    except (ValueError, OSError) as error:
        pytest.skip(f"a9a is missing: {error}")
    document = runner.execute("logistic-a9a", smoke=True, out=tmp_path)
    assert set(document) == FIELDS
    assert all(claim["holds"] for claim in document["claims"]), document["claims"]
    assert len({row["table"] for row in document["rows"]}) == 5
    assert len(document["figures"]) == 5
