"""The models of `models.py`: six small networks in Flax NNX, linen, Equinox and plain JAX.

All classify 8 x 8 digits, given as rows of 64 numbers. A builder takes a key and training rows and
returns a position and a pure `apply(position, x)`. Networks with batch normalisation are trained
first, in training mode; an adapter belongs to a frozen network that was trained on the same digits
turned by 90 degrees. All others are returned at their random weights.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx

import isotherm

SIDE, CLASSES = 8, 10
HIDDEN = 32
CHANNELS = (6, 8)
FEATURES = 32
"""Numbers after both convolutions, which halve the sides."""
WIDTH, HEADS, DEPTH = 16, 2, 2
RANK = 4

Rows = tuple[np.ndarray, np.ndarray]
Built = tuple[Any, Callable[[Any, jax.Array], jax.Array]]


def train(key: jax.Array, loss: Callable, params: Any, state: Any, rows: Rows, steps=800) -> Any:
    """Return parameters and state after Adam on minibatches; `loss` returns a value and a state."""
    optimizer = optax.adam(optax.cosine_decay_schedule(0.01, steps))
    batches = isotherm.independent_batches(rows, 100)

    @jax.jit
    def run(params: Any, state: Any) -> Any:
        def step(t: jax.Array, carry: Any) -> Any:
            params, state, memory = carry
            gradient = jax.grad(loss, has_aux=True)
            grads, state = gradient(params, state, *batches.batch(key, t))
            updates, memory = optimizer.update(grads, memory)
            return optax.apply_updates(params, updates), state, memory

        return jax.lax.fori_loop(0, steps, step, (params, state, optimizer.init(params)))[:2]

    return run(params, state)


def cross_entropy(outputs: jax.Array, y: jax.Array) -> jax.Array:
    """Return the mean negative log likelihood."""
    return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()


def turned(rows: Rows) -> Rows:
    """Return the digits turned by 90 degrees."""
    x, y = rows
    return np.rot90(x.reshape(-1, SIDE, SIDE), axes=(1, 2)).reshape(len(x), -1), y


def pretrained(key: jax.Array, rows: Rows) -> Any:
    """Return the weights of a plain network of one hidden layer, trained on turned digits."""
    network = isotherm.models.mlp((SIDE**2, HIDDEN, CLASSES))

    def loss(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        return cross_entropy(network.apply(params, x), y), state

    return train(key, loss, network.init(key), (), turned(rows))[0]


# --- Flax NNX ---------------------------------------------------------------------------------


class NnxConvolutions(nnx.Module):
    """Two convolutions with normalisation, two pixels apart."""

    def __init__(self, norm: Any, rngs: nnx.Rngs) -> None:
        first, second = CHANNELS
        self.conv1, self.norm1 = nnx.Conv(1, first, (3, 3), 2, rngs=rngs), norm(first, rngs=rngs)
        self.conv2, self.norm2 = (
            nnx.Conv(first, second, (3, 3), 2, rngs=rngs),
            norm(second, rngs=rngs),
        )
        self.head = nnx.Linear(FEATURES, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the outputs of rows."""
        x = x.reshape(-1, SIDE, SIDE, 1)
        for conv, norm in ((self.conv1, self.norm1), (self.conv2, self.norm2)):
            x = nnx.relu(norm(conv(x)))
        return self.head(x.reshape(len(x), -1))


