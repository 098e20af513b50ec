"""Priors of weights and scales agree with SciPy, quadrature and the law of their draws."""

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from scipy import stats

import isotherm
import laws
from isotherm.models import (
    Gamma,
    HalfCauchy,
    HalfNormal,
    LaplacePrior,
    LearnedScales,
    NormalPrior,
    StudentTPrior,
    fan_ins,
    localised_prior,
)
from marks import slow

LIKE = {"kernel": jnp.zeros((4, 3)), "bias": jnp.zeros(3)}
WEIGHTS = {
    "kernel": jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32),
    "bias": jnp.array([0.5, -1.0, 2.0]),
}
FAMILIES = {
    "normal": (NormalPrior, {}, stats.norm()),
    "student-t": (StudentTPrior, {"df": 3.0}, stats.t(3)),
    "laplace": (LaplacePrior, {}, stats.laplace(scale=0.5**0.5)),
}
SCALES = {
    "half-Cauchy": (HalfCauchy(0.7), stats.halfcauchy(scale=0.7)),
    "half-normal": (HalfNormal(0.7), stats.halfnorm(scale=0.7)),
    "gamma": (Gamma(2.5, 1.7), stats.gamma(2.5, scale=1 / 1.7)),
}


@pytest.mark.parametrize("name", SCALES)
def test_scale_priors_are_those_of_scipy_in_log_units(name, key):
    prior, exact = SCALES[name]
    t = np.array([-3.0, -0.5, 0.0, 1.0, 2.0])
    wanted = exact.logpdf(np.exp(t)) + t
    np.testing.assert_allclose(prior.log_density(jnp.asarray(t)), wanted, rtol=1e-5, atol=1e-6)
    grid = np.linspace(-18, 18, 1441)
    density = np.exp(np.asarray(prior.log_density(jnp.asarray(grid)), np.float64))
    assert density.sum() * 0.025 == pytest.approx(1, abs=1e-4)
    draws = np.exp(np.asarray(prior.sample(key, (20_000,)), np.float64))
    assert stats.kstest(draws, exact.cdf).pvalue > laws.FALSE_ALARM
    assert stats.kstest(1.2 * draws, exact.cdf).pvalue < laws.FALSE_ALARM  # the mutant


@pytest.mark.parametrize("name", FAMILIES)
def test_log_prior_of_weights(name):
    build, settings, exact = FAMILIES[name]
    prior = build(1.5, **settings)
    b = {"kernel": 1.5 / 2, "bias": 1.5}
    wanted = sum(
        np.sum(exact.logpdf(np.asarray(WEIGHTS[leaf], np.float64) / b[leaf]) - np.log(b[leaf]))
        for leaf in b
    )
    assert float(prior.log_prior(WEIGHTS)) == pytest.approx(wanted, rel=1e-5)
    assert abs(float(build(1.5, None, **settings).log_prior(WEIGHTS)) - wanted) > 0.1  # the mutant


@pytest.mark.parametrize("name", ["normal", slow("student-t"), "laplace"])
def test_draws_of_weights(name, key):
    build, settings, exact = FAMILIES[name]
    prior, b = build(1.5, **settings), {"kernel": 1.5 / 2, "bias": 1.5}
    draws = jax.vmap(lambda k: prior.sample(k, LIKE))(jax.random.split(key, 3000))
    for leaf, scale in b.items():
        units = np.ravel(np.asarray(draws[leaf], np.float64)) / scale
        assert stats.kstest(units, exact.cdf).pvalue > laws.FALSE_ALARM
        assert stats.kstest(1.2 * units, exact.cdf).pvalue < laws.FALSE_ALARM
    # Leaves are independent of each other.
    pairs = np.asarray(draws["kernel"])[:, 0, 0], np.asarray(draws["bias"])[:, 0]
    assert stats.spearmanr(*pairs).pvalue > laws.FALSE_ALARM


