"""Write the hashes of all pinned packages into a lock file: `python release/lock.py [FILE]`.

For every pin, the SHA-256 of each of its files (wheels of all platforms and Python versions, and
the source archive) are read from the package index. `pip install --require-hashes` then accepts
these files and no others. Run it after the pins have changed; lines of comments stay.
"""

import json
import re
import sys
import urllib.request
from pathlib import Path

INDEX = "https://pypi.org/simple"
JSON = "application/vnd.pypi.simple.v1+json"
PIN = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]*\])?==(?P<version>[^\s;\\]+)(?P<marker>\s*;[^\\]*)?"
)


def normalized(name: str) -> str:
    """Return the name under which the index lists a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def version_of(file: str, name: str) -> str | None:
    """Return the version in the name of a wheel or source archive.

    >>> version_of("annotated_doc-0.0.6-py3-none-any.whl", "annotated-doc")
    '0.0.6'
    >>> version_of("scikit-learn-1.7.tar.gz", "scikit-learn")
    '1.7'
    """
    stem = re.sub(r"\.(tar\.gz|tar\.bz2|zip|tgz|whl)$", "", file)
    if file.endswith(".whl"):
        return stem.split("-")[1]
    pattern = normalized(name).replace("-", "[-_.]+") + r"-(.+)"
    found = re.fullmatch(pattern, stem, re.IGNORECASE)
    return found[1] if found else None


def hashes(name: str, version: str) -> list[str]:
    """Return the hashes of all files of a version, sorted."""
    url = f"{INDEX}/{normalized(name)}/"
    request = urllib.request.Request(url, headers={"Accept": f"{JSON}, text/html;q=0.1"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
        kind = answer.headers.get_content_type()
    if kind == JSON:
        files = {
            file["filename"]: file["hashes"].get("sha256") for file in json.loads(text)["files"]
        }
    else:
        files = {m[2]: m[1] for m in re.finditer(r'#sha256=([0-9a-f]{64})"[^>]*>([^<]+)</a>', text)}
    found = sorted({h for f, h in files.items() if h and version_of(f, name) == version})
    if not found:
        raise SystemExit(f"{url} lists no file of version {version}.")
    return found


def locked(text: str) -> str:
    """Return a lock file with the hashes of all its pins."""
    lines = []
    for line in re.sub(r" *\\\n +--hash=sha256:[0-9a-f]{64}", "", text).splitlines():
        pin = PIN.fullmatch(line.strip())
        if pin is None:
            lines.append(line)
            continue
        each = [f"    --hash=sha256:{value}" for value in hashes(pin["name"], pin["version"])]
        lines.append(" \\\n".join([line.rstrip(), *each]))
    return "\n".join(lines) + "\n"


def main() -> None:
    """Rewrite the lock file."""
    default = Path(__file__).parents[1] / "requirements.lock"
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    path.write_text(locked(path.read_text()))


if __name__ == "__main__":
    main()
