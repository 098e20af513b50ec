"""`isotherm data`: list, verify and download the datasets, and build one from a Wikipedia dump.

Exit codes: 0 success, 1 a checksum is wrong or a dump is damaged or has no documents, 2 a file is
missing or an argument is wrong.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isotherm.cli.interrupts import exit_on_error
from isotherm.cli.wiki import build_wiki

if TYPE_CHECKING:
    from isotherm.data.registry import Checked

app = typer.Typer(
    help="""List, verify and download the datasets, or build one from a Wikipedia dump.

    For example:

        isotherm data list
        isotherm data fetch a9a
    """,
    no_args_is_help=True,
    add_completion=False,
)

DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="The only folder to search.",
        show_default="$ISOTHERM_DATA, ../shared/data, the user's cache",
    ),
]


@app.command("list")
def list_datasets(context: typer.Context, data_dir: DataDir = None) -> None:
    """List the datasets, and how many of their files are present."""
    from isotherm.cli import tables

    with exit_on_error(context):
        from isotherm.data import registry

        table = tables.new_table("dataset", "files", "size", "folder", "licence", "title")
        for name, dataset in registry.datasets().items():
            paths = registry.present(name, data_dir)
            folders = {str(path.parent) for path in paths.values()}
            table.add_row(
                tables.Text(name, style="cyan", no_wrap=True),
                f"{len(paths)} of {len(dataset.files)}",
                tables.Text(_size(sum(file.bytes for file in dataset.files)), no_wrap=True),
                *map(tables.Text, (", ".join(sorted(folders)), dataset.licence, dataset.title)),
            )
        tables.print_table(table)


@app.command()
def verify(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A dataset; without it, all datasets.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Verify the checksum of every file of a dataset.

    The exit code is 1 if a checksum is wrong, and 2 if a file is missing.
    Without NAME, missing files are an error only if no file is present.
    """
    with exit_on_error(context):
        from isotherm.data import registry

        names = [name] if name is not None else list(registry.datasets())
        checks = {each: registry.verify(each, data_dir) for each in names}
        _show(checks)
    states = {item.state for items in checks.values() for item in items}
    if "wrong checksum" in states:
        raise typer.Exit(1)
    if "missing" in states and (name is not None or "ok" not in states):
        command = f"isotherm data fetch {name or 'NAME'}"
        typer.echo(f"Files are missing. Download them with `{command}`.", err=True)
        raise typer.Exit(2)


@app.command()
def fetch(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A dataset of `isotherm data list`.")],
    data_dir: DataDir = None,
) -> None:
    """Download the files of a dataset that are missing or have a wrong checksum.

    Files are downloaded to --data-dir, $ISOTHERM_DATA or the user's cache.
    A download with a wrong checksum is deleted, and the exit code is 1.
    """
    from isotherm.cli import tables

    wrong = False
    with exit_on_error(context):
        import pooch

        from isotherm.data import registry

        checks = registry.verify(name, data_dir)
        if any(item.state != "ok" for item in checks):
            pooch.get_logger().setLevel("WARNING")  # the messages below are enough
            console, folder = tables.stderr_console(), registry.download_folder(name, data_dir)
            console.print(f"Downloading {name} to {folder}", markup=False, soft_wrap=True)
            try:
                with _progress(console) as bar:
                    checks = registry.fetch(name, data_dir, progress=bar)
            except registry.ChecksumError as error:
                tables.print_error(str(error))
                wrong = True
        if not wrong:
            _show({name: checks})
    raise typer.Exit(1 if wrong or any(item.state != "ok" for item in checks) else 0)


app.command("build-wiki")(build_wiki)


def _show(checks: dict[str, list["Checked"]]) -> None:
    """Print the state and the path of every file."""
    from isotherm.cli import tables

    styles = {"ok": "green", "missing": "yellow", "wrong checksum": "bold red"}
    table = tables.new_table("dataset", "file", "state", "path")
    for name, items in checks.items():
        for item in items:
            table.add_row(
                tables.Text(name, style="cyan"),
                tables.Text(item.file.name),
                tables.Text(item.state, style=styles[item.state]),
                tables.Text(str(item.path or "")),
            )
    tables.print_table(table)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


class _Bar:
    """A rich progress bar with the interface that pooch expects: `total` and three methods."""

    def __init__(self, progress: Any) -> None:
        self.progress, self.task, self.total = progress, progress.add_task("", total=None), 0

    def update(self, count: int) -> None:
        self.progress.update(self.task, advance=count, total=self.total)

    def reset(self) -> None:
        self.progress.reset(self.task)

    def close(self) -> None:
        pass


@contextmanager
def _progress(console: Any) -> Iterator["_Bar | bool"]:
    """Show the progress of a download; yield False, for no output, unless on a terminal."""
    if not console.is_terminal:
        yield False
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bar(progress)
