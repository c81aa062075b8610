"""The shapes of what a model is called with."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tfdist.arguments import shown
from tfdist.structures import Structure

INSTEAD = "Give `inputs=`, with what the model is called with."


def inputs_of(
    model: keras.Model, batch: int, given: Structure = None, instead: str = INSTEAD
) -> Structure:
    """Shapes and dtypes of a batch: `tf.TensorSpec`s in the structure that the model takes.

    Args:
        model: the model.
        batch: the number of samples.
        given: tensors, arrays or `tf.TensorSpec`s with the shapes of all axes but the first; None
            for what the model states.
        instead: what people can do where the model does not state it.

    Raises:
        TypeError: for what has no axes.
        ValueError: for a model that does not state its inputs, and for axes of any size.
    """
    if given is None:
        given = _stated(model, instead)
    leaves = tf.nest.flatten(given)
    if not leaves or not all(tf.TensorShape(getattr(leaf, "shape", ())).rank for leaf in leaves):
        raise TypeError(
            "`inputs` must be arrays, tensors or `tf.TensorSpec`s whose first axis is that of the "
            f"samples. Received: inputs={shown(given)}"
        )
    specs = tf.nest.map_structure(lambda one: spec_of(one, batch), given)
    leaves = tf.nest.flatten(specs)
    if not all(spec.shape.is_fully_defined() for spec in leaves):
        shapes = [tuple(spec.shape) for spec in leaves]
        raise ValueError(
            "Each axis of the inputs but the first must have a known size. "
            f"{instead} Received: inputs of the shapes {shapes}"
        )
    return specs


def spec_of(tensor: tf.Tensor | tf.TensorSpec | np.ndarray, samples: int) -> tf.TensorSpec:
    """Shape and dtype of `tensor`, with so many samples."""
    return tf.TensorSpec((samples, *tensor.shape[1:]), tensor.dtype)


def _stated(model: keras.Model, instead: str) -> Structure:
    if not getattr(model, "inputs", None):
        raise ValueError(
            f"The model does not state the shapes of its inputs. {instead} "
            f"Received: model={model.name!r}"
        )
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input
