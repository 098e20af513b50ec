"""What the command line prints."""

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

from isotherm.paper.experiments import registry
from isotherm.paper.experiments.contract import Experiment, Say
from isotherm.paper.experiments.overrides import kind_name
from isotherm.paper.report.text import cell, columns, heading, is_numeric, tables


def talk(quiet: bool = False) -> Console:
    """Return the console for what is not data: stderr, or nowhere."""
    return Console(stderr=True, quiet=quiet, highlight=False)


@contextmanager
def progress(console: Console) -> Iterator[Say]:
    """Show the latest message with a clock; in a log, a line every now and then."""
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


def _log(console: Console, seconds: float = 30.0) -> Say:
    """Print messages with the time since the start, at most one in so many seconds."""
    start = last = time.monotonic()

    def say(message: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= seconds:
            last = now
            console.print(f"{now - start:7.0f} s  {message}", markup=False, soft_wrap=True)

    return say


def complain(error: Exception) -> None:
    """Say in a sentence what went wrong."""
    sentence = next(iter(str(error).splitlines()), "")
    if not isinstance(error, ValueError | OSError):
        sentence = f"{type(error).__name__}: {sentence} (`isotherm --debug …` says where)"
    talk().print(Text.assemble(("Error: ", "bold red"), sentence), soft_wrap=True)


def show_experiments() -> None:
    """List every experiment with its question."""
    table = table_of("experiment", "paper", "question")
    for name, entry in registry.EXPERIMENTS.items():
        question = Text(registry.question(name))
        table.add_row(Text(name, style="cyan", no_wrap=True), Text(entry.paper), question)
    print_table(table)


def show_settings(experiment: Experiment) -> None:
    """List the settings of one experiment: what `--set` takes."""
    default, smoke = dataclasses.asdict(experiment.Config()), dataclasses.asdict(experiment.SMOKE)
    kinds = get_type_hints(experiment.Config)
    table = table_of("setting", "default", "smoke", "value")
    for key, value in default.items():
        table.add_row(
            Text(key, style="cyan"),
            *map(Text, (cell(value), cell(smoke[key]))),
            kind_name(kinds[key]),
        )
    print_table(Text(registry.split_docstring(experiment.__doc__)[0]), table)


def show_result(document: dict[str, Any]) -> None:
    """Print the rows and the claims of a run."""
    found = tables(document["rows"])
    for title, rows in found:
        print_table(*([Text(title, style="bold cyan")] if len(found) > 1 else []), _filled(rows))
    print_table(*map(_claim, document["claims"]))


def _filled(rows: list[dict[str, Any]]) -> Table:
    keys, table = columns(rows), table_of()
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


def table_of(*names: str) -> Table:
    """Make a plain table with these columns."""
    return Table(
        *names, box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True
    )


def print_table(*things: Table | Text) -> None:
    """Print on stdout; a file or a pipe gets lines as long as they are."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 10_000
    console.print(*things, sep="\n")
