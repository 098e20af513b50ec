"""Fuzz a reader: whatever bytes a file has, it is read or refused with a `ValueError`, soon and in little memory.

    python soak/fuzz.py idx --seconds 600

atheris (libFuzzer with the coverage of our Python code) makes the files, from those in `readers.py`. A finding is any other
exception, more than 20 seconds, or memory beyond 2 GiB; and, where two readers or two ways of reading know the same format, that
they do not agree. The input that did it stays in `--keep`, and `python soak/fuzz.py idx FILE` tries it again.
"""

import argparse
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import readers
from reporting import record

MEMORY = 2 << 30
SECONDS_PER_INPUT = 20


def main() -> None:
    """Fuzz in a process of its own, which libFuzzer ends, and write down how that went."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("reader", choices=readers.NAMES)
    parser.add_argument("file", nargs="*", type=Path, help="inputs to try again, and nothing else")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0, help="0 is another one each time")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "isotherm-fuzz")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        fuzz(arguments)
    elif arguments.file:
        with tempfile.TemporaryDirectory() as folder:
            for path in arguments.file:
                print(path.name, readers.load(arguments.reader).read(path.read_bytes(), folder))
    else:
        with tempfile.TemporaryDirectory() as folder:
            entry = watch(arguments, Path(folder))
        record("fuzz", arguments.reader, entry, "atheris", "mwparserfromhell", "mwxml")
        sys.exit(0 if entry["findings"] == 0 else 1)


def fuzz(arguments: argparse.Namespace) -> None:
    """Be the process that fuzzes."""
    import atheris

    with atheris.instrument_imports(include=["isotherm.data"]):
        reader = readers.load(arguments.reader)
    folder = arguments.child
    (folder / "corpus").mkdir()
    for number, seed in enumerate(reader.seeds()):
        (folder / "corpus" / str(number)).write_bytes(seed)
    escaped = ["".join(f"\\x{byte:02x}" for byte in word) for word in reader.words]
    (folder / "words").write_text("".join(f'"{word}"\n' for word in escaped))
    for seed in reader.seeds():
        reader.read(seed, folder)  # imports what it needs
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    options = {
        "max_total_time": arguments.seconds,
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
    """Read off what libFuzzer says how many inputs there were, and whether one was bad."""
    arguments.keep.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, *sys.argv[1:], "--child", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def number(name: str) -> int:
        found = re.findall(rf"{name}:\s+(\d+)", done.stdout)
        return int(found[-1]) if found else 0

    if done.returncode:
        print(done.stdout[-3000:], file=sys.stderr)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": arguments.seconds,
        "cpu_seconds": round(used.ru_utime + used.ru_stime),
        "inputs": number("number_of_executed_units"),
        "slowest_seconds": number("slowest_unit_time_sec"),
        "peak_rss_mib": number("peak_rss_mb"),
        "coverage": number("cov"),
        "findings": int(done.returncode != 0),
    }


if __name__ == "__main__":
    main()
