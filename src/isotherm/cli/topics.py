"""`isotherm topics`: find the topics of a folder of texts, and show them on a page."""

from pathlib import Path
from typing import Annotated, Any

import typer

from isotherm.cli.interrupts import exit_on_error


def topics(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder with texts, one per file.")
    ],
    number: Annotated[int, typer.Option("--topics", help="Number of topics.", min=1)] = 20,
    layers: Annotated[
        str | None,
        typer.Option(
            help="Fit a deep model with these numbers of units instead, such as 64,32.",
            show_default="no layers: LDA",
        ),
    ] = None,
    pattern: Annotated[str, typer.Option(help="Which files are texts.")] = "*.txt",
    out: Annotated[Path, typer.Option(help="Page to write; the model is saved beside it.")] = Path(
        "topics.html"
    ),
    save: Annotated[
        Path | None,
        typer.Option(help="File for the model.", show_default="OUT with the suffix .nc"),
    ] = None,
    passes: Annotated[
        int | None,
        typer.Option(
            help="Passes over the texts.",
            min=1,
            show_default="8 to 12, by the number of topics; 200 with layers",
        ),
    ] = None,
    min_documents: Annotated[
        int, typer.Option(help="Ignore words that are in fewer texts.", min=1)
    ] = 3,
    max_share: Annotated[
        float, typer.Option(help="Ignore words that are in a larger share of the texts.")
    ] = 0.5,
    stop_words: Annotated[
        bool, typer.Option("--stop-words/--all-words", help="Ignore common English words.")
    ] = True,
    show: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.", min=0)] = 0,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the results only, no progress.")
    ] = False,
) -> None:
    """Find the topics of a folder of texts, print them, and write them to a page.

    The words are sequences of three or more letters, in lower case. The model is saved without
    pickle; `BayesianLDA.load` reads it.

    For example:

        isotherm topics articles --topics 30
        isotherm topics notes --pattern "*.md" --out notes.html --no-open
    """
    from isotherm.cli import tables

    with exit_on_error(context):
        console = tables.stderr_console(quiet)
        model_path = _check_files(out, save)
        model = _model(number, layers, passes, seed, verbose=not quiet and console.is_terminal)
        texts = _read_texts(folder, pattern)
        corpus, tokens = _count(list(texts.values()), min_documents, max_share, stop_words)
        console.print(f"{corpus!r} in {folder}", markup=False, soft_wrap=True)
        model.fit(corpus)
        measures = ["c_v", "npmi"]
        table = model.topic_table(corpus, reference=tokens, measures=measures, num_words=8)
        typer.echo(str(table))
        model.save(model_path)
        page = model.write_page(
            out,
            corpus,
            titles=list(texts),
            texts=list(texts.values()),
            title=f"Topics of {folder.resolve().name}",
            table=table,
        )
        console.print(f"Model: {model_path}\nPage: {page}", markup=False, soft_wrap=True)
        if show and console.is_terminal:
            import webbrowser

            webbrowser.open(page.resolve().as_uri())


def _check_files(out: Path, save: Path | None) -> Path:
    """Check the names of the files before a long fit, and return that of the model."""
    from isotherm.io.sealed import check_suffix

    model = out.with_suffix(".nc") if save is None else save
    check_suffix(model)
    for option, path in (("--out", out), ("--save", model)):
        if not path.parent.is_dir():
            raise ValueError(f"`{option}` is `{path}`, but there is no folder `{path.parent}`.")
    if out.is_dir():
        raise ValueError(f"`--out` must be a file, but `{out}` is a folder.")
    if out.resolve() == model.resolve():
        raise ValueError(f"The page and the model would be the same file, `{out}`: use `--save`.")
    return model


def _read_texts(folder: Path, pattern: str) -> dict[str, str]:
    """Read the texts by their path in the folder."""
    if not folder.is_dir():
        raise ValueError(f"`{folder}` is not a folder.")
    files = sorted(path for path in folder.rglob(pattern) if path.is_file())
    if len(files) < 2:
        raise ValueError(
            f"`{folder}` has {len(files)} files that match {pattern!r}, but topics need at least "
            "two texts: give another folder or `--pattern`."
        )
    for path in files:
        if folder.resolve() not in path.resolve().parents:
            raise ValueError(
                f"`{path}` is a link to a file outside the folder, which is not read: copy the "
                "file, or leave it out with `--pattern`."
            )
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path.read_text(
            encoding="utf-8", errors="replace"
        )
        for path in files
    }


def _count(
    texts: list[str], min_documents: int, max_share: float, stop_words: bool
) -> tuple[Any, list[list[str]]]:
    """Count the words of texts; return a corpus, and the words of each text in order."""
    from sklearn.feature_extraction.text import CountVectorizer

    from isotherm.topics.corpus import as_corpus

    if not 0 < max_share <= 1:
        raise ValueError(f"`--max-share` must be above 0 and at most 1, got {max_share}.")
    vectorizer = CountVectorizer(
        token_pattern=r"[^\W\d_]{3,}",
        stop_words="english" if stop_words else None,
        min_df=min(min_documents, len(texts)),
        max_df=max_share,
    )
    try:
        counts = vectorizer.fit_transform(texts)
    except ValueError as error:
        raise ValueError(
            "No words are left: lower `--min-documents`, raise `--max-share`, or use "
            f"`--all-words` ({len(texts)} texts)."
        ) from error
    analyze = vectorizer.build_analyzer()
    names = vectorizer.get_feature_names_out().tolist()
    return as_corpus(counts, names), [analyze(text) for text in texts]


def _model(number: int, layers: str | None, passes: int | None, seed: int, verbose: bool) -> Any:
    """Build the estimator."""
    common = {"random_state": seed, "verbose": verbose}
    common |= {} if passes is None else {"max_iter": passes}
    if layers is None:
        from isotherm.topics.estimators.lda import BayesianLDA

        return BayesianLDA(number, **common)
    from isotherm.topics.estimators.dpfa import BayesianDPFA

    try:
        sizes = tuple(int(size) for size in layers.split(","))
    except ValueError:
        raise ValueError(f"`--layers` must be numbers such as 64,32, got {layers!r}.") from None
    return BayesianDPFA(sizes, **common)
