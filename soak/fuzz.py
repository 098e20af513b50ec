"""Fuzz a reader: any file must be read, or refused with a `ValueError`, fast and in little memory.

    python soak/fuzz.py idx --seconds 600

atheris (libFuzzer, guided by the coverage of our Python code) generates the files, starting from
the seeds in `readers.py`. A finding is any other exception, more than 20 seconds, more than 2 GiB
of memory, or two readers of the same format that do not agree. The input that caused it is kept in
`--keep`, and `python soak/fuzz.py idx FILE` reads it again.

Code instrumented by atheris leaks some kilobytes per input (81 MiB after 12 000 inputs, against
2 MiB without instrumentation). A process therefore reads at most `INPUTS` inputs, and the next
process continues with its corpus.
"""

import argparse
import importlib.util
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import readers
from reporting import record

MEMORY = 2 << 30
SECONDS_PER_INPUT = 20
INPUTS = 50_000


def main() -> None:
    """Fuzz in child processes, which libFuzzer ends, and record the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("reader", choices=readers.NAMES)
    parser.add_argument(
        "file", nargs="*", type=Path, help="read these inputs again instead of fuzzing"
    )
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0, help="0 for a different seed each time")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "isotherm-fuzz")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        fuzz(arguments)
    elif arguments.file:
        with tempfile.TemporaryDirectory() as folder:
            for path in arguments.file:
                print(path.name, readers.load(arguments.reader).read(path.read_bytes(), folder))
    elif importlib.util.find_spec("atheris") is None:
        sys.exit("Fuzzing needs atheris: pip install atheris==3.0.0")
    else:
        with tempfile.TemporaryDirectory() as folder:
            entry = watch(arguments, Path(folder))
        record("fuzz", arguments.reader, entry, "atheris", "mwparserfromhell", "mwxml")
        sys.exit(0 if entry["findings"] == 0 else 1)


def fuzz(arguments: argparse.Namespace) -> None:
    """Fuzz in this process."""
    import atheris

    with atheris.instrument_imports(include=["isotherm.data"]):
        reader = readers.load(arguments.reader)
    folder = arguments.child
    (folder / "corpus").mkdir(exist_ok=True)
    for number, seed in enumerate(reader.seeds()):
        (folder / "corpus" / str(number)).write_bytes(seed)
    escaped = ["".join(f"\\x{byte:02x}" for byte in word) for word in reader.words]
    (folder / "words").write_text("".join(f'"{word}"\n' for word in escaped))
    for seed in reader.seeds():
        reader.read(seed, folder)  # import everything before memory is limited
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    options = {
        "max_total_time": arguments.seconds,
        "runs": INPUTS,
        "seed": arguments.seed,
        "timeout": SECONDS_PER_INPUT,
        "rss_limit_mb": 2 * MEMORY >> 20,
        "max_len": reader.longest,
        "artifact_prefix": f"{arguments.keep}/{arguments.reader}-",
        "print_final_stats": 1,
    }
    if reader.words:
        options["dict"] = folder / "words"
    words = [f"-{name}={value}" for name, value in options.items()]
    atheris.Setup(
        [sys.argv[0], *words, str(folder / "corpus")], lambda data: reader.read(data, folder)
    )
    atheris.Fuzz()


def watch(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Run child processes until the time is over; return the statistics that libFuzzer prints."""
    arguments.keep.mkdir(parents=True, exist_ok=True)
    began, outputs, failed = time.monotonic(), [], False
    while not failed and (left := round(arguments.seconds - time.monotonic() + began)) > 0:
        command = [sys.executable, __file__, *sys.argv[1:], "--child", str(folder)]
        command += ["--seconds", str(left)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        outputs.append(done.stdout)
        failed = done.returncode != 0
    if failed:
        print(outputs[-1][-3000:], file=sys.stderr)

    def numbers(name: str) -> list[int]:
        matches = [re.findall(rf"{name}:\s+(\d+)", output) for output in outputs]
        return [int(values[-1]) if values else 0 for values in matches]

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": arguments.seconds,
        "cpu_seconds": round(used.ru_utime + used.ru_stime),
        "inputs": sum(numbers("number_of_executed_units")),
        "slowest_seconds": max(numbers("slowest_unit_time_sec")),
        "peak_rss_mib": max(numbers("peak_rss_mb")),
        "coverage": max(numbers("cov")),
        "findings": int(failed),
    }


if __name__ == "__main__":
    main()
