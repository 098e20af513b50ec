"""The command line: list, run, report, data, bench, topics.

Results go to stdout; progress, messages and errors go to stderr. Exit codes: 0 the claims hold, 1
the run finished but a claim fails, or its results cannot be written, 2 a usage or configuration
error, 130 interrupted. Slow modules are imported inside the commands, so that `--help` is fast.
"""

import inspect
import io
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from isotherm.cli import data
from isotherm.cli.bench import bench
from isotherm.cli.interrupts import Interrupts, exit_on_error, resume_command
from isotherm.cli.topics import topics
from isotherm.paper.experiments import registry

MAX_SEED = 2**32 - 1
"""JAX uses the lower 32 bits of larger seeds, so that they would repeat others."""

app = typer.Typer(
    name="isotherm",
    help="""Run experiments with stochastic gradient thermostats.

    Every experiment of the paper is one command. To begin:

        isotherm list                       show the experiments
        isotherm run double-well --smoke    run one of them, in seconds
        isotherm report                     write all results to runs/report.html
        isotherm data list                  show the datasets
        isotherm topics FOLDER              find the topics of a folder of texts
    """,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.command()(bench)
app.command()(topics)


def main() -> None:
    """Run the command line; characters that the terminal cannot show become question marks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
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
        bool, typer.Option("--debug", help="Print the traceback of an error.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Store the options before the command; the help text is that of `app`."""
    context.obj = debug


@app.command("list")
def list_experiments(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Show the settings of this experiment instead."),
    ] = None,
) -> None:
    """List the experiments, or the settings of one experiment.

    For example:

        isotherm list
        isotherm list double-well
    """
    from isotherm.cli import tables

    with exit_on_error(context):
        if name is None:
            tables.show_experiments()
        else:
            tables.show_settings(registry.load(name))


@app.command()
def run(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help=f"One of {', '.join(registry.EXPERIMENTS)}.")
    ],
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Run a small version, which takes seconds.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.", min=0, max=MAX_SEED)] = 0,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting (see `isotherm list NAME`); may be repeated.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs"),
    data_dir: data.DataDir = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Resume an interrupted run, if the experiment saves its progress."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print result.json instead of tables.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the results only, no progress.")
    ] = False,
) -> None:
    """Run an experiment: write OUT/NAME/result.json and figures, and print the results.

    The exit code is 1 if a claim of the paper fails, 130 if the run is interrupted.

    For example:

        isotherm run double-well --smoke
        isotherm run double-well --seed 1 --set num_draws=1e5 --out my-runs
    """
    from isotherm.cli import tables

    console = tables.stderr_console(quiet)
    command = resume_command(name, smoke, seed, overrides or (), out, data_dir)
    advice = f"Resume with: {command}"
    with (
        Interrupts() as interrupts,
        exit_on_error(context, lambda: advice * interrupts.can_resume),
    ):
        registry.find(name)  # report a wrong name before the slow import of JAX
        with tables.progress(console) as report, redirect_stdout(sys.stderr):
            from isotherm.paper.experiments.runner import execute

            experiment = registry.load(name)
            interrupts.can_resume = "checkpoints" in inspect.signature(experiment.run).parameters
            document = execute(
                name,
                smoke=smoke,
                seed=seed,
                overrides=overrides or (),
                out=out,
                resume=resume,
                data_dir=data_dir,
                report=interrupts.wrap(report),
            )
    message = f"Results of {name} with seed {seed} written to {out / name}"
    console.print(message, markup=False, soft_wrap=True)
    with exit_on_error(context):  # stdout may be a file on a full disk
        if as_json:
            from isotherm.paper.report.document import dumps

            typer.echo(dumps(document), nl=False)
        else:
            tables.show_result(document)
    raise typer.Exit(0 if all(claim["holds"] for claim in document["claims"]) else 1)


@app.command()
def report(
    context: typer.Context,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder with the results.")
    ] = Path("runs"),
) -> None:
    """Write all results in a folder to one page, DIR/report.html, and print its path.

    A result that cannot be shown is named, on the page too; the exit code is then 1.
    """
    from isotherm.cli import tables

    broken: dict[str, str] = {}
    with exit_on_error(context):
        from isotherm.paper.report.page import build

        typer.echo(build(directory, order=list(registry.EXPERIMENTS), broken=broken))
    for name, reason in broken.items():
        tables.print_error(f"The result of {name} is not on the page. {reason}")
    raise typer.Exit(1 if broken else 0)


if __name__ == "__main__":
    main()
