r"""A counter-based random number generator that XLA fuses into the update.

JAX's generators write their numbers to memory, which more than doubles the cost of a step on a CPU.
Here every number is a pure function of *(key, element index)*: the index plus one word of the key
goes through three bijective rounds of xor-shift and multiplication, and the other word of the key
is added after the first round. XLA fuses these operations into the expression that uses the
number. A longer hash derives new keys from a key (`fold`), so that the numbers of a chain
depend only on its key and the step number. Results are therefore independent of the chunks that
a run is divided into, of the number of devices, and of interruptions.

Keys are ordinary typed JAX keys and can also be used with `jax.random`. The words of
`jax.random.key(seed)` are 0 and the seed. If the first word is constant, element $i$ is
$g(c_i \oplus m)$ with a bijection $g$, constants $c_i$ and a hash $m$ of the seed. An element then
never has the same value for two seeds, which independent numbers sometimes have; and two seeds
whose $m$ differ by $c_i \oplus c_j$ have the same number in elements $i$ and $j$, and some have the
same pairs of neighbours. A first word of 0 is therefore replaced by a hash of the second. Keys
from `fold` or `jax.random.split` have a first word of 0 only once in $2^{32}$.

The generator is not cryptographic. `tests/test_random.py` has statistical tests: bit balance,
counts, pair counts, correlations across elements, steps, leaves and chains, collisions across
seeds. `soak/generator.py` runs TestU01.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from isotherm.fast_math import normal_quantile
from isotherm.types import ArrayTree, Key

Noise = Callable[[Key, ArrayTree], ArrayTree]
"""`(key, like) -> noise`: independent numbers of mean 0 and variance 1, shaped like `like`."""

_inlined = partial(jax.jit, inline=True)
"""Compile as one program when called directly; inline into a surrounding program."""

_GOLDEN = np.uint32(0x9E3779B9)  # 2**32 / golden ratio: spreads consecutive counters


def _mix(x: jax.Array) -> jax.Array:
    """Permute the 32-bit integers (a multiply-xorshift finaliser of two rounds)."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _hash(counter: jax.Array, k0: jax.Array, k1: jax.Array) -> jax.Array:
    # The constant is added because 0, as from an all-zero key, is a fixed point of `_mix`.
    return _mix(_mix(counter * _GOLDEN + k0 + np.uint32(0x6A09E667)) ^ k1)


def _words(key: Key) -> list[jax.Array]:
    """Return the 32-bit words of a key, by static slices so that XLA can fuse them."""
    words = jax.random.key_data(key)
    return [jax.lax.index_in_dim(words, i, axis=-1, keepdims=False) for i in range(words.shape[-1])]


@_inlined
def fold(key: Key, number: int | jax.Array) -> Key:
    """Derive a new key from `key` and a number, as `jax.random.fold_in` does, but fused.

    Different numbers below $2^{32}$ always give different keys.

    Examples
    --------
    >>> import jax
    >>> key = jax.random.key(0)
    >>> bool(jax.random.key_data(fold(key, 1))[0] == jax.random.key_data(fold(key, 2))[0])
    False
    """
    words, counter = _words(key), jnp.asarray(number).astype(jnp.uint32)
    # A different constant for each word makes the words of the new key unrelated.
    folded = [
        _hash(counter, word + np.uint32(0x3C6EF372 + 2 * i + 1), words[(i + 1) % len(words)])
        for i, word in enumerate(words)
    ]
    return jax.random.wrap_key_data(jnp.stack(folded), impl=jax.random.key_impl(key))


@partial(_inlined, static_argnames=("shape", "stream"))
def bits(key: Key, shape: tuple[int, ...] = (), stream: int = 0) -> jax.Array:
    """Draw 32 random bits per element; the streams of a key are independent of each other."""
    k0, k1, *_ = _words(key)
    # The words of `jax.random.key(seed)` are (0, seed). With a constant first word, the numbers of
    # different seeds would be related (see above). These are scalar operations, none per element.
    return _rounds(jnp.where(k0 == 0, _mix(k1 + np.uint32(0xBB67AE85)), k0), k1, shape, stream)


def numpy_seed(key: Key) -> int:
    """Return a seed below $2^{24}$ for a NumPy generator.

    The first word of the key is used as it is, also if it is 0: a bijection of the seed, cut to 24
    bits, is what a seed needs.

    Examples
    --------
    >>> import jax
    >>> numpy_seed(jax.random.key(0)) == numpy_seed(jax.random.key(1))
    False
    """
    k0, k1, *_ = _words(key)
    return int(_rounds(k0, k1, (), 0) >> 8)


def _rounds(k0: jax.Array, k1: jax.Array, shape: tuple[int, ...], stream: int) -> jax.Array:
    """Hash the indices of the elements, given the two words of a key."""
    size = int(np.prod(shape, dtype=np.int64))
    tag = np.uint32(stream * 0x85EBCA6B & 0xFFFFFFFF)
    # The constant is added because 0, as from an all-zero key, is a fixed point of every round.
    x = jax.lax.iota(jnp.uint32, size) + _mix(k0 + tag + np.uint32(0x6A09E667))
    x = (x ^ (x >> 16)) * np.uint32(0xED5AD4BB) ^ _mix(k1 ^ tag)
    x = (x ^ (x >> 15)) * np.uint32(0xAC4C1B51)
    x = (x ^ (x >> 15)) * np.uint32(0x31848BAB)
    return (x ^ (x >> 14)).reshape(shape)


