"""Run a statistical test battery on the raw bits of `isotherm.random`.

    python soak/generator.py --battery crush --stream chains

TestU01 (Debian's non-free `libtestu01-0`): `smallcrush` reads about 1 GB, `crush` 140 GB,
`bigcrush` 1 TB. `dieharder` (Debian's `dieharder`) with all its tests reads about 230 GB. The
numbers come from `generator_stream.c`, a replica of the generator in C; it is compared bit for bit
with `isotherm.random` first, and not used if a bit differs.

A stream determines what differs between consecutive numbers. The key is `jax.random.key(seed)`, and
F is `isotherm.random.fold`.

- `counters`: elements of one large array, 2^24 of each key F(key, i).
- `keys`: the first element of F(key, i), for i = 0, 1, 2, ...
- `leaves`: step t of a chain, 256 leaves of 4 elements, then step t + 1.
- `chains`: 64 chains of 16 elements, then the next step: F(F(F(key, chain), 0), t).
- `steps`: one chain of 4 elements, step by step.
- `seeds`: 16 elements of the first step of the samplers with jax.random.key(0), key(1), ...
- `bare-seeds`: 16 elements of jax.random.key(0), key(1), ..., with no fold at all.

`--reversed` reverses the bits of every number, so that low bits are tested as high bits.
`--rounds 2` leaves out the last of the hash's three rounds; this mutant must fail on `counters`.
`--plain-words` does not replace a first word of 0, as in the first version of `isotherm.random`;
this mutant must fail on `bare-seeds`, because some pairs of seeds then share pairs of consecutive
numbers.
The exit status is 0 if the generator passes, and for a mutant if it fails.
"""

import argparse
import ctypes
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from reporting import RESULTS, machine

from isotherm import random

STREAMS = {  # number, elements of a key, chains or leaves
    "counters": (0, 2**24, 1),
    "keys": (1, 1, 1),
    "leaves": (2, 4, 256),
    "chains": (3, 16, 64),
    "steps": (4, 4, 1),
    "seeds": (5, 16, 1),
    "bare-seeds": (6, 16, 1),
}
CRUSHES = {"smallcrush": ("SmallCrush", 10), "crush": ("Crush", 96), "bigcrush": ("BigCrush", 106)}
SUSPECT, FAILED = 1e-3, 1e-10
"""TestU01 reports p-values beyond the first; its authors call those beyond the second failures."""
WEAK, DIEHARDER_FAILED = 0.005, 1e-6
"""dieharder's own limits; with `-Y 1` it adds samples to a test while its result is weak."""
DO_NOT_USE = ("diehard_sums",)
"""Tests that dieharder marks "Do Not Use": with enough samples AES and Threefish fail, too."""
AGAIN = 3
"""How often a test with a suspect p-value is repeated, each time under another seed."""


