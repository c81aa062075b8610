"""What a step reports, weighted as its gradients are: logs are those of the global batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.step import exchange, loss_sums, replica
from tfdist.step.weighting import weigh


def is_number(log: Any) -> bool:
    """Whether a value of the logs is a floating-point scalar, which is taken for a mean."""
    return _is_floating(log) and log.shape.rank == 0


def _is_floating(log: Any) -> bool:
    return tf.is_tensor(log) and tf.as_dtype(log.dtype).is_floating


def contributions(
    logs: Any,
    weight: float | tf.Tensor,
    mean: Callable[[tf.Tensor], tf.Tensor] = tf.convert_to_tensor,
    is_weighted: Callable[[Any], bool] = is_number,
) -> Any:
    """The numbers of `logs` as what they add to the global ones; others as they are.

    Args:
        logs: a structure of what a replica's step returned.
        weight: the replica's share, or a multiple of it.
        mean: what makes a mean over the replica's samples of a number that is a sum.
        is_weighted: which values are numbers.
    """
    return tf.nest.map_structure(
        lambda log: weigh(mean(log), weight) if is_weighted(log) else log, logs
    )


def for_mean_over_replicas(logs: Any, running: replica.ReplicaStep) -> Any:
    """A replica's logs, such that Keras' mean over the replicas is the global one."""

    def mean(log: Any) -> tf.Tensor:
        return loss_sums.as_mean(running, tf.convert_to_tensor(log))

    weight = running.share.fraction * running.replicas
    return contributions(logs, weight, mean, _is_floating)


def averaged(logs: Any, running: replica.ReplicaStep) -> Any:
    """The logs of the global batch, in each replica; one exchange for all of them."""

    def mean(log: Any) -> tf.Tensor:
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


def total(parts: list) -> Any:
    """The logs of a global batch from the contributions of its parts.

    What is no number is the last part's.
    """
    return tf.nest.map_structure(
        lambda *values: tf.add_n(values) if is_number(values[0]) else values[-1], *parts
    )


def with_global_metrics(logs: Any, model: keras.Model, name: str) -> Any:
    """Puts the metrics' results over all replicas in place of the local ones.

    Called in cross-replica context, where reading a metric sums its state over the replicas. In a
    step of the user's own, "loss" is taken for the loss of the batch, not for Keras' metric.
    """
    if name == "predict_step" or not isinstance(logs, dict):
        return logs
    return with_results(logs, model.get_metrics_result(), model, name)


def with_results(logs: dict, results: dict, model: keras.Model, name: str) -> dict:
    """Puts the metrics' results in place of those of one batch; see `with_global_metrics`."""
    results = dict(results)
    if getattr(type(model), name) is not getattr(keras.Model, name):
        results.pop("loss", None)
    return _replaced(logs, results)


def _replaced(logs: dict, results: dict) -> dict:
    """`logs`, also in dicts below, with the values of `results` under the same names."""
    return {
        key: _replaced(value, results) if isinstance(value, dict) else results.get(key, value)
        for key, value in logs.items()
    }
