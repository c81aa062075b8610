"""Hooks where Keras and TensorFlow compute losses, and where Keras averages a scalar.

Each hook gets the original function as its first argument.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.registry import BOTH, KERAS, READ, REPLACED, TENSORFLOW, touch
from tfdist.structures import Structure

_KERAS_LOSS = "keras.src.losses.loss"
_SCALES: dict[str, str] = {
    "why": "a loss must be scaled by the replica's share of the batch instead of by Keras' factor "
    "1/replicas",
    "versions": KERAS,
    "instead": "a public hook for the distributed loss scale",
}
_SCALE = touch(_KERAS_LOSS, "scale_loss_for_distribution", REPLACED, "value", **_SCALES)
_UNSCALE = touch(_KERAS_LOSS, "unscale_loss_for_distribution", REPLACED, "value", **_SCALES)
_NORMALIZER: dict[str, str] = {
    "why": "masked and weighted losses must be divided by the number of unmasked values, or the "
    "sum of the weights, of the global batch",
    "versions": KERAS,
    "instead": "a public hook for the distributed loss scale",
}
_REDUCE = touch(
    *(_KERAS_LOSS, "reduce_weighted_values", REPLACED),
    *("values", "sample_weight", "mask", "reduction", "dtype"),
    **_NORMALIZER,
)
_APPLY_MASK = touch(
    *(_KERAS_LOSS, "apply_mask", READ, "sample_weight", "mask", "dtype", "reduction"),
    **_NORMALIZER,
)


def hook_keras_losses(
    scale: Callable[..., Any], unscale: Callable[..., Any], reduce: Callable[..., Any]
) -> None:
    """Lets Keras' losses ask tfdist how they are scaled and what they are divided by.

    Args:
        scale: `(original, loss)`, called for each loss that is differentiated.
        unscale: `(original, loss)`, called for each loss that is reported.
        reduce: `(original, values, sample_weight, mask, reduction, dtype)`.
    """

    def make_reduce(original: Callable) -> Callable:
        @functools.wraps(original)
        def reduce_weighted_values(
            values: Structure,
            sample_weight: Structure = None,
            mask: Structure = None,
            reduction: str | None = "sum_over_batch_size",
            dtype: tf.DType | str | None = None,
        ) -> Any:
            return reduce(original, values, sample_weight, mask, reduction, dtype)

        return reduce_weighted_values

    _SCALE.replace(functools.partial(_asking, scale))
    _UNSCALE.replace(functools.partial(_asking, unscale))
    _REDUCE.replace(make_reduce)


def _asking(hook: Callable[..., Any], original: Callable) -> Callable:
    """A replacement for `original`: it calls `hook(original, ...)` with the same arguments."""

    @functools.wraps(original)
    def asking(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    return asking


def masked_weights(sample_weight: Structure, mask: Structure, reduction: str) -> Any:
    """The float32 weights that Keras' losses use."""
    return _APPLY_MASK.get()(sample_weight, mask, tf.float32, reduction)


# A script that imported these functions before tfdist keeps TensorFlow's own.
_MODULES = ("tensorflow:nn", "tensorflow:compat.v1.nn", "tensorflow:compat.v2.nn")
_AVERAGES = [
    touch(
        *(module, "compute_average_loss", REPLACED),
        *("per_example_loss", "sample_weight", "global_batch_size"),
        why="the function returns a part of the global loss, and the value does not show this. "
        "Without a `global_batch_size` it assumes that all parts are equally large",
        versions=TENSORFLOW,
        instead="a strategy that is asked for the replica's share of a batch",
    )
    for module in _MODULES
]
_REGULARIZATIONS = [
    touch(
        *(module, "scale_regularization_loss", REPLACED, "regularization_loss"),
        why="the result of this function is divided by the number of replicas, and its value does "
        "not show this",
        versions=TENSORFLOW,
        instead="a strategy that is asked for the replica's share of a batch",
    )
    for module in _MODULES
]
_LAYER_LOSSES = touch(
    *("keras.src.layers.layer:Layer", "losses", REPLACED),
    why="a layer's loss is the same on all replicas, and its value does not show this",
    versions=BOTH,
    instead="a strategy that is asked for the replica's share of a batch",
)


def hook_loop_losses(
    average: Callable[..., Any],
    regularization: Callable[..., Any],
    of_layers: Callable[[list], list],
) -> None:
    """Lets tfdist see the losses that steps make with TensorFlow's and Keras' functions.

    Args:
        average: `(original, per_example_loss, sample_weight, global_batch_size)`.
        regularization: `(original, regularization_loss)`.
        of_layers: gets the losses in `Layer.losses`, and returns what users see there.
    """

    def make_average(original: Callable) -> Callable:
        @functools.wraps(original)
        def compute_average_loss(
            per_example_loss: Structure,
            sample_weight: Structure = None,
            global_batch_size: int | tf.Tensor | None = None,
        ) -> Any:
            return average(original, per_example_loss, sample_weight, global_batch_size)

        return compute_average_loss

    def make_losses(original: property) -> property:
        def losses(self: keras.layers.Layer) -> list:
            assert original.fget is not None
            return of_layers(original.fget(self))

        return property(losses, doc=original.__doc__)

    # The three modules share one function: replaced one by one, it would be wrapped three times.
    new_average = make_average(_AVERAGES[0].get())
    new_regularization = _asking(regularization, _REGULARIZATIONS[0].get())
    for found in _AVERAGES:
        found.replace(lambda _: new_average)
    for found in _REGULARIZATIONS:
        found.replace(lambda _: new_regularization)
    _LAYER_LOSSES.replace(make_losses)


_MEAN = touch(
    *("keras.src.metrics.reduction_metrics:Mean", "update_state", REPLACED),
    *("self", "values", "sample_weight"),
    why="without a `sample_weight`, every replica would count equally in the mean of a scalar. A "
    "replica without samples would even add a NaN",
    versions=KERAS,
    instead="a `Mean` that counts samples, as Keras does for the total loss",
)


def hook_mean_metric(hook: Callable[[Any], AbstractContextManager[tuple[Any, Any]]]) -> None:
    """Makes a `keras.metrics.Mean` without a `sample_weight` count `hook(values)`.

    Args:
        hook: gives values and their `sample_weight`; the metric counts them in this context.
    """

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def update_state(
            self: keras.metrics.Metric, values: Structure, sample_weight: Structure = None
        ) -> Any:
            if sample_weight is not None:
                return original(self, values, sample_weight)
            with hook(values) as counted:
                return original(self, *counted)

        return update_state

    _MEAN.replace(make)
