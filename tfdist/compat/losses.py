"""Hooks where Keras and TensorFlow compute losses, and where Keras averages a scalar.

Each hook gets the original function as its first argument.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat.registry import BOTH, KERAS, READ, REPLACED, TENSORFLOW, touch

_KERAS_LOSS = "keras.src.losses.loss"
_SCALES: dict[str, str] = {
    "why": "a replica's share of the batch takes the place of Keras' factor of 1/replicas",
    "versions": KERAS,
    "instead": "a public hook for the distributed loss scale",
}
_SCALE = touch(_KERAS_LOSS, "scale_loss_for_distribution", REPLACED, "value", **_SCALES)
_UNSCALE = touch(_KERAS_LOSS, "unscale_loss_for_distribution", REPLACED, "value", **_SCALES)
_NORMALIZER: dict[str, str] = {
    "why": "masked and weighted losses are divided by the unmasked values or the weights of the "
    "whole batch",
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
            values: Any,
            sample_weight: Any = None,
            mask: Any = None,
            reduction: str | None = "sum_over_batch_size",
            dtype: Any = None,
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


def masked_weights(sample_weight: Any, mask: Any, reduction: str) -> Any:
    """The float32 weights that Keras' losses use."""
    return _APPLY_MASK.get()(sample_weight, mask, tf.float32, reduction)


# A script that imported these functions before tfdist keeps TensorFlow's own.
_MODULES = ("tensorflow:nn", "tensorflow:compat.v1.nn", "tensorflow:compat.v2.nn")
_AVERAGES = [
    touch(
        *(module, "compute_average_loss", REPLACED),
        *("per_example_loss", "sample_weight", "global_batch_size"),
        why="what it returns is a part of the global loss, which cannot be told from its value; "
        "without a `global_batch_size` it takes all parts for equally large",
        versions=TENSORFLOW,
        instead="a strategy that is asked for its share of a batch",
    )
    for module in _MODULES
]
_REGULARIZATIONS = [
    touch(
        *(module, "scale_regularization_loss", REPLACED, "regularization_loss"),
        why="what it returns is divided by the number of replicas, which cannot be told from it",
        versions=TENSORFLOW,
        instead="a strategy that is asked for its share of a batch",
    )
    for module in _MODULES
]
_LAYER_LOSSES = touch(
    *("keras.src.layers.layer:Layer", "losses", REPLACED),
    why="a loss of a layer is the same on all replicas, which cannot be told from its value",
    versions=BOTH,
    instead="a strategy that is asked for its share of a batch",
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
            per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
        ) -> Any:
            return average(original, per_example_loss, sample_weight, global_batch_size)

        return compute_average_loss

    def make_losses(original: property) -> property:
        def losses(self: Any) -> list:
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
    why="without a `sample_weight` every replica would count alike in the mean of a scalar, also "
    "one without samples, with a NaN",
    versions=KERAS,
    instead="samples counted by Keras itself, as for the total loss",
)


def hook_mean_metric(hook: Callable[[Any], Any]) -> None:
    """Makes a `keras.metrics.Mean` without a `sample_weight` count `hook(values)`."""

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
            if sample_weight is None:
                values = hook(values)
            return original(self, values, sample_weight)

        return update_state

    _MEAN.replace(make)
