"""The command line: list, run, report, data, bench.

Data goes to stdout, talk to stderr. Exit codes: 0 the claims hold, 1 it ran but a claim fails, or
there is no room for its results, 2 a usage or configuration error, 130 interrupted. Whatever is slow to
import is imported inside the commands, so that help is immediate.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from isotherm.cli import data
from isotherm.cli.bench import bench
from isotherm.cli.interrupts import Interrupts, out_of_room, resume_command
from isotherm.paper.experiments import registry

app = typer.Typer(
    name="isotherm",
    help="Stochastic gradient thermostats in JAX: every experiment of the paper as one command.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.command()(bench)

Name = Annotated[str, typer.Argument(help=f"One of {', '.join(registry.EXPERIMENTS)}.")]


def main() -> None:
    """Run the command line."""
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"isotherm {version('isotherm')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback instead of a sentence.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command; the application's help says the rest."""
    context.obj = debug


@app.command("list")
def list_experiments(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="Show the settings of this experiment instead.")
    ] = None,
) -> None:
    """List the experiments and the questions they answer."""
    from isotherm.cli import tables

    with plainly(context):
        if name is None:
            tables.show_experiments()
        else:
            tables.show_settings(registry.load(name))


@app.command()
def run(
    context: typer.Context,
    name: Name,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="A small run that ends in seconds.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of all randomness.", min=0)] = 0,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a run was cut (long experiments).")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print result.json, nothing else.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print results, no talk.")] = False,
) -> None:
    """Run an experiment, write OUT/NAME/result.json and figures, exit with 1 if a claim fails."""
    from isotherm.cli import tables

    talk = tables.talk(quiet)
    advice = f"Go on with: {resume_command(name, smoke, seed, overrides or (), out)}"
    with Interrupts() as interrupts, plainly(context, lambda: advice * interrupts.patient):
        registry.find(name)  # A wrong name should not wait for JAX.
        with tables.progress(talk) as say, redirect_stdout(sys.stderr):
            from isotherm.paper.experiments.runner import execute

            experiment = registry.load(name)
            interrupts.patient = "shelf" in inspect.signature(experiment.run).parameters
            document = execute(
                name,
                smoke=smoke,
                seed=seed,
                overrides=overrides or (),
                out=out,
                resume=resume,
                say=interrupts.between(say),
            )
    if as_json:
        from isotherm.paper.report.document import dumps

        typer.echo(dumps(document), nl=False)
    else:
        tables.show_result(document)
    talk.print(f"{name} with seed {seed} written to {out / name}", markup=False, soft_wrap=True)
    raise typer.Exit(0 if all(claim["holds"] for claim in document["claims"]) else 1)


@app.command()
def report(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(help="Folder with the results.")] = Path("runs"),
) -> None:
    """Write one self-contained report.html of everything that ran, and print its path."""
    with plainly(context):
        from isotherm.paper.experiments.registry import EXPERIMENTS
        from isotherm.paper.report.page import build

        typer.echo(build(directory, order=list(EXPERIMENTS)))


@contextmanager
def plainly(
    context: typer.Context, how_to_resume: Callable[[], str] = lambda: ""
) -> Iterator[None]:
    """Turn an error into a sentence or two and an exit code; add the traceback under `--debug`."""
    try:
        yield
    except KeyboardInterrupt:
        advice = " What is finished is saved. " if how_to_resume() else ""
        typer.echo(f"Interrupted.{advice}{how_to_resume()}", err=True)
        raise typer.Exit(130) from None
    except Exception as error:
        no_room = out_of_room(error) if isinstance(error, OSError) else None
        if context.obj:
            import traceback

            traceback.print_exc()
        else:
            from isotherm.cli import tables

            tables.complain(OSError(f"{no_room} {how_to_resume()}") if no_room else error)
        raise typer.Exit(1 if no_room else 2) from None


if __name__ == "__main__":
    main()
