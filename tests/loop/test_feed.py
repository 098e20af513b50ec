"""Runs on streamed batches: the numbers of batches in memory, wherever they are cut or resumed."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isotherm
from isotherm.batches import streamed as streamed_module
from isotherm.exceptions import CheckpointWarning, DivergedError, PolicyWarning, RollbackWarning
from isotherm.loop.checkpoint import PeriodicSaver
from marks import slow

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 2)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0]) + RNG.normal(size=120)).astype(np.float32)
GRADIENT = isotherm.minibatch_gradient(
    lambda w, batch: -0.5 * (batch[1] - batch[0] @ w) ** 2, lambda w: -0.5 * jnp.sum(w**2), 120
)
SAMPLER = isotherm.msgnht(GRADIENT, 0.01)
FRICTION = isotherm.sghmc(GRADIENT, 0.01)
BATCH_BYTES = 10 * 12
COLLECT = {"draws": isotherm.collect.draws(), "moments": isotherm.collect.moments()}


def sample(batches, sampler=SAMPLER, **changes):
    settings = {"num_draws": 11, "thin": 7, "burn_in": 123, "num_chains": 2, "collect": COLLECT}
    settings |= {"progress": False} | changes
    return isotherm.sample(jax.random.key(0), sampler, jnp.zeros(2), batches, **settings)


def same(one, other):
    for name in ("collected", "stats", "state"):
        pair = (jax.tree.leaves(getattr(run, name)) for run in (one, other))
        for a, b in zip(*pair, strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=name)


@pytest.fixture(scope="module")
def in_memory():
    return sample(isotherm.independent_batches((X, Y), 10))


@pytest.mark.parametrize("steps", [slow(1), 5, slow(256)])
def test_no_bit_depends_on_the_stacks(in_memory, steps):
    """Stacks shorter than a draw, stacks that end inside of one, and one stack for all steps."""
    batches = isotherm.streamed_batches((X, Y), 10, buffer_bytes=2 * steps * BATCH_BYTES)
    assert batches.steps_per_stack(2) == steps
    same(sample(batches), in_memory)


@pytest.mark.slow
def test_one_chain_and_shuffled_rows():
    streamed = isotherm.streamed_batches((X, Y), 10, policy="shuffled", buffer_bytes=1000)
    run = sample(streamed, FRICTION, num_chains=1)
    same(run, sample(isotherm.shuffled_batches((X, Y), 10), FRICTION, num_chains=1))


def test_a_memory_map_has_the_batches_of_an_array(tmp_path, in_memory):
    path = tmp_path / "x.npy"
    np.save(path, X)
    same(sample(isotherm.streamed_batches((np.load(path, mmap_mode="r"), Y), 10)), in_memory)


def numbered(index):
    rows = (np.arange(10) + 10 * index) % 120
    return X[rows], Y[rows]


def test_chains_have_their_own_batches_unless_they_share_them():
    """A chain that only copies its batch shows which batches it got."""

    def step(key, state, batch):
        return state._replace(
            position=batch[0][0], step_index=state.step_index + 1
        ), isotherm.types.StepInfo(jnp.ones(()), jnp.ones(1))

    copier = isotherm.sgld(lambda x, batch: -x, 0.1)._replace(step=step, halves=None)
    settings = {"num_draws": 9, "thin": 1, "burn_in": 2, "num_chains": 3, "collect": None}
    run = sample(isotherm.streamed_batches(numbered), copier, **settings)
    for chain in range(3):
        for draw in range(9):
            expected = numbered((2 + draw) * 3 + chain)[0][0]
            np.testing.assert_array_equal(run.draws[chain, draw], expected)
    run = sample(isotherm.streamed_batches(numbered, shared=True), copier, **settings)
    expected = [numbered(2 + draw)[0][0] for draw in range(9)]
    np.testing.assert_array_equal(run.draws, [expected] * 3)
    # A run that continues from a state has the batches that follow.
    later = sample(
        isotherm.streamed_batches(numbered, shared=True), copier, **settings, state=run.state
    )
    np.testing.assert_array_equal(later.draws[0, 0], numbered(11 + 2)[0][0])


def test_a_callback_sees_the_run_and_can_stop_it(in_memory):
    """Stopped inside of a draw, a run of streamed batches goes on to the end of the draw."""
    reports = []

    def watch(report):
        reports.append(report)
        return report.step > 130

    batches = isotherm.streamed_batches((X, Y), 10, buffer_bytes=2 * 5 * BATCH_BYTES)
    run = sample(batches, callback=watch)
    assert 1 <= run.num_draws < 11
    np.testing.assert_array_equal(run.draws, in_memory.draws[:, : run.num_draws])
    np.testing.assert_array_equal(run.state.position, run.draws[:, -1])
    steps = [report.step for report in reports]
    assert steps == sorted(steps)
    assert steps[-2] <= 130 < steps[-1]
    assert reports[0].is_burn_in


class Loader:
    """Batches in order, of a loader whose iterator has a state, as grain's has."""

    def __init__(self, num_batches=12):
        self.num_batches = num_batches

    def __iter__(self):
        return LoaderIterator(self.num_batches)


