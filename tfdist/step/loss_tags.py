"""Tags: what is known of a scalar loss from the moment when it is computed.

A loss is either a mean over the replica's part of the batch, or the replica's part of a global sum.
Tags say which, for losses that come from functions of Keras, TensorFlow or tfdist.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist.step import replica
from tfdist.structures import Gradient, Structure

LOSS = "the mean of a Keras loss"
ADDED = "one of model.losses"
PART = "a part of the global sum"
SCALED = "a regularization loss over the number of replicas"

UNWEIGHTED = "a gradient without the share"

_ATTRIBUTE = "_tfdist_tag"
_IS_SUM = "_tfdist_is_sum"
_ARE_VALUES = "_tfdist_are_values"


def tag(value: Structure, kind: str) -> Any:
    """Tags `value` with `kind` in a step of a strategy, and returns `value`.

    Tensors that are computed from the value have no tag.
    """
    step = replica.current()
    if step is not None:
        setattr(value, _ATTRIBUTE, kind)
        step.notes.seen.add(kind)
    return value


def mark_sum(value: Structure) -> Any:
    """Notes that a Keras loss is a sum over all replicas' samples, and returns `value`."""
    setattr(value, _IS_SUM, True)
    return value


def is_sum(value: Structure) -> bool:
    """Whether a Keras loss is a sum over the samples, by its reduction."""
    return hasattr(value, _IS_SUM)


def mark_values(data: Structure) -> None:
    """Notes the values of ragged and sparse tensors: there are not as many as samples."""
    for leaf in tf.nest.flatten(data):
        if isinstance(leaf, tf.RaggedTensor):
            setattr(leaf.flat_values, _ARE_VALUES, True)
        elif isinstance(leaf, tf.SparseTensor):
            setattr(leaf.values, _ARE_VALUES, True)


def are_values(tensor: tf.Tensor) -> bool:
    """Whether a tensor has the values of a ragged or sparse one that a step was given."""
    return hasattr(tensor, _ARE_VALUES)


def mark_unweighted(gradient: Gradient) -> Any:
    """Tags `gradient` as lacking the replica's share, and returns `gradient`."""
    if gradient is not None:
        setattr(gradient, _ATTRIBUTE, UNWEIGHTED)
    return gradient


def tag_of(value: Structure) -> str | None:
    """The kind that `value` was tagged with; None without a tag."""
    return getattr(value, _ATTRIBUTE, None)


def refuse_unweighted(gradients: Iterable[Any]) -> None:
    """Raises ValueError for gradients that were taken while another tape recorded them."""
    if any(tag_of(gradient) == UNWEIGHTED for gradient in gradients):
        raise ValueError(
            "A gradient was taken while another GradientTape recorded it, as for a gradient of a "
            "gradient, so it does not have the replica's share of the batch. Take gradients that "
            "are applied after the `with` blocks of all tapes. Received: such a gradient in `apply`"
        )
