"""Likelihoods agree with SciPy and enumeration; slightly wrong ones do not."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

import isotherm
import laws
from isotherm.models import (
    Bernoulli,
    Categorical,
    CuratedLabels,
    Gamma,
    Gaussian,
    HalfCauchy,
    LearnedScales,
    Network,
    NoisyDirichlet,
    NormalPrior,
    Ordinal,
    Poisson,
    StudentT,
    UserLikelihood,
    build_network,
    mlp,
)
from isotherm.models.logistic import categorical_log_likelihood

RNG = np.random.default_rng(3)
F = RNG.normal(size=(6, 4))
OUTPUTS = jnp.asarray(F, jnp.float32)
LABELS = np.array([0, 1, 2, 3, 1, 0])
TARGETS = RNG.normal(size=(6, 2))
COUNTS = RNG.poisson(2.0, size=(6, 4))
CUTPOINTS = (-1.0, 0.5, 2.0)


def ordinal(location, cutpoints, y):
    below = np.concatenate([[-np.inf], cutpoints, [np.inf]])
    return np.log(
        stats.logistic.cdf(below[y + 1] - location) - stats.logistic.cdf(below[y] - location)
    )


def noisy_dirichlet(f, y, alpha):
    a = alpha + np.eye(4)[y]
    variance = np.log(1 / a + 1)
    return stats.norm.logpdf(f, np.log(a) - variance / 2, np.sqrt(variance)).sum(1)


CASES = {
    "gaussian": (
        Gaussian(0.7),
        F[:, :2],
        TARGETS,
        lambda f, y: stats.norm.logpdf(y, f, 0.7).sum(1),
    ),
    "heteroscedastic": (
        Gaussian(None, num_targets=2),
        F,
        TARGETS,
        lambda f, y: stats.norm.logpdf(y, f[:, :2], np.exp(f[:, 2:])).sum(1),
    ),
    "learned noise": (
        Gaussian(HalfCauchy(), num_targets=2),
        F,
        TARGETS,
        lambda f, y: stats.norm.logpdf(y, f[:, :2], np.exp(f[:, 2:])).sum(1),
    ),
    "student-t": (
        StudentT(3.0, 0.7),
        F[:, :2],
        TARGETS,
        lambda f, y: stats.t.logpdf(y, 3, f, 0.7).sum(1),
    ),
    "heteroscedastic student-t": (
        StudentT(3.0, None, num_targets=2),
        F,
        TARGETS,
        lambda f, y: stats.t.logpdf(y, 3, f[:, :2], np.exp(f[:, 2:])).sum(1),
    ),
    "poisson": (Poisson(), F, COUNTS, lambda f, y: stats.poisson.logpmf(y, np.exp(f)).sum(1)),
    "bernoulli": (
        Bernoulli(),
        F,
        COUNTS % 2,
        lambda f, y: stats.bernoulli.logpmf(y, 1 / (1 + np.exp(-f))).sum(1),
    ),
    "categorical": (
        Categorical(),
        F,
        LABELS,
        lambda f, y: np.log(np.exp(f)[np.arange(6), y] / np.exp(f).sum(1)),
    ),
    "ordinal": (
        Ordinal(4, CUTPOINTS),
        F[:, :1],
        LABELS,
        lambda f, y: ordinal(f[:, 0], CUTPOINTS, y),
    ),
    "ordinal, learned": (
        Ordinal(3),
        F[:, :3],
        LABELS % 3,
        lambda f, y: np.array(
            [ordinal(a, [b, b + np.exp(c)], k) for (a, b, c), k in zip(f, y, strict=True)]
        ).ravel(),
    ),
    "noisy dirichlet": (
        NoisyDirichlet(0.05),
        F,
        LABELS,
        lambda f, y: noisy_dirichlet(f, y, 0.05),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_log_likelihood_against_scipy(name):
    likelihood, f, y, exact = CASES[name]
    values = likelihood.log_likelihood(jnp.asarray(f, jnp.float32), jnp.asarray(y))
    assert values.shape == (6,)
    np.testing.assert_allclose(values, exact(f, y), rtol=2e-5, atol=2e-6)
    # The mutant: outputs that are a little larger.
    assert np.abs(np.asarray(values) - exact(1.05 * f, y)).max() > 1e-3
    assert likelihood.num_outputs is None or (
        likelihood.num_outputs + likelihood.num_shared == f.shape[1]
    )


@pytest.mark.parametrize(
    ("likelihood", "columns", "labels"),
    [(Categorical(), 4, 4), (Ordinal(4, CUTPOINTS), 1, 4), (Bernoulli(), 1, 2)],
    ids=["categorical", "ordinal", "bernoulli"],
)
def test_predictions_are_the_probabilities_of_the_labels(likelihood, columns, labels):
    outputs = OUTPUTS[:, :columns]
    each = [likelihood.log_likelihood(outputs, jnp.full(6, k)) for k in range(labels)]
    p = np.exp(np.stack(each, axis=1))
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-5)
    predicted = likelihood.predict(outputs)
    np.testing.assert_allclose(predicted, p if predicted.shape[1] > 1 else p[:, 1:], rtol=1e-5)


def test_gaussian_and_categorical_by_name_have_the_same_bits_as_before():
    """The expressions of version 0.1, written out."""
    network = mlp((3, 5, 2), activation="tanh", likelihood="gaussian", noise_sd=0.37)
    weights = network.init(jax.random.key(0))
    x, y = jnp.asarray(F[:, :3], jnp.float32), jnp.asarray(TARGETS, jnp.float32)

    def before(weights):
        outputs = network.apply(weights, x)
        residual = (y.reshape(outputs.shape) - outputs) / 0.37
        constant = jnp.log(2 * jnp.pi * 0.37**2)
        return -0.5 * jnp.sum(residual**2 + constant, axis=-1)

    now = jax.jit(lambda w: network.log_likelihood(w, (x, y)))(weights)
    np.testing.assert_array_equal(now, jax.jit(before)(weights))
    np.testing.assert_array_equal(network.predict(weights, x), network.apply(weights, x))
    classifier = mlp((3, 5, 2), activation="tanh")
    labels = jnp.asarray(LABELS % 2)
    np.testing.assert_array_equal(
        classifier.log_likelihood(weights, (x, labels)),
        categorical_log_likelihood(classifier.apply(weights, x), labels),
    )
    np.testing.assert_array_equal(
        classifier.predict(weights, x), jax.nn.softmax(classifier.apply(weights, x))
    )


@pytest.mark.parametrize("num_annotators", [1, 2, 3])
def test_curated_labels_by_enumeration_of_annotators(num_annotators):
    p = np.exp(F[:, :3]) / np.exp(F[:, :3]).sum(1, keepdims=True)
    agree = np.zeros((6, 3))
    for labels in product(range(3), repeat=num_annotators):
        if len(set(labels)) == 1:
            agree[:, labels[0]] += np.prod(p[:, labels], axis=1)
    likelihood = CuratedLabels(num_annotators)
    for label in range(3):
        y = jnp.full(6, label)
        value = np.exp(likelihood.log_likelihood(OUTPUTS[:, :3], y))
        np.testing.assert_allclose(value, agree[:, label], rtol=1e-5)
        conditional = CuratedLabels(num_annotators, conditional=True)
        value = np.exp(conditional.log_likelihood(OUTPUTS[:, :3], y))
        np.testing.assert_allclose(value, agree[:, label] / agree.sum(1), rtol=1e-5)
    none = np.exp(likelihood.log_likelihood(OUTPUTS[:, :3], jnp.full(6, -1)))
    np.testing.assert_allclose(none, 1 - agree.sum(1), rtol=1e-4, atol=1e-6)
    curated = agree / agree.sum(1, keepdims=True)
    np.testing.assert_allclose(likelihood.predict(OUTPUTS[:, :3]), curated, rtol=1e-5)
    single = CuratedLabels(num_annotators, predict_curated=False)
    np.testing.assert_allclose(single.predict(OUTPUTS[:, :3]), p, rtol=1e-5)
    if num_annotators > 1:  # the mutant: p^S normalised, or not, where it must not or must be
        assert np.abs(curated - agree).max() > 0.05


def test_noisy_dirichlet_matches_the_moments_of_gamma_variables():
    """The mean and the variance of the log-normal variables are those of Gamma(alpha_c, 1)."""
    alpha = 0.1 + np.eye(4)[0]
    variance = np.log(1 / alpha + 1)
    mean = np.log(alpha) - variance / 2
    np.testing.assert_allclose(np.exp(mean + variance / 2), alpha, rtol=1e-12)
    moments = stats.lognorm.stats(np.sqrt(variance), scale=np.exp(mean))
    np.testing.assert_allclose(moments[1], stats.gamma.var(alpha), rtol=1e-12)
    f = jnp.asarray(mean, jnp.float32)[None]
    gradient = jax.grad(lambda f: NoisyDirichlet(0.1).log_likelihood(f, jnp.array([0])).sum())(f)
    np.testing.assert_allclose(gradient, 0, atol=1e-5)  # the mode is at these means


def test_extreme_outputs_have_finite_values_and_gradients():
    far = jnp.array([[300.0], [-300.0], [30.0]])
    y = jnp.array([0, 3, 1])
    for likelihood in (Ordinal(4, CUTPOINTS), Bernoulli()):
        labels = jnp.minimum(y, 1) if isinstance(likelihood, Bernoulli) else y
        value, slope = jax.value_and_grad(
            lambda f, m=likelihood, k=labels: m.log_likelihood(f, k).sum()
        )(far)
        assert np.isfinite(value) and np.all(np.isfinite(slope))
    sure = jnp.array([[60.0, 0.0, 0.0]])
    value, slope = jax.value_and_grad(
        lambda f: CuratedLabels(4.0).log_likelihood(f, jnp.array([-1])).sum()
    )(sure)
    assert np.isfinite(value) and value < -10 and np.all(np.isfinite(slope))


@pytest.mark.slow
def test_cutpoints_have_the_prior_of_uniform_class_probabilities(key):
    """Its density integrates to 1, and draws give Dirichlet probabilities at f = 0."""
    likelihood = Ordinal(3, concentration=1.5)
    grid = np.linspace(-12, 12, 241)
    points = jnp.asarray(np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2), jnp.float32)
    density = np.exp(np.asarray(jax.vmap(likelihood.shared_log_prior)(points), np.float64))
    assert density.sum() * 0.1**2 == pytest.approx(1, abs=1e-3)
    shared = jax.vmap(likelihood.sample_shared)(jax.random.split(key, 4000))
    outputs = jnp.concatenate([jnp.zeros((4000, 1)), shared], axis=1)
    p = np.asarray(likelihood.predict(outputs), np.float64)
    for k in range(3):
        assert stats.kstest(p[:, k], stats.beta(1.5, 3.0).cdf).pvalue > laws.FALSE_ALARM
        assert stats.kstest(p[:, k], stats.beta(1.0, 2.0).cdf).pvalue < laws.FALSE_ALARM
    start = jnp.concatenate([jnp.zeros(1), likelihood.shared_start()])[None]
    np.testing.assert_allclose(likelihood.predict(start), [[1 / 3] * 3], rtol=1e-5)


@pytest.mark.slow
def test_learned_noise_has_its_prior():
    likelihood = Gaussian(Gamma(2.0, 3.0), num_targets=2)
    t = jnp.array([0.2, -0.4])
    wanted = np.sum(stats.gamma.logpdf(np.exp(t), 2.0, scale=1 / 3) + np.asarray(t))
    assert float(likelihood.shared_log_prior(t)) == pytest.approx(wanted, rel=1e-5)
    assert likelihood.sample_shared(jax.random.key(0)).shape == (2,)
    total = quad(lambda s: stats.gamma.pdf(s, 2.0, scale=1 / 3), 0, 20)[0]
    assert total == pytest.approx(1)


@pytest.mark.parametrize("kind", ["known", "head", "student-t"])
def test_predictive_distributions_are_mixtures_over_draws(kind):
    draws = RNG.normal(size=(2, 3, 5, 2))  # (chain, draw, row, column)
    location, log_scale = (draws[..., i].reshape(6, 5) for i in range(2))
    y = RNG.normal(size=5)
    if kind == "known":
        mixture, exact = Gaussian(0.4).predictive(draws[..., :1]), stats.norm(location, 0.4)
    elif kind == "head":
        mixture = Gaussian(None).predictive(draws)
        exact = stats.norm(location, np.exp(log_scale))
    else:
        mixture = StudentT(3.0, None).predictive(draws)
        exact = stats.t(3.0, location, np.exp(log_scale))
    np.testing.assert_allclose(mixture.log_density(y), np.log(exact.pdf(y).mean(0)), rtol=1e-10)
    with pytest.raises(ValueError, match="Poisson has no density of real targets"):
        Poisson().predictive(draws)


def test_a_user_function_is_a_likelihood():
    def laplace(outputs, y):
        return -jnp.abs(y - outputs[:, 0]) - jnp.log(2.0)

    network = Network(lambda w, x: x @ w, lambda key: jnp.ones((3, 1)), likelihood=laplace)
    x, y = jnp.ones((4, 3)), jnp.arange(4.0)
    values = network.log_likelihood(jnp.ones((3, 1)), (x, y))
    np.testing.assert_allclose(values, stats.laplace.logpdf(np.arange(4), 3.0), rtol=1e-6)
    np.testing.assert_array_equal(network.predict(jnp.ones((3, 1)), x), x @ jnp.ones((3, 1)))
    squared = UserLikelihood(laplace, lambda outputs: outputs**2)
    assert float(squared.predict(jnp.array([[3.0]]))[0, 0]) == 9
    wrong = Network(lambda w, x: x @ w, lambda key: None, likelihood=lambda f, y: f)
    with pytest.raises(ValueError, match=r"one number per row, shape \(4,\), got \(4, 1\)"):
        wrong.log_likelihood(jnp.ones((3, 1)), (x, y))


@pytest.mark.slow
def test_a_network_with_learned_noise_and_scales_runs_and_predicts(key):
    """The gradient is that of the sum of the parts, and draws give a mixture of each row."""
    network = mlp(
        (2, 4, 1),
        activation="tanh",
        likelihood=Gaussian(HalfCauchy(1.0)),
        prior=LearnedScales(NormalPrior(1.5), Gamma(2.0, 2.0)),
    )
    x, y = jnp.asarray(F[:, :2], jnp.float32), jnp.asarray(TARGETS[:, 0], jnp.float32)
    position = network.sample_prior(key)
    assert jax.tree.structure(position) == jax.tree.structure(network.init(key))
    inner, shared = position["network"], position["shared"]
    prior = network.prior.network
    layers = prior.weights(inner)
    mean = np.tanh(np.asarray(x @ layers[0].weights + layers[0].bias[None]))
    mean = mean @ np.asarray(layers[1].weights) + np.asarray(layers[1].bias)
    exact = stats.norm.logpdf(np.asarray(y), mean[:, 0], np.exp(np.asarray(shared)))
    np.testing.assert_allclose(
        network.log_likelihood(position, (x, y)), exact, rtol=1e-4, atol=1e-5
    )
    wanted = float(prior.log_prior(inner)) + float(HalfCauchy(1.0).log_density(shared)[0])
    assert float(network.log_prior(position)) == pytest.approx(wanted, rel=1e-5)
    sampler = isotherm.msgnht(network.gradient(6), step_size=0.02)
    run = isotherm.sample(
        key, sampler, network.init(key), isotherm.full_batch((x, y)), num_draws=5, num_chains=2
    )
    mixture = network.predictive(run.draws, x)
    assert mixture.num_components == 10 and mixture.shape == (6,)
    one = jax.tree.map(lambda leaf: leaf[1, 2], run.draws)
    np.testing.assert_allclose(mixture.location[7], network.predict(one, x)[:, 0], rtol=1e-5)
    np.testing.assert_allclose(mixture.scale[7], np.exp(one["shared"][0]), rtol=1e-5)


@pytest.mark.slow
def test_a_fixed_prior_leaves_the_position_as_it_is(key):
    network = mlp((2, 4, 3), prior=NormalPrior(2.0))
    weights = network.init(key)
    assert jax.tree.structure(weights) == jax.tree.structure(mlp((2, 4, 3)).init(key))
    assert float(network.log_prior(weights)) == float(NormalPrior(2.0).log_prior(weights))
    drawn = mlp((200, 300, 3), prior_sd=0.5).sample_prior(key)[0].weights
    assert float(drawn.std()) == pytest.approx(0.5, rel=0.02)  # 60 000 numbers: 0.3 %


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Network(lambda w, x: x, lambda key: None, likelihood="gausian"),
            r"`likelihood` must be one of \('categorical', 'gaussian', .*; got 'gausian'",
        ),
        (lambda: mlp((3, 1), likelihood=3), "`likelihood` must be one of"),
        (lambda: mlp((3, 1), likelihood=Poisson), "`likelihood` must be one of"),
        (lambda: mlp((3, 1), likelihood="gaussian", noise_sd=-1.0), "`noise_sd` must be positive"),
        (lambda: mlp((3, 1), likelihood="poisson", noise_sd=0.5), "`noise_sd` is for the likeli"),
        (lambda: mlp((3, 1), likelihood="heteroscedastic"), "`sizes` must end with 2 outputs"),
        (lambda: mlp((3, 2), prior=NormalPrior(), prior_sd=2.0), "`prior_sd` must not be given"),
        (lambda: Gaussian(None).log_likelihood(OUTPUTS, OUTPUTS), "`outputs` must have 2 columns"),
        (
            lambda: Ordinal(3).log_likelihood(OUTPUTS[:, :1], OUTPUTS),
            "1 of the network and 2 shared parameters.*`isotherm.models.build_network` appends",
        ),
        (lambda: Ordinal(3, (1.0, 0.0)), "`cutpoints` must be 2 increasing numbers"),
        (lambda: Ordinal(1), "`num_classes` must be a whole number of at least 2"),
        (lambda: CuratedLabels(0.5), "`num_annotators` must be at least 1"),
        (lambda: NoisyDirichlet(0.0), "`alpha` must be positive"),
        (lambda: StudentT(-1.0), "`df` must be positive"),
        (lambda: StudentT(3.0, 0.0), "`scale` must be positive"),
        (lambda: HalfCauchy(0.0), "`scale` must be positive"),
        (lambda: Gamma(1.0, -1.0), "`rate` must be positive"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_build_network_of_any_function_with_ordinal_targets(key):
    network = build_network(
        lambda w, x: x @ w["w"], lambda key: {"w": jnp.zeros((2, 1))}, likelihood=Ordinal(4)
    )
    position = network.init(key)
    p = network.predict(position, OUTPUTS[:, :2])
    np.testing.assert_allclose(p, 0.25, rtol=1e-5)
    slope = jax.grad(lambda q: network.log_likelihood(q, (OUTPUTS[:, :2], LABELS)).sum())(position)
    assert np.all(np.isfinite(slope["shared"])) and np.abs(slope["network"]["w"]).max() > 0.1
