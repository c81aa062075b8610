"""Names for types of TensorFlow that a type checker cannot follow."""

from typing import Any, TypeAlias

Structure: TypeAlias = Any
"""Tensors in tuples, lists and dicts, as `tf.nest` takes them: a batch, logs, predictions."""

Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices"  # type: ignore[name-defined]  # noqa: F821
"""A dense or a sparse gradient."""

Variable: TypeAlias = "keras.Variable | tf.Variable"  # type: ignore[name-defined]  # noqa: F821
"""A variable of Keras or of TensorFlow."""
