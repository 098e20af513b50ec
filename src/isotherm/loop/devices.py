"""Chains on several devices, and in several processes: who does what, and how all come to the same decisions.

Devices form a grid with axes `chain` and `data`. Chains are dealt out along `chain`. Where `data` has one device, each runs its
chains *one after the other*: a chain's program, and so every bit of it, is the same on any number of devices. Along `data`
the devices share every batch, all chains of a device at once; XLA adds up their gradients, once per gradient.

Every process runs the same Python. What the host reads (draws, temperatures, what is finite) is the same in all of them, and so
are its decisions. What a clock or a signal decides is agreed upon: `agree`.
"""

import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from isotherm.batches.sharded import ShardedBatches, as_grid, data_sharding
from isotherm.exceptions import LostProcessError
from isotherm.loop import chunks
from isotherm.types import BatchPolicy, Key

ALL, CHAIN, PAGE = Spec(), Spec("chain"), Spec(None, "chain")

LAYOUTS = {
    chunks.advance: ((CHAIN, CHAIN, ALL, ALL, ALL), (CHAIN, CHAIN), 1),
    chunks.collect: ((CHAIN, CHAIN, CHAIN, ALL, ALL), (CHAIN, CHAIN, PAGE, CHAIN), 2),
    chunks.step_size: ((CHAIN, CHAIN, ALL), (CHAIN,), 0),
}
"""Where arguments and results lie, and how many results stay there; the host reads the others."""


LOST = re.compile(r"(UNKNOWN|UNAVAILABLE|INTERNAL|ABORTED|CANCELLED|DEADLINE_EXCEEDED): ")
"""How JAX's runtime begins what it says of a broken connection, in exceptions of several types."""


class Devices:
    """The devices of a run; `None` is one device, and nothing to do."""

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
                f"`num_chains` must be a multiple of the mesh's axis `chain`, got {num_chains} and {height}."
            )
        self.chains_each = num_chains // height
        if isinstance(batches, ShardedBatches):
            data_sharding(self.grid, batches.num_shards)
        elif width > 1:
            raise ValueError(
                f"`mesh` has {width} devices along `data`, but {batches.policy} batches cannot be shared: use "
                "isotherm.sharded_batches, or an axis `chain` only."
            )

    def put_chains(self, tree: Any) -> Any:
        """Deal out what has a leading axis of chains."""
        return tree if self.grid is None else self._put(tree, CHAIN)

    def put_keys(self, keys: Key) -> Key:
        """Deal out the chains' keys."""
        if self.grid is None:
            return keys
        words = self._put(jax.random.key_data(keys), CHAIN)
        return jax.jit(partial(jax.random.wrap_key_data, impl=jax.random.key_impl(keys)))(words)

    def put_batches(self, batches: BatchPolicy) -> BatchPolicy:
        """Deal out shards, and give everyone a copy of other data."""
        if self.grid is None:
            return batches
        return self._put(batches, Spec("data") if isinstance(batches, ShardedBatches) else ALL)

    def _put(self, tree: Any, spec: Spec) -> Any:
        assert self.grid is not None
        sharding = NamedSharding(self.grid, spec)

        def put(leaf: Any) -> jax.Array:
            if isinstance(leaf, jax.Array):
                if leaf.sharding.is_equivalent_to(sharding, leaf.ndim) and spec != CHAIN:
                    return leaf
                if not leaf.is_fully_addressable:
                    return jax.device_put(leaf, sharding)
            host = np.array(leaf)  # a copy: chunks reuse the memory of states
            return jax.make_array_from_callback(host.shape, sharding, lambda where: host[where])

        return jax.tree.map(put, tree)

    def whole(self, tree: Any) -> Any:
        """Give what lies on the devices of all processes to each of them."""
        if not self.several:
            return tree
        assert self.grid is not None
        there = [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)]
        if all(x.is_fully_addressable or x.is_fully_replicated for x in there):
            return tree
        return jax.tree.map(np.asarray, _copied(self.grid)(tree))

    def agree(self, *values: int) -> list[int]:
        """Give the largest of what the processes have, number by number."""
        if not self.several:
            return list(values)
        return multihost_utils.process_allgather(np.array(values)).max(0).tolist()

    def same(self, what: str, told: Mapping[str, Any]) -> None:
        """Refuse to go on if processes differ in something."""
        if self.several:
            code = zlib.crc32(json.dumps(told, sort_keys=True).encode())
            if len(set(multihost_utils.process_allgather(np.array(code)).ravel().tolist())) > 1:
                raise ValueError(f"The processes of this run differ: {what}.")

    def compiled(self, function: Callable, *static: str, donate: bool = True) -> Callable:
        """Compile a chunk for these devices."""
        if self.grid is None:
            return chunks.compiled(function, *static, donate=donate)
        # How many chains a device has is no constant of the program: a loop over one would be compiled as none.
        return partial(_compiled(self.grid, function, static, donate), np.int32(self.chains_each))

    def together(self) -> AbstractContextManager[None]:
        """Say what it means if the others do not answer."""
        return others_answer() if self.several else nullcontext()


