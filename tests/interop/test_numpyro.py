"""NumPyro models: prior and likelihood are separated exactly; chains sample the posterior."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import potential_energy
from scipy import stats

import isotherm
import isotherm.random
import laws
from isotherm.interop.numpyro import from_numpyro
from marks import slow

rng = np.random.default_rng(0)
X = (rng.normal(size=(30, 2)) @ [[1.0, 0.6], [0.0, 0.8]]).astype(np.float32)
Y = (X @ [1.0, -2.0] + 0.5 + 1.5 * rng.normal(size=30)).astype(np.float32)
WAITS = np.array([0.3, 0.8, 0.1, 1.4, 0.2], np.float32)


def line(x, y, prior_sd=0.7, noise=1.5):
    with numpyro.plate("feature", x.shape[1]):
        slope = numpyro.sample("slope", dist.Normal(0.0, prior_sd))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, prior_sd))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(x @ slope + intercept, noise), obs=y)


def waiting(y):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Exponential(rate), obs=y)


def everything(x, y, z):
    """Supports of many kinds, one of which depends on another variable; two observed sites."""
    top = numpyro.sample("top", dist.HalfNormal(2.0))
    share = numpyro.sample("share", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    inside = numpyro.sample("inside", dist.Uniform(0.0, top))
    with numpyro.plate("output", 2, dim=-2):
        level = numpyro.sample("level", dist.Normal(inside, 1.0))
        with numpyro.plate("data", len(x), dim=-1):
            numpyro.sample("y", dist.StudentT(4.0, level * x[None], top), obs=y.T)
    numpyro.sample("z", dist.Categorical(share), obs=z)


MANY = (X[:7, 0], np.stack([Y[:7], X[:7, 1]], 1), np.arange(7) % 3)


def final_positions(key, target, data, start, *, curvature, num_steps=400, num_chains=4000):
    gradient = target.gradient(len(data[-1]))

    def build(setting):
        return isotherm.msgnht(
            lambda position, _: gradient(position, data),
            0.1 / curvature**0.5,
            curvature**0.5,
            thermostat_mass=10 / curvature,
        )

    return laws.final_states(key, build, [0.0], start, num_steps, num_chains)[0].position


@pytest.mark.slow
def test_a_linear_model_is_sampled_from_its_exact_posterior(key):
    """Independent chains, one draw each: false alarms with probability `laws.FALSE_ALARM`."""
    design = np.column_stack([np.ones(len(X)), X]).astype(np.float64)
    covariance = np.linalg.inv(design.T @ design / 1.5**2 + np.eye(3) / 0.7**2)
    mean = covariance @ design.T @ Y / 1.5**2
    curvature = 1 / np.linalg.eigvalsh(covariance)[0]
    start = jnp.asarray(mean + np.sqrt(np.diag(covariance)), jnp.float32)
    start = {"intercept": start[0], "slope": start[1:]}
    found = final_positions(key, from_numpyro(line, (X, Y)), (X, Y), start, curvature=curvature)
    draws = np.column_stack([found["intercept"], found["slope"]])
    standard = (draws - mean) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    assert laws.gaussian_p_value(standard, np.zeros(3), np.eye(3)) > laws.FALSE_ALARM


def test_a_positive_variable_has_its_jacobian(key):
    """Exponential waits with a gamma rate: the posterior is Gamma(2 + n, 1 + sum).

    Without the Jacobian of the logarithm it would be Gamma(1 + n, 1 + sum), which the same test
    rejects.
    """
    target = from_numpyro(waiting, (WAITS,))
    found = final_positions(key, target, (WAITS,), STARTS[waiting], curvature=7.0)
    rates = np.asarray(jax.vmap(target.constrain)(found)["rate"], np.float64)
    scale = 1 / (1 + WAITS.sum())
    assert stats.kstest(rates, stats.gamma(2 + 5, scale=scale).cdf).pvalue > laws.FALSE_ALARM
    assert stats.kstest(rates, stats.gamma(1 + 5, scale=scale).cdf).pvalue < laws.FALSE_ALARM


def test_a_chain_equals_that_of_the_plain_log_densities(key):
    target = from_numpyro(line, (X, Y))

    def log_likelihood(position, batch):
        x, y = batch
        return -0.5 * ((y - x @ position["slope"] - position["intercept"]) / 1.5) ** 2

    def log_prior(position):
        return sum(-0.5 * jnp.sum((leaf / 0.7) ** 2) for leaf in position.values())

    start, batches = STARTS[line], isotherm.independent_batches((X, Y), 10)
    plain = isotherm.minibatch_gradient(log_likelihood, log_prior, len(X))
    ours, theirs = (
        isotherm.sample(key, isotherm.msgnht(grad_fn, 0.05), start, batches, num_draws=30).draws
        for grad_fn in (plain, target.gradient(len(X)))
    )
    for name in ("slope", "intercept"):
        np.testing.assert_allclose(theirs[name], ours[name], rtol=1e-4, atol=1e-5)


STARTS = {
    line: {"slope": jnp.zeros(2), "intercept": jnp.zeros(())},
    waiting: {"rate": jnp.zeros(())},
    everything: {
        "top": jnp.zeros(()),
        "share": jnp.zeros(2),
        "inside": jnp.zeros(()),
        "level": jnp.zeros((2, 1)),
    },
}


@pytest.mark.parametrize(
    ("model", "data"), [(line, (X, Y)), (waiting, (WAITS,)), (everything, MANY)]
)
def test_prior_and_likelihood_add_up_to_numpyros_own_density(model, data):
    with jax.numpy_rank_promotion("allow"):  # NumPyro broadcasts
        target = from_numpyro(model, data)
        rows = np.array([4, 0, 4])

        @jax.jit
        def densities(position):
            batch = tuple(leaf[rows] for leaf in data)
            return (
                target.log_prior(position),
                target.log_likelihood(position, data),
                target.log_likelihood(position, batch),
                -potential_energy(model, data, {}, position),
            )

        for seed in range(3):
            position = isotherm.random.gaussian(jax.random.key(seed), STARTS[model])
            prior, each, some, whole = densities(position)
            assert each.shape == (len(data[0]),)
            np.testing.assert_allclose(prior + each.sum(), whole, rtol=2e-6)
            np.testing.assert_allclose(some, each[rows], rtol=1e-5)


def test_there_is_one_value_per_datum_with_two_outputs():
    """`y` has plates (output, data): outputs are summed, data are not."""
    with jax.numpy_rank_promotion("allow"):
        target = from_numpyro(everything, MANY)
        position = isotherm.random.gaussian(jax.random.key(0), STARTS[everything])
        value = jax.jit(target.constrain)(position)
        assert 0 < value["inside"] < value["top"]
        np.testing.assert_allclose(value["share"].sum(), 1.0, rtol=1e-6)
        x, y, z = MANY
        fit = stats.t(4.0, np.outer(x, value["level"][:, 0]), value["top"]).logpdf(y).sum(1)
        expected = fit + np.log(value["share"])[z]
        found = jax.jit(target.log_likelihood)(position, MANY)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_batch_may_be_a_dictionary_or_one_array():
    by_name = from_numpyro(line, {"y": Y, "x": X})
    in_order = from_numpyro(line, (X, Y))
    position = STARTS[line]
    np.testing.assert_array_equal(
        by_name.log_likelihood(position, {"x": X[:5], "y": Y[:5]}),
        in_order.log_likelihood(position, (X[:5], Y[:5])),
    )
    alone = from_numpyro(waiting, WAITS)
    assert alone.log_likelihood(STARTS[waiting], WAITS[:3]).shape == (3,)


def test_starts_are_drawn_by_numpyro():
    target = from_numpyro(waiting, WAITS)
    one, two = (target.init(jax.random.key(seed)) for seed in (0, 1))
    assert jax.tree.map(jnp.shape, one) == {"rate": ()}
    assert one["rate"] != two["rate"]


def test_the_prior_does_not_depend_on_the_size_of_the_data():
    x, y = np.ones((12_345, 2), np.float32), np.ones(12_345, np.float32)
    target = from_numpyro(line, (x, y))
    position = {"slope": jnp.ones(2), "intercept": jnp.ones(())}
    program = jax.jit(jax.grad(target.log_prior)).lower(position).compile().as_text()
    assert "12345" not in program


def test_draws_can_be_constrained_while_sampling(key):
    target = from_numpyro(waiting, (WAITS,))
    run = isotherm.sample(
        key,
        isotherm.msgnht(target.gradient(5), 0.05),
        STARTS[waiting],
        isotherm.full_batch((WAITS,)),
        num_draws=5,
        collect={
            "value": isotherm.collect.draws(target.constrain),
            "draws": isotherm.collect.draws(),
        },
    )
    np.testing.assert_allclose(run.collected["value"]["rate"], np.exp(run.draws["rate"]), 1e-6)


def per_datum(y):
    with numpyro.plate("data", len(y)):
        shift = numpyro.sample("shift", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(shift, 1.0), obs=y)


def discrete(y):
    flip = numpyro.sample("flip", dist.Bernoulli(0.5))
    numpyro.sample("y", dist.Normal(flip, 1.0), obs=y)


def point_estimate(y):
    shift = numpyro.param("shift", 0.0)
    numpyro.sample("y", dist.Normal(shift, 1.0), obs=y)


def subsampling(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", 30, subsample_size=len(y)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def fixed_size(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", 5):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def joint(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mean, 1.0).expand([len(y)]).to_event(1), obs=y)


def summed(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.factor("fit", -0.5 * jnp.sum((y - mean) ** 2))


def blind(y):
    numpyro.sample("mean", dist.Normal(0.0, 1.0))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (per_datum, r"'shift' has a value per datum \(shape \(2,\) on two rows, \(3,\) on three\)"),
        (discrete, "'flip' is discrete"),
        (point_estimate, "'shift' is a numpyro.param"),
        (subsampling, "Plate 'data' subsamples"),
        (fixed_size, r"does not run on 2 rows of `data`.*plate\('data', len\(y\)\)"),
        (joint, r"'y' must have one log probability per datum, got shape \(\) on"),
        (summed, "'fit' must have one log probability per datum"),
        (blind, "observes nothing"),
    ],
)
def test_models_that_do_not_work_with_minibatches_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        from_numpyro(model, (WAITS,))


@pytest.mark.parametrize("data", [(), {}, 3.0])
def test_data_without_rows_are_refused(data):
    with pytest.raises(ValueError, match="`data` must be"):
        from_numpyro(waiting, data)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_regression_with_unknown_noise_and_wide_priors_is_sampled(seed):
    """A search for the mode that runs away would end in NumPyro's error of an invalid scale."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 5)).astype(np.float32)
    y = (x @ rng.normal(size=5) + 0.5 * rng.normal(size=100)).astype(np.float32)

    def model(x, y):
        slopes = numpyro.sample("slopes", dist.Normal(0, 10).expand([5]).to_event(1))
        noise = numpyro.sample("noise", dist.HalfNormal(10))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(x @ slopes, noise), obs=y)

    target = isotherm.from_numpyro(model, (x, y))
    batches = isotherm.independent_batches((x, y), 50)
    init_key, start_key, sample_key = jax.random.split(jax.random.key(seed), 3)
    start = isotherm.warm_start(start_key, target.gradient(100), target.init(init_key), batches)
    sampler = isotherm.msgnht(start.grad_fn, **start.settings)
    run = isotherm.sample(
        sample_key, sampler, start.position, batches, num_draws=500, thin=20, burn_in=500
    )
    noise = np.asarray(jax.vmap(jax.vmap(target.constrain))(run.draws)["noise"])
    # With flat priors on the slopes and log noise: RSS / noise^2 is chi^2 with 95 degrees.
    rss = np.linalg.lstsq(x, y, rcond=None)[1][0]
    assert noise.mean() == pytest.approx(np.sqrt(rss / 95), rel=0.04)
    assert noise.std() == pytest.approx(noise.mean() / np.sqrt(2 * 95), rel=0.3)


@pytest.mark.parametrize("seed", [0, slow(1), slow(2)])
def test_a_regression_with_little_noise_is_found_from_far_away(seed):
    """NumPyro raises an error where a step of Newton's method ends in a noise of 0 or infinity."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(100, 5)).astype(np.float32)
    y = (x @ rng.normal(size=5) + 0.01 * rng.normal(size=100)).astype(np.float32)

    def model(x, y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 10.0).expand([5]).to_event(1))
        noise = numpyro.sample("noise", dist.HalfNormal(10.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(x @ slope, noise), obs=y)

    target = from_numpyro(model, (x, y))
    batches = isotherm.independent_batches((x, y), 50)
    key = jax.random.key(seed)
    start = isotherm.warm_start(key, target.gradient(100), target.init(key), batches)
    assert float(target.constrain(start.position)["noise"]) == pytest.approx(0.01, rel=0.3)
