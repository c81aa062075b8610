"""The callback that gives all processes the variables of one of them when training begins."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfdist.processes.agreement import all_variables, broadcast_variables, checksum_of
from tfdist.validation import check_integer


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
        check_integer("root_rank", root_rank, 0)
        self.root_rank = root_rank

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
        common = [
            variable
            for variable in all_variables(self.model)
            if variable.synchronization != tf.VariableSynchronization.ON_READ
        ]
        checksums = processes.all_gather([checksum_of(strategy, v) for v in common])
        differ = (checksums != checksums[0]).any(axis=0)
        different = [variable for variable, differs in zip(common, differ) if differs]
        broadcast_variables(strategy, different, self.root_rank)
