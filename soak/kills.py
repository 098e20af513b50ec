"""Kill a run with SIGKILL at random moments, go on, and compare with a run that was never cut: every bit.

    python soak/kills.py logistic --kills 50

A run is killed again and again until it ends; then the next begins, until there were so many kills. One moment in four is counted from the start of the
process, the others from its first save. `--mutant` lets runs forget their momenta when they go on, and has to fail.
"""

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from reporting import record

NAMES = ("logistic", "mlp", "lda", "dpfa", "lda-icml", "dpfa-wiki")
RESULT, DRAFT = "result-of-the-soak.npz", ".draft-"


def work(name: str, folder: Path, mutant: bool) -> None:
    """Be the process that is killed; what the run that nobody cut has compiled is not compiled again."""
    import jax
    import programs

    from isotherm.io.files import atomically

    jax.config.update("jax_compilation_cache_dir", str(folder.parent / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if mutant:
        programs.forget_momenta()
    arrays = programs.PROGRAMS[name](folder)
    with atomically(folder / RESULT) as draft:
        np.savez(draft, **arrays)  # pyright: ignore[reportArgumentType]


def start(name: str, folder: Path, mutant: bool = False) -> Any:
    """Start it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jax", "programs"])
    process = context.Process(target=work, args=(name, folder, mutant))
    process.start()
    return process


def saved(folder: Path) -> dict[str, float]:
    """List the arrays that are there, or half there, with their times."""
    found = {}
    for path in folder.rglob("*.npz"):
        try:
            found[str(path)] = path.stat().st_mtime
        except FileNotFoundError:  # a draft that was given its place
            continue
    return found


def kill_somewhere(process: Any, folder: Path, rng: random.Random, span: float) -> str:
    """Wait for a random moment and kill; say when that was, or "ended" if it was too late."""
    when, before = "start", saved(folder)
    if rng.random() < 0.75:
        when = "saved"
        while process.is_alive() and saved(folder).keys() <= before.keys():
            process.join(0.002)
    process.join(rng.uniform(0, span))
    if not process.is_alive():
        return "ended"
    process.kill()
    process.join()
    in_the_middle = any(DRAFT in name and name not in before for name in saved(folder))
    return f"{when}, in the middle of a save" if in_the_middle else when


def differences(folder: Path, whole: Path) -> list[str]:
    """Name the arrays that are not the same, bit for bit."""
    with np.load(folder / RESULT) as ours, np.load(whole / RESULT) as theirs:
        if ours.files != theirs.files:
            return ["names"]
        pairs = {name: (ours[name], theirs[name]) for name in ours.files}
    return [
        name
        for name, (a, b) in pairs.items()
        if (a.dtype, a.shape, a.tobytes()) != (b.dtype, b.shape, b.tobytes())
    ]


def soak(name: str, kills: int, seed: int, mutant: bool, scratch: Path) -> dict[str, Any]:
    """Kill so many times; give what happened."""
    rng, began = random.Random(seed), time.monotonic()
    whole = scratch / "whole"
    process = start(name, whole)
    while process.is_alive() and not saved(whole):
        process.join(0.01)
    sampling = time.monotonic()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"The run that nobody cut ended with {process.exitcode}.")
    span = 0.5 * (time.monotonic() - sampling)
    happened, runs, wrong = Counter(), 0, []
    while happened.total() < kills:
        folder = scratch / f"cut-{runs}"
        runs, ended = runs + 1, False
        while not ended:
            process = start(name, folder, mutant)
            if happened.total() == kills:
                process.join()
                ended = True
            elif (moment := kill_somewhere(process, folder, rng, span)) == "ended":
                ended = True
            else:
                happened[moment] += 1
        if process.exitcode:
            raise RuntimeError(f"`{folder}` did not go on: exit code {process.exitcode}.")
        wrong += differences(folder, whole)
    return {
        "kills": happened.total(),
        "moments": dict(sorted(happened.items())),
        "runs": runs,
        "arrays_that_differ": sorted(set(wrong)),
        "seconds": round(time.monotonic() - began),
    }


def main() -> None:
    """Soak one program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("program", choices=NAMES)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutant", action="store_true")
    parser.add_argument("--quick", action="store_true", help="write nothing down")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        entry = soak(
            arguments.program, arguments.kills, arguments.seed, arguments.mutant, Path(scratch)
        )
    if arguments.quick or arguments.mutant:
        print(entry)
    else:
        record("kills", arguments.program, entry)
    sys.exit(1 if entry["arrays_that_differ"] else 0)


if __name__ == "__main__":
    main()