def test_scales_and_fan_ins_by_leaf():
    prior = NormalPrior({"kernel": 3.0}, {"kernel": 9})
    assert prior.base_scales(LIKE) == {"bias": 1.0, "kernel": 1.0}
    assert NormalPrior(2.0, None).base_scales(LIKE) == {"bias": 2.0, "kernel": 2.0}
    with pytest.raises(ValueError, match=r"`scale` has 'kernl', but the leaves are \['bias', 'ke"):
        NormalPrior({"kernl": 3.0}).log_prior(WEIGHTS)
    with pytest.raises(ValueError, match="`fan_in` has 'w', but"):
        NormalPrior(fan_in={"w": 3}).log_prior(WEIGHTS)
    with pytest.raises(ValueError, match="`fan_in` must be 'auto', None or numbers"):
        NormalPrior(fan_in="fan_in")
    with pytest.raises(ValueError, match="`scale` must be positive"):
        NormalPrior(-1.0)
    with pytest.raises(ValueError, match="`df` must be positive"):
        StudentTPrior(df=0.0)


def test_dtypes_are_preserved(key):
    like = {"a": jnp.zeros((2, 2), jnp.bfloat16), "b": jnp.zeros(2)}
    draw = LaplacePrior().sample(key, like)
    assert draw["a"].dtype == jnp.bfloat16 and draw["b"].dtype == jnp.float32
    assert NormalPrior().log_prior(draw).dtype == jnp.float32
    learned = LearnedScales()
    assert learned.weights(learned.position(draw))["b"].dtype == jnp.float32


def linen_network():
    network = linen.Sequential([linen.Conv(8, (3, 3)), linen.Dense(5), linen.Dense(2)])
    return isotherm.from_linen(network, network.init(jax.random.key(0), jnp.zeros((1, 6, 6, 2))))


def nnx_network():
    rngs = nnx.Rngs(0)
    return isotherm.from_nnx(
        nnx.Sequential(
            nnx.Conv(2, 8, (3, 3), rngs=rngs),
            nnx.Linear(8, 5, rngs=rngs),
            nnx.Linear(5, 2, rngs=rngs),
        )
    )


def equinox_network():
    keys = jax.random.split(jax.random.key(0), 3)
    return isotherm.from_equinox(
        equinox.nn.Sequential(
            [
                equinox.nn.Conv2d(2, 8, 3, key=keys[0]),
                equinox.nn.Linear(8, 5, key=keys[1]),
                equinox.nn.Linear(5, 2, key=keys[2]),
            ]
        )
    )


@pytest.mark.parametrize("build", [linen_network, nnx_network, equinox_network])
def test_fan_ins_of_modules_of_other_libraries(build):
    """A convolution of 3 x 3 x 2 inputs, and dense layers of 8 and 5."""
    inferred = fan_ins(build().position)
    biases = [value for name, value in inferred.items() if "bias" in name]
    others = [value for name, value in inferred.items() if "bias" not in name]
    assert biases == [1, 1, 1] and sorted(others) == [5, 8, 18], inferred


def test_fan_ins_of_our_own_networks_and_embeddings():
    lenet = isotherm.models.lenet(side=16, channels=(4, 6), hidden=(8,), num_classes=3)
    weights = lenet.init(jax.random.key(0))
    assert list(fan_ins(weights).values()) == [25, 1, 100, 1, 6, 1, 8, 1]
    assert fan_ins({"embedding": jnp.zeros((100, 8))}) == {"embedding": 1}
    assert fan_ins(jnp.zeros((7, 2))) == {"position": 7}
    assert fan_ins(LIKE, {"bias": 4}) == {"bias": 4, "kernel": 4}


def test_localised_prior_is_a_gaussian_around_its_centre(key):
    prior = localised_prior(WEIGHTS, sd=0.3)
    moved = jax.tree.map(lambda leaf: leaf + 0.1, WEIGHTS)
    wanted = 15 * stats.norm.logpdf(0.1, 0, 0.3)
    assert float(prior.log_prior(moved)) == pytest.approx(wanted, rel=1e-4)
    draws = jax.vmap(lambda k: prior.sample(k, LIKE))(jax.random.split(key, 2000))
    for leaf, centre in WEIGHTS.items():
        units = (np.asarray(draws[leaf], np.float64) - np.asarray(centre)) / 0.3
        assert stats.kstest(units.ravel(), "norm").pvalue > laws.FALSE_ALARM
        assert stats.kstest(units.ravel() + 0.1, "norm").pvalue < laws.FALSE_ALARM
    with pytest.raises(ValueError, match=r"leaf 'kernel' has shape \(2, 2\)"):
        prior.log_prior({"kernel": jnp.zeros((2, 2)), "bias": jnp.zeros(3)})
    with pytest.raises(ValueError, match="`centre` must have the 1 leaves"):
        prior.log_prior({"bias": jnp.zeros(3)})


