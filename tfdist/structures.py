"""Names for types of TensorFlow that a type checker cannot follow."""

from typing import Any

Structure = Any
"""Tensors in tuples, lists and dicts, as `tf.nest` takes them: a batch, logs, predictions."""
