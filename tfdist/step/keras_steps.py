"""What a strategy adds to the steps that Keras' trainer runs on each replica."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.step import end_of_data, exchange, loss_sums, moving_statistics, replica
from tfdist.step.weighting import weigh


def complete(
    fn: Callable,
    model: keras.Model,
    name: str,
    finish_logs: Callable[[Any, replica.ReplicaStep], Any],
) -> Callable:
    """Returns `fn` with what must follow it in the same replica.

    After a training step the statistics that layers took from their local batch are averaged. Logs
    of training and evaluation go through `finish_logs`.
    """

    def step(*args: Any, **kwargs: Any) -> Any:
        logs = fn(*args, **kwargs)
        running = replica.current()
        if running is None:
            return logs
        end_of_data.note(model, name, running.advances)
        if name == "predict_step":
            return logs
        if name == "train_step":
            statistics = moving_statistics.local_statistics(model)
            if statistics:
                moving_statistics.average(statistics, running.share)
            if running.weighted_gradients and running.share.nonempty is not None:
                _warn_of_gradients_across_replicas(model)
        return finish_logs(logs, running)

    return step


def _warn_of_gradients_across_replicas(model: keras.Model) -> None:
    """Warns where weighting gradients is not the same as weighting the loss before its gradient."""
    if any(getattr(layer, "synchronized", False) for layer in compat.flatten_layers(model)):
        warnings.warn(
            "This train_step takes the gradient of a loss that did not go through `loss = "
            "self.optimizer.scale_loss(loss)`. With synchronized BatchNormalization a replica's "
            "gradient depends on the other replicas' losses, so batches that do not divide evenly "
            f"come out slightly wrong. Add that line. Received: train_step of {model.name}",
            stacklevel=2,
        )


def weigh_logs(logs: Any, running: replica.ReplicaStep) -> Any:
    """Weights a replica's logs, so that Keras' mean over the replicas is the global one."""
    weight = running.share.fraction * running.replicas

    def weigh_log(value: Any) -> Any:
        if not (tf.is_tensor(value) and tf.as_dtype(value.dtype).is_floating):
            return value
        return weigh(loss_sums.as_mean(running, tf.convert_to_tensor(value)), weight)

    return tf.nest.map_structure(weigh_log, logs)


def averaged_logs(logs: Any, running: replica.ReplicaStep) -> Any:
    """The logs of the global batch, in each replica; one exchange for all of them."""
    flat = tf.nest.flatten(logs)
    numbers = {
        index: tf.cast(loss_sums.as_mean(running, value), tf.float32)
        for index, value in enumerate(flat)
        if tf.is_tensor(value) and value.dtype.is_floating and value.shape.rank == 0
    }
    if not numbers:
        return logs
    packed = weigh(tf.stack(list(numbers.values())), running.share.fraction)
    means = tf.unstack(exchange.all_reduce([packed])[0])
    for index, mean in zip(numbers, means):
        flat[index] = tf.cast(mean, flat[index].dtype)
    return tf.nest.pack_sequence_as(logs, flat)


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


def warn_of_unsynchronized_layers(model: keras.Model) -> None:
    """Warns when training cannot equal one device's because of BatchNormalization."""
    names = [
        layer.name
        for layer in compat.flatten_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized
    ]
    if names:
        warnings.warn(
            "BatchNormalization without `synchronized=True` normalizes each replica's part of the "
            "batch by itself, so training will not equal that on one device; its moving statistics "
            "are averaged over the replicas. Pass `synchronized=True` for equal results. "
            f"Received: layers {names}",
            stacklevel=2,
        )
