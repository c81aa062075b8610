"""The callback that gives all processes the variables of one of them when training begins."""

from __future__ import annotations

import operator
import zlib

import keras
import numpy as np
import tensorflow as tf

from tfdist.coordination.agreement import all_variables


class BroadcastGlobalVariables(keras.callbacks.Callback):
    """Gives every process the variables of the model and its optimizers that one process has.

    What Horovod's `BroadcastGlobalVariablesCallback` is for. A tfdist strategy gives all processes
    rank 0's initial values by itself, so that a script which used Horovod's needs this callback no
    more. It is of use where variables are set in one process only, such as by `set_weights` with
    what only that process has read; without it, `fit` raises an error there.

    The processes compare checksums when training begins, and send only variables that differ. With
    one process there is nothing to do. All processes must have the callback in their lists, at
    the same place.

    Args:
        root_rank: the process whose values count, 0-based.

    Raises:
        ValueError: when `root_rank` is no integer >= 0; from `fit`, when there is no such process.

    Example:

    >>> import keras, numpy as np, tfdist
    >>> strategy = tfdist.MirroredStrategy()
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    ...     model.compile(optimizer="adam", loss="mse")
    >>> broadcast = tfdist.callbacks.BroadcastGlobalVariables(root_rank=0)
    >>> x, y = np.ones((32, 4)), np.ones((32, 1))
    >>> history = model.fit(x, y, verbose=0, callbacks=[broadcast])
    """

    def __init__(self, root_rank: int = 0):
        super().__init__()
        self.root_rank = _checked(root_rank)

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Makes the variables equal in all processes."""
        strategy = self.model.distribute_strategy
        processes = getattr(strategy, "processes", None)
        if processes is None:
            return
        if self.root_rank >= processes.size:
            raise ValueError(
                "`root_rank` must be the rank of a process. "
                f"Received: root_rank={self.root_rank} with {processes.size} process(es)"
            )
        if processes.size == 1:
            return
        copies = [
            strategy.experimental_local_results(variable)
            for variable in all_variables(self.model)
            if variable.synchronization != tf.VariableSynchronization.ON_READ
        ]
        checksums = processes.all_gather([_checksum(parts[0]) for parts in copies])
        differ = (checksums != checksums[0]).any(axis=0)
        copies = [parts for parts, differs in zip(copies, differ) if differs]
        values = processes.broadcast([parts[0].numpy() for parts in copies], self.root_rank)
        for parts, value in zip(copies, values):
            for part in parts:
                part.assign(value)


def _checked(rank: int) -> int:
    try:
        valid = not isinstance(rank, bool) and operator.index(rank) >= 0
    except TypeError:
        valid = False
    if not valid:
        raise ValueError(f"`root_rank` must be an integer >= 0. Received: root_rank={rank!r}")
    return rank


def _checksum(variable: tf.Variable) -> int:
    return zlib.crc32(np.ascontiguousarray(variable.numpy()).tobytes())
