"""A run that is wrong without diverging warns once; a healthy one does not."""

import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaincinv

import isotherm
import laws
from isotherm.loop import health
from isotherm.types import Traits
from marks import slow

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


@pytest.mark.parametrize(("integrator", "word"), [("ABOBA", "hot"), slow("euler", "cold")])
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
        slow(isotherm.msgnht(normal, 0.3), {"size": 1, "num_chains": 20}),
        (isotherm.msgnht(normal, 0.01), {"size": 1, "num_chains": 20, "thin": 1}),
        slow(isotherm.sgnht(normal, 0.1, temperature=0.3), {"size": 100}),
        (isotherm.sgld(normal, 0.1), {}),
    ],
    ids=["one number", "short steps", "tempered", "no momentum"],
)
def test_healthy_runs_do_not_warn(key, sampler, changes):
    run(key, sampler, **changes)  # a warning would be an error


@pytest.mark.slow
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


@pytest.mark.slow
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


def balanced_traits(thermostat="per_coordinate", diffusion=2.0, **changes):
    settings = {"temperature": 0.5, "thermostat_mass": 4.0, "integrator": "AKDBNBDKA"}
    settings |= {"adaptive": True, "balanced": True, "diffusion": diffusion}
    return Traits("msgnht", thermostat=thermostat, **(settings | changes))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["per_coordinate", "scalar"])
def test_the_mean_thermostat_of_a_healthy_chain_has_the_law_that_is_assumed(key, kind):
    """5 coordinates, 4000 chains: the share beyond the 2.5 % quantiles is 5 %."""
    sampler = isotherm.langevin(
        normal,
        0.2,
        1.0,
        thermostat=kind,
        thermostat_mass=2.0,
        integrator="AKDBNBDKA",
        temperature=0.5,
    )

    @jax.jit
    def thermostats(keys):
        def one(key):
            return isotherm.run_chain(key, sampler, jnp.zeros(5), NONE, num_draws=1, thin=400)[
                1
            ].thermostat

        return jax.vmap(one)(keys)

    xi = np.asarray(thermostats(jax.random.split(key, 4000))).reshape(4000, -1).mean(1)
    z = (xi - 1.0) / health.thermostat_error(sampler.traits, 5)
    beyond = int((np.abs(z) > 1.96).sum())
    assert stats.binomtest(beyond, len(z), 0.05).pvalue > laws.FALSE_ALARM
    assert stats.binomtest(int((np.abs(z) > 1.5).sum()), len(z), 0.05).pvalue < laws.FALSE_ALARM


def thermostat_state(rng, kind, ratio, traits, sizes=(40, 2), num_chains=3):
    """Return the state of chains whose thermostats have the mean `ratio` times D."""
    center, variance = ratio * traits.diffusion, traits.temperature / traits.thermostat_mass
    if kind == "per_coordinate":
        shapes, shared = [(num_chains, n) for n in sizes], [1 for _ in sizes]
    else:
        shapes = [(num_chains,) for _ in sizes]
        shared = sizes if kind == "per_tensor" else (sum(sizes),)
        shapes = shapes[: len(shared)]
    leaves = [
        rng.normal(center, (variance / n) ** 0.5, shape)
        for n, shape in zip(shared, shapes, strict=True)
    ]
    return SimpleNamespace(thermostat=leaves)


@pytest.mark.parametrize("kind", ["per_coordinate", "per_tensor", "scalar"])
def test_thermostats_that_leave_the_diffusion_are_reported_at_the_second_check(kind):
    rng, traits = np.random.default_rng(4), balanced_traits(kind)
    cool = np.full((3, 128, 2), 0.5)
    for _ in range(200):
        monitor = health.HealthMonitor(traits, ["w", "b"], [40, 2])
        state = thermostat_state(rng, kind, 1.0, traits)
        assert monitor.check(cool, 0.1, 1, state) is None is monitor.check(cool, 0.1, 1, state)
    monitor = health.HealthMonitor(traits, ["w", "b"], [40, 2])
    state = thermostat_state(rng, kind, 3.0, traits)
    assert monitor.check(cool, 0.1, 1, state) is None
    problem = monitor.check(cool, 0.1, 1, state)
    assert problem is not None and "leave much of their noise" in problem
    assert ("`all parameters`" if kind == "scalar" else "`w`") in problem
    assert float(problem.split(" times the diffusion")[0].split()[-1]) == pytest.approx(3, abs=0.4)


@pytest.mark.parametrize(
    "traits",
    [
        balanced_traits(balanced=False),
        balanced_traits(diffusion=0.0),
        balanced_traits("fixed", adaptive=False),
    ],
    ids=["plain gradient", "no diffusion", "fixed friction"],
)
def test_thermostats_are_compared_with_the_diffusion_only_where_that_says_something(traits):
    monitor = health.HealthMonitor(traits, ["w", "b"], [40, 2])
    state = SimpleNamespace(thermostat=[np.full((3, 40), 6.0), np.full((3, 2), 6.0)])
    cool = np.full((3, 128, 2), 0.5)
    assert monitor.check(cool, 0.01, 1, state) is None is monitor.check(cool, 0.01, 1, state)


@pytest.mark.parametrize(("step_size", "healthy"), [slow(0.005, True), (0.1, False)])
def test_rows_that_are_too_strong_to_be_balanced_are_reported(key, step_size, healthy):
    """One row in a hundred has a gradient a hundred times as large as the others'."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 64)).astype(np.float32)
    x[::100] *= 100
    rows = jnp.asarray(x - x.mean(0))
    grad_fn = isotherm.minibatch_gradient(
        lambda m, x: x @ m / 1000 - 0.5 * jnp.sum(m**2) / 1000, lambda m: 0.0, 1000
    )
    batches = isotherm.independent_batches(rows, 10)
    sampler = isotherm.msgnht(isotherm.balanced(grad_fn), step_size, 0.2, thermostat_mass=10.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run(key, sampler, batches, num_draws=512, thin=8, num_chains=2)
    messages = [str(each.message) for each in caught]
    if healthy:
        assert not messages
    else:
        assert len(messages) == 1 and "leave much of their noise" in messages[0]
        reported = float(messages[0].split(" times the diffusion")[0].split()[-1])
        final = np.asarray(result.state.thermostat).mean(1).max() / 0.2
        assert min(reported, final) > health.LARGEST_RATIO
