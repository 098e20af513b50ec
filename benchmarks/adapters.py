"""Adapters and the last layer of a small transformer: the page `docs/adapters.md`, several seeds.

Runs the programs of the page with other seeds (of the pretraining, the start, the chains; the text
is always the same) and keeps their scores on the test text. Then one step of a sampler on the
adapters is compared with one step of SGD with momentum on the same batches: compiled loops of 100
steps, in turns, CPU time of all threads, because wall time means little on a busy machine. Writes
`docs/results/adapters.json`.
"""

import argparse
import re
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import optax
from reporting import HERE, RESULTS, machine, rotated, write_document

import isotherm
from isotherm.loop import compiler_options

PAGE = HERE.parent / "docs" / "adapters.md"
STEPS = 100


def programs(seed: int) -> dict[str, Any]:
    """Run the programs of the page with a seed; return its variables."""
    variables: dict[str, Any] = {"__name__": "page"}
    for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        changed = text.replace("SEED = 0", f"SEED = {seed}")
        exec(compile(changed, str(PAGE), "exec"), variables)
    return variables


def steps(page: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return functions that make steps on the adapters."""
    adapted, mode = page["adapted"], page["mode"]
    grad_fn = adapted.gradient(page["ROWS"])
    batches = isotherm.independent_batches(tuple(page["train"]), 50)
    sgd = optax.sgd(1e-6, momentum=0.9)

    def descend(t: jax.Array, carry: tuple) -> tuple:
        position, memory = carry
        grads = grad_fn(position, batches.batch(jax.random.key(0), t))
        updates, memory = sgd.update(jax.tree.map(lambda g: -g, grads), memory)
        return optax.apply_updates(position, updates), memory

    def sampled(sampler: isotherm.types.Sampler) -> Callable[[], Any]:
        return lambda: isotherm.run_chain(
            jax.random.key(0), sampler, mode, batches, num_draws=1, thin=STEPS
        )[0]

    small = {"step_size": 1e-5, "diffusion": 1.0}
    loops = {
        "SGD with momentum": lambda: jax.lax.fori_loop(0, STEPS, descend, (mode, sgd.init(mode))),
        "mSGNHT": sampled(isotherm.msgnht(grad_fn, **small)),
        "mSGNHT, balanced minibatches": sampled(
            isotherm.msgnht(isotherm.balanced(grad_fn), **small)
        ),
    }
    return {name: jax.jit(fn, compiler_options=compiler_options()) for name, fn in loops.items()}


def compare(functions: dict[str, Callable[[], Any]], rounds: int) -> list[dict[str, Any]]:
    """Return milliseconds of CPU per step, and the median ratio to the first function."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(-1, rounds):
        for name in rotated(list(functions), max(number, 0)):
            began = time.process_time()
            jax.block_until_ready(functions[name]())
            if number >= 0:
                times[name].append(1000 * (time.process_time() - began) / STEPS)
    base = times[next(iter(times))]
    return [
        {
            "step of": name,
            "CPU ms": median(each),
            "over SGD": median(a / b for a, b in zip(each, base, strict=True)),
        }
        for name, each in times.items()
    ]


def main() -> None:
    """Run the page with some seeds, and time steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="time steps only, written nowhere")
    options = parser.parse_args()
    about = machine(("isotherm", "jax", "jaxlib", "numpy"))
    rows: list[dict[str, Any]] = []
    timed: list[dict[str, Any]] = []
    for seed in options.seeds[:1] if options.quick else options.seeds:
        page = programs(seed)
        rows += [{"seed": seed, "fit": name, **found} for name, found in page["scores"].items()]
        timed = timed or compare(steps(page), options.rounds)
        if not options.quick:  # after every seed, so that an interrupted run leaves something
            document = {"machine": about, "rows": rows, "steps": timed}
            write_document(RESULTS / "adapters.json", document)
    for row in timed:
        print(f"{row['step of']:30} {row['CPU ms']:.2f} ms of CPU, {row['over SGD']:.2f} x SGD")


if __name__ == "__main__":
    main()