class Replica:
    """The streams in C, and the comparison with `isotherm.random`."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.stream = arguments.stream
        self.options = (arguments.reversed, arguments.rounds, arguments.plain_words)
        self.number, self.width, self.across = STREAMS[self.stream]
        if arguments.one_key:
            self.width = 2**31
        self.earlier = 0
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "generator_stream.so"
            source = Path(__file__).with_name("generator_stream.c")
            command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", target, source]
            subprocess.run(command, check=True)
            self.library = ctypes.CDLL(str(target))
        self.library.fill.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.library.consumed.restype = ctypes.c_uint64
        self._begin = self.library.start
        self._begin.argtypes = [
            ctypes.c_int,
            *3 * [ctypes.c_uint32],
            ctypes.c_uint64,
            *3 * [ctypes.c_int],
        ]

    def start(self, seed: int, row: int = 0, raw: bool = False) -> None:
        """Begin at a row of the stream; with `raw`, bits are neither reversed nor weakened."""
        self.earlier += self.library.consumed()
        if self.stream in ("seeds", "bare-seeds"):
            row += 2**20 * seed
        options = (0, 3, 0) if raw else self.options
        self._begin(self.number, seed, self.width, self.across, row, *options)

    def fill(self, numbers: np.ndarray) -> None:
        """Write the next numbers of the stream."""
        self.library.fill(numbers.ctypes.data, numbers.size)

    @property
    def gigabytes(self) -> float:
        """Gigabytes read since the replica was checked."""
        return 4e-9 * (self.earlier + self.library.consumed())

    def check(self) -> int:
        """Compare with `isotherm.random` at three places; return how many values agree."""
        values = np.empty(2**20 if self.width <= 16 else 2**22, np.uint32)
        for number in (0, 123_456_789, 2**32 - 2**20):
            self.start(0, number * self.across, raw=True)
            self.fill(values)
            if not np.array_equal(values, self._expected(number, values.size)):
                raise SystemExit(f"The replica of {self.stream!r} is not isotherm.random: refused.")
        self.earlier = -self.library.consumed()
        return 3 * values.size

    def _expected(self, first: int, size: int) -> np.ndarray:
        """Return the same numbers, made with `isotherm.random`, from fold number `first` on."""
        key, width, fold = jax.random.key(0), min(self.width, size), random.fold
        numbers = np.arange(first, first + size // (self.across * width)).astype(np.uint32)

        def row(n: jax.Array) -> jax.Array:
            match self.stream:
                case "leaves":
                    now, leaves = fold(fold(fold(key, 0), 0), n), range(self.across)
                    return jnp.stack([random.bits(now, (width,), 2 * i) for i in leaves])
                case "chains":
                    chains = [fold(fold(fold(key, i), 0), n) for i in range(self.across)]
                    return jax.vmap(lambda k: random.bits(k, (width,)))(jnp.stack(chains))
                case "steps":
                    now = fold(fold(fold(key, 0), 0), n)
                case "seeds":
                    now = fold(fold(fold(jax.random.key(n), 0), 0), 0)
                case "bare-seeds":
                    now = jax.random.key(n)
                case _:
                    now = fold(key, n)
            return random.bits(now, (width,))

        return np.asarray(jax.jit(jax.vmap(row))(numbers)).ravel()


def unused(name: str, names: dict[str, Any]) -> str:
    """Return a name that is not used yet: one test may give several p-values under one name."""
    same = sum(other == name or other.startswith(f"{name} (") for other in names)
    return f"{name} ({same + 1})" if same else name


@contextmanager
def output_to(log: Path) -> Iterator[None]:
    """Send what a C library prints into a file."""
    libc, screen = ctypes.CDLL(None), os.dup(1)
    sys.stdout.flush()
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        try:
            yield
        finally:
            libc.fflush(None)
            os.dup2(screen, 1)
            os.close(screen)


class TestU01:
    """The crushes, one test after the other, so that a run can stop between them."""

    def __init__(self, folder: Path | None, battery: str, replica: Replica, log: Path) -> None:
        for name in ("libtestu01mylib.so.0", "libtestu01probdist.so.0", "libtestu01.so.0"):
            path = str(folder / name) if folder else name
            try:
                self.library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise SystemExit(f"Install Debian's libtestu01-0 (non-free): {error}") from error
        name, self.num_tests = CRUSHES[battery]
        self.log = log
        make = self.library.unif01_CreateExternGenBits
        make.restype, make.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_void_p]
        following = ctypes.cast(replica.library.next, ctypes.c_void_p)
        self.source = make(replica.stream.encode(), following)
        self.repeat = getattr(self.library, f"bbattery_Repeat{name}")
        self.repeat.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

    def run(self, number: int) -> dict[str, float]:
        """Run one test and return its p-values by name."""
        wanted = (ctypes.c_int * (self.num_tests + 2))()
        wanted[number] = 1
        with output_to(self.log):
            self.repeat(self.source, wanted)
        count = ctypes.c_int.in_dll(self.library, "bbattery_NTests").value
        p_values = (ctypes.c_double * 200).in_dll(self.library, "bbattery_pVal")
        names = (ctypes.c_char_p * 200).in_dll(self.library, "bbattery_TestNames")
        found: dict[str, float] = {}
        for name, p in zip(names[:count], p_values[:count], strict=True):
            found[unused(f"{number} {(name or b'').decode()}", found)] = p
        return found


Save = Callable[[dict[str, Any]], None]


def run_testu01(battery: TestU01, replica: Replica, arguments: argparse.Namespace, save: Save):
    """Run a crush; repeat under other seeds the tests with a suspect p-value."""
    entry: dict[str, Any] = {"complete": False, "p_values": {}, "again": {}}
    replica.start(arguments.seed)
    suspects = []
    for number in arguments.only or range(1, battery.num_tests + 1):
        if out_of_budget(replica, arguments):
            break
        found = battery.run(number)
        entry["p_values"] |= found
        if any(tail(p) < SUSPECT for p in found.values()):
            suspects.append(number)
        save(entry)
    else:
        entry["complete"] = not arguments.only
    for number in suspects:
        for i in range(1, AGAIN + 1):
            replica.start(arguments.seed + 1000 * i)
            for name, p in battery.run(number).items():
                entry["again"].setdefault(name, []).append(p)
            save(entry)
    save(entry | judged(entry, SUSPECT, FAILED))


def run_dieharder(replica: Replica, arguments: argparse.Namespace, save: Save) -> None:
    """Run all tests of dieharder; repeat under other seeds the tests that stay weak."""
    entry: dict[str, Any] = {"complete": False, "p_values": {}, "again": {}, "not_judged": {}}
    final: dict[str, list[str]] = {}
    stages: dict[tuple[str, ...], dict[str, Any]] = {}

    def keep(row: list[str]) -> None:
        """Keep a line; it replaces an earlier line of the same test with fewer samples (`-Y 1`)."""
        stage = stages.setdefault((row[0], row[1], row[3]), {})
        name = unused(f"{row[0]} {row[1]}", stage)
        stage[name] = final[name] = row
        part = "not_judged" if row[0] in DO_NOT_USE else "p_values"
        entry[part][name] = float(row[4])
        save(entry)

    replica.start(arguments.seed)
    entry["complete"] = dieharder(["-a"], replica, keep, arguments)
    judged_rows = [row for row in final.values() if row[0] not in DO_NOT_USE]
    for name, ntuple in {(row[0], row[1]) for row in judged_rows if row[5] != "PASSED"}:
        for i in range(1, AGAIN + 1):
            rows: list[list[str]] = []
            replica.start(arguments.seed + 1000 * i)
            dieharder(["-d", name, "-n", ntuple], replica, rows.append)
            entry["again"].setdefault(f"{name} {ntuple}", []).append(float(rows[-1][4]))
    assessments = [row[5] for row in judged_rows]
    entry["assessments"] = {name: assessments.count(name) for name in sorted(set(assessments))}
    save(entry | judged(entry, WEAK, DIEHARDER_FAILED))


def dieharder(
    which: list[str],
    replica: Replica,
    keep: Callable[[list[str]], None],
    arguments: argparse.Namespace | None = None,
) -> bool:
    """Feed dieharder until it ends or the budget is used up; return whether it ended."""
    command = ["stdbuf", "-oL", "dieharder", *which, "-g", "200", "-k", "2", "-Y", "1", "-c", ","]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None

    def read() -> None:
        for line in process.stdout or ():
            row = [field.strip() for field in line.decode().split(",")]
            if row[-1] in ("PASSED", "WEAK", "FAILED"):
                keep(row)

    reader = threading.Thread(target=read)
    reader.start()
    numbers, ended = np.empty(2**16, np.uint32), False
    try:
        while arguments is None or not out_of_budget(replica, arguments):
            replica.fill(numbers)
            process.stdin.write(numbers.data)
    except BrokenPipeError:
        ended = True
    if not ended:
        process.terminate()
    status = process.wait()
    reader.join()
    if ended and status:
        raise SystemExit(f"dieharder ended with status {status}.")
    return ended


def tail(p: float) -> float:
    """Return the distance of a p-value from 0 or 1, whichever is nearer."""
    return min(p, 1 - p)


def out_of_budget(replica: Replica, arguments: argparse.Namespace) -> bool:
    """Return whether the budget of gigabytes or of seconds is used up."""
    late = time.monotonic() - BEGINNING > arguments.seconds
    return late or replica.gigabytes >= arguments.gigabytes


def judged(entry: dict[str, Any], suspect: float, failed: float) -> dict[str, Any]:
    """Return the suspect p-values, how many chance would give, and the verdict.

    A failure is a p-value beyond `failed`, or a test that is suspect again in most repetitions.
    A battery that was stopped without a failure has not passed: its verdict is "incomplete".
    """
    again = entry["again"].values()
    everything = [*entry["p_values"].values(), *(p for ps in again for p in ps)]
    repeated = any(2 * sum(tail(p) < suspect for p in ps) > AGAIN for ps in again)
    broken = bool(repeated or min(map(tail, everything)) < failed)
    return {
        "suspect": {n: p for n, p in entry["p_values"].items() if tail(p) < suspect},
        "suspect_expected": round(2 * suspect * len(entry["p_values"]), 2),
        "num_p_values": len(entry["p_values"]),
        "verdict": "failed" if broken else "passed" if entry["complete"] else "incomplete",
    }


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--battery", choices=[*CRUSHES, "dieharder"], default="smallcrush")
    parser.add_argument("--stream", choices=STREAMS, default="chains")
    parser.add_argument("--reversed", action="store_true", help="low bits first")
    parser.add_argument("--rounds", type=int, choices=(1, 2, 3), default=3, help="below 3: mutants")
    parser.add_argument("--plain-words", action="store_true", help="a mutant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one-key", action="store_true", help="2^31 elements of one key")
    parser.add_argument("--gigabytes", type=float, default=math.inf, help="stop after this many")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this many")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of tests (TestU01)")
    parser.add_argument("--testu01", type=Path, help="folder of libtestu01.so.0, if not installed")
    parser.add_argument("--out", type=Path, default=RESULTS / "generator.json")
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="TestU01's own report")
    return parser.parse_args()


def main() -> None:
    """Check the replica, run the battery and write the result."""
    arguments = parse()
    is_dieharder, weakened = arguments.battery == "dieharder", arguments.rounds < 3
    mutant = weakened or arguments.plain_words
    if is_dieharder and shutil.which("dieharder") is None:
        raise SystemExit("dieharder is not installed: apt-get install dieharder")
    replica = Replica(arguments)
    compared = replica.check()
    print(f"{arguments.stream}: {compared} values equal isotherm.random bit for bit", flush=True)
    extras = {
        "one-key": arguments.one_key,
        "reversed": arguments.reversed,
        f"{arguments.rounds}-rounds": weakened,
        "plain-words": arguments.plain_words,
        "some-tests": arguments.only,
        f"seed-{arguments.seed}": arguments.seed,
    }
    name = "-".join([arguments.battery, arguments.stream, *(x for x, on in extras.items() if on)])
    used, entry = os.times(), {}

    def save(found: dict[str, Any]) -> None:
        now = os.times()
        head = {
            "battery": arguments.battery,
            "version": "dieharder 3.31.1" if is_dieharder else "TestU01 1.2.3",
            "stream": arguments.stream,
            "reversed": arguments.reversed,
            "rounds": arguments.rounds,
            "plain_words": arguments.plain_words,
            "seed": arguments.seed,
            "gigabytes": round(replica.gigabytes, 2),
            "seconds": round(now.elapsed - used.elapsed),
            "processor_seconds": round(sum(now[:4]) - sum(used[:4])),
            "values_compared_with_isotherm": compared,
        }
        entry.update(head | found)
        entries = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
        entries[name] = {**entry, "machine": machine()}
        arguments.out.write_text(json.dumps(dict(sorted(entries.items())), indent=1) + "\n")

    if is_dieharder:
        run_dieharder(replica, arguments, save)
    else:
        battery = TestU01(arguments.testu01, arguments.battery, replica, arguments.log)
        run_testu01(battery, replica, arguments, save)
    shown = ("gigabytes", "seconds", "suspect", "suspect_expected", "again", "verdict")
    print(name, json.dumps({key: entry[key] for key in shown}), flush=True)
    sys.exit((entry["verdict"] == "failed") != mutant)


BEGINNING = time.monotonic()

if __name__ == "__main__":
    main()
