"""`isotherm data build-wiki`: convert a Wikipedia dump to shards of word counts."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isotherm.cli.interrupts import exit_on_error

if TYPE_CHECKING:
    from isotherm.data.wikipedia import Built, Progress


def build_wiki(
    context: typer.Context,
    dump: Annotated[
        Path,
        typer.Argument(
            metavar="DUMP",
            help="MediaWiki XML of articles: plain, .gz or .bz2; multistream .bz2 is the fastest.",
        ),
    ],
    vocab: Annotated[Path, typer.Option(help="File with the words to count, one per line.")],
    out: Annotated[
        Path, typer.Option(help="Folder for the shards: new, empty, or that of a build to resume.")
    ],
    min_tokens: Annotated[
        int, typer.Option(help="Skip articles with fewer words of the vocabulary.", min=0)
    ] = 10,
    workers: Annotated[
        int | None, typer.Option(help="Number of processes.", min=1, show_default="one per core")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Stop after this many documents.", min=1)
    ] = None,
) -> None:
    """Count the words of a Wikipedia dump; run the same command again to resume.

    The exit code is 1 if the dump is truncated or damaged, or has no documents.
    The articles before the damage are kept.

    For example:

        isotherm data build-wiki articles.xml.bz2 --vocab words.txt --out wiki
    """
    from isotherm.cli import tables

    console = tables.stderr_console()
    with exit_on_error(context):
        from isotherm.data.wikipedia import build_shards

        try:
            with _progress(console, dump) as progress:
                built = build_shards(
                    dump,
                    vocab,
                    out,
                    min_tokens=min_tokens,
                    workers=workers,
                    limit=limit,
                    progress=progress,
                )
        except KeyboardInterrupt:
            console.print("Run the same command again to resume after the last shard.")
            raise
        _show(built, console)
        if built.trouble is not None:
            tables.print_error(built.trouble)
        elif not built.shards:
            tables.print_error(f"`{dump}` has no article with {min_tokens} words of `{vocab}`.")
    raise typer.Exit(1 if built.trouble is not None or not built.shards else 0)


def _show(built: "Built", console: Any) -> None:
    """Print what was built, what was skipped, and how to read the shards."""
    tally = built.tally
    typer.echo(
        f"{tally.documents:,} documents with {tally.tokens:,} words, from {tally.pages:,} pages, "
        f"in {built.vocabulary.parent} (shards: {len(built.shards)})"
    )
    console.print(
        f"Skipped: {tally.redirect:,} redirects, {tally.namespace:,} in other namespaces, "
        f"{tally.short:,} too short, {tally.model:,} without wikitext, "
        f"{tally.malformed:,} malformed. "
        f"Stripped by regular expressions, being too complex to parse: {tally.plain:,} documents.",
        markup=False,
        soft_wrap=True,
    )
    if built.shards:
        console.print(
            f'Read with open_stream(sorted(Path("{built.vocabulary.parent}").glob("wiki-*.npz")), '
            f'"{built.vocabulary}") of isotherm.topics.corpus_readers',
            markup=False,
            soft_wrap=True,
        )


@contextmanager
def _progress(console: Any, dump: Path) -> Iterator["Progress"]:
    """Show bytes and pages read; a line from time to time if stderr is not a terminal."""
    from isotherm.cli import tables

    total = dump.stat().st_size if dump.is_file() else 0
    start, first = time.monotonic(), None

    def rate(pages: int) -> str:
        nonlocal first
        first = pages if first is None else first  # a resumed build did not read these now
        seconds = max(time.monotonic() - start, 1e-9)
        return f"{pages:,} pages, {(pages - first) / seconds:,.0f}/s"

    if not console.is_terminal:
        with tables.progress(console) as report:
            yield lambda read, pages: report(
                f"{read / 1e6:,.0f} of {total / 1e6:,.0f} MB, {rate(pages)}"
            )
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda read, pages: bar.update(task, completed=read, description=rate(pages))