CENTRED = LearnedScales(StudentTPrior(2.0, df=5.0, centre=WEIGHTS), Gamma(2.0, 1.5), centred=True)
NON_CENTRED = LearnedScales(CENTRED.base, CENTRED.hyperprior)


def test_both_forms_of_learned_scales_are_one_density():
    """p(z, t) = p(w, t) |dw/dz|, and the weights are the same; without the Jacobian they differ."""
    position = {
        "weights": jax.tree.map(lambda leaf: 0.3 * leaf + 0.2, WEIGHTS),
        "log_scales": {"kernel": jnp.array(0.4), "bias": jnp.array(-0.7)},
    }
    weights = NON_CENTRED.weights(position)
    other = {"weights": weights, "log_scales": position["log_scales"]}
    jacobian = 12 * (0.4 + np.log(2.0 / 2)) + 3 * (-0.7 + np.log(2.0))
    one, two = float(NON_CENTRED.log_prior(position)), float(CENTRED.log_prior(other))
    assert one == pytest.approx(two + jacobian, rel=1e-5)
    assert abs(one - two) > 0.5
    np.testing.assert_allclose(weights["bias"][0], 0.5 + np.exp(-0.7) * 2 * (0.35), rtol=1e-5)
    for prior in (CENTRED, NON_CENTRED):
        back = prior.weights(prior.position(weights))
        np.testing.assert_allclose(back["kernel"], weights["kernel"], rtol=1e-5)


@pytest.mark.parametrize("hyperprior", [HalfCauchy(1.0), Gamma(2.0, 1.5)], ids=["cauchy", "gamma"])
def test_learned_scales_integrate_to_one(hyperprior):
    prior = LearnedScales(NormalPrior(0.8), hyperprior, centred=True)

    def density(u, t):  # of (w, log s) at w = e^t u, times the Jacobian e^t
        position = {"weights": jnp.exp(t) * u[None], "log_scales": {"position": t}}
        return jnp.exp(prior.log_prior(position) + t)

    u, t = np.meshgrid(np.linspace(-6, 6, 61), np.linspace(-12, 12, 121))
    values = jax.vmap(density)(jnp.asarray(u.ravel()), jnp.asarray(t.ravel()))
    assert float(jnp.sum(values)) * 0.2 * 0.2 == pytest.approx(1, abs=2e-3)
    # The mutant: the hyperprior as a density of s instead of log s.
    wrong = values * jnp.exp(-jnp.asarray(t.ravel()))
    assert abs(float(jnp.sum(wrong)) * 0.2 * 0.2 - 1) > 0.1


@pytest.mark.slow
def test_prior_draws_of_both_forms_have_the_marginal_law_of_the_weights(key):
    """Against the distribution function by quadrature; another hyperprior is detected."""
    keys = jax.random.split(key, 4000)

    def cdf(w, hyper):
        s = hyper.ppf((np.arange(2000) + 0.5) / 2000)
        return np.mean(stats.norm.cdf(np.asarray(w)[:, None] / s[None, :] / 0.8), axis=1)

    for centred in (False, True):
        prior = LearnedScales(NormalPrior(0.8), Gamma(2.0, 1.5), centred=centred)
        like = prior.position(jnp.zeros(()))
        draws = jax.vmap(lambda k, p=prior, a=like: p.weights(p.sample(k, a)))(keys)
        draws = np.asarray(draws, np.float64)
        right, wrong = stats.gamma(2.0, scale=1 / 1.5), stats.gamma(2.0, scale=1 / 1.1)
        assert stats.kstest(draws, lambda w, h=right: cdf(w, h)).pvalue > laws.FALSE_ALARM
        assert stats.kstest(draws, lambda w, h=wrong: cdf(w, h)).pvalue < laws.FALSE_ALARM


def test_student_t_prior_has_the_normal_prior_as_its_limit():
    limit = StudentTPrior(df=1e6).log_prior(WEIGHTS)
    assert float(limit) == pytest.approx(float(NormalPrior().log_prior(WEIGHTS)), rel=1e-3)
