"""Convolution and pooling, in the form that is fast where the program runs.

XLA's convolution inside a compiled loop is slow on a CPU: shifted slices and one matrix product
do the same in a fraction of the time. Elsewhere the library's own kernels are better.
"""

import jax
import jax.numpy as jnp


def convolve(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Slide a kernel over images, where it fits entirely ("valid").

    Parameters
    ----------
    images
        (image, row, column, channel in).
    kernel
        (row, column, channel in, channel out).
    """
    return jax.lax.platform_dependent(images, kernel, cpu=by_patches, default=by_xla)


def by_patches(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Put beside every pixel its neighbours under the kernel, and take one matrix product."""
    height, width, channels, out = kernel.shape
    rows, columns = images.shape[1] - height + 1, images.shape[2] - width + 1
    patches = [
        images[:, i : i + rows, j : j + columns] for i in range(height) for j in range(width)
    ]
    return jnp.concatenate(patches, axis=-1) @ kernel.reshape(height * width * channels, out)


def by_xla(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolve as XLA does."""
    return jax.lax.conv_general_dilated(
        images, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def max_pool(images: jax.Array) -> jax.Array:
    """Take the largest of every 2 x 2 pixels; rows and columns must be even in number."""
    n, rows, columns, channels = images.shape
    return images.reshape(n, rows // 2, 2, columns // 2, 2, channels).max(axis=(2, 4))
