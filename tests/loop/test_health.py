"""A run that is wrong without diverging warns once; a healthy one does not."""

import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gammaincinv

import isotherm
from isotherm.loop import health

NONE = isotherm.no_batches()


def normal(x, batch):
    return jax.tree.map(jnp.negative, x)


def noisy(sigma):
    """Gradients of a normal density with independent noise of this size."""

    def grad_fn(x, key):
        return jax.tree.map(lambda v: -v + sigma * jax.random.normal(key, v.shape), x)

    return grad_fn, isotherm.generated_batches(lambda key, step_index: key)


def run(key, sampler, batches=NONE, size=64, **changes):
    settings = {"num_draws": 400, "thin": 2, "num_chains": 2, "progress": False}
    return isotherm.sample(key, sampler, jnp.zeros(size), batches, **(settings | changes))


HEATED, NOISE = noisy(np.sqrt(2 / 0.1))
HOT = isotherm.sghmc(HEATED, 0.1)


def test_momenta_that_are_too_hot_are_reported_once_with_their_temperature(key):
    """Fixed friction cannot absorb noise: its temperature is 1 + h σ² / 2γ = 2."""
    with pytest.warns(isotherm.exceptions.HealthWarning) as caught:
        result = run(key, HOT, NOISE, num_draws=2000)
    (only,) = caught
    assert only.filename == __file__
    assert "`position` in chain 0 is too hot" in str(only.message)
    measured = np.median(result.stats["kinetic_temperature"])
    assert measured == pytest.approx(2, abs=0.2)
    reported = float(str(only.message).split("kinetic temperature is ")[1].split()[0])
    assert reported == pytest.approx(2, abs=0.3)


@pytest.mark.parametrize(("integrator", "word"), [("ABOBA", "hot"), ("euler", "cold")])
def test_gradient_noise_is_read_off_the_thermostat(key, integrator, word):
    """Momenta are at 1, positions are not: only the damping shows it."""
    sigma = {"ABOBA": 22.0, "euler": 8.0}[integrator]
    grad_fn, batches = noisy(sigma)
    sampler = isotherm.msgnht(grad_fn, 0.1, integrator=integrator)
    with pytest.warns(
        isotherm.exceptions.HealthWarning, match=f"positions .* % too {word}"
    ) as caught:
        result = run(key, sampler, batches, num_draws=1000)
    total = (0.1**2 * sigma**2 + 2 * 0.1) / 4  # injected noise included
    ratio = float(str(caught[0].message).split("4T is ")[1].split(")")[0])
    assert ratio == pytest.approx(total, rel=0.1)
    assert np.median(result.stats["kinetic_temperature"][:, 500:]) == pytest.approx(1, abs=0.1)
    variance = result.draws[:, 500:].var()
    assert variance > 1.2 if word == "hot" else variance < 0.85


@pytest.mark.parametrize(
    ("sampler", "changes"),
    [
        (isotherm.msgnht(normal, 0.3), {"size": 1, "num_chains": 20}),
        (isotherm.msgnht(normal, 0.01), {"size": 1, "num_chains": 20, "thin": 1}),
        (isotherm.sgnht(normal, 0.1, temperature=0.3), {"size": 100}),
        (isotherm.sgld(normal, 0.1), {}),
    ],
    ids=["one number", "short steps", "tempered", "no momentum"],
)
def test_healthy_runs_do_not_warn(key, sampler, changes):
    run(key, sampler, **changes)  # a warning would be an error


def test_a_run_that_has_not_converged_yet_does_not_warn(key):
    isotherm.sample(key, isotherm.sghmc(normal, 0.05), jnp.full(50, 30.0), NONE, num_draws=80)


def test_runs_that_continue_after_divergence_do_not_warn(key):
    run(key, HOT, NOISE, num_draws=2000, on_divergence="continue")


def series(rng, size, correlation, num_draws=400, num_series=400):
    """Temperatures of momenta with this correlation from draw to draw."""
    p = rng.normal(size=(num_series, 1, size))
    out = []
    for _ in range(num_draws):
        p = correlation * p + np.sqrt(1 - correlation**2) * rng.normal(size=p.shape)
        out.append((p**2).mean(-1))
    return np.stack(out, 1)


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_the_rule_accepts_healthy_series_and_rejects_wrong_ones(correlation):
    """Ten numbers in the leaf, 400 draws: most that are twice or half as hot are found."""
    half = np.array([10 / 2])
    median = gammaincinv(half, 0.5) / half
    healthy = series(np.random.default_rng(1), 10, correlation)

    def alarms(factor):
        results = [health.find_wrong_temperature(factor * s[None], median) for s in healthy]
        return np.mean([result is not None for result in results])

    assert alarms(1.0) == 0 == alarms(1.15)
    assert alarms(2.0) > 0.7 and alarms(0.5) > 0.7


@pytest.mark.parametrize(("friction", "judged"), [(0.9, False), (1.1, True)])
def test_nothing_is_judged_before_momenta_have_decorrelated(friction, judged):
    """The second half of 200 draws is 100; with h = 0.1 and thin = 2 that is 20 units of time."""
    hot = 3 * series(np.random.default_rng(3), 10, 0.0, num_draws=200, num_series=1)
    monitor = health.HealthMonitor(isotherm.msgnht(normal, 0.1).traits, ["w"], [10])
    state = SimpleNamespace(thermostat=np.full((1, 10), friction))
    problem = monitor.check(hot, 0.1, 2, state)
    assert bool(problem) == judged
    assert monitor.is_due(200, last=True) is not judged  # at most one warning


def test_correlated_draws_count_for_less():
    """One number with a memory of 20 draws.

    If all draws counted, one series in thirty would be reported.
    """
    median = gammaincinv(0.5, 0.5) / 0.5
    healthy = series(np.random.default_rng(2), 1, 0.95)
    assert not any(health.find_wrong_temperature(s[None], np.array([median])) for s in healthy)


def test_noise_free_targets_end_with_a_warning():
    """A network that fits exactly has a degenerate posterior, whose temperatures are wrong."""
    x = np.linspace(-1, 1, 40)[:, None]
    model = isotherm.BayesianMLPRegressor((5,), num_draws=250, num_chains=1, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", isotherm.exceptions.HealthWarning)
        with pytest.raises(
            isotherm.exceptions.HealthWarning, match=r"too cold|temperature of chain"
        ):
            model.fit(x, 2 * x[:, 0] - 1)
