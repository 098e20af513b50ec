"""Program that `test_distributed.py` runs in each process: `shared_batches.py FOLDER ID PORT`."""

import os
import signal
import sys
from pathlib import Path

import jax
import numpy as np

import isotherm
from isotherm.topics.corpus import as_corpus
from isotherm.topics.distributed import local_documents
from isotherm.topics.dpfa.boltzmann import DPFABoltzmann
from isotherm.topics.dpfa.model import DPFA
from isotherm.topics.dpfa.sgmcmc import DPFAChain
from isotherm.topics.lda import LDAChain
from isotherm.topics.scir import SCIR

MODEL = DPFA(12, (4, 3), 0.5)
CORPUS = as_corpus(np.random.default_rng(0).poisson(0.8, (21, 12)))


def lda(shared):
    chain = LDAChain(
        isotherm.msgnht(None, 0.02, 0.75), 3, 12, data_size=21, sweeps=8, shared=shared
    )
    chain.advance(CORPUS, 6, 7)  # four documents for one process and three for the other
    return chain.state_dict()


def deep(make, shared):
    chain = make(shared)
    for first in range(0, 21, 7):
        batch = CORPUS[first : first + 7]
        chain.step(local_documents(batch) if shared else batch)
    assert chain.documents_seen == 21
    return chain.state_dict() | {"on": chain.on_rates, "predicted": chain.predicted}


def run_all(shared):
    """Take some steps with every kind of chain; return their states."""
    common = {"data_size": 21, "sweeps": 8, "burn_in": 2, "score_every": 2}

    def chain(shared):
        return DPFAChain(MODEL, SCIR(0.1, 0.5), **common, shared=shared)

    def boltzmann(shared):
        return DPFABoltzmann(MODEL, SCIR(0.1, 0.5), **common, shared=shared)

    return {"lda": lda(shared), "belief": deep(chain, shared), "boltzmann": deep(boltzmann, shared)}


def main(folder, number, port):
    jax.distributed.initialize(
        f"127.0.0.1:{port}", 2, number, heartbeat_timeout_seconds=10, shutdown_timeout_seconds=10
    )
    for name, state in run_all(True).items():
        np.savez(folder / f"{name}-{number}.npz", **state)
    try:
        deep(lambda shared: _WithoutDocuments(), True)
    except ValueError as error:
        print(error, flush=True)
    chain = DPFAChain(MODEL, SCIR(0.1, 0.5), data_size=21, shared=True)
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # while the other waits
    chain.step(local_documents(CORPUS))


class _WithoutDocuments:
    """A chain whose second process gets no documents."""

    def step(self, batch):
        chain = LDAChain(SCIR(0.1, 0.5), 3, 12, data_size=21, shared=True)
        chain.step(batch[: 0 if jax.process_index() == 1 else 2])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
