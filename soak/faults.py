"""Make every system call of every save fail, and cut the power after each of them.

    python soak/faults.py checkpoint

The file layer is `tests/faults.py`, the formats are in `tests/fault_scenarios.py`. Faults are
deterministic: every call fails once with each of three errors, alone, after half of a write, and
with all later writes; after every call a power cut leaves each of nine states of the disk. The
program stops at the first fault after which a folder does not open to the state before or after.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from reporting import record

from fault_scenarios import SCENARIOS, inject


def main() -> None:
    """Try all faults of one format, or of all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("format", nargs="?", choices=list(SCENARIOS), help="default: all")
    parser.add_argument("--stride", type=int, default=1, help="try every n-th fault")
    arguments = parser.parse_args()
    for name in [arguments.format] if arguments.format else SCENARIOS:
        began = time.process_time()
        tried = inject(SCENARIOS[name], arguments.stride)
        entry = {**tried, "silent": 0, "cpu_seconds": round(time.process_time() - began, 1)}
        if arguments.stride == 1:
            record("faults", name, entry)
        else:
            print(name, entry, flush=True)


if __name__ == "__main__":
    main()
