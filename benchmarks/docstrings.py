"""A corpus that nothing was tuned on: docstrings of the packages in requirements-bench.lock.

A document is the docstring of a class or function, as it is in the source files of the installed
packages; tests are left out. Words are sequences of three or more letters, in lower case, without
scikit-learn's English stop words. The vocabulary is the 5000 words that are in most documents, of
those in at least ten and at most a fifth of them. Documents with fewer than 20 of these words, and
all but one of several with equal counts, are left out. Documents are put in the order of a hash, so
a part of them is a random sample. Near duplicates remain, in training and test documents alike.
"""

import ast
import hashlib
import importlib.util
import warnings
from functools import cache
from pathlib import Path

import numpy as np

PACKAGES = ("gensim", "jax", "matplotlib", "numpy", "pandas", "scipy", "sklearn", "torch")
WORDS, SHORTEST = 5000, 20


def docstrings(package: str) -> list[str]:
    """Return the docstrings of the classes and functions of a package, without importing it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations, f"{package} is not installed"
    root, found = Path(spec.submodule_search_locations[0]), []
    for path in sorted(root.rglob("*.py")):
        if any("test" in part for part in path.relative_to(root).parts):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the sources of others
            tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found.append(ast.get_docstring(node) or "")
    return found


@cache
def load_docstrings():
    """Return the corpus."""
    from sklearn.feature_extraction.text import CountVectorizer

    from isotherm.topics.corpus import as_corpus

    texts = {text for package in PACKAGES for text in docstrings(package)} - {""}
    ordered = sorted(texts, key=lambda text: hashlib.sha256(text.encode()).hexdigest())
    vectorizer = CountVectorizer(
        token_pattern=r"[a-z]{3,}", stop_words="english", min_df=10, max_df=0.2
    )
    counts = vectorizer.fit_transform(ordered).tocsr()
    common = np.sort(np.argsort(-counts.getnnz(axis=0), kind="stable")[:WORDS])
    counts = counts[:, common]
    counts.sort_indices()
    rows, seen = [], set()
    for j, length in enumerate(np.asarray(counts.sum(1)).ravel()):
        part = slice(counts.indptr[j], counts.indptr[j + 1])
        bag = counts.indices[part].tobytes() + counts.data[part].tobytes()
        if length >= SHORTEST and bag not in seen:
            seen.add(bag)
            rows.append(j)
    return as_corpus(counts[rows], vectorizer.get_feature_names_out()[common])


if __name__ == "__main__":
    print(load_docstrings())
