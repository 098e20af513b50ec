"""`isotherm topics`: from a folder of texts to topics, a page and a saved model."""

import numpy as np
import pytest
from typer.testing import CliRunner

from isotherm.cli.app import app
from isotherm.topics.estimators.dpfa import BayesianDPFA
from isotherm.topics.estimators.lda import BayesianLDA

SUBJECTS = ["cat dog mouse paw tail whisker", "bond stock share market price fund"]


def isotherm(*words):
    return CliRunner().invoke(app, ["topics", *map(str, words)])


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    texts = tmp_path / "texts"
    (texts / "more").mkdir(parents=True)
    for j in range(30):
        words = rng.choice(SUBJECTS[j % 2].split(), 25)
        place = texts / "more" if j > 20 else texts
        (place / f"text{j}.txt").write_text(" ".join(["the", *words]), encoding="utf-8")
    (texts / "picture.png").write_bytes(b"\x89PNG")
    return texts


def test_topics_are_printed_and_page_and_model_written(folder, tmp_path):
    out = tmp_path / "page.html"
    done = isotherm(folder, "--topics", 2, "--passes", 3, "--out", out, "--no-open")
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines()]
    subjects = [set(line[-8:-2]) for line in rows if line and line[0] in ("0", "1")]
    assert len(subjects) == 2
    for words in subjects:
        assert any(words <= set(subject.split()) for subject in SUBJECTS)
    assert "c_v" in done.stdout and "Corpus(30 documents, 12 words" in done.stderr
    page = out.read_text(encoding="utf-8")
    assert "Topics of texts" in page and "whisker" in page
    assert sum(f'text{j}"' in page for j in range(30)) >= 10
    model = BayesianLDA.load(out.with_suffix(".nc"))
    assert model.components_.shape == (2, 12)
    assert model.top_words(1)[0][0].word in " ".join(SUBJECTS)


def test_a_deep_model_is_fitted_on_request(folder, tmp_path):
    words = ["--layers", "2,2", "--passes", 1, "--out", tmp_path / "deep.html", "--no-open", "-q"]
    done = isotherm(folder, *words, "--save", tmp_path / "deep.safetensors")
    assert done.exit_code == 0 and done.stderr == ""
    assert BayesianDPFA.load(tmp_path / "deep.safetensors").layers == (2, 2)
    assert '"layers"' in (tmp_path / "deep.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pattern", "*.md"], "has 0 files that match '*.md'"),
        (["--min-documents", 1000, "--max-share", 0.01], "No words are left"),
        (["--max-share", 2], "`--max-share` must be above 0"),
        (["--layers", "two"], "`--layers` must be numbers such as 64,32, got 'two'"),
    ],
)
def test_errors_are_one_line_and_nothing_is_written(folder, tmp_path, options, message):
    done = isotherm(folder, *options, "--out", tmp_path / "page.html", "--no-open")
    assert done.exit_code == 2 and message in " ".join(done.stderr.split())
    assert not (tmp_path / "page.html").exists()
    assert isotherm(tmp_path / "nowhere").exit_code == 2


@pytest.mark.parametrize(
    ("out", "save", "message"),
    [
        ("nowhere/page.html", None, "`--out` is `{0}/nowhere/page.html`, but there is no folder"),
        ("page.html", "nowhere/model.nc", "`--save` is `{0}/nowhere/model.nc`, but there is no"),
        ("texts", None, "`--out` must be a file, but `{0}/texts` is a folder"),
        ("page.nc", None, "The page and the model would be the same file"),
        ("page.html", "model.pkl", "must end in .nc or .zarr or .safetensors, got `model.pkl`"),
    ],
)
def test_files_that_cannot_be_written_are_refused_before_the_fit(
    folder, tmp_path, monkeypatch, out, save, message
):
    monkeypatch.setattr(BayesianLDA, "fit", None)  # calling it would raise another error
    options = [] if save is None else ["--save", tmp_path / save]
    done = isotherm(folder, "--out", tmp_path / out, *options, "--no-open")
    assert done.exit_code == 2 and message.format(tmp_path) in done.stderr.replace("\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


def test_a_link_out_of_the_folder_is_not_read(folder, tmp_path):
    """A folder of somebody else may link to a secret, and the page shows words of all texts."""
    (tmp_path / "secret").write_text("password " * 50)
    (folder / "innocent.txt").symlink_to(tmp_path / "secret")
    done = isotherm(folder, "--out", tmp_path / "page.html", "--no-open")
    assert done.exit_code == 2 and "is a link to a file outside the folder" in done.stderr
    assert not (tmp_path / "page.html").exists()
