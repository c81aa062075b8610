"""What a step reports, weighted like its gradients: logs describe the global batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.step import exchange, loss_sums, replica
from tfdist.step.weighting import weigh
from tfdist.structures import Structure


def is_number(log: Structure) -> bool:
    """Whether a value of the logs is a floating-point scalar; such values are taken for means."""
    return _is_floating(log) and log.shape.rank == 0


def _is_floating(log: Structure) -> bool:
    return tf.is_tensor(log) and tf.as_dtype(log.dtype).is_floating


def contributions(
    logs: Structure,
    weight: float | tf.Tensor,
    mean: Callable[[tf.Tensor], tf.Tensor] = tf.convert_to_tensor,
    is_weighted: Callable[[Any], bool] = is_number,
) -> Structure:
    """The numbers of `logs` as contributions to the global numbers; other values unchanged.

    Args:
        logs: a structure of what a replica's step returned.
        weight: the replica's share, or a multiple of it.
        mean: turns a number that is a sum into a mean over the replica's samples.
        is_weighted: tells which values are numbers.
    """
    return tf.nest.map_structure(
        lambda log: weigh(mean(log), weight) if is_weighted(log) else log, logs
    )


def for_mean_over_replicas(logs: Structure, running: replica.ReplicaStep) -> Structure:
    """A replica's logs, scaled so that Keras' mean over the replicas is the global mean."""

    def mean(log: Structure) -> tf.Tensor:
        return loss_sums.as_mean(running, tf.convert_to_tensor(log))

    weight = running.reported_share.fraction * running.replicas
    return contributions(logs, weight, mean, _is_floating)


def averaged(logs: Structure, running: replica.ReplicaStep) -> Structure:
    """The logs of the global batch, in each replica; one exchange serves all values."""

    def mean(log: Structure) -> tf.Tensor:
        return tf.cast(loss_sums.as_mean(running, log), tf.float32)

    flat = tf.nest.flatten(logs)
    places = [index for index, value in enumerate(flat) if is_number(value)]
    if not places:
        return logs
    own = contributions([flat[index] for index in places], running.share.fraction, mean)
    means = tf.unstack(exchange.all_reduce([tf.stack(own)])[0])
    for index, value in zip(places, means):
        flat[index] = tf.cast(value, flat[index].dtype)
    return tf.nest.pack_sequence_as(logs, flat)


def total(parts: list) -> Structure:
    """The logs of a global batch from the contributions of its parts.

    Values that are no numbers come from the last part.
    """
    return tf.nest.map_structure(
        lambda *values: tf.add_n(values) if is_number(values[0]) else values[-1], *parts
    )


def has_own(model: keras.Model, name: str) -> bool:
    """Whether a method, such as "train_step", is the model's own, not Keras'."""
    return getattr(type(model), name) is not getattr(keras.Model, name)


def with_global_metrics(logs: Structure, model: keras.Model, name: str) -> Structure:
    """Puts the metrics' results over all replicas in place of the local ones.

    Called in cross-replica context, where reading a metric sums its state over the replicas. In a
    user's own step, "loss" is taken for the loss of the batch, not for Keras' metric.
    """
    if name == "predict_step" or not isinstance(logs, dict):
        return logs
    return with_results(logs, model.get_metrics_result(), model, name)


def with_results(logs: dict, results: dict, model: keras.Model, name: str) -> dict:
    """Puts `results` of metrics in place of the values in `logs`; see `with_global_metrics`."""
    results = dict(results)
    if has_own(model, name):
        results.pop("loss", None)
    return _replaced(logs, results)


def _replaced(logs: dict, results: dict) -> dict:
    """`logs` with the values of `results` under the same names, also in nested dicts."""
    return {
        key: _replaced(value, results) if isinstance(value, dict) else results.get(key, value)
        for key, value in logs.items()
    }
