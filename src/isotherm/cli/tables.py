"""Tables, messages and progress that the command line prints."""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_type_hints

from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from isotherm.io.untrusted import printable
from isotherm.paper.experiments import registry
from isotherm.paper.experiments.contract import Experiment, Report
from isotherm.paper.experiments.overrides import kind_name
from isotherm.paper.report.text import cell, columns, heading, is_numeric, tables


def stderr_console(quiet: bool = False) -> Console:
    """Return a console for messages, on stderr; it prints nothing if `quiet`."""
    return Console(stderr=True, quiet=quiet, highlight=False)


@contextmanager
def progress(console: Console) -> Iterator[Report]:
    """Show the latest message and the time elapsed; unless on a terminal, a line every 30 s."""
    if console.quiet:
        yield lambda message: None
        return
    if not console.is_terminal:
        yield _log(console)
        return
    message = TextColumn("{task.description}", markup=False)
    with Progress(
        SpinnerColumn(), message, TimeElapsedColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task("Starting JAX", total=None)
        yield lambda message: bar.update(task, description=message)


def _log(console: Console, seconds: float = 30.0) -> Report:
    """Return a callback that prints messages and the time, at most one every `seconds`."""
    start = last = time.monotonic()

    def report(message: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= seconds:
            last = now
            console.print(f"{now - start:7.0f} s  {message}", markup=False, soft_wrap=True)

    return report


def print_error(message: str) -> None:
    """Print an error message on stderr; it may quote a file of somebody else."""
    text = Text.assemble(("Error: ", "bold red"), printable(message))
    stderr_console().print(text, soft_wrap=True)


def show_experiments() -> None:
    """Print a table of the experiments with their questions."""
    table = new_table("experiment", "paper", "question")
    for name, entry in registry.EXPERIMENTS.items():
        question = Text(registry.question(name))
        table.add_row(Text(name, style="cyan", no_wrap=True), Text(entry.paper), question)
    print_table(table)


def show_settings(experiment: Experiment) -> None:
    """Print a table of the settings of one experiment, which `--set` changes."""
    default, smoke = dataclasses.asdict(experiment.Config()), dataclasses.asdict(experiment.SMOKE)
    kinds = get_type_hints(experiment.Config)
    table = new_table("setting", "default", "with --smoke", "type")
    for key, value in default.items():
        table.add_row(
            Text(key, style="cyan"),
            *map(Text, (cell(value), cell(smoke[key]))),
            kind_name(kinds[key]),
        )
    print_table(Text(registry.split_docstring(experiment.__doc__)[0]), table)


def show_result(document: dict[str, Any]) -> None:
    """Print the rows and the claims of a run."""
    groups = tables(document["rows"])
    for title, rows in groups:
        print_table(*([Text(title, style="bold cyan")] if len(groups) > 1 else []), _filled(rows))
    print_table(*map(_claim, document["claims"]))


def _filled(rows: list[dict[str, Any]]) -> Table:
    """Return a table of rows; columns of numbers are aligned to the right."""
    keys, table = columns(rows), new_table()
    for key in keys:
        justify = "right" if is_numeric(rows, key) else "left"
        table.add_column(Text(heading(key)), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(row.get(key))) for key in keys))
    return table


def _claim(claim: dict[str, Any]) -> Text:
    mark, style = ("✓", "green") if claim["holds"] else ("✗", "bold red")
    evidence = f"\n  measured {claim['measured']}, expected {claim['expected']}"
    return Text.assemble((f"{mark} ", style), claim["claim"], (evidence, "dim"))


def new_table(*names: str) -> Table:
    """Return an empty table with these columns."""
    return Table(
        *names, box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True
    )


def print_table(*things: Table | Text) -> None:
    """Print on stdout; lines are not wrapped unless stdout is a terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 10_000
    console.print(*things, sep="\n")
