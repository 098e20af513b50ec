"""Two small corpora inside Python packages: Reuters articles of `lda` and news items of `gensim`.

`lda` has 395 articles of Reuters-21578 as counts of 4258 words. `gensim` has 300 news items of the
Australian Broadcasting Corporation (the background corpus of Lee, Pincombe & Welsh, 2005) as texts;
words are as in `docstrings.py`, if they are in at least three items.
"""

import importlib.util
from pathlib import Path


def load_reuters():
    """Return the Reuters articles."""
    from isotherm.topics.corpus_readers import read_corpus

    folder = package_folder("lda") / "tests"
    return read_corpus(folder / "reuters.ldac", folder / "reuters.tokens")


def load_news():
    """Return the news items."""
    from sklearn.feature_extraction.text import CountVectorizer

    from isotherm.topics.corpus import as_corpus

    path = package_folder("gensim") / "test" / "test_data" / "lee_background.cor"
    vectorizer = CountVectorizer(token_pattern=r"[a-z]{3,}", stop_words="english", min_df=3)
    counts = vectorizer.fit_transform(path.read_text(encoding="latin-1").splitlines())
    return as_corpus(counts, vectorizer.get_feature_names_out())


def package_folder(package: str) -> Path:
    """Return the folder of an installed package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations, f"{package} is not installed"
    return Path(spec.submodule_search_locations[0])


if __name__ == "__main__":
    print(load_reuters(), load_news())
