"""Chains on several devices and in several processes.

Devices form a grid with axes `chain` and `data`. Chains are distributed along `chain`. Where `data`
has one device, each device runs its chains *one after the other*: the program of a chain, and so
every bit of its result, is the same on any number of devices. Along `data` the devices share every
batch, with all chains of a device at once; XLA sums their gradients, once per gradient.

Every process runs the same Python code. What the host reads (draws, temperatures, which leaves are
finite) is the same in all of them, so they make the same decisions. Decisions that depend on a
clock or a signal go through `Devices.agree`.
"""

import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from isotherm.batches.sharded import ShardedBatches, as_grid, data_sharding
from isotherm.batches.streamed import StreamedBatches
from isotherm.exceptions import LostProcessError
from isotherm.loop import chunks
from isotherm.types import BatchPolicy, Key

ALL, CHAIN, PAGE = Spec(), Spec("chain"), Spec(None, "chain")

LAYOUTS = {
    chunks.advance: ((CHAIN, CHAIN, ALL, ALL, ALL), (CHAIN, CHAIN), 1),
    chunks.collect: ((CHAIN, CHAIN, CHAIN, ALL, ALL), (CHAIN, CHAIN, PAGE, CHAIN), 2),
    chunks.stream: ((CHAIN, CHAIN, CHAIN, CHAIN, ALL), (CHAIN, CHAIN, PAGE, CHAIN), 2),
    chunks.stream_shared: ((CHAIN, CHAIN, CHAIN, ALL, ALL), (CHAIN, CHAIN, PAGE, CHAIN), 2),
    chunks.step_size: ((CHAIN, CHAIN, ALL), (CHAIN,), 0),
}
"""Sharding of arguments and results, and how many results stay sharded; the host reads the rest."""

LOST = re.compile(r"(UNKNOWN|UNAVAILABLE|INTERNAL|ABORTED|CANCELLED|DEADLINE_EXCEEDED): ")
"""Status codes with which JAX's runtime reports a broken connection."""


class Share(NamedTuple):
    """What one process reads of streamed batches."""

    chains: tuple[int, ...]
    """Chains of this process."""
    rows: slice
    """Rows of every batch."""
    batch_size: int
    """Rows of a batch in all processes together."""


