r"""Batches of data that are distributed over devices and hosts.

The $N$ rows are divided into $S$ *shards* of $N/S$ rows each. At every step each shard draws $n/S$
of its rows independently, with replacement, with its own key. All rows are equally probable, so

$$ \frac Nn \sum_{i \in \text{batch}} \nabla\log p(d_i \mid \theta) $$

is unbiased, independent from step to step, as thermostats assume, and no noisier than with $n$ rows
drawn from all data: there is no variance between shards. Shards are *logical*: the rows of a
batch are a function of the key, the step and $S$, not of the number of devices. The number of
devices only changes the order of summation.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from isotherm import random
from isotherm.batches.in_memory import describe_batches
from isotherm.io.digest import array_digest, digest
from isotherm.types import Batch, Key


def as_grid(mesh: Any) -> Mesh:
    """Return a mesh with axes `chain` and `data` from one that may lack one of them."""
    if not isinstance(mesh, Mesh):
        raise ValueError(f"`mesh` must be a jax.sharding.Mesh, got {type(mesh).__name__}.")
    names = mesh.axis_names
    if not names or not set(names) <= {"chain", "data"}:
        raise ValueError(f"`mesh` must have axes named `chain`, `data` or both, got {names}.")
    devices = mesh.devices.T if names == ("data", "chain") else mesh.devices
    if len(names) == 1:
        devices = devices.reshape((-1, 1) if names == ("chain",) else (1, -1))
    return Mesh(devices, ("chain", "data"))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class ShardedBatches:
    """Rows of data with leading axes `(shard, row)`; each shard draws its part of a batch."""

    data: Any
    batch_size: int = field(metadata={"static": True})
    policy: str = field(default="sharded", metadata={"static": True})

    def __repr__(self) -> str:
        """Describe the policy and the shapes of the data, (shard, row, …), in one line."""
        return describe_batches(self.policy, self.batch_size, self.data)

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return jax.tree.leaves(self.data)[0].shape[0]

    @property
    def shard_size(self) -> int:
        """Rows per shard."""
        return jax.tree.leaves(self.data)[0].shape[1]

    @property
    def data_size(self) -> int:
        """Number of rows in all shards."""
        return self.num_shards * self.shard_size

    def batch(self, key: Key, step_index: jax.Array) -> Batch:
        """Return the rows of the batch of a step, shard after shard."""
        step_key, each = random.fold(key, step_index), self.batch_size // self.num_shards

        def rows(shard: jax.Array) -> jax.Array:
            return random.indices(random.fold(step_key, shard), (each,), self.shard_size)

        def gather(leaf: jax.Array) -> jax.Array:
            drawn = jax.vmap(lambda shard, index: shard[index])(leaf, selected)
            return drawn.reshape(self.batch_size, *leaf.shape[2:])

        selected = jax.vmap(rows)(jnp.arange(self.num_shards))
        return jax.tree.map(gather, self.data)

    def data_digest(self) -> str:
        """Return a digest of all rows, by which a checkpoint recognises the data.

        Every process hashes its own shards, one by one; the digests of all shards are then shared,
        so that the result does not depend on how the shards are distributed.
        """
        leaves = jax.tree.leaves(self.data)
        digests = np.zeros((len(leaves), self.num_shards, 32), np.uint8)
        for each, leaf in zip(digests, leaves, strict=True):
            for part in leaf.addressable_shards:
                for i, number in enumerate(range(self.num_shards)[part.index[0]]):
                    each[number] = list(array_digest(part.data[i]))
        if jax.process_count() > 1:
            digests = np.asarray(multihost_utils.process_allgather(digests)).max(0)
        return digest(digests)


def sharded_batches(
    data: Any | Callable[[int], Any], batch_size: int, num_shards: int, mesh: Mesh | None = None
) -> ShardedBatches:
    """Return a policy that draws every batch independently, in equal parts from shards of the data.

    For several devices that work on the same batch.

    Parameters
    ----------
    data
        A pytree of arrays with the same first axis, which is divided into shards in order; or a
        function that reads a shard, `data(0)` to `data(num_shards - 1)`. With a `mesh` each process
        reads only the shards of its own devices.
    batch_size
        Rows per batch, a multiple of `num_shards`.
    num_shards
        Number of shards, which must be of equal size. Results depend on it, not on the number of
        devices: choose a multiple of every number of devices that you may use.
    mesh
        Devices on which to place the shards, along its axis `data`. Without it,
        `isotherm.sample(..., mesh=mesh)` places them.

    Examples
    --------
    >>> import jax, numpy as np
    >>> batches = sharded_batches(np.arange(12.0), batch_size=4, num_shards=2)
    >>> low, high = batches.batch(jax.random.key(0), 0).reshape(2, 2)
    >>> bool((low < 6).all() and (high >= 6).all())
    True
    """
    for name, value in (("batch_size", batch_size), ("num_shards", num_shards)):
        if not value >= 1:
            raise ValueError(f"`{name}` must be at least 1, got {value}.")
    if batch_size % num_shards:
        raise ValueError(
            f"`batch_size` must be a multiple of `num_shards`, got {batch_size} and {num_shards}."
        )
    if callable(data):
        cut = _read(data, num_shards, mesh)
    else:
        cut = jax.tree.map(lambda leaf: _cut(np.asarray(leaf), num_shards), data)
        cut = jax.tree.map(jnp.asarray, cut) if mesh is None else _spread(cut, mesh)
    shapes = [leaf.shape[:2] for leaf in jax.tree.leaves(cut)]
    if not shapes or 0 in shapes[0]:
        raise ValueError("`data` is empty: it must have at least one row.")
    if len(set(shapes)) > 1:
        rows = [shards * size for shards, size in shapes]
        raise ValueError(f"`data` must have leaves with the same first axis, got {rows} rows.")
    batches = ShardedBatches(cut, int(batch_size))
    if batch_size > batches.data_size:
        raise ValueError(
            f"`batch_size` is {batch_size}, but `data` has only {batches.data_size} rows."
        )
    return batches


def _cut(leaf: np.ndarray, num_shards: int) -> np.ndarray:
    rows = len(leaf) if leaf.ndim else 1
    if leaf.ndim == 0 or rows % num_shards:
        raise ValueError(
            f"`data` has {rows} rows, which cannot be divided into {num_shards} shards of equal "
            "size. Leave some rows out, or choose another `num_shards`."
        )
    return leaf.reshape(num_shards, rows // num_shards, *leaf.shape[1:])


def data_sharding(mesh: Mesh, num_shards: int) -> NamedSharding:
    """Return the sharding of the shards over a mesh with axes `chain` and `data`."""
    width = mesh.shape["data"]
    if num_shards % width:
        raise ValueError(
            f"`num_shards` must be a multiple of the mesh's axis `data`, got {num_shards} and "
            f"{width}."
        )
    return NamedSharding(mesh, PartitionSpec("data"))


def _spread(cut: Any, mesh: Mesh) -> Any:
    """Place the shards on the devices of this process."""
    leaves = jax.tree.leaves(cut)
    if not leaves:
        return cut
    sharding = data_sharding(as_grid(mesh), len(leaves[0]))
    return jax.tree.map(
        lambda leaf: jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index]),
        cut,
    )


def _read(read: Callable[[int], Any], num_shards: int, mesh: Mesh | None) -> Any:
    """Read the shards of the devices of this process, each once."""
    if mesh is None:
        return jax.tree.map(jnp.asarray, _stack([read(i) for i in range(num_shards)]))
    sharding = data_sharding(as_grid(mesh), num_shards)
    slices = sharding.addressable_devices_indices_map((num_shards,)).values()
    own = sorted({i for index in slices if index for i in range(num_shards)[index[0]]})
    local = _stack([read(i) for i in own])
    sizes = [leaf.shape[1] for leaf in jax.tree.leaves(local)]
    if jax.process_count() > 1:
        all_sizes = np.asarray(multihost_utils.process_allgather(np.array(sizes)))
        if (all_sizes != all_sizes[0]).any():
            _raise_unequal(sorted({int(size) for size in all_sizes[:, 0]}))
    row = {shard: i for i, shard in enumerate(own)}

    def put(leaf: np.ndarray) -> jax.Array:
        def part(index: Any) -> np.ndarray:
            return leaf[[row[i] for i in range(num_shards)[index[0]]]]

        return jax.make_array_from_callback((num_shards, *leaf.shape[1:]), sharding, part)

    return jax.tree.map(put, local)


def _stack(shards: list[Any]) -> Any:
    shards = [jax.tree.map(np.asarray, shard) for shard in shards]
    sizes = {leaf.shape[:1] for shard in shards for leaf in jax.tree.leaves(shard)}
    if len(sizes) > 1 or () in sizes:
        _raise_unequal(sorted(size[0] if size else 1 for size in sizes))
    return jax.tree.map(lambda *parts: np.stack(parts), *shards)


def _raise_unequal(sizes: list[int]) -> None:
    raise ValueError(
        f"All shards must have the same number of rows, got {sizes}: otherwise the rows of "
        "smaller shards would have a larger weight."
    )
