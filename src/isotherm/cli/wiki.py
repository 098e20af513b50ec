"""`isotherm data build-wiki`: a Wikipedia dump as shards of word counts."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from isotherm.data.wikipedia import Built, Progress


def build_wiki(
    context: typer.Context,
    dump: Annotated[
        Path,
        typer.Argument(help="MediaWiki XML of articles: plain, .gz or .bz2 (best multistream)."),
    ],
    vocab: Annotated[Path, typer.Option(help="The words to count, one per line.")],
    out: Annotated[Path, typer.Option(help="Folder for the shards; new, or one to go on with.")],
    min_tokens: Annotated[
        int, typer.Option(help="Skip articles with fewer words of the vocabulary.", min=0)
    ] = 10,
    workers: Annotated[
        int | None, typer.Option(help="Processes; default: one per core.", min=1)
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Stop after so many documents.", min=1)] = None,
) -> None:
    """Count the words of a Wikipedia dump; the same command again goes on where it was cut.

    Exit with 1 if the dump is cut off or damaged (what was read is kept) or gives no documents.
    """
    from isotherm.cli import tables
    from isotherm.cli.app import plainly

    talk = tables.talk()
    with plainly(context):
        from isotherm.data.wikipedia import build_shards

        try:
            with _progress(talk, dump) as progress:
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
            talk.print("The same command again goes on from the last shard.")
            raise
        _show(built, talk)
        if built.trouble is not None:
            tables.complain(ValueError(built.trouble))
        elif not built.shards:
            tables.complain(
                ValueError(f"`{dump}` has no article with {min_tokens} words of `{vocab}`.")
            )
    raise typer.Exit(1 if built.trouble is not None or not built.shards else 0)


def _show(built: "Built", talk: Any) -> None:
    """Say in a line what there is, in a line what was skipped, and how to read it."""
    tally = built.tally
    typer.echo(
        f"{tally.documents:,} documents with {tally.tokens:,} words, of {tally.pages:,} pages, "
        f"in {built.vocabulary.parent} (shards: {len(built.shards)})"
    )
    talk.print(
        f"Skipped: {tally.redirect:,} redirects, {tally.namespace:,} in other namespaces, "
        f"{tally.short:,} too short, {tally.model:,} without wikitext, {tally.malformed:,} malformed. "
        f"Too large or deep to parse, so stripped plainly: {tally.plain:,} documents.",
        markup=False,
        soft_wrap=True,
    )
    if built.shards:
        talk.print(
            f'Read with open_stream(sorted(Path("{built.vocabulary.parent}").glob("wiki-*.npz")), '
            f'"{built.vocabulary}") of isotherm.topics.corpus_readers',
            markup=False,
            soft_wrap=True,
        )


@contextmanager
def _progress(talk: Any, dump: Path) -> Iterator["Progress"]:
    """Show bytes read of bytes in all, and pages per second; in a log, a line every now and then."""
    from isotherm.cli import tables

    total = dump.stat().st_size if dump.is_file() else 0
    start, first = time.monotonic(), None

    def rate(pages: int) -> str:
        nonlocal first
        first = pages if first is None else first  # what a build goes on from is not its own work
        seconds = max(time.monotonic() - start, 1e-9)
        return f"{pages:,} pages, {(pages - first) / seconds:,.0f}/s"

    if not talk.is_terminal:
        with tables.progress(talk) as say:
            yield lambda read, pages: say(
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
    with Progress(*columns, console=talk, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda read, pages: bar.update(task, completed=read, description=rate(pages))
