"""Tables that travel in place of the rows of sparse gradients make the same updates."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.step.row_tables import rows_of, table_of, tables_of
from tfdist.step.tables import Tables

ROWS, WIDTH = 6, 4
SPEC = tf.TensorSpec([ROWS, WIDTH])
# The numbers of the rows of each of three replicas: 0 once, 1 twice, 2 and 4 often, 3 and 5 never.
NUMBERS = ([0, 2, 2, 4, 1], [2, 4, 1, 4, 2, 2], [4, 4])
# Some elements of a gradient are much smaller than their neighbours.
SIZES = np.array([1.0, 1e-2, 1e-5, 1.0], "float32")

_OPTIMIZERS = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Lion": {},
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Ftrl": {"l2_shrinkage_regularization_strength": 0.1},
    "Lamb": {},
    "Muon": {},
    "Nadam": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "ScheduleFreeAdamW": {},
    "Adamax": {},
}
if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 13):
    del _OPTIMIZERS["Muon"]  # its updates fail with TensorFlow's variables
_OPTIMIZERS = {name: of for name, of in _OPTIMIZERS.items() if hasattr(keras.optimizers, name)}
_CLIPS = ({}, {"clipnorm": 0.5}, {"global_clipnorm": 0.5}, {"clipvalue": 0.5})


def _made(name, clip):
    return getattr(keras.optimizers, name)(0.01, **_OPTIMIZERS[name], **clip)


def _expected(name, clip):
    if "clipvalue" in clip or name == "Adafactor" or (name == "Adamax" and "clipnorm" in clip):
        return Tables.NONE
    if clip:
        return Tables.SQUARES
    if name in ("SGD", "Lion"):
        return Tables.SUMS
    return Tables.MAGNITUDES if name == "Adamax" else Tables.SQUARES


@pytest.mark.parametrize("clip", _CLIPS, ids=lambda clip: "".join(clip) or "unclipped")
@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_what_may_travel(name, clip):
    optimizer, expected = _made(name, clip), _expected(name, clip)
    assert tables_of(optimizer) is expected
    assert tables_of(keras.optimizers.LossScaleOptimizer(_made(name, clip))) is expected


class _Own(keras.optimizers.Adam):
    """It might look at rows in some other way."""


def test_rows_of_unknown_optimizers_travel():
    assert tables_of(_Own()) is Tables.NONE
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        pytest.skip("this Keras has no MultiOptimizer")
    parts = keras.optimizers.MultiOptimizer(lambda variable: keras.optimizers.SGD())
    assert tables_of(parts) is Tables.NONE


def _rows(step, dtype="float32"):
    """The rows of each replica in a step, as values and numbers."""
    random = np.random.default_rng(step)
    found = []
    for numbers in NUMBERS:
        values = SIZES * random.normal(size=(len(numbers), WIDTH)).astype("float32")
        # Some are all alike, some cancel each other, and some are nothing.
        values[:, 3] = [0.5, -0.5][step % 2]
        values[:2, 0] = [0.25, -0.25]
        values[-1, 1] = 0.0
        found.append((tf.constant(values, dtype), tf.constant(numbers, tf.int64)))
    return found


def _joined(rows):
    values, numbers = (tf.concat(parts, axis=0) for parts in zip(*rows))
    return tf.IndexedSlices(values, numbers, tf.constant([ROWS, WIDTH], tf.int64))


def _made_of_tables(rows, tables, spec=SPEC):
    like = _joined(rows)
    table = tf.add_n([table_of(values, numbers, spec, tables) for values, numbers in rows])
    return tf.IndexedSlices(*rows_of(table, like, spec, tables), like.dense_shape)


def _trained(optimizer, change):
    """Variables, of which two have sparse gradients, and the optimizer's state after 4 updates."""
    random = np.random.default_rng(3)
    shapes = {"embeddings": (ROWS, WIDTH), "table": (ROWS, WIDTH), "dense": (3,)}
    variables = [
        keras.Variable(random.normal(size=shape).astype("float32"), name=name)
        for name, shape in shapes.items()
    ]
    optimizer.build(variables)
    for step in range(4):
        sparse = [change(_rows(step)), change(_rows(10 + step))]
        optimizer.apply([*sparse, tf.constant([0.1, -0.2, 0.3])], variables)
    return [variable.numpy() for variable in (*variables, *optimizer.variables)]


