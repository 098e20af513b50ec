"""Convolutions inside compiled loops on a CPU: one step, in a loop of XLA and called from Python.

A network of two convolutions (5 x 5, 16 and 32 channels) and one dense layer on images of 28 x 28
pixels, batches of 100: the gradient of its log likelihood and one small step along it. XLA's own
convolution is compared with products of matrices (`isotherm.gradients.convolutions`), which
`isotherm.minibatch_gradient` puts in its place, for one chain and for two in one program. The base
is a compiled step with XLA's convolution, called from Python. Contestants take turns; the table has
the fastest of several rounds, and the median of the ratios to the base. Writes
`docs/results/convolutions.json`.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from reporting import RESULTS, machine, rotated, write_document
from rich.console import Console

from isotherm.gradients.convolutions import fast_convolutions
from isotherm.loop import compiler_options

STEPS = 3


def log_likelihood(weights: dict[str, jax.Array], images: jax.Array) -> jax.Array:
    for name in ("first", "second"):
        images = jax.lax.conv_general_dilated(
            images, weights[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        images = jax.lax.reduce_window(
            jax.nn.relu(images), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )
    return jax.nn.log_softmax(images.reshape(len(images), -1) @ weights["dense"])[:, 0]


def contestants() -> dict[str, Callable[[], Any]]:
    """Return functions that make steps, by name; that of two chains makes half as many."""
    shapes = {"first": (5, 5, 1, 16), "second": (5, 5, 16, 32), "dense": (7 * 7 * 32, 10)}
    keys = iter(jax.random.split(jax.random.key(0), 4))
    weights = {
        name: jax.random.normal(next(keys), shape) / np.sqrt(np.prod(shape[:-1]))
        for name, shape in shapes.items()
    }
    images = jax.random.normal(next(keys), (100, 28, 28, 1))

    def step(function: Callable) -> Callable:
        def move(weights: Any) -> Any:
            grads = jax.grad(lambda w: function(w, images).mean())(weights)
            return jax.tree.map(lambda w, g: w + 1e-6 * g, weights, grads)

        return move

    def loop(move: Callable, number: int = STEPS) -> Callable:
        return jax.jit(
            lambda w: jax.lax.fori_loop(0, number, lambda _, w: move(w), w),
            compiler_options=compiler_options(),
        )

    by_xla, by_products = step(log_likelihood), step(fast_convolutions(log_likelihood))
    called = jax.jit(by_xla)
    two = jax.tree.map(lambda w: jnp.stack([w, 0.9 * w]), weights)
    loops = {"XLA's": loop(by_xla), "products of matrices": loop(by_products)}
    both = loop(jax.vmap(by_products), 2)

    def from_python() -> Any:
        moved = weights
        for _ in range(STEPS):
            moved = called(moved)
        return moved

    return {
        "XLA's convolution, called from Python": from_python,
        "XLA's convolution, compiled loop": lambda: loops["XLA's"](weights),
        "products of matrices, compiled loop": lambda: loops["products of matrices"](weights),
        "products of matrices, compiled loop, two chains": lambda: both(two),
    }


def main() -> None:
    """Measure some rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round, written nowhere")
    options = parser.parse_args()
    about, functions = machine(("isotherm", "jax", "jaxlib", "numpy")), contestants()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(-1, 1 if options.quick else options.rounds):
        for name in rotated(list(functions), max(number, 0)):
            began = time.perf_counter()
            jax.block_until_ready(functions[name]())
            steps = 4 if "two chains" in name else STEPS
            if number >= 0:  # the first round compiles
                times[name].append(1000 * (time.perf_counter() - began) / steps)
    base = next(iter(times.values()))
    rows = [
        {
            "step": name,
            "ms per step and chain": min(each),
            "over the base": median(a / b for a, b in zip(each, base, strict=True)),
        }
        for name, each in times.items()
    ]
    for row in rows:
        text = f"{row['step']:50} {row['ms per step and chain']:7.1f} ms"
        Console().print(f"{text} {row['over the base']:6.2f}")
    if not options.quick:
        document = {"machine": about, "rows": rows, "rounds": times}
        write_document(RESULTS / "convolutions.json", document)


if __name__ == "__main__":
    main()
