"""What differs between the ranks in loops of the user's own, single batches, and weights."""

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process.reference import BATCH, ROWS, X, Y
from tests.multi_process.scenarios.common import error_of
from tests.multi_process.scenarios.mismatches import (
    Differing,
    batches_of,
    changed,
    dense,
    errors,
    generated,
    short_last,
)


def _loops(on, data, steps=None):
    """A loop in Python around a `tf.function`, as in TensorFlow's tutorials."""
    model, loss_object = on.here.model(), keras.losses.MeanSquaredError()

    def train(x, y):
        with tf.GradientTape() as tape:
            loss = loss_object(y, model(x, training=True))
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    @tf.function(autograph=False)
    def step(batch):
        on.strategy.run(train, args=batch)

    distributed = on.strategy.experimental_distribute_dataset(data)
    for number, batch in enumerate(distributed, 1):
        step(batch)
        if number == steps:
            break


LOOPS = {
    "a data set that ends early": (
        lambda on: _loops(on, generated(on, (4, 2))),
        "data that ended in rank 1 after 2 batches; another rank has read",
    ),
    "an empty data set": (
        lambda on: _loops(on, generated(on, (3, 0))),
        "data that ended in rank 1 after 0 batches; another rank has read",
    ),
    "a shorter last batch": (
        lambda on: _loops(on, short_last(on)),
        "other numbers of samples in rank 1 than in rank 0, from batch 4 on",
    ),
    "other targets from the third batch on": (
        lambda on: _loops(on, batches_of(on, y=changed(on, 2 * BATCH))),
        "other targets or sample weights in rank 1 than in rank 0, from batch 3 on",
    ),
    "other targets in data without end": (
        lambda on: _loops(on, batches_of(on, y=changed(on, 0)).repeat(), steps=3),
        "other targets or sample weights in rank 1 than in rank 0, from batch 1 on",
    ),
}


def _on_batch(on, method="train_on_batch", rows=(16, 16), targets=Y, **options):
    of = slice(on.of(*rows))
    getattr(on.here.model(), method)(X[of], targets[of], **options)


BATCHES = {
    "size": (
        lambda on: _on_batch(on, rows=(16, 8)),
        "data.x: 'array of shape (16, 4)' in rank 0, 'array of shape (8, 4)' in rank 1",
    ),
    "targets": (
        lambda on: _on_batch(on, targets=Y + on.here.rank),
        "checksum of targets and sample weights: ",
    ),
    "targets of a test": (
        lambda on: _on_batch(on, "test_on_batch", targets=Y + on.here.rank),
        "checksum of targets and sample weights: ",
    ),
    "sample weights": (
        lambda on: _on_batch(on, sample_weight=np.ones(16) + on.here.rank),
        "checksum of targets and sample weights: ",
    ),
    "size of predictions": (
        lambda on: on.here.model().predict_on_batch(X[: on.of(16, 8)]),
        "data.x: 'array of shape (16, 4)' in rank 0",
    ),
    "model": (
        lambda on: on.model(dense(activation=on.of("elu", "selu"))).train_on_batch(X, Y),
        "model.config.layers[1].config.activation: 'elu' in rank 0, 'selu' in rank 1",
    ),
    "method": (
        lambda on: _on_batch(on, on.of("train_on_batch", "test_on_batch")),
        "rank 0 begins `train_on_batch`; rank 1 begins `test_on_batch`",
    ),
}


def _set_in_one_rank(on):
    model = on.here.model()
    model.set_weights([weight + on.here.rank for weight in model.get_weights()])
    return model


WEIGHTS = {
    "evaluate": (
        lambda on: _set_in_one_rank(on).evaluate(X, Y, verbose=0),
        "weights or optimizer states have become different",
    ),
    "predict": (
        lambda on: _set_in_one_rank(on).predict(X, verbose=0),
        "weights or optimizer states have become different",
    ),
}


def loops(here):
    """Data that differ in loops of the user's own."""
    return errors(here, LOOPS)


def batches(here):
    """Single batches that differ."""
    return errors(here, BATCHES)


def weights(here):
    """Weights that were set in one rank."""
    return errors(here, WEIGHTS)


def _looks(on):
    distributed = on.strategy.experimental_distribute_dataset(batches_of(on))
    if on.here.rank == 0:
        next(iter(distributed))


def _kinds(on):
    x, y = on.of(X, tf.constant(X)), on.of(Y, Y.astype("float64"))
    on.here.model().train_on_batch(x, y)


HARMLESS = {
    "one rank looks at its data": _looks,
    "tensors and arrays": _kinds,
    "a loop": lambda on: _loops(on, batches_of(on, rows=ROWS)),
    "a loop over data of unknown length": lambda on: _loops(on, generated(on, (4, 4))),
    "other inputs in one batch": lambda on: on.here.model().train_on_batch(X + on.here.rank, Y),
}


def harmless(here):
    """The errors, which should be none."""
    return {name: error_of(does, Differing(here)) for name, does in HARMLESS.items()}