_TRAVELLING = [
    pytest.param(name, clip, id="-".join([name, *clip]))
    for name in _OPTIMIZERS
    for clip in _CLIPS
    if _expected(name, clip) is not Tables.NONE
]


@pytest.mark.parametrize(("name", "clip"), _TRAVELLING)
def test_updates_by_tables_are_those_by_rows(name, clip):
    tables = tables_of(_made(name, clip))
    expected = _trained(_made(name, clip), _joined)
    found = _trained(_made(name, clip), lambda rows: _made_of_tables(rows, tables))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    if tables is not Tables.SUMS:
        sums = _trained(_made(name, clip), lambda rows: _made_of_tables(rows, Tables.SUMS))
        assert max(abs(a - b).max() for a, b in zip(sums, expected)) > 1e-4


@pytest.mark.parametrize("tables", [Tables.SQUARES, Tables.MAGNITUDES])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("bfloat16", 2e-2)])
def test_sums_of_other_dtypes(tables, dtype, tolerance):
    rows = _rows(0, dtype)
    found = _made_of_tables(rows, tables, tf.TensorSpec([ROWS, WIDTH], dtype))
    assert found.dtype == dtype
    other = tf.square if tables is Tables.SQUARES else tf.abs
    for what in (tf.identity, other):
        ours, theirs = (
            tf.math.unsorted_segment_sum(what(tf.cast(of.values, "float64")), of.indices, ROWS)
            for of in (found, _joined(rows))
        )
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("tables", "signs", "expected"),
    [
        # Rows that are alike cannot be fewer, but for an odd one that comes twice, smaller.
        (Tables.SQUARES, [1, 1, 1, 1, 1], 6),
        (Tables.SQUARES, [1, 1, 1, 1, 0], 4),
        # Where they cancel each other, two will do.
        (Tables.SQUARES, [1, -1, 1, -1, 1], 2),
        (Tables.MAGNITUDES, [1, 1, 1, 1, 1], 2),
    ],
)
def test_rows_are_as_few_as_can_be(tables, signs, expected):
    values = tf.constant([[0.25 * sign] * WIDTH for sign in signs])
    rows = [(values, tf.constant([4] * 5, tf.int64))]
    found = _made_of_tables(rows, tables)
    assert np.bincount(found.indices, minlength=ROWS).tolist() == [0, 0, 0, 0, expected, 0]
    assert found.indices.dtype == tf.int64 and found.values.shape == (expected, WIDTH)


def test_a_row_of_nothing_still_occurs():
    """Where an optimizer divides by nothing, it matters which rows were looked up."""
    rows = [(tf.zeros([1, WIDTH]), tf.constant([4], tf.int32))]
    found = _made_of_tables(rows, Tables.SQUARES)
    assert found.indices.numpy().tolist() == [4, 4] and not found.values.numpy().any()
    assert found.indices.dtype == tf.int32


def test_what_is_not_a_number_stays_so():
    rows = [(tf.constant([[np.nan, 1.0, 2.0, 3.0]]), tf.constant([1], tf.int64))]
    found = tf.convert_to_tensor(_made_of_tables(rows, Tables.SQUARES)).numpy()
    assert np.argwhere(np.isnan(found)).tolist() == [[1, 0]]


@pytest.mark.parametrize("tables", [Tables.SUMS, Tables.SQUARES])
def test_variables_of_other_shapes(tables):
    spec = tf.TensorSpec([3, 2, 2])
    values = tf.reshape(tf.range(8.0), [2, 2, 2])
    rows = [(values, tf.constant([2, 2], tf.int64))]
    like = tf.IndexedSlices(values, rows[0][1], tf.constant([3, 2, 2], tf.int64))
    found = tf.IndexedSlices(
        *rows_of(table_of(*rows[0], spec, tables), like, spec, tables), like.dense_shape
    )
    np.testing.assert_allclose(tf.convert_to_tensor(found), tf.convert_to_tensor(like), atol=1e-6)
