"""Look up the pinned versions in a database of known vulnerabilities: `python release/audit.py`.

Runs `pip-audit` on `requirements.lock`, and reads its report instead of its exit code: if the
database does not know a package, or does not answer at all, `pip-audit` skips the package and ends
with "No known vulnerabilities found". Exit codes: 0 all packages were checked and have no known
vulnerability, 1 some have one, 2 some could not be checked (for example without a network).
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OPTIONS = ("--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json")


def packages(report: str) -> list[dict[str, Any]]:
    """Return the entries of a report in JSON; an empty list if there is no report."""
    try:
        entries = json.loads(report)["dependencies"]
    except (ValueError, LookupError, TypeError):
        return []
    return [entry for entry in entries if isinstance(entry, dict)]


def judge(entries: list[dict[str, Any]], error: str) -> tuple[int, str]:
    """Return the exit code and what to print."""
    found = [entry for entry in entries if entry.get("vulns")]
    skipped = [entry for entry in entries if "skip_reason" in entry]
    lines = []
    for entry in found:
        for each in entry["vulns"]:
            fixed = ", ".join(each.get("fix_versions", ())) or "no version"
            lines.append(f"{entry['name']} {entry['version']}: {each['id']}, fixed in {fixed}")
    number = len(entries) - len(skipped)
    if not entries:
        reason = next(iter(error.strip().splitlines()[-1:]), "no reason given")
        lines.append(f"Nothing was checked: pip-audit made no report ({reason[:300]}).")
    elif skipped:
        reason = str(skipped[0]["skip_reason"])[:300]
        nothing = "Nothing was checked: " if number == 0 else ""
        lines.append(
            f"{nothing}{number} of {len(entries)} packages were looked up; the first: {reason}"
        )
    if not entries or skipped:
        lines.append(
            "This is no all-clear. Run it where the database can be reached; "
            "`--vulnerability-service osv` asks another one."
        )
    if not lines:
        lines.append(f"All {number} packages were checked; none has a known vulnerability.")
    return 1 if found else 2 if skipped or not entries else 0, "\n".join(lines)


def main() -> None:
    """Run pip-audit and judge its report; other arguments are passed on to it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pip-audit", default="pip-audit", help="the program")
    arguments, more = parser.parse_known_args()
    command = [arguments.pip_audit, "--requirement", ROOT / "requirements.lock", *OPTIONS, *more]
    try:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    except OSError as error:
        print(f"Nothing was checked: `{arguments.pip_audit}` cannot be started ({error.strerror}).")
        sys.exit(2)
    code, text = judge(packages(done.stdout), done.stderr)
    print(text)
    sys.exit(code)


if __name__ == "__main__":
    main()
