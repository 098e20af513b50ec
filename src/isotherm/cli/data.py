"""`isotherm data`: what there is, whether it is intact, getting it, and making it of a dump.

Exit codes: 0 all is well, 1 a checksum is wrong or a dump is damaged, 2 something is missing or misspelt.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isotherm.cli.wiki import build_wiki

if TYPE_CHECKING:
    from isotherm.data.registry import Checked

app = typer.Typer(
    help="List, verify, fetch and build the datasets.", no_args_is_help=True, add_completion=False
)
app.command("build-wiki")(build_wiki)

DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Look here only; default: $ISOTHERM_DATA, ../shared/data, the user's cache.",
        show_default=False,
    ),
]


@app.command("list")
def list_datasets(context: typer.Context, data_dir: DataDir = None) -> None:
    """List the datasets and which of their files are present."""
    from isotherm.cli import tables
    from isotherm.cli.app import plainly

    with plainly(context):
        from isotherm.data import registry

        table = tables.table_of("dataset", "files", "size", "where", "licence", "title")
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
        str | None, typer.Argument(help="A dataset; default: all that are present.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Check the checksum of every file; exit with 1 if one is wrong, 2 if one is missing."""
    from isotherm.cli.app import plainly

    with plainly(context):
        from isotherm.data import registry

        names = [name] if name is not None else list(registry.datasets())
        checks = {each: registry.verify(each, data_dir) for each in names}
        _show(checks)
    states = {item.state for items in checks.values() for item in items}
    if "wrong checksum" in states:
        raise typer.Exit(1)
    # Nobody needs every dataset; but one asked for by its name, or none at all, is an error.
    if "missing" in states and (name is not None or "ok" not in states):
        typer.echo(f"Missing: `isotherm data fetch {name or 'NAME'}` gets it.", err=True)
        raise typer.Exit(2)


@app.command()
def fetch(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A dataset, as `isotherm data list` calls it.")],
    data_dir: DataDir = None,
) -> None:
    """Download what is missing of a dataset, with its checksum checked before it is used."""
    from isotherm.cli import tables
    from isotherm.cli.app import plainly

    wrong = False
    with plainly(context):
        import pooch

        from isotherm.data import registry

        checks = registry.verify(name, data_dir)
        if any(item.state != "ok" for item in checks):
            pooch.get_logger().setLevel("WARNING")  # We do the talking.
            talk, folder = tables.talk(), registry.download_folder(name, data_dir)
            talk.print(f"Fetching {name} to {folder}", markup=False, soft_wrap=True)
            try:
                with _progress(talk) as bar:
                    checks = registry.fetch(name, data_dir, progress=bar)
            except registry.ChecksumError as error:
                tables.complain(error)
                wrong = True
        if not wrong:
            _show({name: checks})
    raise typer.Exit(1 if wrong or any(item.state != "ok" for item in checks) else 0)


def _show(checks: dict[str, list["Checked"]]) -> None:
    """Print a line per file: what it is, how it is, where it is."""
    from isotherm.cli import tables

    styles = {"ok": "green", "missing": "yellow", "wrong checksum": "bold red"}
    table = tables.table_of("dataset", "file", "state", "path")
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
    """A rich progress bar with the four names that pooch asks of one."""

    def __init__(self, progress: Any) -> None:
        self.progress, self.task, self.total = progress, progress.add_task("", total=None), 0

    def update(self, count: int) -> None:
        self.progress.update(self.task, advance=count, total=self.total)

    def reset(self) -> None:
        self.progress.reset(self.task)

    def close(self) -> None:
        pass


@contextmanager
def _progress(talk: Any) -> Iterator["_Bar | bool"]:
    """Show how far a download is; say nothing where nobody watches."""
    if not talk.is_terminal:
        yield False
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=talk, transient=True) as progress:
        yield _Bar(progress)
