"""Memory and disk that a run will need, computed from shapes before it starts.

Kept draws stay in host memory until the end, where the pages of all chunks are joined: for a moment
they are there twice. Accumulators of running collectors and states exist once on the device, once
more while they are copied, and once in the result. Temporary arrays of the compiled program (the
activations of a network) are known to the compiler: they are added when the program is compiled,
before it runs for the first time.
"""

import os
import shutil
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax

from isotherm.loop.chunks import Program, page_room
from isotherm.loop.state import Plan
from isotherm.tree import shapes_of, signature

CGROUP = Path("/sys/fs/cgroup")
SMALL_BYTES = 2**24
"""A run that needs less is not compared with what is free; Python with JAX needs ten times that."""


class Forecast(NamedTuple):
    """Bytes that a run will need."""

    draw: int
    """What is kept of one draw of one chain, statistics included."""
    draws: int
    """All kept draws of all chains."""
    page: int
    """Room for the draws of one chunk, on the device."""
    state: int
    """States of all chains."""
    accumulators: int
    """Accumulators of all running collectors and chains."""
    temporaries: int = 0
    """Temporary arrays of the compiled program; 0 as long as it is not compiled."""

    @property
    def memory(self) -> int:
        """Largest amount of memory at any time.

        While the program runs there are the pages made so far, and its temporary arrays; when the
        pages are joined, the draws are there twice.
        """
        running = self.draws + 2 * self.page + self.temporaries
        joining = 2 * self.draws
        return max(running, joining) + 3 * (self.state + self.accumulators)

    def disk(self, keep: int) -> int:
        """Return the size of a folder of checkpoints, while one more than `keep` is there."""
        return self.draws + (keep + 1) * (self.state + self.accumulators)


def forecast(program: Program, plan: Plan, state: Any) -> Forecast:
    """Compute what a run will need.

    Parameters
    ----------
    program, plan
        What the run does.
    state
        The states of all chains.
    """
    structure, leaves = signature(state)
    num_chains = leaves[0][0][0]
    draw, one, accumulators = _traced(program.fixed, structure, leaves)
    each = draw * num_chains
    return Forecast(
        draw,
        each * plan.num_draws,
        each * page_room(plan.num_draws, each),
        one * num_chains,
        accumulators * num_chains,
    )


@lru_cache(maxsize=16)
def _traced(program: Program, structure: Any, leaves: tuple) -> tuple[int, int, int]:
    """Return the bytes of one draw, and of the state and the accumulators of one chain.

    Cached, because tracing takes some milliseconds; compilation keeps the same programs anyway.
    """
    one = one_chain(structure, leaves)
    accumulators = jax.eval_shape(lambda s: [c.start(s) for _, c in program.running], one)
    return _size(program.observed(one)), _size(one), _size(accumulators)


@lru_cache(maxsize=16)
def one_chain(structure: Any, leaves: tuple) -> Any:
    """Return the shapes of the state of one chain, from the `tree.signature` of all of them."""
    return shapes_of(structure, tuple((shape[1:], dtype) for shape, dtype in leaves))


def _size(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def free_memory() -> int | None:
    """Return the bytes that this process can still allocate; `None` if that is not known.

    The memory of the machine, or what is left of the limit of its control group.
    """
    free = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        fields: Mapping[str, str] = dict(line.split(":") for line in lines)
        free.append(1024 * int(fields["MemAvailable"].split()[0]))
        limit, used = ((CGROUP / f"memory.{name}").read_text() for name in ("max", "current"))
        free.append(max(0, int(limit) - int(used)))
    except (OSError, ValueError, LookupError):  # not Linux, or no control group, or no limit
        pass
    return min(free, default=None)


def describe_shortage(
    needed: Forecast, plan: Plan, num_chains: int, max_memory: float | None
) -> str | None:
    """Return a message with numbers and remedies if there is too little memory; else `None`."""
    if max_memory is None and needed.memory < SMALL_BYTES:
        return None
    limit = free_memory() if max_memory is None else max_memory
    if limit is None or needed.memory <= limit:
        return None
    parts = [
        f"{num_chains} chains x {plan.num_draws:,} draws x {_text(needed.draw)} are "
        f"{_text(needed.draws)} of draws, twice while they are joined",
        f"{_text(needed.accumulators)} for collectors and {_text(needed.state)} for states, each "
        "three times",
    ]
    advice = ""
    if needed.temporaries:
        parts.append(f"{_text(needed.temporaries)} for temporary arrays of the compiled step")
        advice = "Use smaller batches or fewer chains at once for smaller temporary arrays. "
    limited = "are free" if max_memory is None else "are allowed by `max_memory`"
    return (
        f"This run needs about {_text(needed.memory)} of memory, but {_text(limit)} {limited}: "
        f"{'; '.join(parts)}. {advice}Keep less of each draw (`isotherm.collect.draws(f)`, "
        "`isotherm.collect.moments()`, `isotherm.collect.average(f)`), keep half the bytes "
        "(`isotherm.collect.draws(dtype='bfloat16')`), or fewer draws with a larger `thin`. "
        "`max_memory=float('inf')` runs it all the same."
    )


def describe_full_disk(
    needed: Forecast, folder: Path, keep: int, max_memory: float | None
) -> str | None:
    """Return a message if the disk of a folder is too small for checkpoints; else `None`."""
    if max_memory == float("inf"):
        return None
    size, free = needed.disk(keep), shutil.disk_usage(folder).free
    if size <= free or size <= free + sum(file.stat().st_size for file in os.scandir(folder)):
        return None
    return (
        f"Checkpoints of this run need about {_text(size)}, but the disk of `{folder}` has "
        f"{_text(free)} free. Keep less of each draw (`collect`), use another disk, or pass "
        "`max_memory=float('inf')` to run it all the same."
    )


def _text(size: float) -> str:
    """Return a number of bytes for people.

    >>> [_text(n) for n in (12, 3_400, 56_000_000, 7.8e9)]
    ['12 B', '3.4 kB', '56 MB', '7.8 GB']
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
