"""The callback that averages over the processes what each process logs for itself."""

from __future__ import annotations

import json

import keras
import numpy as np
import tensorflow as tf

from tfdist.engines.processes import OneProcess


class MetricAverage(keras.callbacks.Callback):
    """Averages over the processes the logs of an epoch that differ between the processes.

    A name for scripts that used Horovod's `MetricAverageCallback`. Under a tfdist strategy, losses
    and metrics already cover all processes. The callback does not change any bit of them, and most
    scripts no longer need it. It is useful where a callback of yours logs a number for each epoch
    in each process. This number becomes, in all processes, the mean over the processes that have
    the number.

    Put `MetricAverage` after the callbacks that write such logs, and before callbacks that read
    them, such as `EarlyStopping` or `CSVLogger`. Put it at the same place in all processes. The
    processes exchange the logs once per epoch. With one process, and without a tfdist strategy,
    the callback does nothing.

    Example:

    >>> import keras, numpy as np, tfdist
    >>> strategy = tfdist.MirroredStrategy()
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    ...     model.compile(optimizer="adam", loss="mse")
    >>> class FreeMemory(keras.callbacks.Callback):
    ...     def on_epoch_end(self, epoch, logs=None):
    ...         logs["free_gigabytes"] = 12.5  # of this process' machine
    >>> x, y = np.ones((32, 4)), np.ones((32, 1))
    >>> callbacks = [FreeMemory(), tfdist.callbacks.MetricAverage()]
    >>> model.fit(x, y, verbose=0, callbacks=callbacks).history["free_gigabytes"]
    [12.5]
    """

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Averages the logs of the epoch, in place."""
        processes = getattr(self.model.distribute_strategy, "processes", OneProcess())
        if logs is None or processes.is_alone:
            return
        own = {name: value for name, value in logs.items() if _is_number(value)}
        text = json.dumps({name: np.asarray(value).tolist() for name, value in own.items()})
        of_ranks = [json.loads(row) for row in processes.all_gather_texts(text)]
        for name in sorted(set().union(*of_ranks)):
            values = [np.asarray(row[name]) for row in of_ranks if name in row]
            known = name in own and all(_equal(value, values[0]) for value in values)
            averageable = name in own or name not in logs
            if averageable and not known and len({value.shape for value in values}) == 1:
                mean = np.mean(values, axis=0, dtype=np.float64)
                logs[name] = mean if mean.shape else float(mean)


def _is_number(value: object) -> bool:
    """Whether `value` is a number or an array of numbers."""
    known = isinstance(value, (int, float, np.generic, np.ndarray)) or tf.is_tensor(value)
    return known and np.asarray(value).dtype.kind in "iuf"


def _equal(value: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(value, other, equal_nan=True)
