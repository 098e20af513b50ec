"""Change every value of every document that isotherm reads, with correct checksums, and read it.

    python soak/forge.py

The documents and the values are in `tests/forgeries.py`. A forgery must be read, or refused with a
`ValueError` whose message can be printed, with little memory. The program stops at the first
forgery for which this is not so.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from reporting import record

from forgeries import SCENARIOS, judge


def main() -> None:
    """Try all forgeries of one kind of document, or of all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("document", nargs="?", choices=list(SCENARIOS), help="default: all")
    arguments = parser.parse_args()
    for name in [arguments.document] if arguments.document else SCENARIOS:
        began = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            tried = judge(*SCENARIOS[name](Path(folder)))
        entry = {"forgeries": tried.total(), **tried}
        record("forgeries", name, {**entry, "cpu_seconds": round(time.process_time() - began, 1)})


if __name__ == "__main__":
    main()
