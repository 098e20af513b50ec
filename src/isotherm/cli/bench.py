"""`isotherm bench`: a contest beside the peers, from a checkout of the repository.

Benchmarks are programs of the repository, not of the package, and the peers live in an environment of their own: both are
looked for around the working directory, then around the package.
"""

import ast
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from isotherm.paper.experiments.registry import unknown

PEERS = Path(".venv-bench", "bin", "python")


def bench(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="A contest; without a name they are listed.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A short check that writes nothing.")
    ] = False,
) -> None:
    """Run isotherm and its peers side by side: a table, JSON, a picture. Needs a checkout."""
    from isotherm.cli import tables
    from isotherm.cli.app import plainly

    with plainly(context):
        root = _checkout()
        contests = _contests(root)
        if name is None:
            table = tables.table_of("contest", "question")
            for contest, question in contests.items():
                table.add_row(
                    tables.Text(contest, style="cyan", no_wrap=True), tables.Text(question)
                )
            tables.print_table(table)
            return
        if name not in contests:
            raise unknown("contest", name, contests)
        if not (root / PEERS).exists():
            raise ValueError(f"The peers are not installed: run `make peers` in `{root}`.")
        command = [root / PEERS, root / "benchmarks" / f"{name}.py", *["--quick"] * quick]
        code = subprocess.run(command, cwd=root, check=False).returncode
    raise typer.Exit(code)


def _checkout() -> Path:
    """Find the repository."""
    here = Path.cwd()
    for folder in (here, *here.parents, *Path(__file__).parents):
        if (folder / "benchmarks" / "reporting.py").is_file():
            return folder
    raise ValueError("Benchmarks are in isotherm's repository, and this is no checkout of it.")


def _contests(root: Path) -> dict[str, str]:
    """Name the programs and the first sentence of each."""
    found = {}
    for path in sorted((root / "benchmarks").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0].rstrip(".")
    return found