class NnxBlock(nnx.Module):
    """Attention and a feed-forward layer, normalised before."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm1, self.norm2 = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the next activations."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class NnxTransformer(nnx.Module):
    """A transformer whose tokens are the rows of an image."""

    def __init__(self, scanned: bool, rngs: nnx.Rngs) -> None:
        self.scanned = scanned
        self.embed = nnx.Linear(SIDE, WIDTH, rngs=rngs)
        self.places = nnx.Param(0.02 * jax.random.normal(rngs.params(), (SIDE, WIDTH)))
        if scanned:
            make = nnx.vmap(NnxBlock, in_axes=(0,), out_axes=0)
            self.blocks = nnx.split_rngs(splits=DEPTH)(make)(rngs)
        else:
            self.blocks = nnx.List([NnxBlock(rngs) for _ in range(DEPTH)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the outputs of rows."""
        x = self.embed(x.reshape(-1, SIDE, SIDE)) + self.places[...][None]
        if self.scanned:
            scan = nnx.scan(lambda x, block: block(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            x = scan(x, self.blocks)
        else:
            for block in self.blocks:
                x = block(x)
        return self.head(self.norm(x).mean(1))


def nnx_mlp(key: jax.Array, rows: Rows) -> Built:
    """Build a network of dense layers."""
    rngs = nnx.Rngs(key)
    first, last = nnx.Linear(SIDE**2, HIDDEN, rngs=rngs), nnx.Linear(HIDDEN, CLASSES, rngs=rngs)
    return isotherm.from_nnx(nnx.Sequential(first, nnx.relu, last))[:2]


def nnx_batch_norm(key: jax.Array, rows: Rows) -> Built:
    """Build convolutions with batch normalisation, trained."""
    module = NnxConvolutions(nnx.BatchNorm, nnx.Rngs(key))
    graph, params, state = nnx.split(module, nnx.Param, ...)

    def loss(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        whole = nnx.merge(graph, params, state, copy=True)
        value = cross_entropy(whole(x), y)
        return value, nnx.split(whole, nnx.Param, ...)[2]

    params, state = train(key, loss, params, state, rows)
    return isotherm.from_nnx(nnx.merge(graph, params, state))[:2]


def nnx_layer_norm(key: jax.Array, rows: Rows) -> Built:
    """Build convolutions with layer normalisation."""
    return isotherm.from_nnx(NnxConvolutions(nnx.LayerNorm, nnx.Rngs(key)))[:2]


def nnx_transformer(key: jax.Array, rows: Rows) -> Built:
    """Build a transformer."""
    return isotherm.from_nnx(NnxTransformer(False, nnx.Rngs(key)))[:2]


def nnx_scanned(key: jax.Array, rows: Rows) -> Built:
    """Build a transformer whose blocks are scanned."""
    return isotherm.from_nnx(NnxTransformer(True, nnx.Rngs(key)))[:2]


def nnx_lora(key: jax.Array, rows: Rows) -> Built:
    """Build adapters of a frozen network."""
    rngs, layers = nnx.Rngs(key), []
    for weights, bias in pretrained(key, rows):
        layer = nnx.LoRALinear(*weights.shape, lora_rank=RANK, rngs=rngs)
        layer.kernel[...], layer.bias[...] = weights, bias
        layers += [layer, nnx.relu]
    return isotherm.from_nnx(nnx.Sequential(*layers[:-1]), wrt=nnx.LoRAParam)[:2]


# --- Flax linen -------------------------------------------------------------------------------


class LinenMlp(linen.Module):
    """One hidden layer."""

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the outputs of rows."""
        return linen.Dense(CLASSES)(linen.relu(linen.Dense(HIDDEN)(x)))


class LinenConvolutions(linen.Module):
    """Two convolutions with normalisation, two pixels apart."""

    batch_norm: bool

    @linen.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Return the outputs of rows."""
        x = x.reshape(-1, SIDE, SIDE, 1)
        for channels in CHANNELS:
            x = linen.Conv(channels, (3, 3), 2)(x)
            batch_norm = linen.BatchNorm(use_running_average=not train, momentum=0.9)
            x = batch_norm(x) if self.batch_norm else linen.LayerNorm()(x)
            x = linen.relu(x)
        return linen.Dense(CLASSES)(x.reshape(len(x), -1))


class LinenBlock(linen.Module):
    """Attention and a feed-forward layer, normalised before."""

    @linen.compact
    def __call__(self, x: jax.Array, _: Any = None) -> Any:
        """Return the next activations, and `None` as a scan needs it."""
        y = linen.LayerNorm()(x)
        x = x + linen.MultiHeadDotProductAttention(HEADS, qkv_features=WIDTH)(y, y)
        y = linen.gelu(linen.Dense(2 * WIDTH)(linen.LayerNorm()(x)))
        return x + linen.Dense(WIDTH)(y), None


class LinenTransformer(linen.Module):
    """A transformer whose tokens are the rows of an image."""

    scanned: bool

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the outputs of rows."""
        places = self.param("places", linen.initializers.normal(0.02), (SIDE, WIDTH))
        x = linen.Dense(WIDTH)(x.reshape(-1, SIDE, SIDE)) + places[None]
        if self.scanned:
            settings = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
            x, _ = linen.scan(LinenBlock, length=DEPTH, **settings)()(x, None)
        else:
            for _ in range(DEPTH):
                x, _ = LinenBlock()(x)
        return linen.Dense(CLASSES)(linen.LayerNorm()(x).mean(1))


class LinenAdapted(linen.Module):
    """Dense layers with adapters of low rank."""

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the outputs of rows."""
        for i, width in enumerate((HIDDEN, CLASSES)):
            start = linen.initializers.he_uniform()
            a = self.param(f"lora_a{i}", start, (x.shape[-1], RANK))
            b = self.param(f"lora_b{i}", linen.initializers.zeros, (RANK, width))
            x = linen.Dense(width, name=f"dense{i}")(x) + x @ a @ b
            x = linen.relu(x) if width == HIDDEN else x
        return x


def _linen(module: linen.Module, key: jax.Array, rows: Rows, **settings: Any) -> Built:
    variables = module.init(key, jnp.asarray(rows[0][:2]))
    return isotherm.from_linen(module, variables, **settings)[:2]


def linen_mlp(key: jax.Array, rows: Rows) -> Built:
    """Build a network of dense layers."""
    return _linen(LinenMlp(), key, rows)


def linen_batch_norm(key: jax.Array, rows: Rows) -> Built:
    """Build convolutions with batch normalisation, trained."""
    module = LinenConvolutions(True)
    variables = module.init(key, jnp.asarray(rows[0][:2]))

    def loss(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        outputs, changed = module.apply(
            {"params": params, "batch_stats": state}, x, train=True, mutable=["batch_stats"]
        )
        return cross_entropy(outputs, y), changed["batch_stats"]

    params, state = train(key, loss, variables["params"], variables["batch_stats"], rows)
    trained = {"params": params, "batch_stats": state}
    return isotherm.from_linen(module, trained, train=False)[:2]


def linen_layer_norm(key: jax.Array, rows: Rows) -> Built:
    """Build convolutions with layer normalisation."""
    return _linen(LinenConvolutions(False), key, rows)


def linen_transformer(key: jax.Array, rows: Rows) -> Built:
    """Build a transformer."""
    return _linen(LinenTransformer(False), key, rows)


def linen_scanned(key: jax.Array, rows: Rows) -> Built:
    """Build a transformer whose blocks are scanned."""
    return _linen(LinenTransformer(True), key, rows)


def linen_lora(key: jax.Array, rows: Rows) -> Built:
    """Build adapters of a frozen network."""
    module = LinenAdapted()
    params = dict(module.init(key, jnp.asarray(rows[0][:2]))["params"])
    for i, (weights, bias) in enumerate(pretrained(key, rows)):
        params[f"dense{i}"] = {"kernel": weights, "bias": bias}
    sampled = lambda path: path.startswith("lora")  # noqa: E731
    return isotherm.from_linen(module, {"params": params}, wrt=sampled)[:2]


# --- Equinox ----------------------------------------------------------------------------------


class EqxConvolutions(eqx.Module):
    """Two convolutions with normalisation, two pixels apart, for one row."""

    convs: list
    norms: list
    head: eqx.nn.Linear
    batch_norm: bool = eqx.field(static=True)

    def __init__(self, batch_norm: bool, key: jax.Array) -> None:
        first, second = CHANNELS
        keys = jax.random.split(key, 3)
        self.batch_norm = batch_norm
        self.convs = [
            eqx.nn.Conv2d(1, first, 3, 2, padding=1, key=keys[0]),
            eqx.nn.Conv2d(first, second, 3, 2, padding=1, key=keys[1]),
        ]
        self.norms = [
            eqx.nn.BatchNorm(channels, "batch", mode="ema")
            if batch_norm
            else eqx.nn.LayerNorm((channels, size, size))
            for channels, size in ((first, SIDE // 2), (second, SIDE // 4))
        ]
        self.head = eqx.nn.Linear(FEATURES, CLASSES, key=keys[2])

    def __call__(self, x: jax.Array, state: Any = None) -> Any:
        """Return the outputs of a row, and the state."""
        x = x.reshape(1, SIDE, SIDE)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = conv(x)
            if self.batch_norm:
                x, state = norm(x, state)
            else:
                x = norm(x)
            x = jax.nn.relu(x)
        return self.head(x.reshape(-1)), state


class EqxBlock(eqx.Module):
    """Attention and a feed-forward layer, normalised before."""

    norm1: eqx.nn.LayerNorm
    norm2: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, 3)
        self.norm1, self.norm2 = eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=keys[0])
        self.up = eqx.nn.Linear(WIDTH, 2 * WIDTH, key=keys[1])
        self.down = eqx.nn.Linear(2 * WIDTH, WIDTH, key=keys[2])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the next activations of one sequence."""
        y = jax.vmap(self.norm1)(x)
        x = x + self.attention(y, y, y)
        y = jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.norm2)(x)))
        return x + jax.vmap(self.down)(y)


class EqxTransformer(eqx.Module):
    """A transformer whose tokens are the rows of an image, for one image."""

    embed: eqx.nn.Linear
    places: jax.Array
    blocks: Any
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear
    scanned: bool = eqx.field(static=True)

    def __init__(self, scanned: bool, key: jax.Array) -> None:
        keys = jax.random.split(key, 4)
        self.scanned = scanned
        self.embed = eqx.nn.Linear(SIDE, WIDTH, key=keys[0])
        self.places = 0.02 * jax.random.normal(keys[1], (SIDE, WIDTH))
        each = jax.random.split(keys[2], DEPTH)
        self.blocks = eqx.filter_vmap(EqxBlock)(each) if scanned else [EqxBlock(k) for k in each]
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.head = eqx.nn.Linear(WIDTH, CLASSES, key=keys[3])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the outputs of a row."""
        x = jax.vmap(self.embed)(x.reshape(SIDE, SIDE)) + self.places
        if self.scanned:
            arrays, rest = eqx.partition(self.blocks, eqx.is_array)

            def body(x: jax.Array, layer: Any) -> Any:
                return eqx.combine(layer, rest)(x), None

            x, _ = jax.lax.scan(body, x, arrays)
        else:
            for block in self.blocks:
                x = block(x)
        return self.head(jax.vmap(self.norm)(x).mean(0))


class EqxAdapted(eqx.Module):
    """A dense layer with an adapter of low rank."""

    layer: eqx.nn.Linear
    a: jax.Array
    b: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the outputs of a row."""
        return self.layer(x) + self.b @ (self.a @ x)


class EqxAdaptedMlp(eqx.Module):
    """Dense layers with adapters."""

    layers: list

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the outputs of a row."""
        first, last = self.layers
        return last(jax.nn.relu(first(x)))


def eqx_mlp(key: jax.Array, rows: Rows) -> Built:
    """Build a network of dense layers."""
    return isotherm.from_equinox(eqx.nn.MLP(SIDE**2, CLASSES, HIDDEN, 1, key=key))[:2]


def eqx_batch_norm(key: jax.Array, rows: Rows) -> Built:
    """Build convolutions with batch normalisation, trained."""
    module, state = eqx.nn.make_with_state(EqxConvolutions)(True, key)
    params, static = eqx.partition(module, eqx.is_inexact_array)

    def loss(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        whole = eqx.combine(params, static)
        rows = jax.vmap(whole, in_axes=(0, None), out_axes=(0, None), axis_name="batch")
        outputs, state = rows(x, state)
        return cross_entropy(outputs, y), state

    params, state = train(key, loss, params, state, rows)

    def call(module: Any, x: jax.Array) -> jax.Array:
        return jax.vmap(lambda row: module(row, state)[0])(x)

    return isotherm.from_equinox(eqx.combine(params, static), call=call)[:2]


def eqx_layer_norm(key: jax.Array, rows: Rows) -> Built:
    """Build convolutions with layer normalisation."""

    def call(module: Any, x: jax.Array) -> jax.Array:
        return jax.vmap(lambda row: module(row)[0])(x)

    return isotherm.from_equinox(EqxConvolutions(False, key), call=call)[:2]


def eqx_transformer(key: jax.Array, rows: Rows) -> Built:
    """Build a transformer."""
    return isotherm.from_equinox(EqxTransformer(False, key))[:2]


def eqx_scanned(key: jax.Array, rows: Rows) -> Built:
    """Build a transformer whose blocks are scanned."""
    return isotherm.from_equinox(EqxTransformer(True, key))[:2]


def eqx_lora(key: jax.Array, rows: Rows) -> Built:
    """Build adapters of a frozen network."""
    layers = []
    for i, (weights, bias) in enumerate(pretrained(key, rows)):
        n_in, n_out = weights.shape
        layer = eqx.nn.Linear(n_in, n_out, key=key)
        layer = eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, (weights.T, bias))
        a = jax.random.normal(jax.random.fold_in(key, i), (RANK, n_in)) * (2 / n_in) ** 0.5
        layers.append(EqxAdapted(layer, a, jnp.zeros((n_out, RANK))))
    module = EqxAdaptedMlp(layers)
    nothing = jax.tree.map(lambda _: False, module)
    adapters = eqx.tree_at(
        lambda m: [leaf for layer in m.layers for leaf in (layer.a, layer.b)], nothing, [True] * 4
    )
    return isotherm.from_equinox(module, filter_spec=adapters)[:2]


# --- Plain JAX --------------------------------------------------------------------------------


def normal(key: jax.Array, *shape: int, fan_in: int) -> jax.Array:
    """Draw initial weights."""
    return jax.random.normal(key, shape) * fan_in**-0.5


def dense(key: jax.Array, n_in: int, n_out: int) -> dict[str, jax.Array]:
    """Return the weights of a dense layer."""
    return {"kernel": normal(key, n_in, n_out, fan_in=n_in), "bias": jnp.zeros(n_out)}


def affine(layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Return the outputs of a dense layer."""
    return x @ layer["kernel"] + layer["bias"]


def norm_start(size: int) -> dict[str, jax.Array]:
    """Return scale and bias of a normalisation."""
    return {"scale": jnp.ones(size), "bias": jnp.zeros(size)}


def normalized(norm: dict[str, jax.Array], x: jax.Array, mean: Any, variance: Any) -> jax.Array:
    """Return normalised activations."""
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * norm["scale"] + norm["bias"]


def layer_norm(norm: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Normalise over the last axis."""
    return normalized(norm, x, x.mean(-1, keepdims=True), x.var(-1, keepdims=True))


def convolution_start(key: jax.Array) -> Any:
    """Return the weights of two convolutions, their normalisations, and the head."""
    first, second = CHANNELS
    keys = jax.random.split(key, 3)
    return {
        "conv1": {"kernel": normal(keys[0], 3, 3, 1, first, fan_in=9)},
        "conv2": {"kernel": normal(keys[1], 3, 3, first, second, fan_in=9 * first)},
        "norm1": norm_start(first),
        "norm2": norm_start(second),
        "head": dense(keys[2], FEATURES, CLASSES),
    }


def convolutions(params: Any, x: jax.Array, norm: Callable[[str, jax.Array], jax.Array]) -> Any:
    """Return the outputs; `norm(name, x)` normalises."""
    x = x.reshape(-1, SIDE, SIDE, 1)
    for i in (1, 2):
        kernel, numbers = params[f"conv{i}"]["kernel"], ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=numbers)
        x = jax.nn.relu(norm(f"norm{i}", x))
    return affine(params["head"], x.reshape(len(x), -1))


def block_start(key: jax.Array) -> Any:
    """Return the weights of a block."""
    keys = jax.random.split(key, 4)
    return {
        "norm1": norm_start(WIDTH),
        "norm2": norm_start(WIDTH),
        "qkv": dense(keys[0], WIDTH, 3 * WIDTH),
        "out": dense(keys[1], WIDTH, WIDTH),
        "up": dense(keys[2], WIDTH, 2 * WIDTH),
        "down": dense(keys[3], 2 * WIDTH, WIDTH),
    }


def block(params: Any, x: jax.Array) -> jax.Array:
    """Return the next activations, (rows, tokens, width)."""
    rows, tokens, _ = x.shape
    qkv = affine(params["qkv"], layer_norm(params["norm1"], x))
    q, k, v = qkv.reshape(rows, tokens, 3, HEADS, WIDTH // HEADS).transpose(2, 0, 3, 1, 4)
    weights = jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) * (WIDTH // HEADS) ** -0.5)
    mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(rows, tokens, WIDTH)
    x = x + affine(params["out"], mixed)
    inner = jax.nn.gelu(affine(params["up"], layer_norm(params["norm2"], x)))
    return x + affine(params["down"], inner)


def transformer(key: jax.Array, run_blocks: Callable[[Any, jax.Array], jax.Array], blocks: Any):
    """Return the weights of a transformer, and its function."""
    keys = jax.random.split(key, 3)
    position = {
        "embed": dense(keys[0], SIDE, WIDTH),
        "places": 0.02 * jax.random.normal(keys[1], (SIDE, WIDTH)),
        "blocks": blocks,
        "norm": norm_start(WIDTH),
        "head": dense(keys[2], WIDTH, CLASSES),
    }

    def apply(position: Any, x: jax.Array) -> jax.Array:
        x = affine(position["embed"], x.reshape(-1, SIDE, SIDE)) + position["places"]
        x = run_blocks(position["blocks"], x)
        return affine(position["head"], layer_norm(position["norm"], x).mean(1))

    return position, apply


def plain_mlp(key: jax.Array, rows: Rows) -> Built:
    """Build a network of dense layers."""
    network = isotherm.models.mlp((SIDE**2, HIDDEN, CLASSES))
    return network.init(key), network.apply


def plain_batch_norm(key: jax.Array, rows: Rows) -> Built:
    """Build convolutions with batch normalisation, trained."""
    start = convolution_start(key)
    known = {f"norm{i + 1}": (jnp.zeros(c), jnp.ones(c)) for i, c in enumerate(CHANNELS)}

    def loss(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        after = {}

        def norm(name: str, x: jax.Array) -> jax.Array:
            new = x.mean((0, 1, 2)), x.var((0, 1, 2))
            after[name] = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, state[name], new)
            return normalized(params[name], x, *new)

        return cross_entropy(convolutions(params, x, norm), y), after

    params, state = train(key, loss, start, known, rows)

    def apply(position: Any, x: jax.Array) -> jax.Array:
        return convolutions(
            position, x, lambda name, x: normalized(position[name], x, *state[name])
        )

    return params, apply


def plain_layer_norm(key: jax.Array, rows: Rows) -> Built:
    """Build convolutions with layer normalisation."""

    def apply(position: Any, x: jax.Array) -> jax.Array:
        return convolutions(position, x, lambda name, x: layer_norm(position[name], x))

    return convolution_start(key), apply


def plain_transformer(key: jax.Array, rows: Rows) -> Built:
    """Build a transformer."""

    def run_blocks(blocks: Sequence[Any], x: jax.Array) -> jax.Array:
        for params in blocks:
            x = block(params, x)
        return x

    blocks = [block_start(k) for k in jax.random.split(jax.random.fold_in(key, 1), DEPTH)]
    return transformer(key, run_blocks, blocks)


def plain_scanned(key: jax.Array, rows: Rows) -> Built:
    """Build a transformer whose blocks are scanned."""

    def run_blocks(blocks: Any, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, params: (block(params, x), None), x, blocks)[0]

    blocks = jax.vmap(block_start)(jax.random.split(jax.random.fold_in(key, 1), DEPTH))
    return transformer(key, run_blocks, blocks)


def plain_lora(key: jax.Array, rows: Rows) -> Built:
    """Build adapters of a frozen network."""
    frozen = pretrained(key, rows)
    keys = jax.random.split(key, len(frozen))
    position = [
        {"a": normal(k, len(w), RANK, fan_in=len(w)), "b": jnp.zeros((RANK, w.shape[1]))}
        for k, (w, _) in zip(keys, frozen, strict=True)
    ]

    def apply(position: Any, x: jax.Array) -> jax.Array:
        for (weights, bias), adapter in zip(frozen, position, strict=True):
            x = x @ weights + bias + x @ adapter["a"] @ adapter["b"]
            x = jax.nn.relu(x) if len(bias) == HIDDEN else x
        return x

    return position, apply


MODELS: dict[str, dict[str, Callable[[jax.Array, Rows], Built]]] = {
    "MLP": {"NNX": nnx_mlp, "linen": linen_mlp, "Equinox": eqx_mlp, "plain JAX": plain_mlp},
    "CNN, BatchNorm": {
        "NNX": nnx_batch_norm,
        "linen": linen_batch_norm,
        "Equinox": eqx_batch_norm,
        "plain JAX": plain_batch_norm,
    },
    "CNN, LayerNorm": {
        "NNX": nnx_layer_norm,
        "linen": linen_layer_norm,
        "Equinox": eqx_layer_norm,
        "plain JAX": plain_layer_norm,
    },
    "transformer": {
        "NNX": nnx_transformer,
        "linen": linen_transformer,
        "Equinox": eqx_transformer,
        "plain JAX": plain_transformer,
    },
    "scanned transformer": {
        "NNX": nnx_scanned,
        "linen": linen_scanned,
        "Equinox": eqx_scanned,
        "plain JAX": plain_scanned,
    },
    "LoRA": {"NNX": nnx_lora, "linen": linen_lora, "Equinox": eqx_lora, "plain JAX": plain_lora},
}
"""Builders by network and library."""
