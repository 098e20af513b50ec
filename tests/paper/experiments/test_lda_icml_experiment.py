"""The LDA experiment: curves agree with scores, claims can fail, and the smoke run."""

import numpy as np
import pytest

from isotherm.data.registry import locate
from isotherm.paper.experiments import lda_icml, runner
from isotherm.paper.experiments.lda_icml import figures, tables
from isotherm.paper.experiments.lda_icml.methods import (
    GIBBS,
    SAMPLERS,
    ChainRunner,
    Protocol,
    curve,
    run_chain,
)
from isotherm.paper.experiments.resume import Checkpoints
from isotherm.paper.report.document import FIELDS
from isotherm.topics.corpus import as_corpus, completion
from isotherm.topics.gibbs import GibbsLDA
from isotherm.topics.perplexity import CompletionScore
from marks import slow

PROTOCOL = Protocol(num_topics=3, batch_size=10, num_steps=40, thin=4, sweeps=4, burn_in=2)


@pytest.fixture(scope="module")
def corpora():
    rng = np.random.default_rng(0)
    topics = np.kron(np.eye(3), np.ones((1, 6))) + 0.02
    theta = rng.dirichlet(np.full(3, 0.2), 80)
    counts = rng.multinomial(30, theta @ (topics / topics.sum(1, keepdims=True)))
    corpus = as_corpus(counts)
    return corpus[:60], completion(corpus[60:], seed=0)


def test_a_curve_ends_at_the_score_of_its_later_half(corpora):
    train, split = corpora
    values = curve(run_chain(GIBBS, (0.0, 0.1), train, split, PROTOCOL, seed=3), split)
    chain = GibbsLDA(train, 3, alpha=0.1, beta=0.1, seed=3)
    score = CompletionScore(split, 0.1, sweeps=15, burn_in=10, warm=True, seed=3)
    draws = list(chain.draws(10, thin=4))
    for draw in draws[:5]:
        score.add(draw)
    first = score.sums.copy()
    for draw in draws[5:]:
        score.add(draw)
    n = split.scored.counts
    expected = np.exp(-(np.log((score.sums - first) / 5) @ n) / n.sum())
    assert values[-1] == pytest.approx(expected, rel=1e-9)
    assert values.shape == (10,) and PROTOCOL.num_averaged == 5


@pytest.mark.parametrize(
    "name", [name if name in ("mSGNHT-S", "SGRLD", "SCIR") else slow(name) for name in SAMPLERS]
)
def test_every_method_is_reproducible(corpora, name):
    h = {"SGLD": 1e-3, "SCIR": 0.2, "SGRLD": 0.05}.get(name, 0.02)
    one, two = (run_chain(name, (h, 0.5), *corpora, PROTOCOL, seed=0) for _ in range(2))
    np.testing.assert_array_equal(one.sums, two.sums)
    assert curve(one, corpora[1])[-1] < 21


def test_a_diverged_chain_has_infinite_perplexity(corpora):
    chain = run_chain("mSGNHT-E", (3.0, 0.5), *corpora, PROTOCOL, seed=0)
    assert np.isinf(curve(chain, corpora[1])[-1]) and np.isnan(chain.seconds)


def test_the_next_best_setting_replaces_one_that_diverges(corpora):
    config = lda_icml.Config(
        num_topics=3,
        batch_size=10,
        num_steps=40,
        thin=4,
        sweeps=4,
        burn_in=2,
        num_seeds=2,
        validation_seeds=1,
        step_sizes=(3.0, 0.01),
    )
    train, split = corpora
    checkpoints = InMemory()
    chains = ChainRunner(config.protocol, checkpoints, lambda _: None, 0, train, split)
    good = {"curves": np.full(10, 5.0), "seconds": np.ones(()), "cpu": np.ones(())}
    checkpoints.saved["choice: mSGNHT-E (3.0, 0.75), seed 0"] = good
    result = lda_icml._method(config, "mSGNHT-E", chains, chains)
    assert result["tried mSGNHT-E"][0, 0] == 5.0
    assert result["chosen mSGNHT-E"].tolist()[:2] == [0.01, 0.75]
    assert result["chosen mSGNHT-E"][3] == 1 and np.isfinite(result["test mSGNHT-E"]).all()
    again = lda_icml._method(config, "mSGNHT-E", chains, chains)  # all from checkpoints
    for name, value in result.items():
        np.testing.assert_array_equal(value, again[name])


class InMemory(Checkpoints):
    """Checkpoints in memory."""

    def __init__(self):
        self.saved = {}

    def load(self, name):
        return self.saved.get(name)

    def save(self, name, arrays):
        self.saved[name] = dict(arrays)


def synthetic_result(config, order):
    """Return a result with the given means; seeds differ by one."""
    result = {"unigram": np.array([1000.0, 20.0])}
    spread = np.arange(config.num_seeds)
    kept = config.protocol.num_kept
    for name in config.methods:
        result[f"test {name}"] = np.tile((order[name] + spread)[:, None], (1, kept))
        result[f"seconds {name}"] = np.full(config.num_seeds, 2.0)
        result[f"cpu {name}"] = np.full(config.num_seeds, 2.0)
        result[f"chosen {name}"] = np.array([0.01, 0.75, order[name], 0])
        result[f"tried {name}"] = np.full((len(config.grid(name)), 2), float(order[name]))
    for name in figures.CURVES:
        shape = (len(config.curve_step_sizes), 1, kept)
        result[f"curve {name}"] = np.full(shape, float(order[name])) + spread[None, :, None]
    return result


def test_claims_hold_for_the_papers_numbers_and_fail_for_others():
    config = lda_icml.Config()
    paper = {name: tables.PAPER.get(name, 1000.0) for name in config.methods}
    result = synthetic_result(config, paper)
    assert all(claim.holds for claim in lda_icml.check(config, result))
    reversed_order = synthetic_result(config, {name: 2000 - value for name, value in paper.items()})
    assert [claim.holds for claim in lda_icml.check(config, reversed_order)] == [False] * 9 + [True]
    rows = lda_icml.rows(config, result)
    assert rows[0]["perplexity paper"] == 939.67 and "50 draws averaged" in rows[0]["scored with"]
    assert set(lda_icml.plot(config, result)) == {"curves", "best", "step_sizes"}


def test_bad_settings_raise():
    with pytest.raises(ValueError, match="`methods` must have"):
        lda_icml.Config(methods=("SGLD",))
    with pytest.raises(ValueError, match="twice `thin`"):
        lda_icml.Config(num_steps=10)


@pytest.mark.slow
def test_smoke_run(tmp_path):
    try:
        locate("icml", None, ["icml_bow.npz"])
    except (ValueError, OSError) as error:
        pytest.skip(f"the ICML corpus is missing: {error}")
    settings = [
        "num_steps=40",
        "thin=10",
        "curve_step_sizes=0.01",
        "step_sizes=0.01",
        "num_topics=5",
    ]
    document = runner.execute("lda-icml", smoke=True, overrides=settings, out=tmp_path)
    assert set(document) == FIELDS
    assert {row["table"] for row in document["rows"]} and len(document["figures"]) == 3
