"""Kill a run with SIGKILL at random moments, resume it, and compare it with an uninterrupted run.

    python soak/kills.py logistic --kills 50

A run is killed and resumed until it finishes; then the next run begins, until `--kills` kills were
made. One kill in four is timed from the start of the process, the others from its first save. All
results must be bit-identical. With `--mutant` the momenta are not restored on resume, and the
comparison must fail.

The result is recorded after every finished run, so that a test that is stopped loses the kills of
one run only. It is added to those of earlier calls, so a test can be made in pieces. Every piece
has its commit and its own seed. `--fresh` discards the earlier pieces.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from reporting import entry_of, machine, record

NAMES = (
    "logistic",
    "mlp",
    "estimator",
    "regressor",
    "classifier",
    "lda",
    "dpfa",
    "partial-fit",
    "lda-icml",
    "dpfa-wiki",
)
RESULT, DRAFT = "result-of-the-soak.npz", ".draft-"
SAVED = (".npz", ".safetensors")


def work(name: str, folder: Path, mutant: bool) -> None:
    """Run a program in this process; programs compiled by earlier processes are reused."""
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
    """Start a process that runs a program."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jax", "programs"])
    process = context.Process(target=work, args=(name, folder, mutant))
    process.start()
    return process


def saved(folder: Path) -> dict[str, float]:
    """Return the modification times of all arrays, drafts included, by path."""
    times = {}
    for parent, _, names in os.walk(folder):  # which passes over drafts that are removed meanwhile
        for path in (Path(parent, name) for name in names):
            try:
                if path.suffix in SAVED:
                    times[str(path)] = path.stat().st_mtime
            except FileNotFoundError:  # a draft that was renamed
                continue
    return times


def kill_somewhere(process: Any, folder: Path, rng: random.Random, span: float) -> str:
    """Kill a process at a random moment; return from what the moment was counted.

    This is "start" or "saved", with a remark if a save was interrupted, or "ended" if the process
    ended before the moment.
    """
    when, before = "start", saved(folder)
    if rng.random() < 0.75:
        when = "saved"
        while process.is_alive() and saved(folder) == before:
            process.join(0.2)
    process.join(rng.uniform(0, span))
    if not process.is_alive():
        return "ended"
    process.kill()
    process.join()
    during_save = any(DRAFT in name and name not in before for name in saved(folder))
    return f"{when}, in the middle of a save" if during_save else when


def differences(folder: Path, reference: Path) -> list[str]:
    """Return the names of the arrays that differ in any bit."""
    with np.load(folder / RESULT) as ours, np.load(reference / RESULT) as theirs:
        if ours.files != theirs.files:
            return ["names"]
        pairs = {name: (ours[name], theirs[name]) for name in ours.files}
    return [
        name
        for name, (a, b) in pairs.items()
        if (a.dtype, a.shape, a.tobytes()) != (b.dtype, b.shape, b.tobytes())
    ]


def soak(name: str, kills: int, seed: int, mutant: bool, scratch: Path) -> Iterator[dict[str, Any]]:
    """Run, kill and resume until `kills` kills were made; yield the statistics after every run."""
    rng, began = random.Random(seed), time.monotonic()
    reference = scratch / "reference"
    process = start(name, reference)
    while process.is_alive() and not saved(reference):
        process.join(0.01)
    sampling = time.monotonic()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"The uninterrupted run ended with exit code {process.exitcode}.")
    span = 0.5 * (time.monotonic() - sampling)
    moments, runs, wrong = Counter(), 0, []
    while moments.total() < kills:
        folder = scratch / f"killed-{runs}"
        runs, ended = runs + 1, False
        while not ended:
            process = start(name, folder, mutant)
            if moments.total() == kills:
                process.join()
                ended = True
            elif (moment := kill_somewhere(process, folder, rng, span)) == "ended":
                ended = True
            else:
                moments[moment] += 1
        if process.exitcode:
            raise RuntimeError(f"`{folder}` cannot be resumed: exit code {process.exitcode}.")
        wrong += differences(folder, reference)
        shutil.rmtree(folder)
        yield {
            "kills": moments.total(),
            "moments": dict(sorted(moments.items())),
            "runs": runs,
            "arrays_that_differ": sorted(set(wrong)),
            "seconds": round(time.monotonic() - began),
        }


def added(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the totals of all pieces, followed by the pieces themselves."""
    moments = Counter()
    for piece in pieces:
        moments.update(piece["moments"])
    totals = {key: sum(piece[key] for piece in pieces) for key in ("kills", "runs", "seconds")}
    wrong = sorted({name for piece in pieces for name in piece["arrays_that_differ"]})
    return totals | {
        "moments": dict(sorted(moments.items())),
        "arrays_that_differ": wrong,
        "pieces": pieces,
    }


def main() -> None:
    """Test one program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("program", choices=NAMES)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, help="default: the number of earlier pieces")
    parser.add_argument("--fresh", action="store_true", help="discard earlier pieces")
    parser.add_argument("--mutant", action="store_true", help="do not restore momenta")
    parser.add_argument("--quick", action="store_true", help="do not record the result")
    arguments = parser.parse_args()
    unrecorded = arguments.quick or arguments.mutant
    before = [] if arguments.fresh else entry_of("kills", arguments.program).get("pieces", [])
    seed = len(before) if arguments.seed is None else arguments.seed
    piece, origin = {}, {"seed": seed, **machine()}
    with tempfile.TemporaryDirectory() as scratch:
        settings = (arguments.program, arguments.kills, seed, arguments.mutant)
        for piece in soak(*settings, Path(scratch)):
            if unrecorded:
                print(piece, flush=True)
            else:
                record("kills", arguments.program, added([*before, piece | {"origin": origin}]))
    sys.exit(1 if piece.get("arrays_that_differ") else 0)


if __name__ == "__main__":
    main()