def _uniform(key: Key, shape: tuple[int, ...], dtype: jnp.dtype, stream: int) -> jax.Array:
    """Draw from the open interval (-1, 1), on a symmetric lattice of 24 (float64: 52) bits."""
    if dtype == jnp.float64:
        high, low = bits(key, shape, stream), bits(key, shape, stream + 1)
        lattice = (high >> 6).astype(dtype) * 2.0**26 + (low >> 6).astype(dtype)
        return lattice * 2.0**-51 + (2.0**-52 - 1)
    return (bits(key, shape, stream) >> 8).astype(dtype) * np.float32(2.0**-23) + np.float32(
        2.0**-24 - 1
    )


def _working_dtype(leaf: jax.Array) -> jnp.dtype:
    return jnp.promote_types(leaf.dtype, jnp.float32)


def _per_leaf(draw: Callable[[Key, tuple[int, ...], jnp.dtype, int], jax.Array]) -> Noise:
    @_inlined
    def noise(key: Key, like: ArrayTree) -> ArrayTree:
        leaves, structure = jax.tree.flatten(like)
        numbers = [
            draw(key, leaf.shape, _working_dtype(leaf), 2 * i) for i, leaf in enumerate(leaves)
        ]
        return jax.tree.unflatten(structure, numbers)

    return noise


def _gaussian(key: Key, shape: tuple[int, ...], dtype: jnp.dtype, stream: int) -> jax.Array:
    return normal_quantile(_uniform(key, shape, dtype, stream))


def _three_point(key: Key, shape: tuple[int, ...], dtype: jnp.dtype, stream: int) -> jax.Array:
    sixth = 2**32 / 6
    x, root_three = bits(key, shape, stream), jnp.asarray(np.sqrt(3.0), dtype)
    low, high = x < np.uint32(round(sixth)), x >= np.uint32(2**32 - round(sixth))
    return jnp.where(low, -root_three, jnp.where(high, root_three, jnp.zeros((), dtype)))


gaussian: Noise = _per_leaf(_gaussian)
three_point: Noise = _per_leaf(_three_point)

NOISES: dict[str, Noise] = {"gaussian": gaussian, "three-point": three_point}


def as_noise(noise: str | Noise) -> Noise:
    r"""Return the noise with this name; a function is returned as it is.

    `"gaussian"` is normal. `"three-point"` takes the values $-\sqrt3, 0, \sqrt3$ with
    probabilities 1/6, 2/3, 1/6. It has the first five moments of a normal, which are all that
    matters to a weak second-order scheme (Kloeden & Platen; Milstein & Tretyakov), and is cheaper.
    """
    if callable(noise):
        return noise
    if not isinstance(noise, str) or noise not in NOISES:
        raise ValueError(f"`noise` must be one of {sorted(NOISES)} or a function, got {noise!r}.")
    return NOISES[noise]


def _multiply_high(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the high and the low 32 bits of a product of 32-bit integers."""
    mask = np.uint32(0xFFFF)
    a_low, a_high, b_low, b_high = a & mask, a >> 16, b & mask, b >> 16
    low, middle = a_low * b_low, a_high * b_low
    middle_low = (middle & mask) + a_low * b_high + (low >> 16)
    return a_high * b_high + (middle >> 16) + (middle_low >> 16), a * b


@partial(_inlined, static_argnames=("shape", "size"))
def indices(key: Key, shape: tuple[int, ...], size: int) -> jax.Array:
    r"""Draw independent integers uniformly from 0 to `size - 1`.

    They are $\lfloor u\,N \rfloor$ with a 64-bit $u$, so the relative bias is below $N/2^{64}$.
    """
    n = jnp.asarray(size, jnp.uint32)
    high, low = _multiply_high(bits(key, shape), n)
    carry, _ = _multiply_high(bits(key, shape, stream=1), n)
    return (high + (low + carry < low)).astype(jnp.int32)


@partial(_inlined, static_argnames="size")
def permuted(key: Key, index: jax.Array, size: int) -> jax.Array:
    r"""Return entries of a random permutation of 0 … `size - 1` without building it.

    A Feistel network on $\mathbb Z_a \times \mathbb Z_b$ with $ab \ge N$ is a bijection for every
    round function; it is applied again to the few images that are not below $N$. The permutation is
    a function of the key, needs no memory, and any entry can be computed alone.
    """
    a = int(np.ceil(np.sqrt(size)))
    b = -(-size // a)
    rounds = [_words(fold(key, r)) for r in range(8)]

    def encrypt(x: jax.Array) -> jax.Array:
        left, right = x // np.uint32(b), x % np.uint32(b)
        for r, words in enumerate(rounds):
            if r % 2:
                right = (right + _hash(left, words[0], words[1]) % np.uint32(b)) % np.uint32(b)
            else:
                left = (left + _hash(right, words[0], words[1]) % np.uint32(a)) % np.uint32(a)
        return left * np.uint32(b) + right

    def outside(x: jax.Array) -> jax.Array:
        return jnp.any(x >= np.uint32(size))

    def again(x: jax.Array) -> jax.Array:
        return jnp.where(x >= np.uint32(size), encrypt(x), x)

    image = encrypt(jnp.asarray(index).astype(jnp.uint32))
    return jax.lax.while_loop(outside, again, image).astype(jnp.int32)
