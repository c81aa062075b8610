"""The callback that tells how far replicas come apart in a round of local steps."""

from __future__ import annotations

import keras


class Drift(keras.callbacks.Callback):
    """Adds `drift` to the logs of each epoch: how far the replicas came apart within rounds.

    The drift of a round is the root of the mean square of the replicas' distances to the mean
    weights that all take, divided by the norm of what this mean has moved in the round. It is 0
    where all replicas take the same steps, and about √(R - 1) for R replicas whose steps have
    nothing in common. If it grows from epoch to epoch, take fewer `steps`. The logs have the mean
    over the epoch's rounds.

    `strategy.callbacks()` contains this callback if the strategy has the option `local`. Measuring
    takes no message of its own; with compression one number in each round, and then the mean is
    what the coded differences come to.

    Example:

    >>> import keras, numpy as np, tfdist
    >>> strategy = tfdist.Strategy("mirrored", local=tfdist.LocalSGD(steps=8))
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    ...     model.compile(optimizer="adam", loss="mse")
    >>> callback = tfdist.callbacks.Drift()
    >>> history = model.fit(np.ones((32, 4)), np.ones((32, 1)), verbose=0, callbacks=[callback])
    """

    # It does the same in all processes.
    decides_in_batches = False
    changes_variables = False
    saves_alone = False

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Adds the drift; NaN if no round has ended in this epoch."""
        rounds = getattr(self.model.optimizer, "rounds", None)
        if rounds is not None and logs is not None:
            logs["drift"] = rounds.state.take_drift()
