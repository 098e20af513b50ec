"""The counter hash of the kernels gives independent uniform bits across all its arguments."""

import numpy as np
import pytest

from isotherm.topics import counter_rng
from test_random import FALSE_ALARM, all_p_values


def grid(key, steps, documents, shift=32):
    """Bits by (stream, counter): rows differ in step or document, columns in the counter."""
    starts = counter_rng.streams(key, steps, documents)[:, None]
    index = np.arange(1, 513, dtype=np.uint64)
    return (
        counter_rng.mix(starts + index * counter_rng.increment(starts)) >> np.uint64(shift)
    ).astype(np.uint32)


def by_step(key):
    return np.concatenate([grid(key, step, np.array([7])) for step in range(512)])


SOURCES = {
    "documents": lambda: grid(counter_rng.purpose_key(0, "gibbs"), 0, np.arange(512)),
    "documents, low bits": lambda: grid(counter_rng.purpose_key(0, "gibbs"), 0, np.arange(512), 0),
    "steps": lambda: by_step(counter_rng.purpose_key(0, "gibbs")),
    "seeds": lambda: np.concatenate(
        [grid(counter_rng.purpose_key(s, "gibbs"), 0, np.array([0])) for s in range(512)]
    ),
    "tokens of a split": lambda: (
        counter_rng.fold(
            counter_rng.streams(counter_rng.purpose_key(3, "completion"), 0, np.arange(512))[
                :, None
            ],
            np.arange(512, dtype=np.uint64),
        )
        >> np.uint64(32)
    ).astype(np.uint32),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_bits_look_independent(source):
    assert min(all_p_values(source())) > FALSE_ALARM


def test_battery_rejects_streams_that_are_shifted_copies():
    starts = np.arange(512, dtype=np.uint64)[:, None] * counter_rng._GOLDEN
    index = np.arange(1, 513, dtype=np.uint64) * counter_rng._GOLDEN
    shifted = (counter_rng.mix(starts + index) >> np.uint64(32)).astype(np.uint32)
    assert min(all_p_values(shifted)) < FALSE_ALARM


def test_keys_are_distinct():
    keys = {
        int(
            counter_rng.streams(counter_rng.purpose_key(seed, purpose), step, np.array([document]))[
                0
            ]
        )
        for seed in (0, 1, -1, 2**63)
        for purpose in ("gibbs", "collapsed", "completion")
        for step in range(5)
        for document in (0, 1, 2**40)
    }
    assert len(keys) == 4 * 3 * 5 * 3


def test_numpy_generators_depend_on_seed_purpose_and_step():
    draws = {
        counter_rng.generator(seed, purpose, step).integers(2**62)
        for seed in (0, 1)
        for purpose in ("batch", "documents")
        for step in (0, 1)
    }
    assert len(draws) == 8
