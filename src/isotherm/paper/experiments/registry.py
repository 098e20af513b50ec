"""The table of experiments: a new experiment needs one line here."""

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple, cast

from isotherm.paper.experiments.contract import Experiment


class Entry(NamedTuple):
    """The module of an experiment, the part of the paper that it reproduces, and its dataset."""

    module: str
    paper: str
    dataset: str | None = None
    """Name in `isotherm data list`; its files are part of the identity of a resumable run."""


EXPERIMENTS = {
    "double-well": Entry("isotherm.paper.experiments.double_well", "Figures 1 and 2"),
    "order": Entry("isotherm.paper.experiments.order", "Lemmas 1 and 2"),
    "rates": Entry("isotherm.paper.experiments.rates", "Lemma 3 and Remarks 1–3"),
    "logistic-a9a": Entry("isotherm.paper.experiments.logistic_a9a", "Table 2 and Figure 6", "a9a"),
    "network-exact": Entry("isotherm.paper.experiments.network_exact", "beyond the paper"),
    "uci": Entry("isotherm.paper.experiments.uci", "beyond the paper", "uci"),
    "mnist-depth": Entry("isotherm.paper.experiments.mnist.depth", "Figure 4", "mnist"),
    "mnist-step-size": Entry("isotherm.paper.experiments.mnist.step_size", "Figure 7", "mnist"),
    "mnist-sigmoid": Entry("isotherm.paper.experiments.mnist.sigmoid", "Figure 8", "mnist"),
    "mnist-table": Entry("isotherm.paper.experiments.mnist.table", "Table 3", "mnist"),
    "mnist-natural": Entry("isotherm.paper.experiments.mnist.natural", "beyond the paper", "mnist"),
    "mnist-posterior": Entry(
        "isotherm.paper.experiments.mnist.posterior", "beyond the paper", "mnist"
    ),
    "mnist-lenet": Entry("isotherm.paper.experiments.mnist.lenet", "Figure 9", "mnist"),
    "dpfa-wiki": Entry("isotherm.paper.experiments.dpfa_wiki", "Figure 5", "wiki"),
    "lda-icml": Entry("isotherm.paper.experiments.lda_icml", "Table 1 and Figure 3", "icml"),
}


def find(name: str) -> Entry:
    """Return the entry of `name`; raise with the nearest known name if there is none."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def load(name: str) -> Experiment:
    """Import the experiment called `name`."""
    return cast(Experiment, importlib.import_module(find(name).module))


def question(name: str) -> str:
    """Return the question that `name` answers, read from its source without importing JAX."""
    spec = importlib.util.find_spec(find(name).module)
    if spec is None or spec.origin is None:
        return "(not part of this installation)"
    source = Path(spec.origin).read_text(encoding="utf-8")
    return split_docstring(ast.get_docstring(ast.parse(source)))[0]


def split_docstring(docstring: str | None) -> tuple[str, str]:
    r"""Split a docstring into its first line and the rest.

    >>> split_docstring("Is it so? \n\n    We look.")
    ('Is it so?', 'We look.')
    """
    title, _, prose = inspect.cleandoc(docstring or "").partition("\n")
    return title.strip(), prose.strip()


def unknown(kind: str, word: str, known: Iterable[str]) -> ValueError:
    """Build the error for an unknown name, with the nearest known name.

    >>> unknown("experiment", "ordre", ["order", "rates"])
    ValueError('Unknown experiment `ordre`: did you mean `order`? Known are `order`, `rates`.')
    """
    names = list(known)
    near = get_close_matches(word, names, n=1)
    hint = f": did you mean `{near[0]}`?" if near else "."
    listed = ", ".join(f"`{name}`" for name in names)
    return ValueError(f"Unknown {kind} `{word}`{hint} Known are {listed}.")
