"""What a strategy adds to the steps that Keras' trainer runs on each replica."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras

from tfdist import compat
from tfdist.options import Options
from tfdist.step import end_of_data, moving_statistics, replica
from tfdist.validation import check_metrics


def complete(
    fn: Callable,
    model: keras.Model,
    name: str,
    finish_logs: Callable[[Any, replica.ReplicaStep], Any],
) -> Callable:
    """Returns `fn`, completed by what must follow in the same replica.

    After a training step, the statistics that layers took from their local batch are averaged; if
    replicas train apart, `step/local_end.py` averages them where the replicas meet. The logs of
    training and evaluation go through `finish_logs`.

    Raises:
        ValueError: in several processes, for metrics that were made outside of the scope.
    """
    strategy = model.distribute_strategy
    if name != "predict_step" and strategy.is_multi_process:
        check_metrics(model.metrics, strategy, compat.stored)

    def step(*args: Any, **kwargs: Any) -> Any:
        logs = fn(*args, **kwargs)
        running = replica.current()
        if running is None:
            return logs
        end_of_data.note(model, name, running.notes.advances)
        if name == "predict_step":
            return logs
        if name == "train_step":
            statistics = moving_statistics.local_statistics(model)
            if statistics and running.apart is None:
                moving_statistics.average(statistics, running.share)
            if running.notes.weighted_gradients and running.share.nonempty is not None:
                _warn_of_gradients_across_replicas(model)
        return finish_logs(logs, running)

    return step


def _warn_of_gradients_across_replicas(model: keras.Model) -> None:
    """Warns if it matters whether the share is applied to gradients or to the loss before.

    Raises:
        ValueError: if it matters in every step, not only in batches that do not divide evenly.
    """
    if any(getattr(layer, "synchronized", False) for layer in compat.flatten_layers(model)):
        if Options.of(model.distribute_strategy).balance:
            raise ValueError(
                "With synchronized BatchNormalization and `balance=True`, the loss of each replica "
                "must be weighted before its gradient is taken. Write `loss = "
                "self.optimizer.scale_loss(loss)` in the train_step. "
                f"Received: train_step of {model.name} without it"
            )
        warnings.warn(
            "This train_step takes the gradient of a loss that did not go through `loss = "
            "self.optimizer.scale_loss(loss)`. With synchronized BatchNormalization a replica's "
            "gradient depends on the other replicas' losses, so batches that do not divide evenly "
            f"come out slightly wrong. Add that line. Received: train_step of {model.name}",
            stacklevel=2,
        )


def warn_of_unsynchronized_layers(model: keras.Model) -> None:
    """Warns if training cannot equal training on one device because of BatchNormalization."""
    names = [
        layer.name
        for layer in compat.flatten_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        # A frozen layer normalizes by its moving statistics.
        and layer.trainable
        and not layer.synchronized
    ]
    if names:
        warnings.warn(
            "BatchNormalization without `synchronized=True` normalizes each replica's part of the "
            "batch by itself, so training will not equal that on one device; its moving statistics "
            "are averaged over the replicas. Pass `synchronized=True` for equal results. "
            f"Received: layers {names}",
            stacklevel=2,
        )
