"""Sources of streamed batches: what they read, in which order, and what they refuse."""

import jax
import numpy as np
import pytest

import isotherm
from isotherm.batches.sources import Request, as_numpy, decode, encode

X = np.arange(40.0).reshape(20, 2)
Y = np.arange(20)
KEYS = jax.random.split(jax.random.key(0), 2)


def read(batches, number, first=0, chains=(0, 1)):
    """Return a stack of batches of two chains."""
    return batches.source.stack(Request(KEYS[np.array(chains)], chains, 2, first, number))


@pytest.mark.parametrize("policy", ["independent", "shuffled", "symmetric"])
def test_rows_are_those_of_batches_in_memory(policy):
    in_memory = getattr(isotherm, f"{policy}_batches")((X, Y), 3)
    streamed = isotherm.streamed_batches((X, Y), 3, policy=policy)
    assert streamed.policy == policy
    x, y = read(streamed, 9, first=4)
    for chain in range(2):
        for step in range(9):
            a, b = in_memory.batch(KEYS[chain], 4 + step)
            np.testing.assert_array_equal(x[chain, step], a)
            np.testing.assert_array_equal(y[chain, step], b)


class Dataset:
    """Rows as PyTorch and grain have them."""

    def __len__(self):
        return 20

    def __getitem__(self, i):
        return {"x": X[i], "y": int(Y[i])}


class WithItems(Dataset):
    def __getitems__(self, numbers):
        return [super(WithItems, self).__getitem__(i) for i in numbers]


class Columns:
    """An array that takes slices and increasing row numbers only, as those of HDF5."""

    shape, dtype = X.shape, X.dtype

    def __getitem__(self, rows):
        assert isinstance(rows, slice) or (np.diff(rows) > 0).all()
        return X[rows]


def test_data_sets_and_arrays_on_disk_have_the_same_rows():
    expected = read(isotherm.streamed_batches({"x": X, "y": Y}, 3), 5)
    for source in (Dataset(), WithItems()):
        found = read(isotherm.streamed_batches(source, 3), 5)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    found = read(isotherm.streamed_batches({"x": Columns(), "y": Y}, 3), 5)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def batch(index, size=4):
    rows = (np.arange(size) + 4 * index) % 20
    return [X[rows], Y[rows]]


class Loader:
    """A loader whose last batch has fewer rows."""

    def __init__(self, dataset=None, sampler=None, num_rows=20, batch_size=6):
        self.dataset, self.sampler = dataset, sampler
        self.num_rows, self.batch_size = num_rows, batch_size

    def __iter__(self):
        for start in range(0, self.num_rows, self.batch_size):
            rows = slice(start, min(start + self.batch_size, self.num_rows))
            yield [X[rows], Y[rows]]


def test_a_loader_is_iterated_again_and_small_batches_are_left_out():
    streamed = isotherm.streamed_batches(Loader())
    streamed.source.begin()
    _, y = read(streamed, 2)
    np.testing.assert_array_equal(y[0], [np.arange(6), np.arange(12, 18)])
    np.testing.assert_array_equal(y[1], [np.arange(6, 12), np.arange(6)])
    assert [len(rows) for _, rows in streamed.one_pass(100)] == [6, 6, 6, 2]
    streamed.source.begin()
    np.testing.assert_array_equal(read(streamed, 2)[1], y)


def test_a_sequence_of_batches_repeats_and_can_start_anywhere():
    streamed = isotherm.streamed_batches([batch(i) for i in range(4)] + [batch(4, size=3)])
    _, y = read(streamed, 3, first=5)
    np.testing.assert_array_equal(y[:, :, 0], [[4 * (i % 4) for i in (10, 12, 14)], [12, 4, 12]])
    only = isotherm.streamed_batches([batch(0, size=3)])
    assert only.batch_size == 3


class RandomSampler:
    def __init__(self, replacement):
        self.replacement = replacement


class SequentialSampler:
    pass


class DistributedSampler:
    shuffle = True


class Weighted(RandomSampler):
    weights = (1, 2)


@pytest.mark.parametrize(
    ("sampler", "policy"),
    [
        (RandomSampler(True), "independent"),
        (RandomSampler(False), "shuffled"),
        (SequentialSampler(), "sequential"),
        (DistributedSampler(), "shuffled"),
        (Weighted(True), "unknown"),
        (object(), "unknown"),
        (None, "unknown"),
    ],
)
def test_the_policy_of_a_loader_is_detected(sampler, policy):
    assert isotherm.streamed_batches(Loader(sampler=sampler)).policy == policy
    declared = isotherm.streamed_batches(Loader(sampler=sampler), policy="independent")
    assert declared.policy == "independent"


