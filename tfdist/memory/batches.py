"""What is known of the batches of `fit` before it begins."""

from __future__ import annotations

import math
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat import flatten_layers
from tfdist.data.shards import static_batch_size

_KERAS_BATCH_SIZE = 32


def samples_of(arguments: Mapping[str, object]) -> int | None:
    """The samples of a global batch.

    Args:
        arguments: of `fit`, by name.

    Returns:
        None where batches may have any size, or where the data do not say it.
    """
    data, size = arguments.get("x"), arguments.get("batch_size")
    if isinstance(data, tf.data.Dataset):
        known = all(isinstance(leaf, tf.TensorSpec) for leaf in tf.nest.flatten(data.element_spec))
        return static_batch_size(data.element_spec) if known else None
    if isinstance(data, keras.utils.PyDataset):
        return None
    shapes = [tuple(getattr(leaf, "shape", ())) for leaf in tf.nest.flatten(data)]
    if not shapes or not all(shapes):
        return None
    if size is None:
        size = _KERAS_BATCH_SIZE
    return min(int(size), shapes[0][0]) if isinstance(size, (int, np.integer)) else None


def bytes_of_outputs(model: keras.Model, samples: int) -> int:
    """The bytes of what all layers return for so many samples, as far as the model states it."""
    return sum(
        math.prod(samples if size is None else size for size in tensor.shape)
        * tf.as_dtype(tensor.dtype).size
        for layer in flatten_layers(model)
        for tensor in _outputs(layer)
    )


def _outputs(layer: keras.layers.Layer) -> list[keras.KerasTensor]:
    try:
        return tf.nest.flatten(layer.output)
    except AttributeError:  # of a layer that is called inside of another one
        return []
