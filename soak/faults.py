"""Make every system call of every save fail, and cut the power after each of them.

    python soak/faults.py checkpoint

The simulated disk is in `tests/faults.py`, the formats are in `tests/fault_scenarios.py`. Faults
are deterministic: every call fails with each of three errors in three ways (once, after half of a
write, and with all later writes), and after every call a power cut leaves each of nine states of
the disk. The program stops at the first fault after which a folder does not open to the state
before or after the save. `--piece 0 --pieces 3` tries a third of the faults; when all three pieces
are recorded, they are added up.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from reporting import entry_of, forget, record

from fault_scenarios import SCENARIOS, inject


def add_up(name: str, pieces: int) -> None:
    """Replace the entries of all pieces by one, if all are there."""
    labels = [piece_label(name, piece, pieces) for piece in range(pieces)]
    found = [entry_of("faults", label) for label in labels]
    if all(found):
        keys = ("power cuts", "failed calls", "silent", "cpu_seconds")
        totals = {key: round(sum(entry[key] for entry in found), 1) for key in keys}
        forget("faults", labels)
        record("faults", name, {"calls": found[0]["calls"], **totals})


def piece_label(name: str, piece: int, pieces: int) -> str:
    """Return the name of the entry of a piece."""
    return f"{name}, piece {piece} of {pieces}"


def main() -> None:
    """Try all faults of one format, or of all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("format", nargs="?", choices=list(SCENARIOS), help="default: all")
    parser.add_argument("--pieces", type=int, default=1, help="try every n-th fault")
    parser.add_argument("--piece", type=int, default=0, help="which of them, from 0")
    parser.add_argument("--quick", action="store_true", help="do not record the result")
    arguments = parser.parse_args()
    piece, pieces = arguments.piece, arguments.pieces
    for name in [arguments.format] if arguments.format else SCENARIOS:
        began = time.process_time()
        tried = inject(SCENARIOS[name], pieces, piece)
        entry = {**tried, "silent": 0, "cpu_seconds": round(time.process_time() - began, 1)}
        if arguments.quick:
            print(name, entry, flush=True)
        elif pieces == 1:
            record("faults", name, entry)
        else:
            record("faults", piece_label(name, piece, pieces), entry)
            add_up(name, pieces)


if __name__ == "__main__":
    main()
