"""List what an installation of isotherm consists of: `python release/sbom.py [--extra NAME]…`.

Prints a CycloneDX document (JSON) of isotherm and all packages that it needs, with versions and
licences as their metadata state them, as installed in the environment that runs this program.
`--licences` prints a table instead, and exits with 1 if a package states no licence.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement


def closure(name: str, extras: Iterable[str]) -> dict[str, Distribution]:
    """Return the installed packages that a package needs, with itself, by name."""
    found: dict[str, Distribution] = {}
    todo = [(name, frozenset(extras))]
    seen = set(todo)
    while todo:
        name, extras = todo.pop()
        try:
            package = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"{name} is needed but not installed.") from None
        found[package.metadata["Name"].lower()] = package
        for text in package.requires or ():
            need = Requirement(text)
            wanted = need.marker is None or any(
                need.marker.evaluate({"extra": extra}) for extra in {"", *extras}
            )
            key = (need.name, frozenset(need.extras))
            if wanted and key not in seen:
                seen.add(key)
                todo.append(key)
    return dict(sorted(found.items()))


def licence(package: Distribution) -> str:
    """Return the licence that the metadata of a package state; an empty string if none."""
    metadata = package.metadata
    expression = metadata.get("License-Expression")
    if expression:
        return expression
    prefix = "License :: "
    classifiers = [c for c in metadata.get_all("Classifier") or () if c.startswith(prefix)]
    names = [c.split(" :: ")[-1] for c in classifiers]
    text = (metadata.get("License") or "").strip().splitlines()
    return " AND ".join(names) or (text[0] if text and len(text[0]) < 80 else "")


def document(packages: dict[str, Distribution]) -> dict:
    """Return a CycloneDX document."""

    def component(name: str, package: Distribution) -> dict:
        version = package.version
        purl = f"pkg:pypi/{name}@{version}"
        entry = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        stated = licence(package)
        return entry | ({"licenses": [{"license": {"name": stated}}]} if stated else {})

    components = [component(name, package) for name, package in packages.items()]
    main = next(entry for entry in components if entry["name"] == "isotherm")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": main},
        "components": [entry for entry in components if entry is not main],
    }


def main() -> None:
    """Print the document or the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--extra", action="append", default=[], help="an extra of isotherm")
    parser.add_argument("--licences", action="store_true", help="print a table")
    arguments = parser.parse_args()
    packages = closure("isotherm", arguments.extra)
    if not arguments.licences:
        print(json.dumps(document(packages), indent=1))
        return
    unknown = 0
    for name, package in packages.items():
        stated = licence(package)
        unknown += not stated
        print(f"{name:<28}{package.version:<16}{stated or 'NO LICENCE STATED'}")
    sys.exit(1 if unknown else 0)


if __name__ == "__main__":
    main()
