"""`isotherm bench`: run a benchmark against other libraries, from a checkout of the repository.

The benchmarks are programs of the repository, not of the package, and the other libraries are in
an environment of their own. The repository is searched for from the current folder upwards, then
from the package upwards.
"""

import ast
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from isotherm.cli.interrupts import exit_on_error
from isotherm.paper.experiments.registry import unknown

PEERS = Path(".venv-bench", "bin", "python")
"""Python with the other libraries, relative to the repository."""


def bench(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="The benchmark to run; without it, all benchmarks are listed."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run a short check that writes no results.")
    ] = False,
) -> None:
    """List the benchmarks against other libraries, or run one of them.

    A benchmark prints a table and writes JSON and a figure.
    It needs a checkout of the repository; `make peers` installs the libraries.

    For example:

        isotherm bench
        isotherm bench accuracy --quick
    """
    from isotherm.cli import tables

    with exit_on_error(context):
        root = _find_repository()
        benchmarks = _benchmarks(root)
        if name is None:
            table = tables.new_table("benchmark", "what it measures")
            for benchmark, title in benchmarks.items():
                table.add_row(
                    tables.Text(benchmark, style="cyan", no_wrap=True), tables.Text(title)
                )
            tables.print_table(table)
            return
        if name not in benchmarks:
            raise unknown("benchmark", name, benchmarks)
        if not (root / PEERS).exists():
            raise ValueError(
                f"The other libraries are not installed: run `make peers` in `{root}`."
            )
        command = [root / PEERS, root / "benchmarks" / f"{name}.py", *["--quick"] * quick]
        code = subprocess.run(command, cwd=root, check=False).returncode
    raise typer.Exit(code)


def _find_repository() -> Path:
    """Return the root of the repository."""
    current = Path.cwd()
    for folder in (current, *current.parents, *Path(__file__).parents):
        if (folder / "benchmarks" / "reporting.py").is_file():
            return folder
    raise ValueError(
        "The benchmarks are not installed: run this in a checkout of isotherm's repository."
    )


def _benchmarks(root: Path) -> dict[str, str]:
    """Return the first line of the docstring of every benchmark, by its name."""
    titles = {}
    for path in sorted((root / "benchmarks").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            titles[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0].rstrip(".")
    return titles
