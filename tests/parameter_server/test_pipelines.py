"""Workers' copies of a data set have one order in each pass, also those that are made late."""

import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from tfdist.parameter_server.data.pipelines import OwnPipelines, SerializedDataset

# In this process, a copy would use the state of the original as long as that exists: here none is
# kept. On workers it has its own in any case.
ROWS = 24
IDS = np.arange(ROWS)


@pytest.fixture(autouse=True)
def seed():
    """The global seed, which is not set."""
    tf.random.set_seed(None)
    yield tf.random.set_seed
    tf.random.set_seed(None)


def arrays():
    return ArrayDataAdapter(IDS, batch_size=2, shuffle=True).get_tf_dataset()


def numbers():
    return tf.data.Dataset.from_tensor_slices(IDS)


def augmented():
    data = numbers().shuffle(ROWS).map(lambda x: (x, tf.random.uniform([])))
    return data.shuffle(ROWS, seed=3).batch(2).map(lambda x, _: x)


SHUFFLED = {
    "arrays": arrays,
    "shuffle": lambda: numbers().shuffle(ROWS).batch(2),
    "shuffle with a seed": lambda: numbers().shuffle(ROWS, seed=1).batch(2),
    "cached": lambda: numbers().cache().shuffle(ROWS).batch(2),
    "augmented": augmented,
    "within a function": lambda: (
        numbers()
        .batch(8)
        .flat_map(lambda x: tf.data.Dataset.from_tensor_slices(x).shuffle(8).batch(2))
    ),
    "two in a row": lambda: (
        numbers().take(12).shuffle(12).concatenate(numbers().skip(12).shuffle(12)).batch(2)
    ),
}


def read(iterator):
    return np.concatenate([*iterator], axis=None).tolist()


@pytest.mark.parametrize(
    "name",
    ["shuffle", *(pytest.param(n, marks=pytest.mark.full) for n in SHUFFLED if n != "shuffle")],
)
def test_copies_agree_in_each_pass(name):
    parts = SerializedDataset(SHUFFLED[name](), 2)
    passes = []
    for number in (1, 2, 3):
        one, other = (read(parts.open(worker, worker, 0, number)) for worker in (0, 1))
        assert len(one) == len(other) == ROWS // 2
        assert sorted(one + other) == IDS.tolist()
        assert read(parts.open(0, 0, 2, number)) == one[4:], "opened again"
        parts.leave(0)
        assert read(parts.open(1, 0, 0, number)) == one, "opened on another worker"
        passes.append(one)
    assert passes[0] != passes[1] != passes[2] != passes[0]


def test_without_a_seed_each_training_has_another_order():
    orders = [read(SerializedDataset(arrays(), 1).open(0, 0, 0, 1)) for _ in range(2)]
    assert orders[0] != orders[1]


def ordered_once():
    return numbers().shuffle(ROWS, reshuffle_each_iteration=False).batch(2)


def test_one_order_for_all_passes_stays_one():
    parts = SerializedDataset(ordered_once(), 2)
    one, other = (read(parts.open(worker, worker, 0, 1)) for worker in (0, 1))
    assert sorted(one + other) == IDS.tolist()
    assert read(parts.open(0, 0, 0, 2)) == one


@pytest.mark.parametrize("name", ["arrays", "shuffle", "cached"])
def test_a_seed_decides_about_the_order(name, seed):
    orders = []
    for _ in range(2):
        seed(5)
        expected = read(SHUFFLED[name]())
        seed(5)
        parts = SerializedDataset(SHUFFLED[name](), 1)
        orders.append([read(parts.open(0, 0, 0, number)) for number in (1, 2)])
        assert orders[-1][0] == expected, "that of one device"
    assert orders[0] == orders[1]


def randomly_cached():
    return numbers().map(lambda x: tf.random.uniform([])).cache().shuffle(ROWS)


def test_what_a_worker_has_cached_is_kept():
    parts = SerializedDataset(randomly_cached(), 1)
    first, second = (read(parts.open(0, 0, 0, number)) for number in (1, 2))
    assert first != second and sorted(first) == sorted(second)


def test_own_pipelines_have_another_order_in_each_pass():
    def make(context):
        own = numbers().shard(context.num_input_pipelines, context.input_pipeline_id)
        return own.shuffle(ROWS)

    parts = OwnPipelines(make, 2)
    first, second = (read(parts.open(0, 0, 0, number)) for number in (1, 2))
    assert first != second
    assert sorted(first) == sorted(second) == IDS[::2].tolist()
    assert read(parts.open(0, 0, 3, 2)) == second[3:], "opened again"
    assert read(parts.open(1, 0, 0, 2)) == second, "opened on another worker"


def unordered():
    options = tf.data.Options()
    options.deterministic = False
    return numbers().with_options(options).batch(2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: numbers().map(lambda x: x, num_parallel_calls=2, deterministic=False),
        lambda: numbers().batch(2, num_parallel_calls=2, deterministic=False),
        lambda: numbers().interleave(
            lambda x: tf.data.Dataset.from_tensors(x), num_parallel_calls=2, deterministic=False
        ),
        lambda: (
            numbers()
            .batch(2)
            .flat_map(
                lambda x: tf.data.Dataset.from_tensor_slices(x).map(
                    lambda y: y, num_parallel_calls=2, deterministic=False
                )
            )
        ),
        unordered,
    ],
    ids=["map", "batch", "interleave", "within a function", "options"],
)
def test_data_without_a_fixed_order_are_refused(make):
    with pytest.raises(ValueError, match=r'one order.*input="dynamic".*Received: <'):
        SerializedDataset(make(), 2)


def chosen():
    """Six batches, which TensorFlow calls endless."""
    choice = tf.data.Dataset.range(2).repeat(3)
    return tf.data.Dataset.choose_from_datasets([numbers().repeat(), numbers().repeat()], choice)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: numbers().batch(5), [True, False]),
        (lambda: numbers().shuffle(ROWS).batch(2).repeat().prefetch(1), [True, True]),
        (lambda: numbers().filter(lambda x: x > 3).repeat().batch(2), [None, None]),
        (lambda: chosen().batch(1), [None, None]),
        (lambda: numbers().filter(lambda x: x > 3).batch(2), [None, None]),
    ],
)
def test_the_end_of_a_shard_is_known_only_where_batches_are_counted_exactly(make, expected):
    shards = SerializedDataset(make(), 2)
    assert [shards.has(0, 0), shards.has(1, 2)] == expected