def test_sizes_of_the_data_are_compared():
    assert isotherm.streamed_batches(Loader(dataset=Dataset())).data_size == 20
    assert isotherm.streamed_batches(Dataset(), 3, data_size=20).data_size == 20
    for source in ((Loader(dataset=Dataset()),), (Dataset(), 3), ((X, Y), 3)):
        with pytest.raises(ValueError, match="`data_size` is 30, but `source` has 20 rows"):
            isotherm.streamed_batches(*source, data_size=30)
    streamed = isotherm.streamed_batches(Loader(), data_size=30)
    streamed.source.begin()
    with pytest.raises(ValueError, match="`data_size` is 30, but a pass over `source` has 20 rows"):
        read(streamed, 5)
    grad_fn = isotherm.minibatch_gradient(lambda m, b: b[1] * m, lambda m: 0 * m, data_size=30)
    with pytest.raises(ValueError, match="has 20 rows, but `data_size` of the gradient is 30"):
        isotherm.find_mode(KEYS[0], grad_fn, 0.0, isotherm.streamed_batches((X, Y), 3))


class Tensor:
    """What a PyTorch tensor looks like to NumPy."""

    def __init__(self, array):
        self.array = array

    def detach(self):
        return self

    cpu = detach

    def __array__(self, dtype=None, copy=None):
        return self.array


def test_batches_of_other_libraries_become_numpy():
    found = as_numpy({"x": Tensor(X), "columns": [1, 2.5], "nested": (jax.numpy.ones(2), [X])})
    assert {name: type(value) for name, value in found.items()} == {
        "x": np.ndarray,
        "columns": np.ndarray,
        "nested": tuple,
    }
    np.testing.assert_array_equal(found["nested"][1][0], X)
    with pytest.raises(ValueError, match=r"array of type <U5.*Convert them with `transform`"):
        as_numpy({"text": ["hello", "world"][0]})
    words = [{"text": ["a", "bb"]}, {"text": ["ccc", "d"]}]
    with pytest.raises(ValueError, match="transform"):
        isotherm.streamed_batches(words)
    lengths = isotherm.streamed_batches(words, transform=lambda b: [len(t) for t in b["text"]])
    np.testing.assert_array_equal(lengths.source.example(), [1, 2])


def test_states_of_iterators_survive_json():
    import json

    state = {"a": [1, (2.5, None)], "b": b"\x00\xff", 3: np.arange(4, dtype=np.int16), "e": {}}
    back = decode(json.loads(json.dumps(encode(state))))
    assert back["a"] == [1, (2.5, None)]
    assert back["b"] == b"\x00\xff"
    np.testing.assert_array_equal(back[3], state[3])
    assert back[3].dtype == np.int16
    assert encode({"a": object()}) is None


def test_batches_are_described_in_one_line():
    assert repr(isotherm.independent_batches((X, Y), 3)) == (
        "independent batches of 3 rows of 0 float32[20, 2], 1 int32[20]"
    )
    assert repr(isotherm.full_batch(np.ones(5))) == "full batches of 5 rows of float32[5]"
    assert repr(isotherm.sharded_batches(np.arange(12.0), 4, 2)) == (
        "sharded batches of 4 rows of float32[2, 6]"
    )
    many = {f"leaf{i}": np.ones(5) for i in range(9)}
    assert repr(isotherm.shuffled_batches(many, 2)).endswith("leaf3 float32[5], … 5 more")
    assert repr(isotherm.streamed_batches(Loader(dataset=Dataset()), policy="shuffled")) == (
        "streamed shuffled batches of 6 rows of 0 float32[6, 2], 1 int32[6]; 20 rows in all"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((X, Y),), "pass `batch_size` too"),
        (({"x": X},), "pass `batch_size` too"),
        ((X,), "pass `batch_size` too"),
        (((X, Y[:5]), 3), "same first axis"),
        (((X, Y), 21), "`batch_size` is 21, but `source` has only 20 rows"),
        (((X, Y), 0), "`batch_size` must be a whole number of at least 1"),
        ((iter([batch(0)]), 3), "rows that can be read by their number"),
        ((3,), "must be arrays, a data set, an iterable of batches or a function"),
        (([],), "is empty"),
        ((iter([]),), "is empty"),
        ((iter([np.float32(3)]),), "For a source of single rows, pass `batch_size`"),
        (([batch(0), [X[:4, :1], Y[:4]]],), "must have the same shapes"),
    ],
)
def test_sources_that_cannot_be_read_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        isotherm.streamed_batches(*arguments)


def test_rows_of_pandas_are_read_by_their_number_whatever_their_index():
    pd = pytest.importorskip("pandas")
    x = np.arange(50.0, dtype=np.float32)
    index = np.random.default_rng(0).permutation(50)
    frame = pd.DataFrame({"a": x, "b": -x}, index=index)
    batches = isotherm.streamed_batches((x, pd.Series(x, index), frame), 5)
    numbers, series, both = next(batches.one_pass(20))
    np.testing.assert_array_equal(series, numbers)
    np.testing.assert_array_equal(both, np.column_stack([numbers, -numbers]))
    request = Request(jax.random.split(jax.random.key(0), 1), (0,), 1, 0, 3)
    numbers, series, both = batches.source.stack(request)
    np.testing.assert_array_equal(series, numbers)
    np.testing.assert_array_equal(both[..., 0], numbers)