class LoaderIterator:
    def __init__(self, num_batches):
        self.num_batches, self.index = num_batches, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.index == self.num_batches:
            raise StopIteration
        self.index += 1
        return numbered(self.index - 1)

    def get_state(self):
        return {"index": self.index, "bytes": b"\x00\xff", "array": np.arange(3)}

    def set_state(self, state):
        assert state["bytes"] == b"\x00\xff"
        np.testing.assert_array_equal(state["array"], np.arange(3))
        self.index = state["index"]


class DictLoader:
    """A loader that has its state itself, as `StatefulDataLoader` has."""

    def __init__(self):
        self.index = 0

    def __iter__(self):
        while self.index < 12:
            self.index += 1
            yield numbered(self.index - 1)
        self.index = 0

    def state_dict(self):
        return {"index": self.index}

    def load_state_dict(self, state):
        self.index = state["index"]


class Interrupted(Exception):
    """The process was interrupted."""


def interrupt_after(monkeypatch, chunks):
    counted, after = iter(range(chunks)), PeriodicSaver.after_chunk

    def once_more(self, run, *, last=False):
        after(self, run, last=last)
        if next(counted, None) is None:
            raise Interrupted

    monkeypatch.setattr(PeriodicSaver, "after_chunk", once_more)


@pytest.mark.parametrize("chunks", [0, 3, 9])
@pytest.mark.parametrize("kind", ["rows", "numbered", "get_state", "state_dict"])
def test_an_interrupted_run_resumes_bit_for_bit(monkeypatch, tmp_path, kind, chunks):
    options = {"policy": "independent", "buffer_bytes": 2 * 20 * BATCH_BYTES}
    make = {
        "rows": lambda: isotherm.streamed_batches((X, Y), 10, **options),
        "numbered": lambda: isotherm.streamed_batches(numbered, **options),
        "get_state": lambda: isotherm.streamed_batches(Loader(), **options),
        "state_dict": lambda: isotherm.streamed_batches(DictLoader(), **options),
    }[kind]
    whole = sample(make())
    with monkeypatch.context() as patch:
        interrupt_after(patch, chunks)
        with pytest.raises(Interrupted):
            sample(make(), checkpoint=tmp_path, checkpoint_seconds=0)
    same(sample(make(), checkpoint=tmp_path), whole)
    same(sample(make(), checkpoint=tmp_path), whole)  # a finished run is only read


def test_a_source_without_a_state_resumes_with_a_warning(monkeypatch, tmp_path):
    def make():
        return isotherm.streamed_batches(map(numbered, range(10_000)), policy="independent")

    with monkeypatch.context() as patch:
        interrupt_after(patch, 3)
        with pytest.raises(Interrupted):
            sample(make(), checkpoint=tmp_path, checkpoint_seconds=0)
    with pytest.warns(CheckpointWarning, match="differ from those of an uninterrupted run"):
        sample(make(), checkpoint=tmp_path)


def test_another_file_is_another_run(tmp_path):
    sample(isotherm.streamed_batches((X, Y), 10), checkpoint=tmp_path)
    with pytest.raises(ValueError, match="checkpoint of another run: batches"):
        sample(isotherm.streamed_batches((X + 1, Y), 10), checkpoint=tmp_path)


