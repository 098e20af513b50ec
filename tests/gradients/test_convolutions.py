"""Convolutions by products of matrices have the values and derivatives of XLA's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isotherm
from isotherm.gradients.convolutions import fast_convolutions

LAYOUTS = (
    ("NHWC", "HWIO", "NHWC"),
    ("NCHW", "OIHW", "NCHW"),
    ("CHWN", "IHWO", "NHWC"),
)
LENGTHS = {"N": 2, "H": 9, "W": 10, "C": 6}


def arrays(*shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def products_of(function, *arguments):
    """Return how many products of matrices a function has with its convolutions replaced."""
    return str(jax.make_jaxpr(fast_convolutions(function))(*arguments)).count("dot_general")


def same(function, *arguments):
    """Check values, and derivatives in both modes."""
    replaced = fast_convolutions(function)
    np.testing.assert_allclose(function(*arguments), replaced(*arguments), rtol=1e-4, atol=1e-4)
    tangents = tuple(map(np.cos, arguments))
    pair = [jax.jvp(f, arguments, tangents)[1] for f in (function, replaced)]
    np.testing.assert_allclose(*pair, rtol=1e-3, atol=1e-3)
    every = tuple(range(len(arguments)))
    pair = [
        jax.grad(lambda *given, f=f: jnp.sum(jnp.sin(f(*given))), every)(*arguments)
        for f in (function, replaced)
    ]
    for one, other in zip(*pair, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_every_kind_of_convolution(layout, groups):
    kernel = {"H": 3, "W": 2, "I": 6 // groups, "O": 12}
    x, w = arrays([LENGTHS[c] for c in layout[0]], [kernel[c] for c in layout[1]])
    kinds = [
        ((1, 1), "SAME", (1, 1), (1, 1)),
        ((2, 3), "VALID", (1, 1), (2, 2)),
        ((1, 2), [(2, -1), (0, 3)], (2, 1), (1, 2)),
    ]
    for strides, padding, gaps, holes in kinds:

        def convolve(x, w, options=(strides, padding, gaps, holes)):
            return jax.lax.conv_general_dilated(
                x, w, *options, dimension_numbers=layout, feature_group_count=groups
            )

        same(convolve, x, w)
        assert products_of(convolve, x, w) == 1


def convolve(x, w):
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")


def test_convolutions_are_found_in_calls_checkpoints_and_scans():
    x, w = arrays((2, 3, 5, 5), (3, 3, 3, 3))
    w = w / 5

    def blocks(x, w):
        block = jax.jit(jax.checkpoint(lambda h: jax.nn.relu(convolve(h, w) + h)))
        return jax.lax.scan(lambda h, _: (block(h), h.sum()), x, None, length=3)[0]

    same(blocks, x, w)
    assert products_of(blocks, x, w) == 1


def test_the_program_around_a_convolution_stays_as_it_is():
    """Random numbers, branches, functions with derivative rules, integers and unused results."""
    x, w = arrays((2, 1, 6, 6), (4, 1, 3, 3))

    @jax.custom_jvp
    def own(x):
        return jnp.sin(x)

    own.defjvp(lambda primals, tangents: (own(primals[0]), 7 * tangents[0]))

    def network(x, w, key):
        h = own(convolve(x, w))
        order = jnp.argsort(h.reshape(-1))[:5]
        h = jax.lax.cond(h.sum() > 0, lambda h: 2 * h, lambda h: -h, h)
        noise = jax.random.normal(key, h.shape)
        return {"out": (h + noise).reshape(-1)[order], "order": order, "constant": 3}

    key = jax.random.key(0)
    expected, found = network(x, w, key), fast_convolutions(network)(x, w, key)
    assert set(expected) == set(found)
    for name in expected:
        np.testing.assert_allclose(expected[name], found[name], rtol=1e-4, atol=1e-5)
    slope = [
        jax.grad(lambda w, f=f: f(x, w, key)["out"].sum())(w)
        for f in (network, fast_convolutions(network))
    ]
    np.testing.assert_allclose(*slope, rtol=1e-4, atol=1e-4)


def test_without_a_convolution_the_function_itself_is_called():
    traced = str(jax.make_jaxpr(fast_convolutions(jnp.tanh))(1.0))
    assert traced == str(jax.make_jaxpr(jnp.tanh)(1.0))


def test_half_precision_stays():
    x, w = (a.astype(jnp.bfloat16) for a in arrays((1, 2, 4, 4), (2, 2, 3, 3)))
    assert fast_convolutions(convolve)(x, w).dtype == jnp.bfloat16


def test_gradients_and_collectors_have_no_convolution_of_xla_on_a_cpu(key):
    """In the program that runs: a convolution inside a loop would be slow."""
    (x,) = arrays((20, 1, 6, 6))

    def per_image(w, x):
        return convolve(x, w).sum((1, 2, 3))

    grad_fn = isotherm.minibatch_gradient(
        lambda w, x: -(per_image(w, x) ** 2), lambda w: -jnp.sum(w**2), data_size=20
    )
    batches = isotherm.independent_batches(x, 4)
    sampler = isotherm.msgnht(isotherm.balanced(grad_fn), 0.01)
    start = jnp.zeros((2, 1, 3, 3))

    def program(key):
        return isotherm.run_chain(key, sampler, start, batches, num_draws=2)[0]

    text = jax.jit(program).lower(key).compile().as_text()
    assert "convolution(" not in text
    kept = {"outputs": isotherm.collect.draws(lambda w: per_image(w, x))}
    run = isotherm.sample(key, sampler, start, batches, num_draws=2, collect=kept)
    assert run.collected["outputs"].shape == (1, 2, 20)
    one = jax.tree.map(lambda leaf: leaf[0], run.state)
    assert "dot_general" in str(jax.make_jaxpr(kept["outputs"].value)(one))