class Devices:
    """The devices of a run; without a mesh, the default device, and all methods are trivial."""

    def __init__(self, mesh: Mesh | None, num_chains: int, batches: BatchPolicy) -> None:
        self.grid, self.several, self.first = None, False, True
        if mesh is None:
            return
        self.grid = as_grid(mesh)
        self.several = self.grid.is_multi_process
        self.first = not self.several or jax.process_index() == 0
        height, width = self.grid.shape["chain"], self.grid.shape["data"]
        if num_chains % height:
            raise ValueError(
                f"`num_chains` must be a multiple of the mesh's axis `chain`, got {num_chains} and "
                f"{height}."
            )
        self.chains_each = num_chains // height
        if isinstance(batches, ShardedBatches):
            data_sharding(self.grid, batches.num_shards)
        elif width > 1 and not isinstance(batches, StreamedBatches):
            raise ValueError(
                f"`mesh` has {width} devices along `data`, but {batches.policy} batches cannot be "
                "shared: use isotherm.sharded_batches, or a mesh with an axis `chain` only."
            )

    def put_chains(self, tree: Any) -> Any:
        """Distribute a tree with a leading axis over chains."""
        return tree if self.grid is None else self._put(tree, CHAIN)

    def put_keys(self, keys: Key) -> Key:
        """Distribute the keys of chains."""
        if self.grid is None:
            return keys
        words = self._put(jax.random.key_data(keys), CHAIN)
        return jax.jit(partial(jax.random.wrap_key_data, impl=jax.random.key_impl(keys)))(words)

    def put_batches(self, batches: BatchPolicy) -> BatchPolicy:
        """Distribute shards; replicate other data."""
        if self.grid is None:
            return batches
        return self._put(batches, Spec("data") if isinstance(batches, ShardedBatches) else ALL)

    def share(self, num_chains: int, batch_size: int, reads_share: bool) -> Share:
        """Return which chains and rows of streamed batches this process reads.

        With `reads_share` a batch of this process has only its own rows.
        """
        if self.grid is None:
            return Share(tuple(range(num_chains)), slice(0, batch_size), batch_size)
        own = np.argwhere(
            np.vectorize(lambda device: device.process_index == jax.process_index())(
                self.grid.devices
            )
        )
        blocks, columns = (sorted(set(own[:, axis].tolist())) for axis in (0, 1))
        width = self.grid.shape["data"]
        if reads_share:
            batch_size = batch_size * width // len(columns)
        if batch_size % width or columns[-1] - columns[0] + 1 != len(columns):
            raise ValueError(
                "The rows of a batch must be divided evenly over the mesh's axis `data`, and those "
                f"of a process must be contiguous; got {batch_size} rows and {width} devices."
            )
        each = batch_size // width
        chains = [b * self.chains_each + i for b in blocks for i in range(self.chains_each)]
        return Share(tuple(chains), slice(columns[0] * each, (columns[-1] + 1) * each), batch_size)

    def put_stack(self, stack: Any, share: Share, *, shared: bool) -> Any:
        """Distribute a stack of batches of this process, with axes (chain, step, row)."""
        if shared:
            stack = jax.tree.map(lambda leaf: leaf[0], stack)
        if self.grid is None:
            return jax.device_put(stack)
        spec = Spec(None, "data") if shared else Spec("chain", None, "data")
        sharding = NamedSharding(self.grid, spec)
        num_chains = self.chains_each * self.grid.shape["chain"]
        where = {chain: i for i, chain in enumerate(share.chains)}

        def put(leaf: np.ndarray) -> jax.Array:
            chains = () if shared else (num_chains,)
            step, row = len(chains), len(chains) + 1
            shape = (*chains, leaf.shape[step], share.batch_size, *leaf.shape[row + 1 :])

            def part(index: Any) -> np.ndarray:
                first, last, _ = index[row].indices(share.batch_size)
                rows = slice(first - share.rows.start, last - share.rows.start)
                if shared:
                    return leaf[:, rows]
                return leaf[[where[c] for c in range(num_chains)[index[0]]]][:, :, rows]

            return jax.make_array_from_callback(shape, sharding, part)

        return jax.tree.map(put, stack)

    def gather_json(self, value: Any) -> list[Any]:
        """Return the values of all processes, in JSON terms."""
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        if not self.several:
            return [value]
        sizes = np.asarray(multihost_utils.process_allgather(np.array(text.size))).ravel()
        padded = np.zeros(int(sizes.max()), np.uint8)
        padded[: text.size] = text
        texts = np.asarray(multihost_utils.process_allgather(padded)).reshape(len(sizes), -1)
        return [json.loads(row[:size].tobytes()) for row, size in zip(texts, sizes, strict=True)]

    def _put(self, tree: Any, spec: Spec) -> Any:
        assert self.grid is not None
        sharding = NamedSharding(self.grid, spec)

        def put(leaf: Any) -> jax.Array:
            if isinstance(leaf, jax.Array):
                if leaf.sharding.is_equivalent_to(sharding, leaf.ndim) and spec != CHAIN:
                    return leaf
                if not leaf.is_fully_addressable:
                    return jax.device_put(leaf, sharding)
            host = np.array(leaf)  # a copy: chunks donate the memory of states
            return jax.make_array_from_callback(host.shape, sharding, lambda where: host[where])

        return jax.tree.map(put, tree)

    def gather(self, tree: Any) -> Any:
        """Copy what is distributed over several processes to each of them."""
        if not self.several:
            return tree
        assert self.grid is not None
        arrays = [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)]
        if all(x.is_fully_addressable or x.is_fully_replicated for x in arrays):
            return tree
        return jax.tree.map(np.asarray, _replicate(self.grid)(tree))

    def agree(self, *values: int) -> list[int]:
        """Return the largest value among the processes, for each number."""
        if not self.several:
            return list(values)
        return multihost_utils.process_allgather(np.array(values)).max(0).tolist()

    def check_same(self, advice: str, values: Mapping[str, Any]) -> None:
        """Raise an error with some advice if values differ between processes."""
        if self.several:
            code = zlib.crc32(json.dumps(values, sort_keys=True).encode())
            if len(set(multihost_utils.process_allgather(np.array(code)).ravel().tolist())) > 1:
                raise ValueError(f"The processes of this run differ: {advice}.")

    def compiled(self, function: Callable, *static: str, donate: bool = True) -> Callable:
        """Compile a chunk for these devices."""
        if self.grid is None:
            return chunks.compiled(function, *static, donate=donate)
        # An argument, not a constant: XLA would remove a loop of length 1, which changes rounding.
        return partial(_compiled(self.grid, function, static, donate), np.int32(self.chains_each))

    def lost_process_errors(self) -> AbstractContextManager[None]:
        """Raise `LostProcessError` inside the context if another process does not answer."""
        return lost_process_errors() if self.several else nullcontext()