class Table:
    """A data set that is read row by row."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Files(Table):
    """A data set that has a checksum of its files; one row is enough to begin."""

    def data_digest(self):
        return f"sha256 {self.y.sum()}"

    def __getitem__(self, i):
        assert i < 10
        return super().__getitem__(i)


def on_disk(folder, x):
    path = folder / f"{len(list(folder.iterdir()))}.npy"
    np.save(path, x)
    return np.load(path, mmap_mode="r")


def in_hdf5(folder, x):
    h5py = pytest.importorskip("h5py")
    return h5py.File(folder / f"{len(list(folder.iterdir()))}.h5", "w").create_dataset("x", data=x)


@pytest.mark.parametrize("kind", ["arrays", "memory map", "hdf5", "data set", "batches"])
def test_streamed_data_changed_anywhere_are_another_run(tmp_path, kind, monkeypatch):
    """Of 5000 rows, those whose number is not a multiple of 5 were not looked at before."""
    monkeypatch.setattr(streamed_module, "DIGEST_BYTES", 4000)  # several pieces
    x, y = np.ones((5000, 2), np.float32), np.arange(5000, dtype=np.float32)
    make = {
        "arrays": lambda y: isotherm.streamed_batches((x, y), 10),
        "memory map": lambda y: isotherm.streamed_batches((x, on_disk(tmp_path, y)), 10),
        "hdf5": lambda y: isotherm.streamed_batches((x, in_hdf5(tmp_path, y)), 10),
        "data set": lambda y: isotherm.streamed_batches(Table(x, y), 10),
        "batches": lambda y: isotherm.streamed_batches(
            list(zip(np.split(x, 500), np.split(y, 500), strict=True)), policy="independent"
        ),
    }[kind]
    known = make(y).data_digest()
    most, one, swapped = y.copy(), y.copy(), y.copy()
    most[np.arange(5000) % 5 != 0] += 1000
    one[4321] = np.nextafter(y[4321], np.float32(np.inf))
    swapped[[1, 4998]] = y[[4998, 1]]
    found = [make(changed).data_digest() for changed in (most, one, swapped)]
    assert len({known, *found}) == 4 and make(y.copy()).data_digest() == known


def test_streamed_data_are_refused_if_most_rows_have_changed(tmp_path):
    x, y = np.ones((5000, *X.shape[1:]), X.dtype), np.ones(5000, Y.dtype)
    sample(isotherm.streamed_batches((x, y), 10), checkpoint=tmp_path)
    y[np.arange(5000) % 5 != 0] += 1000
    with pytest.raises(ValueError, match="checkpoint of another run: batches"):
        sample(isotherm.streamed_batches((x, y), 10), checkpoint=tmp_path)


def test_a_data_set_with_checksums_is_asked_for_them_and_not_read():
    x, y = np.ones((5000, 2), np.float32), np.ones(5000, np.float32)
    digests = [
        isotherm.streamed_batches(Files(x, z), 10).data_digest() for z in (y, y.copy(), 2 * y)
    ]
    assert digests[0] == digests[1] != digests[2]


def unstable(factor):
    return isotherm.sghmc(GRADIENT, factor * 0.3, 1.0)


@pytest.mark.filterwarnings("ignore::isotherm.exceptions.HealthWarning")
@pytest.mark.parametrize("kind", ["rows", "get_state"])
@pytest.mark.slow
def test_a_rollback_reads_the_same_batches_again(kind):
    def run(steps):
        source = {"rows": ((X, Y), 10), "get_state": (Loader(),)}[kind]
        batches = isotherm.streamed_batches(
            *source, policy="shuffled", buffer_bytes=2 * steps * BATCH_BYTES
        )
        with pytest.warns(RollbackWarning, match="went back to step"):
            return sample(batches, unstable, on_divergence="rollback", burn_in=0, num_draws=200)

    short = run(50)
    assert short.rollbacks
    np.testing.assert_array_equal(short.draws, run(50).draws)
    assert np.isfinite(short.draws).all()


def test_a_rollback_needs_batches_that_can_be_read_again():
    batches = isotherm.streamed_batches(map(numbered, range(10_000)), policy="shuffled")
    with pytest.raises(ValueError, match="needs batches that can be read again"):
        sample(batches, unstable, on_divergence="rollback")


def test_divergence_is_reported_with_the_draws_before():
    batches = isotherm.streamed_batches((X, Y), 10, buffer_bytes=2 * 50 * BATCH_BYTES)
    with pytest.raises(DivergedError, match="diverged") as error:
        sample(batches, unstable(1.0), burn_in=0, num_draws=500)
    assert error.value.run.num_draws < 500
    assert np.isfinite(error.value.run.draws).all()


def test_an_iterator_that_ends_says_so_and_none_is_read_that_is_not_needed():
    with pytest.raises(ValueError, match="ended after 20 batches, but the run needs more"):
        sample(isotherm.streamed_batches(map(numbered, range(20)), policy="independent"))
    source = map(numbered, range(1000))
    batches = isotherm.streamed_batches(source, policy="independent", buffer_bytes=1)
    sample(batches, num_chains=1, thin=1, burn_in=0)
    assert len(list(source)) == 1000 - 11


def test_errors_of_the_source_reach_the_caller_and_the_thread_ends():
    def broken(index):
        if index > 50:
            raise OSError("disk is gone")
        return numbered(index)

    with pytest.raises(OSError, match="disk is gone"):
        sample(isotherm.streamed_batches(broken, policy="independent", buffer_bytes=1000))
    assert not [t for t in threading.enumerate() if "isotherm-batches" in t.name]


def test_the_next_stack_is_read_while_chains_move():
    """The second stack is complete before the first chunk ends; the third waits for its turn."""

    def read(index):
        events.append(("read", index))
        return numbered(index)

    events = []
    sample(
        isotherm.streamed_batches(read, policy="independent", buffer_bytes=20 * BATCH_BYTES),
        num_chains=1,
        thin=1,
        burn_in=0,
        num_draws=60,
        callback=lambda report: events.append(("seen", report.num_draws)) or time.sleep(0.05),
    )
    seen = [number for kind, number in events if kind == "seen"]
    assert seen[-1] == 60
    assert events.index(("read", 39)) < events.index(("seen", seen[0]))
    assert events.index(("read", 40)) > events.index(("seen", 20))  # two stacks at a time


@pytest.mark.slow
def test_policies_that_do_not_suit_a_thermostat_warn():
    settings = {"num_draws": 2, "burn_in": 0, "thin": 1}
    for source, match in [
        (Loader(), "unknown order"),
        ([numbered(i) for i in range(12)], "sequential batches"),
    ]:
        with pytest.warns(PolicyWarning, match=match):
            sample(isotherm.streamed_batches(source), **settings)
        sample(isotherm.streamed_batches(source), FRICTION, **settings)  # does not warn
    with pytest.warns(PolicyWarning, match="shuffled batches"):
        sample(isotherm.streamed_batches((X, Y), 10, policy="shuffled"), **settings)


def test_run_chain_says_what_to_use():
    with pytest.raises(ValueError, match=r"use isotherm\.sample"):
        isotherm.run_chain(
            jax.random.key(0),
            SAMPLER,
            jnp.zeros(2),
            isotherm.streamed_batches((X, Y), 10),
            num_draws=3,
        )


@pytest.mark.slow
def test_find_mode_and_warm_start_are_those_of_the_data():
    key = jax.random.key(1)
    memory, streamed = (
        make((X, Y), 10) for make in (isotherm.independent_batches, isotherm.streamed_batches)
    )
    expected = isotherm.find_mode(key, GRADIENT, jnp.zeros(2), memory, num_steps=300)
    found = isotherm.find_mode(key, GRADIENT, jnp.zeros(2), streamed, num_steps=300)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    expected = isotherm.warm_start(key, GRADIENT, jnp.zeros(2), memory, num_steps=300)
    found = isotherm.warm_start(key, GRADIENT, jnp.zeros(2), streamed, num_steps=300)
    np.testing.assert_allclose(found.position, expected.position, atol=1e-4)
    np.testing.assert_allclose(
        found.coordinates.push(jnp.ones(2)), expected.coordinates.push(jnp.ones(2)), rtol=1e-3
    )
    assert 0.5 < found.step_size / expected.step_size < 2
    run = isotherm.sample(
        key, isotherm.msgnht(GRADIENT, **found.settings), found.position, streamed, num_draws=10
    )
    assert np.isfinite(run.draws).all()


def test_control_variates_read_the_data_once():
    center = jnp.array([0.9, -1.8])
    batch = (X[:10], Y[:10])
    expected = isotherm.control_variates(GRADIENT, center, (X, Y))(jnp.ones(2), batch)
    for source in [((X, Y), 10), ([numbered(i) for i in range(12)],)]:
        streamed = isotherm.streamed_batches(*source)
        found = isotherm.control_variates(GRADIENT, center, streamed)(jnp.ones(2), batch)
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    short = isotherm.streamed_batches([numbered(i) for i in range(11)])
    with pytest.raises(ValueError, match="`data` has 110 rows, but `data_size` is 120"):
        isotherm.control_variates(GRADIENT, center, short)
