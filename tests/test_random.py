"""The generator behaves like independent uniform bits over elements, steps, leaves and chains.

Each statistical test states its false-alarm rate; seeds are fixed. The mutants are typical errors
of such generators: a raw counter, one round of the hash, keys that only shift a sequence.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from isotherm import random
from marks import slow

FALSE_ALARM = 1e-5


def grid_of_bits(key, num_keys=512, size=512, how=lambda key, i: random.fold(key, i)):
    """Return bits by (key, element): rows differ in the key, columns in the counter."""
    return np.asarray(
        jax.jit(jax.vmap(lambda i: random.bits(how(key, i), (size,))))(jnp.arange(num_keys))
    )


@jax.jit
def streams_of_bits(key):
    return jnp.stack([random.bits(key, (4096,), stream=s) for s in range(64)])


SOURCES = {
    "step keys": grid_of_bits,
    "chain then step keys": lambda key: grid_of_bits(
        key, how=lambda k, i: random.fold(random.fold(k, i % 16), i // 16)
    ),
    "leaves": lambda key: np.asarray(streams_of_bits(key)),
    "key zero": lambda key: grid_of_bits(jax.random.key(0)),
    "jax keys": lambda key: np.asarray(
        jax.vmap(lambda k: random.bits(k, (512,)))(jax.random.split(key, 512))
    ),
    "keys of seeds": lambda key: grid_of_bits(key, how=lambda key, i: jax.random.key(i)),
}


def balance_p_value(x):
    """Each of the 32 bits is 1 with probability one half."""
    ones = ((x.ravel()[:, None] >> np.arange(32, dtype=np.uint32)) & 1).sum(0)
    z = (ones - x.size / 2) / np.sqrt(x.size / 4)
    return 32 * 2 * stats.norm.sf(np.abs(z).max())


def counts_p_value(x, shift):
    """Eight bits, starting at `shift`, have their 256 values equally often."""
    counts = np.bincount(((x.ravel() >> np.uint32(shift)) & 255).astype(int), minlength=256)
    return stats.chisquare(counts).pvalue


def pairs_p_value(x, axis, lag):
    """Pairs at a lag are uniform on a 32 x 32 table (five high bits of each)."""
    a = np.moveaxis(x, axis, 0)
    high, low = (a[lag:] >> np.uint32(27)).astype(int), (a[:-lag] >> np.uint32(27)).astype(int)
    return stats.chisquare(np.bincount((32 * high + low).ravel(), minlength=1024)).pvalue


def flip_p_value(x, axis, lag):
    """The number of different bits of pairs at a lag is binomial (32 fair coins)."""
    a = np.moveaxis(x, axis, 0)
    flips = np.bitwise_count(a[lag:] ^ a[:-lag]).ravel()
    expected = stats.binom(32, 0.5).pmf(np.arange(33))
    counts = np.bincount(flips, minlength=33)
    keep = slice(6, 27)  # merge the tails
    observed = np.r_[counts[:6].sum(), counts[keep], counts[27:].sum()]
    exact = np.r_[expected[:6].sum(), expected[keep], expected[27:].sum()] * flips.size
    return stats.chisquare(observed, exact * observed.sum() / exact.sum()).pvalue


def correlation_p_value(x, axis, lag):
    """Gaussian numbers from pairs at a lag are uncorrelated, and so are their squares."""
    z = stats.norm.ppf((x.astype(np.float64) + 0.5) / 2**32)
    worst = 0.0
    for y in (z, (z**2 - 1) / np.sqrt(2)):
        a = np.moveaxis(y, axis, 0)
        worst = max(worst, abs((a[lag:] * a[:-lag]).sum() / np.sqrt(a[lag:].size)))
    return 2 * 2 * stats.norm.sf(worst)


def all_p_values(x):
    yield balance_p_value(x)
    for shift in (0, 8, 16, 24):
        yield counts_p_value(x, shift)
    for axis in (0, 1):
        for lag in (1, 2, 7, 16):
            yield pairs_p_value(x, axis, lag)
            yield flip_p_value(x, axis, lag)
            yield correlation_p_value(x, axis, lag)


@pytest.mark.parametrize(
    "source", [slow(name) if name == "leaves" else name for name in SOURCES], ids=list(SOURCES)
)
def test_bits_look_independent_across_elements_steps_leaves_and_chains(key, source):
    assert min(all_p_values(SOURCES[source](key))) > FALSE_ALARM


def mutants(key):
    words = np.asarray(jax.random.key_data(key))
    i, j = np.meshgrid(
        np.arange(512, dtype=np.uint32), np.arange(512, dtype=np.uint32), indexing="ij"
    )
    golden = np.uint32(0x9E3779B9)
    mix = jax.jit(random._mix)
    yield "a raw counter", j * golden + words[0] + i
    yield "keys that shift the sequence", np.asarray(mix((i + j) * golden + words[0]))
    one_round = (j ^ (j >> 16)) * np.uint32(0x7FEB352D) ^ i
    yield "half a round", one_round


def test_the_tests_detect_bad_generators(key):
    for name, x in mutants(key):
        assert min(all_p_values(x)) < FALSE_ALARM, name


def plain_words(key, shape):
    """A mutant: the first word of a key is used as it is, 0 for every key of a seed."""
    k0, k1 = random._words(key)
    return random._rounds(k0, k1, shape, 0)


def repeated(x):
    return x.size - len(np.unique(x))


def first_numbers_p_value(draw):
    """The first numbers of 2^20 seeds agree as often as independent ones (128 times)."""
    first = jax.jit(jax.vmap(lambda seed: draw(jax.random.key(seed), ())))
    count, law = repeated(np.asarray(first(jnp.arange(2**20)))), stats.poisson(2**39 / 2**32)
    return 2 * min(law.cdf(count), law.sf(count - 1))


def shared_pairs(draw):
    """Count neighbouring pairs that repeat among 16 numbers of 2^18 seeds (none if independent)."""
    rows = jax.jit(jax.vmap(lambda seed: draw(jax.random.key(seed), (16,))))
    x = np.asarray(rows(jnp.arange(2**18))).astype(np.uint64)
    return repeated((x[:, 0::2] << np.uint64(32)) | x[:, 1::2])


@pytest.mark.slow
def test_the_numbers_of_different_seeds_are_unrelated():
    assert first_numbers_p_value(random.bits) > FALSE_ALARM
    assert first_numbers_p_value(plain_words) < FALSE_ALARM
    assert shared_pairs(random.bits) == 0  # 1e-7 are expected
    assert shared_pairs(plain_words) > 0


FOLDED = {  # (seed, numbers folded in, stream): the first bits, as they have always been
    (0, (0,), 0): (0xAB340D4D, 0xEEF4F39C, 0x91684F45),
    (0, (0,), 3): (0x1B5DEC10, 0x3C524EAB, 0xB32978E6),
    (0, (1,), 0): (0x0420830C, 0x3034A241, 0x6E447FC2),
    (1, (0, 0, 7), 0): (0xC3BBFD1D, 0x43889CCC, 0xFA556781),
    (1, (0, 0, 7), 3): (0x9861A6D8, 0x212B371D, 0x2D8A4E2F),
    (2**32 - 1, (3, 0, 123_456_789), 0): (0xCC437274, 0xDFD826E3, 0xC62906CC),
}
NUMPY_SEEDS = {0: 12492574, 1: 5858454, 7: 6678211}


def test_same_seed_same_numbers():
    for (seed, numbers, stream), expected in FOLDED.items():
        key = jax.random.key(seed)
        for number in numbers:
            key = random.fold(key, number)
        np.testing.assert_array_equal(random.bits(key, (3,), stream), np.uint32(expected))
    for seed, expected in NUMPY_SEEDS.items():
        assert random.numpy_seed(jax.random.key(seed)) == expected


def test_gaussian_and_three_point_have_their_law(key):
    like = jnp.zeros(400_000)
    z = np.asarray(random.gaussian(key, like), np.float64)
    assert stats.kstest(z, "norm").pvalue > FALSE_ALARM
    r = np.asarray(random.three_point(key, like))
    values, counts = np.unique(r, return_counts=True)
    np.testing.assert_allclose(values, [-np.sqrt(3), 0, np.sqrt(3)], rtol=1e-6)
    assert stats.chisquare(counts, len(r) * np.array([1, 4, 1]) / 6).pvalue > FALSE_ALARM
    for draws, sixth in ((z, 15.0), (r.astype(np.float64), 9.0)):
        for power, exact in {1: 0, 2: 1, 3: 0, 4: 3, 5: 0, 6: sixth}.items():
            x = draws**power
            assert abs(x.mean() - exact) < 5 * x.std() / np.sqrt(len(x)) + 1e-6


def test_gaussian_tails_reach_five_sigma(key):
    z = random.gaussian(key, jnp.zeros(4_000_000))
    assert 4.7 < float(jnp.abs(z).max()) < 5.7


def test_double_precision_noise_uses_all_its_bits(key):
    with jax.enable_x64(True):
        z = np.asarray(random.gaussian(key, jnp.zeros(100_000, jnp.float64)))
        assert z.dtype == np.float64
        assert stats.kstest(z, "norm").pvalue > FALSE_ALARM
        assert not np.array_equal(z, z.astype(np.float32).astype(np.float64))


def test_keys_of_other_implementations_work(key):
    rbg = jax.random.key(3, impl="rbg")
    folded = random.fold(rbg, 5)
    assert jax.random.key_impl(folded) == "rbg"
    assert jax.random.key_data(folded).shape == (4,)
    assert (
        stats.kstest(np.asarray(random.gaussian(folded, jnp.zeros(10_000))), "norm").pvalue > 1e-3
    )


@pytest.mark.parametrize("seed", [0, 1, 2**31])
def test_the_first_number_of_a_small_key_is_not_extreme(seed):
    first = np.asarray(random.gaussian(jax.random.key(seed), jnp.zeros(4)))
    assert np.abs(first).max() < 4
    assert int(random.bits(jax.random.key(seed))) != 0


def test_fold_never_collides_for_one_key(key):
    words = jax.vmap(lambda i: jax.random.key_data(random.fold(key, i)))(jnp.arange(200_000))
    assert len(np.unique(np.asarray(words)[:, 0])) == 200_000


@pytest.mark.parametrize("size", [1, 7, 1000, 32_561])
def test_indices_are_uniform(key, size):
    x = np.asarray(random.indices(key, (200_000,), size))
    assert x.min() >= 0
    assert x.max() < size
    cells = min(size, 500)
    counts = np.bincount(x.astype(np.int64) * cells // size, minlength=cells)
    edges = -(-np.arange(cells + 1) * size // cells)  # first index of every cell
    assert (
        stats.chisquare(counts, 200_000 * np.diff(edges) / size).pvalue > FALSE_ALARM or size == 1
    )


def test_wide_multiplication_is_exact():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2**32, (2, 1000), dtype=np.uint64)
    high, low = random._multiply_high(
        jnp.asarray(a.astype(np.uint32)), jnp.asarray(b.astype(np.uint32))
    )
    product = a * b
    np.testing.assert_array_equal(high, (product >> np.uint64(32)).astype(np.uint32))
    np.testing.assert_array_equal(low, product.astype(np.uint32))


@pytest.mark.parametrize("size", [1, slow(2), slow(3), 10, slow(97), 1000, slow(4096)])
def test_permuted_is_a_permutation(key, size):
    image = np.asarray(random.permuted(key, jnp.arange(size), size))
    assert sorted(image) == list(range(size))


def test_small_permutations_are_all_equally_likely(key):
    keys = jax.vmap(lambda i: random.fold(key, i))(jnp.arange(48_000))
    images = np.asarray(jax.vmap(lambda k: random.permuted(k, jnp.arange(4), 4))(keys))
    _, counts = np.unique(images @ np.array([64, 16, 4, 1]), return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_unknown_noise_is_refused():
    with pytest.raises(ValueError, match="`noise` must be one of"):
        random.as_noise("uniform")
