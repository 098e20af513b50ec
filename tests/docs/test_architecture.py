"""The tree in docs/architecture.md is the real one, and it stays small enough to read."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "isotherm"
LINE = re.compile(r"^(?P<indent> *)(?P<name>[\w.]+/?) {2,}(?P<description>\S.*)$")


def documented():
    """Paths in the tree of the page, in its order, each with its description."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    (tree,) = re.findall(r"```text\nsrc/isotherm/\n(.*?)```", page, re.DOTALL)
    paths, parents = {}, []
    for line in tree.splitlines():
        match = LINE.match(line)
        assert match, f"not `name    description`: {line!r}"
        depth = len(match["indent"]) // 2
        assert depth >= 1 and len(match["indent"]) % 2 == 0, line
        parents = [*parents[: depth - 1], match["name"]]
        assert len(parents) == depth, f"no folder above {line!r}"
        path = "".join(parents)
        assert path not in paths, f"{path} is there twice"
        paths[path] = match["description"]
    return paths


def actual():
    """Folders (with a slash) and files of the package.

    The line of a folder also describes its `__init__.py`.
    """
    paths = {"__init__.py"}
    for path in SOURCE.rglob("*"):
        relative = path.relative_to(SOURCE)
        if "__pycache__" in relative.parts or path.name.startswith("."):
            continue
        if path.is_dir():
            if any(path.glob("*.py")):
                paths.add(f"{relative.as_posix()}/")
        elif path.name != "__init__.py":
            paths.add(relative.as_posix())
    return paths


def test_the_tree_of_the_page_is_the_real_one():
    listed, real = set(documented()), actual()
    assert sorted(real - listed) == [], "missing in docs/architecture.md"
    assert sorted(listed - real) == [], "in docs/architecture.md, but not in src/isotherm"


def test_every_description_is_a_phrase_of_its_own():
    descriptions = documented()
    for path, description in descriptions.items():
        assert len(description) >= 10, path
        assert len(description) <= 100, path
    assert len(set(descriptions.values())) == len(descriptions)


def test_at_most_16_folders_and_7_modules_beside_the_package_file():
    top = [path for path in actual() if "/" not in path.rstrip("/")]
    folders = [path for path in top if path.endswith("/")]
    modules = [path for path in top if path.endswith(".py") and path != "__init__.py"]
    assert len(folders) <= 16, folders
    assert len(modules) <= 7, modules


def test_folders_come_first_and_in_the_order_of_their_layers():
    top = [path for path in documented() if "/" not in path.rstrip("/")]
    folders = [path for path in top if path.endswith("/")]
    assert top[: len(folders)] == folders
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (layers,) = [
        contract["layers"]
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers" and "containers" not in contract
    ]
    depth = {
        f"{module.strip().removeprefix('isotherm.')}/": number
        for number, layer in enumerate(layers)
        for module in layer.split("|")
    }
    order = [depth[folder] for folder in folders if folder in depth]
    assert len(order) >= 10
    assert order == sorted(order)