def test_rows_in_the_byte_order_of_another_machine_are_converted():
    swapped = X.astype(">f8")
    batches = isotherm.streamed_batches((X, swapped), 5)
    native, converted = next(batches.one_pass(20))
    assert converted.dtype.isnative
    np.testing.assert_array_equal(native, converted)


def test_masked_rows_are_refused():
    masked = np.ma.array(np.asarray(Y, np.float32), mask=np.arange(len(Y)) == 2)
    with pytest.raises(ValueError, match="has masked entries"):
        isotherm.streamed_batches((X, masked), 3)
    isotherm.streamed_batches((X, np.ma.array(Y)), 3)  # nothing is masked


def test_wrong_settings_are_refused():
    for settings, message in [
        ({"policy": "random"}, "`policy` must be one of"),
        ({"policy": "sequential"}, "`policy` of rows must be"),
        ({"buffer_bytes": 0}, "`buffer_bytes`"),
        ({"transform": 3}, "`transform` must be a function"),
    ]:
        with pytest.raises(ValueError, match=message):
            isotherm.streamed_batches((X, Y), 3, **settings)


def test_a_pass_over_all_rows_needs_a_source_that_has_one():
    for source in (map(batch, range(5)), Loader(sampler=RandomSampler(True))):
        with pytest.raises(ValueError, match="gives every row once"):
            next(isotherm.streamed_batches(source).one_pass(10))
    with pytest.raises(ValueError, match="has no end"):
        next(isotherm.streamed_batches(batch).one_pass(10))


def test_rows_in_memory_stand_for_the_data():
    held = isotherm.streamed_batches((X, Y), 3).in_memory(KEYS[0], 50)
    assert held.policy == "independent"
    assert (held.batch_size, held.data_size) == (3, 150)
    assert set(np.asarray(held.data[1]).tolist()) == set(range(20))


def test_a_dataloader_of_pytorch():
    torch = pytest.importorskip("torch")
    utils = torch.utils.data
    data = utils.TensorDataset(torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(Y))
    with_replacement = utils.RandomSampler(data, replacement=True, num_samples=60)
    for loader, policy in [
        (utils.DataLoader(data, 6, shuffle=True), "shuffled"),
        (utils.DataLoader(data, 6), "sequential"),
        (utils.DataLoader(data, 6, sampler=with_replacement), "independent"),
    ]:
        streamed = isotherm.streamed_batches(loader)
        assert (streamed.policy, streamed.data_size, streamed.batch_size) == (policy, 20, 6)
        streamed.source.begin()
        x, y = read(streamed, 7)
        np.testing.assert_array_equal(x[..., 0], 2 * y)
    x, y = read(isotherm.streamed_batches(data, 6), 7)
    np.testing.assert_array_equal(x[..., 0], 2 * y)


def test_data_sets_of_grain():
    grain = pytest.importorskip("grain")
    rows = grain.MapDataset.source(X[:, 0])
    ordered, shuffled = rows.batch(4), rows.shuffle(seed=0).repeat().batch(4)
    assert isotherm.streamed_batches(ordered).policy == "sequential"
    streamed = isotherm.streamed_batches(shuffled)
    assert streamed.policy == "shuffled"
    np.testing.assert_array_equal(read(streamed, 3, first=5)[1, 2], shuffled[15])
    iterated = isotherm.streamed_batches(shuffled.to_iter_dataset())
    assert iterated.policy == "shuffled"
    iterated.source.begin()
    read(iterated, 2)
    position = iterated.source.position()
    expected = read(iterated, 3)
    iterated.source.begin(position)
    np.testing.assert_array_equal(read(iterated, 3), expected)
    sampler = grain.samplers.IndexSampler(20, shuffle=True, seed=0, num_epochs=1)
    loader = grain.DataLoader(
        data_source=X[:, 0], sampler=sampler, operations=[grain.transforms.Batch(4)]
    )
    assert isotherm.streamed_batches(loader).policy == "shuffled"


def test_data_sets_of_hugging_face():
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"x": X.tolist(), "y": Y.tolist()})
    expected = read(isotherm.streamed_batches({"x": X, "y": Y}, 3), 5)
    found = read(isotherm.streamed_batches(data, 3), 5)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    stream = data.to_iterable_dataset().with_format("numpy").batch(4)
    iterated = isotherm.streamed_batches(stream, data_size=20)
    iterated.source.begin()
    np.testing.assert_array_equal(read(iterated, 2)["y"][1], [[4, 5, 6, 7], [12, 13, 14, 15]])
