"""Train one method on the stream, evaluate it at regular points, and save checkpoints."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isotherm.data.shards import Position
from isotherm.paper.experiments.contract import Report
from isotherm.paper.experiments.dpfa_wiki.methods import (
    Learner,
    Method,
    Settings,
    build,
    make_score,
)
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.topics.corpus import Completion, Corpus, completion
from isotherm.topics.corpus_readers import CorpusStream
from isotherm.topics.dpfa.initialization import Start
from isotherm.topics.perplexity import prequential_perplexity
from isotherm.topics.state import StateDict, join_states, split_state


@dataclass(frozen=True)
class Plan:
    """When a method is evaluated. Numbers are documents, unless they are draws or batches."""

    batch_size: int
    total: int
    mark_every: int
    """Between two points of the curve."""
    curve_draws: int
    """Number of draws averaged for a point: those of the batches before it."""
    final_draws: int
    """Number of draws averaged at the end: those of the last batches."""
    late: int
    """The last documents. They have a second curve, of the running average of the final draws."""
    late_every: int
    predict_every: int
    """Every `predict_every`-th batch is scored before the method learns from it."""
    save_every: int
    """Batches between two checkpoints."""


class Traces(NamedTuple):
    """What was measured, one row per point."""

    curve: np.ndarray
    """Columns: documents seen, perplexity, prequential perplexity since the last point, share of
    units on per layer."""
    late: np.ndarray
    """Columns: documents seen, perplexity."""
    final: np.ndarray
    """Perplexity, its standard error, perplexity of the last draw, documents per CPU-second, topics
    in use."""
    cells: np.ndarray
    """Log probability of every scored cell at the end."""


def documents_of(stream: CorpusStream, first: int, size: int) -> Corpus:
    """Return `size` documents of the stream, starting with number `first`."""
    return next(stream.batches(size, Position().skip(first))).corpus


class Evaluation:
    """The evaluation of a learner so far: points of its curves and running scores."""

    def __init__(
        self, plan: Plan, method: Method, settings: Settings, split: Completion, depth: int
    ) -> None:
        self.plan, self.split, self.depth = plan, split, depth
        self.new_score = lambda split: make_score(method, settings, split)
        self.recent, self.last = self.new_score(split), self.new_score(split)
        self.curve: list[list[float]] = []
        self.late: list[list[float]] = []
        self.predicted = np.zeros(2)
        self.cpu = np.zeros(2)
        """Seconds and documents."""

    def score_unseen(self, learner: Learner, batch: Corpus, index: int) -> None:
        """Score part of a batch that the learner has not seen, every `predict_every` batches."""
        if index % self.plan.predict_every == 0:
            score = self.new_score(completion(batch, observed=0.8, seed=index))
            score.add(learner.parameters())
            result = score.result()
            self.predicted += [-np.log(result.value) * result.num_tokens, result.num_tokens]

    def evaluate(self, learner: Learner) -> bool:
        """Add the current draw to the scores; return whether a point was added to the curve."""
        plan, seen = self.plan, learner.documents_seen
        draw = None
        if 0 <= plan.total - seen < plan.final_draws * plan.batch_size:
            draw = learner.parameters()
            self.last.add(draw)
            if plan.total - seen <= plan.late and (plan.total - seen) % plan.late_every == 0:
                self.late.append([seen, self.last.result().value])
        ahead = -seen % plan.mark_every
        if ahead < plan.curve_draws * plan.batch_size:
            self.recent.add(learner.parameters() if draw is None else draw)
        if ahead != 0:
            return False
        mean = prequential_perplexity(self.predicted)
        on = np.full(self.depth, np.nan)
        on[: len(learner.on_rates)] = learner.on_rates
        self.curve.append([seen, self.recent.result().value, mean, *on])
        self.recent, self.predicted = self.new_score(self.split), np.zeros(2)
        return True

    def message(self) -> str:
        """Describe the last point of the curve."""
        seen, value, ahead, *on = self.curve[-1]
        speed = self.cpu[1] / self.cpu[0] if self.cpu[0] else np.nan
        layers = "" if np.isnan(on[0]) else f", on {' '.join(f'{x:.2f}' for x in on)}"
        return (
            f"{seen:,.0f} documents, perplexity {value:.0f} (of new documents {ahead:.0f}), "
            f"{speed:.0f} documents per CPU-second{layers}"
        )

    def state_dict(self) -> StateDict:
        """Return everything needed to resume."""
        scores = join_states(recent=self.recent.state_dict(), last=self.last.state_dict())
        return scores | {
            "curve": np.array(self.curve),
            "late": np.array(self.late),
            "predicted": self.predicted.copy(),
            "cpu": self.cpu.copy(),
        }

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Resume from a saved state, bit for bit."""
        self.curve, self.late = state["curve"].tolist(), state["late"].tolist()
        self.predicted, self.cpu = state["predicted"].copy(), state["cpu"].copy()
        self.recent.load_state_dict(split_state(state, "recent"))
        self.last.load_state_dict(split_state(state, "last"))


def train_on_stream(
    name: str,
    method: Method,
    settings: Settings,
    plan: Plan,
    stream: CorpusStream,
    split: Completion,
    start: Start,
    checkpoints: Checkpoints,
    report: Report,
) -> Traces:
    """Train a method in one pass over the stream, resuming from a checkpoint if there is one."""
    learner = build(method, settings, start)
    evaluation = Evaluation(plan, method, settings, split, len(settings.layers))
    if (saved := checkpoints.load(name)) is not None:
        evaluation.load_state_dict(split_state(saved, "evaluation"))
        learner.load_state_dict(split_state(saved, "learner"))
    for index, batch in _batches(stream, plan, learner.documents_seen):
        evaluation.score_unseen(learner, batch, index)
        began = time.process_time()
        learner.step(batch)
        evaluation.cpu += [time.process_time() - began, len(batch)]
        new_point = evaluation.evaluate(learner)
        if new_point:
            report(f"{name}: {evaluation.message()}")
        if new_point or (index + 1) % plan.save_every == 0 or learner.documents_seen == plan.total:
            checkpoints.save(
                name,
                join_states(evaluation=evaluation.state_dict(), learner=learner.state_dict()),
            )
    return _traces(evaluation, learner)


def _batches(stream: CorpusStream, plan: Plan, seen: int) -> Iterator[tuple[int, Corpus]]:
    """Yield the batches after the documents seen, up to the last whole batch of the plan."""
    position = Position().skip(seen)
    numbers = range(seen // plan.batch_size, plan.total // plan.batch_size)
    for index, batch in zip(numbers, stream.batches(plan.batch_size, position), strict=False):
        yield index, batch.corpus


def _traces(evaluation: Evaluation, learner: Learner) -> Traces:
    averaged, single = evaluation.last.result(), evaluation.new_score(evaluation.split)
    parameters: Any = learner.parameters()
    single.add(parameters)
    rates = getattr(parameters, "rates", None)
    used = np.nan if rates is None else float((rates > 1e-3).sum())
    scores = [averaged.value, averaged.standard_error, single.result().value]
    return Traces(
        np.array(evaluation.curve),
        np.array(evaluation.late),
        np.array([*scores, evaluation.cpu[1] / evaluation.cpu[0], used]),
        evaluation.last.log_probabilities(),
    )
