"""Run an experiment and write its results."""

import dataclasses
import inspect
import os
import platform
import shlex
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from isotherm.data.registry import present, search_only
from isotherm.io.files import atomically, checksum
from isotherm.io.locks import locked
from isotherm.paper.experiments import registry
from isotherm.paper.experiments.contract import Experiment, Report
from isotherm.paper.experiments.overrides import configured
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.paper.report.document import strict, write_json
from isotherm.paper.report.figures import caption, styled
from isotherm.paper.report.page import fragment


def execute(
    name: str,
    *,
    smoke: bool = False,
    seed: int = 0,
    overrides: Sequence[str] = (),
    out: Path = Path("runs"),
    resume: bool = False,
    data_dir: Path | None = None,
    report: Report = lambda message: None,
) -> dict[str, Any]:
    """Run the experiment called `name` and return the document written to `out/name/result.json`.

    The same folder gets `result.npz` (the arrays), `figures/*.svg` and `*.png`, and `fragment.html`
    for the report. Files are replaced atomically, the document last, so that the figures of a
    document always exist.

    Parameters
    ----------
    smoke
        Use the `SMOKE` configuration of the experiment, which takes seconds.
    seed
        Seed of the key that the experiment gets.
    overrides
        Changes of the configuration, each `key=value`.
    out
        Folder of the results, with a subfolder for each experiment.
    resume
        Resume an interrupted run with the same configuration and seed, if the experiment saves
        checkpoints; otherwise start anew.
    data_dir
        The only folder in which data are searched.
    report
        Called with a progress message from time to time.

    Raises
    ------
    ValueError
        Among others, if another process is running this experiment in this folder.
    """
    with search_only(data_dir), locked(out / name):
        return _execute(name, smoke, seed, overrides, out / name, resume, report)


def _execute(
    name: str,
    smoke: bool,
    seed: int,
    overrides: Sequence[str],
    folder: Path,
    resume: bool,
    report: Report,
) -> dict[str, Any]:
    experiment = registry.load(name)
    config = configured(experiment.SMOKE if smoke else experiment.Config(), overrides)
    report(f"Running {name}")
    started, clock = datetime.now(UTC), time.perf_counter()
    optional: dict[str, Checkpoints] = {}
    if "checkpoints" in inspect.signature(experiment.run).parameters:
        belongs_to = {
            "configuration": dataclasses.asdict(config),
            "seed": seed,
            "version": version("isotherm"),
            "data": _checksums(registry.find(name).dataset),
        }
        optional["checkpoints"] = Checkpoints.open(folder / "checkpoints", belongs_to, resume)
    arrays = experiment.run(config, jax.random.key(seed), report, **optional)
    result = {key: np.asarray(value) for key, value in arrays.items()}
    wall_time = time.perf_counter() - clock
    with atomically(folder / "result.npz") as draft:
        np.savez_compressed(draft, **result)  # pyright: ignore[reportArgumentType]

    report("Drawing figures")
    title, description = registry.split_docstring(experiment.__doc__)
    document = strict(
        {
            "name": name,
            "title": title,
            "description": description,
            "paper": registry.find(name).paper,
            "config": dataclasses.asdict(config),
            "smoke": smoke,
            "seed": seed,
            "versions": {
                "python": platform.python_version(),
                **{package: version(package) for package in ("isotherm", "jax", "numpy")},
            },
            "machine": {
                "cpus": os.cpu_count(),
                "platform": platform.platform(),
                "backend": jax.default_backend(),
            },
            "started": started.isoformat(timespec="seconds"),
            "wall_time_seconds": round(wall_time, 3),
            "command": _command(name, smoke, seed, overrides),
            "rows": experiment.rows(config, result),
            "claims": [claim._asdict() for claim in experiment.check(config, result)],
            "figures": _draw(experiment, config, result, folder),
        }
    )
    with atomically(folder / "fragment.html") as draft:
        draft.write_text(fragment(document, folder), encoding="utf-8")
    write_json(folder / "result.json", document)
    for checkpoints in optional.values():
        checkpoints.remove()
    return document


def _checksums(dataset: str | None) -> dict[str, str]:
    """Return the checksums of the files of a dataset that are present, as they are now."""
    paths = {} if dataset is None else present(dataset)
    return {name: checksum(path) for name, path in paths.items()}


def _command(name: str, smoke: bool, seed: int, overrides: Sequence[str]) -> str:
    """Return the command that reproduces the numbers."""
    settings = [word for override in overrides for word in ("--set", override)]
    return shlex.join(
        ["isotherm", "run", name, *(["--smoke"] * smoke), "--seed", str(seed), *settings]
    )


def _draw(
    experiment: Experiment, config: Any, result: dict[str, np.ndarray], folder: Path
) -> list[dict[str, str]]:
    """Save every figure as SVG and PNG; return names, captions and paths relative to `folder`."""
    figures = []
    (folder / "figures").mkdir(exist_ok=True)
    with styled():
        for name, figure in experiment.plot(config, result).items():
            entry = {"name": name, "caption": caption(figure, name)}
            for ending in ("svg", "png"):
                entry[ending] = f"figures/{name}.{ending}"
                with atomically(folder / entry[ending]) as draft:
                    figure.savefig(draft, metadata={"Date": None} if ending == "svg" else None)
            figures.append(entry)
    return figures
