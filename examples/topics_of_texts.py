"""Find the topics of a folder of text files.

    python examples/topics_of_texts.py FOLDER [number of topics]

Every `.txt` file in the folder is a document. Without a folder, the documents are the texts of
Python's `help()` about the language: about eighty, and part of every installation.
"""

import sys
from pathlib import Path
from pydoc_data.topics import topics as python_help

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer

from isotherm import BayesianLDA

folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
num_topics = int(sys.argv[2]) if len(sys.argv) > 2 else 6
texts = python_help
if folder is not None:
    files = sorted(folder.glob("**/*.txt"))
    texts = {file.stem: file.read_text(encoding="utf-8", errors="replace") for file in files}
if len(texts) < 2:
    sys.exit(f"{folder} must have at least two .txt files.")

# Words of three letters or more, in at least three texts but not in most of them.
reader = CountVectorizer(token_pattern=r"[a-zA-Z]{3,}", stop_words="english", min_df=3, max_df=0.5)
counts = reader.fit_transform(texts.values())
words = reader.get_feature_names_out()
held_out = np.arange(len(texts)) % 10 == 9
print(f"{len(texts)} texts, {len(words)} words, {counts.sum()} tokens")

model = BayesianLDA(num_topics, max_iter=50, random_state=0)
model.fit(counts[~held_out])
perplexity = model.perplexity(counts[held_out])
print(f"perplexity of {held_out.sum()} held-out texts: {perplexity:.0f}")

proportions = model.transform(counts)
for k, topic in enumerate(model.components_):
    typical = np.array(list(texts))[proportions[:, k].argsort()[::-1][:3]]
    print(f"{proportions[:, k].mean():4.0%}  {' '.join(words[topic.argsort()[::-1][:8]])}")
    print(f"      for example: {', '.join(typical)}")