@contextmanager
def lost_process_errors() -> Iterator[None]:
    """Turn errors of a broken connection into `LostProcessError`."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if not LOST.match(str(error)):
            raise
        raise LostProcessError(
            "Another process of this run has ended or cannot be reached. Restart all of them: with "
            "`checkpoint` the same call resumes the run, on any number of processes. "
            f"({str(error).splitlines()[0]})"
        ) from error


@cache
def _replicate(grid: Mesh) -> Callable:
    return jax.jit(lambda tree: tree, out_shardings=NamedSharding(grid, ALL))


@cache
def _compiled(grid: Mesh, function: Callable, static: tuple[str, ...], donate: bool) -> Callable:
    in_specs, out_specs, num_sharded = LAYOUTS[function]
    one_by_one = grid.shape["data"] == 1
    specs = (ALL, *in_specs) if one_by_one else in_specs
    replicated = NamedSharding(grid, ALL)

    def program(number: jax.Array, *arguments: Any, **fixed: Any) -> tuple:
        local = partial(function, **fixed)
        if one_by_one:
            local = partial(_one_by_one, local, in_specs, out_specs)
        mapped = jax.shard_map(
            local,
            mesh=grid,
            in_specs=specs,
            out_specs=out_specs,
            axis_names={"chain"},
            check_vma=False,
        )
        results = mapped(number, *arguments) if one_by_one else mapped(*arguments)
        if not grid.is_multi_process:
            return results
        read = jax.lax.with_sharding_constraint(results[num_sharded:], replicated)
        return (*results[:num_sharded], *read)

    return jax.jit(
        program,
        static_argnames=static,
        donate_argnums=1 if donate else (),
        compiler_options=chunks.compiler_options(),
    )


def _one_by_one(
    function: Callable,
    in_specs: Sequence[Spec],
    out_specs: Sequence[Spec],
    number: jax.Array,
    *arguments: Any,
) -> tuple:
    """Run one chain after the other, and concatenate their results."""
    num_chains = jax.tree.leaves(arguments[0])[0].shape[0]
    axes = [1 if spec == PAGE else 0 for spec in out_specs]

    def one(chain: int | jax.Array) -> tuple:
        own = [
            jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, chain, 1), argument)
            if spec == CHAIN
            else argument
            for argument, spec in zip(arguments, in_specs, strict=True)
        ]
        return function(*own)

    def empty(axis: int, like: Any) -> jax.Array:
        shape = (*like.shape[:axis], num_chains, *like.shape[axis + 1 :])
        return jnp.zeros(shape, like.dtype)

    def write(chain: jax.Array, axis: int, results: Any, own: Any) -> Any:
        put = partial(jax.lax.dynamic_update_slice_in_dim, start_index=chain, axis=axis)
        return jax.tree.map(put, results, own)

    def run(chain: jax.Array, results: tuple) -> tuple:
        return tuple(map(partial(write, chain), axes, results, one(chain)))

    shapes = jax.eval_shape(one, 0)
    start = tuple(
        jax.tree.map(partial(empty, axis), tree) for axis, tree in zip(axes, shapes, strict=True)
    )
    return jax.lax.fori_loop(0, number, run, start)
