"""One method on the stream: learn, look now and then, keep everything on the shelf."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isotherm.data.shards import Position
from isotherm.paper.experiments.contract import Say
from isotherm.paper.experiments.dpfa_wiki.methods import (
    Learner,
    Method,
    Settings,
    build,
    make_score,
)
from isotherm.paper.experiments.resume import Shelf
from isotherm.topics.corpus import Completion, Corpus, completion
from isotherm.topics.corpus_readers import CorpusStream
from isotherm.topics.dpfa.initialization import Start


@dataclass(frozen=True)
class Plan:
    """When to look at what is learned; all numbers are of documents but the draws."""

    batch_size: int
    total: int
    mark_every: int
    """From one point of the curve to the next."""
    curve_draws: int
    """Draws averaged for a point, those of the batches before it."""
    final_draws: int
    """Draws averaged at the end, those of the last batches."""
    late: int
    """The last documents, which have a curve of their own: of the average of the final draws until then."""
    late_every: int
    predict_every: int
    """Batches from one that is predicted before it is learned from to the next."""
    save_every: int
    """Batches from one save to the next."""


class Traces(NamedTuple):
    """What was seen on the way; a row per point."""

    curve: np.ndarray
    """Documents seen, perplexity, prequential perplexity since the last point, share of units on per layer."""
    late: np.ndarray
    """Documents seen, perplexity."""
    final: np.ndarray
    """Perplexity, its standard error, that of the last draw alone, documents per CPU-second, topics in use."""
    cells: np.ndarray
    """Log probability of every scored cell at the end."""


def documents_of(stream: CorpusStream, first: int, size: int) -> Corpus:
    """Read some documents out of the middle of the stream."""
    return next(stream.batches(size, Position().skip(first))).corpus


class Watch:
    """Looks at a learner: the points of its curves and its running scores."""

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
        """Seconds, documents."""

    def predict(self, learner: Learner, batch: Corpus, index: int) -> None:
        """Score a part of a batch that the learner has not seen."""
        if index % self.plan.predict_every == 0:
            score = self.new_score(completion(batch, observed=0.8, seed=index))
            score.add(learner.parameters())
            found = score.result()
            self.predicted += [-np.log(found.value) * found.num_tokens, found.num_tokens]

    def look(self, learner: Learner) -> bool:
        """Add the present draw where it is wanted; return whether a point of the curve was made."""
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
        mean = np.exp(-self.predicted[0] / self.predicted[1]) if self.predicted[1] else np.nan
        on = np.full(self.depth, np.nan)
        on[: len(learner.on_rates)] = learner.on_rates
        self.curve.append([seen, self.recent.result().value, mean, *on])
        self.recent, self.predicted = self.new_score(self.split), np.zeros(2)
        return True

    def line(self) -> str:
        """Say where it stands."""
        seen, value, ahead, *on = self.curve[-1]
        speed = self.cpu[1] / self.cpu[0] if self.cpu[0] else np.nan
        layers = "" if np.isnan(on[0]) else f", on {' '.join(f'{x:.2f}' for x in on)}"
        return (
            f"{seen:,.0f} documents, perplexity {value:.0f} (of new documents {ahead:.0f}), "
            f"{speed:.0f} documents per CPU-second{layers}"
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Give what it takes to go on."""
        found = {
            "curve": np.array(self.curve),
            "late": np.array(self.late),
            "predicted": self.predicted,
            "cpu": self.cpu,
        }
        for name in ("recent", "last"):
            state = getattr(self, name).state()
            found |= {f"{name}.{key}": np.asarray(value) for key, value in state.items()}
        return found

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Go on, bit for bit."""
        self.curve, self.late = arrays["curve"].tolist(), arrays["late"].tolist()
        self.predicted, self.cpu = arrays["predicted"], arrays["cpu"]
        for name in ("recent", "last"):
            getattr(self, name).restore(
                {k.partition(".")[2]: v for k, v in arrays.items() if k.startswith(f"{name}.")}
            )


def follow(
    name: str,
    method: Method,
    settings: Settings,
    plan: Plan,
    stream: CorpusStream,
    split: Completion,
    start: Start,
    shelf: Shelf,
    say: Say,
) -> Traces:
    """Run a method over the stream once, or take it up where the shelf has it."""
    learner = build(method, settings, start)
    watch = Watch(plan, method, settings, split, len(settings.layers))
    if (saved := shelf.load(name)) is not None:
        watch.restore({k[6:]: v for k, v in saved.items() if k.startswith("watch.")})
        learner.restore({k[8:]: v for k, v in saved.items() if k.startswith("learner.")})
    for index, batch in _batches(stream, plan, learner.documents_seen):
        watch.predict(learner, batch, index)
        began = time.process_time()
        learner.step(batch)
        watch.cpu += [time.process_time() - began, len(batch)]
        marked = watch.look(learner)
        if marked:
            say(f"{name}: {watch.line()}")
        if marked or (index + 1) % plan.save_every == 0 or learner.documents_seen == plan.total:
            shelf.save(
                name,
                {f"watch.{k}": v for k, v in watch.arrays().items()}
                | {f"learner.{k}": v for k, v in learner.arrays().items()},
            )
    return _traces(watch, learner)


def _batches(stream: CorpusStream, plan: Plan, seen: int) -> Iterator[tuple[int, Corpus]]:
    """Go on after the documents seen, and stop at the last whole batch of the plan."""
    position = Position().skip(seen)
    numbers = range(seen // plan.batch_size, plan.total // plan.batch_size)
    for index, batch in zip(numbers, stream.batches(plan.batch_size, position), strict=False):
        yield index, batch.corpus


def _traces(watch: Watch, learner: Learner) -> Traces:
    found, single = watch.last.result(), watch.new_score(watch.split)
    parameters: Any = learner.parameters()
    single.add(parameters)
    rates = getattr(parameters, "rates", None)
    used = np.nan if rates is None else float((rates > 1e-3).sum())
    scores = [found.value, found.standard_error, single.result().value]
    score = watch.last if hasattr(watch.last, "log_probabilities") else watch.last.score
    return Traces(
        np.array(watch.curve),
        np.array(watch.late),
        np.array([*scores, watch.cpu[1] / watch.cpu[0], used]),
        score.log_probabilities(),
    )
