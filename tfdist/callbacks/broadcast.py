"""The callback that gives all processes the variables of one process when training begins."""

from __future__ import annotations

import keras

from tfdist.processes.shared_variables import share_variables
from tfdist.validation import check_integer


class BroadcastGlobalVariables(keras.callbacks.Callback):
    """Copies the variables of the model and its optimizers from one process to all others.

    A name for scripts that used Horovod's `BroadcastGlobalVariablesCallback`. A tfdist strategy
    gives all processes rank 0's initial values by itself. So a script that comes from Horovod no
    longer needs the callback, which then only compares checksums when training begins. It is useful
    where variables are set in one process only, for example with weights that only this process has
    read. Without the callback, `fit` would raise an error there.

    Only variables that differ are sent. With one process, and without a tfdist strategy, the
    callback does nothing. All processes need the callback at the same place in their lists.

    Args:
        root_rank: the process whose values count, 0-based.

    Raises:
        ValueError: when `root_rank` is not an integer >= 0; from `fit`, when no process has this
            rank.

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
        if not processes.is_alone:
            share_variables(self.model, strategy, self.root_rank)
