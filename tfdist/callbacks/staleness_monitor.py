"""The callback that shows how stale the gradients are."""

from __future__ import annotations

import copy
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.arguments import shown
from tfdist.callbacks.summaries import Summaries


class StalenessMonitor(keras.callbacks.Callback):
    """Logs in each epoch how stale the gradients were, and what was done about it.

    `ParameterServerStrategy.callbacks()` contains this callback. These values come into the logs,
    and so into History and TensorBoard, and into CSVLogger if it comes later in the list of
    callbacks. All values are about the updates of the epoch:

    - `staleness` and `staleness_max`: mean and maximum of the applied gradients, in updates;
    - `lost_updates`: the number of updates that were lost with a parameter server;

    and where the strategy has a policy:

    - `dropped`: the number of gradients that were not applied;
    - `waits`: how often a worker had to wait: to begin a step, or because other gradients had to be
      applied before its own;
    - `effective_learning_rate`: the learning rate times the mean of the policy's factors; not with
      a `MultiOptimizer`, which has several learning rates.

    With `Synchronous(drop=k)` there is `dropped_parts` too: the number of parts of global batches
    that updates were made without.

    `strategy.staleness_report()` has the histograms of each worker.

    Args:
        strategy: the `tfdist.ParameterServerStrategy`.
        log_dir: a folder for TensorBoard. Each worker's histogram of each epoch is written there.
            None for no histograms.

    Raises:
        TypeError: when `strategy` is another strategy.
        ValueError: at the beginning of training, for a `log_dir` that cannot be written.

    Example:

    >>> import keras, numpy as np, tfdist
    >>> with tfdist.cluster.local_cluster(workers=2, ps=1) as resolver:
    ...     strategy = tfdist.ParameterServerStrategy(resolver)
    ...     with strategy.scope():
    ...         model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    ...         model.compile(optimizer="sgd", loss="mse")
    ...     x, y = np.ones((32, 4)), np.ones((32, 1))
    ...     history = model.fit(x, y, verbose=0, callbacks=strategy.callbacks())
    >>> "staleness_max" in history.history
    True
    """

    def __init__(self, strategy: Any, log_dir: str | os.PathLike | None = None) -> None:
        super().__init__()
        if not callable(getattr(strategy, "staleness_report", None)):
            raise TypeError(
                "`strategy` must be a `tfdist.ParameterServerStrategy`, which alone has stale "
                f"gradients. Received: strategy={shown(strategy)} of type {type(strategy)}"
            )
        self._strategy = strategy
        self._before = copy.deepcopy(strategy.staleness_report())
        self._summaries = Summaries(log_dir, "staleness")

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Begins to write the histograms.

        Raises:
            ValueError: for a folder that cannot be written.
        """
        if error := self._summaries.problem():
            raise error

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Keeps a copy of the report so far."""
        self._before = copy.deepcopy(self._strategy.staleness_report())

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Adds the epoch's values to `logs`, and writes the histograms."""
        report = self._strategy.staleness_report().since(self._before)
        if logs is not None:
            logs["staleness"] = report.mean_staleness
            logs["staleness_max"] = report.max_staleness
            logs["lost_updates"] = report.lost_updates
            if self._strategy.policies.drop:
                logs["dropped_parts"] = report.dropped_parts
            if self._strategy.policies.policies:
                logs["dropped"] = report.drops
                logs["waits"] = report.waits
                rate = getattr(self.model.optimizer, "learning_rate", None)
                if rate is not None:
                    rate = float(keras.ops.convert_to_numpy(rate))
                    logs["effective_learning_rate"] = rate * report.learning_rate_factor

        def write() -> None:
            for index, own in sorted(report.workers.items()):
                values = np.array([*own.histogram.elements()], np.float32)
                tf.summary.histogram(f"staleness/worker_{index}", values, step=epoch)

        self._summaries.write(write)