@contextmanager
def others_answer() -> Iterator[None]:
    """Say what it means if another process does not."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if not LOST.match(str(error)):
            raise
        raise LostProcessError(
            "Another process of this run has ended or cannot be reached. Start all of them again: with `checkpoint` the "
            f"same call goes on from what was saved, with as many processes as there are. ({str(error).splitlines()[0]})"
        ) from error


@cache
def _copied(grid: Mesh) -> Callable:
    return jax.jit(lambda tree: tree, out_shardings=NamedSharding(grid, ALL))


@cache
def _compiled(grid: Mesh, function: Callable, static: tuple[str, ...], donate: bool) -> Callable:
    takes, gives, num_stay = LAYOUTS[function]
    alone = grid.shape["data"] == 1
    where = (ALL, *takes) if alone else takes
    copies = NamedSharding(grid, ALL)

    def program(number: jax.Array, *arguments: Any, **fixed: Any) -> tuple:
        local = partial(function, **fixed)
        if alone:
            local = partial(_one_by_one, local, takes, gives)
        spread = jax.shard_map(
            local, mesh=grid, in_specs=where, out_specs=gives, axis_names={"chain"}, check_vma=False
        )
        results = spread(number, *arguments) if alone else spread(*arguments)
        if not grid.is_multi_process:
            return results
        read = jax.lax.with_sharding_constraint(results[num_stay:], copies)
        return (*results[:num_stay], *read)

    return jax.jit(
        program,
        static_argnames=static,
        donate_argnums=1 if donate else (),
        compiler_options=chunks.compiler_options(),
    )


def _one_by_one(
    function: Callable,
    takes: Sequence[Spec],
    gives: Sequence[Spec],
    number: jax.Array,
    *arguments: Any,
) -> tuple:
    """Run chain after chain, and put their results side by side."""
    num_chains = jax.tree.leaves(arguments[0])[0].shape[0]
    axes = [1 if spec == PAGE else 0 for spec in gives]

    def one(chain: int | jax.Array) -> tuple:
        own = [
            jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, chain, 1), argument)
            if spec == CHAIN
            else argument
            for argument, spec in zip(arguments, takes, strict=True)
        ]
        return function(*own)

    def room(axis: int, like: Any) -> jax.Array:
        shape = (*like.shape[:axis], num_chains, *like.shape[axis + 1 :])
        return jnp.zeros(shape, like.dtype)

    def write(chain: jax.Array, axis: int, found: Any, own: Any) -> Any:
        put = partial(jax.lax.dynamic_update_slice_in_dim, start_index=chain, axis=axis)
        return jax.tree.map(put, found, own)

    def run(chain: jax.Array, found: tuple) -> tuple:
        return tuple(map(partial(write, chain), axes, found, one(chain)))

    shapes = jax.eval_shape(one, 0)
    start = tuple(
        jax.tree.map(partial(room, axis), tree) for axis, tree in zip(axes, shapes, strict=True)
    )
    return jax.lax.fori_loop(0, number, run, start)
