"""Convolution and pooling, implemented differently on CPUs and on other devices.

Inside a compiled loop on a CPU, XLA's convolution is several times slower than shifted slices and
one matrix product. On other devices XLA's own kernels are faster.
"""

import jax

from isotherm.gradients.convolutions import by_patches


def convolve(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolve images with a kernel, without padding ("valid").

    Parameters
    ----------
    images
        (image, row, column, channel in).
    kernel
        (row, column, channel in, channel out).
    """
    return jax.lax.platform_dependent(images, kernel, cpu=by_patches, default=by_xla)


def by_xla(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolve by XLA's own operation."""
    return jax.lax.conv_general_dilated(
        images, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def max_pool(images: jax.Array) -> jax.Array:
    """Return the maximum of every 2 x 2 pixels; the numbers of rows and columns must be even."""
    n, rows, columns, channels = images.shape
    return images.reshape(n, rows // 2, 2, columns // 2, 2, channels).max(axis=(2, 4))
