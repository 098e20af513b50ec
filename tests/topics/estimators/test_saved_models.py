"""Topic models in files: same results, same continuation, nothing but data."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import NotFittedError

import isotherm
from isotherm.io.untrusted import Damaged
from isotherm.topics.corpus import as_corpus
from isotherm.topics.estimators import saved_models
from isotherm.topics.estimators.dpfa import BayesianDPFA
from isotherm.topics.estimators.lda import BayesianLDA

FAST = {"sweeps": 3, "burn_in": 1, "num_draws": 2, "random_state": 0, "batch_size": 20}
MODELS = {
    "gibbs": BayesianLDA(2, seed_words={0: [1]}, max_iter=2, **FAST),
    "filter": BayesianLDA(2, sampler="filter", max_iter=1, **FAST),
    "scir": BayesianLDA(2, sampler="scir", doc_topic_prior=np.array([0.1, 0.2]), **FAST),
    "msgnht": BayesianLDA(2, sampler="msgnht", **FAST),
    "dpfa": BayesianDPFA((2, 2), max_iter=1, start_documents=20, **FAST),
    "dpfa filter": BayesianDPFA((2, 2), inference="filtering", start_documents=20, **FAST),
    "dpfa gibbs": BayesianDPFA((2, 2), inference="gibbs", max_iter=2, **FAST),
}
NAMES = [f"word{i}" for i in range(8)]


def documents(size=60, seed=0):
    rng = np.random.default_rng(seed)
    topics = np.kron(np.eye(2), np.ones((1, 4))) / 4
    return sparse.csr_array(rng.multinomial(20, rng.dirichlet([0.3, 0.3], size) @ topics))


@pytest.mark.parametrize("suffix", [".nc", ".safetensors", ".zarr"])
@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_model_is_the_saved_one(name, suffix, tmp_path):
    if suffix != ".nc" and name not in ("gibbs", "dpfa"):
        pytest.skip("every format with one model of each class, every model in one format")
    model, corpus = MODELS[name].fit(as_corpus(documents(), NAMES)), documents(30, seed=1)
    model.save(tmp_path / f"model{suffix}")
    loaded = type(model).load(tmp_path / f"model{suffix}")
    for key, draws in model.draws_.items():
        np.testing.assert_array_equal(draws, loaded.draws_[key])
        assert draws.dtype == loaded.draws_[key].dtype
    np.testing.assert_array_equal(model.transform(corpus), loaded.transform(corpus))
    assert model.perplexity(corpus) == loaded.perplexity(corpus)
    assert model.top_words(2) == loaded.top_words(2) and loaded.top_words(1)[0][0].word in NAMES
    assert str(loaded.get_params()) == str(model.get_params())
    if hasattr(model, "partial_fit"):
        for either in (model, loaded):
            either.partial_fit(corpus)
        np.testing.assert_array_equal(model.components_, loaded.components_)
        assert model.n_documents_seen_ == loaded.n_documents_seen_


def test_a_stream_is_resumed_while_documents_are_collected(tmp_path):
    counts = documents(90)
    whole, part = (
        BayesianDPFA((2, 2), start_documents=50, **FAST).partial_fit(counts[:30]) for _ in range(2)
    )
    part.save(tmp_path / "model.nc")
    loaded = BayesianDPFA.load(tmp_path / "model.nc")
    for either in (whole, loaded):
        either.partial_fit(counts[30:])
    np.testing.assert_array_equal(whole.components_, loaded.components_)


def test_what_cannot_be_saved_is_refused(tmp_path):
    path = tmp_path / "model.nc"
    with pytest.raises(NotFittedError):
        BayesianLDA(2).save(path)
    sampler = isotherm.sgld(None, 1e-3)
    for settings in ({"sampler": sampler}, {"random_state": np.random.RandomState(0)}):
        model = BayesianLDA(2, **FAST | settings).fit(documents())
        with pytest.raises(ValueError, match="which cannot be saved without pickle"):
            model.save(path)
    assert not path.exists()
    BayesianLDA(2, **FAST).fit(documents()).save(path)
    with pytest.raises(ValueError, match=r"model.nc` has a BayesianLDA, not a BayesianDPFA\.$"):
        BayesianDPFA.load(path)
    with pytest.raises(ValueError, match=r"model.nc` has a BayesianLDA, not a run\.$"):
        isotherm.load_run(path)
    with pytest.raises(ValueError, match=r"^`path` must end in .nc or .zarr or .safetensors"):
        BayesianLDA.load(tmp_path / "model.pkl")
    with pytest.raises(ValueError, match=r"`path` must end in .nc or .zarr or .safetensors"):
        BayesianLDA(2, **FAST).fit(documents()).save(tmp_path / "model.pkl")


def test_damaged_and_hostile_files_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    BayesianLDA(2, **FAST).fit(documents()).save(path)
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    (tmp_path / "changed.safetensors").write_bytes(content)
    with pytest.raises(Damaged, match="was changed"):
        BayesianLDA.load(tmp_path / "changed.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(content[:200])
    with pytest.raises(Damaged):
        BayesianLDA.load(tmp_path / "cut.safetensors")
    write = saved_models.write_sealed
    for value in ({"type": "Popen", "fields": {"args": "true"}}, {"eval": "1"}):

        def hostile(path, document, *rest, value=value):
            write(path, document | {"attributes": {"_learner": value}}, *rest)

        monkeypatch.setattr(saved_models, "write_sealed", hostile)
        BayesianLDA(2, **FAST).fit(documents()).save(path)
        with pytest.raises(Damaged):
            BayesianLDA.load(path)
