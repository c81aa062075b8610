"""Rows of sparse gradients are rounded one by one, with one replica as with several."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist.compression import BF16, FP16, PowerSGD
from tfdist.step.rounded_rows import joined

ROWS, WIDTH, WORDS, BATCH = 20, 3, 2, 8
RANDOM = np.random.default_rng(0)
X = RANDOM.integers(0, ROWS, (BATCH, WORDS))
# Whole numbers, so that no sum depends on its order, and too large for half precision.
Y = 2 * RANDOM.integers(4000, 8000, (BATCH, 1)).astype("float32") + 1
TABLE = RANDOM.integers(-3, 4, (ROWS, WIDTH)).astype("float32")
KERNEL = RANDOM.integers(1, 4, (WORDS * WIDTH, 1)).astype("float32")


def trained(strategy, limit=1e9, **compiled):
    """The table after one update by SGD, and the optimizer; `limit` is too large to clip any."""
    with strategy.scope():
        words = keras.Input((WORDS,), dtype="int32")
        flat = keras.layers.Flatten()(keras.layers.Embedding(ROWS, WIDTH, name="words")(words))
        model = keras.Model(words, keras.layers.Dense(1, use_bias=False)(flat))
        model.set_weights([TABLE, KERNEL])
        model.compile(keras.optimizers.SGD(1.0, clipvalue=limit), "mse", **compiled)
    model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    return model.get_weights()[0], model.optimizer


def expected(dtype):
    """The same by hand."""
    error = TABLE[X].reshape(BATCH, -1) @ KERNEL - Y
    rows = (2 * error / BATCH * KERNEL.T).reshape(BATCH, WORDS, WIDTH)
    table = TABLE.copy()
    np.subtract.at(table, X, rows.astype(dtype).astype("float32"))
    return table


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("coder", [FP16, BF16])
def test_each_row_is_rounded_by_itself(coder, replicas, run_eagerly):
    choice = {"words/*": coder(min_bytes=0), "*": None}
    strategy = tfdist.MirroredStrategy(DEVICES[:replicas], compression=choice)
    by_hand = expected(coder.dtype.as_numpy_dtype)
    assert abs(by_hand - expected("float32")).max() > 0.1
    found, _ = trained(strategy, run_eagerly=run_eagerly)
    np.testing.assert_array_equal(found, by_hand)


@pytest.mark.parametrize("options", [{"error_feedback": True}, {"start_step": 1}])
def test_rows_that_travel_whole(options):
    """With error feedback, and before the first update that is compressed."""
    choice = {"words/*": FP16(min_bytes=0, **options)}
    strategy = tfdist.MirroredStrategy(DEVICES[:2], compression=choice)
    found, _ = trained(strategy)
    np.testing.assert_array_equal(found, expected("float32"))


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_small_table_is_compressed_as_a_table(replicas):
    """So an approximation changes it, but no row that the batch has not read."""
    choice = {"words/*": PowerSGD(rank=1, min_bytes=0), "*": None}
    strategy = tfdist.MirroredStrategy(DEVICES[:replicas], compression=choice)
    found, optimizer = trained(strategy, limit=None)
    assert optimizer.compressed.in_use == optimizer.compressed.units
    assert abs(found - expected("float32")).max() > 0.01
    unused = [row for row in range(ROWS) if row not in X]
    np.testing.assert_array_equal(found[unused], TABLE[unused])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_cannot_be_rounded_stays_what_it_is(dtype):
    values = tf.constant([[np.nan, np.inf, -np.inf], [1e6, -1e6, 1.0001]], dtype)
    rows = tf.IndexedSlices(values, tf.constant([2, 0]), tf.constant([5, 3]))
    found = joined(rows, FP16(), list)
    assert found.values.dtype == dtype
    largest = float(np.float16(0.999 * 65504))
    np.testing.assert_array_equal(
        found.values, [[np.nan, np.inf, -np.inf], [largest, -largest, 1.0]]
    )
    np.testing.assert_array_equal(found.indices, rows.indices)
