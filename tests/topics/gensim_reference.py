"""Texts and topics for which gensim has computed coherences.

The literal values in test_coherence.py are what this prints with gensim 4.4.0 and NumPy 2:

    python tests/topics/gensim_reference.py
"""

import numpy as np

MEASURES = ("c_v", "c_npmi", "c_uci", "u_mass")
NAMES = [f"w{i}" for i in range(60)]
NUM_WORDS = 8


def texts():
    """Texts of 0 to 400 words, of three subjects, with words outside the vocabulary."""
    rng = np.random.default_rng(7)
    subjects = rng.dirichlet(np.full(70, 0.2), 3)
    words = [*NAMES, *(f"x{i}" for i in range(10))]
    lengths = [*rng.integers(1, 400, 60), 0, 1, 110, 111]
    return [[words[i] for i in rng.choice(70, n, p=subjects[n % 3])] for n in lengths]


def topics():
    """Four topics; all their words occur in the texts."""
    rng = np.random.default_rng(8)
    used = np.isin(NAMES, [word for text in texts() for word in text])
    return rng.dirichlet(np.full(60, 0.3), 4) * used


if __name__ == "__main__":
    from gensim.corpora import Dictionary
    from gensim.models import CoherenceModel

    top = np.argsort(-topics(), axis=1, kind="stable")[:, :NUM_WORDS]
    dictionary = Dictionary(texts())
    bags = [dictionary.doc2bow(text) for text in texts()]
    for measure in MEASURES:
        model = CoherenceModel(
            topics=[[NAMES[i] for i in words] for words in top],
            texts=texts(),
            corpus=bags,
            dictionary=dictionary,
            coherence=measure,
            processes=1,
        )
        values = model.get_coherence_per_topic()
        print(f'    "{measure}": [{", ".join(f"{value:.10f}" for value in values)}],')
