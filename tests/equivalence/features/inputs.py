"""Where the data come from, and what they hold."""

from __future__ import annotations

import functools
import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf
from keras import optimizers

from tests.equivalence.features.common import classifier
from tests.equivalence.harness import Feature, Outcome, default_data

_SAMPLES, _BATCH = 67, 16
_STEPS = -(-_SAMPLES // _BATCH)


def _batches():
    x, y = default_data(_SAMPLES)
    for start in range(0, _SAMPLES, _BATCH):
        yield x[start : start + _BATCH], y[start : start + _BATCH]


def _forever():
    while True:
        yield from _batches()


class _Sequence(keras.utils.PyDataset):
    def __len__(self) -> int:
        return _STEPS

    def __getitem__(self, index: int):
        return list(_batches())[index]


def _fit(model: keras.Model, data, **options) -> Outcome:
    history = model.fit(data(), epochs=2, shuffle=False, verbose=0, **options)
    return Outcome.of(model, history.history)


def _dataset(**batch_options) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(default_data(_SAMPLES)).batch(_BATCH, **batch_options)


@functools.cache
def _lines() -> tuple[tempfile.TemporaryDirectory, str]:
    """A folder and the file in it, with a sample in each line."""
    folder = tempfile.TemporaryDirectory()
    path = pathlib.Path(folder.name) / "samples.csv"
    path.write_text(
        "".join(f"{','.join(map(str, row))},{y}\n" for row, y in zip(*default_data(_SAMPLES)))
    )
    return folder, str(path)


def _endless_lines() -> tf.data.Dataset:
    def parsed(line: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        numbers = tf.ensure_shape(tf.strings.to_number(tf.strings.split(line, ",")), [9])
        return numbers[:8], tf.cast(numbers[8], tf.int64)

    return tf.data.TextLineDataset([_lines()[1]]).map(parsed).batch(_BATCH).repeat()


def _shuffled() -> tf.data.Dataset:
    data = tf.data.Dataset.from_tensor_slices(default_data(_SAMPLES))
    return data.shuffle(_SAMPLES, seed=3).batch(_BATCH)


def _generator_dataset() -> tf.data.Dataset:
    specs = tf.TensorSpec((None, 8), tf.float32), tf.TensorSpec((None,), tf.int64)
    return tf.data.Dataset.from_generator(_batches, output_signature=specs)


def _filtered() -> tf.data.Dataset:
    return _dataset().filter(lambda x, y: tf.shape(x)[0] > 0)


def _words() -> tuple[np.ndarray, np.ndarray]:
    words = np.array(["red", "green", "blue", "grey"])
    chosen = np.random.default_rng(5).integers(0, 4, (_SAMPLES, 3))
    return words[chosen], chosen.sum(axis=1) % 3


def _lookup() -> keras.Model:
    inputs = keras.Input((3,), dtype="string")
    ids = keras.layers.StringLookup(vocabulary=["red", "green", "blue"])(inputs)
    x = keras.layers.Flatten()(keras.layers.Embedding(4, 4)(ids))
    model = keras.Model(inputs, keras.layers.Dense(3)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizers.SGD(0.5), loss, metrics=["accuracy"])
    return model


def _string_data() -> tf.data.Dataset:
    words, labels = _words()
    return tf.data.Dataset.from_tensor_slices((tf.constant(words), labels)).batch(_BATCH)


def _sparse_model() -> keras.Model:
    inputs = keras.Input((8,), sparse=True)
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizers.SGD(0.5), loss, metrics=["accuracy"])
    return model


def _sparse_samples() -> tuple[tf.SparseTensor, np.ndarray]:
    x, y = default_data(_SAMPLES)
    return tf.sparse.from_dense(np.where(x > 0.5, x, 0.0)), y


def _sparse_data() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(_sparse_samples()).batch(_BATCH)


def _unsorted_sparse_batches():
    """What SciPy's matrices become: Keras leaves the indices in their order."""
    while True:
        for x, y in _batches():
            x = tf.sparse.from_dense(np.where(x > 0.5, x, 0.0))
            yield tf.SparseTensor(x.indices[::-1], x.values[::-1], x.dense_shape), y


def _fit_and_predict(model: keras.Model, data) -> Outcome:
    """Arrays of Keras' own kinds, given to its methods directly."""
    x, y = data()
    history = model.fit(x, y, batch_size=_BATCH, epochs=2, shuffle=False, verbose=0)
    outcome = Outcome.of(model, history.history)
    evaluated = model.evaluate(x, y, batch_size=_BATCH, verbose=0, return_dict=True)
    outcome.history.update({f"evaluated_{name}": [v] for name, v in evaluated.items()})
    outcome.extra["predictions"] = model.predict(x, batch_size=_BATCH, verbose=0)
    return outcome


class RaggedMean(keras.Model):
    """The mean of the embeddings of each sample's tokens, however many there are."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(10, 6)
        self.head = keras.layers.Dense(3)

    def build(self, input_shape=None):
        self.embedding.build()
        self.head.build((None, 6))

    def call(self, tokens):
        vectors = tf.gather(tf.convert_to_tensor(self.embedding.embeddings), tokens.flat_values)
        mean = tf.math.unsorted_segment_mean(vectors, tokens.value_rowids(), tokens.nrows())
        return self.head(mean)


class RaggedMeanWithStep(RaggedMean):
    """The same with a `train_step` of its own."""

    def train_step(self, data):
        tokens, labels = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=labels, y_pred=self(tokens))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}


def _ragged_model(kind: type[RaggedMean] = RaggedMeanWithStep, **compile_options) -> keras.Model:
    model = kind()
    model.build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizers.SGD(0.5), loss, **compile_options)
    return model


def _ragged_samples() -> tuple[tf.RaggedTensor, np.ndarray]:
    random = np.random.default_rng(6)
    rows = [random.integers(0, 10, random.integers(1, 5)) for _ in range(_SAMPLES)]
    return tf.ragged.constant(rows), np.array([row.sum() % 3 for row in rows])


def _ragged_data() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(_ragged_samples()).batch(_BATCH)


_ADAM = classifier(lambda: optimizers.Adam(0.01))

FEATURES = [
    Feature("tf.data", _ADAM, functools.partial(_fit, data=_dataset)),
    Feature(
        "tf.data, static batches",
        _ADAM,
        functools.partial(_fit, data=functools.partial(_dataset, drop_remainder=True)),
    ),
    Feature(
        "tf.data, steps_per_execution=4",
        classifier(lambda: optimizers.Adam(0.01), steps_per_execution=4),
        functools.partial(_fit, data=_dataset),
    ),
    Feature(
        "tf.data from a file, short batches not at the end",
        _ADAM,
        functools.partial(_fit, data=_endless_lines, steps_per_epoch=_STEPS + 1),
    ),
    Feature("tf.data, shuffled anew each epoch", _ADAM, functools.partial(_fit, data=_shuffled)),
    Feature("tf.data of unknown length", _ADAM, functools.partial(_fit, data=_filtered)),
    Feature("tf.data from a generator", _ADAM, functools.partial(_fit, data=_generator_dataset)),
    Feature(
        "Python generator", _ADAM, functools.partial(_fit, data=_forever, steps_per_epoch=_STEPS)
    ),
    Feature("PyDataset", _ADAM, functools.partial(_fit, data=_Sequence)),
    Feature("string inputs", _lookup, functools.partial(_fit, data=_string_data)),
    Feature("sparse inputs", _sparse_model, functools.partial(_fit, data=_sparse_data)),
    Feature(
        "sparse inputs, given to fit, evaluate and predict",
        _sparse_model,
        functools.partial(_fit_and_predict, data=_sparse_samples),
    ),
    Feature(
        "sparse inputs, indices not in order",
        _sparse_model,
        functools.partial(_fit, data=_unsorted_sparse_batches, steps_per_epoch=_STEPS),
    ),
    Feature("ragged inputs", _ragged_model, functools.partial(_fit, data=_ragged_data)),
    Feature(
        "ragged inputs, given to fit, evaluate and predict",
        functools.partial(_ragged_model, RaggedMean, metrics=["accuracy"]),
        functools.partial(_fit_and_predict, data=_ragged_samples),
    ),
]
