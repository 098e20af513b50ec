"""Growth: time and memory of a step as rows, parameters, chains, topics and vocabulary grow.

Every point is a process of its own. Its memory is the largest resident memory minus what the
process had after importing the libraries and running one small program; data and compilation are
included. Time is the fastest of five repetitions after one that compiles. The slope is that of a
straight line through the logarithms: 0 means that the cost does not depend on the size, 1 that it
is proportional to the size. If a slope is in between, part of the cost is fixed; the slope of the
last two points shows the trend. Writes `docs/results/growth.json` and a figure.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from reporting import (
    RESULTS,
    alone,
    machine,
    megabytes,
    peak_megabytes,
    save,
    short,
    write_document,
)
from rich.progress import track

PACKAGES = ("isotherm", "jax", "numpy", "numba")
BATCH, REPETITIONS = 100, 5


def measured(run: Callable[[], object], steps: int, before: float) -> dict[str, float]:
    """Return time per step and memory of `run`, which makes `steps` steps."""
    run()
    times = []
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return {
        "ms per step": 1000 * min(times) / steps,
        "megabytes": max(peak_megabytes() - before, 0.0),
    }


def ready() -> float:
    """Import and initialize JAX; return the memory of the process."""
    import jax.numpy as jnp

    jnp.ones(3).sum().block_until_ready()
    return megabytes()


def regression(rows: int = 10_000, features: int = 100, chains: int = 1, steps: int = 500) -> dict:
    """Measure the sampling of a linear regression that keeps only moments."""
    import jax
    import jax.numpy as jnp

    import isotherm

    before = ready()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, features), dtype=np.float32)
    data = (jnp.asarray(x), jnp.asarray(x[:, 0]))
    grad_fn = isotherm.minibatch_gradient(
        lambda w, batch: -((batch[1] - batch[0] @ w) ** 2) / 2,
        lambda w: -jnp.sum(w**2) / 2,
        data_size=rows,
    )
    sampler = isotherm.msgnht(grad_fn, 1e-4)
    batches = isotherm.independent_batches(data, BATCH)
    del x

    def run():
        return isotherm.sample(
            jax.random.key(0),
            sampler,
            jnp.zeros(features),
            batches,
            num_draws=steps // 50,
            thin=50,
            num_chains=chains,
            collect={"moments": isotherm.collect.moments()},
            progress=False,
        )

    return measured(run, steps, before)


def topics(num_topics: int = 50, vocabulary: int = 10_000, documents: int = 100) -> dict:
    """Train `BayesianLDA` on a batch of documents of 100 tokens; a step is a document."""
    import scipy.sparse

    from isotherm import BayesianLDA

    before = ready()
    rng = np.random.default_rng(0)
    common_and_rare = rng.random((documents, 100)) ** 3
    words = (vocabulary * common_and_rare).astype(int)
    where = (np.repeat(np.arange(documents), 100), words.ravel())
    counts = scipy.sparse.csr_matrix((np.ones(words.size, int), where), (documents, vocabulary))
    model = BayesianLDA(num_topics, random_state=0)
    return measured(lambda: model.partial_fit(counts), documents, before)


AXES: dict[str, tuple[Callable[..., dict], str, tuple[int, ...]]] = {
    "rows of data": (regression, "rows", (1_000, 10_000, 100_000, 1_000_000)),
    "parameters": (regression, "features", (10, 100, 1_000, 10_000)),
    "chains": (regression, "chains", (1, 4, 16, 64, 256)),
    "topics": (topics, "num_topics", (16, 32, 64, 128, 256, 512)),
    "vocabulary": (topics, "vocabulary", (1_000, 10_000, 100_000, 1_000_000)),
}


def slope(sizes: tuple[int, ...], values: list[float]) -> float:
    """Return the slope of a straight line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-3)), 1)[0])


def plot(rows: list[dict], path: Path) -> None:
    """Draw time and memory against every size."""
    figure, axes = plt.subplots(2, len(AXES), figsize=(15, 6), layout="constrained", sharex="col")
    for column, name in zip(axes.T, AXES, strict=True):
        mine = [row for row in rows if row["axis"] == name]
        for axis, key in zip(column, ("ms per step", "megabytes"), strict=True):
            axis.plot([r["size"] for r in mine], [r[key] for r in mine], "o-")
            axis.set(xscale="log", yscale="log")
            low, high = axis.get_ylim()
            middle = (low * high) ** 0.5
            axis.set_ylim(min(low, middle / 10), max(high, middle * 10))
            axis.minorticks_off()
        column[1].set_xlabel(name)
    axes[0, 0].set_ylabel("ms per step")
    axes[1, 0].set_ylabel("megabytes")
    save(figure, path)


def main() -> None:
    """Measure every point and fit the slopes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two points per axis; writes nothing")
    options = parser.parse_args()
    where = machine(PACKAGES)
    rows = []
    points = [
        (axis, run, name, size)
        for axis, (run, name, sizes) in AXES.items()
        for size in (sizes[:2] if options.quick else sizes)
    ]
    for axis, run, name, size in track(points, description="points"):
        point = alone(partial(run, **{name: size}))
        rows.append({"table": "points", "axis": axis, "size": size} | point)
    slopes = []
    for axis, (_, _, sizes) in AXES.items():
        mine = [row for row in rows if row["axis"] == axis]
        sizes = tuple(row["size"] for row in mine)
        times = [row["ms per step"] for row in mine]
        memory = [row["megabytes"] for row in mine]
        slopes.append(
            {
                "table": "slopes",
                "axis": axis,
                "from": sizes[0],
                "to": sizes[-1],
                "slope of time": slope(sizes, times),
                "slope of time, last two": slope(sizes[-2:], times[-2:]),
                "slope of memory": slope(sizes, memory),
                "slope of memory, last two": slope(sizes[-2:], memory[-2:]),
                "ms per step, first": times[0],
                "ms per step, last": times[-1],
                "megabytes, last": memory[-1],
            }
        )
    for row in [*rows, *slopes]:
        print(short(row))
    if not options.quick:
        write_document(RESULTS / "growth.json", {"machine": where, "rows": [*slopes, *rows]})
        plot(rows, RESULTS / "growth.png")


if __name__ == "__main__":
    main()
