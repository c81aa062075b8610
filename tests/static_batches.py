"""Trains in batches whose number of samples is static."""

import tensorflow as tf


def train(model, x, y, batch, way):
    """Trains `model` on all samples, and returns its weights.

    Args:
        model: compiled.
        x: its inputs, an array.
        y: its targets, an array.
        batch: samples of a global batch.
        way: "fit" with a data set that drops the rest, or "batches" for `train_on_batch`.
    """
    if way == "fit":
        data = tf.data.Dataset.from_tensor_slices((x, y))
        model.fit(data.batch(batch, drop_remainder=True), verbose=0)
    else:
        for start in range(0, len(x), batch):
            model.train_on_batch(x[start : start + batch], y[start : start + batch])
    return model.get_weights()
